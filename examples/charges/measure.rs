//! Measures all cases, round by round.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::time::sleep;

use crate::cases::{Case, Stage};
use crate::cluster::Recipe;
use crate::clusters::PreparedCluster;
use crate::load::Load;
use crate::processor::{ProcessorTime, spent};
use crate::rows::{CaseMeasurement, Row};

/// Duration of the load before a measurement. It fills memory and caches.
const WARM_UP: Duration = Duration::from_millis(100);
/// Duration of one measurement of the processor time that idle replicas use.
const IDLE: Duration = Duration::from_millis(500);
/// Number of measurements of the processor time that idle replicas use.
const IDLE_LOOKS: usize = 4;
/// Time to wait after writes, so that the measured cost of writes includes one checkpoint. A
/// replica makes a checkpoint each second.
const CHECKPOINTED: Duration = Duration::from_millis(1_100);
/// Time to wait after requests that are not writes.
const SETTLED: Duration = Duration::from_millis(20);

/// Number of rounds in which each case is measured, and duration of each measurement.
#[derive(Clone, Copy)]
pub struct Pace {
    pub rounds: usize,
    pub length: Duration,
}

/// Processor time that each replica of a cluster uses per second while the replica is idle.
struct IdleUsage {
    stage: Stage,
    replicas: Vec<ProcessorTime>,
}

/// Results of all measurements.
pub struct Measurements {
    pub rows: Vec<Row>,
    /// Number of elections in all clusters during the measurements.
    pub elections: u64,
}

/// Results of one case in the rounds so far.
#[derive(Default)]
struct Findings {
    rounds: Vec<CaseMeasurement>,
    /// Reason why the case cannot be measured; `None` if it can.
    problem: Option<String>,
}

/// Starts the clusters that the cases need, and measures all cases in each round.
pub async fn measure(recipe: &Recipe, cases: &[Case], pace: Pace) -> anyhow::Result<Measurements> {
    let mut clusters = start(recipe, cases).await?;
    let mut findings: Vec<Findings> = cases.iter().map(|_| Findings::default()).collect();
    let before = ballot_rounds(&clusters).await?;
    for round in 1..=pace.rounds {
        let idle = idle(&clusters).await?;
        for (number, (case, findings)) in cases.iter().zip(&mut findings).enumerate() {
            if findings.problem.is_some() {
                continue;
            }
            let connection = (round * cases.len() + number) as u64;
            let cluster = cluster_of(&clusters, case.stage)?;
            let measured = one(cluster, case, pace.length, connection, &idle).await;
            let figure = findings.add(measured);
            leasehold_ycsb::note!(
                "[round {round} of {}, {} of {}] {} {} {}: {figure}",
                pace.rounds,
                number + 1,
                cases.len(),
                case.kind,
                case.size,
                case.unit
            );
        }
        for cluster in &mut clusters {
            cluster.ensure_whole()?;
        }
    }
    let after = ballot_rounds(&clusters).await?;
    let rows = cases.iter().zip(findings);
    let rows = rows.map(|(case, it)| Row::new(case, &it.rounds, it.problem));
    Ok(Measurements {
        rows: rows.collect(),
        elections: after.saturating_sub(before),
    })
}

impl Findings {
    /// Adds the measurement of one round. Returns a description of this measurement for a terminal.
    fn add(&mut self, measured: anyhow::Result<CaseMeasurement>) -> String {
        let problem = match &measured {
            Ok(measured) => measured.answered.refusal.clone(),
            Err(error) => Some(format!("{error:#}")),
        };
        if let Some(problem) = problem {
            self.problem = Some(problem.clone());
            return format!("not measured: {problem}");
        }
        let figure = measured.as_ref().map_or(0.0, CaseMeasurement::ns) / 1000.0;
        self.rounds.extend(measured);
        format!("{figure:.1} us")
    }
}

