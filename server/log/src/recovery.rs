//! Start of a log: reads the segments in order, and distinguishes writes that a crash tore from
//! damage.

use std::collections::BTreeMap;

use leasehold_leases::mutants::{Rule, off};

use crate::entry::place;
use crate::found::{FoundGroup, FoundRecord, TornWrite};
use crate::group::{self, ALIGNMENT, ChainEnd, HEADER_BYTES, Header};
use crate::index::{EntryIndex, IndexChange};
use crate::record::{self, FRAME_BYTES, LogRecord};
use crate::write::{Segment, SegmentBytes};
use crate::{LogFacts, LogWriter, SegmentId};

/// Damage to a log: synced bytes are lost or changed. Other replicas may rely on these bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("segment {segment}, byte {offset}: {problem}")]
pub struct LogDamage {
    /// Damaged segment.
    pub segment: SegmentId,
    /// Offset in the segment, in bytes.
    pub offset: usize,
    /// Description of the damage.
    pub problem: String,
}

/// Facts about a log from the marker file. These facts say which groups and segments of the log
/// must be present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    /// Number of the last group that was acknowledged; 0 if there is none.
    pub group: u64,
    /// Oldest segment that may still be needed.
    pub first: SegmentId,
}

/// Recovery of a log from its segments.
#[derive(Debug)]
pub struct LogRecovery {
    life: u64,
    facts: LogFacts,
    index: EntryIndex,
    segments: BTreeMap<SegmentId, Segment>,
    chain: ChainEnd,
    /// Segment with an incomplete head, because a crash came before the head was synced. Only the
    /// last segment can have an incomplete head.
    unborn: Option<SegmentId>,
    /// Offset, in bytes, at which the last group of the last segment ends.
    end: usize,
}

impl LogRecovery {
    /// Begins the recovery of a log. `life` is the random number that identifies the data
    /// directory.
    pub fn new(life: u64) -> LogRecovery {
        LogRecovery {
            life,
            facts: LogFacts::default(),
            index: EntryIndex::default(),
            segments: BTreeMap::new(),
            chain: ChainEnd::default(),
            unborn: None,
            end: 0,
        }
    }

    /// Reads a segment. The caller must pass the segments in ascending order of their numbers.
    ///
    /// # Errors
    /// Returns the damage that was found. After such an error, the log must not be used.
    ///
    /// # Panics
    /// Panics if the segments are not passed in ascending order.
    pub fn segment(&mut self, id: SegmentId, bytes: &[u8]) -> Result<(), LogDamage> {
        self.visit_segment(id, bytes, &mut |_| {})
    }

