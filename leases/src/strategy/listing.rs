//! Changes of single keys, gathered for one configuration.

use std::collections::BTreeMap;

use crate::types::{Key, ReplicaSet};

/// Most keys that one configuration changes.
pub(super) const KEYS_MAX: usize = 20_000;

/// Bytes of keys after which no further key is added: an entry of the
/// configuration log stays far below a frame.
const BYTES_MAX: usize = 1 << 20;

/// Holders by key, up to the size of one entry. The rest follows in the next.
#[derive(Default)]
pub(super) struct Listing {
    holders: BTreeMap<Key, ReplicaSet>,
    /// Of the keys, together.
    bytes: usize,
}

impl Listing {
    pub(super) fn add(&mut self, holders: ReplicaSet, key: Key) {
        assert!(!self.is_full(), "an entry of the log is bounded");
        self.bytes += key.len();
        self.holders.insert(key, holders);
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.holders.contains_key(key)
    }

    /// Whether the next key must wait for the next configuration.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= BYTES_MAX || self.holders.len() >= KEYS_MAX
    }

    /// The keys, grouped by quorum.
    pub(super) fn into_keys(self) -> Vec<(ReplicaSet, Vec<Key>)> {
        let mut quorums: BTreeMap<ReplicaSet, Vec<Key>> = BTreeMap::new();
        for (key, holders) in self.holders {
            quorums.entry(holders).or_default().push(key);
        }
        quorums.into_iter().collect()
    }
}
