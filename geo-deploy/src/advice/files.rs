//! The files of a finished run that a forecast reads.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use leasehold_histories::history::History;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::experiment::Experiment;
use crate::run::MeasuredInterval;

/// Maximum share of a site's measured operations that may be missing in a history. If a larger
/// share is missing, the history is rejected, because it belongs to another run, or was written by
/// an older version of this program.
const LOST_MAX: f64 = 0.05;

/// Contents of `manifest.json` that a forecast uses.
#[derive(Deserialize)]
struct ManifestFile {
    backend: String,
    experiment: Experiment,
}

/// Contents of `summary.json` that a forecast uses.
#[derive(Deserialize)]
struct SummaryFile {
    runs: Vec<RunFigures>,
}

/// Measurements of one strategy.
#[derive(Deserialize)]
pub(super) struct RunFigures {
    pub(super) label: String,
    pub(super) strategy: String,
    #[serde(default)]
    pub(super) measured: MeasuredInterval,
    mean_ms: f64,
    local_fraction: f64,
    min_latency_fraction: f64,
    sites: Vec<SiteFigures>,
}

#[derive(Deserialize)]
struct SiteFigures {
    site: String,
    reads: OperationFigures,
    writes: OperationFigures,
}

#[derive(Deserialize)]
struct OperationFigures {
    count: u64,
    mean_ms: f64,
}

/// Mean latencies and shares of operations, as measured in a run. Latencies are in ms; shares are
/// from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Means {
    /// Mean latency of all operations.
    pub mean_ms: f64,
    /// Mean latency of reads.
    pub read_ms: f64,
    /// Mean latency of writes.
    pub write_ms: f64,
    /// Share of reads that were served by the client's own replica.
    pub local: f64,
    /// Share of writes that had their minimum possible latency.
    pub at_minimum: f64,
}

impl RunFigures {
    pub(super) fn means(&self) -> Means {
        let mean = |of: fn(&SiteFigures) -> &OperationFigures| {
            let all: u64 = self.sites.iter().map(|site| of(site).count).sum();
            let each = self.sites.iter().map(of);
            let sum: f64 = each.map(|one| one.mean_ms * one.count as f64).sum();
            sum / all.max(1) as f64
        };
        Means {
            mean_ms: self.mean_ms,
            read_ms: mean(|site| &site.reads),
            write_ms: mean(|site| &site.writes),
            local: self.local_fraction,
            at_minimum: self.min_latency_fraction,
        }
    }
}

/// Contents of a run's files, and the directory of these files.
pub(super) struct RunFiles {
    dir: PathBuf,
    pub(super) backend: String,
    pub(super) experiment: Experiment,
    pub(super) runs: Vec<RunFigures>,
}

impl RunFiles {
    pub(super) fn load(dir: &Path) -> anyhow::Result<RunFiles> {
        let manifest: ManifestFile = json(&dir.join("manifest.json"))?;
        let summary: SummaryFile = json(&dir.join("summary.json"))?;
        ensure!(
            manifest.experiment.runs == 1,
            "{}: each strategy was run {} times, and histories of several runs cannot be put together; run \
             it with --set runs=1",
            dir.display(),
            manifest.experiment.runs
        );
        Ok(RunFiles {
            dir: dir.to_owned(),
            backend: manifest.backend,
            experiment: manifest.experiment,
            runs: summary.runs,
        })
    }

    pub(super) fn history(&self, run: &RunFigures) -> anyhow::Result<History> {
        let path = self.dir.join(format!("history-{}.bin", run.label));
        let history = History::load(&path);
        history.with_context(|| {
            format!(
                "{} holds what clients asked; `exp run` writes it into its --out",
                path.display()
            )
        })
    }

    /// Checks that the history fits the summary. For each site, both must contain about the same
    /// number of measured operations.
    pub(super) fn check_sites(&self, run: &RunFigures, history: &History) -> anyhow::Result<()> {
        let n = self.experiment.topology.len();
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        let interval = ns(run.measured.start_s)..ns(run.measured.end_s);
        let mut found = vec![0_u64; n];
        for event in history.events() {
            if interval.contains(&event.invoke_ns) {
                found[super::replay::site_of(event, n)] += 1;
            }
        }
        for (site, found) in run.sites.iter().zip(found) {
            let expected = site.reads.count + site.writes.count;
            let lost = expected.abs_diff(found) as f64 > LOST_MAX * expected as f64 + 10.0;
            ensure!(
                !lost,
                "the history has {found} operations of {} in the measured interval, summary.json {expected}: it is \
                 of another run, or of an older version of this program; run the experiment again",
                site.site
            );
        }
        Ok(())
    }
}

fn json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = std::fs::read(path)
        .with_context(|| format!("reading {}; is it the --out of `exp run`?", path.display()))?;
    let what = || format!("{} is not what `exp run` writes", path.display());
    serde_json::from_slice(&text).with_context(what)
}
