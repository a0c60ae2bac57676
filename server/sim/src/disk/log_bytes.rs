//! The log of a simulated disk as bytes. A crash may lose any unsynced sectors.
//!
//! The rest of the disk ([`Image`]) is the model: after every crash, the bytes must hold what the
//! model says.

use std::hash::{Hash, Hasher};

use leasehold_leases::{Incarnation, Slot};
use leasehold_log::memory::MemoryDisk;
use leasehold_log::{
    EntryProblem, LogWrite, LogWriter, Marked, RecordPlace, SegmentBytes, SegmentId, decode_entry,
};
use leasehold_replica::action::Record;
use leasehold_replica::message::{LogId, PerLog, ReportedEntry, Value};

use super::Image;

/// Number that identifies the data directory (its life). The log recognizes its own headers by this
/// number. A constant is enough here, because no client in the simulation writes bytes that look
/// like headers.
const LIFE: u64 = 1;

/// Log of a disk as bytes, with the write that is in progress.
#[derive(Clone, Debug)]
pub(super) struct LogBytes {
    disk: MemoryDisk,
    log: LogWriter,
    segment_bytes: SegmentBytes,
    /// Write of the sync in progress; `None` if the sync has no records of the log.
    write: Option<LogWrite>,
    /// Segment with which the log begins.
    first: SegmentId,
    /// Truncation that waits for the sync in progress.
    truncate_to: Option<PerLog<Slot>>,
}

impl Hash for LogBytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.disk.hash(state);
    }
}

impl LogBytes {
    /// Returns an empty log with segments of this length in bytes.
    pub(super) fn new(segment_bytes: usize) -> LogBytes {
        let segment_bytes = SegmentBytes {
            first: segment_bytes,
            max: segment_bytes,
        };
        let disk = MemoryDisk::default();
        let log = disk.recover(LIFE, Marked::default(), segment_bytes);
        LogBytes {
            disk,
            log: log.expect("an empty log is not damaged"),
            segment_bytes,
            write: None,
            first: SegmentId(1),
            truncate_to: None,
        }
    }

    /// Returns the length of a segment in bytes.
    pub(super) fn segment_bytes(&self) -> usize {
        self.segment_bytes.first
    }

    /// Begins to write the records of a sync.
    pub(super) fn begin(&mut self, records: &[Record]) {
        self.write = self.log.plan(records, Vec::new());
        if let Some(write) = &self.write {
            self.disk.write(write);
        }
    }

    /// Ends the sync.
    pub(super) fn synced(&mut self) {
        if let Some(write) = self.write.take() {
            self.disk.sync();
            self.log.complete(write, true);
        }
        if let Some(slots) = self.truncate_to.take() {
            self.truncate(slots);
        }
    }

    /// Removes segments in which all entries are in these slots or earlier slots. A crash may bring
    /// removed segments back.
    pub(super) fn truncate(&mut self, slots: PerLog<Slot>) {
        if self.write.is_some() {
            self.truncate_to = Some(slots);
            return;
        }
        for (id, _) in self.log.truncate(slots) {
            self.disk.remove(id);
        }
        let first = self.log.segments().next();
        self.first = first.map_or(self.first, |(id, _)| id);
    }

    /// Handles a crash during the write. A sector is lost if `survives` returns false for this
    /// sector. Returns whether all sectors survive.
    pub(super) fn crash(&mut self, mut survives: impl FnMut() -> bool) -> bool {
        let mut is_whole = true;
        self.disk.crash(|| {
            let survived = survives();
            is_whole &= survived;
            survived
        });
        self.write = None;
        self.truncate_to = None;
        is_whole
    }

    /// Reads the log from its bytes, compares it with the model, and begins a run.
    ///
    /// # Panics
    /// Panics if the log differs from the model.
    pub(super) fn recover(&mut self, image: &Image) {
        let marked = Marked {
            group: self.log.synced(),
            first: self.first,
        };
        let recovered = self.disk.recover(LIFE, marked, self.segment_bytes);
        self.log = recovered.unwrap_or_else(|damage| panic!("a torn log is refused: {damage}"));
        self.assert_like(image);
        let write = self.log.plan_incarnation(Incarnation::default());
        self.disk.write(&write);
        self.disk.sync();
        self.log.complete(write, true);
    }

    fn assert_like(&self, image: &Image) {
        let facts = self.log.facts();
        assert_eq!(facts.incarnation, image.incarnation, "incarnation");
        assert_eq!(facts.promised, image.promised, "promised ballot");
        assert_eq!(facts.log_starts, image.log_starts, "starts of ballots");
        assert_eq!(facts.restart_wait, image.restart_wait, "restart wait");
        assert_eq!(facts.lives, image.lives, "lives");
        assert_eq!(facts.joined, image.joined, "joined");
        assert_eq!(facts.committed, image.committed, "commit points");
        for log in LogId::ALL {
            let kept = image.truncated[log].next();
            let found = self.log.entries(log, kept).map(|(slot, _)| slot);
            let expected = image.accepted.range((log, Slot::ZERO)..);
            let expected = expected.take_while(|((of, _), _)| *of == log);
            assert!(found.eq(expected.map(|((_, slot), _)| *slot)), "slots");
        }
        for entry in image.reported() {
            let found = self.entries(entry.log, entry.slot).next();
            let found = found.map(|(found, _)| (found.slot, found.ballot, found.value));
            assert_eq!(
                found,
                Some((entry.slot, entry.ballot, entry.value)),
                "entry"
            );
        }
    }

    /// Returns the entries of a log from slot `from` on, in ascending order, with their places.
    pub(super) fn entries(
        &self,
        log: LogId,
        from: Slot,
    ) -> impl Iterator<Item = (ReportedEntry, RecordPlace)> {
        self.log.entries(log, from).map(move |(slot, place)| {
            let bytes = self.disk.read(place).expect("the place exists");
            let decoded = decode_entry(&bytes, place.segment, log, slot);
            let (ballot, value) = decoded.expect("the entry is intact");
            let entry = ReportedEntry {
                log,
                slot,
                ballot,
                value,
            };
            (entry, place)
        })
    }

    /// Reads an entry from a file that may have been used for another segment since the read began.
    /// `value` is the entry's value. Returns false if the file no longer has the entry.
    ///
    /// # Panics
    /// Panics if a record of the other segment passes for a record of the entry's segment, or if
    /// the read returns another value (hazard 114).
    pub(super) fn still_holds(
        &self,
        log: LogId,
        slot: Slot,
        place: RecordPlace,
        value: &Value,
    ) -> bool {
        let Some(bytes) = self.disk.read_reused(place) else {
            return true;
        };
        match decode_entry(&bytes, place.segment, log, slot) {
            Ok((_, found)) => {
                assert_eq!(
                    found, *value,
                    "slot {slot:?} of {log:?} is read from its file"
                );
                true
            }
            Err(EntryProblem::Checksum) => false,
            Err(problem) => {
                panic!(
                    "slot {slot:?} of {log:?} is read from the file of another segment: {problem}"
                )
            }
        }
    }
}
