//! A pass over all keys in demand, in slices: what the next configuration should change.
//!
//! The leader makes a pass every `reconfigure`. It looks at some thousands of keys at a
//! time, so that it goes on leading meanwhile. Then it looks at all listed keys in the same
//! way, if another leader has left some without it. What one configuration has no room for
//! waits for later ones (`remaining.rs`), the least gain last.

use super::chooser::{HolderChange, HolderChooser};
use super::cost::Tables;
use super::gathered_changes::Listing;
use super::remaining::RemainingChanges;
use super::situation::Situation;
use crate::config::{ConfigChange, Configs, KeyRange, Policy, RangeChange, RangeMap};
use crate::demand::{Census, Demand, Row};
use crate::types::{ConfigId, Key, ReplicaSet};

/// The next configuration, as far as strategies decide about it.
#[derive(Debug)]
pub struct SurveyResult {
    /// Changes of the next configuration.
    pub change: ConfigChange,
    /// Changes that did not fit, if any: for later configurations.
    pub remaining: Option<RemainingChanges>,
}

/// Policy that is wanted for a range.
#[derive(Clone, Debug)]
struct RangeTarget {
    /// Current policy of the range, with the operator's further changes.
    policy: Policy,
    chooser: HolderChooser,
    /// Holders of keys that are not listed, once the change is complete.
    defaults: ReplicaSet,
    /// Keys may be listed here without the leader, which should hold them.
    lacks_leader: bool,
}

/// A pass that is under way.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Further changes that the operator wants.
    change: ConfigChange,
    situation: Situation,
    /// The configuration that is to be changed.
    of: ConfigId,
    targets: RangeMap<RangeTarget>,
    /// The next key's place in the demand.
    place: usize,
    /// Listed keys at lower places are still to be looked at.
    listed_left: usize,
    census: Census,
    listing: Listing,
}

impl Survey {
    /// Begins a pass. `change` may bring other strategies, which are asked then.
    ///
    /// Keys after `resume_after` are next to have their turn, whatever that gains: see
    /// [`RemainingChanges::round_robin_after`].
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

    /// The configuration that the pass goes by. With another in force it is to begin again.
    pub fn of(&self) -> ConfigId {
        self.of
    }

    /// The change that the pass began with.
    pub fn into_change(self) -> ConfigChange {
        self.change
    }

    /// Looks at up to `keys` more keys. Returns whether those were all.
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

    /// Adds the leader to keys that an earlier leader listed without it, and that nobody
    /// asks now: it would not hold them until somebody did.
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
        // What this change clears is listed no more.
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

    /// Number of keys in demand for each count, once all were looked at.
    pub fn census(&self) -> &Census {
        &self.census
    }

    /// Returns the changes of the next configuration, with at most about `bytes` of keys: the
    /// pass is over.
    ///
    /// # Panics
    /// If listed keys are still to be looked at, or another configuration is in force than the
    /// pass went by.
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
    /// Adds the leader to `current_holders`, which hold a key without it. Nobody reads the key now, so
    /// nothing is gained yet.
    fn keep(&self, current_holders: ReplicaSet) -> HolderChange {
        HolderChange {
            holders: self.chooser.keep(current_holders),
            gain: 0.0,
        }
    }

    /// Other defaults than now, if it is time for them. A replica that held a
    /// key under the strategy before, and is to hold it under this one, holds it all the
    /// time: while `more` keys are to be listed, nobody ceases to hold what is not listed.
    fn next_defaults(&self, more: bool) -> Option<ReplicaSet> {
        let before = self.policy.defaults;
        let next = if more && self.chooser.lists() {
            before.union(self.defaults)
        } else {
            self.defaults
        };
        (before != next).then_some(next)
    }

    /// Returns the change that is to follow once no more keys are to be listed.
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

    /// A table takes a millisecond where there are nine replicas, and there may be a thousand
    /// ranges.
    #[test]
    fn ranges_with_equal_settings_share_a_table() {
        let range = |i: usize| {
            let from = Key::from(format!("{i:04}"));
            let range = KeyRange::new(from, None).expect("some keys");
            // The prior is no part of a table.
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
