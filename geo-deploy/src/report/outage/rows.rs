//! Rows of outages in a report. Faults with the same description share rows.

use super::{LongestOutage, OutageGroup};
use crate::report::table::{Table, grouped, ms};

/// Maximum number of rows of the complete table. A longer table is shortened: it shows only the
/// worst site for each fault and group of operations.
const ROWS_MAX: usize = 60;

/// Returns the table of one run's outages; `None` if the run had no faults, or if no operation was
/// due.
pub(in super::super) fn table(label: &str, groups: &[OutageGroup]) -> Option<Table> {
    let mut rows: Vec<&OutageGroup> = groups.iter().collect();
    if rows.is_empty() {
        return None;
    }
    let several = rows.iter().any(|group| group.faults > 1);
    let mut title = format!("{label}: outages that clients saw");
    if rows.len() > ROWS_MAX {
        rows = worst(rows);
        title.push_str("; of each fault the site that it hit worst, outages.csv has them all");
    }
    let mut table = Table::new(title, &columns(several));
    table.rows = rows.iter().map(|group| cells(group, several)).collect();
    table.words_first = 3;
    Some(table.without_empty_columns())
}

fn columns(several: bool) -> Vec<&'static str> {
    let lengths: &[&str] = if several {
        &["faults", "outage p50 s", "p99 s", "longest s"]
    } else {
        &["outage s"]
    };
    let first = ["fault", "clients at", "operations"];
    let last = [
        "longest wait s",
        "bound s",
        "kept",
        "longest in run",
        "due",
        "failed",
        "timed out",
        "all keys: median before ms",
        "after ms",
    ];
    [&first[..], lengths, &last[..]].concat()
}

/// Returns the worst site for each fault and group. This is the site with the most exceeded bounds.
/// If several sites have the same number of exceeded bounds, it is the site with the longest wait.
fn worst(groups: Vec<&OutageGroup>) -> Vec<&OutageGroup> {
    let mut kept: Vec<&OutageGroup> = Vec::new();
    for group in groups {
        let same = |other: &&mut &OutageGroup| {
            (&other.text, other.operations()) == (&group.text, group.operations())
        };
        match kept.iter_mut().find(same) {
            Some(other) if group.severity() > other.severity() => *other = group,
            Some(_) => {}
            None => kept.push(group),
        }
    }
    kept
}

fn cells(group: &OutageGroup, several: bool) -> Vec<String> {
    let mut cells = vec![group.text.clone(), group.site.clone(), group.operations()];
    if several {
        cells.push(group.faults.to_string());
        cells.extend([group.outage_p50_s, group.outage_p99_s].map(seconds));
    }
    cells.extend([group.outage_s, group.longest_s].map(seconds));
    cells.push(group.bound_s.map_or_else(dash, seconds));
    cells.push(kept(group));
    cells.push(runs(&group.longest));
    cells.extend([group.due, group.failed, group.timed_out].map(grouped));
    let medians = [group.median_before_ms, group.median_after_ms];
    cells.extend(medians.map(|median| median.map_or_else(dash, ms)));
    cells
}

fn kept(group: &OutageGroup) -> String {
    match (group.bounded, group.bounded - group.kept) {
        (0, _) => dash(),
        (_, 0) => "yes".to_owned(),
        (1, _) => "NO".to_owned(),
        (all, _) => format!("{} of {all}", group.kept),
    }
}

/// Returns the sequence numbers of the runs with the longest waits; a dash if there is only one
/// run.
fn runs(longest: &[LongestOutage]) -> String {
    let runs = longest.iter().filter_map(|one| one.run);
    let runs: Vec<String> = runs.map(|run| run.to_string()).collect();
    if runs.is_empty() {
        dash()
    } else {
        runs.join(", ")
    }
}

fn seconds(value: f64) -> String {
    format!("{value:.3}")
}

fn dash() -> String {
    "–".to_owned()
}
