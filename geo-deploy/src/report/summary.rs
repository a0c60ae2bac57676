//! Summary of a run's measurements. It is written to `summary.json` and shown in all tables.

use std::collections::BTreeMap;

use leasehold_wire as wire;
use leasehold_ycsb::measurement::path_name;
use leasehold_ycsb::sample::{OpOutcome, Sample};
use serde::Serialize;

use super::digest::{Class, Digest, Latencies, share};
use super::operation_cost::OperationCost;
use super::outage::{self, Outage, OutageGroup};
use super::placement::PlacementComparison;
use super::switches::{self, PartSummary};
use super::time_series::{self, Adaptation};
use super::tolerance::Tolerance;
use super::{ExperimentReport, MeasuredInterval, StrategyRun};
use crate::run::SwitchReads;
use crate::run::bound::{Bounds, Replies, SiteSet};

/// Upper limit, in ms, on the latency of a read that the paper calls a "fast local read" (Table 2).
const FAST_READ_MS: f64 = 10.0;

/// Summary of all runs of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExperimentSummary {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the backend: `sim`, `local` or `hosts`.
    pub backend: String,
    /// Seed of the experiment.
    pub seed: u64,
    /// Tolerance, as a text. A write is at its minimum latency if its latency exceeds the lower
    /// bound for the write by at most the tolerance.
    pub minimum_tolerance: String,
    /// Summaries of the runs, one for each strategy.
    pub runs: Vec<RunSummary>,
}

/// Summary of one strategy's run. Latencies and shares are computed from the answered operations of
/// the measured interval. Operations that failed or timed out are only counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunSummary {
    /// Label in tables and plots.
    pub label: String,
    /// Name of the strategy.
    pub strategy: String,
    /// Description of the workload.
    pub workload: String,
    /// Number of answered operations.
    pub ops: u64,
    /// Number of operations that were answered with an error.
    pub failed: u64,
    /// Number of operations that were not answered in time.
    pub timed_out: u64,
    /// Duration of the run, in s.
    pub wall_s: f64,
    /// Duration of the run in virtual time, in s; `None` if the run was not simulated.
    pub virtual_s: Option<f64>,
    /// Interval in which operations are measured. It is the same for all sites.
    pub measured: Option<MeasuredInterval>,
    /// Mean latency over all operations, in ms. Sites with more operations have a greater weight.
    pub mean_ms: f64,
    /// Mean of the sites' mean latencies, in ms. Every site has the same weight.
    pub mean_by_site_ms: f64,
    /// Median latency of all operations, in ms.
    pub p50_ms: f64,
    /// 99th percentile of the latency of all operations, in ms.
    pub p99_ms: f64,
    /// Share of local reads among all reads. Local reads that were held back by a write in flight
    /// are included.
    pub local_fraction: f64,
    /// Share of held reads among all reads. A held read is local, but was held back by a write in
    /// flight.
    pub held_fraction: f64,
    /// Share of all writes that had their minimum latency.
    pub min_latency_fraction: f64,
    /// Mean latencies, computed from the true rates of requests. There is one mean for the holders
    /// that the strategy chooses, and one mean for the best holders.
    pub true_rates: Option<PlacementComparison>,
    /// Adaptation to each change of the clients' requests: the time until the mean latency was
    /// about as low as before the change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adapting: Vec<Adaptation>,
    /// For each change of strategy, the reads that the change should not have affected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<SwitchReads>,
    /// Summaries of the parts of the key space, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartSummary>,
    /// Waiting times of held reads, and the work of the replicas for each operation.
    pub effort: OperationCost,
    /// Result of the check for linearizability: `yes`, `no` or `unchecked`.
    pub linearizable: &'static str,
    /// Description of the check: its extent and its findings, or the reason why there was no check.
    pub linearizable_text: String,
    /// All outages that faults caused for clients (`outages.csv`).
    #[serde(skip)]
    pub outages: Vec<Outage>,
    /// Summaries of the outages. Faults with the same description are combined. There is one
    /// summary for each combination of description, site and group of operations.
    #[serde(rename = "outages", skip_serializing_if = "Vec::is_empty")]
    pub outage_groups: Vec<OutageGroup>,
    /// Counters by name, summed over all replicas.
    pub counters: BTreeMap<String, u64>,
    /// Summaries of the sites, in the topology's order.
    pub sites: Vec<SiteSummary>,
}

/// Summary of one site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SiteSummary {
    /// Name of the site.
    pub site: String,
    /// All operations of the site.
    pub all: AllSummary,
    /// Reads of the site.
    pub reads: ReadSummary,
    /// Writes of the site.
    pub writes: WriteSummary,
}

