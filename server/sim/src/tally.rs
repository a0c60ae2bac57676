//! Sums over many runs, and the list of faults, paths and checks that never occurred in these runs.
//! If a fault never fired, or an oracle checked nothing, a campaign proves less than it claims.

use std::collections::BTreeMap;

use leasehold_kernel::campaign::Sums;
use leasehold_wire::Path;
use serde::{Deserialize, Serialize};

use super::fault::FaultKind;
use super::run::ScenarioOutcome;
use super::scenario::{Choices, Scenario};

/// Paths by which a request may be served. The runs together must use every path.
const PATHS: [Path; 5] = [
    Path::Local,
    Path::Held,
    Path::Forwarded,
    Path::ReadIndex,
    Path::Log,
];

/// Sums over all runs without a violation. The keys of the maps are the names that summaries show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CampaignTally {
    /// Number of runs.
    pub seeds: u64,
    /// Virtual time for which clusters ran, in ns.
    pub virtual_ns: u64,
    /// Virtual time during which clients began operations, in ns.
    pub asking_ns: u64,
    /// Number of operations that clients began.
    pub asked: u64,
    /// Number of operations that were answered.
    pub operations: u64,
    /// Number of operations with an unknown outcome.
    pub unknown: u64,
    /// Number of runs in which a checker could not judge the history, because too many operations
    /// overlap.
    pub undecided: u64,
    /// Number of local reads that were answered in the last 10 ms of their permits.
    pub near_end: u64,
    /// Longest time between the end of all faults and the answer to the last request, in ns.
    pub healing_max_ns: u64,
    /// Number of answered operations, by the path that served them.
    pub paths: BTreeMap<String, u64>,
    /// Number of times that each fault fired.
    pub faults: BTreeMap<String, u64>,
    /// Number of checks that each oracle made.
    pub oracles: BTreeMap<String, u64>,
    /// For each strategy, the number of runs that began with it.
    pub strategies: BTreeMap<String, u64>,
    /// Digest of every event of every run, independent of the order of runs.
    pub digest: u64,
}

