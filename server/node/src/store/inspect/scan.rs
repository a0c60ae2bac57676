//! Reads the segments of a log in the order in which they were written.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use leasehold_leases::Slot;
use leasehold_log::{
    ALIGNMENT, FoundRecord, LogDamage, LogFacts, LogRecord, LogRecovery, LogWriter, Marked,
    SegmentBytes, SegmentId, TornWrite, damage_behind,
};
use leasehold_replica::message::PerLog;

use super::super::log_files::{self, FOLDER};
use super::DirectoryProblem;
use crate::store::StorageError;

/// Receiver of the contents of a log.
pub trait LogVisitor {
    /// Receives a record. Records come in the order in which they were written.
    fn record(&mut self, found: &FoundRecord<'_>);

    /// Receives a torn write. All earlier records were received before.
    fn torn(&mut self, _torn: &TornWrite) {}

    /// Whether the visitor needs the next segment.
    fn wants_more(&self) -> bool {
        true
    }
}

/// Visitor that ignores all records.
pub(super) struct Ignorant;

impl LogVisitor for Ignorant {
    fn record(&mut self, _found: &FoundRecord<'_>) {}
}

/// A log that was read.
#[derive(Clone, Debug, Default)]
pub struct LogScan {
    /// Facts after the last record that was read.
    pub facts: LogFacts,
    /// Number of the last group; 0 if there is none.
    pub last_group: u64,
    /// The segments, in ascending order.
    pub segments: Vec<SegmentSummary>,
    /// All problems that were found.
    pub problems: Vec<DirectoryProblem>,
    /// Places of all entries; `None` if the log is damaged.
    pub(super) places: Option<LogWriter>,
}

/// A segment, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Number of the segment.
    pub segment: SegmentId,
    /// Length of the file in bytes.
    pub bytes: usize,
    /// Number of bytes that contain groups, up to the first damage.
    pub used: usize,
    /// Numbers of the first and the last group; `None` if there is no group.
    pub groups: Option<(u64, u64)>,
    /// For each log, the lowest and the highest slot with an entry; `None` if there is no entry.
    pub slots: PerLog<Option<(Slot, Slot)>>,
    /// The torn write at the end of the segment; `None` if there is none.
    pub torn: Option<TornWrite>,
}

impl SegmentSummary {
    fn note(&mut self, found: &FoundRecord<'_>) {
        let number = found.group.number;
        let (first, _) = self.groups.unwrap_or((number, number));
        self.groups = Some((first, number));
        if let LogRecord::Entry { log, slot, .. } = found.record {
            let (lowest, highest) = self.slots[log].unwrap_or((slot, slot));
            self.slots[log] = Some((lowest.min(slot), highest.max(slot)));
        }
    }
}

/// Reads a log up to the first damage.
pub(super) fn first_damage(
    directory: &Path,
    life: u64,
    marked: Marked,
    visitor: &mut dyn LogVisitor,
) -> LogScan {
    SegmentWalk::new(directory, life, false).run(marked, visitor)
}

/// Reads all segments of a log. After damage, this function checks the remaining groups as a
/// separate log.
pub(super) fn all_damage(
    directory: &Path,
    life: u64,
    marked: Marked,
    visitor: &mut dyn LogVisitor,
) -> LogScan {
    SegmentWalk::new(directory, life, true).run(marked, visitor)
}

/// State while the segments of a log are read.
struct SegmentWalk<'a> {
    directory: &'a Path,
    life: u64,
    /// Whether reading continues after damage.
    goes_on: bool,
    recovery: LogRecovery,
    /// Whether `recovery` has read a segment.
    has_begun: bool,
    scan: LogScan,
}

