//! One round. A cluster is started, and a schedule of faults is carried out while clients send
//! operations. Finally all replicas are killed and restarted, and the record of the operations is
//! judged.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use leasehold_wire as wire;
use tokio::task::LocalSet;

use super::evidence;
use super::falsification::{Falsification, falsify};
use super::fault_injector::{FaultAccount, FaultInjector};
use super::judge::{Judgement, judge};
use super::load::{LoadGenerator, LoadSettings};
use super::record::{OutcomeCounts, RoundRecord};
use super::request::OperationKind;
use super::result::{RoundResult, SiteOutage};
use super::running_round::{RoundProgress, RoundProgressFn, RunningRound};
use super::schedule::{self, ScheduleSettings};
use crate::backend::RunPlan;
use crate::backend::local::{LocalCluster, LocalSettings};
use crate::experiment::Experiment;
use crate::fault::FaultSpec;

/// Settings that are the same for all rounds of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Program of the replicas, which is started with the command `serve`; usually this program
    /// itself.
    pub program: PathBuf,
    /// Directory that contains a separate directory for each running round.
    pub dir: PathBuf,
    /// Settings of the cluster, and its strategies. Each round uses the next strategy.
    pub experiment: Experiment,
    /// Seed of all random choices of the run.
    pub seed: u64,
    /// Duration of the clients' load in a round, and mean time between faults.
    pub schedule: ScheduleSettings,
    /// Intended number of operations a second, over all clients.
    pub rate: f64,
    /// Kind of falsification, if each record is falsified in order to test the judge; `None` for a
    /// run without such a test.
    pub self_test: Option<Falsification>,
}

/// One round of a run.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// Settings of all rounds.
    pub settings: &'a Settings,
    /// Sequence number of the round, from 1.
    pub number: u32,
}

/// Facts about a round that has ended. The result of the round is computed from these facts.
pub(super) struct RoundFacts {
    pub record: RoundRecord,
    pub account: FaultAccount,
    pub seconds: f64,
    pub memory_bytes: u64,
    pub broken: Vec<String>,
}

