//! Comparison of the measured mean latencies with the mean latencies that would be possible if the
//! workload's true rates were known.

use serde::Serialize;

use super::summary::{ExperimentSummary, RunSummary};
use super::table::{Table, ms, percent};
use super::{ExperimentReport, StrategyRun};
use crate::backend::RunPlan;
use crate::true_rates::{PlacementCost, PlacementModel};

/// Computed costs of a run under two choices of holders. Both choices require knowledge of the
/// workload's true rates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacementComparison {
    /// Cost of the holders that the strategy would choose if it knew the true rates.
    pub strategy: PlacementCost,
    /// Cost if every key had its best holders.
    pub optimum: PlacementCost,
    /// Whether the computed costs must be compared with the mean of the sites' measured means. This
    /// is necessary for a closed loop. If false, the computed costs must be compared with the
    /// measured mean over all operations.
    pub measured_by_site: bool,
}

impl PlacementComparison {
    pub(super) fn of(report: &ExperimentReport, run: &StrategyRun) -> Option<PlacementComparison> {
        // With several consecutive strategies, no figure describes the whole run.
        let strategy = report.plan(run).filter(|plan| plan.change.is_empty())?;
        let plan = RunPlan::new(&report.experiment, strategy);
        let client_ms = match report.backend.as_str() {
            // In this backend, clients are next to their replica.
            "local" => 0.0,
            _ => report.topology.local_rtt_ms(),
        };
        let rates = PlacementModel::new(&plan, client_ms)?;
        Some(PlacementComparison {
            strategy: rates.of_strategy(),
            optimum: rates.optimum(),
            measured_by_site: report.experiment.workload.rate.is_none(),
        })
    }

    /// Returns the measured mean latency, in ms, that is compared with the computed mean latencies.
    fn measured_ms(&self, run: &RunSummary) -> f64 {
        if self.measured_by_site {
            run.mean_by_site_ms
        } else {
            run.mean_ms
        }
    }
}

/// Returns a table with a line for each strategy: the measured mean, the mean that the strategy
/// could reach if the true rates were known, and the optimum.
pub(super) fn table(summary: &ExperimentSummary) -> Option<Table> {
    let columns = [
        "strategy",
        "measured",
        "its holders by true rates",
        "difference",
        "best holders by true rates",
        "measured above",
    ];
    let mut table = Table::new(title(summary)?, &columns);
    let above = |measured: f64, of: f64| format!("{:+.1}%", (measured / of - 1.0) * 100.0);
    for run in summary.runs.iter().filter(|run| run.ops > 0) {
        let Some(allowed) = &run.true_rates else {
            continue;
        };
        let measured = allowed.measured_ms(run);
        let (own, best) = (allowed.strategy.mean_ms, allowed.optimum.mean_ms);
        table.rows.push(vec![
            run.label.clone(),
            ms(measured),
            ms(own),
            above(measured, own),
            ms(best),
            above(measured, best),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn title(summary: &ExperimentSummary) -> Option<String> {
    let mut runs = summary.runs.iter();
    let by = if runs
        .find_map(|run| run.true_rates.as_ref())?
        .measured_by_site
    {
        "by site"
    } else {
        "by operation"
    };
    Some(format!(
        "Mean latency {by}, measured and as true rates allow, in ms"
    ))
}

/// Returns a table with the optimum at every site, for each distinct workload.
pub(super) fn optimum(report: &ExperimentReport, summary: &ExperimentSummary) -> Option<Table> {
    let mut columns = vec!["best holders by true rates"];
    columns.extend(report.topology.names());
    let mut table = Table::new("What the best holders would give each site", &columns);
    let mut shown: Vec<&PlacementCost> = Vec::new();
    for run in &summary.runs {
        let allowed = run.true_rates.as_ref().map(|allowed| &allowed.optimum);
        let Some(optimum) = allowed.filter(|optimum| !shown.contains(optimum)) else {
            continue;
        };
        shown.push(optimum);
        let of = match shown.len() {
            1 => String::new(),
            _ => format!("{}: ", run.label),
        };
        table.rows.extend(rows(&of, optimum));
    }
    (!table.rows.is_empty()).then_some(table)
}

fn rows(of: &str, optimum: &PlacementCost) -> [Vec<String>; 3] {
    let sites = &optimum.sites;
    let row = |what: &str, cells: Vec<String>| [vec![format!("{of}{what}")], cells].concat();
    let local = sites.iter().map(|site| percent(site.local_reads));
    let minimum = sites.iter().map(|site| percent(site.writes_at_minimum));
    [
        row("mean, ms", sites.iter().map(|s| ms(s.mean_ms)).collect()),
        row("local reads", local.collect()),
        row("writes at minimum", minimum.collect()),
    ]
}

/// Returns an explanation of the latencies that are computed from the true rates.
pub(super) fn prose(summary: &ExperimentSummary) -> Vec<String> {
    let mut runs = summary.runs.iter();
    let Some(allowed) = runs.find_map(|run| run.true_rates.as_ref()) else {
        return Vec::new();
    };
    let text = "True rates follow from the workload alone: how popular a key is at each site, and \
                how often the site asks. From them and from distances comes the mean latency of \
                the holders that a strategy would choose if it knew the rates, and of the best \
                holders of every key, among all sets that contain the leader. Waiting for a write \
                in flight and disks come on top, and so does learning: no run knows its rates \
                beforehand. A run may still be below its strategy's figure, where the holders of \
                keys that it does not know yet suit better.";
    let closed = "In a closed loop the rates of sites depend on the latencies that they get. Here \
                  every site counts the same, beside the measured mean by site. An open loop \
                  (--set rate=200) compares exactly.";
    let closed = allowed.measured_by_site.then_some(closed);
    let paragraphs = [Some(text), closed].into_iter().flatten();
    paragraphs.map(String::from).collect()
}