/// Latencies of all operations of one site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AllSummary {
    /// Number of answered operations.
    pub count: u64,
    /// Mean latency, in ms.
    pub mean_ms: f64,
    /// Median latency, in ms.
    pub p50_ms: f64,
    /// 99th percentile of the latency, in ms.
    pub p99_ms: f64,
}

impl AllSummary {
    fn of(latencies: &Latencies) -> AllSummary {
        AllSummary {
            count: latencies.count(),
            mean_ms: latencies.mean_ms(),
            p50_ms: latencies.quantile_ms(0.5),
            p99_ms: latencies.quantile_ms(0.99),
        }
    }
}

/// Latencies and shares of the reads of one site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadSummary {
    /// Number of answered reads.
    pub count: u64,
    /// Number of reads that were answered with an error.
    pub failed: u64,
    /// Number of reads that were not answered in time.
    pub timed_out: u64,
    /// Share of reads that the local replica answered under its lease (`local` and `held`).
    pub local_fraction: f64,
    /// Share of reads that waited for a write in flight before the local replica answered them
    /// under its lease (`held` alone).
    pub held_fraction: f64,
    /// Share of reads that would have been local under quorum leases with perfect bookkeeping;
    /// `None` if this share was not computed.
    pub bookkeeping_fraction: Option<f64>,
    /// Share of reads that took less than 10 ms, regardless of the replica that served them.
    pub under_10ms_fraction: f64,
    /// Lower bounds on the latency of reads at this site, in ms, which follow from the distances
    /// between sites. There is one bound for each set of holders that the strategy fixes. The list
    /// is empty if the strategy learns the holders.
    pub bounds_ms: Vec<f64>,
    /// Mean latency, in ms.
    pub mean_ms: f64,
    /// Median latency, in ms.
    pub p50_ms: f64,
    /// 95th percentile of the latency, in ms.
    pub p95_ms: f64,
    /// 99th percentile of the latency, in ms.
    pub p99_ms: f64,
    /// Longest latency, in ms.
    pub max_ms: f64,
    /// Number of reads on each path. The path states how a read was served.
    pub by_path: BTreeMap<&'static str, u64>,
}

/// Latencies and shares of the writes of one site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WriteSummary {
    /// Number of answered writes.
    pub count: u64,
    /// Number of writes that were answered with an error.
    pub failed: u64,
    /// Number of writes that were not answered in time.
    pub timed_out: u64,
    /// Share of writes at their minimum latency. The latency of such a write exceeds `bound_ms` by
    /// at most the tolerance that the summary states.
    pub min_latency_fraction: f64,
    /// Share of writes that would have had their minimum latency under quorum leases with perfect
    /// bookkeeping; `None` if this share was not computed.
    pub bookkeeping_fraction: Option<f64>,
    /// Lower bound on the latency of writes at this site under every strategy, in ms. This is the
    /// latency of a write under a leader lease.
    pub bound_ms: f64,
    /// Lower bounds on the latency of writes at this site, in ms, which follow from the distances
    /// between sites. There is one bound for each set of holders that the strategy fixes. The list
    /// is empty if the strategy learns the holders.
    pub bounds_ms: Vec<f64>,
    /// Mean latency, in ms.
    pub mean_ms: f64,
    /// Median latency, in ms.
    pub p50_ms: f64,
    /// 95th percentile of the latency, in ms.
    pub p95_ms: f64,
    /// 99th percentile of the latency, in ms.
    pub p99_ms: f64,
    /// Longest latency, in ms.
    pub max_ms: f64,
}

pub(super) fn is_local(path: wire::Path) -> bool {
    matches!(path, wire::Path::Local | wire::Path::Held)
}

pub(super) fn summarize(report: &ExperimentReport, digests: &[Digest]) -> ExperimentSummary {
    let runs = report.runs.iter().zip(digests);
    ExperimentSummary {
        experiment: report.experiment.name.clone(),
        backend: report.backend.clone(),
        seed: report.seed,
        minimum_tolerance: Tolerance::of(report).words(),
        runs: runs
            .map(|(run, digest)| of_run(report, run, digest))
            .collect(),
    }
}

