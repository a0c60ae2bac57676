//! Plots of interval logs (`.hlog`), written by `ycsb` or any other program that writes logs of
//! HdrHistogram. The drawings are the same as in a report: latency and throughput over time, and
//! distributions.
//!
//! The logs of several load generators in one run are combined. Time is divided at the beginning
//! and the end of every interval. Each piece of time shows all intervals that cover the piece, with
//! the histograms of these intervals merged. Nothing is smoothed. The intervals of a log limit the
//! resolution. If a log is long, each pixel shows several pieces combined, and the extremes of
//! these pieces. So memory use and the size of drawings are bounded, regardless of the length of a
//! log.

mod gather;
mod grid;
mod tag;

use std::path::{Path, PathBuf};

use super::figures::Figure;
use super::figures::cdf::{self, Cdf, Curves};
use super::figures::file_name;
use super::figures::timeline::{self, Timeline};
use super::render;
use super::svg::SERIES;
use gather::{LogData, LogRun};

/// Logs of one run: the name of the run ("" if it has none), and the files.
pub type NamedLogs = (String, Vec<PathBuf>);

/// Draws the logs into `dir`, as SVG, PNG and PDF. Returns the names of the drawings.
///
/// # Errors
/// Returns an error if a log cannot be read, or if a file cannot be written. Also returns an error
/// if the logs contain no operations, or more runs than one drawing can show.
pub fn plot(logs: &[NamedLogs], dir: &Path) -> anyhow::Result<Vec<String>> {
    let gathered = gather::gather(logs)?;
    anyhow::ensure!(
        !gathered.runs.is_empty(),
        "the logs hold no operation: they have no line with a histogram of one \
         (READ, UPDATE, INSERT, SCAN or READ-MODIFY-WRITE)"
    );
    anyhow::ensure!(
        gathered.runs.len() <= SERIES,
        "{} runs are too many to tell apart in one drawing; give at most {SERIES}: {}",
        gathered.runs.len(),
        gathered.names().join(", ")
    );
    let figures = figures(&gathered);
    render::write(&figures, dir)?;
    Ok(figures.into_iter().map(|figure| figure.name).collect())
}

fn figures(gathered: &LogData) -> Vec<Figure> {
    let drawn = gathered.runs.iter().flat_map(|run| {
        let name = match run.name.as_str() {
            "" => "timeline".to_owned(),
            name => format!("timeline-{}", file_name(name)),
        };
        timeline::figures(&name, &timeline_of(run, gathered))
    });
    drawn.chain(cdf::figures(&cdf_of(gathered))).collect()
}

fn timeline_of(run: &LogRun, gathered: &LogData) -> Timeline {
    let whose = match run.name.as_str() {
        "" => String::new(),
        name => format!("{name}: "),
    };
    let basis = if run.intended {
        ", from the intended start"
    } else {
        ""
    };
    Timeline {
        title: format!("{whose}latency{basis} and throughput over time"),
        from_s: 0.0,
        to_s: run.length_s(),
        rows: gathered
            .sites
            .iter()
            .map(|site| (site.clone(), [0, 1].map(|class| run.series(site, class))))
            .collect(),
        marks: Vec::new(),
        since: "the log began",
        note: String::new(),
    }
}

fn cdf_of(gathered: &LogData) -> Cdf {
    let panel = |site: &String, class: usize| Curves {
        curves: gathered
            .runs
            .iter()
            .enumerate()
            .map(|(look, run)| (look, run.steps(site, class)))
            .collect(),
        bounds: Vec::new(),
    };
    let name = |run: &LogRun| match run.name.as_str() {
        "" => "all operations".to_owned(),
        name => name.to_owned(),
    };
    Cdf {
        title: "Latency distributions".to_owned(),
        names: gathered.runs.iter().map(name).enumerate().collect(),
        rows: gathered
            .sites
            .iter()
            .map(|site| (site.clone(), [0, 1].map(|class| panel(site, class))))
            .collect(),
    }
}

#[cfg(test)]
mod tests;
