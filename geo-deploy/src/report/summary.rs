//! The figures of a run: `summary.json`, and what every table shows.

use std::collections::BTreeMap;

use client::wire;
use serde::Serialize;
use ycsb::measurement::path_name;
use ycsb::sample::{End, Sample};

use super::digest::{Class, Digest, Latencies, share};
use super::{Report, StrategyRun};
use crate::attainable::AT_MINIMUM_SLACK_MS;
use crate::bound::{Bounds, Replies, SiteSet};

/// Reads faster than this, in ms, are the paper's "fast local reads" (Table 2).
const FAST_READ_MS: f64 = 10.0;

/// The figures of all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The experiment's name.
    pub experiment: String,
    /// `sim`, `local` or `hosts`.
    pub backend: String,
    /// The seed used.
    pub seed: u64,
    /// One per strategy.
    pub runs: Vec<RunSummary>,
}

/// The figures of one strategy. Latencies and shares are of answered operations
/// of the measured phase; what failed or timed out is counted beside them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunSummary {
    /// What tables and plots call it.
    pub label: String,
    /// The strategy's name.
    pub strategy: String,
    /// The workload in words.
    pub workload: String,
    /// Operations answered.
    pub ops: u64,
    /// Operations answered with an error.
    pub failed: u64,
    /// Operations not answered in time.
    pub timed_out: u64,
    /// How long the run took, in s.
    pub wall_s: f64,
    /// How long it took in virtual time, in s.
    pub virtual_s: Option<f64>,
    /// Mean latency of all operations.
    pub mean_ms: f64,
    /// Share of all reads that were local.
    pub local_fraction: f64,
    /// Share of all writes at their minimum.
    pub min_latency_fraction: f64,
    /// `yes`, `no` or `unchecked`.
    pub linearizable: &'static str,
    /// What was checked, found, or why nothing was.
    pub linearizable_text: String,
    /// Counters of the replicas.
    pub counters: BTreeMap<String, u64>,
    /// One per site, in the topology's order.
    pub sites: Vec<SiteSummary>,
}

/// The figures of one site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SiteSummary {
    /// The site's name.
    pub site: String,
    /// Its reads.
    pub reads: ReadSummary,
    /// Its writes.
    pub writes: WriteSummary,
}

/// Reads of one site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadSummary {
    /// Reads answered.
    pub count: u64,
    /// Answered with an error.
    pub failed: u64,
    /// Not answered in time.
    pub timed_out: u64,
    /// Share answered by the local replica under its lease (`local` and `held`).
    pub local_fraction: f64,
    /// What perfect bookkeeping would have reached.
    pub attainable_fraction: Option<f64>,
    /// Share that took less than 10 ms, however served.
    pub under_10ms_fraction: f64,
    /// What distance alone costs, where the strategy decides it: one value for
    /// each set of holders. Empty where holders are learned.
    pub bounds_ms: Vec<f64>,
    /// Mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Longest.
    pub max_ms: f64,
    /// How many were served how.
    pub by_path: BTreeMap<&'static str, u64>,
}

/// Writes of one site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WriteSummary {
    /// Writes answered.
    pub count: u64,
    /// Answered with an error.
    pub failed: u64,
    /// Not answered in time.
    pub timed_out: u64,
    /// Share within 1 ms of `bound_ms`.
    pub min_latency_fraction: f64,
    /// What perfect bookkeeping would have reached.
    pub attainable_fraction: Option<f64>,
    /// The leader-lease bound: the least any strategy allows at this site.
    pub bound_ms: f64,
    /// The bounds of this strategy's holders, as for reads.
    pub bounds_ms: Vec<f64>,
    /// Mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Longest.
    pub max_ms: f64,
}

fn is_local(path: wire::Path) -> bool {
    matches!(path, wire::Path::Local | wire::Path::Held)
}

pub(super) fn summarize(report: &Report, digests: &[Digest]) -> Summary {
    let runs = report.runs.iter().zip(digests);
    Summary {
        experiment: report.experiment.name.clone(),
        backend: report.backend.clone(),
        seed: report.seed,
        runs: runs
            .map(|(run, digest)| of_run(report, run, digest))
            .collect(),
    }
}

fn of_run(report: &Report, run: &StrategyRun, digest: &Digest) -> RunSummary {
    let names = report.topology.names();
    let site = |site: usize| SiteSummary {
        site: names[site].to_owned(),
        reads: reads(report, run, &digest.reads[site], site),
        writes: writes(report, run, &digest.writes[site], site),
    };
    let sites: Vec<SiteSummary> = (0..names.len()).map(site).collect();
    let totals = Totals::of(&sites);
    RunSummary {
        label: run.label.clone(),
        strategy: run.strategy.clone(),
        workload: run.workload.clone(),
        ops: totals.reads + totals.writes,
        failed: sites.iter().map(|s| s.reads.failed + s.writes.failed).sum(),
        timed_out: sites
            .iter()
            .map(|s| s.reads.timed_out + s.writes.timed_out)
            .sum(),
        wall_s: run.wall_s,
        virtual_s: run.virtual_s,
        mean_ms: totals.mean_ms,
        local_fraction: totals.local_fraction,
        min_latency_fraction: totals.min_latency_fraction,
        linearizable: run.linearizable.word(),
        linearizable_text: run.linearizable.text().to_owned(),
        counters: run.counters.clone(),
        sites,
    }
}

