//! Tests of the log as a whole, on a disk in memory. Each test compares the recovered log with a
//! model: the facts and entries that were written.

mod damage;
mod found;
#[cfg(feature = "mutants")]
mod mutants;
mod random;
mod reuse;
mod torn;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::{Ballot, Incarnation, ReplicaId, Slot};
use leasehold_replica::action::Record;
use leasehold_replica::codec;
use leasehold_replica::message::{Batch, LogId, Proposal, RequestId, Value};
use leasehold_wire::Command;
use leasehold_wire::command::Op;

use crate::memory::MemoryDisk;
use crate::{
    LogDamage, LogFacts, LogWrite, LogWriter, Marked, SegmentBytes, SegmentId, decode_entry,
};

const LIFE: u64 = 0x5eed;

/// Contents of a log: its facts, and for each slot the encoded entry.
#[derive(Clone, Debug, Default, PartialEq)]
struct Contents {
    facts: LogFacts,
    entries: BTreeMap<(LogId, Slot), Vec<u8>>,
}

/// A log on a disk in memory, with the contents that it should have.
#[derive(Clone, Debug)]
struct Written {
    disk: MemoryDisk,
    log: LogWriter,
    segment_bytes: SegmentBytes,
    /// Contents after the last completed write.
    contents: Contents,
    /// Segment with which the log begins.
    first: SegmentId,
    /// Slot up to which the entries of both logs were truncated.
    truncated: Slot,
    /// Number of segments that were removed.
    removed: usize,
}

impl Written {
    /// Returns an empty log that has begun its first run.
    fn new(segment_bytes: usize) -> Written {
        let segment_bytes = fixed(segment_bytes);
        let disk = MemoryDisk::default();
        let log = disk.recover(LIFE, Marked::default(), segment_bytes);
        let mut written = Written {
            disk,
            log: log.unwrap(),
            segment_bytes,
            contents: Contents::default(),
            first: SegmentId(1),
            truncated: Slot::ZERO,
            removed: 0,
        };
        written.begin_run();
        written
    }

    fn begin_run(&mut self) {
        let write = self.log.plan_incarnation(Incarnation::default());
        self.contents.facts.incarnation.0 += 1;
        self.perform(write);
    }

    /// Performs, syncs and completes a write.
    fn perform(&mut self, write: LogWrite) {
        self.disk.write(&write);
        self.disk.sync();
        self.log.complete(write, true);
    }

    /// Writes and syncs records as one group.
    fn write(&mut self, records: &[Record]) {
        let write = self.log.plan(records, Vec::new()).unwrap();
        self.perform(write);
        self.contents.apply(records);
    }

    fn marked(&self) -> Marked {
        Marked {
            group: self.log.synced(),
            first: self.first,
        }
    }

    /// Truncates both logs up to slot `last`.
    fn truncate(&mut self, last: u64) {
        self.truncated = Slot(last);
        let removed = self.log.truncate([self.truncated; 2].into());
        removed.iter().for_each(|(id, _)| self.disk.remove(*id));
        self.removed += removed.len();
        self.first = self.log.segments().next().expect("one stays").0;
        self.contents.truncate(self.truncated);
    }

    /// Recovers the log from the disk, and begins a new run.
    fn restart(&mut self) -> Result<(), LogDamage> {
        self.log = self.recover()?;
        self.contents = contents(&self.log, &self.disk);
        self.contents.truncate(self.truncated);
        self.begin_run();
        Ok(())
    }

    fn recover(&self) -> Result<LogWriter, LogDamage> {
        self.disk.recover(LIFE, self.marked(), self.segment_bytes)
    }
}

impl Contents {
    fn truncate(&mut self, last: Slot) {
        self.entries.retain(|(_, slot), _| *slot > last);
    }

    fn apply(&mut self, records: &[Record]) {
        for record in records {
            match crate::record::Logged::of(record) {
                Some(crate::record::Logged::Entry {
                    log,
                    slot,
                    ballot,
                    value,
                }) => {
                    self.entries.insert((log, slot), encoded(ballot, value));
                }
                Some(crate::record::Logged::Erased { log, slot }) => {
                    self.entries.remove(&(log, slot));
                }
                Some(crate::record::Logged::Fact(fact)) => self.facts.apply(&fact),
                None => {}
            }
        }
    }
}

/// Returns segment lengths that are all equal to `bytes`.
fn fixed(bytes: usize) -> SegmentBytes {
    SegmentBytes {
        first: bytes,
        max: bytes,
    }
}

