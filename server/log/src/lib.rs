//! The write-ahead log of a replica, as bytes. The package is pure: callers read and write the
//! files, and tests write to a disk in memory that tears writes.
//!
//! # Layout
//! The log is a sequence of *segments*: files of a fixed length that were filled with zeros before
//! their first use, so that a sync writes data only. A segment holds *groups*. A group holds the
//! records of one write, and is either whole or absent after a crash ([`group`]). Every segment
//! begins with a *head*: a group that states all facts that are not entries ([`LogFacts`]), so that
//! older segments can be removed.
//!
//! # How to write
//! ```text
//! let write = log.plan(records, buffer);  // the bytes, and their place
//! ...make the segment if `write.begins`, write the bytes, sync...
//! log.complete(write);                    // from now on the records count
//! ```
//! A write that was planned and not completed can be planned again, with the same or with more
//! records. Nothing changes in [`LogWriter`] before [`LogWriter::complete`].
//!
//! # How to start
//! [`LogRecovery`] takes all segments in ascending order. It distinguishes a write that was torn by
//! a crash from damaged data (hazards 116 and 117). No replica has relied on a torn write, but
//! other replicas may rely on the damaged data. A start never appends to the last segment that it
//! found: the first write of [`LogWriter`] begins a new segment.
//!
//! # How to look at a log
//! [`LogRecovery::visit_segment`] passes each record to a visitor. [`LogRecovery::torn_write`] and
//! [`damage_behind`] describe the bytes that a start ignores or refuses.
//!
//! `docs/log-format.md` describes the bytes.

mod entry;
mod facts;
mod found;
mod group;
mod index;
pub mod memory;
mod record;
mod recovery;
mod write;

pub use entry::{EntryProblem, decode_entry};
pub use facts::LogFacts;
pub use found::{FoundGroup, FoundRecord, TornWrite, damage_behind};
pub use group::{ALIGNMENT, GROUP_BYTES_EXTRA};
pub use index::RecordPlace;
pub use record::{Fact, LogRecord};
pub use recovery::{LogDamage, LogRecovery, Marked};
pub use write::{LogWrite, LogWriter, SegmentBytes};

#[cfg(test)]
mod tests;

/// Number of a segment. Later segments have higher numbers; the first has number 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

impl SegmentId {
    fn next(self) -> SegmentId {
        SegmentId(self.0 + 1)
    }
}

impl std::fmt::Display for SegmentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:010}", self.0)
    }
}
