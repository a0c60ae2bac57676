//! Rounds: a cluster under load is recorded. Some replicas lose power while the others go on. Then
//! the whole cluster loses power at moments of the recording.

use std::time::Duration;

use anyhow::bail;

use crate::chance::Chance;
use crate::cut::{Cut, CutKind, CutPhase};
use crate::disk::{Disk, DiskModel};
use crate::fleet::{FailedStart, Fleet, Plan};
use crate::image::{Image, Survival};
use crate::judge::Judgement;
use crate::load::{Load, SharedHistory, now_ns};
use crate::recording::{Recording, ReplicaRun};
use crate::tree::Tree;

/// Pause in ms after the load. All writes to the disks end within this pause, including a flush of
/// the state.
const SETTLES_MS: u64 = 800;

/// One round of power failures. In a round, a cluster starts on the disks `bases`, and its file
/// operations are recorded.
pub struct Round<'a> {
    pub plan: &'a Plan,
    pub number: u64,
    pub model: DiskModel,
    pub bases: Vec<Tree>,
    /// Whether the disks in `bases` are those of a new cluster.
    pub is_first_start: bool,
    pub durability: &'static str,
    pub history: &'a SharedHistory,
}

/// A power failure, and the images of the replicas' disks.
pub type CutWithImages = (Cut, Vec<(usize, Image)>);

/// A running cluster that is recorded.
pub struct RecordedCluster {
    pub fleet: Fleet,
    pub recording: Recording,
    model: DiskModel,
}

impl RecordedCluster {
    /// Starts all replicas on the disks of a round.
    pub fn start(round: &Round<'_>) -> anyhow::Result<RecordedCluster> {
        let name = format!("round-{}", round.number);
        let mut this = RecordedCluster {
            fleet: Fleet::new(round.plan, &name, round.durability)?,
            recording: Recording {
                from_ns: now_ns(),
                ..Recording::default()
            },
            model: round.model,
        };
        for (replica, base) in round.bases.iter().enumerate() {
            this.recording.replicas.push(Vec::new());
            this.start_on(replica, base.clone())?;
        }
        Ok(this)
    }

    fn start_on(&mut self, replica: usize, base: Tree) -> anyhow::Result<()> {
        let from_ns = now_ns();
        self.fleet.start(replica, &base, true)?;
        let disk = self.fleet.disk(replica);
        self.recording.replicas[replica].push(ReplicaRun {
            from_ns,
            base,
            disk,
            trace: Vec::new(),
        });
        Ok(())
    }

    pub fn all(&self) -> Vec<usize> {
        (0..self.recording.replicas.len()).collect()
    }

    /// Waits until each replica has served a write.
    pub async fn ready(&mut self) -> Result<(), FailedStart> {
        let all = self.all();
        self.fleet.ready(&all).await?;
        self.recording.ready_ns.get_or_insert(now_ns());
        Ok(())
    }

    /// Reads the trace of a killed replica.
    fn take_trace(&mut self, replica: usize) -> anyhow::Result<()> {
        let trace = self.fleet.trace(replica)?;
        if let Some(run) = self.recording.replicas[replica].last_mut() {
            run.trace = trace;
        }
        Ok(())
    }

    /// Makes one replica lose power, and restarts it with the contents that its disk has kept. The
    /// other replicas continue.
    pub async fn cut_one(&mut self, cut: &mut Cut, chance: &mut Chance) -> anyhow::Result<Image> {
        let (replica, survival) = cut.survivals[0];
        self.fleet.kill(replica);
        self.take_trace(replica)?;
        let image = Image::draw(&self.last_disk(replica), survival, chance);
        cut.note_image(&image);
        cut.starts += 1;
        self.start_on(replica, image.contents.clone())?;
        if let Err(failure) = self.fleet.ready(&[replica]).await {
            cut.note_failure(&failure)?;
        }
        Ok(image)
    }

    /// Ends all processes, and completes the recording.
    pub async fn finish(&mut self) -> anyhow::Result<()> {
        // Then nothing is written any more, and the record of the last operation is complete.
        sleep_ms(SETTLES_MS).await;
        self.fleet.kill_all();
        self.all().into_iter().try_for_each(|replica| {
            self.take_trace(replica)?;
            self.check_record(replica)
        })
    }

    /// Checks that the recorded operations produce the files on the disk. A difference means that
    /// the shim has missed a change.
    fn check_record(&self, replica: usize) -> anyhow::Result<()> {
        let found = Tree::read(&self.fleet.disk(replica))?;
        let disk = self.last_disk(replica);
        let recorded = Image::draw(&disk, Survival::Everything, &mut Chance::new(0, 0));
        match recorded.contents.difference(&found) {
            None => Ok(()),
            Some(path) => bail!(
                "{}{path}: examples/power/shim.c missed a change of this file; add the call to it",
                self.fleet.disk(replica).display()
            ),
        }
    }

