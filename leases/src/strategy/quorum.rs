//! The paper's quorum leases (§3.4): each key is held by the leader and the
//! N/2 other replicas that have read it most.

use super::listing::{KEYS_MAX, Listing};
use super::situation::{Situation, Strategy, assert_whole};
use crate::config::{ConfigChange, Configs, KeyRange, Unlisted};
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

    /// Keys whose readers have changed, until the listing or the demand ends.
    fn follow_demand(
        &self,
        range: &KeyRange,
        situation: &Situation,
        demand: &mut Demand,
        current: &Configs,
    ) -> Listing {
        let defaults = self.defaults(situation);
        let mut listing = Listing::default();
        for _ in 0..KEYS_MAX {
            if listing.is_full() {
                break;
            }
            let Some((key, counts)) = demand.pop_touched(range) else {
                break;
            };
            let wanted = choose(situation, counts);
            let held = current.listed(&key).unwrap_or(defaults);
            if wanted != held {
                listing.add(wanted, key);
            }
        }
        listing
    }
}

impl Strategy for Quorum {
    fn propose(
        &self,
        range: &KeyRange,
        situation: &Situation,
        demand: &mut Demand,
        current: &Configs,
    ) -> Option<ConfigChange> {
        assert_whole(range);
        let defaults = self.defaults(situation);
        let mut listing = self.follow_demand(range, situation, demand, current);
        enlist_leader(range, situation, current, &mut listing);
        let change = ConfigChange {
            defaults: (current.defaults() != defaults).then_some(defaults),
            ranges: (!current.ranges().is_empty()).then(Vec::new),
            keys: listing.into_keys(),
            ..Default::default()
        };
        (change != ConfigChange::default()).then_some(change)
    }
}

/// Adds the leader to keys that an earlier leader listed without it: it would not
/// hold them until somebody read them again.
fn enlist_leader(
    range: &KeyRange,
    situation: &Situation,
    current: &Configs,
    listing: &mut Listing,
) {
    let without = current.listed_without(situation.leader);
    for (key, held) in without.into_iter().filter(|(key, _)| range.contains(key)) {
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
    use super::*;
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

    #[test]
    fn the_readers_get_the_key_and_the_nearest_fill_in() {
        let mut demand = Demand::new(5, 1000);
        demand.add(&Key::from("k"), ReplicaId(4), 3, 0);
        demand.add(&Key::from("k"), ReplicaId(1), 9, 0);
        let mut configs = Configs::new(5);
        let quorum = Quorum::new(Unlisted::Nearest);
        let change = quorum
            .propose(&KeyRange::all(), &situation(), &mut demand, &configs)
            .expect("a change");
        configs.apply(ConfigId(1), &change);
        assert_eq!(
            configs.holders(b"k"),
            set(&[1, 2, 4]),
            "IRL reads it; OR fills in"
        );
        assert_eq!(configs.holders(b"unread"), set(&[1, 2, 3]));
        assert_eq!(
            quorum.propose(&KeyRange::all(), &situation(), &mut demand, &configs),
            None,
            "settled"
        );
    }

    #[test]
    fn only_the_keys_that_change_are_listed() {
        let mut demand = Demand::new(5, 1000);
        demand.add(&Key::from("near"), ReplicaId(2), 3, 0);
        demand.add(&Key::from("far"), ReplicaId(0), 1, 0);
        let configs = Configs::new(5);
        let quorum = Quorum::new(Unlisted::Nearest);
        let change = quorum
            .propose(&KeyRange::all(), &situation(), &mut demand, &configs)
            .expect("a change");
        assert_eq!(change.keys, vec![(set(&[0, 1, 2]), vec![Key::from("far")])]);
    }

    #[test]
    fn the_paper_s_unlisted_keys_stay_with_the_leader() {
        let mut demand = Demand::new(5, 1000);
        let configs = Configs::new(5);
        let quorum = Quorum::new(Unlisted::Leader);
        let change = quorum
            .propose(&KeyRange::all(), &situation(), &mut demand, &configs)
            .expect("a change");
        assert_eq!(change.defaults, Some(set(&[1])));
    }
}
