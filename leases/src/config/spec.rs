//! Strategies by name, with their settings, as a configuration states them. What
//! each of them proposes is in `strategy/`.

use super::ranges::RangeMap;
use crate::types::ReplicaSet;

/// Holders of keys that nobody has read yet, under `quorum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Unlisted {
    /// The leader alone, as in the paper.
    Leader,
    /// The leader and the N/2 replicas nearest to it: costs its writes nothing.
    #[default]
    Nearest,
}

/// A strategy by name, with its settings.
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
    /// The operator's choice.
    Fixed {
        /// Who holds every key. `None`: the leader and the N/2 replicas nearest to it, as
        /// with [`Unlisted::Nearest`]; for keys that the operator's ranges leave out.
        holders: Option<ReplicaSet>,
    },
}

impl StrategySpec {
    /// The names that an operator may write.
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

    /// Its settings in words; empty if it has none.
    pub fn settings(&self) -> String {
        match self {
            StrategySpec::Quorum { unlisted } => match unlisted {
                Unlisted::Leader => "unlisted keys: the leader".to_owned(),
                Unlisted::Nearest => String::new(),
            },
            _ => String::new(),
        }
    }

    /// Whether the strategy looks at what is read and written.
    pub fn wants_demand(&self) -> bool {
        matches!(self, StrategySpec::Quorum { .. })
    }
}

impl RangeMap<StrategySpec> {
    /// The names of the strategies, each once, in the order of their first ranges.
    pub fn names(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for (_, strategy) in self.iter() {
            if !names.contains(&strategy.name()) {
                names.push(strategy.name());
            }
        }
        names.join(", ")
    }
}

impl From<StrategySpec> for RangeMap<StrategySpec> {
    fn from(strategy: StrategySpec) -> Self {
        RangeMap::uniform(strategy)
    }
}
