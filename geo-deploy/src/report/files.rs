//! The plain files: for spreadsheets, scripts and other people's plots.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use ycsb::measurement::{HlogRun, write_hlog};
use ycsb::sample::End;

use super::Report;
use super::digest::{Class, Digest};

/// Latencies that differ by a smaller factor share a line of the CDF: half a percent.
const CDF_STEP: f64 = 1.005;
/// Length of an interval of the log of histograms.
const HLOG_INTERVAL: Duration = Duration::from_secs(1);
/// Width of a line in the timeline, in ms.
const TIMELINE_MS: u64 = 100;

/// One line per run, site, operation and step: `strategy,site,operation,latency_ms,share`.
pub(super) fn cdf_csv(report: &Report, digests: &[Digest]) -> String {
    let mut csv = String::from("strategy,site,operation,latency_ms,share\n");
    for (run, digest) in report.runs.iter().zip(digests) {
        for class in Class::BOTH {
            for (site, latencies) in report.topology.names().iter().zip(digest.of(class)) {
                for (latency_ms, share) in thinned(latencies.steps()) {
                    let prefix = format!("{},{site},{}", quoted(&run.label), class.name());
                    line(
                        &mut csv,
                        format_args!("{prefix},{latency_ms:.6},{share:.6}"),
                    );
                }
            }
        }
    }
    csv
}

/// Of steps that differ by less than half a percent, keeps the last.
pub(super) fn thinned(steps: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    let mut group_start = f64::NEG_INFINITY;
    for (latency_ms, share) in steps {
        match kept.last_mut() {
            Some(last) if latency_ms < group_start * CDF_STEP => *last = (latency_ms, share),
            _ => {
                group_start = latency_ms;
                kept.push((latency_ms, share));
            }
        }
    }
    kept
}

#[derive(Default)]
struct Bucket {
    answered: u64,
    unanswered: u64,
    sum_ns: u128,
    max_ns: u64,
}

/// The histograms, tagged `run:site:OPERATION:path`.
pub(super) fn latency_hlog(report: &Report, path: &Path) -> anyhow::Result<()> {
    let names = report.topology.names();
    let sites: Vec<String> = names.into_iter().map(String::from).collect();
    let runs = report.runs.iter().map(|run| HlogRun {
        label: &run.label,
        sites: &sites,
        samples: &run.samples,
    });
    let runs: Vec<HlogRun<'_>> = runs.collect();
    let started = UNIX_EPOCH + Duration::from_secs(report.manifest.started_unix_s);
    Ok(write_hlog(path, started, HLOG_INTERVAL, &runs)?)
}

/// One line per run, site, operation and 100 ms of *start* time, if anything started in it.
pub(super) fn timeline_csv(report: &Report) -> String {
    let mut csv =
        String::from("strategy,site,operation,start_s,answered,unanswered,mean_ms,max_ms\n");
    let names = report.topology.names();
    for run in &report.runs {
        let mut buckets: BTreeMap<(u8, &str, u64), Bucket> = BTreeMap::new();
        for sample in &run.samples {
            let at = sample.start_ns / (TIMELINE_MS * 1_000_000);
            let key = (sample.site, Class::of(sample.kind).name(), at);
            let bucket = buckets.entry(key).or_default();
            match sample.end {
                End::Ok => bucket.answered += 1,
                End::Failed | End::TimedOut => bucket.unanswered += 1,
            }
            bucket.sum_ns += u128::from(sample.latency_ns);
            bucket.max_ns = bucket.max_ns.max(sample.latency_ns);
        }
        for ((site, class, at), b) in buckets {
            let Some(site) = names.get(usize::from(site)) else {
                continue;
            };
            let start_s = (at * TIMELINE_MS) as f64 / 1e3;
            let mean_ms = b.sum_ns as f64 / (b.answered + b.unanswered) as f64 / 1e6;
            let max_ms = b.max_ns as f64 / 1e6;
            let prefix = format!("{},{site},{class},{start_s:.1}", quoted(&run.label));
            let counts = format!("{},{}", b.answered, b.unanswered);
            line(
                &mut csv,
                format_args!("{prefix},{counts},{mean_ms:.3},{max_ms:.3}"),
            );
        }
    }
    csv
}

/// One JSON object per event.
pub(super) fn events_jsonl(report: &Report) -> anyhow::Result<String> {
    let mut lines = String::new();
    for event in report.happened() {
        lines.push_str(&serde_json::to_string(&event)?);
        lines.push('\n');
    }
    Ok(lines)
}

fn line(csv: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(csv, "{arguments}");
}

/// Labels are free text, so they may need quotes.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
