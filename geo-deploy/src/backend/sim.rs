//! Backend in virtual time. It runs the same replica code without sockets. Its results are
//! reproducible and available within seconds.

mod attempts;
mod changes;
mod clients;
mod events;
mod faults;
mod route;
mod slot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context as _;
use leasehold_kernel::network::Faults;
use leasehold_leases::ReplicaId;
use leasehold_replica::Settings;
use leasehold_sim::world::{World, WorldSettings};

use super::counters::sum_counters;
use super::{EndedRuns, ProgressFn, RunContext, RunPlan, RunResult};
use crate::experiment::{Experiment, NetworkFaults};

use clients::Clients;

/// Virtual time, in ns, in which the cluster elects its leader and establishes leases before
/// clients start.
const STARTUP_NS: u64 = 5_000_000_000;
/// Duration of a sync to disk, in ns.
pub(crate) const SYNC_NS: u64 = 100_000;
/// Longest extra delay of a reordered message, in ns.
const REORDER_NS: u64 = 300_000_000;

/// Runs all strategies of an experiment, in parallel on as many threads as there are cores. Each
/// run is added to `ended` as soon as it has ended, even if another run fails. If `stop` is set,
/// all unfinished runs are stopped soon, and have no result.
///
/// # Errors
/// If the experiment names a strategy that replicas do not know.
pub fn run(
    experiment: &Experiment,
    progress: ProgressFn<'_>,
    stop: &AtomicBool,
    ended: &mut EndedRuns,
) -> anyhow::Result<()> {
    let mut plans = Vec::new();
    for strategy in &experiment.strategies {
        RunPlan::new(experiment, strategy).strategies()?;
        plans.extend((0..experiment.runs).map(|run| RunPlan {
            experiment,
            strategy,
            run,
        }));
    }
    let mut all = in_parallel(&plans, progress, stop);
    all.sort_by_key(|(index, _)| *index);
    let mut failed = Ok(());
    for (index, ran) in all {
        match ran {
            Ok(Some(ran)) => ended.add(&plans[index].strategy.label, ran),
            Ok(None) => {}
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    failed
}

/// Runs plans in parallel. Returns the results in the order in which the runs ended. Each result is
/// paired with the index of its plan. The results do not include stopped runs.
fn in_parallel(
    plans: &[RunPlan<'_>],
    progress: ProgressFn<'_>,
    stop: &AtomicBool,
) -> Vec<(usize, anyhow::Result<Option<RunResult>>)> {
    let next = AtomicUsize::new(0);
    let ended = RepeatProgress::new(plans, progress, stop);
    let worker = || {
        let more = |index: &usize| *index < plans.len() && !stop.load(Ordering::Relaxed);
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(more);
        let mut done = Vec::new();
        while let Some(index) = take() {
            done.push((index, ended.run(&plans[index])));
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

/// Reporter of progress. For a strategy with a single run, it reports the progress of this run. For
/// a strategy with several runs, it reports the number of runs that have ended.
struct RepeatProgress<'a> {
    progress: ProgressFn<'a>,
    stop: &'a AtomicBool,
    ended: Mutex<BTreeMap<String, u64>>,
}

impl<'a> RepeatProgress<'a> {
    fn new(
        plans: &[RunPlan<'_>],
        progress: ProgressFn<'a>,
        stop: &'a AtomicBool,
    ) -> RepeatProgress<'a> {
        let label = |plan: &RunPlan<'_>| (plan.strategy.label.clone(), 0);
        RepeatProgress {
            progress,
            stop,
            ended: Mutex::new(plans.iter().map(label).collect()),
        }
    }

    fn run(&self, plan: &RunPlan<'_>) -> anyhow::Result<Option<RunResult>> {
        let runs = plan.experiment.runs;
        if runs == 1 {
            return run_plan(plan, self.progress, self.stop);
        }
        let ran = run_plan(plan, &|_, _, _| (), self.stop);
        let label = &plan.strategy.label;
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = ended.get_mut(label) {
            *ended += 1;
            (self.progress)(label, *ended, runs.into());
        }
        ran.with_context(|| format!("{label}, run {} (seed {})", plan.run + 1, plan.seed()))
    }
}

fn world_settings(plan: &RunPlan<'_>) -> anyhow::Result<WorldSettings> {
    let topology = plan.topology();
    let n = topology.len();
    let mut replica = Settings::new(ReplicaId(0), n);
    replica.strategies = plan.strategies()?;
    replica.params = plan.params();
    replica.elections.preferred = Some(ReplicaId(plan.experiment.leader_index() as u8));
    replica.timing = plan.experiment.timing_of_replicas();
    replica.accept_replies = plan.accept_replies().into();
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
        segment_bytes: None,
        slow_reads: false,
        faulty_reporter: None,
        watched: false,
    })
}

fn faults(network: &NetworkFaults) -> Faults {
    let delays = network.reorder + network.duplication > 0.0;
    Faults {
        loss: network.loss,
        duplication: network.duplication,
        reordering: network.reorder,
        delay_max_ns: if delays { REORDER_NS } else { 0 },
        ..Faults::default()
    }
}

/// Executes the run of a plan, and returns its result; `None` if the run was stopped.
fn run_plan(
    plan: &RunPlan<'_>,
    progress: ProgressFn<'_>,
    stop: &AtomicBool,
) -> anyhow::Result<Option<RunResult>> {
    let started = Instant::now();
    let world = World::new(world_settings(plan)?, plan.seed());
    let mut clients = Clients::new(plan, world, STARTUP_NS);
    clients.drive(progress, stop)?;
    let stopped = stop.load(Ordering::Relaxed);
    Ok((!stopped).then(|| finish(plan, clients, started)))
}

fn finish(plan: &RunPlan<'_>, clients: Clients<'_>, started: Instant) -> RunResult {
    let world = &clients.world;
    let replicas = (0..plan.topology().len())
        .filter_map(|node| Some((world.replica(node)?, world.clock(node))));
    let counters = sum_counters(replicas.map(|(replica, clock)| replica.status(clock)));
    let mut events = events::of_replicas(plan, &world.notes);
    events.extend(clients.events.iter().cloned());
    events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let context = RunContext {
        started,
        interval_ns: clients.interval.bounds_ns(world.now_ns()),
        virtual_s: Some(world.now_ns() as f64 / 1e9),
        events,
        notes: clients.notes(),
        faults: Some(clients.faults),
        counters,
        network: None,
    };
    clients.recorder.finish(plan, context)
}
