//! Who should hold what: policies behind one small trait.
//!
//! A strategy decides nothing about safety. It looks at the situation and at
//! the demand the leader has counted, and says what the next configuration
//! should change; the promises, tags and barriers are the same for all.

mod fixed;
mod quorum;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::config::{ConfigChange, Configs, Key, KeyRange};
use crate::demand::Demand;
use crate::types::{ReplicaId, ReplicaSet};

/// Holders of keys that nobody has read yet, under `quorum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Unlisted {
    /// The leader alone, as in the paper.
    Leader,
    /// The leader and the N/2 replicas nearest to it: costs its writes nothing.
    #[default]
    Nearest,
}

/// A strategy by name, with its settings, as agreed in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StrategySpec {
    /// Nobody holds anything: every read is confirmed by a majority.
    None,
    /// The leader holds every key.
    Leader,
    /// Every replica holds every key (Megastore).
    All,
    /// Per key, the leader and the N/2 others that read it most (the paper).
    Quorum {
        /// Who holds keys that nobody has read yet.
        unlisted: Unlisted,
    },
    /// Key ranges written by the operator; keys before the first range have
    /// the holders of the nearest replicas, as with [`Unlisted::Nearest`].
    Fixed {
        /// The ranges.
        ranges: Vec<KeyRange>,
    },
}

impl StrategySpec {
    /// The names an operator may write.
    pub const NAMES: [&'static str; 5] = ["none", "leader", "all", "quorum", "fixed"];

    /// The strategy's name.
    pub fn name(&self) -> &'static str {
        match self {
            StrategySpec::None => "none",
            StrategySpec::Leader => "leader",
            StrategySpec::All => "all",
            StrategySpec::Quorum { .. } => "quorum",
            StrategySpec::Fixed { .. } => "fixed",
        }
    }

    /// Whether the strategy looks at what is read and written.
    pub fn wants_demand(&self) -> bool {
        matches!(self, StrategySpec::Quorum { .. })
    }

    /// The policy itself.
    pub fn build(&self) -> Box<dyn Strategy> {
        match self {
            StrategySpec::None => Box::new(fixed::Defaults(|_| ReplicaSet::EMPTY)),
            StrategySpec::Leader => Box::new(fixed::Defaults(|s| ReplicaSet::one(s.leader))),
            StrategySpec::All => Box::new(fixed::Defaults(|s| ReplicaSet::all(s.n))),
            StrategySpec::Quorum { unlisted } => Box::new(quorum::Quorum::new(*unlisted)),
            StrategySpec::Fixed { ranges } => Box::new(fixed::Ranges::new(ranges.clone())),
        }
    }
}

/// What the leader knows when it asks a strategy.
#[derive(Clone, Debug)]
pub struct Situation {
    /// Who leads.
    pub leader: ReplicaId,
    /// How many replicas there are.
    pub n: usize,
    /// The other replicas, nearest to the leader first.
    pub nearest: Vec<ReplicaId>,
}

impl Situation {
    /// The leader and the N/2 replicas nearest to it: a majority that writes
    /// wait for in any case.
    pub fn near_majority(&self) -> ReplicaSet {
        let near = self.nearest.iter().take(self.n / 2).copied();
        near.chain([self.leader]).collect()
    }
}

/// A policy that chooses holders. A leader builds its own when it takes office.
pub trait Strategy: Send {
    /// What the next configuration should change, given the newest one; `None`
    /// if it is right as it is. `demand` is drained of what was considered.
    fn propose(
        &mut self,
        situation: &Situation,
        demand: &mut Demand,
        current: &Configs,
    ) -> Option<ConfigChange>;
}

/// Gathers single-key changes.
#[derive(Default)]
struct Listing {
    holders: BTreeMap<Key, ReplicaSet>,
    /// Of the keys, together.
    bytes: usize,
}

impl Listing {
    fn add(&mut self, holders: ReplicaSet, key: Key) {
        self.bytes += key.len();
        self.holders.insert(key, holders);
    }

    fn contains(&self, key: &Key) -> bool {
        self.holders.contains_key(key)
    }

    /// The keys, grouped by quorum.
    fn into_keys(self) -> Vec<(ReplicaSet, Vec<Key>)> {
        let mut quorums: BTreeMap<ReplicaSet, Vec<Key>> = BTreeMap::new();
        for (key, holders) in self.holders {
            quorums.entry(holders).or_default().push(key);
        }
        quorums.into_iter().collect()
    }
}
