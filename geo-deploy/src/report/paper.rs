//! Values that the paper reports, for runs that repeat one of the paper's experiments.

use super::{ExperimentReport, StrategyRun};
use crate::topology::Topology;

/// Table 2 of the paper: the share of reads faster than 10 ms at each site, in percent.
const TABLE_2: [(&str, f64); 5] = [
    ("JP", 81.0),
    ("CA", 95.0),
    ("OR", 89.0),
    ("VA", 89.0),
    ("IRL", 81.0),
];

/// §5.2: "over 80% of reads at every site are performed locally".
const LOCAL_READS: f64 = 80.0;

/// §5.2: "over 70% of updates have the minimum latency".
const WRITES_AT_MINIMUM: f64 = 70.0;

/// Returns the paper's value for the share of fast reads at a site, in percent; `None` if the run
/// does not repeat the paper's experiment.
pub(super) fn local_reads(report: &ExperimentReport, run: &StrategyRun, site: &str) -> Option<f64> {
    match repeated(report, run)? {
        "table2" => TABLE_2
            .iter()
            .find(|(name, _)| *name == site)
            .map(|(_, percent)| *percent),
        _ => Some(LOCAL_READS),
    }
}

/// Returns the paper's value for the share of writes at their minimum latency, over all sites, in
/// percent; `None` if the run does not repeat the paper's experiment.
pub(super) fn writes_at_minimum(report: &ExperimentReport, run: &StrategyRun) -> Option<f64> {
    (repeated(report, run)? == "fig6").then_some(WRITES_AT_MINIMUM)
}

/// Returns the name of the paper's experiment that a run repeats; `None` if the run repeats none. A
/// run repeats an experiment only if it uses quorum leases, and the same topology, leader and
/// workload as the paper.
fn repeated<'a>(report: &'a ExperimentReport, run: &StrategyRun) -> Option<&'a str> {
    let experiment = &report.experiment;
    let reads = match experiment.name.as_str() {
        "fig6" => 0.5,
        "table2" => 0.9,
        _ => return None,
    };
    let same = run.strategy == "quorum"
        && report.topology == Topology::paper()
        && experiment.leader == "CA"
        && experiment.workload.reads == reads
        && experiment.workload.keys == 100_000;
    same.then_some(experiment.name.as_str())
}
