//! What a configuration says of all keys of a range.

use super::change::RangeChange;
use super::ranges::RangeMap;
use super::spec::StrategySpec;
use crate::mutants::{Rule, off};
use crate::types::{ConfigId, ReplicaSet};

/// Most ranges of one configuration.
pub const RANGES_MAX: usize = 1024;

/// Most bytes of the first keys of all ranges of a configuration, together: one entry
/// of the configuration log can name all of them.
pub const STARTS_BYTES_MAX: usize = 512 << 10;

/// What a configuration says of a range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Who chooses the holders.
    pub strategy: StrategySpec,
    /// Holders of keys that are not listed; exclusions are not applied.
    pub defaults: ReplicaSet,
    /// The newest configuration that cleared the listed keys of the range: who was listed
    /// before it is listed no more.
    pub(super) cleared: ConfigId,
    /// Replicas in the set of every listed key of the range; `None`: no key is listed. May
    /// be too small (a key listed anew is not forgotten), never too large.
    pub(super) listed: Option<ReplicaSet>,
}

impl Policy {
    /// Before the first configuration.
    pub(super) fn initial() -> Policy {
        Policy {
            strategy: StrategySpec::None,
            defaults: ReplicaSet::EMPTY,
            cleared: ConfigId(0),
            listed: None,
        }
    }

    /// Whether a key of the range may have holders of its own.
    pub fn any_listed(&self) -> bool {
        self.listed.is_some()
    }

    /// Holders of every key that is or could be in the range; exclusions are not applied.
    pub(super) fn universal(&self) -> ReplicaSet {
        let listed = self.listed.unwrap_or(self.defaults);
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
            self.listed = None;
        }
    }
}

/// H69: neighbours become one range only if nothing tells them apart, also not when they were
/// last cleared. What the later one had forgotten would count again, for replicas that
/// remember it.
fn may_merge(left: &Policy, right: &Policy) -> bool {
    let same_time = left.cleared == right.cleared || off(Rule::H69Cleared);
    same_time
        && left.strategy == right.strategy
        && left.defaults == right.defaults
        && left.listed == right.listed
}

impl RangeMap<Policy> {
    /// Takes what configuration `id` changes by range.
    pub(super) fn apply(&mut self, changes: &[RangeChange], id: ConfigId, members: ReplicaSet) {
        for change in changes {
            self.update(&change.range, |policy| policy.apply(change, id, members));
        }
        self.merge(may_merge);
    }

    /// Whether these are no more ranges than a configuration may have.
    pub fn fits(&self) -> bool {
        let starts = || self.iter().map(|(range, _)| range.from().len());
        starts().count() <= RANGES_MAX && starts().sum::<usize>() <= STARTS_BYTES_MAX
    }

    /// The strategies alone; neighbours with the same one are one range.
    pub fn strategies(&self) -> RangeMap<StrategySpec> {
        let mut strategies = self.map(|policy| policy.strategy.clone());
        strategies.merge(|left, right| left == right);
        strategies
    }
}
