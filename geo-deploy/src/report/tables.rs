//! The tables of a report.

use super::paper;
use super::summary::{ExperimentSummary, RunSummary, SiteSummary};
use super::table::{Table, bounds, grouped, ms, percent, percent_or_dash};
use super::{ExperimentReport, MeasuredInterval, RunEvent, StrategyRun};
use crate::wan::{NetworkReport, PairReport};

/// Maximum number of events that a page lists.
const EVENTS_MAX: usize = 60;

/// Returns a table with one line for each strategy.
pub(super) fn overview(report: &ExperimentReport, summary: &ExperimentSummary) -> Table {
    let title = format!(
        "{} on {}, seed {}",
        report.experiment.name, report.backend, report.seed
    );
    let mut table = Table::new(
        title,
        &[
            "strategy",
            "operations",
            "mean ms by operation",
            "by site",
            "p50 ms",
            "p99 ms",
            "local reads",
            "of these held",
            "writes at minimum",
            "failed",
            "timed out",
            "linearizable",
        ],
    );
    table.rows = summary
        .runs
        .iter()
        .map(|run| {
            vec![
                named(run),
                grouped(run.ops),
                ms(run.mean_ms),
                ms(run.mean_by_site_ms),
                ms(run.p50_ms),
                ms(run.p99_ms),
                percent(run.local_fraction),
                percent(run.held_fraction),
                percent(run.min_latency_fraction),
                run.failed.to_string(),
                run.timed_out.to_string(),
                run.linearizable.to_owned(),
            ]
        })
        .collect();
    table
}

/// Returns a table for each strategy, with one line for each site. Each measurement is shown next
/// to its bound.
pub(super) fn per_run(report: &ExperimentReport, summary: &ExperimentSummary) -> Vec<Table> {
    let runs = report.runs.iter().zip(&summary.runs);
    runs.map(|(run, figures)| sites(run, figures)).collect()
}

fn sites(run: &StrategyRun, figures: &RunSummary) -> Table {
    let title = format!(
        "{}: {}; linearizable: {}; times in ms",
        named(figures),
        run.workload,
        figures.linearizable
    );
    let mut table = Table::new(
        title,
        &[
            "site",
            "reads",
            "local",
            "held",
            "bookkeeping",
            "p50",
            "p99",
            "bound",
            "writes",
            "at minimum",
            "p50",
            "p99",
            "bound",
            "minimum",
            "failed",
        ],
    );
    table.rows = figures.sites.iter().map(site).collect();
    table.without_empty_columns()
}

fn site(figures: &SiteSummary) -> Vec<String> {
    let (reads, writes) = (&figures.reads, &figures.writes);
    let unanswered = reads.failed + reads.timed_out + writes.failed + writes.timed_out;
    vec![
        figures.site.clone(),
        grouped(reads.count),
        percent(reads.local_fraction),
        percent(reads.held_fraction),
        percent_or_dash(reads.bookkeeping_fraction),
        ms(reads.p50_ms),
        ms(reads.p99_ms),
        bounds(&reads.bounds_ms),
        grouped(writes.count),
        percent(writes.min_latency_fraction),
        ms(writes.p50_ms),
        ms(writes.p99_ms),
        bounds(&writes.bounds_ms),
        bounds(&[writes.bound_ms]),
        unanswered.to_string(),
    ]
}

/// Returns tables of the means, percentiles and paths, because the tables of [`per_run`] have no
/// space for them.
pub(super) fn details(summary: &ExperimentSummary) -> Vec<Table> {
    let columns = [
        "site",
        "reads mean",
        "p95",
        "max",
        "under 10 ms",
        "served by",
        "writes mean",
        "p95",
        "max",
    ];
    let row = |site: &SiteSummary| {
        let paths = site.reads.by_path.iter();
        let paths: Vec<String> = paths
            .map(|(path, count)| format!("{path} {}", grouped(*count)))
            .collect();
        vec![
            site.site.clone(),
            ms(site.reads.mean_ms),
            ms(site.reads.p95_ms),
            ms(site.reads.max_ms),
            percent(site.reads.under_10ms_fraction),
            paths.join(", "),
            ms(site.writes.mean_ms),
            ms(site.writes.p95_ms),
            ms(site.writes.max_ms),
        ]
    };
    let table = |run: &RunSummary| Table {
        rows: run.sites.iter().map(row).collect(),
        ..Table::new(
            format!("{}: means, tails and paths, times in ms", named(run)),
            &columns,
        )
    };
    summary.runs.iter().map(table).collect()
}

