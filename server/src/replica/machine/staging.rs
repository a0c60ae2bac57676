//! A checkpoint whose long values are handed to the disk before it, some at a time.
//!
//! A checkpoint is one write, and what is accepted meanwhile waits for it. Merges of a few bytes can
//! change records of many MiB in a second. So a checkpoint of more than [`piece_bytes`] of long values
//! hands over so many of these, and the next when they are durable. Others write between them.
//!
//! [`piece_bytes`]: super::super::settings::Settings::checkpoint_piece_bytes

use leases::Key;

use super::super::action::{Checkpoint, Stored};

/// A value is long if no more than so many of its length make a piece.
const LONG_SHARE: usize = 128;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Staging {
    checkpoint: Checkpoint,
    piece_bytes: usize,
    /// The first entry that was not looked at.
    next: usize,
    /// Bytes of long values from there on.
    left: usize,
}

impl Staging {
    pub(super) fn new(checkpoint: Checkpoint, piece_bytes: usize) -> Staging {
        let mut staging = Staging {
            checkpoint,
            piece_bytes,
            next: 0,
            left: 0,
        };
        let entries = staging.checkpoint.entries.iter();
        staging.left = entries.map(|(_, stored)| staging.long(stored)).sum();
        staging
    }

    /// The bytes of a value if it is long, else 0.
    fn long(&self, stored: &Option<Stored>) -> usize {
        let bytes = stored.as_ref().map_or(0, |stored| stored.value.len());
        match bytes.saturating_mul(LONG_SHARE) >= self.piece_bytes {
            true => bytes,
            false => 0,
        }
    }

    /// What is handed over before the checkpoint; `None` if the rest is a piece, and goes
    /// with it.
    pub(super) fn piece(&mut self) -> Option<Vec<(Key, Stored)>> {
        if self.left <= self.piece_bytes {
            return None;
        }
        let mut piece = Vec::new();
        let mut bytes = 0;
        while let Some((key, stored)) = self.checkpoint.entries.get(self.next) {
            let long = self.long(stored);
            if !piece.is_empty() && bytes + long > self.piece_bytes {
                break;
            }
            if long > 0
                && let Some(stored) = stored
            {
                piece.push((key.clone(), stored.clone()));
            }
            bytes += long;
            self.next += 1;
        }
        self.left -= bytes;
        Some(piece)
    }

    /// The checkpoint itself.
    pub(super) fn finish(self) -> Checkpoint {
        self.checkpoint
    }
}
