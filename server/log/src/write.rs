//! State of the log for its writer, and the writes to the log.

use std::collections::BTreeMap;

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Incarnation, Slot};
use leasehold_replica::action::Record;
use leasehold_replica::message::{LogId, PerLog};

use crate::entry::place;
use crate::group::{self, ChainEnd, HEADER_BYTES, Header};
use crate::index::{EntryIndex, IndexChange};
use crate::record::{self, Fact, Logged};
use crate::{LogFacts, RecordPlace, SegmentId};

/// Lengths of segments in bytes. The first segment of a run is short, so that starts are fast and
/// small clusters take little space. Each further segment is twice as long as the segment before
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentBytes {
    /// Length of the first segment of a run.
    pub first: usize,
    /// Maximum length. A segment is longer only if one group needs more space.
    pub max: usize,
}

/// A log that is open for writing.
#[derive(Clone, Debug)]
pub struct LogWriter {
    /// Random number that identifies the data directory.
    pub(crate) life: u64,
    pub(crate) segment_bytes: SegmentBytes,
    /// Facts of all completed writes.
    pub(crate) facts: LogFacts,
    pub(crate) index: EntryIndex,
    /// All segments. The last segment may be only partly in use.
    pub(crate) segments: BTreeMap<SegmentId, Segment>,
    /// End of the last group, as an offset in the last segment that the start of this run found.
    pub(crate) found_end: usize,
    /// Offset of the next group in the last segment. `None` if this run has not begun a segment
    /// yet. Then the next group begins a segment.
    pub(crate) end: Option<usize>,
    /// Last group that was written.
    pub(crate) chain: ChainEnd,
    /// Number of the last group that was synced.
    pub(crate) synced: u64,
}

/// Length of a segment, and bounds for the slots in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Length in bytes.
    pub(crate) bytes: usize,
    /// For each log, an upper bound for the slots that were written or erased in the segment.
    pub(crate) highest: PerLog<Slot>,
}

impl Segment {
    pub(crate) fn new(bytes: usize) -> Segment {
        Segment {
            bytes,
            highest: PerLog::default(),
        }
    }

    /// Notes a change that a record in this segment makes to the index.
    pub(crate) fn note(&mut self, change: &IndexChange) {
        let highest = &mut self.highest[change.log];
        *highest = change.slot.max(*highest);
    }
}

/// A write that the caller performs: the bytes, and their place.
#[derive(Clone, Debug)]
pub struct LogWrite {
    /// Segment to write to.
    pub segment: SegmentId,
    /// Length, in bytes, of the segment that must be created before the write; `None` if the
    /// segment exists. The caller must sync the previous segment before it creates this segment.
    pub begins: Option<usize>,
    /// Offset in the segment, in bytes.
    pub offset: usize,
    /// Bytes to write. Their number is a multiple of the sector size.
    pub bytes: Vec<u8>,
    changes: Vec<IndexChange>,
    /// Facts after the write; `None` if the write changes no facts.
    facts: Option<LogFacts>,
    chain: ChainEnd,
}

impl LogWriter {
    /// Plans a write of these records as one group. Returns `None` if the log stores none of the
    /// records. The state of the log does not change before [`LogWriter::complete`]. The plan
    /// reuses the memory of `buffer`, and replaces its contents.
    ///
    /// # Panics
    /// Panics if the records take 4 GiB or more.
    pub fn plan(&self, records: &[Record], buffer: Vec<u8>) -> Option<LogWrite> {
        let records: Vec<Logged<'_>> = records.iter().filter_map(Logged::of).collect();
        (!records.is_empty()).then(|| self.plan_logged(&records, buffer))
    }

    /// Plans the first write of a run. The caller must sync this write. The write sets the
    /// incarnation to a higher value than in all earlier runs, and higher than `other`.
    pub fn plan_incarnation(&self, other: Incarnation) -> LogWrite {
        let raised = Incarnation(self.facts.incarnation.max(other).0 + 1);
        let record = Logged::Fact(Fact::Incarnation(raised));
        self.plan_logged(&[record], Vec::new())
    }

