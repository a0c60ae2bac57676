//! A pass over all keys in demand, in steps, which determines the changes of the next
//! configuration.
//!
//! The leader makes a pass every `reconfigure`. In each step it looks at some thousands of keys, so
//! that it can do its other work between steps. After that, it looks at all listed keys in the same
//! way, if an earlier leader may have listed keys with holders that do not include the current
//! leader. Changes that do not fit in one configuration are left for later configurations
//! (`remaining.rs`). The changes with the least gain are made last.

use super::chooser::{HolderChange, HolderChooser};
use super::cost::Tables;
use super::gathered_changes::Listing;
use super::remaining::RemainingChanges;
use super::situation::Situation;
use crate::config::{ConfigChange, Configs, KeyRange, Policy, RangeChange, RangeMap};
use crate::demand::{Census, Demand, Row};
use crate::types::{ConfigId, Key, ReplicaSet};

/// The result of a pass: changes that the strategies make.
#[derive(Debug)]
pub struct SurveyResult {
    /// Changes of the next configuration.
    pub change: ConfigChange,
    /// Changes that are left for later configurations, because they did not fit into the next one;
    /// `None` if all changes fit.
    pub remaining: Option<RemainingChanges>,
}

/// The policy that a range should have after all changes of the pass.
#[derive(Clone, Debug)]
struct RangeTarget {
    /// Policy of the range after the operator's changes, but before the changes of the pass.
    policy: Policy,
    chooser: HolderChooser,
    /// Holders of keys that are not listed, after all changes have been made.
    defaults: ReplicaSet,
    /// Whether the range may have listed keys that the leader should hold but does not hold.
    lacks_leader: bool,
}

/// A pass in progress.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Changes by the operator. The result of the pass will include these changes.
    change: ConfigChange,
    situation: Situation,
    /// The configuration that the pass will change.
    of: ConfigId,
    targets: RangeMap<RangeTarget>,
    /// Position, in the demand, of the next key that the pass looks at.
    place: usize,
    /// Number of listed keys that the pass has not looked at yet. The pass looks at these keys in
    /// descending order of their places.
    listed_left: usize,
    census: Census,
    listing: Listing,
}

impl Survey {
    /// Begins a pass. If `change` sets other strategies, the pass applies those strategies.
    ///
    /// The pass chooses some changes in the order of their keys, regardless of the gain. This order
    /// continues after the key `resume_after`. [`RemainingChanges::round_robin_after`] returned
    /// this key for the previous pass.
    pub fn begin(
        change: ConfigChange,
        situation: Situation,
        demand: &Demand,
        current: &Configs,
        resume_after: Option<Key>,
    ) -> Survey {
        let mut tables = Tables::new(&situation, demand.estimator());
        let policies = current.policies_after(&change.ranges);
        let target = |policy: &Policy| {
            let chooser = HolderChooser::new(policy, &mut tables);
            let lacks_leader = chooser.lists() && policy.any_listed_without(situation.leader);
            RangeTarget {
                policy: policy.clone(),
                defaults: chooser.defaults(),
                lacks_leader,
                chooser,
            }
        };
        let targets = policies.map(target);
        let lacking = targets.iter().any(|(_, target)| target.lacks_leader);
        Survey {
            change,
            of: current.newest(),
            targets,
            place: 0,
            listed_left: if lacking { current.listed_len() } else { 0 },
            census: Census::default(),
            listing: Listing::new(resume_after),
            situation,
        }
    }

    /// Returns the configuration on which the pass is based. If another configuration is in force,
    /// a new pass must begin.
    pub fn of(&self) -> ConfigId {
        self.of
    }

    /// Abandons the pass. Returns the operator's change with which the pass began.
    pub fn into_change(self) -> ConfigChange {
        self.change
    }

    /// Looks at up to `keys` more keys. Returns whether all keys have been looked at.
    pub fn look(&mut self, demand: &Demand, current: &Configs, keys: usize) -> bool {
        assert_eq!(
            self.of,
            current.newest(),
            "the pass goes by the newest configuration"
        );
        if self.place < demand.len() {
            self.look_at_demand(demand, current, keys);
        } else {
            self.look_at_listed(demand, current, keys);
        }
        self.place >= demand.len() && self.listed_left == 0
    }

    fn look_at_demand(&mut self, demand: &Demand, current: &Configs, keys: usize) {
        let end = demand.len().min(self.place + keys);
        for place in self.place..end {
            let (key, row) = demand.row(place).expect("the place has a key");
            self.census.add(row);
            self.consider(key, row, current.listed(key));
        }
        self.place = end;
    }

    /// Looks at listed keys that no client requests now. Adds the leader to the holders of each key
    /// that the leader should hold but does not hold. An earlier leader may have listed such a key.
    /// Without this step, the leader would hold the key only after a client requests the key.
    fn look_at_listed(&mut self, demand: &Demand, current: &Configs, keys: usize) {
        let leader = self.situation.leader;
        let end = self.listed_left.saturating_sub(keys);
        let places = (end..self.listed_left).rev();
        let listed = places.filter_map(|place| current.listed_at(place));
        for (key, current_holders) in
            listed.filter(|(_, current_holders)| !current_holders.contains(leader))
        {
            let target = self.targets.get(key);
            if target.lacks_leader && demand.get(key).is_none() {
                self.listing.add(target.keep(current_holders), key);
            }
        }
        self.listed_left = end;
    }

