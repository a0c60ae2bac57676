//! The steps of a round while clients send operations, and those after the clients have ended.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::fault_injector::FaultInjector;
use super::final_check::FinalCheck;
use super::load::LoadGenerator;
use super::record::{OutcomeCounts, RoundRecord};
use super::round::Round;
use crate::backend::local::LocalCluster;
use crate::fault::Effect;

/// Time between two checks of the processes. Faults begin and end only at the times of these
/// checks.
const TICK: Duration = Duration::from_millis(20);
/// Time between two updates of the progress, and between two measurements of the replicas' memory.
const SHOW_EVERY: Duration = Duration::from_millis(500);
/// Maximum memory of a replica, in bytes. A higher memory use is a violation, because clients have
/// written only a few MiB.
const MEMORY_MAX: u64 = 1 << 30;

/// Progress of a round.
#[derive(Clone, Debug)]
pub struct RoundProgress<'a> {
    /// Sequence number of the round, from 1.
    pub number: u32,
    /// Strategy of the round's cluster.
    pub strategy: &'a str,
    /// Current step of the round.
    pub doing: &'static str,
    /// Time since clients began, in seconds.
    pub elapsed_s: f64,
    /// Number of faults that have begun.
    pub faults: u64,
    /// Numbers of operations that have ended, by outcome.
    pub operations: OutcomeCounts,
    /// Descriptions of the faults that are active.
    pub failing: Vec<&'a str>,
}

/// Callback that receives the progress of a round, about twice a second.
pub type RoundProgressFn<'a> = &'a dyn Fn(&RoundProgress<'_>);

/// A round while it runs.
pub(super) struct RunningRound<'a> {
    pub round: &'a Round<'a>,
    pub cluster: &'a mut LocalCluster,
    pub began: Instant,
    pub memory_bytes: u64,
    pub show: RoundProgressFn<'a>,
}

impl RunningRound<'_> {
    /// Carries out the schedule of faults for as long as clients send operations.
    pub async fn run_schedule(
        &mut self,
        injector: &mut FaultInjector<'_>,
        load: &LoadGenerator,
    ) -> anyhow::Result<()> {
        let settings = self.round.settings;
        let mut shown = self.began;
        loop {
            let now_s = self.began.elapsed().as_secs_f64();
            if now_s >= settings.schedule.length_s {
                return Ok(());
            }
            super::check_processes(self.cluster, &settings.experiment.topology)?;
            injector.step(self.cluster, now_s).await?;
            if shown.elapsed() >= SHOW_EVERY {
                shown = Instant::now();
                self.measure_memory();
                (self.show)(&RoundProgress {
                    number: self.round.number,
                    strategy: self.round.label(),
                    doing: "running",
                    elapsed_s: now_s,
                    faults: injector.account.begun.values().sum(),
                    operations: load.record().total(),
                    failing: injector.failing(),
                });
            }
            sleep(TICK).await;
        }
    }

    /// Makes the final checks of a round after all faults have ended. First, checks that every
    /// replica serves. Then kills all replicas, starts them again, and reads all keys through each
    /// replica. Returns the differences between replicas.
    pub async fn end(
        &mut self,
        record: &mut RoundRecord,
        groups: u64,
    ) -> anyhow::Result<Vec<String>> {
        let topology = &self.round.settings.experiment.topology;
        self.round
            .show(self.show, "waiting until every replica serves");
        let mut final_check = FinalCheck {
            cluster: self.cluster,
            sites: topology,
            began: self.began,
            groups,
        };
        final_check.wait_until_serving().await?;
        self.round
            .show(self.show, "killing all, reading everything");
        for effect in [Effect::Kill, Effect::Start] {
            for site in 0..topology.len() {
                final_check.cluster.perform(effect(site))?;
            }
        }
        final_check.read_everything(record).await
    }

    /// Measures the memory of each replica, and stores the largest value so far.
    fn measure_memory(&mut self) {
        let statuses = self.cluster.process_statuses();
        let processes = statuses.iter().filter_map(|found| found.process);
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

/// Returns the resident memory of a process in bytes; `None` if the system does not report it.
fn resident_bytes(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
