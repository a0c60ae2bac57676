//! Tables of the changes of strategy with their effect on clients, and of the parts of the key
//! space that have different strategies.

use leasehold_ycsb::sample::{OpOutcome, Sample};
use serde::Serialize;

use super::digest::{Class, Latencies, share};
use super::summary::{ExperimentSummary, is_local};
use super::table::{Table, grouped, ms, percent};
use super::tolerance::Tolerance;
use super::{ExperimentReport, StrategyRun};
use crate::experiment::StrategyPlan;

/// Maximum relative difference between two mean latencies that are regarded as equal. The first
/// mean is that of a part of the key space. The second mean is that of the same part in a run in
/// which the part's strategy applies to all keys.
const AS_ALONE: f64 = 0.02;

/// Returns a table with a line for each change of strategy; `None` if no strategy was changed.
pub(super) fn table(report: &ExperimentReport) -> Option<Table> {
    let title =
        "Changes of strategy: operations that failed, and local reads that they interrupted";
    let columns = [
        "run",
        "at s",
        "to",
        "operations until the next",
        "failed",
        "reads of keys held before and after",
        "not local",
    ];
    let mut table = Table::new(title, &columns);
    for run in &report.runs {
        let measured = run.measured.unwrap_or_default();
        let mut times: Vec<f64> = run.switches.iter().map(|s| s.at_s).collect();
        times.push(measured.end_s - measured.start_s);
        for (switch, span) in run.switches.iter().zip(times.windows(2)) {
            let at = |s: &Sample| s.start_ns as f64 / 1e9 - measured.start_s;
            let inside = |s: &&Sample| (span[0]..span[1]).contains(&at(s));
            let operations = run.samples.iter().filter(inside);
            let failed = operations
                .clone()
                .filter(|sample| sample.end != OpOutcome::Ok);
            table.rows.push(vec![
                run.label.clone(),
                format!("{:.0}", switch.at_s),
                switch.to.clone(),
                grouped(operations.count() as u64),
                failed.count().to_string(),
                grouped(switch.reads),
                switch.lost.to_string(),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Returns an explanation of the table.
pub(super) fn prose(report: &ExperimentReport) -> Option<String> {
    let switched = report.runs.iter().any(|run| !run.switches.is_empty());
    switched.then(|| {
        "A key counts as held before and after a change at a site whose last read of it before \
         was local, and whose last read in the settling time was local, too; reads so soon after \
         a configuration that an earlier promise may have served them say nothing. The settling \
         time lasts one reconfiguration period, or up to the next change if that is sooner: \
         replicas list holders for the new strategy in it, and choose none anew. Such a site holds \
         the key under both strategies, so none of its reads in this time may leave it."
            .to_owned()
    })
}

/// Measurements of one part of the key space in one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartSummary {
    /// First key of the part of the key space.
    pub from: u64,
    /// Strategy that is in force for this part of the key space at the end of the run.
    pub strategy: String,
    /// Number of answered operations.
    pub ops: u64,
    /// Mean latency over operations, in ms.
    pub mean_ms: f64,
    /// Share of reads that were local.
    pub local_fraction: f64,
    /// Share of writes at their minimum latency.
    pub min_latency_fraction: f64,
}

/// Returns all parts of the key space of a run; empty if the key space has only one part.
pub(super) fn parts(report: &ExperimentReport, run: &StrategyRun) -> Vec<PartSummary> {
    let Some(plan) = report.plan(run).filter(|_| run.parts.len() > 1) else {
        return Vec::new();
    };
    let part = |(index, from): (usize, &u64)| {
        let of_part = run.samples.iter().zip(&run.part_of);
        let samples = of_part.filter(|(_, part)| usize::from(**part) == index);
        PartSummary {
            from: *from,
            strategy: strategy_of(report, plan, *from).to_owned(),
            ..figures(report, samples.map(|(sample, _)| sample))
        }
    };
    run.parts.iter().enumerate().map(part).collect()
}

/// Returns the strategy that is in force for the key `from` at the end of the run.
fn strategy_of<'a>(report: &ExperimentReport, plan: &'a StrategyPlan, from: u64) -> &'a str {
    let keys = report.experiment.workload.keys;
    let concerns = |(first, after): (u64, u64)| (first..after).contains(&from);
    let changes = plan.change.iter().rev();
    let mut changes = changes.filter(|change| concerns(change.key_bounds(keys)));
    changes
        .next()
        .map_or(&plan.strategy, |change| &change.strategy)
}

fn figures<'a>(
    report: &ExperimentReport,
    samples: impl Iterator<Item = &'a Sample>,
) -> PartSummary {
    let bounds = report.bounds();
    let sites = 0..report.topology.len();
    let tolerance = Tolerance::of(report);
    let limits: Vec<f64> = sites
        .map(|site| tolerance.limit_ms(bounds.write_min_ms(site)))
        .collect();
    let mut all = Latencies::default();
    let [mut reads, mut local, mut writes, mut fast] = [0_u64; 4];
    for sample in samples.filter(|sample| sample.end == OpOutcome::Ok) {
        all.take(sample);
        let limit_ms = limits.get(usize::from(sample.site)).copied();
        match Class::of(sample.kind) {
            Class::Reads => {
                reads += 1;
                local += u64::from(is_local(sample.path));
            }
            Class::Writes => {
                writes += 1;
                let ms = sample.latency_ns as f64 / 1e6;
                fast += u64::from(limit_ms.is_some_and(|limit| ms <= limit));
            }
        }
    }
    PartSummary {
        from: 0,
        strategy: String::new(),
        ops: all.count(),
        mean_ms: all.mean_ms(),
        local_fraction: share(local, reads),
        min_latency_fraction: share(fast, writes),
    }
}

/// Returns a table with a line for each part and run. The line also shows the same part in another
/// run, in which the part's strategy applies to all keys.
pub(super) fn parts_table(summary: &ExperimentSummary) -> Option<Table> {
    let title =
        "Parts of the key space, each beside the same keys in the run where its strategy is alone";
    let columns = [
        "keys from",
        "run",
        "strategy",
        "operations",
        "mean ms",
        "local reads",
        "writes at minimum",
        "alone in",
        "mean ms there",
        "difference",
        "as if alone",
    ];
    let mut table = Table::new(title, &columns);
    table.words_first = 3;
    let several = |run: &super::RunSummary| {
        let mut names: Vec<&str> = run.parts.iter().map(|p| p.strategy.as_str()).collect();
        names.dedup();
        names.len() > 1
    };
    for run in summary.runs.iter().filter(|run| several(run)) {
        for (index, part) in run.parts.iter().enumerate() {
            let alone = summary.runs.iter().find(|other| {
                !several(other)
                    && other.parts.get(index).map(|p| &p.strategy) == Some(&part.strategy)
            });
            let same = alone.map(|other| &other.parts[index]);
            let off = same.map(|same| part.mean_ms / same.mean_ms - 1.0);
            let as_alone = off.map(|off| if off.abs() <= AS_ALONE { "yes" } else { "NO" });
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
            table.rows.push(vec![
                part.from.to_string(),
                run.label.clone(),
                part.strategy.clone(),
                grouped(part.ops),
                ms(part.mean_ms),
                percent(part.local_fraction),
                percent(part.min_latency_fraction),
                or_dash(alone.map(|other| other.label.clone())),
                or_dash(same.map(|same| ms(same.mean_ms))),
                or_dash(off.map(|off| format!("{:+.1}%", off * 100.0))),
                or_dash(as_alone.map(str::to_owned)),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}