fn of_run(report: &ExperimentReport, run: &StrategyRun, digest: &Digest) -> RunSummary {
    let names = report.topology.names();
    let site = |site: usize| SiteSummary {
        site: names[site].to_owned(),
        all: AllSummary::of(&Latencies::merged([
            &digest.reads[site],
            &digest.writes[site],
        ])),
        reads: reads(report, run, &digest.reads[site], site),
        writes: writes(report, run, &digest.writes[site], site),
    };
    let sites: Vec<SiteSummary> = (0..names.len()).map(site).collect();
    let totals = Totals::of(&sites);
    let all = AllSummary::of(&Latencies::merged(
        digest.reads.iter().chain(&digest.writes),
    ));
    let outages = outage::outages(report, run);
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
        measured: run.measured,
        mean_ms: all.mean_ms,
        mean_by_site_ms: mean_by_site_ms(&sites),
        p50_ms: all.p50_ms,
        p99_ms: all.p99_ms,
        local_fraction: totals.local_fraction,
        held_fraction: totals.held_fraction,
        min_latency_fraction: totals.min_latency_fraction,
        true_rates: PlacementComparison::of(report, run),
        adapting: time_series::adaptations(report, run),
        switches: run.switches.clone(),
        parts: switches::parts(report, run),
        effort: OperationCost::of(report, run),
        linearizable: run.linearizable.word(),
        linearizable_text: run.linearizable.text().to_owned(),
        outage_groups: outage::groups(&outages),
        outages,
        counters: run.counters.clone(),
        sites,
    }
}

/// Returns the mean of the sites' mean latencies in ms. Sites without an answered operation are
/// omitted.
fn mean_by_site_ms(sites: &[SiteSummary]) -> f64 {
    let answered = || sites.iter().filter(|site| site.all.count > 0);
    let sum: f64 = answered().map(|site| site.all.mean_ms).sum();
    sum / answered().count().max(1) as f64
}

/// Means and shares over all sites. Each site is weighted by its number of operations.
struct Totals {
    reads: u64,
    writes: u64,
    local_fraction: f64,
    held_fraction: f64,
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
        let local = |s: &SiteSummary| s.reads.local_fraction * s.reads.count as f64;
        let held = |s: &SiteSummary| s.reads.held_fraction * s.reads.count as f64;
        let at_minimum = |s: &SiteSummary| s.writes.min_latency_fraction * s.writes.count as f64;
        Totals {
            reads,
            writes,
            local_fraction: weighted(local, reads),
            held_fraction: weighted(held, reads),
            min_latency_fraction: weighted(at_minimum, writes),
        }
    }
}

fn reads(
    report: &ExperimentReport,
    run: &StrategyRun,
    latencies: &Latencies,
    site: usize,
) -> ReadSummary {
    let answered = |sample: &&Sample| {
        usize::from(sample.site) == site
            && Class::of(sample.kind) == Class::Reads
            && sample.end == OpOutcome::Ok
    };
    let mut by_path = BTreeMap::new();
    let mut local = 0;
    for sample in run.samples.iter().filter(answered) {
        *by_path.entry(path_name(sample.path)).or_insert(0) += 1;
        local += u64::from(is_local(sample.path));
    }
    let held = by_path.get(path_name(wire::Path::Held)).copied();
    let bounds = report.bounds();
    let of_holders = |holders| bounds.read_ms(site, holders);
    ReadSummary {
        count: latencies.count(),
        failed: latencies.failed,
        timed_out: latencies.timed_out,
        local_fraction: share(local, latencies.count()),
        held_fraction: share(held.unwrap_or(0), latencies.count()),
        bookkeeping_fraction: at(&run.bookkeeping_local, site),
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

fn writes(
    report: &ExperimentReport,
    run: &StrategyRun,
    latencies: &Latencies,
    site: usize,
) -> WriteSummary {
    let bounds: Bounds = report.bounds();
    let bound_ms = bounds.write_min_ms(site);
    let of_holders = |holders| bounds.write_ms(site, holders, Replies::LeaderAndOrigin);
    WriteSummary {
        count: latencies.count(),
        failed: latencies.failed,
        timed_out: latencies.timed_out,
        min_latency_fraction: latencies.share_within(Tolerance::of(report).limit_ms(bound_ms)),
        bookkeeping_fraction: at(&run.bookkeeping_minimum, site),
        bound_ms,
        bounds_ms: distinct(holder_sets(report, run).into_iter().map(of_holders)),
        mean_ms: latencies.mean_ms(),
        p50_ms: latencies.quantile_ms(0.5),
        p95_ms: latencies.quantile_ms(0.95),
        p99_ms: latencies.quantile_ms(0.99),
        max_ms: latencies.quantile_ms(1.0),
    }
}

/// Returns the sets of holders that a strategy fixes in advance; empty if the strategy learns the
/// holders.
fn holder_sets(report: &ExperimentReport, run: &StrategyRun) -> Vec<SiteSet> {
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