    fn plan_logged(&self, records: &[Logged<'_>], buffer: Vec<u8>) -> LogWrite {
        let last = self.segments.last_key_value();
        let last = last.map_or((SegmentId(0), 0), |(id, segment)| (*id, segment.bytes));
        let fits = |write: &LogWrite| write.offset + write.bytes.len() <= last.1;
        let mut buffer = buffer;
        if let Some(offset) = self.end {
            let mut plan = Plan::new(self, last.0, offset, buffer);
            plan.group(records, false);
            let write = plan.finish(None);
            if fits(&write) {
                return write;
            }
            buffer = write.bytes;
        }
        let mut plan = Plan::new(self, last.0.next(), 0, buffer);
        plan.head(records);
        plan.group(records, false);
        let needed = plan.bytes.len();
        plan.finish(Some(needed.max(self.next_segment_bytes())))
    }

    /// Returns the usual length of the next segment, in bytes. The next segment is longer if its
    /// contents need more space.
    pub fn next_segment_bytes(&self) -> usize {
        let last = self.segments.last_key_value();
        let SegmentBytes { first, max } = self.segment_bytes;
        let next = match (self.end, last) {
            (Some(_), Some((_, last))) => (2 * last.bytes).clamp(first, max.max(first)),
            _ => first,
        };
        next.next_multiple_of(group::ALIGNMENT)
    }

    /// Sets the maximum length, in bytes, of segments that are created later.
    pub fn set_segment_bytes_max(&mut self, max: usize) {
        self.segment_bytes.max = max;
    }

    /// Returns the number of unused bytes in the last segment; 0 before the first write of a run.
    pub fn left_bytes(&self) -> usize {
        let last = self
            .segments
            .last_key_value()
            .map_or(0, |(_, segment)| segment.bytes);
        self.end.map_or(0, |end| last - end)
    }

    /// Notes that a write was performed. `is_synced` says whether everything written so far was
    /// synced, too. Returns the buffer of the write, so that its memory can be reused.
    pub fn complete(&mut self, write: LogWrite, is_synced: bool) -> Vec<u8> {
        if let Some(bytes) = write.begins {
            self.segments.insert(write.segment, Segment::new(bytes));
        }
        self.end = Some(write.offset + write.bytes.len());
        self.chain = write.chain;
        if let Some(facts) = write.facts {
            self.facts = facts;
        }
        let segment = self.segments.get_mut(&write.segment);
        let segment = segment.expect("a write goes to a segment that exists");
        for change in &write.changes {
            self.index.change(change);
            segment.note(change);
        }
        if is_synced {
            self.sync();
        }
        write.bytes
    }

    /// Forgets the entries of both logs up to these slots. Removes unneeded segments from the
    /// beginning of the log, and returns them with their lengths. A segment is unneeded if none of
    /// its entries is current. The facts of such a segment are also unneeded, because every later
    /// segment restates all facts. The last segment always stays in the log.
    ///
    /// The caller must first sync everything that was written so far. Otherwise, the head of the
    /// first remaining segment may be lost. The caller must not remove the files of the returned
    /// segments before the marker file says that these files are not needed
    /// ([`Marked::first`](crate::Marked)).
    ///
    /// # Panics
    /// Panics if a write is not synced.
    pub fn truncate(&mut self, slots: PerLog<Slot>) -> Vec<(SegmentId, usize)> {
        assert_eq!(self.synced, self.chain.number, "everything is synced");
        for (log, last) in slots.each() {
            self.index.truncate(log, last);
        }
        let (last, _) = self.segments.last_key_value().unzip();
        let is_unused = |(id, segment): &(&SegmentId, &Segment)| {
            Some(*id) != last && !self.needs(**id, segment, slots)
        };
        let unused = self.segments.iter().take_while(is_unused);
        let unused: Vec<_> = unused.map(|(id, segment)| (*id, segment.bytes)).collect();
        unused.iter().for_each(|(id, _)| {
            self.segments.remove(id);
        });
        unused
    }

    /// Whether [`LogWriter::truncate`] would free a segment.
    pub fn can_truncate(&self, slots: PerLog<Slot>) -> bool {
        let mut segments = self.segments.iter();
        let first = segments.next().filter(|_| segments.next().is_some());
        first.is_some_and(|(id, segment)| !self.needs(*id, segment, slots))
    }

    /// Whether a segment holds a current entry above these slots. Replaced and erased entries are
    /// not current.
    fn needs(&self, id: SegmentId, segment: &Segment, slots: PerLog<Slot>) -> bool {
        LogId::ALL.into_iter().any(|log| {
            let above = self.index.entries(log, slots[log].next());
            let mut within = above.take_while(|(slot, _)| *slot <= segment.highest[log]);
            within.any(|(_, place)| place.segment == id)
        })
    }

    /// Notes that everything written so far was synced.
    pub fn sync(&mut self) {
        self.synced = self.chain.number;
    }

    /// Returns the number of the last group that was written.
    pub fn written(&self) -> u64 {
        self.chain.number
    }

    /// Returns the number of the last synced group. The next start must find this group in the log.
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// Returns the last segment that the start found, and the offset at which its last group ends;
    /// `None` if the start found no segment. Must be called only before the first write of a run.
    pub fn found(&self) -> Option<(SegmentId, usize)> {
        let (last, _) = self.segments.last_key_value()?;
        Some((*last, self.found_end))
    }

    /// Returns the facts of all completed writes.
    pub fn facts(&self) -> &LogFacts {
        &self.facts
    }

    /// Returns the places of a log's entries from slot `from` on, in ascending order of slots.
    pub fn entries(
        &self,
        log: LogId,
        from: Slot,
    ) -> impl Iterator<Item = (Slot, RecordPlace)> + Clone {
        self.index.entries(log, from)
    }

    /// Returns the numbers and lengths in bytes of all segments, in ascending order.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = (SegmentId, usize)> {
        let segments = self.segments.iter();
        segments.map(|(id, segment)| (*id, segment.bytes))
    }
}

