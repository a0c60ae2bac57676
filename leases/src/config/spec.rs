//! Strategies by name, with their settings, as they are stored in a configuration. The rules by
//! which they choose holders are in `strategy/`.

use super::ranges::RangeMap;
use crate::types::ReplicaSet;

/// Holders of keys that no client has read yet, under the strategy `quorum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum UnlistedHolders {
    /// Only the leader, as in the paper.
    Leader,
    /// The leader and the N/2 replicas nearest to the leader. Leases of these replicas do not slow
    /// the leader's writes.
    #[default]
    Nearest,
}

/// A strategy, with its settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StrategySpec {
    /// No replica holds any key: every read is confirmed by a majority.
    None,
    /// The leader holds every key.
    Leader,
    /// Every replica holds every key (Megastore).
    All,
    /// Each key is held by the leader and by the N/2 other replicas that read the key most (the
    /// paper).
    Quorum {
        /// Holders of keys that no client has read yet.
        unlisted: UnlistedHolders,
    },
    /// The operator chooses the holders.
    Fixed {
        /// Holders of every key. `None` means the leader and the N/2 replicas nearest to the
        /// leader, as with [`UnlistedHolders::Nearest`]. The field is also `None` for keys outside
        /// all ranges of the operator.
        holders: Option<ReplicaSet>,
    },
    /// Each key is held by the replicas that minimize the waiting time of operations on the key
    /// (protocol §5).
    Cost(CostSettings),
}

/// Settings of the strategy `cost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CostSettings {
    /// Weight of reads relative to writes, in thousandths: at 500, reads and writes have the same
    /// weight.
    read_weight_pm: u16,
    /// Minimum number of replicas that hold no lease on a key. If only replicas without a lease on
    /// a key fail, a write to the key need not wait for a lease to end.
    pub spare: u8,
    /// Whether demand is estimated for keys that a site requests rarely or never. The estimate uses
    /// the site's demand for all keys. If false, future demand is assumed to equal the counts so
    /// far. False is only useful for showing the benefit of the estimate.
    pub prior: bool,
}

impl CostSettings {
    /// Creates settings; `None` if `read_weight` is not from 0 to 1.
    pub fn new(read_weight: f64, spare: u8, prior: bool) -> Option<CostSettings> {
        let share = (0.0..=1.0).contains(&read_weight);
        share.then(|| CostSettings {
            read_weight_pm: (read_weight * 1000.0).round() as u16,
            spare,
            prior,
        })
    }

    /// Creates settings from the numbers in a peer's message. `read_weight` is in thousandths. A
    /// weight above 1000 is replaced by 1000.
    pub fn from_thousandths(read_weight: u32, spare: u8, prior: bool) -> CostSettings {
        CostSettings {
            read_weight_pm: read_weight.min(1000) as u16,
            spare,
            prior,
        }
    }

    /// Returns a description of the settings that differ from the defaults.
    fn in_words(&self) -> String {
        let usual = CostSettings::default();
        let weight = format!("read weight {}", self.read_weight());
        let weight = (self.read_weight_pm != usual.read_weight_pm).then_some(weight);
        let spare = (self.spare != usual.spare).then(|| format!("spare {}", self.spare));
        let prior = (!self.prior).then(|| "counts only".to_owned());
        let parts: Vec<String> = [weight, spare, prior].into_iter().flatten().collect();
        parts.join(", ")
    }

    /// Returns the weight of reads relative to writes, in thousandths.
    pub fn thousandths(&self) -> u32 {
        u32::from(self.read_weight_pm)
    }

    /// Returns the weight of reads relative to writes, from 0 to 1: at 0.5, reads and writes have
    /// the same weight.
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
    /// Names of the strategies, as an operator writes them.
    pub const NAMES: [&'static str; 6] = ["none", "leader", "all", "quorum", "fixed", "cost"];

    /// Returns the strategy's name.
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

    /// Describes the strategy's settings in words. The text is empty if the strategy has no
    /// settings.
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

    /// Whether the strategy chooses holders of single keys by the demand for them. If true, reads
    /// and writes must be counted.
    pub fn wants_demand(&self) -> bool {
        matches!(self, StrategySpec::Quorum { .. } | StrategySpec::Cost(_))
    }
}

impl RangeMap<StrategySpec> {
    /// Returns the names of the strategies in the map. Each name appears once, in the order of
    /// first occurrence.
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
