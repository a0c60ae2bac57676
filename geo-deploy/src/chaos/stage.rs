//! A round while its clients are at work, and what follows when they have gone.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::conductor::Conductor;
use super::last::Last;
use super::load::Load;
use super::record::{Counts, Record};
use super::round::Round;
use crate::backend::local::LocalCluster;
use crate::fault::Effect;

/// Time between two looks after the processes, and resolution of the begin and end of faults.
const TICK: Duration = Duration::from_millis(20);
/// Time between two updates of the progress, and between two looks at the memory of the replicas.
const SHOW_EVERY: Duration = Duration::from_millis(500);
/// A replica that takes more memory than this, in bytes, takes too much: clients have
/// written some MiB.
const MEMORY_MAX: u64 = 1 << 30;

/// Progress of a round.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// Number of the round.
    pub number: u32,
    /// Its strategy.
    pub strategy: &'a str,
    /// Current step of the round.
    pub doing: &'static str,
    /// Since clients began, in seconds.
    pub elapsed_s: f64,
    /// Faults that have begun.
    pub faults: u64,
    /// Operations that have ended.
    pub operations: Counts,
    /// Faults that hold now.
    pub failing: Vec<&'a str>,
}

/// Called often while a round runs.
pub type Show<'a> = &'a dyn Fn(&Progress<'_>);

/// A round while it runs.
pub(super) struct Stage<'a> {
    pub round: &'a Round<'a>,
    pub cluster: &'a mut LocalCluster,
    pub began: Instant,
    pub memory_bytes: u64,
    pub show: Show<'a>,
}

impl Stage<'_> {
    /// Carries out the schedule, until the clients' time is over.
    pub async fn conduct(
        &mut self,
        conductor: &mut Conductor<'_>,
        load: &Load,
    ) -> anyhow::Result<()> {
        let settings = self.round.settings;
        let mut shown = self.began;
        loop {
            let now_s = self.began.elapsed().as_secs_f64();
            if now_s >= settings.span.length_s {
                return Ok(());
            }
            super::look_after(self.cluster, &settings.experiment.topology)?;
            conductor.step(self.cluster, now_s).await?;
            if shown.elapsed() >= SHOW_EVERY {
                shown = Instant::now();
                self.weigh();
                (self.show)(&Progress {
                    number: self.round.number,
                    strategy: self.round.label(),
                    doing: "running",
                    elapsed_s: now_s,
                    faults: conductor.performed.begun.values().sum(),
                    operations: load.record().total(),
                    failing: conductor.failing(),
                });
            }
            sleep(TICK).await;
        }
    }

    /// Everything is well again: every replica must serve. Then all are killed and started,
    /// and everything is read through each. Returns how replicas differ.
    pub async fn end(&mut self, record: &mut Record, groups: u64) -> anyhow::Result<Vec<String>> {
        let topology = &self.round.settings.experiment.topology;
        self.round
            .show(self.show, "waiting until every replica serves");
        let mut last = Last {
            cluster: self.cluster,
            sites: topology,
            began: self.began,
            groups,
        };
        last.settle().await?;
        self.round
            .show(self.show, "killing all, reading everything");
        for effect in [Effect::Kill, Effect::Start] {
            for site in 0..topology.len() {
                last.cluster.perform(effect(site))?;
            }
        }
        last.read_everything(record).await
    }

    /// Looks how much memory the replicas take.
    fn weigh(&mut self) {
        let conditions = self.cluster.conditions();
        let processes = conditions.iter().filter_map(|found| found.process);
        let largest = processes.filter_map(resident_bytes).max().unwrap_or(0);
        self.memory_bytes = self.memory_bytes.max(largest);
    }

    pub fn too_large(&self) -> Option<String> {
        (self.memory_bytes > MEMORY_MAX).then(|| {
            format!(
                "a replica took {} MiB of memory, more than {}",
                self.memory_bytes >> 20,
                MEMORY_MAX >> 20
            )
        })
    }
}

/// The memory of a process; `None` where the system does not tell.
fn resident_bytes(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
