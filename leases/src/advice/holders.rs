//! Holders that a strategy would choose.

use std::cmp::Reverse;

use super::{Asked, Conditions};
use crate::config::Unlisted;
use crate::membership::majority;
use crate::strategy::Costs;
use crate::types::{ReplicaId, ReplicaSet};

/// Rule by which holders are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plan {
    /// Nobody holds anything.
    None,
    /// The leader holds every key.
    Leader,
    /// Every replica holds every key.
    All,
    /// The leader and the N/2 others that read a key most.
    Quorum,
    /// The holders that cost a key least.
    Cost,
    /// Holders stay as they are: of ranges that the operator wrote.
    AsNow,
}

impl Plan {
    /// Those that can be chosen for any cluster.
    pub const STRATEGIES: [Plan; 5] = [
        Plan::None,
        Plan::Leader,
        Plan::All,
        Plan::Quorum,
        Plan::Cost,
    ];

    /// The name of its strategy.
    pub fn name(self) -> &'static str {
        match self {
            Plan::None => "none",
            Plan::Leader => "leader",
            Plan::All => "all",
            Plan::Quorum => "quorum",
            Plan::Cost => "cost",
            Plan::AsNow => "as now",
        }
    }

    /// The plan that follows a strategy; `None`: it needs more than its name.
    pub fn of_strategy(name: &str) -> Option<Plan> {
        Plan::STRATEGIES
            .into_iter()
            .find(|plan| plan.name() == name)
    }
}

/// Chooses holders as a plan's strategy does.
pub(super) struct Chooser {
    plan: Plan,
    leader: ReplicaId,
    n: usize,
    /// The others, nearest to the leader first.
    nearest: Vec<ReplicaId>,
    unlisted: Unlisted,
    costs: Costs,
}

impl Chooser {
    pub(super) fn new(
        plan: Plan,
        conditions: &Conditions,
        leader: ReplicaId,
        costs: Costs,
    ) -> Chooser {
        Chooser {
            plan,
            leader,
            n: conditions.rtts.n(),
            nearest: conditions.rtts.nearest_to(leader),
            unlisted: conditions.unlisted,
            costs,
        }
    }

    /// Returns the holders of a key that was asked.
    pub(super) fn asked(&mut self, asked: &Asked) -> ReplicaSet {
        let read = asked.reads.iter().any(|reads| *reads > 0.0);
        match self.plan {
            Plan::Quorum if read => {
                let mut others = self.nearest.clone();
                // Stable: among equals nearest first.
                others.sort_by_key(|other| Reverse(ordered(asked.reads[other.index()])));
                self.with_leader(&others)
            }
            _ => self.unasked(asked),
        }
    }

    /// Returns the holders of a key that nobody has read.
    pub(super) fn unasked(&mut self, asked: &Asked) -> ReplicaSet {
        let alone = ReplicaSet::one(self.leader);
        match (self.plan, self.unlisted) {
            (Plan::None, _) => ReplicaSet::EMPTY,
            (Plan::All, _) => ReplicaSet::all(self.n),
            (Plan::Quorum, Unlisted::Nearest) => self.with_leader(&self.nearest),
            (Plan::Leader, _) | (Plan::Quorum, Unlisted::Leader) => alone,
            (Plan::Cost, _) => self.costs.best(&asked.rates).holders,
            (Plan::AsNow, _) => asked.holders,
        }
    }

    fn with_leader(&self, others: &[ReplicaId]) -> ReplicaSet {
        let places = majority(self.n) - 1;
        let first = others.iter().take(places).copied();
        first.chain([self.leader]).collect()
    }
}

/// A count that can be ordered: counts are not negative.
fn ordered(count: f32) -> u32 {
    count.to_bits()
}
