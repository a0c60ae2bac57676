//! Policy of a configuration for all keys of a range.

use super::change::RangeChange;
use super::counts::HolderCounts;
use super::ranges::RangeMap;
use super::spec::StrategySpec;
use crate::mutants::{Rule, off};
use crate::types::{ConfigId, ReplicaId, ReplicaSet};

/// Most ranges of one configuration.
pub const RANGES_MAX: usize = 1024;

/// Most bytes of the first keys of all ranges of a configuration, together: one entry
/// of the configuration log can name all of them.
pub const STARTS_BYTES_MAX: usize = 512 << 10;

/// Policy of a configuration for one range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Strategy that chooses the holders.
    pub strategy: StrategySpec,
    /// Holders of keys that are not listed; exclusions are not applied.
    pub defaults: ReplicaSet,
    /// The newest configuration that cleared the listed keys of the range: a key listed before
    /// it is listed no more.
    pub(super) cleared: ConfigId,
    /// The listed keys of the range. After a range was split both parts count the keys of
    /// both, until all were looked at: never too few.
    pub(super) listed: HolderCounts,
}

impl Policy {
    /// Before the first configuration.
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

    /// Replicas that hold at least one key of the range; exclusions are not applied.
    pub(super) fn anybody(&self) -> ReplicaSet {
        self.defaults.union(self.listed.anybody())
    }

    /// Holders of every key that is or could be in the range; exclusions are not applied.
    pub(super) fn universal(&self) -> ReplicaSet {
        let listed = self.listed.common().unwrap_or(self.defaults);
        self.defaults.intersection(listed)
    }

    /// Takes what configuration `id` changes. Only `members` hold anything.
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

/// Adds the range of `right` to that of `left`, if they may become one.
///
/// H69: neighbours become one range only if nothing tells them apart, also not when they were
/// last cleared. What the later one had forgotten would count again, for replicas that
/// remember it. How many keys are listed in each may differ, and is not the same at all
/// replicas.
fn may_merge(left: &mut Policy, right: &Policy) -> bool {
    let same_time = left.cleared == right.cleared || off(Rule::H69Cleared);
    let same = same_time && left.strategy == right.strategy && left.defaults == right.defaults;
    if same {
        left.listed.absorb(&right.listed);
    }
    same
}

impl RangeMap<Policy> {
    /// Takes what configuration `id` changes by range. Returns whether ranges were split:
    /// keys may be counted twice.
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

    /// Whether these are no more ranges than a configuration may have.
    pub fn fits(&self) -> bool {
        let bytes = self.starts().map(|from| from.len()).sum::<usize>();
        self.starts().count() <= RANGES_MAX && bytes <= STARTS_BYTES_MAX
    }

    /// The strategies alone; neighbours with the same one are one range.
    pub fn strategies(&self) -> RangeMap<StrategySpec> {
        let mut strategies = self.map(|policy| policy.strategy.clone());
        strategies.merge(|left, right| left == right);
        strategies
    }
}
