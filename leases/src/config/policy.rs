//! Policies of a configuration, each of which applies to all keys of a range.

use super::change::RangeChange;
use super::counts::HolderCounts;
use super::ranges::RangeMap;
use super::spec::StrategySpec;
use crate::mutants::{Rule, off};
use crate::types::{ConfigId, ReplicaId, ReplicaSet};

/// Maximum number of ranges of one configuration.
pub const RANGES_MAX: usize = 1024;

/// Maximum total size, in bytes, of the first keys of all ranges in a configuration. The size is
/// limited because one entry of the configuration log can name all ranges.
pub const STARTS_BYTES_MAX: usize = 512 << 10;

/// Policy of a configuration for one range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Strategy that chooses the holders of the keys.
    pub strategy: StrategySpec,
    /// Holders of keys that are not listed, including excluded replicas.
    pub defaults: ReplicaSet,
    /// The newest configuration that removed the listed keys of the range. Keys that were listed
    /// before this configuration are no longer listed.
    pub(super) cleared: ConfigId,
    /// For each set of holders, the number of listed keys of the range with these holders. A number
    /// may be too high, but is never too low. After a range was split, the numbers of each part
    /// include the keys of both parts, until a pass over all listed keys is complete.
    pub(super) listed: HolderCounts,
}

impl Policy {
    /// Returns the policy before the first configuration.
    pub(super) fn initial() -> Policy {
        Policy {
            strategy: StrategySpec::None,
            defaults: ReplicaSet::EMPTY,
            cleared: ConfigId(0),
            listed: HolderCounts::default(),
        }
    }

    /// Whether a key of the range may have holders of its own.
    pub fn any_listed(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Whether a key of the range may have holders of its own that do not include `replica`.
    pub fn any_listed_without(&self, replica: ReplicaId) -> bool {
        let common = self.listed.common();
        common.is_some_and(|common| !common.contains(replica))
    }

    /// Returns the replicas that hold at least one key of the range, including excluded replicas.
    pub(super) fn anybody(&self) -> ReplicaSet {
        self.defaults.union(self.listed.anybody())
    }

    /// Returns the replicas that hold every possible key of the range, including excluded replicas.
    pub(super) fn universal(&self) -> ReplicaSet {
        let listed = self.listed.common().unwrap_or(self.defaults);
        self.defaults.intersection(listed)
    }

    /// Applies a change that configuration `id` makes to the range. Only `members` can be holders.
    pub(super) fn apply(&mut self, change: &RangeChange, id: ConfigId, members: ReplicaSet) {
        if let Some(strategy) = &change.strategy {
            self.strategy = strategy.clone();
        }
        if let Some(defaults) = change.defaults {
            self.defaults = defaults.intersection(members);
        }
        if change.clear {
            self.cleared = id;
            self.listed = HolderCounts::default();
        }
    }
}

/// Merges the range of `right` into the range of `left`, if this is allowed. Returns whether the
/// ranges were merged.
///
/// Rule H69: neighbouring ranges become one range only if their policies are equal. This includes
/// the configuration that last cleared their listed keys. Otherwise, a replica that still remembers
/// the keys of the range that was cleared later would list these keys again. The numbers of listed
/// keys need not be equal, because these numbers also differ between replicas.
fn may_merge(left: &mut Policy, right: &Policy) -> bool {
    let same_time = left.cleared == right.cleared || off(Rule::H69Cleared);
    let same = same_time && left.strategy == right.strategy && left.defaults == right.defaults;
    if same {
        left.listed.absorb(&right.listed);
    }
    same
}

impl RangeMap<Policy> {
    /// Applies the changes that configuration `id` makes to ranges. Returns whether a range was
    /// split. If so, the counts of both parts may include the same listed keys.
    pub(super) fn apply(
        &mut self,
        changes: &[RangeChange],
        id: ConfigId,
        members: ReplicaSet,
    ) -> bool {
        let before = self.iter().count();
        for change in changes {
            self.update(&change.range, |policy| policy.apply(change, id, members));
        }
        let split = self.iter().count() > before;
        self.merge(may_merge);
        split
    }

    /// Whether the number of ranges, and the total size of their first keys, are within the limits
    /// for a configuration.
    pub fn fits(&self) -> bool {
        let bytes = self.starts().map(|from| from.len()).sum::<usize>();
        self.starts().count() <= RANGES_MAX && bytes <= STARTS_BYTES_MAX
    }

    /// Returns the strategy of each range. Neighbouring ranges with the same strategy become one
    /// range.
    pub fn strategies(&self) -> RangeMap<StrategySpec> {
        let mut strategies = self.map(|policy| policy.strategy.clone());
        strategies.merge(|left, right| left == right);
        strategies
    }
}
