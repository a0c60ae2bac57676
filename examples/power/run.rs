//! A run: rounds of power failures, until the requested number is reached.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use leasehold_ycsb::note;

use crate::chance::Chance;
use crate::cut::{Cut, CutKind, draw_first};
use crate::disk::DiskModel;
use crate::fleet::{Fleet, Plan, new_disks};
use crate::history::WriteHistory;
use crate::image::{Image, Survival};
use crate::load::SharedHistory;
use crate::recording::{Recording, RecordingSums};
use crate::round::{RecordedCluster, Round};
use crate::tree::Tree;

/// Number of power failures of a round.
const CUTS_A_ROUND: usize = 10;
/// In each round, one out of `LIVE_EVERY` power failures hits only one replica of the running
/// cluster. The other replicas continue.
const LIVE_EVERY: usize = 5;
/// One out of `NEW_EVERY` rounds begins with new disks. The other rounds begin with images of the
/// disks from the previous round.
const NEW_EVERY: u64 = 3;
/// Percentage of recorded moments at which only one replica loses power. At the other moments, all
/// replicas lose power.
const ONE_PERCENT: u64 = 25;

/// Disks for the next round.
struct Chain {
    bases: Vec<Tree>,
    /// Whether all replicas have joined the cluster.
    is_joined: bool,
}

/// Power failures so far, and the disks for the next round.
pub struct PowerRun<'a> {
    plan: &'a Plan,
    /// Folder for the evidence of violations.
    keep: PathBuf,
    wanted: usize,
    chance: Chance,
    rounds: u64,
    history: SharedHistory,
    /// Disks for the next round; `None` if the next round begins with new disks.
    chain: Option<Chain>,
    pub cuts: Vec<Cut>,
    /// Counts of the recorded operations in all rounds.
    pub recorded: RecordingSums,
}

