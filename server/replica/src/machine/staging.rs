//! A checkpoint with long values that are written to the disk before it, some at a time.
//!
//! A checkpoint is one write, and what is accepted meanwhile waits for it. Merges of a few bytes
//! can change records of many MiB in a second. So a checkpoint with more than a *piece* of long
//! values ([`checkpoint_piece_bytes`]) writes one piece first, and the next when that is durable.
//! Others write between them.
//!
//! [`checkpoint_piece_bytes`]: crate::settings::Settings::checkpoint_piece_bytes

use leasehold_leases::Key;

use crate::action::{Checkpoint, StoredValue};

/// A value is long if it has at least this fraction of a piece.
const LONG_SHARE: usize = 128;
/// Shorter ones are written with the checkpoint, unless they are more than so many pieces.
const SHORT_PIECES: usize = 8;
/// By how much more values are long then.
const LONG_STEP: usize = 4;
/// Shorter than this are none: the checkpoint names each in some 60 bytes.
const LONG_BYTES_MIN: usize = 64;

/// A checkpoint with long values that are written to the disk before it, piece by piece.
#[derive(Clone, Debug)]
pub(super) struct StagedCheckpoint {
    checkpoint: Checkpoint,
    /// Bytes of the writes that it holds.
    written_bytes: usize,
    /// Values of so many bytes are long.
    long_from: usize,
    /// The first entry that was not looked at.
    next: usize,
    /// Bytes of long values from there on.
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

    /// Returns the next piece to write before the checkpoint; `None` if no more than a piece is
    /// left, which goes with the checkpoint. A longer value makes a piece by itself.
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

    /// Bytes of the writes that it holds.
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

    /// Number of bytes in each piece.
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

    /// Else a checkpoint of very many would be one long write.
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