/// A write under construction.
struct Plan<'a> {
    log: &'a LogWriter,
    segment: SegmentId,
    offset: usize,
    bytes: Vec<u8>,
    changes: Vec<IndexChange>,
    facts: Option<LogFacts>,
    chain: ChainEnd,
}

impl Plan<'_> {
    fn new(log: &LogWriter, segment: SegmentId, offset: usize, mut buffer: Vec<u8>) -> Plan<'_> {
        buffer.clear();
        Plan {
            log,
            segment,
            offset,
            bytes: buffer,
            changes: Vec::new(),
            facts: None,
            chain: log.chain,
        }
    }

    /// Appends the head of a segment. The head contains only the facts of completed writes. It does
    /// not contain the facts of the group after the head, because this group may be torn. No later
    /// start may use the facts of a torn group (hazard 118).
    fn head(&mut self, next: &[Logged<'_>]) {
        let mut facts = self.log.facts.clone();
        if off(Rule::H118Heads) {
            next.iter().for_each(|record| apply(record, &mut facts));
        }
        let restated: Vec<_> = facts.restated().map(Logged::Fact).collect();
        self.group(&restated, true);
    }

    fn group(&mut self, records: &[Logged<'_>], is_head: bool) {
        let start = self.bytes.len();
        self.bytes.resize(start + HEADER_BYTES, 0);
        for record in records {
            let at = self.offset + self.bytes.len();
            let bytes = record::encode(self.segment, record, &mut self.bytes);
            if !is_head {
                self.note(record, place(self.segment, at, bytes));
            }
        }
        let length = self.bytes.len() - start - HEADER_BYTES;
        let header = Header {
            segment: self.segment,
            is_head,
            number: self.chain.number + 1,
            synced: self.log.synced,
            previous: self.chain.seal,
            records: u32::try_from(length).expect("a group is shorter than 4 GiB"),
        };
        let seal = group::seal(&mut self.bytes, start, &header, self.log.life);
        self.chain = ChainEnd {
            number: header.number,
            seal,
        };
    }

    /// Notes the effect of one record of the write.
    fn note(&mut self, record: &Logged<'_>, place: RecordPlace) {
        match *record {
            Logged::Entry { log, slot, .. } => self.changes.push(IndexChange {
                log,
                slot,
                place: Some(place),
            }),
            Logged::Erased { log, slot } => self.changes.push(IndexChange {
                log,
                slot,
                place: None,
            }),
            Logged::Fact(_) => {
                let before = &self.log.facts;
                let facts = self.facts.get_or_insert_with(|| before.clone());
                apply(record, facts);
            }
        }
    }

    fn finish(self, begins: Option<usize>) -> LogWrite {
        LogWrite {
            segment: self.segment,
            begins: begins.map(|bytes| bytes.next_multiple_of(group::ALIGNMENT)),
            offset: self.offset,
            bytes: self.bytes,
            changes: self.changes,
            facts: self.facts,
            chain: self.chain,
        }
    }
}

fn apply(record: &Logged<'_>, facts: &mut LogFacts) {
    match record {
        Logged::Fact(fact) => facts.apply(fact),
        Logged::Entry { .. } | Logged::Erased { .. } => {}
    }
}