impl Round<'_> {
    /// Returns the label of this round's strategy.
    pub fn label(&self) -> &str {
        &self.plan().strategy.label
    }

    /// Returns the seed of all random choices in this round.
    pub fn seed(&self) -> u64 {
        // SplitMix64 makes rounds of neighboring seeds independent.
        let mut z = self
            .settings
            .seed
            .wrapping_add(u64::from(self.number) << 32);
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn plan(&self) -> RunPlan<'_> {
        let experiment = &self.settings.experiment;
        let strategies = &experiment.strategies;
        RunPlan::new(
            experiment,
            &strategies[(self.number as usize - 1) % strategies.len()],
        )
    }

    fn dir(&self) -> PathBuf {
        self.settings.dir.join(format!("round-{}", self.number))
    }

    fn faults(&self) -> Vec<FaultSpec> {
        let topology = &self.settings.experiment.topology;
        schedule::draw(self.seed(), self.settings.schedule, topology)
    }

    /// Runs and judges the round. Violations are part of the result, not errors. The directory of a
    /// round without a violation is removed.
    ///
    /// # Errors
    /// If the cluster cannot be started, or a file cannot be written.
    pub async fn run(&self, show: RoundProgressFn<'_>) -> anyhow::Result<RoundResult> {
        let dir = self.dir();
        evidence::make_empty(&dir)?;
        self.show(show, "starting");
        let mut cluster = self.start().await?;
        let clients = LocalSet::new();
        let facts = clients.run_until(self.drive(&mut cluster, show)).await?;
        cluster.stop();
        self.show(show, "judging");
        let (facts, judged) = self.judge(facts).await?;
        let result = self.result(&facts, judged);
        if result.is_violation() {
            evidence::save(&dir, &facts, &result)?
        } else {
            std::fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?
        }
        Ok(result)
    }

    async fn start(&self) -> anyhow::Result<LocalCluster> {
        let settings = LocalSettings {
            program: self.settings.program.clone(),
            cluster: format!("chaos-{}", self.number),
            dir: self.dir(),
            client_port: None,
            insecure: false,
        };
        let mut cluster = LocalCluster::start(&self.plan(), &settings)?;
        cluster.ready(&self.plan()).await?;
        Ok(cluster)
    }

    async fn judge(&self, mut facts: RoundFacts) -> anyhow::Result<(RoundFacts, Judgement)> {
        if let Some(falsification) = self.settings.self_test {
            let falsified = falsify(falsification, &mut facts.record);
            ensure!(
                falsified,
                "too little happened to be falsified: give more --minutes"
            );
        }
        let judging = tokio::task::spawn_blocking(move || {
            let judged = judge(&facts.record);
            (facts, judged)
        });
        Ok(judging.await?)
    }

    pub(super) fn show(&self, show: RoundProgressFn<'_>, doing: &'static str) {
        show(&RoundProgress {
            number: self.number,
            strategy: self.label(),
            doing,
            elapsed_s: 0.0,
            faults: 0,
            operations: OutcomeCounts::default(),
            failing: Vec::new(),
        });
    }

    async fn drive(
        &self,
        cluster: &mut LocalCluster,
        show: RoundProgressFn<'_>,
    ) -> anyhow::Result<RoundFacts> {
        let topology = &self.settings.experiment.topology;
        let faults = self.faults();
        evidence::write_schedule(&self.dir(), &faults)?;
        let mut injector = FaultInjector::new(&faults, topology, self.seed());
        let began = Instant::now();
        let load = LoadGenerator::start(self.load(cluster), began);
        let mut running = RunningRound {
            round: self,
            cluster,
            began,
            memory_bytes: 0,
            show,
        };
        let injected = running.run_schedule(&mut injector, &load).await;
        let seconds = began.elapsed().as_secs_f64();
        let healed = injector.heal(running.cluster, seconds);
        let (mut record, groups) = load.finish().await?;
        let ended = match injected.and(healed) {
            Ok(()) => running.end(&mut record, groups).await,
            Err(error) => Err(error),
        };
        let mut broken = ended.unwrap_or_else(|error| vec![format!("{error:#}")]);
        broken.extend(running.too_large());
        Ok(RoundFacts {
            record,
            account: injector.account,
            seconds,
            memory_bytes: running.memory_bytes,
            broken,
        })
    }

    fn load(&self, cluster: &LocalCluster) -> LoadSettings {
        let experiment = &self.settings.experiment;
        let topology = &experiment.topology;
        let all = cluster.client_addresses();
        let known = |site: usize| {
            let sites = [vec![site], topology.nearest_to(site)].concat();
            sites.into_iter().map(|site| all[site]).collect()
        };
        LoadSettings {
            access: cluster.client_access().clone(),
            addresses: (0..topology.len()).map(known).collect(),
            clients: experiment.workload.clients as usize,
            rate: self.settings.rate,
            seed: self.seed(),
        }
    }

    fn result(&self, facts: &RoundFacts, judged: Judgement) -> RoundResult {
        let record = &facts.record;
        let topology = &self.settings.experiment.topology;
        let kinds = record.counts.iter();
        let paths = record.paths.iter();
        let mut result = RoundResult {
            number: self.number,
            strategy: self.label().to_owned(),
            seed: self.seed(),
            seconds: facts.seconds,
            faults: facts.account.begun.clone(),
            skipped: facts.account.skipped,
            operations: kinds
                .map(|(kind, counts)| (OperationKind::name(*kind), *counts))
                .collect(),
            paths: paths
                .map(|(path, count)| (wire::Path::as_str_name(path), *count))
                .collect(),
            outage: SiteOutage::longest(record, false, topology),
            outage_roaming: SiteOutage::longest(record, true, topology),
            memory_bytes: facts.memory_bytes,
            judged,
            broken: facts.broken.clone(),
            kept: None,
        };
        result.kept = result.is_violation().then(|| self.dir());
        result
    }
}
