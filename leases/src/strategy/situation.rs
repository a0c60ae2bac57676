//! Situation that a strategy goes by, besides demand.

use crate::latency::{Distance, Replies, RoundTrips};
use crate::membership::Membership;
use crate::types::{ReplicaId, ReplicaSet};

/// Facts that the leader knows when it asks a strategy.
#[derive(Clone, Debug)]
pub struct Situation {
    /// The leader.
    pub leader: ReplicaId,
    /// The other replicas, nearest to the leader first.
    pub nearest: Vec<ReplicaId>,
    /// Round trips between all replicas.
    pub rtts: RoundTrips,
    /// Recipients of the acceptors' replies.
    pub replies: Replies,
    /// Replicas that were not heard of lately: they are given no further keys.
    pub silent: ReplicaSet,
}

impl Situation {
    /// Led by `leader`, with these round trips.
    pub fn new(leader: ReplicaId, rtts: RoundTrips, replies: Replies) -> Situation {
        Situation {
            leader,
            nearest: rtts.nearest_to(leader),
            rtts,
            replies,
            silent: ReplicaSet::EMPTY,
        }
    }

    /// Every replica.
    pub fn members(&self) -> Membership {
        Membership::fixed(self.rtts.n())
    }

    /// Returns the cost of distance.
    pub fn distance(&self) -> Distance {
        Distance::new(self.rtts.clone(), self.leader)
    }

    /// The leader and the N/2 replicas nearest to it: a majority that writes
    /// wait for in any case.
    pub fn near_majority(&self) -> ReplicaSet {
        self.with_leader(self.nearest.iter().copied())
    }

    /// The leader and the first N/2 of `others`.
    pub(super) fn with_leader(&self, others: impl Iterator<Item = ReplicaId>) -> ReplicaSet {
        let places = self.members().grantors_needed();
        let holders: ReplicaSet = others.take(places).chain([self.leader]).collect();
        assert!(
            holders.is_subset(self.members().voters()),
            "holders are members"
        );
        holders
    }
}
