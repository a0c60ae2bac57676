//! The strategies of a configuration, ready to be asked about single keys.

use super::cost::{Cost, Tables};
use super::quorum::Quorum;
use crate::config::{Policy, StrategySpec};
use crate::demand::Row;
use crate::types::ReplicaSet;

/// Other holders for a key, and what is gained by them. Gains of keys under one strategy
/// compare with each other, and with nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wish {
    pub(super) holders: ReplicaSet,
    pub(super) gain: f32,
}

/// A strategy in one situation.
#[derive(Clone, Debug)]
pub(super) enum Chooser {
    /// The same holders for every key of the range.
    Same(ReplicaSet),
    /// See `quorum.rs`.
    Quorum(Quorum),
    /// See `cost.rs`.
    Cost(Box<Cost>),
}

impl Chooser {
    /// The strategy of `policy`, which may be new there.
    pub(super) fn new(policy: &Policy, tables: &mut Tables<'_>) -> Chooser {
        let situation = tables.situation;
        match &policy.strategy {
            StrategySpec::None => Chooser::Same(ReplicaSet::EMPTY),
            StrategySpec::Leader => Chooser::Same(ReplicaSet::one(situation.leader)),
            StrategySpec::All => Chooser::Same(situation.members().voters()),
            StrategySpec::Fixed { holders } => Chooser::Same(match holders {
                Some(holders) => holders.intersection(situation.members().voters()),
                None => situation.near_majority(),
            }),
            StrategySpec::Quorum { unlisted } => {
                Chooser::Quorum(Quorum::new(*unlisted, situation.clone()))
            }
            StrategySpec::Cost(settings) => {
                let cost = Cost::new(*settings, tables, policy.defaults);
                Chooser::Cost(Box::new(cost))
            }
        }
    }

    /// Holders of keys that are not listed.
    pub(super) fn defaults(&self) -> ReplicaSet {
        match self {
            Chooser::Same(holders) => *holders,
            Chooser::Quorum(quorum) => quorum.defaults(),
            Chooser::Cost(cost) => cost.defaults(),
        }
    }

    /// Whether single keys have holders of their own.
    pub(super) fn lists(&self) -> bool {
        !matches!(self, Chooser::Same(_))
    }

    /// Returns the holders that a key with these counts should have, if not `held`.
    #[inline]
    pub(super) fn choose(&self, row: Row<'_>, held: ReplicaSet) -> Option<Wish> {
        match self {
            Chooser::Same(_) => None,
            Chooser::Quorum(quorum) => quorum.choose(row, held),
            Chooser::Cost(cost) => cost.choose(row, held),
        }
    }

    /// Returns the holders that a key should have if nobody asks it now and `held` hold it
    /// without the leader.
    pub(super) fn keep(&self, held: ReplicaSet) -> ReplicaSet {
        match self {
            Chooser::Same(holders) => *holders,
            Chooser::Quorum(quorum) => quorum.keep(held),
            Chooser::Cost(cost) => cost.keep(held),
        }
    }
}
