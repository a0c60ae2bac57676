//! Reads of single entries.

use bytes::Bytes;
use leasehold_leases::{Ballot, Slot};
use leasehold_replica::codec;
use leasehold_replica::message::{LogId, Value};

use crate::record::{self, LogRecord};
use crate::{RecordPlace, SegmentId};

/// Reason why bytes in the log are not the expected entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryProblem {
    /// The checksum does not match. The bytes have changed, or they belong to another segment.
    #[error("its checksum does not match")]
    Checksum,
    /// The record belongs to another slot, or is not an entry.
    #[error("it is the record of another slot")]
    OtherSlot,
    /// The contents cannot be decoded.
    #[error("{0}")]
    Contents(String),
}

/// Decodes the entry of `slot` from the bytes at its place. Checks everything, because the file may
/// have changed since the entry was written, or another segment may use the file now.
///
/// # Errors
/// Any [`EntryProblem`].
pub fn decode_entry(
    bytes: &Bytes,
    segment: SegmentId,
    log: LogId,
    slot: Slot,
) -> Result<(Ballot, Value), EntryProblem> {
    let (length, seal, body) = record::split_frame(bytes).ok_or(EntryProblem::Checksum)?;
    if body.len() != length || record::checksum(segment, body) != seal {
        return Err(EntryProblem::Checksum);
    }
    match record::decode(body) {
        Some(LogRecord::Entry {
            log: of,
            slot: at,
            entry,
        }) if (of, at) == (log, slot) => codec::decode_entry(bytes.slice_ref(entry))
            .map_err(|error| EntryProblem::Contents(error.to_string())),
        Some(LogRecord::Entry { .. } | LogRecord::Erased { .. } | LogRecord::Fact(_)) | None => {
            Err(EntryProblem::OtherSlot)
        }
    }
}

/// Returns the place of an entry within the segment that holds it.
pub(crate) fn place(segment: SegmentId, offset: usize, bytes: usize) -> RecordPlace {
    let short = |number: usize| u32::try_from(number).expect("a segment is shorter than 4 GiB");
    RecordPlace {
        segment,
        offset: short(offset),
        bytes: short(bytes),
    }
}
