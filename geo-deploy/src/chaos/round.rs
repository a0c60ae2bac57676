//! One round: a cluster, a schedule and a load, the last kill of everything, the verdict.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use leasehold_wire as wire;
use tokio::task::LocalSet;

use super::ask::Kind;
use super::conductor::{Conductor, Performed};
use super::control::{Control, falsify};
use super::evidence;
use super::judge::{Judged, judge};
use super::load::{Load, LoadSettings};
use super::ran::{Outage, Ran};
use super::record::{Counts, Record};
use super::schedule::{self, Span};
use super::stage::{Progress, Show, Stage};
use crate::backend::Plan;
use crate::backend::local::{LocalCluster, LocalSettings};
use crate::experiment::Experiment;
use crate::fault::Fault;

/// Settings that are the same for all rounds of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program to start as `serve`; usually this one.
    pub program: PathBuf,
    /// Where each round has a directory of its own while it runs.
    pub dir: PathBuf,
    /// The cluster, and the strategies that rounds take in turn.
    pub experiment: Experiment,
    /// Everything random follows from it.
    pub seed: u64,
    /// Time for which clients are at work in a round, in seconds, and frequency of faults.
    pub span: Span,
    /// Operations a second that all clients together try for.
    pub rate: f64,
    /// Falsifies what clients saw, which must be noticed.
    pub control: Option<Control>,
}

/// One round of a run.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// Settings that all rounds share.
    pub settings: &'a Settings,
    /// Number of the round, from 1.
    pub number: u32,
}

/// Facts of a round that has ended, for its verdict.
pub(super) struct Lived {
    pub record: Record,
    pub performed: Performed,
    pub seconds: f64,
    pub memory_bytes: u64,
    pub broken: Vec<String>,
}

impl Round<'_> {
    /// The strategy of this round.
    pub fn label(&self) -> &str {
        &self.plan().strategy.label
    }

    /// Everything random in this round follows from it.
    pub fn seed(&self) -> u64 {
        // SplitMix64: rounds of neighbouring seeds have nothing in common.
        let mut z = self
            .settings
            .seed
            .wrapping_add(u64::from(self.number) << 32);
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn plan(&self) -> Plan<'_> {
        let experiment = &self.settings.experiment;
        let strategies = &experiment.strategies;
        Plan::new(
            experiment,
            &strategies[(self.number as usize - 1) % strategies.len()],
        )
    }

    fn dir(&self) -> PathBuf {
        self.settings.dir.join(format!("round-{}", self.number))
    }

    fn faults(&self) -> Vec<Fault> {
        let topology = &self.settings.experiment.topology;
        schedule::draw(self.seed(), self.settings.span, topology)
    }

    /// Runs it and judges it. What is wrong is part of the result. The directory of a round
    /// without a violation is removed.
    ///
    /// # Errors
    /// If the cluster cannot be started, or a file cannot be written.
    pub async fn run(&self, show: Show<'_>) -> anyhow::Result<Ran> {
        let dir = self.dir();
        evidence::make_empty(&dir)?;
        self.show(show, "starting");
        let mut cluster = self.start().await?;
        let clients = LocalSet::new();
        let lived = clients.run_until(self.live(&mut cluster, show)).await?;
        cluster.stop();
        self.show(show, "judging");
        let (lived, judged) = self.judge(lived).await?;
        let ran = self.ran(&lived, judged);
        match ran.is_violation() {
            true => evidence::keep(&dir, &lived, &ran)?,
            false => std::fs::remove_dir_all(&dir)
                .with_context(|| format!("removing {}", dir.display()))?,
        }
        Ok(ran)
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

    async fn judge(&self, mut lived: Lived) -> anyhow::Result<(Lived, Judged)> {
        if let Some(control) = self.settings.control {
            let falsified = falsify(control, &mut lived.record);
            ensure!(
                falsified,
                "too little happened to be falsified: give more --minutes"
            );
        }
        let judging = tokio::task::spawn_blocking(move || {
            let judged = judge(&lived.record);
            (lived, judged)
        });
        Ok(judging.await?)
    }

    pub(super) fn show(&self, show: Show<'_>, doing: &'static str) {
        show(&Progress {
            number: self.number,
            strategy: self.label(),
            doing,
            elapsed_s: 0.0,
            faults: 0,
            operations: Counts::default(),
            failing: Vec::new(),
        });
    }

    async fn live(&self, cluster: &mut LocalCluster, show: Show<'_>) -> anyhow::Result<Lived> {
        let topology = &self.settings.experiment.topology;
        let faults = self.faults();
        evidence::write_schedule(&self.dir(), &faults)?;
        let mut conductor = Conductor::new(&faults, topology, self.seed());
        let began = Instant::now();
        let load = Load::start(self.load(cluster), began);
        let mut stage = Stage {
            round: self,
            cluster,
            began,
            memory_bytes: 0,
            show,
        };
        let conducted = stage.conduct(&mut conductor, &load).await;
        let seconds = began.elapsed().as_secs_f64();
        let healed = conductor.heal(stage.cluster, seconds);
        let (mut record, groups) = load.finish().await?;
        let ended = match conducted.and(healed) {
            Ok(()) => stage.end(&mut record, groups).await,
            Err(error) => Err(error),
        };
        let mut broken = ended.unwrap_or_else(|error| vec![format!("{error:#}")]);
        broken.extend(stage.too_large());
        Ok(Lived {
            record,
            performed: conductor.performed,
            seconds,
            memory_bytes: stage.memory_bytes,
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
            reach: cluster.reach().clone(),
            addresses: (0..topology.len()).map(known).collect(),
            clients: experiment.workload.clients as usize,
            rate: self.settings.rate,
            seed: self.seed(),
        }
    }

    fn ran(&self, lived: &Lived, judged: Judged) -> Ran {
        let record = &lived.record;
        let topology = &self.settings.experiment.topology;
        let kinds = record.counts.iter();
        let paths = record.paths.iter();
        let mut ran = Ran {
            number: self.number,
            strategy: self.label().to_owned(),
            seed: self.seed(),
            seconds: lived.seconds,
            faults: lived.performed.begun.clone(),
            skipped: lived.performed.skipped,
            operations: kinds
                .map(|(kind, counts)| (Kind::name(*kind), *counts))
                .collect(),
            paths: paths
                .map(|(path, count)| (wire::Path::as_str_name(path), *count))
                .collect(),
            outage: Outage::longest(record, false, topology),
            outage_roaming: Outage::longest(record, true, topology),
            memory_bytes: lived.memory_bytes,
            judged,
            broken: lived.broken.clone(),
            kept: None,
        };
        ran.kept = ran.is_violation().then(|| self.dir());
        ran
    }
}
