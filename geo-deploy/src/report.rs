//! The files of a run. Every backend writes the same files, so that results can be compared.
//!
//! Everything is computed from samples. Latencies are shown next to the bounds that follow from
//! distances ([`crate::run::bound`]). Shares of local reads are shown next to the shares under
//! perfect bookkeeping ([`crate::run::bookkeeping`]). If the paper reports a value, that value is
//! shown too.

mod digest;
mod figures;
mod files;
mod logs;
mod manifest;
mod operation_cost;
mod outage;
mod ownership;
mod page;
mod paper;
mod placement;
mod prose;
mod render;
mod replace;
mod summary;
mod svg;
mod switches;
mod table;
mod tables;
mod throughput;
mod time_series;
mod tolerance;

use std::path::Path;

use anyhow::Context;

use crate::experiment::{Experiment, StrategyPlan};
use crate::run::bound::Bounds;
use crate::run::{FaultSpan, HistoryVerdict, MeasuredInterval, OutageBound, RunEvent, StrategyRun};
use crate::topology::Topology;

pub use logs::{NamedLogs, plot};
pub use manifest::Manifest;
pub use operation_cost::OperationCost;
pub use outage::Outage;
pub use ownership::{OwnershipSpan, OwnershipState, OwnershipTimeline};
pub use placement::PlacementComparison;
pub use replace::{INCOMPLETE, prepare, replace};
pub use summary::{
    AllSummary, ExperimentSummary, ReadSummary, RunSummary, SiteSummary, WriteSummary,
};
pub use switches::PartSummary;
pub use throughput::ThroughputReport;
pub use time_series::Adaptation;

/// A report, with sorted samples and the measurements that were computed from the samples.
pub struct DigestedReport<'a> {
    report: &'a ExperimentReport,
    digests: Vec<digest::Digest>,
    summary: ExperimentSummary,
}

impl DigestedReport<'_> {
    /// Returns the measurements that were computed for all runs.
    pub fn summary(&self) -> &ExperimentSummary {
        &self.summary
    }

    /// Returns the text for a terminal: one table for each strategy, and the results of the checks.
    pub fn terminal(&self) -> String {
        let (report, summary) = (self.report, &self.summary);
        let mut text = String::new();
        for table in tables::per_run(report, summary) {
            text.push_str(&table.text());
            text.push('\n');
        }
        text.push_str(&tables::overview(report, summary).text());
        for warning in prose::warnings(report, summary) {
            text.push_str(&format!("WARNING: {warning}\n"));
        }
        text
    }

    /// Writes every file of the run into `dir`, which is created if necessary.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written; the error names the file.
    pub fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let (report, digests, summary) = (self.report, &self.digests, &self.summary);
        let plots = dir.join("plots");
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let put = |name: &str, bytes: &[u8]| {
            let path = dir.join(name);
            std::fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))
        };
        put("manifest.json", &manifest::json(report)?)?;
        put("summary.json", &serde_json::to_vec_pretty(summary)?)?;
        put("cdf.csv", files::cdf_csv(report, digests).as_bytes())?;
        put("events.jsonl", files::events_jsonl(report)?.as_bytes())?;
        if report.has_faults() {
            put("timeline.csv", files::timeline_csv(report).as_bytes())?;
            put("outages.csv", files::outages_csv(summary).as_bytes())?;
        }
        if time_series::is_shown(report) {
            put("course.csv", time_series::csv(report).as_bytes())?;
        }
        files::latency_hlog(report, &dir.join("latency.hlog"))?;
        render::write(&figures::all(report, digests, summary), &plots)?;
        put("report.md", page::markdown(report, summary).as_bytes())?;
        let html = page::html(report, digests, summary);
        put("report.html", html.as_bytes())
    }
}

/// Results of all strategies of one experiment.
#[derive(Clone, Debug)]
pub struct ExperimentReport {
    /// The experiment after defaults and overrides were applied.
    pub experiment: Experiment,
    /// Requested topology. The measured round trips may differ.
    pub topology: Topology,
    /// Name of the backend: `sim`, `local` or `hosts`.
    pub backend: String,
    /// Seed of the experiment.
    pub seed: u64,
    /// Program, machine and command that made the report.
    pub manifest: Manifest,
    /// Runs, in the order of the experiment's strategies.
    pub runs: Vec<StrategyRun>,
    /// Events of the runs, without the faults. The faults are stored with each run.
    pub events: Vec<RunEvent>,
    /// Description of the missing part if the experiment was interrupted; otherwise `None`.
    pub incomplete: Option<String>,
}

impl ExperimentReport {
    /// Sorts the samples, and returns the report with the sorted samples. The result can be shown
    /// and written without further sorting.
    pub fn digested(&self) -> DigestedReport<'_> {
        let digests = digest::digest(self);
        DigestedReport {
            report: self,
            summary: summary::summarize(self, &digests),
            digests,
        }
    }

    /// Returns true if a fault was injected in at least one run. In this case, the report shows
    /// latency over time.
    fn has_faults(&self) -> bool {
        self.runs.iter().any(|run| !run.faults.is_empty())
    }

    /// Returns all events, including faults, in order of time.
    fn all_events(&self) -> Vec<RunEvent> {
        let names = self.topology.names();
        let faults = self.runs.iter().flat_map(|run| run.fault_events(&names));
        let mut events: Vec<RunEvent> = self.events.iter().cloned().chain(faults).collect();
        events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        events
    }

    fn bounds(&self) -> Bounds {
        Bounds::new(&self.topology, self.experiment.leader_index())
    }

    /// Returns the plan of a run; `None` if the experiment has no plan with the label of the run.
    fn plan(&self, run: &StrategyRun) -> Option<&StrategyPlan> {
        let mut plans = self.experiment.strategies.iter();
        plans.find(|plan| plan.label == run.label)
    }
}

#[cfg(test)]
mod tests;
