//! Visits of records, torn writes, and damage behind damage.

use super::damage::filled;
use super::*;
use crate::memory::sealed_segment;
use crate::record::{self, Logged};
use crate::{Fact, FoundRecord, LogRecord, LogRecovery, TornWrite, damage_behind};

/// Reads all segments, and passes each record to `visit`.
fn visit(written: &mut Written, mut visit: impl FnMut(&FoundRecord<'_>)) -> LogRecovery {
    let mut recovery = LogRecovery::new(LIFE);
    for (id, bytes) in written.disk.segments_mut() {
        let read = recovery.visit_segment(id, bytes, &mut visit);
        read.unwrap();
    }
    recovery
}

#[test]
fn a_visitor_sees_every_record_at_its_place_and_heads_apart() {
    let mut written = filled(4096, 3);
    let mut seen = Contents::default();
    let (mut heads, mut last) = (Vec::new(), 0);
    visit(&mut written, |found| {
        assert!(found.is_intact());
        assert!(found.group.number >= last && found.group.synced < found.group.number);
        last = found.group.number;
        match found.record {
            LogRecord::Fact(fact) if found.group.is_head => heads.push((found.segment, fact)),
            LogRecord::Fact(fact) => seen.facts.apply(&fact),
            LogRecord::Entry { log, slot, .. } => {
                let (ballot, value) = found.entry(log, slot).unwrap();
                seen.entries.insert((log, slot), encoded(ballot, &value));
            }
            LogRecord::Erased { log, slot } => {
                seen.entries.remove(&(log, slot));
            }
        }
    });
    assert_eq!(seen, written.contents);
    assert_eq!(last, written.log.written());
    let incarnations = heads
        .iter()
        .filter(|(_, fact)| matches!(fact, Fact::Incarnation(_)));
    let segments: Vec<SegmentId> = incarnations.map(|(id, _)| *id).collect();
    assert_eq!(segments, [1, 2, 3].map(SegmentId));
}

#[test]
fn the_places_of_a_visitor_are_those_of_the_index() {
    let mut written = filled(4096, 3);
    let mut places = BTreeMap::new();
    visit(&mut written, |found| {
        if let LogRecord::Entry { log, slot, .. } = found.record {
            places.insert((log, slot), (found.segment, found.offset, found.bytes()));
        }
    });
    let recovered = written.recover().unwrap();
    let indexed = LogId::ALL.into_iter().flat_map(|log| {
        let entries = recovered.entries(log, Slot::ZERO);
        entries.map(move |(slot, it)| {
            let place = (it.segment, it.offset as usize, it.bytes as usize);
            ((log, slot), place)
        })
    });
    assert_eq!(places, indexed.collect::<BTreeMap<_, _>>());
}

#[test]
fn a_torn_write_is_found_with_its_group() {
    let mut written = Written::new(65536);
    written.write(&[accepted(LogId::Commands, 1, 1, 10)]);
    let whole = visit(&mut written, |_| {});
    let end = whole.end(SegmentId(1));
    let torn_of = |written: &mut Written| {
        let recovery = visit(written, |_| {});
        let (id, bytes) = written.disk.segments_mut().next().unwrap();
        recovery.torn_write(id, bytes)
    };
    assert_eq!(torn_of(&mut written), None);
    let write = written
        .log
        .plan(&[accepted(LogId::Commands, 2, 1, 2000)], Vec::new());
    written.disk.write(&write.unwrap());
    let mut sectors = 0;
    written.disk.crash(|| {
        sectors += 1;
        sectors <= 2
    });
    let expected = TornWrite {
        segment: SegmentId(1),
        offset: end,
        bytes: 1024,
        group: Some(whole.last_group() + 1),
    };
    assert_eq!(torn_of(&mut written), Some(expected));
    // Without its header, the group is not known.
    written.disk.segments_mut().next().unwrap().1[end] = 0;
    let torn = torn_of(&mut written).unwrap();
    assert_eq!((torn.offset, torn.group), (end, None));
}

#[test]
fn a_segment_without_a_head_is_torn_from_its_start() {
    let mut recovery = LogRecovery::new(LIFE);
    let mut bytes = vec![0; 4096];
    recovery.segment(SegmentId(1), &bytes).unwrap();
    assert_eq!(recovery.torn_write(SegmentId(1), &bytes), None);
    bytes[700] = 1;
    let torn = recovery.torn_write(SegmentId(1), &bytes).unwrap();
    assert_eq!((torn.offset, torn.bytes, torn.group), (0, 701, None));
}

#[test]
fn groups_of_an_earlier_use_of_a_file_are_no_torn_write() {
    let older = sealed_segment(LIFE, SegmentId(1), &[]);
    let mut bytes = sealed_segment(LIFE, SegmentId(2), &[]);
    let end = bytes.len();
    bytes.extend(older);
    let mut recovery = LogRecovery::new(LIFE);
    recovery.segment(SegmentId(2), &bytes).unwrap();
    assert_eq!(recovery.end(SegmentId(2)), end);
    assert_eq!(recovery.torn_write(SegmentId(2), &bytes), None);
}

#[test]
fn damage_behind_damage_is_named() {
    let mut written = Written::new(65536);
    for slot in 1..10 {
        written.write(&[accepted(LogId::Commands, slot, 1, 10)]);
    }
    let sector = crate::ALIGNMENT;
    let (id, bytes) = written.disk.segments_mut().next().unwrap();
    // The head, the incarnation and nine entries take a sector each.
    bytes[3 * sector + 60] ^= 1;
    bytes[5 * sector + 60] ^= 1;
    bytes[7 * sector + 16] ^= 1;
    let bytes = bytes.clone();
    let read = LogRecovery::new(LIFE).segment(id, &bytes);
    assert_eq!(read.unwrap_err().offset, 3 * sector);
    let found = damage_behind(LIFE, id, &bytes, 3 * sector);
    let places: Vec<usize> = found.iter().map(|damage| damage.offset).collect();
    assert_eq!(places, [5 * sector, 7 * sector], "{found:?}");
    assert!(
        found[0].problem.contains("group 6 is not whole"),
        "{found:?}"
    );
    assert!(
        found[1].problem.contains("group 8 is damaged or missing"),
        "{found:?}"
    );
}

#[test]
fn a_record_with_a_wrong_checksum_is_found_in_a_whole_group() {
    let mut records = Vec::new();
    let value = value(1, 5);
    let entry = Logged::Entry {
        log: LogId::Commands,
        slot: Slot(1),
        ballot: ballot(1),
        value: &value,
    };
    record::encode(SegmentId(1), &entry, &mut records);
    let intact_of = |records: &[u8]| {
        let segment = sealed_segment(LIFE, SegmentId(1), records);
        let mut found = Vec::new();
        let mut recovery = LogRecovery::new(LIFE);
        let read = recovery.visit_segment(SegmentId(1), &segment, &mut |record| {
            let entry = record.entry(LogId::Commands, Slot(1));
            found.push((record.is_intact(), entry.is_ok()));
        });
        read.map(|()| found)
    };
    assert_eq!(intact_of(&records).unwrap(), [(true, true)]);
    *records.last_mut().unwrap() ^= 1;
    assert_eq!(intact_of(&records).unwrap(), [(false, false)]);
}
