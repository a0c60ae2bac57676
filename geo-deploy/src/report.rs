//! The files of a run. Every backend leaves the same ones, so that results can be
//! compared.
//!
//! Everything is computed from samples, and every figure stands beside what
//! bounds it: distance for latencies ([`crate::bound`]), learning for the share
//! of local reads ([`crate::bookkeeping`]), and what the paper reports.

mod allowed;
mod course;
mod digest;
mod effort;
mod figures;
mod files;
mod logs;
mod manifest;
mod outage;
mod page;
mod paper;
mod prose;
mod render;
mod replace;
mod run;
mod summary;
mod svg;
mod switches;
mod table;
mod tables;
mod throughput;
mod tolerance;

use std::path::Path;

use anyhow::Context;

use crate::bound::Bounds;
use crate::experiment::{Experiment, StrategyPlan};
use crate::topology::Topology;

pub use allowed::Allowed;
pub use course::Adapting;
pub use effort::Effort;
pub use logs::{NamedLogs, plot};
pub use manifest::Manifest;
pub use outage::Outage;
pub use replace::{INCOMPLETE, prepare, replace};
pub use run::{Event, FaultSpan, Measured, OutageBound, StrategyRun, Verdict, in_order};
pub use summary::{AllSummary, ReadSummary, RunSummary, SiteSummary, Summary, WriteSummary};
pub use switches::{PartSummary, SwitchReads};
pub use throughput::ThroughputReport;

/// All strategies of one experiment.
#[derive(Clone, Debug)]
pub struct Report {
    /// The effective experiment.
    pub experiment: Experiment,
    /// Where it ran: the topology asked for.
    pub topology: Topology,
    /// `sim`, `local` or `hosts`.
    pub backend: String,
    /// The seed used.
    pub seed: u64,
    /// The program, the machine and the command.
    pub manifest: Manifest,
    /// In the order of the experiment's strategies.
    pub runs: Vec<StrategyRun>,
    /// What happened but for faults, which each run has itself.
    pub events: Vec<Event>,
    /// Shortfall of an experiment that was interrupted, in words.
    pub incomplete: Option<String>,
}

impl Report {
    /// The figures of all runs.
    pub fn summary(&self) -> Summary {
        summary::summarize(self, &digest::digest(self))
    }

    /// One table per strategy and the verdicts, for a terminal.
    pub fn terminal(&self) -> String {
        let summary = self.summary();
        let mut text = String::new();
        for table in tables::per_run(self, &summary) {
            text.push_str(&table.text());
            text.push('\n');
        }
        text.push_str(&tables::overview(self, &summary).text());
        for warning in prose::warnings(self, &summary) {
            text.push_str(&format!("WARNING: {warning}\n"));
        }
        text
    }

    /// Writes every file of the run below `dir`, which is created.
    ///
    /// # Errors
    /// If a file cannot be written; the error names it.
    pub fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let plots = dir.join("plots");
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let digests = digest::digest(self);
        let summary = summary::summarize(self, &digests);
        let put = |name: &str, bytes: &[u8]| {
            let path = dir.join(name);
            std::fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))
        };
        put("manifest.json", &manifest::json(self)?)?;
        put("summary.json", &serde_json::to_vec_pretty(&summary)?)?;
        put("cdf.csv", files::cdf_csv(self, &digests).as_bytes())?;
        put("events.jsonl", files::events_jsonl(self)?.as_bytes())?;
        if self.has_faults() {
            put("timeline.csv", files::timeline_csv(self).as_bytes())?;
            put("outages.csv", files::outages_csv(&summary).as_bytes())?;
        }
        if course::is_shown(self) {
            put("course.csv", course::csv(self).as_bytes())?;
        }
        files::latency_hlog(self, &dir.join("latency.hlog"))?;
        render::write(&figures::all(self, &digests, &summary), &plots)?;
        put("report.md", page::markdown(self, &summary).as_bytes())?;
        let html = page::html(self, &digests, &summary);
        put("report.html", html.as_bytes())
    }

    /// Whether faults were caused on purpose, so that latency over time is shown.
    fn has_faults(&self) -> bool {
        self.runs.iter().any(|run| !run.faults.is_empty())
    }

    /// Everything that happened, faults included, in order of time.
    fn happened(&self) -> Vec<Event> {
        let names = self.topology.names();
        let faults = self.runs.iter().flat_map(|run| run.fault_events(&names));
        let mut events: Vec<Event> = self.events.iter().cloned().chain(faults).collect();
        events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        events
    }

    fn bounds(&self) -> Bounds {
        Bounds::new(&self.topology, self.experiment.leader_index())
    }

    /// The plan that a run carried out, if it is still in the experiment.
    fn plan(&self, run: &StrategyRun) -> Option<&StrategyPlan> {
        let mut plans = self.experiment.strategies.iter();
        plans.find(|plan| plan.label == run.label)
    }
}

#[cfg(test)]
mod tests;
