//! Announcements of replicas, as a report's events.

use std::collections::BTreeSet;

use leasehold_leases::ReplicaId;
use leasehold_replica::Event as ReplicaEvent;
use leasehold_replica::action::Event as Note;

use super::super::Plan;
use super::super::node_events::hold_nothing;
use crate::run::Event;

/// Elections, and each configuration once: as the first replica that knew it reports it.
pub(super) fn of_replicas(plan: &Plan<'_>, notes: &[(u64, ReplicaId, Note)]) -> Vec<Event> {
    let mut known = BTreeSet::new();
    let fresh = |(_, _, note): &&(u64, ReplicaId, Note)| match note {
        ReplicaEvent::Configured { id, .. } => known.insert(id.0),
        _ => true,
    };
    let notes: Vec<_> = notes.iter().filter(fresh).collect();
    let event = |(at_ns, site, note): &&(u64, ReplicaId, Note)| {
        let (kind, text) = in_words(plan, note)?;
        Some(event(plan, *at_ns, &[site.index()], (kind, text)))
    };
    notes.iter().filter_map(event).collect()
}

fn in_words(plan: &Plan<'_>, note: &Note) -> Option<(&'static str, String)> {
    Some(match note {
        ReplicaEvent::Leading(ballot) => {
            (Event::ELECTION, format!("leads in round {}", ballot.round))
        }
        ReplicaEvent::Campaigning(ballot) => (
            Event::ELECTION,
            format!("campaigns in round {}", ballot.round),
        ),
        ReplicaEvent::Configured {
            id,
            keys,
            strategy,
            excluded,
        } => {
            let without = hold_nothing(plan, excluded.iter().map(ReplicaId::index));
            let text = format!("{} ({strategy}): {keys} keys changed{without}", id.0);
            (Event::CONFIGURATION, text)
        }
        _ => return None,
    })
}

/// Something that happened at these sites.
pub(super) fn event(
    plan: &Plan<'_>,
    at_ns: u64,
    sites: &[usize],
    (kind, text): (&str, String),
) -> Event {
    let names = plan.topology().names();
    Event {
        run: Some(plan.strategy.label.clone()),
        at_s: at_ns as f64 / 1e9,
        kind: kind.to_owned(),
        sites: sites.iter().map(|site| names[*site].to_owned()).collect(),
        text,
    }
}
