//! The paper's quorum leases (§3.4): each key is held by the leader and the
//! N/2 other replicas that have read it most.

use super::listing::Listing;
use super::situation::{Proposal, Question, Situation, Strategy};
use crate::config::Unlisted;
use crate::demand::{Counts, Demand};
use crate::types::{ReplicaId, ReplicaSet};

/// See the file.
pub(super) struct Quorum {
    unlisted: Unlisted,
}

impl Quorum {
    pub(super) fn new(unlisted: Unlisted) -> Quorum {
        Quorum { unlisted }
    }

    fn defaults(&self, situation: &Situation) -> ReplicaSet {
        match self.unlisted {
            Unlisted::Leader => ReplicaSet::one(situation.leader),
            Unlisted::Nearest => situation.near_majority(),
        }
    }

    /// Lists keys whose readers have changed, until the listing or the demand ends.
    fn follow_demand(&self, asked: &Question<'_>, demand: &mut Demand, listing: &mut Listing) {
        let defaults = self.defaults(asked.situation);
        while !listing.is_full() {
            let Some((key, counts)) = demand.pop_touched(asked.range) else {
                return;
            };
            listing.consider();
            let wanted = choose(asked.situation, counts);
            let held = asked.current.listed(&key).unwrap_or(defaults);
            if wanted != held {
                listing.add(wanted, key);
            }
        }
    }
}

impl Strategy for Quorum {
    fn propose(
        &self,
        asked: &Question<'_>,
        demand: &mut Demand,
        listing: &mut Listing,
    ) -> Proposal {
        self.follow_demand(asked, demand, listing);
        enlist_leader(asked, listing);
        let wanted = self.defaults(asked.situation);
        let changed = asked.policy().defaults != wanted;
        Proposal {
            defaults: (changed && !listing.is_full()).then_some(wanted),
            clear: false,
        }
    }
}

/// Adds the leader to keys that an earlier leader listed without it: it would not
/// hold them until somebody read them again.
fn enlist_leader(asked: &Question<'_>, listing: &mut Listing) {
    let situation = asked.situation;
    let without = asked.current.listed_without(asked.range, situation.leader);
    for (key, held) in without {
        if listing.is_full() {
            return;
        }
        if !listing.contains(&key) {
            listing.add(keep(situation, held), key);
        }
    }
}

/// The leader and N/2 of those who held the key before, the nearest of them.
fn keep(situation: &Situation, held: ReplicaSet) -> ReplicaSet {
    let mut others: Vec<ReplicaId> = situation.nearest.clone();
    others.sort_by_key(|replica| !held.contains(*replica));
    situation.with_leader(others.into_iter())
}

/// The leader and the N/2 others that read the key most; places that no reader
/// claims go to the replicas nearest to the leader, where they cost least.
fn choose(situation: &Situation, counts: &Counts) -> ReplicaSet {
    let mut others: Vec<ReplicaId> = situation.nearest.clone();
    // Stable: among equals, and among those that never read it, nearest first.
    others.sort_by_key(|replica| std::cmp::Reverse(counts.reads(*replica)));
    situation.with_leader(others.into_iter())
}

#[cfg(test)]
mod tests {
    use super::super::gather;
    use super::*;
    use crate::config::{ConfigChange, Configs, KeyRange, RangeChange, StrategySpec};
    use crate::types::{ConfigId, Key};

    fn situation() -> Situation {
        // JP 0, CA 1 (leader), OR 2, VA 3, IRL 4
        Situation {
            leader: ReplicaId(1),
            n: 5,
            nearest: [2, 3, 0, 4].map(ReplicaId).to_vec(),
        }
    }

    fn set(ids: &[u8]) -> ReplicaSet {
        ids.iter().copied().map(ReplicaId).collect()
    }

    /// What changes with `quorum` for every key.
    fn proposed(unlisted: Unlisted, demand: &mut Demand, configs: &Configs) -> ConfigChange {
        let mut change = ConfigChange::default();
        let spec = StrategySpec::Quorum { unlisted };
        if *configs.strategy_of(b"") != spec {
            let strategy = RangeChange::strategy(KeyRange::all(), spec);
            change.ranges.push(strategy);
        }
        gather(change, &situation(), demand, configs).change
    }

    #[test]
    fn the_readers_get_the_key_and_the_nearest_fill_in() {
        let mut demand = Demand::new(5, 1000);
        demand.add(&Key::from("k"), ReplicaId(4), 3, 0);
        demand.add(&Key::from("k"), ReplicaId(1), 9, 0);
        let mut configs = Configs::new(5);
        let change = proposed(Unlisted::Nearest, &mut demand, &configs);
        configs.apply(ConfigId(1), &change);
        assert_eq!(
            configs.holders(b"k"),
            set(&[1, 2, 4]),
            "IRL reads it; OR fills in"
        );
        assert_eq!(configs.holders(b"unread"), set(&[1, 2, 3]));
        let next = proposed(Unlisted::Nearest, &mut demand, &configs);
        assert_eq!(next, ConfigChange::default(), "settled");
    }

    #[test]
    fn only_the_keys_that_change_are_listed() {
        let mut demand = Demand::new(5, 1000);
        demand.add(&Key::from("near"), ReplicaId(2), 3, 0);
        demand.add(&Key::from("far"), ReplicaId(0), 1, 0);
        let configs = Configs::new(5);
        let change = proposed(Unlisted::Nearest, &mut demand, &configs);
        assert_eq!(change.keys, vec![(set(&[0, 1, 2]), vec![Key::from("far")])]);
    }

    #[test]
    fn the_paper_s_unlisted_keys_stay_with_the_leader() {
        let mut demand = Demand::new(5, 1000);
        let configs = Configs::new(5);
        let change = proposed(Unlisted::Leader, &mut demand, &configs);
        assert_eq!(change.ranges[0].defaults, Some(set(&[1])));
    }
}
