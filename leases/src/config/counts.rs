//! Number of listed keys for each set of holders. So a property of all of them is known without
//! a look at each.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::mutants::mutated;
use crate::types::ReplicaSet;

/// The listed keys of a range, counted by their holders. A clone costs little: it shares
/// the counts until one of both changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HolderCounts(Arc<BTreeMap<ReplicaSet, u64>>);

impl HolderCounts {
    /// Whether no key is counted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of keys counted.
    pub(super) fn total(&self) -> u64 {
        self.0
            .values()
            .fold(0, |sum, keys| sum.saturating_add(*keys))
    }

    /// Replicas that hold every counted key; `None`: no key is counted.
    pub(super) fn common(&self) -> Option<ReplicaSet> {
        self.0.keys().copied().reduce(ReplicaSet::intersection)
    }

    /// Replicas that hold at least one counted key.
    pub(super) fn anybody(&self) -> ReplicaSet {
        self.0
            .keys()
            .copied()
            .fold(ReplicaSet::EMPTY, ReplicaSet::union)
    }

    /// A key is listed with these holders.
    pub(super) fn add(&mut self, holders: ReplicaSet) {
        let keys = Arc::make_mut(&mut self.0).entry(holders).or_default();
        *keys = keys.saturating_add(1);
    }

    /// A key that is counted with these holders has them no more.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn remove(&mut self, holders: ReplicaSet) {
        let counts = Arc::make_mut(&mut self.0);
        let keys = counts.get(&holders).copied().unwrap_or(0);
        assert!(keys > 0 || mutated(), "every listed key is counted");
        match keys {
            0 | 1 => counts.remove(&holders),
            _ => counts.insert(holders, keys - 1),
        };
    }

    /// Counts the keys of `other` too.
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

    /// Whether no set of holders is counted less often in `other`.
    pub(super) fn is_within(&self, other: &HolderCounts) -> bool {
        let in_other = |holders| other.0.get(holders).copied().unwrap_or(0);
        self.0
            .iter()
            .all(|(holders, keys)| *keys <= in_other(holders))
    }
}
