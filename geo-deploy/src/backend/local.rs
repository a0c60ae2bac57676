//! Backend with real processes on one machine: a `serve` process for every site, behind an emulated
//! WAN.

mod changes;
mod client_access;
mod clients;
mod cluster;
mod fault_runner;
mod holder_query;
mod links;
pub mod one_site;
mod ports;
mod replica;
mod roles;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
pub use client_access::ClientAccess;
pub use cluster::{DataState, LocalCluster, LocalSettings};
use leasehold_wire::StatusRequest;
pub use ports::free_ports;
pub(super) use replica::events_file;
pub use replica::{DownReason, ProcessEvent, ProcessState, ProcessStatus};
pub use roles::Roles;

use super::counters::sum_counters;
use super::faults::RunFaults;
use super::{EndedRuns, ProgressFn, RunContext, RunPlan, RunResult, node_events};
use crate::experiment::Experiment;
use crate::run::RunEvent;

/// Longest time that a replica may take to report its counters.
const STATUS_WITHIN: Duration = Duration::from_secs(2);

/// Runs all strategies of an experiment, one after another. Adds each run to `ended` as soon as the
/// run has ended. The runs in `ended` are kept even if a later run fails or this future is dropped.
///
/// # Errors
/// If a cluster cannot be started or does not become ready.
pub async fn run(
    experiment: &Experiment,
    settings: &LocalSettings,
    progress: ProgressFn<'_>,
    ended: &mut EndedRuns,
) -> anyhow::Result<()> {
    for strategy in &experiment.strategies {
        for run in 0..experiment.runs {
            let plan = RunPlan {
                experiment,
                strategy,
                run,
            };
            let ran = one_of_several(&plan, settings, progress).await?;
            ended.add(&strategy.label, ran);
        }
    }
    Ok(())
}

/// Executes one run of a strategy. Each run has its own directory. If the strategy has several
/// runs, the reported progress is the number of runs that have ended.
async fn one_of_several(
    plan: &RunPlan<'_>,
    settings: &LocalSettings,
    progress: ProgressFn<'_>,
) -> anyhow::Result<RunResult> {
    let (label, runs) = (&plan.strategy.label, plan.experiment.runs);
    let dir = match runs {
        1 => label.clone(),
        _ => format!("{label}-{}", plan.run + 1),
    };
    let settings = LocalSettings {
        dir: settings.dir.join(dir),
        ..settings.clone()
    };
    if runs == 1 {
        return run_plan(plan, &settings, progress).await;
    }
    progress(label, plan.run.into(), runs.into());
    let ran = run_plan(plan, &settings, &|_, _, _| ()).await;
    progress(label, u64::from(plan.run) + 1, runs.into());
    ran.with_context(|| format!("{label}, run {} (seed {})", plan.run + 1, plan.seed()))
}

async fn run_plan(
    plan: &RunPlan<'_>,
    settings: &LocalSettings,
    progress: ProgressFn<'_>,
) -> anyhow::Result<RunResult> {
    let started = Instant::now();
    let start_unix_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |t| t.as_millis());
    progress(&plan.strategy.label, 0, plan.requests());
    let mut cluster = LocalCluster::start(plan, settings)?;
    let admins = cluster.ready(plan).await?;
    let ready = ready_event(plan, started.elapsed().as_secs_f64());
    cluster.wan().probe().context("probing the emulated WAN")?;
    let mut faults = RunFaults::new(plan);
    let outcome = clients::drive(plan, &mut cluster, &mut faults, started, progress).await?;
    let mut statuses = Vec::new();
    for admin in &admins {
        // A replica that is down or paused does not answer, and is skipped.
        let status =
            tokio::time::timeout(STATUS_WITHIN, admin.raw().status(StatusRequest::default())).await;
        statuses.extend(status.ok().and_then(Result::ok));
    }
    let at = |ns: u64| started + Duration::from_nanos(ns);
    let (begin_ns, end_ns) = outcome.interval_ns;
    let network = cluster.wan().network(at(begin_ns), at(end_ns));
    cluster.stop();
    let mut events = node_events::read(plan, &settings.dir, start_unix_ms as u64);
    let at = events.partition_point(|event| event.at_s <= ready.at_s);
    events.insert(at, ready);
    // The data of a run is not needed after it.
    let _ = std::fs::remove_dir_all(settings.dir.join("data"));
    let context = RunContext {
        started,
        interval_ns: outcome.interval_ns,
        virtual_s: None,
        events,
        notes: outcome.notes,
        faults: Some(faults),
        counters: sum_counters(statuses),
        network: Some(network),
    };
    Ok(outcome.recorder.finish(plan, context))
}

fn ready_event(plan: &RunPlan<'_>, at_s: f64) -> RunEvent {
    RunEvent {
        run: Some(plan.strategy.label.clone()),
        at_s,
        kind: RunEvent::READY.to_string(),
        sites: Vec::new(),
        text: "the leader leads and every replica is promised by enough others".to_string(),
    }
}