/// Returns a table for the strategies that learn holders. It shows three shares of local reads: the
/// measured share, the share under perfect bookkeeping, and the share in the paper. Returns `None`
/// if no run has such a strategy.
pub(super) fn learning(report: &ExperimentReport, summary: &ExperimentSummary) -> Option<Table> {
    let columns = [
        "site",
        "local",
        "under 10 ms",
        "bookkeeping",
        "difference",
        "the paper",
    ];
    let mut table = Table::new("Local reads of strategies that learn", &columns);
    for (run, figures) in report.runs.iter().zip(&summary.runs) {
        if run.bookkeeping_local.is_none() {
            continue;
        }
        for site in &figures.sites {
            let books = site.reads.bookkeeping_fraction;
            let difference = books.map(|a| (site.reads.local_fraction - a) * 100.0);
            table.rows.push(vec![
                format!("{} {}", figures.label, site.site),
                percent(site.reads.local_fraction),
                percent(site.reads.under_10ms_fraction),
                percent_or_dash(books),
                difference.map_or_else(|| "–".to_owned(), |d| format!("{d:+.1} points")),
                percent_or_dash(paper::local_reads(report, run, &site.site).map(|p| p / 100.0)),
            ]);
        }
    }
    (!table.rows.is_empty()).then(|| table.without_empty_columns())
}

/// Returns a table of the shares of writes at their minimum latency. There is a column for each
/// site.
pub(super) fn minimum(report: &ExperimentReport, summary: &ExperimentSummary) -> Table {
    let mut columns = vec!["strategy"];
    columns.extend(report.topology.names());
    columns.extend(["all sites", "bookkeeping", "the paper"]);
    let title = format!(
        "Share of writes within {} of their minimum",
        summary.minimum_tolerance
    );
    let mut table = Table::new(title, &columns);
    for (run, figures) in report.runs.iter().zip(&summary.runs) {
        let mut row = vec![named(figures)];
        row.extend(
            figures
                .sites
                .iter()
                .map(|site| percent(site.writes.min_latency_fraction)),
        );
        row.push(percent(figures.min_latency_fraction));
        row.push(percent_or_dash(bookkeeping_minimum(figures)));
        let reported = paper::writes_at_minimum(report, run);
        row.push(percent_or_dash(reported.map(|p| p / 100.0)));
        table.rows.push(row);
    }
    let minimum = summary.runs.first().into_iter().flat_map(|run| &run.sites);
    let mut row = vec!["the minimum, in ms".to_owned()];
    row.extend(minimum.map(|site| bounds(&[site.writes.bound_ms])));
    row.resize(columns.len(), "–".to_owned());
    table.rows.push(row);
    table.without_empty_columns()
}

/// Returns the share of writes, over all sites, that would have had their minimum latency with
/// perfect bookkeeping.
pub(super) fn bookkeeping_minimum(run: &RunSummary) -> Option<f64> {
    let mut sum = 0.0;
    let mut count = 0;
    for site in &run.sites {
        sum += site.writes.bookkeeping_fraction? * site.writes.count as f64;
        count += site.writes.count;
    }
    (count > 0).then(|| sum / count as f64)
}

/// Returns a table with the measured interval of each run, and the number of operations of each
/// site in this interval. Failed operations are included.
pub(super) fn measured(report: &ExperimentReport, summary: &ExperimentSummary) -> Table {
    let mut columns = vec!["strategy", "from s", "to s"];
    columns.extend(report.topology.names());
    let title = "The interval that was measured, the same for all sites, and the operations that \
                 started in it";
    let mut table = Table::new(title, &columns);
    for run in &summary.runs {
        let time = |at: fn(&MeasuredInterval) -> f64| {
            let at = run.measured.as_ref().map(at);
            at.map_or_else(dash, |at| format!("{at:.1}"))
        };
        let mut row = vec![named(run), time(|m| m.start_s), time(|m| m.end_s)];
        let started = |site: &SiteSummary| {
            let (reads, writes) = (&site.reads, &site.writes);
            let unanswered = reads.failed + reads.timed_out + writes.failed + writes.timed_out;
            grouped(site.all.count + unanswered)
        };
        row.extend(run.sites.iter().map(started));
        table.rows.push(row);
    }
    table.without_empty_columns()
}

fn dash() -> String {
    "–".to_owned()
}

