//! Reads that were held back by a write in flight, and the replicas' work for each operation.

use leasehold_wire as wire;
use leasehold_ycsb::sample::OpOutcome;
use serde::Serialize;

use super::digest::{Class, Latencies, share};
use super::summary::ExperimentSummary;
use super::table::{Table, grouped, ms, percent};
use super::{ExperimentReport, StrategyRun};

/// Messages and processor time of a run's replicas, and waiting times of held reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OperationCost {
    /// Setting that determines to which replicas votes are sent. Votes are always sent to the
    /// leader.
    pub accept_replies: &'static str,
    /// Number of local reads that waited for a write in flight (held reads).
    pub held: u64,
    /// Share of held reads among all answered reads.
    pub held_fraction: f64,
    /// Mean waiting time of held reads, in ms.
    pub held_mean_ms: f64,
    /// Median waiting time of held reads, in ms.
    pub held_p50_ms: f64,
    /// 99th percentile of the waiting time of held reads, in ms.
    pub held_p99_ms: f64,
    /// Total waiting time of held reads, in ms, divided by the number of all answered reads.
    pub held_ms_per_read: f64,
    /// Number of messages between replicas, divided by the number of operations of the whole run
    /// (warm-up included).
    pub messages_per_op: Option<f64>,
    /// Processor time of all replicas, in µs, divided by the number of operations of the whole run
    /// (warm-up included).
    pub cpu_us_per_op: Option<f64>,
}

impl OperationCost {
    pub(super) fn of(report: &ExperimentReport, run: &StrategyRun) -> OperationCost {
        let plan = report.plan(run);
        let votes = plan.map(|plan| plan.accept_replies(&report.experiment));
        let mut held = Latencies::default();
        let mut reads = 0;
        for sample in &run.samples {
            let answered = sample.end == OpOutcome::Ok && Class::of(sample.kind) == Class::Reads;
            reads += u64::from(answered);
            if answered && sample.path == wire::Path::Held {
                held.take(sample);
            }
        }
        held.sort();
        let per_op = |name: &str| {
            let count = *run.counters.get(name)? as f64;
            (run.issued > 0).then(|| count / run.issued as f64)
        };
        let held_fraction = share(held.count(), reads);
        OperationCost {
            accept_replies: votes.unwrap_or_default().name(),
            held: held.count(),
            held_fraction,
            held_mean_ms: held.mean_ms(),
            held_p50_ms: held.quantile_ms(0.5),
            held_p99_ms: held.quantile_ms(0.99),
            held_ms_per_read: held.mean_ms() * held_fraction,
            messages_per_op: per_op("messages_sent"),
            cpu_us_per_op: per_op("cpu_us"),
        }
    }
}

/// Returns a table with one line for each strategy. Returns `None` if no read was held back, and
/// neither messages nor processor time were measured.
pub(super) fn table(summary: &ExperimentSummary) -> Option<Table> {
    let title = "Reads held back by a write in flight, and what replicas did for an operation";
    let columns = [
        "strategy",
        "votes to",
        "held reads",
        "share of reads",
        "mean ms",
        "p50 ms",
        "p99 ms",
        "ms for each read",
        "messages for each operation",
        "CPU µs for each operation",
    ];
    let mut table = Table::new(title, &columns);
    table.words_first = 2;
    let figure = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |v| format!("{v:.1}"));
    let runs = summary.runs.iter();
    table.rows = runs
        .map(|run| {
            let effort = &run.effort;
            vec![
                run.label.clone(),
                effort.accept_replies.to_owned(),
                grouped(effort.held),
                percent(effort.held_fraction),
                ms(effort.held_mean_ms),
                ms(effort.held_p50_ms),
                ms(effort.held_p99_ms),
                format!("{:.3}", effort.held_ms_per_read),
                figure(effort.messages_per_op),
                figure(effort.cpu_us_per_op),
            ]
        })
        .collect();
    let told =
        |run: &super::RunSummary| run.effort.held > 0 || run.effort.messages_per_op.is_some();
    summary
        .runs
        .iter()
        .any(told)
        .then(|| table.without_empty_columns())
}