impl CampaignTally {
    /// Creates the tally of one run.
    pub fn of(scenario: &Scenario, outcome: &ScenarioOutcome) -> CampaignTally {
        let named = |(name, count): (&str, u64)| (name.to_owned(), count);
        let fired = |fault: &FaultKind| (fault.name(), outcome.fired.of(*fault));
        let strategies = &scenario.world.replica.strategies;
        let names = strategies.names();
        let strategy = if names.contains(", ") {
            "several at once".to_owned()
        } else {
            names
        };
        CampaignTally {
            seeds: 1,
            virtual_ns: outcome.ended_ns,
            asking_ns: outcome.ended_ns.min(scenario.run_ns),
            asked: outcome.requested,
            operations: outcome.answered,
            unknown: outcome.unknown,
            undecided: u64::from(outcome.undecided),
            near_end: outcome.near_end,
            healing_max_ns: outcome.healing_ns,
            paths: outcome.paths.iter().map(|(p, c)| named((p, *c))).collect(),
            faults: FaultKind::ALL
                .iter()
                .map(|fault| named(fired(fault)))
                .collect(),
            oracles: outcome.checks.iter().copied().map(named).collect(),
            strategies: BTreeMap::from([(strategy, 1)]),
            digest: (outcome.hash ^ outcome.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// Returns the virtual time of all runs together, in cluster-hours.
    pub fn cluster_hours(&self) -> f64 {
        self.virtual_ns as f64 / 3.6e12
    }

    /// Returns the number of times that `fault` fired.
    pub fn fired(&self, fault: FaultKind) -> u64 {
        self.faults.get(fault.name()).copied().unwrap_or(0)
    }

    /// Returns messages about missing events. An event is missing if it did not occur, although it
    /// should occur in runs with these choices. Events are faults, paths and checks.
    pub fn missing(&self, choices: &Choices) -> Vec<String> {
        let enabled = FaultKind::ALL
            .iter()
            .filter(|fault| choices.enables(**fault));
        // Few hours may be too short for this fault.
        let is_expected =
            |fault: FaultKind| fault != FaultKind::Reused || self.cluster_hours() > 5.0;
        let enabled = enabled.filter(|fault| is_expected(**fault));
        let silent = enabled.filter(|fault| self.fired(**fault) == 0);
        let mut missing: Vec<String> = silent
            .map(|fault| format!("the fault \"{}\" never fired", fault.name()))
            .collect();
        let unused = PATHS
            .iter()
            .filter(|path| !self.paths.contains_key(path.as_str_name()));
        missing.extend(unused.map(|path| format!("nothing was served as {}", path.as_str_name())));
        // Without crashes, no replica waits after a restart, and every disk accepts writes.
        let excused = |name: &str| !choices.faults && matches!(name, "restart wait" | "unwritable");
        let idle = self.oracles.iter();
        let idle = idle.filter(|(name, checks)| **checks == 0 && !excused(name.as_str()));
        missing.extend(idle.map(|(name, _)| format!("the oracle {name} checked nothing")));
        if self.near_end == 0 {
            missing.push("no read came within 10 ms of a lease's end".to_owned());
        }
        missing
    }
}

impl Sums for CampaignTally {
    fn seeds(&self) -> u64 {
        self.seeds
    }

    fn virtual_ns(&self) -> u64 {
        self.virtual_ns
    }

    fn merge(&mut self, other: &CampaignTally) {
        self.seeds += other.seeds;
        self.virtual_ns += other.virtual_ns;
        self.asking_ns += other.asking_ns;
        self.asked += other.asked;
        self.operations += other.operations;
        self.unknown += other.unknown;
        self.undecided += other.undecided;
        self.near_end += other.near_end;
        self.healing_max_ns = self.healing_max_ns.max(other.healing_max_ns);
        add(&mut self.paths, &other.paths);
        add(&mut self.faults, &other.faults);
        add(&mut self.oracles, &other.oracles);
        add(&mut self.strategies, &other.strategies);
        self.digest = self.digest.wrapping_add(other.digest);
    }
}

fn add(sums: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    for (name, count) in more {
        match sums.get_mut(name) {
            Some(sum) => *sum += count,
            None => {
                sums.insert(name.clone(), *count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultCounts;

    fn outcome(seed: u64) -> ScenarioOutcome {
        let mut fired = FaultCounts::default();
        for fault in FaultKind::ALL {
            fired.add(fault, 1);
        }
        let paths = PATHS.iter().map(|path| (path.as_str_name(), 1));
        ScenarioOutcome {
            seed,
            ended_ns: 3_600_000_000_000,
            paths: paths.collect(),
            fired,
            checks: vec![("a", 1), ("b", 2)],
            near_end: 1,
            hash: 7,
            ..ScenarioOutcome::default()
        }
    }

    fn tally(outcome: &ScenarioOutcome) -> CampaignTally {
        CampaignTally::of(&Scenario::draw(0, &Choices::default()), outcome)
    }

    #[test]
    fn sums_do_not_depend_on_the_order() {
        let (one, other) = (tally(&outcome(1)), tally(&outcome(2)));
        let (mut first, mut second) = (one.clone(), other.clone());
        first.merge(&other);
        second.merge(&one);
        assert_eq!(first, second);
        assert_ne!(one.digest, other.digest);
        assert_eq!((first.seeds, first.cluster_hours()), (2, 2.0));
        assert_eq!(first.oracles["b"], 4);
    }

    #[test]
    fn what_never_happened_is_named() {
        let choices = Choices::default();
        assert_eq!(tally(&outcome(1)).missing(&choices), Vec::<String>::new());
        let mut poor = outcome(1);
        poor.fired = FaultCounts::default();
        poor.paths.remove("HELD");
        poor.checks[1].1 = 0;
        poor.near_end = 0;
        let missing = tally(&poor).missing(&choices).join("; ");
        for part in ["\"crash of all\"", "HELD", "oracle b", "within 10 ms"] {
            assert!(missing.contains(part), "{part} is not in {missing}");
        }
        // Faults that are disabled need not fire.
        let calm = Choices {
            faults: false,
            ..choices
        };
        let missing = tally(&poor).missing(&calm).join("; ");
        assert!(missing.contains("message lost") && !missing.contains("crash"));
    }
}