impl SegmentWalk<'_> {
    fn new(directory: &Path, life: u64, goes_on: bool) -> SegmentWalk<'_> {
        SegmentWalk {
            directory,
            life,
            goes_on,
            recovery: LogRecovery::new(life),
            has_begun: false,
            scan: LogScan::default(),
        }
    }

    fn run(mut self, marked: Marked, visitor: &mut dyn LogVisitor) -> LogScan {
        let segments = self.segments(marked);
        let mut bytes = Vec::new();
        let mut is_end_read = true;
        for segment in segments {
            if is_end_read {
                self.pass_torn(visitor);
            }
            is_end_read = self.segment(segment, &mut bytes, visitor);
            if !is_end_read && !self.goes_on {
                break;
            }
            if !visitor.wants_more() {
                return self.scan;
            }
        }
        if is_end_read && !self.scan.segments.is_empty() {
            self.finish(marked);
            self.pass_torn(visitor);
        }
        self.scan
    }

    /// Passes a torn write to `visitor` if one is at the end of the segment that was read last.
    fn pass_torn(&mut self, visitor: &mut dyn LogVisitor) {
        if let Some(torn) = self.scan.segments.last().and_then(|last| last.torn) {
            visitor.torn(&torn);
        }
    }

    /// Returns the numbers of all segments.
    fn segments(&mut self, marked: Marked) -> Vec<SegmentId> {
        let folder = self.directory.join(FOLDER);
        let found = match fs::metadata(&folder) {
            Ok(found) if !found.is_dir() => {
                let problem = DirectoryProblem::refused(FOLDER, "it is not a directory");
                self.scan.problems.push(problem);
                return Vec::new();
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            _ => log_files::segments(&folder),
        };
        // A start removes older segments: a loss of power may have brought them back.
        let is_needed = |it: &SegmentId| *it >= marked.first;
        match found.map(|found| found.into_iter().filter(is_needed).collect::<Vec<_>>()) {
            Ok(found) if found.is_empty() && marked.group > 0 => {
                let problem = format!(
                    "it holds no segments, but the groups up to {} were acknowledged",
                    marked.group
                );
                let problem = DirectoryProblem::refused(FOLDER, &problem);
                self.scan.problems.push(problem);
                found
            }
            Ok(found) => found,
            Err(source) => {
                let path = folder;
                self.failed(StorageError::Directory { path, source });
                Vec::new()
            }
        }
    }

    fn failed(&mut self, error: StorageError) {
        let problem = DirectoryProblem::of(self.directory, error);
        self.scan.problems.push(problem);
    }

    /// Reads a segment. Returns whether the end of the segment is known.
    fn segment(
        &mut self,
        id: SegmentId,
        bytes: &mut Vec<u8>,
        visitor: &mut dyn LogVisitor,
    ) -> bool {
        if let Err(error) = log_files::read_segment(self.directory, id, bytes) {
            self.failed(error);
            self.begin_anew();
            return false;
        }
        let mut read = self.visit(id, bytes, visitor);
        if let Err(damage) = &read
            && self.has_begun
            && (damage.segment != id || damage.offset == 0)
        {
            // The damage is before this segment, which was not read yet.
            self.forget_torn_before(id);
            if self.goes_on {
                self.scan.problems.push(damage.clone().into());
                self.begin_anew();
                read = self.visit(id, bytes, visitor);
            }
        }
        self.has_begun = true;
        let Err(damage) = read else {
            return true;
        };
        let from = damage.offset / ALIGNMENT * ALIGNMENT;
        self.scan.problems.push(damage.into());
        if self.goes_on {
            let behind = damage_behind(self.life, id, bytes, from).into_iter();
            self.scan
                .problems
                .extend(behind.map(DirectoryProblem::from));
        }
        self.begin_anew();
        false
    }

    fn visit(
        &mut self,
        id: SegmentId,
        bytes: &[u8],
        visitor: &mut dyn LogVisitor,
    ) -> Result<(), LogDamage> {
        let mut summary = SegmentSummary {
            segment: id,
            bytes: bytes.len(),
            ..SegmentSummary::default()
        };
        let read = self.recovery.visit_segment(id, bytes, &mut |found| {
            summary.note(found);
            visitor.record(found);
        });
        match &read {
            Ok(()) => {
                summary.used = self.recovery.end(id);
                summary.torn = self.recovery.torn_write(id, bytes);
                self.scan.facts = self.recovery.facts().clone();
                self.scan.last_group = self.recovery.last_group();
            }
            Err(damage) if damage.segment == id => summary.used = damage.offset,
            Err(_) => {}
        }
        self.scan.segments.retain(|known| known.segment != id);
        self.scan.segments.push(summary);
        read
    }

    /// Removes the torn write from the segment before `id`. The bytes of this write are damage, and
    /// not the remains of an interrupted write.
    fn forget_torn_before(&mut self, id: SegmentId) {
        let mut before = self.scan.segments.iter_mut().rev();
        if let Some(before) = before.find(|known| known.segment < id) {
            before.torn = None;
        }
    }

    fn begin_anew(&mut self) {
        self.recovery = LogRecovery::new(self.life);
        self.has_begun = false;
    }

    /// Checks that the end of the log has everything that `marked` requires. Also checks the
    /// beginning of the log, if no earlier problem was found.
    fn finish(&mut self, marked: Marked) {
        let is_whole = self.scan.problems.is_empty();
        // Without an intact marker it is unknown which segment is the first.
        let is_known = is_whole && marked.first > SegmentId(0);
        let first = if is_known {
            marked.first
        } else {
            SegmentId(u32::MAX)
        };
        let marked = Marked { first, ..marked };
        let lengths = SegmentBytes {
            first: ALIGNMENT,
            max: ALIGNMENT,
        };
        let recovery = std::mem::replace(&mut self.recovery, LogRecovery::new(self.life));
        match recovery.finish(marked, lengths) {
            Ok(log) => self.scan.places = is_whole.then_some(log),
            // This damage follows from an earlier problem, and has no place in the log.
            Err(damage) if !is_whole && damage.segment == first => {}
            Err(mut damage) => {
                if let Some(last) = self.scan.segments.last_mut()
                    && last.segment == damage.segment
                {
                    // The write at this place was acknowledged.
                    last.torn = None;
                    damage.offset = last.used;
                }
                self.scan.problems.push(damage.into());
            }
        }
    }
}