impl<'a> PowerRun<'a> {
    pub fn new(plan: &'a Plan, wanted: usize, seed: u64, keep: PathBuf) -> PowerRun<'a> {
        PowerRun {
            plan,
            keep,
            wanted,
            chance: Chance::new(seed, 1),
            rounds: 0,
            history: SharedHistory::default(),
            chain: None,
            cuts: Vec::new(),
            recorded: RecordingSums::default(),
        }
    }

    /// Makes the power failures.
    pub async fn run(&mut self) -> anyhow::Result<()> {
        while self.cuts.len() < self.wanted {
            self.round().await?;
        }
        Ok(())
    }

    async fn round(&mut self) -> anyhow::Result<()> {
        let is_new = self.rounds.is_multiple_of(NEW_EVERY);
        let chain = self.chain.take().filter(|_| !is_new);
        if chain.is_none() {
            self.history = Rc::new(RefCell::new(WriteHistory::default()));
        }
        let is_joined = chain.as_ref().is_some_and(|chain| chain.is_joined);
        let new = || new_disks(self.plan.nodes);
        let history = self.history.clone();
        let round = Round {
            plan: self.plan,
            number: self.rounds + 1,
            model: [DiskModel::Strict, DiskModel::Journal][(self.rounds % 2) as usize],
            is_first_start: chain.is_none(),
            bases: chain.map_or_else(new, |chain| chain.bases),
            durability: "sync",
            history: &history,
        };
        self.rounds += 1;
        let count = CUTS_A_ROUND.min(self.wanted - self.cuts.len());
        let live = if self.plan.nodes > 1 {
            count / LIVE_EVERY
        } else {
            0
        };
        let (cluster, live_cuts) = round.record(live, &mut self.chance).await?;
        self.note_recorded(cluster.recording.sums());
        let is_good = live_cuts.iter().all(|(cut, _)| cut.is_good());
        let count = count.saturating_sub(live_cuts.len());
        for (cut, images) in live_cuts {
            self.add(cut, &images, &cluster.fleet, &cluster.fleet)?;
        }
        if is_good {
            self.cut_recorded(&round, &cluster, is_joined, count)
                .await?;
        }
        cluster.fleet.remove();
        Ok(())
    }

    fn note_recorded(&mut self, sums: RecordingSums) {
        let RecordingSums {
            operations,
            syncs,
            segments,
        } = sums;
        note!(
            "round {}: {operations} operations on files, {syncs} syncs, {segments} segments of the log",
            self.rounds
        );
        self.recorded.operations += operations;
        self.recorded.syncs += syncs;
        self.recorded.segments += segments;
    }

    /// Makes power failures at moments of a recording.
    async fn cut_recorded(
        &mut self,
        round: &Round<'_>,
        cluster: &RecordedCluster,
        is_joined: bool,
        count: usize,
    ) -> anyhow::Result<()> {
        let recording = &cluster.recording;
        let served_ns = round.history.borrow().first_ack(recording.from_ns);
        let served_ns = served_ns.unwrap_or(recording.to_ns);
        let moments = recording.draw_moments(count, served_ns, &mut self.chance);
        let chosen = self
            .chance
            .below(count as u64)
            .max(self.chance.below(count as u64));
        let mut next: Option<(u64, Chain)> = None;
        let mut playback = recording.play(round.model, |_| None);
        for (index, at_ns) in moments.into_iter().enumerate() {
            playback.advance(at_ns);
            let is_joined = is_joined || is_joined_at(recording, at_ns);
            let mut cut = self.draw_cut(round, recording, at_ns, served_ns, is_joined);
            let images = cut.draw_images(&playback, &mut self.chance);
            let name = format!("cut-{}", self.cuts.len() + 1);
            let mut fleet = Fleet::new(self.plan, &name, round.durability)?;
            let history = round.history.borrow().clone();
            cut.judge(&mut fleet, &images, &history, at_ns).await?;
            if cut.is_good() && (next.is_none() || index as u64 <= chosen) {
                let bases = images.iter().map(|image| image.contents.clone()).collect();
                next = Some((at_ns, Chain { bases, is_joined }));
            }
            let images: Vec<(usize, Image)> = images.into_iter().enumerate().collect();
            self.add(cut, &images, &fleet, &cluster.fleet)?;
            fleet.remove();
        }
        if let Some((at_ns, chain)) = next {
            self.history.borrow_mut().go_back(at_ns);
            self.chain = Some(chain);
        }
        Ok(())
    }

    fn draw_cut(
        &mut self,
        round: &Round<'_>,
        recording: &Recording,
        at_ns: u64,
        served_ns: u64,
        is_joined: bool,
    ) -> Cut {
        let is_one = self.plan.nodes > 1 && self.chance.percent(ONE_PERCENT);
        let kind = if is_one {
            CutKind::OneOthersKilled
        } else {
            CutKind::AllReplicas
        };
        let at_ms = (at_ns - recording.from_ns) as f64 / 1e6;
        let mut cut = round.cut(kind, round.phase(at_ns, served_ns), at_ms);
        let lost = self.chance.below(self.plan.nodes as u64) as usize;
        let all = 0..self.plan.nodes;
        let losing = all.filter(|replica| !is_one || *replica == lost);
        // `Cut::draw_images` draws what they keep.
        cut.survivals = losing.map(|it| (it, Survival::Nothing)).collect();
        cut.first = draw_first(self.plan.nodes, kind, lost, is_joined, &mut self.chance);
        cut
    }

    /// Adds a power failure, and reports it. Keeps the evidence if the power failure is a
    /// violation. `judged` is the fleet that was judged. `recorded` is the fleet that lost power.
    fn add(
        &mut self,
        mut cut: Cut,
        images: &[(usize, Image)],
        judged: &Fleet,
        recorded: &Fleet,
    ) -> anyhow::Result<()> {
        cut.number = self.cuts.len() as u64 + 1;
        note!("[{} of {}] {}", cut.number, self.wanted, cut.words());
        if !cut.is_good() {
            cut.keep(&self.keep, images, judged, recorded)?;
            for violation in cut.violations().iter().take(5) {
                note!("    VIOLATION: {violation}");
            }
            let kept = cut.kept.as_ref().map(|kept| kept.display().to_string());
            note!("    the images: {}", kept.unwrap_or_default());
        }
        self.cuts.push(cut);
        Ok(())
    }
}

/// Whether all replicas had joined the cluster at the time `at_ns`.
fn is_joined_at(recording: &Recording, at_ns: u64) -> bool {
    recording.ready_ns.is_some_and(|ready_ns| ready_ns <= at_ns)
}