/// Returns a table of the requested round trips. If round trips were measured, the table has a line
/// for every pair of sites, and also shows the measured round trips of each run.
pub(super) fn network(report: &ExperimentReport) -> Table {
    let networks = report
        .runs
        .iter()
        .filter_map(|run| Some((&run.label, run.network.as_ref()?)));
    let networks: Vec<(&String, &NetworkReport)> = networks.collect();
    match networks.first() {
        None => configured_rtts(report),
        Some((_, first)) => probed_rtts(report, &first.pairs, &networks),
    }
}

/// Returns true if the network was measured in at least one run.
pub(super) fn has_measured(report: &ExperimentReport) -> bool {
    report.runs.iter().any(|run| run.network.is_some())
}

fn configured_rtts(report: &ExperimentReport) -> Table {
    let names = report.topology.names();
    let mut columns = vec!["ms"];
    columns.extend(&names);
    let mut table = Table::new("Round trips", &columns);
    for (name, row) in names.iter().zip(report.topology.matrix()) {
        let figures = row.iter().map(|value| format!("{value:.1}"));
        let row = std::iter::once((*name).to_owned()).chain(figures);
        table.rows.push(row.collect());
    }
    table
}

fn probed_rtts(
    report: &ExperimentReport,
    pairs: &[PairReport],
    networks: &[(&String, &NetworkReport)],
) -> Table {
    let names = report.topology.names();
    let mut columns = vec!["pair".to_owned(), "asked p50".to_owned(), "p99".to_owned()];
    for (label, _) in networks {
        columns.extend([
            format!("{label} p50"),
            "p99".to_owned(),
            "probes".to_owned(),
        ]);
    }
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new("Round trips asked for and measured, in ms", &columns);
    for pair in pairs {
        let name = format!("{}-{}", names[pair.a], names[pair.b]);
        let mut row = vec![name, ms(pair.asked_p50_ms), ms(pair.asked_p99_ms)];
        for (_, network) in networks {
            let same = |other: &&PairReport| (other.a, other.b) == (pair.a, pair.b);
            row.extend(match network.pairs.iter().find(same) {
                Some(found) => [
                    ms(found.p50_ms),
                    ms(found.p99_ms),
                    grouped(found.probes as u64),
                ],
                None => [dash(), dash(), dash()],
            });
        }
        table.rows.push(row);
    }
    table
}

/// Returns a table of the events in order of time. New configurations are omitted. If there are
/// many events, the table contains only the first events.
pub(super) fn events(report: &ExperimentReport) -> Table {
    let mut events = report.all_events();
    events.retain(|event| event.kind != RunEvent::CONFIGURATION);
    let count = events.len();
    let title = if count > EVENTS_MAX {
        format!("The first {EVENTS_MAX} of {count} events; events.jsonl has them all")
    } else {
        "Events".to_owned()
    };
    let mut table = Table::new(title, &["run", "at s", "kind", "sites", "what"]);
    table.words = true;
    let or_all = |names: String| {
        if names.is_empty() {
            "all".to_owned()
        } else {
            names
        }
    };
    let row = |event: &RunEvent| {
        vec![
            or_all(event.run.clone().unwrap_or_default()),
            format!("{:.3}", event.at_s),
            event.kind.clone(),
            or_all(event.sites.join(", ")),
            event.text.clone(),
        ]
    };
    table.rows = events.iter().take(EVENTS_MAX).map(row).collect();
    table
}

/// Returns a table of the replicas' counters, with a column for each run.
pub(super) fn counters(summary: &ExperimentSummary) -> Option<Table> {
    let mut columns = vec!["counter"];
    columns.extend(summary.runs.iter().map(|run| run.label.as_str()));
    let mut names: Vec<&String> = summary
        .runs
        .iter()
        .flat_map(|run| run.counters.keys())
        .collect();
    names.sort();
    names.dedup();
    let mut table = Table::new("Counters of the replicas, summed", &columns);
    table.rows = names
        .into_iter()
        .map(|name| {
            let values = summary.runs.iter().map(|run| run.counters.get(name));
            let values = values.map(|value| value.map_or("–".to_owned(), u64::to_string));
            std::iter::once(name.clone()).chain(values).collect()
        })
        .collect();
    (!table.rows.is_empty()).then_some(table)
}

fn named(run: &RunSummary) -> String {
    if run.label == run.strategy {
        run.label.clone()
    } else {
        format!("{} ({})", run.label, run.strategy)
    }
}