    #[inline]
    fn consider(&mut self, key: &[u8], row: Row<'_>, listed: Option<ReplicaSet>) {
        let leader = self.situation.leader;
        let target = self.targets.get(key);
        // Keys in ranges that this change clears are no longer listed.
        let listed = listed.filter(|_| target.policy.any_listed());
        let current_holders = listed.unwrap_or(target.defaults);
        let change = match target.chooser.choose(row, current_holders) {
            None if target.chooser.lists() && !current_holders.contains(leader) => {
                Some(target.keep(current_holders))
            }
            change => change,
        };
        if let Some(mut change) = change {
            let silent = self.situation.silent.minus(current_holders);
            change.holders = change.holders.minus(silent);
            if change.holders != current_holders {
                self.listing.add(change, key);
            }
        }
    }

    /// Returns the numbers of keys in the demand, grouped by their counts of operations. The
    /// numbers are complete after all keys have been looked at.
    pub fn census(&self) -> &Census {
        &self.census
    }

    /// Ends the pass. Returns the changes of the next configuration. The total size of the changed
    /// keys is up to about `bytes` bytes.
    ///
    /// # Panics
    /// If listed keys remain to be looked at, or if the configuration in force is not the one on
    /// which the pass is based.
    pub fn finish(self, current: &Configs, bytes: usize) -> SurveyResult {
        assert_eq!(self.listed_left, 0, "every listed key was looked at");
        let mut change = self.change;
        let mut remaining = RemainingChanges::new(self.of, self.listing.finish());
        change.keys = remaining.next_keys(current, bytes);
        let more = !remaining.is_empty() || remaining.has_more();
        for (range, target) in self.targets.iter() {
            let clear = !target.chooser.lists() && target.policy.any_listed();
            let defaults = target.next_defaults(more);
            if more {
                remaining.last.extend(target.last_defaults(&range));
            }
            if clear || defaults.is_some() {
                let of_range = change.of_range(&range);
                of_range.clear |= clear;
                of_range.defaults = defaults;
            }
        }
        SurveyResult {
            change,
            remaining: more.then_some(remaining),
        }
    }
}

impl RangeTarget {
    /// Returns the change that adds the leader to a key's holders, `current_holders`. The change
    /// has a gain of 0, because no client reads the key now.
    fn keep(&self, current_holders: ReplicaSet) -> HolderChange {
        HolderChange {
            holders: self.chooser.keep(current_holders),
            gain: 0.0,
        }
    }

    /// Returns the next holders of the keys that are not listed; `None` if these holders do not
    /// change now.
    ///
    /// `more` says whether the pass must still list keys in later configurations. If so, no replica
    /// is removed from these holders. So a replica keeps a key without interruption if it holds the
    /// key under both the old and the new strategy.
    fn next_defaults(&self, more: bool) -> Option<ReplicaSet> {
        let before = self.policy.defaults;
        let next = if more && self.chooser.lists() {
            before.union(self.defaults)
        } else {
            self.defaults
        };
        (before != next).then_some(next)
    }

    /// Returns the last change of a range; `None` if there is none. This change is made when no
    /// more keys remain to be listed.
    fn last_defaults(&self, range: &KeyRange) -> Option<RangeChange> {
        let meanwhile = self.policy.defaults.union(self.defaults);
        let differs = self.chooser.lists() && meanwhile != self.defaults;
        differs.then(|| RangeChange {
            defaults: Some(self.defaults),
            ..RangeChange::nothing(range.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CostSettings, StrategySpec};
    use crate::latency::{Replies, RoundTrips};
    use crate::time::Time;
    use crate::types::{Key, ReplicaId};

    /// Ranges must share tables, because there may be a thousand ranges. Creating one table for
    /// nine replicas takes a millisecond.
    #[test]
    fn ranges_with_equal_settings_share_a_table() {
        let range = |i: usize| {
            let from = Key::from(format!("{i:04}"));
            let range = KeyRange::new(from, None).expect("some keys");
            // Settings that differ only in `prior` share a table.
            let settings = CostSettings::from_thousandths(500, (i % 2) as u8, i.is_multiple_of(3));
            RangeChange::strategy(range, StrategySpec::Cost(settings))
        };
        let change = ConfigChange {
            ranges: (0..1000).map(range).collect(),
            ..ConfigChange::default()
        };
        let rtts = RoundTrips::new(5, |_, _| 50.0);
        let situation = Situation::new(ReplicaId(0), rtts, Replies::LeaderAndOrigin);
        let demand = Demand::new(Time::ZERO, 5, 1 << 20);
        let pass = Survey::begin(change, situation, &demand, &Configs::new(5), None);
        let targets = pass.targets.iter();
        let costs = targets.filter_map(|(_, target)| match &target.chooser {
            HolderChooser::Cost(cost) => Some(cost.table()),
            _ => None,
        });
        let mut tables: Vec<_> = costs.collect();
        assert_eq!(tables.len(), 1000);
        tables.sort_unstable();
        tables.dedup();
        assert_eq!(tables.len(), 2);
    }
}
