//! What replica processes wrote down about themselves, as a report's events.

use std::path::Path;

use serde::Deserialize;

use super::Plan;
use crate::report::Event;

/// A line of a replica's events file; fields that a report does not show are left out.
#[derive(Deserialize)]
struct Line {
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
}

/// Reads the events files of a run's replicas; `start_unix_ms` is when it began.
/// Files and lines that cannot be read are left out: no figure depends on events.
pub(super) fn read(plan: &Plan<'_>, dir: &Path, start_unix_ms: u64) -> Vec<Event> {
    let mut events = Vec::new();
    for site in plan.topology().names() {
        let text =
            std::fs::read_to_string(super::local::events_file(dir, site)).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Line>(line).ok());
        events.extend(lines.filter_map(|line| event(plan, &line, start_unix_ms)));
    }
    events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    events
}

fn event(plan: &Plan<'_>, line: &Line, start_unix_ms: u64) -> Option<Event> {
    let (kind, text) = match line.event.as_str() {
        "campaigning" => (
            Event::ELECTION,
            format!("campaigns in round {}", line.round),
        ),
        "leading" => (Event::ELECTION, format!("leads in round {}", line.round)),
        // Every replica reports every configuration. The leader's report is enough.
        "configured" if line.node == plan.experiment.leader => {
            let Line {
                configuration,
                keys,
                strategy,
                ..
            } = line;
            (
                Event::CONFIGURATION,
                format!("{configuration} ({strategy}): {keys} keys changed"),
            )
        }
        _ => return None,
    };
    Some(Event {
        run: Some(plan.strategy.label.clone()),
        at_s: line.unix_ms.saturating_sub(start_unix_ms) as f64 / 1e3,
        kind: kind.to_string(),
        sites: vec![line.node.clone()],
        text,
    })
}
