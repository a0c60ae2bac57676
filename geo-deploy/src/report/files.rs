//! The plain files of a report, for spreadsheets, scripts and other plotting programs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use leasehold_ycsb::measurement::{HlogRun, write_hlog};
use leasehold_ycsb::sample::OpOutcome;

use super::digest::{Class, Digest};
use super::summary::ExperimentSummary;
use super::{ExperimentReport, StrategyRun};

/// Minimum ratio of the latencies on two successive lines of a CDF. Latencies that differ by less
/// than half a percent are combined into one line.
const CDF_STEP: f64 = 1.005;
/// Length of an interval in the log of histograms.
const HLOG_INTERVAL: Duration = Duration::from_secs(1);
/// Length, in ms, of the stretch of time that one line of the timeline covers.
const TIMELINE_MS: u64 = 100;

/// Returns the CDFs, with one line for each run, site, operation and step:
/// `strategy,site,operation,latency_ms,share`.
pub(super) fn cdf_csv(report: &ExperimentReport, digests: &[Digest]) -> String {
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

/// Removes steps with almost equal latencies. If the latencies of several steps differ by less than
/// half a percent, only the last of these steps is kept.
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

/// Writes the histograms of latencies, with tags of the form `run:site:OPERATION:path`.
pub(super) fn latency_hlog(report: &ExperimentReport, path: &Path) -> anyhow::Result<()> {
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

/// Operations of one run, site and class (reads or writes) that belong to one line of the timeline.
#[derive(Default)]
struct Bucket {
    started: u64,
    failed: u64,
    timed_out: u64,
    /// Latencies of the answered operations that started in this bucket, in ns.
    latencies: Vec<u64>,
    /// Number of successful operations that ended in this bucket.
    answered: u64,
}

/// Returns the timeline, with one line for each run, site, operation and bucket. A bucket is an
/// interval of 100 ms in which an operation started or succeeded.
///
/// `start_s` is the beginning of the bucket, in seconds since the run began. `started`, `failed`,
/// `timed_out` and the latencies are those of the operations that *started* in the bucket. The
/// latencies are empty if none of these operations was answered. `answered` is the throughput: the
/// number of successful operations that *ended* in the bucket, regardless of their start.
pub(super) fn timeline_csv(report: &ExperimentReport) -> String {
    let mut csv = String::from(
        "strategy,site,operation,start_s,started,failed,timed_out,p50_ms,p99_ms,max_ms,answered\n",
    );
    let names = report.topology.names();
    for run in &report.runs {
        for ((site, class, at), bucket) in buckets(run) {
            let Some(site) = names.get(usize::from(site)) else {
                continue;
            };
            let start_s = (at * TIMELINE_MS) as f64 / 1e3;
            let prefix = format!("{},{site},{class},{start_s:.1}", quoted(&run.label));
            line(&mut csv, format_args!("{prefix},{}", bucket.cells()));
        }
    }
    csv
}

fn buckets(run: &StrategyRun) -> BTreeMap<(u8, &'static str, u64), Bucket> {
    let mut buckets: BTreeMap<(u8, &str, u64), Bucket> = BTreeMap::new();
    for sample in &run.samples {
        let class = Class::of(sample.kind).name();
        let key = |ns: u64| (sample.site, class, ns / (TIMELINE_MS * 1_000_000));
        let bucket = buckets.entry(key(sample.start_ns)).or_default();
        bucket.started += 1;
        match sample.end {
            OpOutcome::Ok => bucket.latencies.push(sample.latency_ns),
            OpOutcome::Failed => bucket.failed += 1,
            OpOutcome::TimedOut => bucket.timed_out += 1,
        }
        if sample.end == OpOutcome::Ok {
            let end = key(sample.start_ns.saturating_add(sample.latency_ns));
            buckets.entry(end).or_default().answered += 1;
        }
    }
    buckets
}

impl Bucket {
    fn cells(mut self) -> String {
        self.latencies.sort_unstable();
        let quantile = |q: f64| {
            let rank = (q * self.latencies.len() as f64).ceil().max(1.0) as usize;
            let found = self.latencies.get(rank - 1);
            found.map_or_else(String::new, |&ns| format!("{:.3}", ns as f64 / 1e6))
        };
        let latencies = [0.5, 0.99, 1.0].map(quantile).join(",");
        let Bucket {
            started,
            failed,
            timed_out,
            answered,
            ..
        } = self;
        format!("{started},{failed},{timed_out},{latencies},{answered}")
    }
}

/// Returns the outages as CSV. There is one line for each combination of strategy, run (if there
/// are several), fault, site and group of operations ([`super::outage`]). A field is empty if its
/// value is unknown, or if no bound is guaranteed.
pub(super) fn outages_csv(summary: &ExperimentSummary) -> String {
    let mut csv = String::from(
        "strategy,run,fault,what,site,operation,leased,due,failed,timed_out,outage_s,longest_s,\
         bound_s,median_before_ms,median_after_ms\n",
    );
    let given = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.6}"));
    for run in &summary.runs {
        for o in &run.outages {
            let repeat = o.run.map_or_else(String::new, |run| run.to_string());
            let numbers = format!("{repeat},{}", o.fault);
            let prefix = format!("{},{numbers},{}", quoted(&run.label), quoted(&o.text));
            let leased = o
                .leased
                .map_or_else(String::new, |leased| leased.to_string());
            let group = format!("{},{},{leased}", o.site, o.operation);
            let counts = format!("{},{},{}", o.due, o.failed, o.timed_out);
            let times = format!("{:.6},{:.6},{}", o.outage_s, o.longest_s, given(o.bound_s));
            let medians = format!("{},{}", given(o.median_before_ms), given(o.median_after_ms));
            line(
                &mut csv,
                format_args!("{prefix},{group},{counts},{times},{medians}"),
            );
        }
    }
    csv
}

/// Returns the events as JSON objects, with one object on each line.
pub(super) fn events_jsonl(report: &ExperimentReport) -> anyhow::Result<String> {
    let mut lines = String::new();
    for event in report.all_events() {
        lines.push_str(&serde_json::to_string(&event)?);
        lines.push('\n');
    }
    Ok(lines)
}

fn line(csv: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(csv, "{arguments}");
}

/// Adds quotation marks to a label if CSV requires them.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