/// Reads the contents of a log from the disk.
fn contents(log: &LogWriter, disk: &MemoryDisk) -> Contents {
    let entries = LogId::ALL.into_iter().flat_map(|id| {
        let entries = log.entries(id, Slot::ZERO);
        entries.map(move |(slot, place)| {
            let bytes = disk.read(place).expect("the place exists");
            let found = decode_entry(&bytes, place.segment, id, slot);
            let (ballot, value) = found.expect("the entry is intact");
            ((id, slot), encoded(ballot, &value))
        })
    });
    Contents {
        facts: log.facts().clone(),
        entries: entries.collect(),
    }
}

fn encoded(ballot: Ballot, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    codec::encode_entry(ballot, value, &mut out);
    out
}

fn ballot(round: u64) -> Ballot {
    Ballot {
        round,
        replica: ReplicaId((round % 5) as u8),
    }
}

fn accepted(log: LogId, slot: u64, round: u64, bytes: usize) -> Record {
    Record::Accepted {
        log,
        slot: Slot(slot),
        ballot: ballot(round),
        value: value(slot, bytes),
    }
}

/// Returns records with all kinds of facts.
fn facts(number: u64) -> Vec<Record> {
    vec![
        Record::Promised(ballot(number)),
        Record::LogStart {
            log: LogId::Commands,
            ballot: ballot(number),
            slot: Slot(number),
        },
        Record::LogStart {
            log: LogId::Configs,
            ballot: ballot(number),
            slot: Slot(number + 1),
        },
        Record::ForgetLogStarts {
            log: LogId::Commands,
            below: ballot(number.saturating_sub(2)),
        },
        Record::RestartWait(Duration::from_millis(number)),
        Record::Life {
            replica: ReplicaId((number % 64) as u8),
            life: number + 1,
        },
        Record::Joined,
        Record::Committed([Slot(number), Slot(number + 1)].into()),
    ]
}

fn value(slot: u64, bytes: usize) -> Value {
    if bytes == 0 {
        return Value::Noop;
    }
    let text = vec![b'a' + (slot % 26) as u8; bytes];
    Value::Commands(Arc::new(Batch {
        log_time_ms: slot,
        commands: vec![Proposal {
            origin: ReplicaId(0),
            request: RequestId(slot),
            command: Command::session(1, 1, 1, Op::put("k", text)),
        }],
        ..Default::default()
    }))
}

#[test]
fn an_empty_directory_has_an_empty_log() {
    let log = MemoryDisk::default().recover(LIFE, Marked::default(), fixed(4096));
    let log = log.unwrap();
    assert_eq!((log.written(), log.synced()), (0, 0));
    assert_eq!(*log.facts(), LogFacts::default());
    assert_eq!(log.entries(LogId::Commands, Slot::ZERO).count(), 0);
}

#[test]
fn a_record_larger_than_a_segment_gets_a_segment_that_holds_it() {
    let mut written = Written::new(4096);
    written.write(&[accepted(LogId::Commands, 1, 1, 10_000)]);
    written.write(&[accepted(LogId::Commands, 2, 1, 10)]);
    let lengths: Vec<usize> = written.log.segments().map(|(_, bytes)| bytes).collect();
    let [first, longer, last] = lengths[..] else {
        panic!("three segments: {lengths:?}");
    };
    assert_eq!((first, last), (4096, 4096));
    assert!(longer > 10_000, "{longer}");
    let recovered = written.recover().unwrap();
    assert_eq!(contents(&recovered, &written.disk), written.contents);
}

#[test]
fn a_write_that_was_given_up_is_planned_again_as_if_nothing_had_happened() {
    let mut written = Written::new(4096);
    let first = written.log.plan(&facts(1), Vec::new()).unwrap();
    written.disk.write(&first);
    let mut survives = [false, true].into_iter().cycle();
    written.disk.crash(|| survives.next().unwrap());
    written.write(&[accepted(LogId::Configs, 7, 1, 0)]);
    let recovered = written.recover().unwrap();
    assert_eq!(contents(&recovered, &written.disk), written.contents);
}

#[test]
fn each_run_begins_a_segment() {
    let mut written = Written::new(4096);
    for run in 2..5 {
        written.restart().unwrap();
        assert_eq!(written.log.segments().count(), run);
        assert_eq!(written.log.facts().incarnation.0, run as u64);
    }
}
