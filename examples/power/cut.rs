//! Power failures: which replicas lose power, the images of their disks, and the judgement of the
//! cluster that starts on the images.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::chance::Chance;
use crate::cluster::NAMES;
use crate::disk::DiskModel;
use crate::fleet::{FailedStart, Fleet, majority};
use crate::history::{LossKind, WriteHistory};
use crate::image::{Image, Survival};
use crate::judge::Judgement;
use crate::recording::Playback;

/// Replicas that lose power at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CutKind {
    AllReplicas,
    /// One replica loses power, and the other processes are killed. Requirement: a majority that
    /// includes this replica still has all acknowledged writes.
    OneOthersKilled,
    /// One replica loses power, and the other replicas continue under load.
    OneOthersRun,
}

impl CutKind {
    pub const ALL: [CutKind; 3] = [
        CutKind::AllReplicas,
        CutKind::OneOthersKilled,
        CutKind::OneOthersRun,
    ];

    pub fn name(self) -> &'static str {
        match self {
            CutKind::AllReplicas => "all replicas at once",
            CutKind::OneOthersKilled => "one replica, the others are killed",
            CutKind::OneOthersRun => "one replica, the others go on",
        }
    }
}

/// Phase in the life of a cluster in which a power failure occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CutPhase {
    FirstStart,
    /// A start after an earlier power failure.
    LaterStart,
    Load,
}

impl CutPhase {
    pub fn name(self) -> &'static str {
        match self {
            CutPhase::FirstStart => "in the first start",
            CutPhase::LaterStart => "in a later start",
            CutPhase::Load => "under load",
        }
    }
}

/// A power failure and its judgement.
#[derive(Clone, Debug)]
pub struct Cut {
    pub number: u64,
    pub round: u64,
    pub kind: CutKind,
    pub phase: CutPhase,
    pub model: DiskModel,
    /// Time since the cluster was started, in ms.
    pub at_ms: f64,
    /// Replicas that lost power. Each replica is paired with a rule. The rule determines which
    /// pending changes the replica's disk kept.
    pub survivals: Vec<(usize, Survival)>,
    /// Replicas that start first. The judge checks these replicas before the other replicas start.
    pub first: Vec<usize>,
    pub starts: u64,
    pub refused: u64,
    pub torn: u64,
    pub lost_entries: u64,
    /// Number of acknowledged writes that must not be lost.
    pub acked: u64,
    pub judgement: Judgement,
    /// Problems other than losses: refused starts, and replicas that do not serve.
    pub problems: Vec<String>,
    /// Folder with the evidence of a violation.
    pub kept: Option<PathBuf>,
}

impl Cut {
    pub fn is_good(&self) -> bool {
        self.problems.is_empty() && self.judgement.losses.is_empty()
    }

    /// Whether the judge found that an acknowledged write is lost.
    pub fn has_lost(&self) -> bool {
        let mut losses = self.judgement.losses.iter();
        losses.any(|loss| loss.kind == LossKind::Lost)
    }

    /// Returns one line for each violation.
    pub fn violations(&self) -> Vec<String> {
        let losses = self.judgement.losses.iter().map(|loss| &loss.words);
        self.problems.iter().chain(losses).cloned().collect()
    }

    /// Describes the power failure in one line for a terminal.
    pub fn words(&self) -> String {
        let survivals = self.survivals.iter();
        let survivals: Vec<String> = survivals
            .map(|(replica, survival)| format!("{} keeps {}", NAMES[*replica], survival.name()))
            .collect();
        let first: Vec<&str> = self.first.iter().map(|replica| NAMES[*replica]).collect();
        let first = match first.as_slice() {
            [] => String::new(),
            names if names.len() as u64 == self.starts => String::new(),
            names => format!(", {} first", names.join(" and ")),
        };
        format!(
            "round {}, {}, {} at {:.1} ms, {}; {}: {} starts{first}, {} torn writes, {} acknowledged writes",
            self.round,
            self.kind.name(),
            self.phase.name(),
            self.at_ms,
            self.model.name(),
            survivals.join(", "),
            self.starts,
            self.torn,
            self.acked,
        )
    }

    pub fn note_failure(&mut self, failure: &FailedStart) -> anyhow::Result<()> {
        failure.check()?;
        self.refused += u64::from(failure.is_refused);
        self.problems.push(failure.words.clone());
        Ok(())
    }

    pub fn note_image(&mut self, image: &Image) {
        self.torn += image.torn;
        self.lost_entries += image.lost_entries;
    }

    /// Draws the images of all disks at the current moment of the playback.
    pub fn draw_images(&mut self, playback: &Playback<'_>, chance: &mut Chance) -> Vec<Image> {
        let common = Survival::draw(chance);
        let is_common = chance.percent(60);
        let survivals = self.survivals.iter_mut();
        for (_, survival) in survivals {
            let drawn = Survival::draw(chance);
            *survival = if is_common { common } else { drawn };
        }
        self.images(playback, chance)
    }

