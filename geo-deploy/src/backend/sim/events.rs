//! Conversion of the replicas' announcements into events of a report.

use std::collections::BTreeSet;

use leasehold_leases::ReplicaId;
use leasehold_replica::Event as ReplicaEvent;
use leasehold_replica::action::Event as Note;

use crate::backend::RunPlan;
use crate::backend::node_events::excluded_note;
use crate::run::RunEvent;

/// Returns an event for each election and for each new configuration. If several replicas reported
/// a configuration, the event has the time of the first report.
pub(super) fn of_replicas(plan: &RunPlan<'_>, notes: &[(u64, ReplicaId, Note)]) -> Vec<RunEvent> {
    let mut known = BTreeSet::new();
    let fresh = |(_, _, note): &&(u64, ReplicaId, Note)| match note {
        ReplicaEvent::Configured { id, .. } => known.insert(id.0),
        _ => true,
    };
    let notes: Vec<_> = notes.iter().filter(fresh).collect();
    let event = |(at_ns, site, note): &&(u64, ReplicaId, Note)| {
        let (kind, text) = in_words(plan, note)?;
        Some(event(plan, *at_ns, &[site.index()], kind, text))
    };
    notes.iter().filter_map(event).collect()
}

fn in_words(plan: &RunPlan<'_>, note: &Note) -> Option<(&'static str, String)> {
    Some(match note {
        ReplicaEvent::Leading(ballot) => (
            RunEvent::ELECTION,
            format!("leads in round {}", ballot.round),
        ),
        ReplicaEvent::Campaigning(ballot) => (
            RunEvent::ELECTION,
            format!("campaigns in round {}", ballot.round),
        ),
        ReplicaEvent::Configured {
            id,
            keys,
            strategy,
            excluded,
        } => {
            let without = excluded_note(plan, excluded.iter().map(ReplicaId::index));
            let text = format!("{} ({strategy}): {keys} keys changed{without}", id.0);
            (RunEvent::CONFIGURATION, text)
        }
        _ => return None,
    })
}

/// Returns an event that concerns these sites.
pub(super) fn event(
    plan: &RunPlan<'_>,
    at_ns: u64,
    sites: &[usize],
    kind: &str,
    text: String,
) -> RunEvent {
    let names = plan.topology().names();
    RunEvent {
        run: Some(plan.strategy.label.clone()),
        at_s: at_ns as f64 / 1e9,
        kind: kind.to_owned(),
        sites: sites.iter().map(|site| names[*site].to_owned()).collect(),
        text,
    }
}
