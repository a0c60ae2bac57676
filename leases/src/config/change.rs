//! Contents of an entry of the configuration log.

use super::params::LeaseParams;
use super::ranges::KeyRange;
use super::spec::StrategySpec;
use crate::types::{Key, ReplicaSet};

/// One entry of the configuration log. What is `None` or empty stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConfigChange {
    /// Changes for whole ranges, one after the other, before `keys` is applied.
    pub ranges: Vec<RangeChange>,
    /// Holders of single keys, grouped by quorum.
    pub keys: Vec<(ReplicaSet, Vec<Key>)>,
    /// Replicas that hold nothing, whatever the rest says (suspects, §3.7).
    pub excluded: Option<ReplicaSet>,
    /// New durations.
    pub params: Option<LeaseParams>,
}

/// Changes for all keys of a range. A field that is `None` stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeChange {
    /// The keys.
    pub range: KeyRange,
    /// The strategy behind this and later changes.
    pub strategy: Option<StrategySpec>,
    /// Holders of keys that are not listed. They *name* replicas: a new leader must
    /// respect the lease of the old one.
    pub defaults: Option<ReplicaSet>,
    /// Whether keys that were listed before are listed no more.
    pub clear: bool,
}

impl ConfigChange {
    /// Most [`ranges`](Self::ranges) of one change: a new strategy and new holders for as
    /// many ranges as a configuration may have.
    pub const RANGES_MAX: usize = 2 * super::policy::RANGES_MAX;

    /// Gives every key that is not listed to `defaults`.
    pub fn everywhere(defaults: ReplicaSet) -> ConfigChange {
        ConfigChange {
            ranges: vec![RangeChange {
                defaults: Some(defaults),
                ..RangeChange::nothing(KeyRange::all())
            }],
            ..ConfigChange::default()
        }
    }

    /// Returns the change for just the keys of `range`; it changes nothing yet, if it is new.
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
    /// For the keys of `range`, nothing changes.
    pub fn nothing(range: KeyRange) -> RangeChange {
        RangeChange {
            range,
            strategy: None,
            defaults: None,
            clear: false,
        }
    }

    /// The keys of `range` get another strategy.
    pub fn strategy(range: KeyRange, strategy: StrategySpec) -> RangeChange {
        RangeChange {
            strategy: Some(strategy),
            ..RangeChange::nothing(range)
        }
    }
}
