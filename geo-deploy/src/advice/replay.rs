//! Replays the requests of a history up to some time, as replicas would have reported them to a
//! leader.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::ensure;
use foldhash::fast::FixedState;
use leasehold_histories::history::{History, HistoryAction, HistoryEvent};
use leasehold_leases::advice::{Profile, ProfilePass};
use leasehold_leases::demand::{Census, Delta, Demand, TallyReport};
use leasehold_leases::{ReplicaId, ReplicaSet, StrategySpec, Time};

use crate::backend::{RunPlan, key_name};

/// Time between two reports of a replica.
const REPORTED_EVERY: Duration = Duration::from_secs(1);

/// Returns the site of the client that sent the operation. This function derives the site from the
/// process ID in the history.
pub(super) fn site_of(event: &HistoryEvent, sites: usize) -> usize {
    event.process as usize % sites
}

/// Computes the demand from the requests in a history before the time `until`. The result covers at
/// most `keys_max` keys.
pub(super) fn profile(
    plan: &RunPlan<'_>,
    history: &History,
    until: Time,
    keys_max: usize,
) -> anyhow::Result<Profile> {
    let events = history.events().iter();
    let mut events: Vec<&HistoryEvent> = events.filter(|event| at(event) < until).collect();
    ensure!(
        !events.is_empty(),
        "its history has no operation before the middle of the measured interval"
    );
    events.sort_by_key(|event| event.invoke_ns);
    let replay = Replay::of(plan, &events);
    let strategies = plan.strategies()?;
    let nearest = near_majority(plan);
    let holders = |key: &[u8]| match strategies.get(key) {
        StrategySpec::Fixed { holders } => holders.unwrap_or(nearest),
        _ => ReplicaSet::EMPTY,
    };
    Ok(replay.profile(holders, keys_max))
}

/// Returns the leader and the N/2 replicas that are nearest to it.
fn near_majority(plan: &RunPlan<'_>) -> ReplicaSet {
    let leader = plan.experiment.leader_index();
    let others = plan.topology().nearest_to(leader).into_iter();
    let near = others.take(plan.topology().len() / 2).chain([leader]);
    near.map(|site| ReplicaId(site as u8)).collect()
}

fn at(event: &HistoryEvent) -> Time {
    Time(event.invoke_ns)
}

struct Replay {
    n: usize,
    demand: Demand,
    /// Number of keys in the key space of the workload.
    universe: usize,
}

impl Replay {
    fn of(plan: &RunPlan<'_>, events: &[&HistoryEvent]) -> Replay {
        let n = plan.topology().len();
        let universe = plan.experiment.workload.keys as usize;
        let mut now = at(events[0]);
        let mut replay = Replay {
            n,
            demand: Demand::new(now, n, usize::MAX),
            universe,
        };
        let every = plan.experiment.lease.reconfigure();
        let mut aged = now;
        let mut rest = events;
        while !rest.is_empty() {
            now = now + REPORTED_EVERY;
            let reported = rest.partition_point(|event| at(event) < now);
            replay.report(now, &rest[..reported]);
            rest = &rest[reported..];
            if now.since(aged) >= every {
                aged = now;
                replay.age(now);
            }
        }
        replay
    }

    /// Reports, for each site, the requests that clients of the site sent since the last report.
    fn report(&mut self, now: Time, events: &[&HistoryEvent]) {
        let mut counts: Vec<HashMap<u64, (u32, u32), FixedState>> =
            vec![HashMap::default(); self.n];
        for event in events {
            let count = counts[site_of(event, self.n)].entry(event.key).or_default();
            match event.action {
                HistoryAction::Read { .. } => count.0 += 1,
                _ => count.1 += 1,
            }
        }
        for (site, counts) in counts.into_iter().enumerate() {
            let delta = |(key, (reads, writes)): (u64, (u32, u32))| Delta {
                key: key_name(key),
                reads,
                writes,
            };
            let report = TallyReport {
                deltas: counts.into_iter().map(delta).collect(),
                ..TallyReport::default()
            };
            self.demand.report(now, ReplicaId(site as u8), &report);
        }
    }

    fn age(&mut self, now: Time) {
        let mut census = Census::default();
        for place in 0..self.demand.len() {
            let row = self.demand.row(place);
            row.into_iter().for_each(|(_, row)| census.add(row));
        }
        self.demand.age(now, &census);
    }

    fn profile(&self, holders: impl Fn(&[u8]) -> ReplicaSet, keys_max: usize) -> Profile {
        let mut gathering = ProfilePass::begin(&self.demand, self.n, keys_max);
        gathering.look(&self.demand, &holders, usize::MAX);
        let last = key_name(self.universe as u64 - 1);
        gathering.finish(&self.demand, self.universe, holders(&last))
    }
}
