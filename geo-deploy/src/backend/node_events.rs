//! Conversion of the events that replica processes write to files into events of a report.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

use super::RunPlan;
use crate::run::RunEvent;

/// A line of a replica's events file. Only the fields that a report shows are parsed.
#[derive(Deserialize)]
struct EventLine {
    unix_ms: u64,
    node: String,
    event: String,
    #[serde(default)]
    round: u64,
    #[serde(default)]
    configuration: u64,
    #[serde(default)]
    keys: u64,
    #[serde(default)]
    strategy: String,
    /// Indices of the replicas that must not hold leases.
    #[serde(default)]
    excluded: Vec<usize>,
}

/// Reads the events files of a run's replicas. `start_unix_ms` is the Unix time in ms at which the
/// run began. Skips files and lines that cannot be read.
pub(super) fn read(plan: &RunPlan<'_>, dir: &Path, start_unix_ms: u64) -> Vec<RunEvent> {
    let mut lines = Vec::new();
    for site in plan.topology().names() {
        let text =
            std::fs::read_to_string(super::local::events_file(dir, site)).unwrap_or_default();
        let read = text
            .lines()
            .filter_map(|line| serde_json::from_str::<EventLine>(line).ok());
        lines.extend(read);
    }
    lines.sort_by_key(|line| line.unix_ms);
    // Every replica reports every configuration; only the first report is kept.
    let mut known = BTreeSet::new();
    lines.retain(|line| line.event != "configured" || known.insert(line.configuration));
    let events = lines.iter();
    events
        .filter_map(|line| event(plan, line, start_unix_ms))
        .collect()
}

/// Returns a note about the excluded replicas, for example ", JP hold nothing". The note is empty
/// if all replicas may hold leases.
pub(super) fn excluded_note(plan: &RunPlan<'_>, excluded: impl Iterator<Item = usize>) -> String {
    let names = plan.topology().names();
    let without: Vec<&str> = excluded
        .filter_map(|site| names.get(site).copied())
        .collect();
    match without.len() {
        0 => String::new(),
        1 => format!(", {} holds nothing", without[0]),
        _ => format!(", {} hold nothing", without.join(", ")),
    }
}

fn event(plan: &RunPlan<'_>, line: &EventLine, start_unix_ms: u64) -> Option<RunEvent> {
    let (kind, text) = match line.event.as_str() {
        "campaigning" => (
            RunEvent::ELECTION,
            format!("campaigns in round {}", line.round),
        ),
        "leading" => (RunEvent::ELECTION, format!("leads in round {}", line.round)),
        "configured" => {
            let EventLine {
                configuration,
                keys,
                strategy,
                excluded,
                ..
            } = line;
            let without = excluded_note(plan, excluded.iter().copied());
            let text = format!("{configuration} ({strategy}): {keys} keys changed{without}");
            (RunEvent::CONFIGURATION, text)
        }
        _ => return None,
    };
    Some(RunEvent {
        run: Some(plan.strategy.label.clone()),
        at_s: line.unix_ms.saturating_sub(start_unix_ms) as f64 / 1e3,
        kind: kind.to_string(),
        sites: vec![line.node.clone()],
        text,
    })
}
