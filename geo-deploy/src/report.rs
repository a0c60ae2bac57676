//! The files of a run. Every backend leaves the same ones, so that results can be
//! compared.
//!
//! Everything is computed from samples, and every figure stands beside what
//! bounds it: distance for latencies ([`crate::bound`]), learning for the share
//! of local reads ([`crate::attainable`]), and what the paper reports.

mod digest;
mod figures;
mod files;
mod manifest;
mod page;
mod paper;
mod png;
mod prose;
mod summary;
mod svg;
mod table;
mod tables;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use ycsb::sample::Sample;

use crate::bound::Bounds;
use crate::experiment::{Experiment, StrategyPlan};
use crate::topology::Topology;

pub use manifest::Manifest;
pub use summary::{ReadSummary, RunSummary, SiteSummary, Summary, WriteSummary};

/// Whether a run's history was linearizable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Checked, and it is; with what was checked.
    Yes(String),
    /// Checked, and it is not; with the counterexample.
    No(String),
    /// Not checked; with the reason.
    Unchecked(String),
}

impl Verdict {
    /// `yes`, `no` or `unchecked`.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Yes(_) => "yes",
            Verdict::No(_) => "no",
            Verdict::Unchecked(_) => "unchecked",
        }
    }

    /// What was checked, found, or why nothing was.
    pub fn text(&self) -> &str {
        match self {
            Verdict::Yes(text) | Verdict::No(text) | Verdict::Unchecked(text) => text,
        }
    }
}

/// Something that happened during a run: a fault, an election, a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The run's label; `None` if it concerns all.
    pub run: Option<String>,
    /// Seconds since the run began (virtual time in the simulator).
    pub at_s: f64,
    /// [`Event::FAULT`], [`Event::CONFIGURATION`], `election`, `lapse`, ...
    pub kind: String,
    /// Where, if at one site.
    pub site: Option<String>,
    /// In words.
    pub text: String,
}

impl Event {
    /// The kind of what was done to the cluster on purpose.
    pub const FAULT: &str = "fault";
    /// The kind of a new lease configuration: frequent, and no disturbance.
    pub const CONFIGURATION: &str = "configuration";
}

/// One strategy, measured.
#[derive(Clone, Debug)]
pub struct StrategyRun {
    /// What tables and plots call it.
    pub label: String,
    /// The strategy's name.
    pub strategy: String,
    /// The workload in words.
    pub workload: String,
    /// Every operation of the measured phase, failed ones included.
    pub samples: Vec<Sample>,
    /// How long the run took, in s, warm-up included.
    pub wall_s: f64,
    /// How long it took in virtual time, in s.
    pub virtual_s: Option<f64>,
    /// Whether its history was linearizable.
    pub linearizable: Verdict,
    /// Per site, the share of reads (0 to 1) that perfect bookkeeping would have served locally.
    pub attainable_local: Option<Vec<f64>>,
    /// Per site, the share of writes (0 to 1) that the same bookkeeping leaves at their minimum.
    pub attainable_minimum: Option<Vec<f64>>,
    /// What the reader should know about this run.
    pub notes: Vec<String>,
    /// Counters of the replicas, summed.
    pub counters: BTreeMap<String, u64>,
    /// Median round trips as the network delivered them, in ms.
    pub measured_rtt_ms: Option<Vec<Vec<f64>>>,
}

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
    /// In order of time.
    pub events: Vec<Event>,
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
        text
    }

    /// Writes every file of the run below `dir`, which is created.
    ///
    /// # Errors
    /// If a file cannot be written; the error names it.
    pub fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let plots = dir.join("plots");
        std::fs::create_dir_all(&plots).with_context(|| format!("creating {}", plots.display()))?;
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
        }
        files::latency_hlog(self, &dir.join("latency.hlog"))?;
        for figure in figures::all(self, &digests, &summary) {
            let svg = figure.svg.file();
            put(&format!("plots/{}.svg", figure.name), svg.as_bytes())?;
            put(&format!("plots/{}.png", figure.name), &png::render(&svg)?)?;
        }
        put("report.md", page::markdown(self, &summary).as_bytes())?;
        let html = page::html(self, &digests, &summary);
        put("report.html", html.as_bytes())
    }

    /// Whether faults were caused on purpose, so that latency over time is shown.
    fn has_faults(&self) -> bool {
        self.events.iter().any(|event| event.kind == Event::FAULT)
    }

    fn bounds(&self) -> Bounds<'_> {
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
