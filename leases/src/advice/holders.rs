//! Holders that a strategy would choose for a demand.

use std::cmp::Reverse;

use super::{Conditions, KeyGroup};
use crate::config::UnlistedHolders;
use crate::membership::majority;
use crate::strategy::Costs;
use crate::types::{ReplicaId, ReplicaSet};

/// Rule by which holders are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HolderPlan {
    /// No replica holds any key.
    None,
    /// The leader holds every key.
    Leader,
    /// Every replica holds every key.
    All,
    /// Each key is held by the leader and by the N/2 other replicas that read the key most.
    Quorum,
    /// Each key is held by the set of replicas with the lowest cost.
    Cost,
    /// Holders do not change. This plan is for ranges in which the operator chose the holders.
    AsNow,
}

impl HolderPlan {
    /// Plans that work for any cluster.
    pub const STRATEGIES: [HolderPlan; 5] = [
        HolderPlan::None,
        HolderPlan::Leader,
        HolderPlan::All,
        HolderPlan::Quorum,
        HolderPlan::Cost,
    ];

    /// Returns the name of the plan's strategy.
    pub fn name(self) -> &'static str {
        match self {
            HolderPlan::None => "none",
            HolderPlan::Leader => "leader",
            HolderPlan::All => "all",
            HolderPlan::Quorum => "quorum",
            HolderPlan::Cost => "cost",
            HolderPlan::AsNow => "as now",
        }
    }

    /// Returns the plan for the strategy `name`; `None` if the strategy needs settings in addition
    /// to its name.
    pub fn of_strategy(name: &str) -> Option<HolderPlan> {
        HolderPlan::STRATEGIES
            .into_iter()
            .find(|plan| plan.name() == name)
    }
}

/// Chooses holders by the rule of a plan.
pub(super) struct PlanChooser {
    plan: HolderPlan,
    leader: ReplicaId,
    n: usize,
    /// All replicas except the leader, the nearest to the leader first.
    nearest: Vec<ReplicaId>,
    unlisted: UnlistedHolders,
    costs: Costs,
}

impl PlanChooser {
    pub(super) fn new(
        plan: HolderPlan,
        conditions: &Conditions,
        leader: ReplicaId,
        costs: Costs,
    ) -> PlanChooser {
        PlanChooser {
            plan,
            leader,
            n: conditions.rtts.n(),
            nearest: conditions.rtts.nearest_to(leader),
            unlisted: conditions.unlisted,
            costs,
        }
    }

    /// Returns the holders of a key that was requested.
    pub(super) fn choose(&mut self, group: &KeyGroup) -> ReplicaSet {
        let read = group.reads.iter().any(|reads| *reads > 0.0);
        match self.plan {
            HolderPlan::Quorum if read => {
                let mut others = self.nearest.clone();
                // The sort is stable: replicas with equal reads stay in order of distance.
                others.sort_by_key(|other| Reverse(ordered(group.reads[other.index()])));
                self.with_leader(&others)
            }
            _ => self.choose_unrequested(group),
        }
    }

    /// Returns the holders of a key that no client has read.
    pub(super) fn choose_unrequested(&mut self, group: &KeyGroup) -> ReplicaSet {
        let alone = ReplicaSet::one(self.leader);
        match (self.plan, self.unlisted) {
            (HolderPlan::None, _) => ReplicaSet::EMPTY,
            (HolderPlan::All, _) => ReplicaSet::all(self.n),
            (HolderPlan::Quorum, UnlistedHolders::Nearest) => self.with_leader(&self.nearest),
            (HolderPlan::Leader, _) | (HolderPlan::Quorum, UnlistedHolders::Leader) => alone,
            (HolderPlan::Cost, _) => self.costs.best(&group.rates).holders,
            (HolderPlan::AsNow, _) => group.holders,
        }
    }

    fn with_leader(&self, others: &[ReplicaId]) -> ReplicaSet {
        let places = majority(self.n) - 1;
        let first = others.iter().take(places).copied();
        first.chain([self.leader]).collect()
    }
}

/// Converts a non-negative count to an integer. A greater count results in a greater integer.
fn ordered(count: f32) -> u32 {
    count.to_bits()
}
