//! Strategies by name, with their settings, as a configuration states them. What
//! each of them proposes is in `strategy/`.

use super::ranges::RangeMap;
use crate::types::ReplicaSet;

/// Holders of keys that nobody has read yet, under `quorum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum UnlistedHolders {
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
        /// Holders of keys that nobody has read yet.
        unlisted: UnlistedHolders,
    },
    /// The operator's choice.
    Fixed {
        /// Holders of every key. `None`: the leader and the N/2 replicas nearest to it, as with
        /// [`UnlistedHolders::Nearest`]; for keys that the operator's ranges leave out.
        holders: Option<ReplicaSet>,
    },
    /// Per key, the replicas that make its operations wait least (protocol §5).
    Cost(CostSettings),
}

/// Settings of `cost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CostSettings {
    /// Weight of reads against writes, in thousandths: at 500 both count the same.
    read_weight_pm: u16,
    /// At least so many replicas hold no lease on a key: these may fail, and no write to
    /// it waits for a lease to end.
    pub spare: u8,
    /// Whether what a site has asked rarely or not yet is estimated from all of its keys.
    /// Without it counts are taken for the future as they are; only to show what it adds.
    pub prior: bool,
}

impl CostSettings {
    /// With reads and writes weighed so: 0 to 1; `None` if it is not.
    pub fn new(read_weight: f64, spare: u8, prior: bool) -> Option<CostSettings> {
        let share = (0.0..=1.0).contains(&read_weight);
        share.then(|| CostSettings {
            read_weight_pm: (read_weight * 1000.0).round() as u16,
            spare,
            prior,
        })
    }

    /// As it was written by a peer, in thousandths; above 1000 is 1000.
    pub fn from_thousandths(read_weight: u32, spare: u8, prior: bool) -> CostSettings {
        CostSettings {
            read_weight_pm: read_weight.min(1000) as u16,
            spare,
            prior,
        }
    }

    /// Describes in words the settings that differ from the defaults.
    fn in_words(&self) -> String {
        let usual = CostSettings::default();
        let weight = format!("read weight {}", self.read_weight());
        let weight = (self.read_weight_pm != usual.read_weight_pm).then_some(weight);
        let spare = (self.spare != usual.spare).then(|| format!("spare {}", self.spare));
        let prior = (!self.prior).then(|| "counts only".to_owned());
        let parts: Vec<String> = [weight, spare, prior].into_iter().flatten().collect();
        parts.join(", ")
    }

    /// Weight of reads against writes, in thousandths.
    pub fn thousandths(&self) -> u32 {
        u32::from(self.read_weight_pm)
    }

    /// Weight of reads against writes, from 0 to 1: at 0.5 both count the same.
    pub fn read_weight(&self) -> f64 {
        f64::from(self.read_weight_pm) / 1000.0
    }
}

impl Default for CostSettings {
    fn default() -> CostSettings {
        CostSettings {
            read_weight_pm: 500,
            spare: 0,
            prior: true,
        }
    }
}

impl StrategySpec {
    /// The names that an operator may write.
    pub const NAMES: [&'static str; 6] = ["none", "leader", "all", "quorum", "fixed", "cost"];

    /// The strategy's name.
    pub fn name(&self) -> &'static str {
        match self {
            StrategySpec::None => "none",
            StrategySpec::Leader => "leader",
            StrategySpec::All => "all",
            StrategySpec::Quorum { .. } => "quorum",
            StrategySpec::Fixed { .. } => "fixed",
            StrategySpec::Cost(_) => "cost",
        }
    }

    /// Its settings in words; empty if it has none.
    pub fn settings(&self) -> String {
        match self {
            StrategySpec::Quorum { unlisted } => match unlisted {
                UnlistedHolders::Leader => "unlisted keys: the leader".to_owned(),
                UnlistedHolders::Nearest => String::new(),
            },
            StrategySpec::Cost(settings) => settings.in_words(),
            _ => String::new(),
        }
    }

    /// Whether the strategy lists keys by what is read and written.
    pub fn wants_demand(&self) -> bool {
        matches!(self, StrategySpec::Quorum { .. } | StrategySpec::Cost(_))
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
