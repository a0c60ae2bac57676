//! A pass over all keys in demand, in slices: what the next configuration should change.
//!
//! The leader makes a pass every `reconfigure`. It looks at some thousands of keys at a
//! time, so that it goes on leading meanwhile. What one entry of the log cannot hold waits
//! for the next pass, the least gain last.

use super::chooser::{Chooser, Wish};
use super::listing::Listing;
use super::situation::Situation;
use crate::config::{ConfigChange, Configs, Policy, RangeMap};
use crate::demand::{Census, Demand, Row};
use crate::types::{ConfigId, ReplicaSet};

/// The next configuration, as far as strategies decide about it.
#[derive(Debug)]
pub struct Surveyed {
    /// What changes.
    pub change: ConfigChange,
    /// Whether more would have changed than one entry of the log may hold: another pass
    /// should follow.
    pub more: bool,
}

/// What is wanted for a range.
#[derive(Clone, Debug)]
struct Part {
    /// What is said of the range now, with what the operator wants besides.
    policy: Policy,
    chooser: Chooser,
    /// Holders of keys that are not listed, once the change is complete.
    defaults: ReplicaSet,
}

/// A pass that is under way.
#[derive(Clone, Debug)]
pub struct Survey {
    /// What the operator wants besides.
    change: ConfigChange,
    situation: Situation,
    /// The configuration that is to be changed.
    of: ConfigId,
    parts: RangeMap<Part>,
    /// The next key's place in the demand.
    place: usize,
    census: Census,
    listing: Listing,
}

impl Survey {
    /// Begins a pass. `change` may bring other strategies, which are asked then.
    pub fn begin(
        change: ConfigChange,
        situation: Situation,
        demand: &Demand,
        current: &Configs,
    ) -> Survey {
        let estimator = demand.estimator();
        let policies = current.policies_after(&change.ranges);
        let part = |policy: &Policy| {
            let chooser = Chooser::new(policy, &situation, &estimator);
            Part {
                policy: policy.clone(),
                defaults: chooser.defaults(),
                chooser,
            }
        };
        let parts = policies.map(part);
        Survey {
            change,
            of: current.newest(),
            parts,
            place: 0,
            census: Census::default(),
            listing: Listing::default(),
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
        let end = demand.len().min(self.place + keys);
        for place in self.place..end {
            let (key, row) = demand.row(place).expect("below the length");
            self.census.add(row);
            self.consider(key, row, current.listed(key));
        }
        self.place = end;
        end == demand.len()
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

    /// How many of the keys in demand have which count, once all were looked at.
    pub fn census(&self) -> &Census {
        &self.census
    }

    /// What the next configuration should change: the pass is over.
    pub fn finish(mut self, demand: &Demand, current: &Configs) -> Surveyed {
        self.enlist_leader(demand, current);
        let more = self.listing.cut();
        for (range, part) in self.parts.iter() {
            let clear = !part.chooser.lists() && part.policy.any_listed();
            let defaults = part.next_defaults(more);
            if clear || defaults.is_some() {
                let of_range = self.change.of_range(&range);
                of_range.clear |= clear;
                of_range.defaults = defaults;
            }
        }
        self.change.keys = self.listing.into_keys();
        let change = self.change;
        Surveyed { change, more }
    }

    /// Adds the leader to keys that an earlier leader listed without it, and that nobody
    /// asks now: it would not hold them until somebody did.
    fn enlist_leader(&mut self, demand: &Demand, current: &Configs) {
        let leader = self.situation.leader;
        for (range, part) in self.parts.iter().filter(|(_, part)| part.chooser.lists()) {
            for (key, held) in current.listed_without(&range, leader) {
                if demand.get(&key).is_none() {
                    self.listing.add(part.keep(held), &key);
                }
            }
        }
    }
}

impl Part {
    /// The leader joins `held`, who hold a key without it.
    fn keep(&self, held: ReplicaSet) -> Wish {
        Wish {
            holders: self.chooser.keep(held),
            gain: f32::INFINITY,
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
}
