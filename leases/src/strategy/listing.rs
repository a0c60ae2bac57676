//! Changes of single keys, gathered for one configuration.

use std::collections::BTreeMap;

use crate::types::{Key, ReplicaSet};

/// Most keys that one configuration changes, and that are looked at for one.
const KEYS_MAX: usize = 20_000;

/// Bytes of keys after which no further key is added: an entry of the
/// configuration log stays far below a frame.
const BYTES_MAX: usize = 1 << 20;

/// Holders by key, up to the size of one entry. The rest follows in the next. All ranges
/// share it.
#[derive(Debug, Default)]
pub struct Listing {
    holders: BTreeMap<Key, ReplicaSet>,
    /// Of the keys, together.
    bytes: usize,
    /// Keys that were looked at, listed or not.
    considered: usize,
}

impl Listing {
    /// Has `holders` hold `key`.
    ///
    /// # Panics
    /// If it [is full](Self::is_full).
    pub fn add(&mut self, holders: ReplicaSet, key: Key) {
        assert!(!self.is_full(), "an entry of the log is bounded");
        self.bytes += key.len();
        self.holders.insert(key, holders);
    }

    /// Counts a key that is looked at: the time that a proposal takes is bounded too.
    pub fn consider(&mut self) {
        self.considered += 1;
    }

    /// Whether the key is listed already.
    pub fn contains(&self, key: &Key) -> bool {
        self.holders.contains_key(key)
    }

    /// Whether the next key must wait for the next configuration.
    pub fn is_full(&self) -> bool {
        let keys = self.considered.max(self.holders.len());
        self.bytes >= BYTES_MAX || keys >= KEYS_MAX
    }

    /// The keys, grouped by quorum.
    pub fn into_keys(self) -> Vec<(ReplicaSet, Vec<Key>)> {
        let mut quorums: BTreeMap<ReplicaSet, Vec<Key>> = BTreeMap::new();
        for (key, holders) in self.holders {
            quorums.entry(holders).or_default().push(key);
        }
        quorums.into_iter().collect()
    }
}
