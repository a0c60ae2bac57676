//! Records, groups and torn writes as a reader of segments finds them, for tools that show or check
//! a log.

use bytes::Bytes;
use leasehold_leases::{Ballot, Slot};
use leasehold_replica::message::{LogId, Value};

use crate::group::{ALIGNMENT, Header};
use crate::record::{self, LogRecord};
use crate::recovery::{SegmentReader, damage};
use crate::{EntryProblem, LogDamage, SegmentId, decode_entry};

/// Group of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundGroup {
    /// Offset of the group in its segment, in bytes.
    pub offset: usize,
    /// Number of the group.
    pub number: u64,
    /// Whether this group is the head of its segment. A head restates facts.
    pub is_head: bool,
    /// Number of the last group that was synced before this group was written.
    pub synced: u64,
}

impl FoundGroup {
    pub(crate) fn of(header: &Header, offset: usize) -> FoundGroup {
        FoundGroup {
            offset,
            number: header.number,
            is_head: header.is_head,
            synced: header.synced,
        }
    }
}

/// A record with its place.
#[derive(Clone, Copy, Debug)]
pub struct FoundRecord<'a> {
    /// Segment with the record.
    pub segment: SegmentId,
    /// Group with the record.
    pub group: FoundGroup,
    /// Offset of the record in the segment, in bytes.
    pub offset: usize,
    /// The record.
    pub record: LogRecord<'a>,
    /// Bytes of the record, with its length and checksum.
    pub(crate) frame: &'a [u8],
}

impl FoundRecord<'_> {
    /// Returns the length of the record in bytes.
    pub fn bytes(&self) -> usize {
        self.frame.len()
    }

    /// Whether the record's own checksum matches.
    pub fn is_intact(&self) -> bool {
        record::split_frame(self.frame)
            .is_some_and(|(_, seal, body)| record::checksum(self.segment, body) == seal)
    }

    /// Decodes the record as the entry of a slot, in the same way as a replica that reads the
    /// record.
    ///
    /// # Errors
    /// Any [`EntryProblem`].
    pub fn entry(&self, log: LogId, slot: Slot) -> Result<(Ballot, Value), EntryProblem> {
        decode_entry(&Bytes::copy_from_slice(self.frame), self.segment, log, slot)
    }
}

/// Bytes after the last complete group of a segment. They are the remains of a write that a crash
/// interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornWrite {
    /// Segment with the bytes.
    pub segment: SegmentId,
    /// Offset in the segment at which the write began, in bytes.
    pub offset: usize,
    /// Number of bytes up to the last nonzero byte.
    pub bytes: usize,
    /// Number of the group; `None` if its header is torn, too.
    pub group: Option<u64>,
}

impl TornWrite {
    /// Returns the torn write that begins at `offset`. Returns `None` if only zeros follow, or only
    /// data from an earlier use of the file.
    pub(crate) fn find(reader: &SegmentReader<'_>, offset: usize) -> Option<TornWrite> {
        let behind = reader.bytes.get(offset..)?;
        let used = behind.iter().rposition(|byte| *byte != 0)? + 1;
        let header = reader.header(offset);
        let mut sectors = behind.chunks(ALIGNMENT);
        let is_of_another = |sector: &[u8]| {
            Header::decode(reader.life, sector).is_some_and(|it| it.segment != reader.id)
        };
        if header.is_none() && sectors.any(is_of_another) {
            return None;
        }
        Some(TornWrite {
            segment: reader.id,
            offset,
            bytes: header.map_or(used, |it| used.min(it.group_bytes())),
            group: header.map(|it| it.number),
        })
    }
}

/// Returns the damage that follows the first damage of a segment. The first damage is at byte
/// `from`, and breaks the chain of groups. [`LogRecovery`](crate::LogRecovery) reports only the
/// first damage.
pub fn damage_behind(life: u64, id: SegmentId, bytes: &[u8], from: usize) -> Vec<LogDamage> {
    let reader = SegmentReader { life, id, bytes };
    let mut found = Vec::new();
    // The group at `from` was reported, whether or not its header is readable.
    let mut last = reader.header(from).map(|header| header.number);
    let mut end = from + ALIGNMENT;
    let mut at = end;
    while at < bytes.len() {
        let Some(header) = reader.header(at) else {
            at += ALIGNMENT;
            continue;
        };
        if let Some(last) = last
            && header.number > last + 1
        {
            let problem = format!(
                "group {} is damaged or missing, and group {} is behind it",
                last + 1,
                header.number
            );
            found.push(damage(id, end, &problem));
        }
        if reader.group(at, &header).is_none() {
            let problem = format!(
                "group {} is not whole: its checksum does not match",
                header.number
            );
            found.push(damage(id, at, &problem));
            at += ALIGNMENT;
        } else {
            at += header.group_bytes();
        }
        (last, end) = (Some(header.number), at);
    }
    found
}