/// All sites together, each weighted by its operations.
struct Totals {
    reads: u64,
    writes: u64,
    mean_ms: f64,
    local_fraction: f64,
    min_latency_fraction: f64,
}

impl Totals {
    fn of(sites: &[SiteSummary]) -> Totals {
        let reads = sites.iter().map(|site| site.reads.count).sum();
        let writes = sites.iter().map(|site| site.writes.count).sum();
        let weighted = |part: fn(&SiteSummary) -> f64, all: u64| match all {
            0 => 0.0,
            all => sites.iter().map(part).sum::<f64>() / all as f64,
        };
        let total_ms = |s: &SiteSummary| {
            s.reads.mean_ms * s.reads.count as f64 + s.writes.mean_ms * s.writes.count as f64
        };
        let local = |s: &SiteSummary| s.reads.local_fraction * s.reads.count as f64;
        let at_minimum = |s: &SiteSummary| s.writes.min_latency_fraction * s.writes.count as f64;
        Totals {
            reads,
            writes,
            mean_ms: weighted(total_ms, reads + writes),
            local_fraction: weighted(local, reads),
            min_latency_fraction: weighted(at_minimum, writes),
        }
    }
}

fn reads(report: &Report, run: &StrategyRun, latencies: &Latencies, site: usize) -> ReadSummary {
    let answered = |sample: &&Sample| {
        usize::from(sample.site) == site
            && Class::of(sample.kind) == Class::Reads
            && sample.end == End::Ok
    };
    let mut by_path = BTreeMap::new();
    let mut local = 0;
    for sample in run.samples.iter().filter(answered) {
        *by_path.entry(path_name(sample.path)).or_insert(0) += 1;
        local += u64::from(is_local(sample.path));
    }
    let bounds = report.bounds();
    let of_holders = |holders| bounds.read_ms(site, holders);
    ReadSummary {
        count: latencies.count(),
        failed: latencies.failed,
        timed_out: latencies.timed_out,
        local_fraction: share(local, latencies.count()),
        attainable_fraction: at(&run.attainable_local, site),
        // The largest double below the limit: "less than", not "at most".
        under_10ms_fraction: latencies.share_within(FAST_READ_MS.next_down()),
        bounds_ms: distinct(holder_sets(report, run).into_iter().filter_map(of_holders)),
        mean_ms: latencies.mean_ms(),
        p50_ms: latencies.quantile_ms(0.5),
        p95_ms: latencies.quantile_ms(0.95),
        p99_ms: latencies.quantile_ms(0.99),
        max_ms: latencies.quantile_ms(1.0),
        by_path,
    }
}

fn writes(report: &Report, run: &StrategyRun, latencies: &Latencies, site: usize) -> WriteSummary {
    let bounds: Bounds = report.bounds();
    let bound_ms = bounds.write_min_ms(site);
    let of_holders = |holders| bounds.write_ms(site, holders, Replies::LeaderAndOrigin);
    WriteSummary {
        count: latencies.count(),
        failed: latencies.failed,
        timed_out: latencies.timed_out,
        min_latency_fraction: latencies.share_within(bound_ms + AT_MINIMUM_SLACK_MS),
        attainable_fraction: at(&run.attainable_minimum, site),
        bound_ms,
        bounds_ms: distinct(holder_sets(report, run).into_iter().map(of_holders)),
        mean_ms: latencies.mean_ms(),
        p50_ms: latencies.quantile_ms(0.5),
        p95_ms: latencies.quantile_ms(0.95),
        p99_ms: latencies.quantile_ms(0.99),
        max_ms: latencies.quantile_ms(1.0),
    }
}

/// The sets of holders that a strategy fixes in advance; none if it learns them.
fn holder_sets(report: &Report, run: &StrategyRun) -> Vec<SiteSet> {
    let topology = &report.topology;
    match run.strategy.as_str() {
        "leader" => vec![SiteSet::one(report.experiment.leader_index())],
        "all" => vec![SiteSet::all(topology.len())],
        "none" => vec![SiteSet::EMPTY],
        "fixed" => {
            let ranges = report.plan(run).into_iter().flat_map(|plan| &plan.ranges);
            let index =
                |names: &Vec<String>| names.iter().filter_map(|n| topology.index(n)).collect();
            ranges.map(|range| index(&range.holders)).collect()
        }
        _ => Vec::new(),
    }
}

fn distinct(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

fn at(shares: &Option<Vec<f64>>, site: usize) -> Option<f64> {
    shares.as_ref()?.get(site).copied()
}
