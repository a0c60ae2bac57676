//! `leasehold exp` for throughput experiments.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use leasehold_geo_deploy::backend::local::{LocalSettings, one_site};
use leasehold_geo_deploy::report::{Manifest, ThroughputReport, replace};
use leasehold_geo_deploy::throughput::ThroughputExperiment;

use crate::exp::ReportTarget;
use crate::terminal::{Bars, Interrupted, interrupted, runtime, say};

/// Runs a throughput experiment and writes its report.
pub fn run(
    experiment: &ThroughputExperiment,
    to: ReportTarget<'_>,
    work: Option<&Path>,
    insecure: bool,
) -> anyhow::Result<()> {
    to.pictures.check()?;
    let manifest = Manifest::capture(std::env::args().collect());
    let temporary = tempfile::tempdir().context("making a temporary directory")?;
    let settings = LocalSettings {
        program: std::env::current_exe().context("finding this program")?,
        cluster: format!("{}-{}", experiment.name, std::process::id()),
        dir: std::path::absolute(work.unwrap_or(temporary.path()))?,
        client_port: None,
        insecure,
    };
    let bars = Bars::new();
    let show = |label: &str, done, total| bars.show(label, done, total);
    // Dropping the run ends its replicas, so none remain after Ctrl-C.
    let results = runtime()?.block_on(async {
        tokio::select! {
            biased;
            () = interrupted() => {
                let words = "interrupted; no replica is left running";
                Err(anyhow::Error::from(Interrupted(words.to_owned())))
            }
            results = one_site::run(experiment, &settings, &show) => results,
        }
    })?;
    let report = ThroughputReport::new(experiment.clone(), manifest, results);
    let out = to.out;
    let written = replace(out, |new| {
        report.write(new)?;
        to.pictures.draw(&new.join("plots"))
    });
    say!("{}", report.terminal());
    written?;
    say!("The report: {}", out.join("report.html").display());
    Ok(())
}

/// Returns the directory for the report: the requested directory, or the default if none was
/// requested.
pub fn out(experiment: &ThroughputExperiment, requested: Option<&PathBuf>) -> PathBuf {
    let usual = || PathBuf::from("results").join(&experiment.name);
    requested.cloned().unwrap_or_else(usual)
}
