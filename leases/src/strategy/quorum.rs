//! The paper's quorum leases (§3.4): each key is held by the leader and the
//! N/2 other replicas that have read it most.

use super::{Listing, Situation, Strategy, Unlisted};
use crate::config::{ConfigChange, Configs};
use crate::demand::{Counts, Demand};
use crate::types::{ReplicaId, ReplicaSet};

/// Keys considered for one configuration, and bytes of those it changes (give
/// or take one key): an entry of the configuration log stays far below a frame.
/// The rest follows in the next.
const KEYS_MAX: usize = 20_000;
const BYTES_MAX: usize = 1 << 20;

/// See the module.
pub(super) struct Quorum {
    unlisted: Unlisted,
    /// The leader for whom every key that was listed before has been looked at.
    enlisted: Option<ReplicaId>,
}

impl Quorum {
    pub(super) fn new(unlisted: Unlisted) -> Quorum {
        Quorum {
            unlisted,
            enlisted: None,
        }
    }

    /// Keys that an earlier leader listed without this one, who would not hold
    /// them until somebody read them again.
    fn enlist(&mut self, situation: &Situation, current: &Configs, listing: &mut Listing) {
        if self.enlisted == Some(situation.leader) {
            return;
        }
        for (key, held) in current.listed_without(situation.leader) {
            if full(listing) {
                return;
            }
            if !listing.contains(&key) {
                listing.add(keep(situation, held), key);
            }
        }
        self.enlisted = Some(situation.leader);
    }
}

impl Strategy for Quorum {
    fn propose(
        &mut self,
        situation: &Situation,
        demand: &mut Demand,
        current: &Configs,
    ) -> Option<ConfigChange> {
        let defaults = match self.unlisted {
            Unlisted::Leader => ReplicaSet::one(situation.leader),
            Unlisted::Nearest => situation.near_majority(),
        };
        let mut listing = Listing::default();
        for _ in 0..KEYS_MAX {
            if full(&listing) {
                break;
            }
            let Some((key, counts)) = demand.pop_touched() else {
                break;
            };
            let wanted = choose(situation, counts);
            let held = current.listed(&key).unwrap_or(defaults);
            if wanted != held {
                listing.add(wanted, key);
            }
        }
        self.enlist(situation, current, &mut listing);
        let change = ConfigChange {
            defaults: (current.defaults() != defaults).then_some(defaults),
            ranges: (!current.ranges().is_empty()).then(Vec::new),
            keys: listing.into_keys(),
            ..Default::default()
        };
        (change != ConfigChange::default()).then_some(change)
    }
}

fn full(listing: &Listing) -> bool {
    listing.bytes >= BYTES_MAX || listing.holders.len() >= KEYS_MAX
}

/// The leader and N/2 of those who held the key before, the nearest of them.
fn keep(situation: &Situation, held: ReplicaSet) -> ReplicaSet {
    let mut others: Vec<ReplicaId> = situation.nearest.clone();
    others.sort_by_key(|replica| !held.contains(*replica));
    with_leader(situation, others)
}

fn with_leader(situation: &Situation, others: Vec<ReplicaId>) -> ReplicaSet {
    let places = situation.n / 2;
    let others = others.into_iter().take(places);
    others.chain([situation.leader]).collect()
}

/// The leader and the N/2 others that read the key most; places that no reader
/// claims go to the replicas nearest to the leader, where they cost least.
fn choose(situation: &Situation, counts: &Counts) -> ReplicaSet {
    let mut others: Vec<ReplicaId> = situation.nearest.clone();
    // Stable: among equals, and among those that never read it, nearest first.
    others.sort_by_key(|replica| std::cmp::Reverse(counts.reads(*replica)));
    with_leader(situation, others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Key;
    use crate::types::ConfigId;

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
        let mut quorum = Quorum::new(Unlisted::Nearest);
        let change = quorum
            .propose(&situation(), &mut demand, &configs)
            .expect("a change");
        configs.apply(ConfigId(1), &change);
        assert_eq!(
            configs.holders(b"k"),
            set(&[1, 2, 4]),
            "IRL reads it; OR fills in"
        );
        assert_eq!(configs.holders(b"unread"), set(&[1, 2, 3]));
        assert_eq!(
            quorum.propose(&situation(), &mut demand, &configs),
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
        let mut quorum = Quorum::new(Unlisted::Nearest);
        let change = quorum
            .propose(&situation(), &mut demand, &configs)
            .expect("a change");
        assert_eq!(change.keys, vec![(set(&[0, 1, 2]), vec![Key::from("far")])]);
    }

    #[test]
    fn the_paper_s_unlisted_keys_stay_with_the_leader() {
        let mut demand = Demand::new(5, 1000);
        let configs = Configs::new(5);
        let mut quorum = Quorum::new(Unlisted::Leader);
        let change = quorum
            .propose(&situation(), &mut demand, &configs)
            .expect("a change");
        assert_eq!(change.defaults, Some(set(&[1])));
    }
}
