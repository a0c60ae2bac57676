//! What a strategy is asked with, and what it answers.

use crate::config::{ConfigChange, Configs, KeyRange};
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

/// A policy that chooses holders. It keeps nothing between two questions: what it
/// goes by is the situation, the demand, and the configuration in force.
pub trait Strategy {
    /// What the next configuration should change for the keys of `range`, given the
    /// newest one; `None` if it is right as it is. `demand` is drained of what was
    /// considered. Keys outside `range` are not looked at.
    ///
    /// # Panics
    /// Today, if `range` is not every key: the `defaults`, `ranges` and `clear` of a
    /// [`ConfigChange`] are about all keys.
    fn propose(
        &self,
        range: &KeyRange,
        situation: &Situation,
        demand: &mut Demand,
        current: &Configs,
    ) -> Option<ConfigChange>;
}

/// Asserts what [`Strategy::propose`] says of `range`.
pub(super) fn assert_whole(range: &KeyRange) {
    assert!(range.is_all(), "a change of defaults is about every key");
}
