//! Real processes on one machine: a `serve` for every site, behind an emulated WAN.

mod cluster;
mod ports;

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use client::wire::command::Op;
use client::{Client, ClientOptions};
use tokio::task::{JoinHandle, LocalSet};
use ycsb::sample::OpKind;

pub(super) use cluster::events_file;
pub use cluster::{LocalCluster, LocalSettings};

use super::counters::sum_counters;
use super::{
    Around, ClosedLoop, Ended, Plan, Progress, Ran, Recorder, key_name, node_events, value,
};
use crate::experiment::Experiment;
use crate::report::Event;

/// Runs every strategy of an experiment, one after the other.
///
/// # Errors
/// If a cluster cannot be started or never gets ready.
pub async fn run(
    experiment: &Experiment,
    settings: &LocalSettings,
    progress: Progress<'_>,
) -> anyhow::Result<Vec<Ran>> {
    let mut all = Vec::new();
    for strategy in &experiment.strategies {
        let plan = Plan {
            experiment,
            strategy,
        };
        let dir = settings.dir.join(&strategy.label);
        let settings = LocalSettings {
            dir,
            ..settings.clone()
        };
        all.push(run_plan(&plan, &settings, progress).await?);
    }
    Ok(all)
}

async fn run_plan(
    plan: &Plan<'_>,
    settings: &LocalSettings,
    progress: Progress<'_>,
) -> anyhow::Result<Ran> {
    let started = Instant::now();
    let start_unix_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |t| t.as_millis());
    progress(&plan.strategy.label, 0, plan.requests());
    let mut cluster = LocalCluster::start(plan, settings)?;
    let admins = cluster.ready(plan).await?;
    let ready = ready_event(plan, started.elapsed().as_secs_f64());
    let recorder = drive(plan, &cluster, progress).await?;
    let mut statuses = Vec::new();
    for admin in &admins {
        statuses.extend(admin.status().await);
    }
    let measured = cluster.wan().measured_matrix_ms();
    let notes = deviations(&cluster);
    cluster.stop();
    let mut events = node_events::read(plan, &settings.dir, start_unix_ms as u64);
    let at = events.partition_point(|event| event.at_s <= ready.at_s);
    events.insert(at, ready);
    // The data of a run is of no use after it.
    let _ = std::fs::remove_dir_all(settings.dir.join("data"));
    let around = Around {
        started,
        virtual_s: None,
        events,
        notes,
        counters: sum_counters(statuses),
        measured_rtt_ms: Some(measured),
    };
    Ok(recorder.finish(plan, around))
}

fn deviations(cluster: &LocalCluster) -> Vec<String> {
    let deviations = cluster.wan().deviations();
    let words = deviations.iter().map(|d| {
        format!(
            "the round trip {}-{} was {:.2} ms, not the {:.2} ms asked for",
            d.a, d.b, d.measured_ms, d.asked_ms
        )
    });
    words.collect()
}

/// Runs all clients until each has made its requests.
async fn drive(
    plan: &Plan<'_>,
    cluster: &LocalCluster,
    progress: Progress<'_>,
) -> anyhow::Result<Recorder> {
    let ended = Rc::new(Cell::new(0));
    let loops = start_loops(plan, cluster, &ended);
    let all = async {
        let mut recorder = Recorder::new(plan);
        for task in loops.tasks {
            recorder.merge(task.await.context("a client failed")?.context("a client")?);
        }
        anyhow::Ok(recorder)
    };
    let show = async {
        loop {
            progress(&plan.strategy.label, ended.get(), plan.requests());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let either = async {
        tokio::select! {
            done = all => done,
            never = show => never,
        }
    };
    loops.local.run_until(either).await
}

/// The clients of a run. They make progress while `local` is run.
struct Loops {
    local: LocalSet,
    tasks: Vec<JoinHandle<Result<Recorder, client::Error>>>,
}

fn start_loops(plan: &Plan<'_>, cluster: &LocalCluster, ended: &Rc<Cell<u64>>) -> Loops {
    let bytes = plan.experiment.workload.value_bytes as usize;
    let epoch = Instant::now();
    let local = LocalSet::new();
    let start = |client: ClosedLoop| {
        let address = cluster.client_addresses()[client.site];
        let mut options = ClientOptions::new(address.to_string());
        options.cluster = Some(cluster.name().to_string());
        options.request_timeout = Duration::from_secs(30);
        let ended = ended.clone();
        local.spawn_local(async move {
            let connection = Client::connect(options).await?;
            Ok(closed_loop(client, connection, bytes, epoch, &ended).await)
        })
    };
    let tasks = ClosedLoop::all(plan).into_iter().map(start).collect();
    Loops { local, tasks }
}

async fn closed_loop(
    mut client: ClosedLoop,
    connection: Client,
    bytes: usize,
    epoch: Instant,
    ended: &Cell<u64>,
) -> Recorder {
    let mut recorder = Recorder::default();
    let now = || epoch.elapsed().as_nanos() as u64;
    while let Some(ask) = client.next() {
        let op = match ask.kind {
            OpKind::Read => Op::get(key_name(ask.key)),
            _ => Op::put(key_name(ask.key), value(ask.value, bytes)),
        };
        let began_ns = now();
        let reply = connection.execute(op).await.ok();
        recorder.ended(&Ended {
            site: client.site,
            process: client.process,
            ask,
            began_ns,
            now_ns: now(),
            answer: reply.as_ref().map(|reply| (reply.path, &reply.outcome)),
        });
        ended.set(ended.get() + 1);
    }
    recorder
}

fn ready_event(plan: &Plan<'_>, at_s: f64) -> Event {
    Event {
        run: Some(plan.strategy.label.clone()),
        at_s,
        kind: Event::READY.to_string(),
        sites: Vec::new(),
        text: "the leader leads and every replica is promised by enough others".to_string(),
    }
}
