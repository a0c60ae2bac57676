//! Strategies in a form that chooses the holders of single keys.

use super::cost::{Cost, Tables};
use super::quorum::Quorum;
use crate::config::{Policy, StrategySpec};
use crate::demand::Row;
use crate::types::ReplicaSet;

/// New holders for a key, and the gain from this change. Two gains may be compared only if both
/// keys have the same strategy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HolderChange {
    pub(super) holders: ReplicaSet,
    pub(super) gain: f32,
}

/// Chooser of holders for one strategy in one situation.
#[derive(Clone, Debug)]
pub(super) enum HolderChooser {
    /// Every key of the range has the same holders.
    Same(ReplicaSet),
    /// The strategy `quorum`.
    Quorum(Quorum),
    /// The strategy `cost`.
    Cost(Box<Cost>),
}

impl HolderChooser {
    /// Creates the chooser for the strategy of `policy`. The holders in `policy` may come from an
    /// earlier strategy.
    pub(super) fn new(policy: &Policy, tables: &mut Tables<'_>) -> HolderChooser {
        let situation = tables.situation;
        match &policy.strategy {
            StrategySpec::None => HolderChooser::Same(ReplicaSet::EMPTY),
            StrategySpec::Leader => HolderChooser::Same(ReplicaSet::one(situation.leader)),
            StrategySpec::All => HolderChooser::Same(situation.members().voters()),
            StrategySpec::Fixed { holders } => HolderChooser::Same(match holders {
                Some(holders) => holders.intersection(situation.members().voters()),
                None => situation.near_majority(),
            }),
            StrategySpec::Quorum { unlisted } => {
                HolderChooser::Quorum(Quorum::new(*unlisted, situation.clone()))
            }
            StrategySpec::Cost(settings) => {
                let cost = Cost::new(*settings, tables, policy.defaults);
                HolderChooser::Cost(Box::new(cost))
            }
        }
    }

    /// Returns the holders of keys that are not listed.
    pub(super) fn defaults(&self) -> ReplicaSet {
        match self {
            HolderChooser::Same(holders) => *holders,
            HolderChooser::Quorum(quorum) => quorum.defaults(),
            HolderChooser::Cost(cost) => cost.defaults(),
        }
    }

    /// Whether single keys may have holders of their own.
    pub(super) fn lists(&self) -> bool {
        !matches!(self, HolderChooser::Same(_))
    }

    /// Returns the change of holders for a key with the counts `row`; `None` if the key should keep
    /// its `current_holders`.
    #[inline]
    pub(super) fn choose(&self, row: Row<'_>, current_holders: ReplicaSet) -> Option<HolderChange> {
        match self {
            HolderChooser::Same(_) => None,
            HolderChooser::Quorum(quorum) => quorum.choose(row, current_holders),
            HolderChooser::Cost(cost) => cost.choose(row, current_holders),
        }
    }

    /// Returns the new holders of a key that no client requests now. `current_holders` are the
    /// present holders of the key. They must not include the leader.
    pub(super) fn keep(&self, current_holders: ReplicaSet) -> ReplicaSet {
        match self {
            HolderChooser::Same(holders) => *holders,
            HolderChooser::Quorum(quorum) => quorum.keep(current_holders),
            HolderChooser::Cost(cost) => cost.keep(current_holders),
        }
    }
}
