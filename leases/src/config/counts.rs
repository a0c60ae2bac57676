//! Numbers of listed keys for each set of holders. These numbers make it unnecessary to look at
//! each key when the common holders of all listed keys are determined.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::mutants::mutated;
use crate::types::ReplicaSet;

/// For each set of holders, the number of listed keys of a range with these holders. Cloning is
/// cheap: the original and the clone share the numbers until one of them is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HolderCounts(Arc<BTreeMap<ReplicaSet, u64>>);

impl HolderCounts {
    /// Whether the counts include no key.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of keys that are included.
    pub(super) fn total(&self) -> u64 {
        self.0
            .values()
            .fold(0, |sum, keys| sum.saturating_add(*keys))
    }

    /// Returns the replicas that hold every included key; `None` if no key is included.
    pub(super) fn common(&self) -> Option<ReplicaSet> {
        self.0.keys().copied().reduce(ReplicaSet::intersection)
    }

    /// Returns the replicas that hold at least one included key.
    pub(super) fn anybody(&self) -> ReplicaSet {
        self.0
            .keys()
            .copied()
            .fold(ReplicaSet::EMPTY, ReplicaSet::union)
    }

    /// Includes a key with these holders.
    pub(super) fn add(&mut self, holders: ReplicaSet) {
        let keys = Arc::make_mut(&mut self.0).entry(holders).or_default();
        *keys = keys.saturating_add(1);
    }

    /// Removes a key with these holders.
    ///
    /// # Panics
    /// If no key with these holders is included.
    pub(super) fn remove(&mut self, holders: ReplicaSet) {
        let counts = Arc::make_mut(&mut self.0);
        let keys = counts.get(&holders).copied().unwrap_or(0);
        assert!(keys > 0 || mutated(), "every listed key is counted");
        match keys {
            0 | 1 => counts.remove(&holders),
            _ => counts.insert(holders, keys - 1),
        };
    }

    /// Includes the keys that `other` includes.
    pub(super) fn absorb(&mut self, other: &HolderCounts) {
        if self.is_empty() {
            self.clone_from(other);
            return;
        }
        let counts = Arc::make_mut(&mut self.0);
        for (holders, more) in other.0.iter() {
            let keys = counts.entry(*holders).or_default();
            *keys = keys.saturating_add(*more);
        }
    }

    /// Whether each count is at most as large as the count in `other` for the same set of holders.
    pub(super) fn is_within(&self, other: &HolderCounts) -> bool {
        let in_other = |holders| other.0.get(holders).copied().unwrap_or(0);
        self.0
            .iter()
            .all(|(holders, keys)| *keys <= in_other(holders))
    }
}