    /// Reads a segment like [`LogRecovery::segment`]. Passes each record to `visit`, in the order
    /// in which the records were written. If the segment is damaged, the records before the damage
    /// are passed, too.
    ///
    /// # Errors
    /// As [`LogRecovery::segment`].
    ///
    /// # Panics
    /// As [`LogRecovery::segment`].
    pub fn visit_segment(
        &mut self,
        id: SegmentId,
        bytes: &[u8],
        visit: &mut dyn FnMut(&FoundRecord<'_>),
    ) -> Result<(), LogDamage> {
        let last = self.segments.last_key_value().map(|(last, _)| *last);
        assert!(last < Some(id), "segments are read in ascending order");
        if let Some(unborn) = self.unborn {
            return Err(damage(
                unborn,
                0,
                "it has no beginning, and a later segment has",
            ));
        }
        if let Some(missing) = last.map(SegmentId::next).filter(|next| *next < id) {
            return Err(damage(missing, 0, "it is missing"));
        }
        let reader = SegmentReader {
            life: self.life,
            id,
            bytes,
        };
        let Some(head) = reader.header(0).filter(|header| header.is_head) else {
            self.unborn = Some(id);
            return self.check_behind(&reader, 0);
        };
        let follows = self.follows(&head);
        if last.is_some() && !follows && !off(Rule::H117Follows) {
            let problem = format!(
                "it begins with group {}, but the segments before it end with group {}",
                head.number, self.chain.number
            );
            return Err(damage(id, 0, &problem));
        }
        let Some((records, seal)) = reader.group(0, &head) else {
            self.unborn = Some(id);
            return self.check_behind(&reader, 0);
        };
        self.head(&reader, &head, records, last.is_none(), visit)?;
        self.chain = ChainEnd {
            number: head.number,
            seal,
        };
        self.segments.insert(id, Segment::new(bytes.len()));
        self.end = self.groups(&reader, head.group_bytes(), visit)?;
        self.check_behind(&reader, self.end)
    }

    /// Reads the groups behind the head. Returns the offset at which the chain ends.
    fn groups(
        &mut self,
        reader: &SegmentReader<'_>,
        from: usize,
        visit: &mut dyn FnMut(&FoundRecord<'_>),
    ) -> Result<usize, LogDamage> {
        let mut at = from;
        while let Some(header) = reader.header(at)
            && !header.is_head
            && self.follows(&header)
            && let Some((records, seal)) = reader.group(at, &header)
        {
            let group = FoundGroup::of(&header, at);
            reader.records(group, records, |found| {
                self.record(found.record, reader.id, found.offset, found.bytes());
                visit(found);
            })?;
            self.chain = ChainEnd {
                number: header.number,
                seal,
            };
            at += header.group_bytes();
        }
        Ok(at)
    }

    fn follows(&self, header: &Header) -> bool {
        header.number == self.chain.number + 1 && header.previous == self.chain.seal
    }

    /// Reads the facts in the head of a segment. Unless the segment is the first one, checks that
    /// these facts equal the facts of all earlier segments.
    fn head(
        &mut self,
        reader: &SegmentReader<'_>,
        header: &Header,
        records: &[u8],
        is_first: bool,
        visit: &mut dyn FnMut(&FoundRecord<'_>),
    ) -> Result<(), LogDamage> {
        let mut facts = LogFacts::default();
        let mut has_other = false;
        reader.records(FoundGroup::of(header, 0), records, |found| {
            visit(found);
            match found.record {
                LogRecord::Fact(fact) => facts.apply(&fact),
                LogRecord::Entry { .. } | LogRecord::Erased { .. } => has_other = true,
            }
        })?;
        if has_other || !(is_first || facts == self.facts) {
            let problem = "its head states facts that the segments before it do not hold";
            return Err(damage(reader.id, 0, problem));
        }
        self.facts = facts;
        Ok(())
    }

    fn record(&mut self, record: LogRecord<'_>, id: SegmentId, from: usize, bytes: usize) {
        let change = match record {
            LogRecord::Entry { log, slot, .. } => IndexChange {
                log,
                slot,
                place: Some(place(id, from, bytes)),
            },
            LogRecord::Erased { log, slot } => IndexChange {
                log,
                slot,
                place: None,
            },
            LogRecord::Fact(fact) => return self.facts.apply(&fact),
        };
        self.index.change(&change);
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.note(&change);
        }
    }

    /// Checks the bytes after the end of the chain. These bytes may contain a torn group and later
    /// unsynced groups. The check fails if a header there says that a group after the end was
    /// synced, because then synced bytes are lost.
    fn check_behind(&self, reader: &SegmentReader<'_>, end: usize) -> Result<(), LogDamage> {
        if off(Rule::H117Behind) {
            return Ok(());
        }
        let behind = (end..reader.bytes.len()).step_by(ALIGNMENT);
        for header in behind.filter_map(|at| reader.header(at)) {
            if header.synced > self.chain.number {
                let problem = format!(
                    "group {} is damaged or missing: group {} behind it says that group {} was \
                     synced",
                    self.chain.number + 1,
                    header.number,
                    header.synced
                );
                return Err(damage(reader.id, end, &problem));
            }
        }
        Ok(())
    }

    /// Returns the facts of all segments read so far.
    pub fn facts(&self) -> &LogFacts {
        &self.facts
    }

    /// Returns the number of the last group read so far; 0 if there is none.
    pub fn last_group(&self) -> u64 {
        self.chain.number
    }

    /// Returns the offset at which the last group of the segment `id` ends; 0 if the segment has no
    /// complete head. `id` must be the segment that was read last.
    pub fn end(&self, id: SegmentId) -> usize {
        if self.unborn == Some(id) { 0 } else { self.end }
    }

    /// Returns the torn write at the end of the segment that was read last; `None` if there is
    /// none.
    pub fn torn_write(&self, id: SegmentId, bytes: &[u8]) -> Option<TornWrite> {
        let life = self.life;
        TornWrite::find(&SegmentReader { life, id, bytes }, self.end(id))
    }

    /// Ends the recovery, after all segments were read. `segment_bytes` contains the lengths of new
    /// segments of the log.
    ///
    /// # Errors
    /// Fails if groups or segments that `marked` requires are missing.
    pub fn finish(
        self,
        marked: Marked,
        segment_bytes: SegmentBytes,
    ) -> Result<LogWriter, LogDamage> {
        let last = self.segments.last_key_value().map(|(id, _)| *id);
        if self.chain.number < marked.group {
            let problem = format!(
                "the log ends with group {}, but the groups up to {} were acknowledged: its end was \
                 damaged or cut off",
                self.chain.number, marked.group
            );
            return Err(damage(last.unwrap_or(marked.first), 0, &problem));
        }
        let first = self.segments.first_key_value().map(|(id, _)| *id);
        if let Some(first) = first
            && first > marked.first
        {
            return Err(damage(marked.first, 0, "it is missing"));
        }
        Ok(LogWriter {
            life: self.life,
            segment_bytes,
            facts: self.facts,
            index: self.index,
            found_end: self.end,
            segments: self.segments,
            end: None,
            synced: self.chain.number,
            chain: self.chain,
        })
    }
}

pub(crate) fn damage(segment: SegmentId, offset: usize, problem: &str) -> LogDamage {
    LogDamage {
        segment,
        offset,
        problem: problem.to_owned(),
    }
}

/// Reads headers, groups and records from the bytes of a segment.
pub(crate) struct SegmentReader<'a> {
    pub(crate) life: u64,
    pub(crate) id: SegmentId,
    pub(crate) bytes: &'a [u8],
}

impl<'a> SegmentReader<'a> {
    /// Returns the header at this offset. Returns `None` if there is no header, or if the header
    /// was written to another segment.
    pub(crate) fn header(&self, at: usize) -> Option<Header> {
        let header = Header::decode(self.life, self.bytes.get(at..)?)?;
        (header.segment == self.id).then_some(header)
    }

    /// Returns the records and the checksum of a group; `None` if the group is incomplete or
    /// damaged.
    pub(crate) fn group(&self, at: usize, header: &Header) -> Option<(&'a [u8], u32)> {
        group::open(header, self.bytes.get(at..)?)
    }

    /// Calls `visit` with each record of a group.
    fn records(
        &self,
        group: FoundGroup,
        records: &'a [u8],
        mut visit: impl FnMut(&FoundRecord<'a>),
    ) -> Result<(), LogDamage> {
        let mut rest = records;
        while !rest.is_empty() {
            let at = group.offset + HEADER_BYTES + (records.len() - rest.len());
            let unreadable = || damage(self.id, at, "it is not a record of a known kind");
            let (length, _, behind) = record::split_frame(rest).ok_or_else(unreadable)?;
            let (body, behind) = behind.split_at_checked(length).ok_or_else(unreadable)?;
            let record = record::decode(body).ok_or_else(unreadable)?;
            visit(&FoundRecord {
                segment: self.id,
                group,
                offset: at,
                record,
                frame: &rest[..FRAME_BYTES + length],
            });
            rest = behind;
        }
        Ok(())
    }
}
