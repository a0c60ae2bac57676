//! Controls: clusters that must lose acknowledged writes. If the judge finds no loss in them, its
//! verdicts are worthless.

use crate::chance::Chance;
use crate::cut::{Cut, CutKind, CutPhase};
use crate::disk::DiskModel;
use crate::fleet::{Fleet, Plan, majority, new_disks};
use crate::image::{Image, Survival};
use crate::load::SharedHistory;
use crate::recording::{Playback, Recording};
use crate::round::Round;

/// Maximum number of power failures in a control run. Requirement: the judge notices the fault
/// within this number of power failures.
const CUTS_MAX: u64 = 5;

/// Deliberate fault that makes a cluster lose acknowledged writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The replicas acknowledge writes that are only in memory.
    InMemory,
    /// The replicas acknowledge writes without a sync. After a power failure, a replica refuses to
    /// start if the marker in its directory requires data that the disk has lost.
    Async,
    /// In the second half of the load, syncs have no effect on the disks of a majority.
    LyingDisks,
}

/// Result of the judge in a control run.
#[derive(Clone, Debug)]
pub struct ControlFinding {
    pub control: Control,
    pub cuts: u64,
    /// The first violation that the judge found; `None` if it found none.
    pub violation: Option<String>,
}

impl Control {
    pub const ALL: [Control; 3] = [Control::InMemory, Control::Async, Control::LyingDisks];

    pub fn name(self) -> &'static str {
        match self {
            Control::InMemory => "durability `none`: acknowledged writes must be lost",
            Control::Async => "durability `async`: lost writes, or refused starts",
            Control::LyingDisks => "a majority of disks ignores syncs: lost writes",
        }
    }

    fn durability(self) -> &'static str {
        match self {
            Control::InMemory => "none",
            Control::Async => "async",
            Control::LyingDisks => "sync",
        }
    }

    /// Whether the judge has noticed the fault of this control.
    fn is_noticed(self, cut: &Cut) -> bool {
        match self {
            Control::InMemory | Control::LyingDisks => cut.has_lost(),
            Control::Async => cut.has_lost() || cut.refused > 0,
        }
    }

    /// Records a cluster, and makes power failures until the judge finds a violation.
    pub async fn check(self, plan: &Plan, chance: &mut Chance) -> anyhow::Result<ControlFinding> {
        let history = SharedHistory::default();
        let round = Round {
            plan,
            number: 0,
            model: DiskModel::Strict,
            bases: new_disks(plan.nodes),
            is_first_start: true,
            durability: self.durability(),
            history: &history,
        };
        let (cluster, _) = round.record(0, chance).await?;
        let recording = &cluster.recording;
        let middle_ns = middle(recording);
        let lies = self == Control::LyingDisks;
        let lies_from = |replica| (lies && replica < majority(plan.nodes)).then_some(middle_ns);
        let mut playback = recording.play(DiskModel::Strict, lies_from);
        let mut finding = ControlFinding {
            control: self,
            cuts: 0,
            violation: None,
        };
        for at_ns in moments(recording, chance) {
            finding.cuts += 1;
            playback.advance(at_ns);
            let at_ms = (at_ns - recording.from_ns) as f64 / 1e6;
            let mut cut = round.cut(CutKind::AllReplicas, CutPhase::Load, at_ms);
            let images = draw_images(&mut cut, &playback, plan, chance);
            let name = format!("control-{}", finding.cuts);
            let mut fleet = Fleet::new(plan, &name, self.durability())?;
            let history = history.borrow().clone();
            cut.judge(&mut fleet, &images, &history, at_ns).await?;
            fleet.remove();
            if self.is_noticed(&cut) {
                finding.violation = cut.violations().into_iter().next();
                break;
            }
        }
        cluster.fleet.remove();
        Ok(finding)
    }
}

/// Returns the time at the middle of the period under load.
fn middle(recording: &Recording) -> u64 {
    let begin_ns = recording.ready_ns.unwrap_or(recording.to_ns);
    begin_ns.midpoint(recording.to_ns)
}

/// Draws moments near the end of the load, in ascending order.
fn moments(recording: &Recording, chance: &mut Chance) -> Vec<u64> {
    let to_ns = recording.to_ns;
    let from_ns = middle(recording).midpoint(to_ns);
    let moments = (0..CUTS_MAX).map(|_| chance.between(from_ns, to_ns));
    let mut moments: Vec<u64> = moments.collect();
    moments.sort_unstable();
    moments
}

/// Makes images of all disks. The images contain none of the pending changes. Also determines that
/// the replicas with lying disks start first.
fn draw_images(
    cut: &mut Cut,
    playback: &Playback<'_>,
    plan: &Plan,
    chance: &mut Chance,
) -> Vec<Image> {
    cut.first = (0..majority(plan.nodes)).collect();
    let all = 0..playback.nodes();
    cut.survivals = all.map(|replica| (replica, Survival::Nothing)).collect();
    cut.images(playback, chance)
}
