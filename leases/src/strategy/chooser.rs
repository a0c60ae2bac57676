//! The strategies of a configuration, ready to be asked about single keys.

use super::cost::{Cost, Tables};
use super::quorum::Quorum;
use crate::config::{Policy, StrategySpec};
use crate::demand::Row;
use crate::types::ReplicaSet;

/// Other holders for a key, and what is gained by them. Gains of keys under one strategy
/// compare with each other, and with nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HolderChange {
    pub(super) holders: ReplicaSet,
    pub(super) gain: f32,
}

/// A strategy in one situation.
#[derive(Clone, Debug)]
pub(super) enum HolderChooser {
    /// The same holders for every key of the range.
    Same(ReplicaSet),
    /// See `quorum.rs`.
    Quorum(Quorum),
    /// See `cost.rs`.
    Cost(Box<Cost>),
}

impl HolderChooser {
    /// The strategy of `policy`, which may be new there.
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

    /// Holders of keys that are not listed.
    pub(super) fn defaults(&self) -> ReplicaSet {
        match self {
            HolderChooser::Same(holders) => *holders,
            HolderChooser::Quorum(quorum) => quorum.defaults(),
            HolderChooser::Cost(cost) => cost.defaults(),
        }
    }

    /// Whether single keys have holders of their own.
    pub(super) fn lists(&self) -> bool {
        !matches!(self, HolderChooser::Same(_))
    }

    /// Returns the holders that a key with these counts should have, if not `current_holders`.
    #[inline]
    pub(super) fn choose(&self, row: Row<'_>, current_holders: ReplicaSet) -> Option<HolderChange> {
        match self {
            HolderChooser::Same(_) => None,
            HolderChooser::Quorum(quorum) => quorum.choose(row, current_holders),
            HolderChooser::Cost(cost) => cost.choose(row, current_holders),
        }
    }

    /// Returns the holders that a key should have if nobody asks it now and `current_holders` hold it
    /// without the leader.
    pub(super) fn keep(&self, current_holders: ReplicaSet) -> ReplicaSet {
        match self {
            HolderChooser::Same(holders) => *holders,
            HolderChooser::Quorum(quorum) => quorum.keep(current_holders),
            HolderChooser::Cost(cost) => cost.keep(current_holders),
        }
    }
}
