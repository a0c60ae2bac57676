//! Contents of the entries of the configuration log.

use super::params::LeaseParams;
use super::ranges::KeyRange;
use super::spec::StrategySpec;
use crate::types::{Key, ReplicaSet};

/// One entry of the configuration log. A property stays unchanged if its field is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConfigChange {
    /// Changes for whole ranges, applied one after the other before `keys` is applied.
    pub ranges: Vec<RangeChange>,
    /// Holders of single keys. Keys with the same set of holders are grouped.
    pub keys: Vec<(ReplicaSet, Vec<Key>)>,
    /// Replicas that hold no key, whatever the other fields say (suspects, §3.7).
    pub excluded: Option<ReplicaSet>,
    /// New durations and drift bound.
    pub params: Option<LeaseParams>,
}

/// Changes for all keys of a range. A property stays unchanged if its field is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeChange {
    /// The range of the keys.
    pub range: KeyRange,
    /// Strategy of the range. The strategy proposed this change, and will also propose later
    /// changes.
    pub strategy: Option<StrategySpec>,
    /// Holders of keys that are not listed, as a set of replicas. A role such as "the leader" must
    /// not replace this set, because a new leader must respect the lease of the old leader.
    pub defaults: Option<ReplicaSet>,
    /// Whether all listed keys of the range are removed from the list.
    pub clear: bool,
}

impl ConfigChange {
    /// Maximum number of [`ranges`](Self::ranges) of one change: for each range of a configuration,
    /// one change of the strategy and one change of the holders.
    pub const RANGES_MAX: usize = 2 * super::policy::RANGES_MAX;

    /// Returns a change that makes `defaults` the holders of every key that is not listed.
    pub fn everywhere(defaults: ReplicaSet) -> ConfigChange {
        ConfigChange {
            ranges: vec![RangeChange {
                defaults: Some(defaults),
                ..RangeChange::nothing(KeyRange::all())
            }],
            ..ConfigChange::default()
        }
    }

    /// Returns the change for exactly the keys of `range`. Adds an empty change if there is none
    /// yet.
    pub fn of_range(&mut self, range: &KeyRange) -> &mut RangeChange {
        let known = self.ranges.iter().position(|change| change.range == *range);
        let index = known.unwrap_or_else(|| {
            self.ranges.push(RangeChange::nothing(range.clone()));
            self.ranges.len() - 1
        });
        &mut self.ranges[index]
    }
}

impl RangeChange {
    /// Returns a change for the keys of `range` that leaves everything as it was.
    pub fn nothing(range: KeyRange) -> RangeChange {
        RangeChange {
            range,
            strategy: None,
            defaults: None,
            clear: false,
        }
    }

    /// Returns a change of the strategy for the keys of `range`.
    pub fn strategy(range: KeyRange, strategy: StrategySpec) -> RangeChange {
        RangeChange {
            strategy: Some(strategy),
            ..RangeChange::nothing(range)
        }
    }
}
