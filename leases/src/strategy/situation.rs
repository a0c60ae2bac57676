//! What a strategy is asked with, and what it answers.

use super::listing::Listing;
use crate::config::{Configs, KeyRange, Policy};
use crate::demand::Demand;
use crate::membership::Membership;
use crate::types::{ReplicaId, ReplicaSet};

/// What the leader knows when it asks a strategy.
#[derive(Clone, Debug)]
pub struct Situation {
    /// Who leads.
    pub leader: ReplicaId,
    /// Number of replicas.
    pub n: usize,
    /// The other replicas, nearest to the leader first.
    pub nearest: Vec<ReplicaId>,
}

impl Situation {
    /// Every replica.
    pub fn members(&self) -> Membership {
        Membership::fixed(self.n)
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

/// What a strategy is asked: who should hold the keys of one range?
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The keys. They have one policy in the newest configuration.
    pub range: &'a KeyRange,
    /// What the leader knows.
    pub situation: &'a Situation,
    /// The configurations known; the newest is to be changed.
    pub current: &'a Configs,
}

impl<'a> Question<'a> {
    /// What the newest configuration says of the range. Its strategy may be another one,
    /// which this one is to replace.
    pub fn policy(&self) -> &'a Policy {
        self.current.policies().get(self.range.from())
    }
}

/// What should change for a range as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proposal {
    /// Other holders of keys that are not listed.
    pub defaults: Option<ReplicaSet>,
    /// Whether keys that were listed before are listed no more.
    pub clear: bool,
}

/// A policy that chooses holders. It keeps nothing between two questions: what it
/// goes by is the situation, the demand, and the configuration in force.
pub trait Strategy {
    /// What the next configuration should change for the keys of the range that is asked
    /// about; nothing, if it is right as it is. Holders of single keys are added to `listing`
    /// until it is full. `demand` is drained of what was considered. Keys outside the range
    /// are not looked at.
    ///
    /// A strategy that lists keys changes the defaults only when no key is left to be listed:
    /// a replica that held a key under the strategy before, and is to hold it under this one,
    /// then holds it all the time.
    fn propose(&self, asked: &Question<'_>, demand: &mut Demand, listing: &mut Listing)
    -> Proposal;
}