    /// Makes the images of all disks. The disk of a replica that did not lose power keeps all
    /// changes.
    pub fn images(&mut self, playback: &Playback<'_>, chance: &mut Chance) -> Vec<Image> {
        let survival = |replica: usize| {
            let mut found = self.survivals.iter();
            found.find_map(|(it, survival)| (*it == replica).then_some(*survival))
        };
        let images = (0..playback.nodes()).map(|replica| {
            let survival = survival(replica).unwrap_or(Survival::Everything);
            playback.image(replica, survival, chance)
        });
        let images: Vec<Image> = images.collect();
        images.iter().for_each(|image| self.note_image(image));
        images
    }

    /// Starts a cluster on the images and judges it.
    pub async fn judge(
        &mut self,
        fleet: &mut Fleet,
        images: &[Image],
        history: &WriteHistory,
        at_ns: u64,
    ) -> anyhow::Result<()> {
        self.acked = history.acked_by(at_ns);
        let first = self.first.clone();
        let others = (0..images.len()).filter(|replica| !first.contains(replica));
        let others: Vec<usize> = others.collect();
        let mut running = Vec::new();
        for part in [first, others] {
            for &replica in &part {
                fleet.start(replica, &images[replica].contents, false)?;
            }
            self.starts = fleet.starts;
            running.extend(&part);
            let judged = judge_part(fleet, &part, &running, &mut self.judgement, history, at_ns);
            if let Err(failure) = judged.await {
                return self.note_failure(&failure);
            }
            if !self.judgement.losses.is_empty() {
                return Ok(());
            }
        }
        let compared = self.judgement.compare(fleet, history).await;
        if let Err(failure) = compared.and_then(|()| fleet.all_run()) {
            self.note_failure(&failure)?;
        }
        Ok(())
    }

    /// Stores the evidence of a violation: the images, the logs and a description.
    pub fn keep(
        &mut self,
        folder: &Path,
        images: &[(usize, Image)],
        judged: &Fleet,
        recorded: &Fleet,
    ) -> anyhow::Result<()> {
        let folder = folder.join(format!("cut-{}", self.number));
        if folder.exists() {
            let removed = std::fs::remove_dir_all(&folder);
            removed.with_context(|| format!("emptying {}", folder.display()))?;
        }
        let made = std::fs::create_dir_all(&folder);
        made.with_context(|| format!("creating {}", folder.display()))?;
        let mut notes = format!("{}\n", self.words());
        for violation in self.violations() {
            notes.push_str(&format!("{violation}\n"));
        }
        for (replica, image) in images {
            let name = NAMES[*replica];
            image.contents.write(&folder.join(name))?;
            for note in &image.notes {
                notes.push_str(&format!("{name}{note}\n"));
            }
        }
        std::fs::write(folder.join("violation.txt"), notes)
            .with_context(|| format!("writing in {}; is there space?", folder.display()))?;
        judged.keep_records(&folder.join("judged"))?;
        recorded.keep_records(&folder.join("recorded"))?;
        self.kept = Some(folder);
        Ok(())
    }
}

/// Waits until the newly started replicas serve. Then reads all keys through every running replica.
async fn judge_part(
    fleet: &mut Fleet,
    part: &[usize],
    running: &[usize],
    judgement: &mut Judgement,
    history: &WriteHistory,
    at_ns: u64,
) -> Result<(), FailedStart> {
    if part.is_empty() {
        return Ok(());
    }
    fleet.ready(part).await?;
    judgement.read(fleet, running, history, at_ns).await
}

/// Draws the replicas that start first. If `is_joined` is false, all replicas start first, because
/// the first start of a cluster needs more than a majority. If only the replica `lost` has lost
/// power, the result always contains `lost`.
pub fn draw_first(
    nodes: usize,
    kind: CutKind,
    lost: usize,
    is_joined: bool,
    chance: &mut Chance,
) -> Vec<usize> {
    let starts_all = !is_joined || kind == CutKind::AllReplicas && chance.percent(50);
    if starts_all {
        return (0..nodes).collect();
    }
    let mut order: Vec<usize> = (0..nodes).collect();
    for at in 0..nodes {
        let other = chance.between(at as u64, nodes as u64 - 1) as usize;
        order.swap(at, other);
    }
    if kind != CutKind::AllReplicas {
        order.retain(|replica| *replica != lost);
        order.insert(0, lost);
    }
    order.truncate(majority(nodes));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_with_the_replica_that_lost_power_starts_first() {
        let mut chance = Chance::new(1, 1);
        for lost in [0, 1, 2, 3, 4].repeat(20) {
            let first = draw_first(5, CutKind::OneOthersKilled, lost, true, &mut chance);
            assert_eq!((first.len(), first[0]), (3, lost));
            let all = draw_first(5, CutKind::OneOthersKilled, lost, false, &mut chance);
            assert_eq!(all, [0, 1, 2, 3, 4]);
        }
    }
}
