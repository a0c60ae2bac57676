//! Virtual time: the same replicas without sockets. Exact, and done in seconds.

mod attempts;
mod clients;
mod faults;
mod route;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use leases::ReplicaId;
use server::replica::action::Event as Note;
use server::replica::{Event as ReplicaEvent, Settings};
use server::sim::network::Faults;
use server::sim::world::{World, WorldSettings};

use super::counters::sum_counters;
use super::{Around, Plan, Progress, Ran};
use crate::experiment::{Experiment, Network};
use crate::report::Event;

use clients::Clients;

/// How long the cluster has to elect its leader and establish leases, in ns.
const SETTLE_NS: u64 = 5_000_000_000;
/// How long a sync takes, in ns.
const SYNC_NS: u64 = 100_000;
/// The longest extra delay of a reordered message, in ns.
const REORDER_NS: u64 = 300_000_000;

/// Runs every strategy of an experiment, as many at a time as there are cores.
///
/// # Errors
/// If the experiment names a strategy that replicas do not know.
pub fn run(experiment: &Experiment, progress: Progress<'_>) -> anyhow::Result<Vec<Ran>> {
    let plans = experiment.strategies.iter().map(|strategy| Plan {
        experiment,
        strategy,
    });
    let plans: Vec<Plan<'_>> = plans.collect();
    for plan in &plans {
        plan.spec()?;
    }
    let mut all = in_parallel(&plans, progress);
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, ran)| ran).collect()
}

/// Every plan's run beside its index, in the order in which they ended.
fn in_parallel(plans: &[Plan<'_>], progress: Progress<'_>) -> Vec<(usize, anyhow::Result<Ran>)> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < plans.len());
        let mut done = Vec::new();
        while let Some(index) = take() {
            done.push((index, run_plan(&plans[index], progress)));
        }
        done
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(plans.len()))
            .map(|_| scope.spawn(worker))
            .collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended
            .flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn world_settings(plan: &Plan<'_>) -> anyhow::Result<WorldSettings> {
    let topology = plan.topology();
    let n = topology.len();
    let mut replica = Settings::new(ReplicaId(0), n);
    replica.strategy = plan.spec()?;
    replica.params = plan.params();
    replica.preferred_leader = Some(ReplicaId(plan.experiment.leader_index() as u8));
    replica.timing.reconfigure = plan.experiment.lease.reconfigure();
    let one_way = |a: usize, b: usize| (topology.rtt_ms(a, b) / 2.0 * 1e6).round() as u64;
    let faults = faults(&plan.experiment.network);
    Ok(WorldSettings {
        replica,
        one_way_ns: (0..n)
            .map(|a| (0..n).map(|b| one_way(a, b)).collect())
            .collect(),
        client_one_way_ns: (topology.local_rtt_ms() / 2.0 * 1e6).round() as u64,
        sync_ns: SYNC_NS,
        faults,
        drift_ppm: (plan.experiment.lease.rho * 1e6 / 2.0) as u32,
        encoded: false,
        disks_remember: faults != Faults::default() || !plan.faults().is_empty(),
        watched: false,
    })
}

fn faults(network: &Network) -> Faults {
    let delays = network.reorder + network.duplication > 0.0;
    Faults {
        loss: network.loss,
        duplication: network.duplication,
        reordering: network.reorder,
        delay_max_ns: if delays { REORDER_NS } else { 0 },
        ..Faults::default()
    }
}

fn run_plan(plan: &Plan<'_>, progress: Progress<'_>) -> anyhow::Result<Ran> {
    let started = Instant::now();
    let world = World::new(world_settings(plan)?, plan.experiment.seed);
    let mut clients = Clients::new(plan, world, SETTLE_NS);
    clients.drive(progress)?;
    Ok(finish(plan, clients, started))
}

fn finish(plan: &Plan<'_>, clients: Clients<'_>, started: Instant) -> Ran {
    let world = &clients.world;
    let replicas = (0..plan.topology().len())
        .filter_map(|node| Some((world.replica(node)?, world.clock(node))));
    let counters = sum_counters(replicas.map(|(replica, clock)| replica.status(clock)));
    let notes = world.notes.iter();
    let events =
        notes.filter_map(|(at_ns, site, note)| event(plan, *at_ns as f64 / 1e9, *site, note));
    let around = Around {
        started,
        interval_ns: clients.interval.bounds_ns(world.now_ns()),
        virtual_s: Some(world.now_ns() as f64 / 1e9),
        events: events.collect(),
        notes: clients.notes(),
        faults: Some(clients.faults),
        counters,
        network: None,
    };
    clients.recorder.finish(plan, around)
}

fn event(plan: &Plan<'_>, at_s: f64, site: ReplicaId, note: &Note) -> Option<Event> {
    let names = plan.topology().names();
    let (kind, text) = match note {
        ReplicaEvent::Leading(ballot) => {
            (Event::ELECTION, format!("leads in round {}", ballot.round))
        }
        ReplicaEvent::Campaigning(ballot) => (
            Event::ELECTION,
            format!("campaigns in round {}", ballot.round),
        ),
        // Every replica reports every configuration. The leader's report is enough.
        ReplicaEvent::Configured {
            id, keys, strategy, ..
        } if site.index() == plan.experiment.leader_index() => (
            Event::CONFIGURATION,
            format!("{} ({strategy}): {keys} keys changed", id.0),
        ),
        _ => return None,
    };
    Some(Event {
        run: Some(plan.strategy.label.clone()),
        at_s,
        kind: kind.to_string(),
        sites: names
            .get(site.index())
            .map(|name| name.to_string())
            .into_iter()
            .collect(),
        text,
    })
}
