//! Checkpoints with long values, which are written to the disk in advance, in pieces.
//!
//! A checkpoint is one write, and entries accepted meanwhile wait for it. Merges of a few bytes can
//! change records of many MiB in a second. So if the long values of a checkpoint exceed one *piece*
//! ([`checkpoint_piece_bytes`]), they are written piece by piece, each when the one before is
//! durable. Other data is written between the pieces. The checkpoint itself follows last.
//!
//! [`checkpoint_piece_bytes`]: crate::settings::Settings::checkpoint_piece_bytes

use leasehold_leases::Key;

use crate::action::{Checkpoint, StoredValue};

/// A value is long if its size is at least the size of a piece divided by this number.
const LONG_SHARE: usize = 128;
/// Maximum total size of the short values, in pieces. They are written with the checkpoint.
const SHORT_PIECES: usize = 8;
/// The minimum size of a long value is divided by this number, if necessary repeatedly, until the
/// short values are at most [`SHORT_PIECES`].
const LONG_STEP: usize = 4;
/// A value with fewer bytes than this is never long. The checkpoint needs some 60 bytes to refer to
/// a value that was written in advance.
const LONG_BYTES_MIN: usize = 64;

/// Checkpoint with long values, which are written to the disk in advance, piece by piece.
#[derive(Clone, Debug)]
pub(super) struct StagedCheckpoint {
    checkpoint: Checkpoint,
    /// Estimated bytes of the writes that made the changes in the checkpoint.
    written_bytes: usize,
    /// Minimum size of a long value, in bytes.
    long_from: usize,
    /// Index of the first entry that was not considered for a piece yet.
    next: usize,
    /// Total size of the long values at index `next` and above, in bytes.
    left: usize,
}

impl StagedCheckpoint {
    pub(super) fn new(
        checkpoint: Checkpoint,
        written_bytes: usize,
        piece_bytes: usize,
    ) -> StagedCheckpoint {
        let lengths = || checkpoint.entries.iter().map(|(_, stored)| length(stored));
        let all: usize = lengths().sum();
        let mut long_from = (piece_bytes / LONG_SHARE).max(1);
        let left = loop {
            let long: usize = lengths().filter(|bytes| *bytes >= long_from).sum();
            let few_are_short = all - long <= piece_bytes.saturating_mul(SHORT_PIECES);
            if few_are_short || long_from <= LONG_BYTES_MIN {
                break long;
            }
            long_from = (long_from / LONG_STEP).max(LONG_BYTES_MIN);
        };
        StagedCheckpoint {
            checkpoint,
            written_bytes,
            long_from,
            next: 0,
            left,
        }
    }

    /// Returns the next piece to write before the checkpoint. Returns `None` if the long values
    /// left are at most one piece: they are written with the checkpoint. A value longer than a
    /// piece is a piece of its own.
    pub(super) fn piece(&mut self, piece_bytes: usize) -> Option<Vec<(Key, StoredValue)>> {
        if self.left <= piece_bytes {
            return None;
        }
        let mut piece = Vec::new();
        let mut bytes = 0;
        for (key, stored) in &self.checkpoint.entries[self.next..] {
            if let Some(long) = stored
                && long.value.len() >= self.long_from
            {
                if !piece.is_empty() && bytes + long.value.len() > piece_bytes {
                    break;
                }
                bytes += long.value.len();
                piece.push((key.clone(), long.clone()));
            }
            self.next += 1;
        }
        self.left -= bytes;
        Some(piece)
    }

    /// Estimated bytes of the writes that made the changes in the checkpoint.
    pub(super) fn written_bytes(&self) -> usize {
        self.written_bytes
    }

    /// The checkpoint itself.
    pub(super) fn finish(self) -> Checkpoint {
        self.checkpoint
    }
}

fn length(stored: &Option<StoredValue>) -> usize {
    stored.as_ref().map_or(0, |stored| stored.value.len())
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use leasehold_wire::Version;

    use super::*;

    const PIECE_BYTES: usize = 512 << 10;

    fn staging(lengths: impl IntoIterator<Item = usize>) -> StagedCheckpoint {
        let entries = lengths.into_iter().enumerate().map(|(key, bytes)| {
            let stored = StoredValue {
                value: vec![b'v'; bytes].into(),
                version: Version::default(),
                created: Version::default(),
            };
            (key.to_string().into(), Some(stored))
        });
        let checkpoint = Checkpoint {
            entries: entries.collect(),
            ..Checkpoint::default()
        };
        StagedCheckpoint::new(checkpoint, 0, PIECE_BYTES)
    }

    /// Returns the number of bytes in each piece.
    fn pieces(staging: &mut StagedCheckpoint, piece_bytes: usize) -> Vec<usize> {
        let pieces = std::iter::from_fn(|| staging.piece(piece_bytes));
        let bytes = |(_, stored): &(Key, StoredValue)| stored.value.len();
        pieces.map(|piece| piece.iter().map(bytes).sum()).collect()
    }

    #[test]
    fn long_values_make_pieces_but_for_the_last() {
        let mut mixed = staging([200_000, 100, 200_000, 4095, 200_000, 200_000, 4096]);
        assert_eq!(pieces(&mut mixed, PIECE_BYTES), [400_000]);
        let mut longer = staging([1 << 20, 1 << 20, 10]);
        assert_eq!(pieces(&mut longer, PIECE_BYTES), [1 << 20, 1 << 20]);
        assert_eq!(pieces(&mut staging([400_000]), PIECE_BYTES), [0; 0]);
        let mut behind_a_long_log = staging([200_000; 20]);
        assert_eq!(pieces(&mut behind_a_long_log, 2 << 20), [2_000_000]);
    }

    /// Very many short values are written in advance, too. A checkpoint with all these values would
    /// be one long write.
    #[test]
    fn short_values_are_long_if_there_are_very_many() {
        let some = pieces(&mut staging(repeat_n(3000, 1000)), PIECE_BYTES);
        assert_eq!(some, [0; 0]);
        let many = pieces(&mut staging(repeat_n(3000, 10_000)), PIECE_BYTES);
        assert!(many.iter().all(|bytes| *bytes <= PIECE_BYTES));
        assert!(many.iter().sum::<usize>() > 29_000_000);
        let shortest = pieces(&mut staging(repeat_n(10, 1_000_000)), PIECE_BYTES);
        assert_eq!(shortest, [0; 0]);
    }
}