    /// Returns the disk of a replica's last process, which has ended.
    fn last_disk(&self, replica: usize) -> Disk {
        let runs = &self.recording.replicas[replica];
        let run = &runs[runs.len() - 1];
        let mut disk = Disk::new(&run.base, self.model, &run.disk, None);
        run.trace.iter().for_each(|record| disk.perform(record));
        disk
    }
}

impl Round<'_> {
    /// Creates the description of a power failure. The judge has not judged this power failure yet.
    pub fn cut(&self, kind: CutKind, phase: CutPhase, at_ms: f64) -> Cut {
        Cut {
            number: 0,
            round: self.number,
            kind,
            phase,
            model: self.model,
            at_ms,
            survivals: Vec::new(),
            first: Vec::new(),
            starts: 0,
            refused: 0,
            torn: 0,
            lost_entries: 0,
            acked: 0,
            judgement: Judgement::default(),
            problems: Vec::new(),
            kept: None,
        }
    }

    /// Creates a cut for a replica that fails while the cluster is recorded.
    fn failed(&self, failure: &FailedStart) -> anyhow::Result<Cut> {
        let mut cut = self.cut(CutKind::OneOthersRun, self.phase(0, 1), 0.0);
        cut.note_failure(failure)?;
        Ok(cut)
    }

    /// Returns the phase of a moment. `served_ns` is the time of the first acknowledgement.
    pub fn phase(&self, at_ns: u64, served_ns: u64) -> CutPhase {
        match (at_ns >= served_ns, self.is_first_start) {
            (true, _) => CutPhase::Load,
            (false, true) => CutPhase::FirstStart,
            (false, false) => CutPhase::LaterStart,
        }
    }

    /// Records the cluster under load for the time of the plan. During this time, makes `live_cuts`
    /// power failures. Each power failure hits a single replica. Returns the recording and the
    /// power failures.
    pub async fn record(
        &self,
        live_cuts: usize,
        chance: &mut Chance,
    ) -> anyhow::Result<(RecordedCluster, Vec<CutWithImages>)> {
        let mut cluster = RecordedCluster::start(self)?;
        let load = Load::start(&cluster.fleet.clients, self.history, chance);
        let mut cuts = Vec::new();
        if live_cuts > 0 {
            sleep_ms(chance.between(5, 600)).await;
            cuts.push(self.cut_live(&mut cluster, chance).await?);
        }
        if all_good(&cuts)
            && let Err(failure) = cluster.ready().await
        {
            cuts.push((self.failed(&failure)?, Vec::new()));
        }
        while cuts.len() < live_cuts && all_good(&cuts) {
            sleep_ms(chance.between(300, 1_500)).await;
            cuts.push(self.cut_live(&mut cluster, chance).await?);
        }
        if all_good(&cuts) {
            tokio::time::sleep(self.plan.load).await;
        }
        cluster.recording.to_ns = now_ns();
        load.stop().await;
        if let Some((last, _)) = cuts.last_mut().filter(|(last, _)| last.is_good()) {
            self.judge_running(&mut cluster, last).await?;
        }
        if all_good(&cuts)
            && let Err(failure) = cluster.fleet.all_run()
        {
            cuts.push((self.failed(&failure)?, Vec::new()));
        }
        cluster.finish().await?;
        Ok((cluster, cuts))
    }

    async fn cut_live(
        &self,
        cluster: &mut RecordedCluster,
        chance: &mut Chance,
    ) -> anyhow::Result<CutWithImages> {
        let (from_ns, at_ns) = (cluster.recording.from_ns, now_ns());
        let served_ns = self.history.borrow().first_ack(from_ns);
        let phase = self.phase(at_ns, served_ns.unwrap_or(u64::MAX));
        let at_ms = (at_ns - from_ns) as f64 / 1e6;
        let mut cut = self.cut(CutKind::OneOthersRun, phase, at_ms);
        let replica = chance.below(self.plan.nodes as u64) as usize;
        cut.survivals = vec![(replica, Survival::draw(chance))];
        let image = cluster.cut_one(&mut cut, chance).await?;
        Ok((cut, vec![(replica, image)]))
    }

    /// Judges the running cluster after single replicas have lost power.
    async fn judge_running(
        &self,
        cluster: &mut RecordedCluster,
        cut: &mut Cut,
    ) -> anyhow::Result<()> {
        let (all, at_ns) = (cluster.all(), now_ns());
        let history = self.history.borrow().clone();
        cut.acked = history.acked_by(at_ns);
        let judged = cut.judgement.read(&cluster.fleet, &all, &history, at_ns);
        let judged = match judged.await {
            Ok(()) => cut.judgement.compare(&cluster.fleet, &history).await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = judged {
            cut.note_failure(&failure)?;
        }
        Ok(())
    }
}

fn all_good(cuts: &[CutWithImages]) -> bool {
    cuts.iter().all(|(cut, _)| cut.is_good())
}

async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
