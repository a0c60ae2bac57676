//! Writes that a crash tears. After the crash, the log holds all earlier writes, and holds the torn
//! write as a whole or not at all.

use super::*;

/// Returns writes of several sizes, from one sector to many.
fn writes() -> Vec<Vec<Record>> {
    let entry = |slot, bytes| accepted(LogId::Commands, slot, 1, bytes);
    vec![
        facts(1),
        vec![entry(1, 40)],
        (2..40).map(|slot| entry(slot, 60)).collect(),
        facts(2),
        vec![entry(40, 3000), accepted(LogId::Configs, 1, 1, 0)],
        vec![entry(39, 700)],
        vec![Record::Erased {
            log: LogId::Commands,
            slot: Slot(5),
        }],
        vec![entry(41, 6000)],
        vec![entry(42, 2500), entry(43, 10)],
    ]
}

/// Sectors of a torn write that reach the disk.
#[derive(Clone, Copy, Debug)]
enum Tear {
    /// Sectors before this one.
    Before(usize),
    /// All sectors but this one.
    Without(usize),
    /// Single sector that reaches the disk.
    Only(usize),
}

impl Tear {
    fn survives(self, sector: usize) -> bool {
        match self {
            Tear::Before(end) => sector < end,
            Tear::Without(lost) => sector != lost,
            Tear::Only(kept) => sector == kept,
        }
    }
}

/// Performs a write of `records`. Only a part of the write, as given by `tear`, reaches the disk.
/// Then checks the log.
fn tear(before: &Written, records: &[Record], tear: Tear) {
    let mut written = before.clone();
    let write = written.log.plan(records, Vec::new()).unwrap();
    let sectors = write.bytes.len() / crate::ALIGNMENT;
    written.disk.write(&write);
    let mut sector = 0..;
    written
        .disk
        .crash(|| tear.survives(sector.next().expect("there is no last number")));
    let whole = (0..sectors).all(|sector| tear.survives(sector));
    written.restart().unwrap_or_else(|damage| {
        panic!("a torn write is taken for damage after {tear:?}: {damage}");
    });
    let mut expected = before.contents.clone();
    if whole {
        expected.apply(records);
    }
    expected.facts.incarnation = written.contents.facts.incarnation;
    assert_eq!(written.contents, expected, "{tear:?}");
    // The next run continues behind the tear, and the run after it finds everything.
    written.write(&[accepted(LogId::Commands, 100, 9, 100)]);
    let expected = written.contents.clone();
    let recovered = written.recover().unwrap();
    assert_eq!(contents(&recovered, &written.disk), expected, "{tear:?}");
}

pub(super) fn every_group_is_torn_at_every_sector() {
    for segment_bytes in [4096, 8192, 65536] {
        let mut written = Written::new(segment_bytes);
        for records in writes() {
            let planned = written.log.plan(&records, Vec::new()).unwrap();
            for sector in 0..=planned.bytes.len() / crate::ALIGNMENT {
                for kind in [Tear::Before, Tear::Without, Tear::Only] {
                    tear(&written, &records, kind(sector));
                }
            }
            written.write(&records);
        }
    }
}

#[test]
fn h116_every_group_is_whole_or_absent_wherever_it_is_torn() {
    every_group_is_torn_at_every_sector();
}

/// The head of a segment is written together with the group behind it, and only the head reaches
/// the disk. If the head contained the new promise, the next start would treat the ballot in the
/// lost group as promised.
pub(super) fn the_head_is_durable_and_the_group_behind_it_is_torn() {
    let mut written = Written::new(4096);
    written.write(&[accepted(LogId::Commands, 1, 1, 2600)]);
    let records = [
        Record::Promised(ballot(7)),
        accepted(LogId::Commands, 2, 7, 2600),
    ];
    let write = written.log.plan(&records, Vec::new()).unwrap();
    assert!(write.begins.is_some());
    written.disk.write(&write);
    let mut sector = 0;
    written.disk.crash(|| {
        sector += 1;
        sector == 1
    });
    let recovered = written.recover().unwrap();
    assert_eq!(recovered.segments().count(), 2, "the head is there");
    assert_eq!(contents(&recovered, &written.disk), written.contents);
}

#[test]
fn h118_a_head_states_nothing_that_the_log_does_not_hold() {
    the_head_is_durable_and_the_group_behind_it_is_torn();
}

#[test]
fn a_segment_that_was_made_and_not_begun_is_made_again() {
    let entry = |slot| accepted(LogId::Commands, slot, 1, 2600);
    let mut written = Written::new(4096);
    for _ in 0..3 {
        written.write(&[entry(1)]);
        let before = written.contents.clone();
        let write = written.log.plan(&[entry(2)], Vec::new()).unwrap();
        assert!(write.begins.is_some());
        written.disk.write(&write);
        written.disk.crash(|| false);
        written.restart().unwrap();
        assert_eq!(written.contents.entries, before.entries);
    }
}

/// With a durability other than `sync`, several groups may be written and not synced. A crash may
/// keep a later one and lose an earlier one.
#[test]
fn a_group_behind_a_lost_one_is_lost() {
    let mut written = Written::new(65536);
    let before = written.contents.clone();
    for slot in 1..4 {
        let write = written
            .log
            .plan(&[accepted(LogId::Commands, slot, 1, 10)], Vec::new());
        let write = write.unwrap();
        written.disk.write(&write);
        written.log.complete(write, false);
    }
    let mut group = 0;
    written.disk.crash(|| {
        group += 1;
        group != 2
    });
    written.restart().unwrap();
    let first = (LogId::Commands, Slot(1));
    assert_eq!(
        written.contents.entries.keys().collect::<Vec<_>>(),
        [&first]
    );
    assert!(before.entries.is_empty());
    // The lost groups are still on the disk behind the first one, and must not come back.
    written.write(&[accepted(LogId::Commands, 2, 2, 10)]);
    written.restart().unwrap();
    assert_eq!(written.contents.entries.len(), 2);
}