async fn start(recipe: &Recipe, cases: &[Case]) -> anyhow::Result<Vec<PreparedCluster>> {
    let stages: BTreeSet<Stage> = cases.iter().map(|case| case.stage).collect();
    let mut clusters = Vec::new();
    for stage in stages {
        leasehold_ycsb::note!("starting a cluster: {stage:?}");
        let started = PreparedCluster::start(recipe, stage).await;
        clusters.push(started.with_context(|| format!("the cluster {stage:?}"))?);
    }
    for (number, case) in cases.iter().enumerate() {
        let cluster = cluster_of(&clusters, case.stage)?;
        cluster.write(case, number as u64).await?;
    }
    Ok(clusters)
}

/// Returns the sum of the ballot rounds of all clusters. If a later sum is greater, there was an
/// election between the two calls.
async fn ballot_rounds(clusters: &[PreparedCluster]) -> anyhow::Result<u64> {
    let mut sum = 0;
    for cluster in clusters {
        sum += cluster.ballot_round().await?;
    }
    Ok(sum)
}

fn cluster_of(clusters: &[PreparedCluster], stage: Stage) -> anyhow::Result<&PreparedCluster> {
    let found = clusters.iter().find(|cluster| cluster.stage == stage);
    found.context("there is no such cluster")
}

fn processes(cluster: &PreparedCluster) -> anyhow::Result<Vec<u32>> {
    let all = cluster.cluster.processes();
    let all: Option<Vec<u32>> = all.into_iter().collect();
    all.context("a replica does not run")
}

/// Returns the processor time of each replica while it is idle. The result is the least of several
/// measurements, because an idle replica sometimes has irregular work to do.
async fn idle(clusters: &[PreparedCluster]) -> anyhow::Result<Vec<IdleUsage>> {
    for cluster in clusters {
        cluster.refresh().await?;
    }
    sleep(CHECKPOINTED).await;
    let mut least = idle_once(clusters).await?;
    for _ in 1..IDLE_LOOKS {
        for (least, now) in least.iter_mut().zip(idle_once(clusters).await?) {
            for (least, now) in least.replicas.iter_mut().zip(now.replicas) {
                *least = least.least(now);
            }
        }
    }
    Ok(least)
}

async fn idle_once(clusters: &[PreparedCluster]) -> anyhow::Result<Vec<IdleUsage>> {
    let look = |cluster: &PreparedCluster| -> anyhow::Result<Vec<ProcessorTime>> {
        let spent = processes(cluster)?.into_iter().map(spent);
        Ok(spent.collect::<std::io::Result<_>>()?)
    };
    let begun = Instant::now();
    let before: Vec<Vec<ProcessorTime>> =
        clusters.iter().map(look).collect::<anyhow::Result<_>>()?;
    sleep(IDLE).await;
    let mut all = Vec::new();
    for (cluster, before) in clusters.iter().zip(before) {
        let taken = look(cluster)?.into_iter().zip(before);
        let seconds = begun.elapsed().as_secs_f64();
        let replicas = taken.map(|(after, before)| (after - before).scaled(1.0 / seconds));
        all.push(IdleUsage {
            stage: cluster.stage,
            replicas: replicas.collect(),
        });
    }
    Ok(all)
}

async fn one(
    cluster: &PreparedCluster,
    case: &Case,
    length: Duration,
    connection: u64,
    idle: &[IdleUsage],
) -> anyhow::Result<CaseMeasurement> {
    let process = processes(cluster)?[case.replica];
    let mut load = Load::connect(case, &cluster.cluster.clients[case.replica], connection).await?;
    load.run(WARM_UP).await?;
    let settles_in = if case.writes { CHECKPOINTED } else { SETTLED };
    if case.writes {
        sleep(settles_in).await;
    }
    let (begun, before) = (Instant::now(), spent(process)?);
    let answered = load.run(length).await?;
    sleep(settles_in).await;
    let taken = spent(process)? - before;
    let idle = idle.iter().find(|idle| idle.stage == case.stage);
    let idle = idle.map_or(ProcessorTime::default(), |idle| idle.replicas[case.replica]);
    let taken = taken - idle.scaled(begun.elapsed().as_secs_f64());
    Ok(CaseMeasurement {
        answered,
        processor: taken.all,
        of_loop: taken.first,
    })
}
