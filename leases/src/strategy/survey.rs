//! A pass over all keys in demand, in slices: what the next configuration should change.
//!
//! The leader makes a pass every `reconfigure`. It looks at some thousands of keys at a
//! time, so that it goes on leading meanwhile. Then it looks at all listed keys in the same
//! way, if another leader has left some without it. What one configuration has no room for
//! waits for later ones (`remaining.rs`), the least gain last.

use super::chooser::{Chooser, Wish};
use super::cost::Tables;
use super::listing::Listing;
use super::remaining::Remaining;
use super::situation::Situation;
use crate::config::{ConfigChange, Configs, KeyRange, Policy, RangeChange, RangeMap};
use crate::demand::{Census, Demand, Row};
use crate::types::{ConfigId, Key, ReplicaSet};

/// The next configuration, as far as strategies decide about it.
#[derive(Debug)]
pub struct Surveyed {
    /// Changes of the next configuration.
    pub change: ConfigChange,
    /// Changes that did not fit, if any: for later configurations.
    pub remaining: Option<Remaining>,
}

/// Policy that is wanted for a range.
#[derive(Clone, Debug)]
struct Part {
    /// Current policy of the range, with the operator's further changes.
    policy: Policy,
    chooser: Chooser,
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
    parts: RangeMap<Part>,
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
    /// Keys after `turn` are next to have their turn, whatever that gains: see
    /// [`Remaining::turn_after`].
    pub fn begin(
        change: ConfigChange,
        situation: Situation,
        (demand, current): (&Demand, &Configs),
        turn: Option<Key>,
    ) -> Survey {
        let mut tables = Tables::new(&situation, demand.estimator());
        let policies = current.policies_after(&change.ranges);
        let part = |policy: &Policy| {
            let chooser = Chooser::new(policy, &mut tables);
            let lacks_leader = chooser.lists() && policy.any_listed_without(situation.leader);
            Part {
                policy: policy.clone(),
                defaults: chooser.defaults(),
                lacks_leader,
                chooser,
            }
        };
        let parts = policies.map(part);
        let lacking = parts.iter().any(|(_, part)| part.lacks_leader);
        Survey {
            change,
            of: current.newest(),
            parts,
            place: 0,
            listed_left: if lacking { current.listed_len() } else { 0 },
            census: Census::default(),
            listing: Listing::new(turn),
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
        assert_eq!(self.of, current.newest(), "it goes by the newest");
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
            let (key, row) = demand.row(place).expect("below the length");
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
        for (key, held) in listed.filter(|(_, held)| !held.contains(leader)) {
            let part = self.parts.get(key);
            if part.lacks_leader && demand.get(key).is_none() {
                self.listing.add(part.keep(held), key);
            }
        }
        self.listed_left = end;
    }

    #[inline]
    fn consider(&mut self, key: &[u8], row: Row<'_>, listed: Option<ReplicaSet>) {
        let leader = self.situation.leader;
        let part = self.parts.get(key);
        // What this change clears is listed no more.
        let listed = listed.filter(|_| part.policy.any_listed());
        let held = listed.unwrap_or(part.defaults);
        let wish = match part.chooser.choose(row, held) {
            None if part.chooser.lists() && !held.contains(leader) => Some(part.keep(held)),
            wish => wish,
        };
        if let Some(mut wish) = wish {
            let silent = self.situation.silent.minus(held);
            wish.holders = wish.holders.minus(silent);
            if wish.holders != held {
                self.listing.add(wish, key);
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
    pub fn finish(self, current: &Configs, bytes: usize) -> Surveyed {
        assert_eq!(self.listed_left, 0, "all were looked at");
        let mut change = self.change;
        let mut remaining = Remaining::new(self.of, self.listing.gathered());
        change.keys = remaining.next_keys(current, bytes);
        let more = !remaining.is_empty() || remaining.more();
        for (range, part) in self.parts.iter() {
            let clear = !part.chooser.lists() && part.policy.any_listed();
            let defaults = part.next_defaults(more);
            if more {
                remaining.last.extend(part.last_defaults(&range));
            }
            if clear || defaults.is_some() {
                let of_range = change.of_range(&range);
                of_range.clear |= clear;
                of_range.defaults = defaults;
            }
        }
        Surveyed {
            change,
            remaining: more.then_some(remaining),
        }
    }
}

impl Part {
    /// Adds the leader to `held`, which hold a key without it. Nobody reads the key now, so
    /// nothing is gained yet.
    fn keep(&self, held: ReplicaSet) -> Wish {
        Wish {
            holders: self.chooser.keep(held),
            gain: 0.0,
        }
    }

    /// Other defaults than now, if it is time for them. A replica that held a
    /// key under the strategy before, and is to hold it under this one, holds it all the
    /// time: while `more` keys are to be listed, nobody ceases to hold what is not listed.
    fn next_defaults(&self, more: bool) -> Option<ReplicaSet> {
        let before = self.policy.defaults;
        let next = match more && self.chooser.lists() {
            true => before.union(self.defaults),
            false => self.defaults,
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
        let pass = Survey::begin(change, situation, (&demand, &Configs::new(5)), None);
        let parts = pass.parts.iter();
        let costs = parts.filter_map(|(_, part)| match &part.chooser {
            Chooser::Cost(cost) => Some(cost.table()),
            _ => None,
        });
        let mut tables: Vec<_> = costs.collect();
        assert_eq!(tables.len(), 1000);
        tables.sort_unstable();
        tables.dedup();
        assert_eq!(tables.len(), 2);
    }
}
