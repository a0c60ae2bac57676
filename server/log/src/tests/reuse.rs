//! Truncation, and segments that are used again.

use super::*;
use crate::RecordPlace;

/// Writes entries of 1 KiB in slots of the log of commands, each as a group of its own.
fn write_slots(written: &mut Written, slots: std::ops::RangeInclusive<u64>) {
    for slot in slots {
        written.write(&[accepted(LogId::Commands, slot, slot, 1024)]);
    }
}

fn place_of(written: &Written, slot: u64) -> RecordPlace {
    let mut entries = written.log.entries(LogId::Commands, Slot(slot));
    entries.next().expect("the slot has an entry").1
}

#[test]
fn truncation_frees_the_oldest_segments_and_keeps_all_facts() {
    let mut written = Written::new(4096);
    written.write(&facts(3));
    write_slots(&mut written, 1..=20);
    let before = written.log.segments().count();
    written.truncate(12);
    assert_eq!(written.log.segments().count(), before - written.removed);
    assert!(written.removed >= 3, "{} are removed", written.removed);
    let before = written.contents.clone();
    written.restart().unwrap();
    written.contents.facts.incarnation = before.facts.incarnation;
    assert_eq!(written.contents, before);
}

#[test]
fn a_log_of_one_segment_is_not_truncated() {
    let mut written = Written::new(65536);
    write_slots(&mut written, 1..=3);
    written.truncate(3);
    assert_eq!(written.removed, 0);
    assert_eq!(written.log.entries(LogId::Commands, Slot::ZERO).count(), 0);
}

#[test]
fn entries_of_both_logs_hold_a_segment() {
    let mut written = Written::new(4096);
    written.write(&[accepted(LogId::Configs, 7, 1, 10)]);
    write_slots(&mut written, 1..=20);
    let slots = [Slot(20), Slot(6)].into();
    assert!(!written.log.can_truncate(slots));
    assert!(written.log.truncate(slots).is_empty());
    assert!(written.log.can_truncate([Slot(20), Slot(7)].into()));
}

/// An entry of a dead ballot does not hold the log for ever.
#[test]
fn an_erased_entry_holds_no_segment() {
    let mut written = Written::new(4096);
    written.write(&[accepted(LogId::Configs, 9, 1, 10)]);
    let erased = Record::Erased {
        log: LogId::Configs,
        slot: Slot(9),
    };
    written.write(&[erased]);
    write_slots(&mut written, 1..=20);
    assert!(written.log.can_truncate([Slot(20), Slot(8)].into()));
    written.truncate(8);
    assert!(written.removed > 0);
    let before = written.contents.clone();
    written.restart().unwrap();
    written.contents.facts.incarnation = before.facts.incarnation;
    assert_eq!(written.contents, before);
}

/// The file of a removed segment is used again, with its old contents. A crash may come at any
/// write, and may lose any sector of it.
#[test]
fn old_groups_of_a_segment_that_is_used_again_are_not_read() {
    let mut written = Written::new(4096);
    for round in 0..30 {
        let first = 4 * round + 1;
        write_slots(&mut written, first..=first + 3);
        if round > 2 {
            written.truncate(first - 8);
        }
        let torn = written.log.plan(&facts(round), Vec::new()).unwrap();
        for lost in 0..2 {
            let mut written = written.clone();
            written.disk.write(&torn);
            let mut sector = 0;
            written.disk.crash(|| {
                sector += 1;
                sector % 2 == lost
            });
            let before = written.contents.clone();
            let mut after = before.clone();
            after.apply(&facts(round));
            written.restart().unwrap();
            written.contents.facts.incarnation = before.facts.incarnation;
            assert!([before, after].contains(&written.contents), "round {round}");
        }
    }
    assert!(written.removed > 10);
}

/// A reader has the place of an entry. Before it reads, the file becomes another segment, and an
/// entry of the same slot is written at the same place.
#[test]
pub(super) fn h114_a_place_in_an_earlier_use_of_the_file_is_not_read() {
    let mut written = Written::new(4096);
    write_slots(&mut written, 1..=1);
    let place = place_of(&written, 1);
    written.restart().unwrap();
    write_slots(&mut written, 1..=1);
    let now = place_of(&written, 1);
    assert_ne!(now.segment, place.segment);
    let found = written.disk.read(now).expect("the place exists");
    let read = decode_entry(&found, place.segment, LogId::Commands, Slot(1));
    assert_eq!(read, Err(crate::EntryProblem::Checksum));
}
