//! The facts, other than demand, on which a strategy bases its choices.

use crate::latency::{Distance, Replies, RoundTrips};
use crate::membership::Membership;
use crate::types::{ReplicaId, ReplicaSet};

/// Facts that the leader knows when it applies a strategy.
#[derive(Clone, Debug)]
pub struct Situation {
    /// The leader.
    pub leader: ReplicaId,
    /// The other replicas, nearest to the leader first.
    pub nearest: Vec<ReplicaId>,
    /// Round trips between all replicas.
    pub rtts: RoundTrips,
    /// Replicas to which acceptors send their replies.
    pub replies: Replies,
    /// Replicas from which no message arrived recently. These replicas do not become holders of
    /// further keys.
    pub silent: ReplicaSet,
}

impl Situation {
    /// Creates a situation under `leader`, with these round trips. In this situation all replicas
    /// respond.
    pub fn new(leader: ReplicaId, rtts: RoundTrips, replies: Replies) -> Situation {
        Situation {
            leader,
            nearest: rtts.nearest_to(leader),
            rtts,
            replies,
            silent: ReplicaSet::EMPTY,
        }
    }

    /// Returns the membership of all replicas.
    pub fn members(&self) -> Membership {
        Membership::fixed(self.rtts.n())
    }

    /// Returns the latencies that follow from distance.
    pub fn distance(&self) -> Distance {
        Distance::new(self.rtts.clone(), self.leader)
    }

    /// Returns the leader and the N/2 replicas nearest to the leader. Under every strategy, a write
    /// waits at least for these replicas.
    pub fn near_majority(&self) -> ReplicaSet {
        self.with_leader(self.nearest.iter().copied())
    }

    /// Returns the leader and the first N/2 of `others`.
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
