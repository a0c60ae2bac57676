//! Report of a run: a summary for a terminal, and the file with the results.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;

use crate::control::ControlFinding;
use crate::cut::{Cut, CutKind, CutPhase};
use crate::disk::DiskModel;
use crate::provenance::{Program, command, machine};
use crate::recording::RecordingSums;

/// Sums over several power failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CutSums {
    cuts: u64,
    starts: u64,
    refused: u64,
    torn: u64,
    lost_entries: u64,
    acked: u64,
    violations: u64,
}

impl CutSums {
    fn of<'a>(cuts: impl Iterator<Item = &'a Cut>) -> CutSums {
        let mut sums = CutSums::default();
        for cut in cuts {
            sums.cuts += 1;
            sums.starts += cut.starts;
            sums.refused += cut.refused;
            sums.torn += cut.torn;
            sums.lost_entries += cut.lost_entries;
            sums.acked += cut.acked;
            sums.violations += u64::from(!cut.is_good());
        }
        sums
    }

    fn row(&self, name: &str) -> String {
        let CutSums {
            cuts,
            starts,
            refused,
            torn,
            lost_entries,
            acked,
            violations,
        } = self;
        format!(
            "| {name} | {cuts} | {starts} | {refused} | {torn} | {lost_entries} | {acked} | {violations} |"
        )
    }
}

/// Results of a run.
pub struct PowerReport<'a> {
    pub cuts: &'a [Cut],
    pub controls: &'a [ControlFinding],
    pub recorded: RecordingSums,
    pub nodes: usize,
    pub program: Program,
}

impl PowerReport<'_> {
    /// Whether the run succeeded: no power failure led to a violation, and in each control the
    /// judge found a violation.
    pub fn is_good(&self) -> bool {
        self.cuts.iter().all(Cut::is_good) && self.controls.iter().all(|it| it.violation.is_some())
    }

    /// Returns named sums: first the sum over all power failures, and then one sum for each kind,
    /// phase and model.
    fn sums(&self) -> Vec<(String, CutSums)> {
        let part = |name: &str, is_in: &dyn Fn(&Cut) -> bool| {
            let cuts = self.cuts.iter().filter(|cut| is_in(cut));
            (name.to_owned(), CutSums::of(cuts))
        };
        let mut sums = vec![part("all", &|_| true)];
        for kind in CutKind::ALL {
            sums.push(part(kind.name(), &|cut| cut.kind == kind));
        }
        for phase in [CutPhase::FirstStart, CutPhase::LaterStart, CutPhase::Load] {
            sums.push(part(phase.name(), &|cut| cut.phase == phase));
        }
        for model in [DiskModel::Strict, DiskModel::Journal] {
            let name = format!("model `{}`", model.name());
            sums.push(part(&name, &|cut| cut.model == model));
        }
        sums
    }

    /// Returns a sentence with the verdict.
    fn verdict(&self) -> String {
        let all = CutSums::of(self.cuts.iter());
        let silent = self
            .controls
            .iter()
            .filter(|it| it.violation.is_none())
            .count();
        let mut text = match all.violations {
            0 => format!(
                "{} power failures led to no violation: every start succeeded, and no acknowledged \
                 write was lost.",
                all.cuts
            ),
            count => format!("{count} of {} power failures led to a violation.", all.cuts),
        };
        if silent > 0 {
            let _ = write!(
                text,
                " In {silent} of the controls the judge found nothing: mend it."
            );
        }
        text
    }

    /// Returns the summary for a terminal.
    pub fn terminal(&self) -> String {
        let mut text = format!(
            "{:<38} {:>5} {:>7} {:>8} {:>6} {:>13} {:>7} {:>11}\n",
            "power failures",
            "cuts",
            "starts",
            "refused",
            "torn",
            "lost entries",
            "acked",
            "violations"
        );
        for (name, it) in self.sums() {
            let _ = writeln!(
                text,
                "{name:<38} {:>5} {:>7} {:>8} {:>6} {:>13} {:>7} {:>11}",
                it.cuts, it.starts, it.refused, it.torn, it.lost_entries, it.acked, it.violations
            );
        }
        for control in self.controls {
            let found = control.violation.as_deref().unwrap_or("NOTHING WAS FOUND");
            let _ = writeln!(
                text,
                "control: {}: after {} cuts: {found}",
                control.control.name(),
                control.cuts
            );
        }
        text + &self.verdict()
    }

    /// Writes the file with the results.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        if let Some(folder) = path.parent() {
            let made = std::fs::create_dir_all(folder);
            made.with_context(|| format!("creating {}", folder.display()))?;
        }
        let written = std::fs::write(path, self.markdown());
        written.with_context(|| format!("writing {}; give another --out", path.display()))
    }

    fn markdown(&self) -> String {
        let mut text = format!(
            "# Power failures\n\n{}\n\nWritten by `make power`. Clusters of {} replicas with durability \
             `sync` lost power. They then started on disks that had everything that was synced, and a \
             random part of the rest. \
             [Contributing](../../docs/contributing.md#power-failures) explains the columns.\n\n",
            self.verdict(),
            self.nodes
        );
        text += "| kind | power failures | starts | refused | torn writes | lost entries | \
                 acknowledged writes | violations |\n|---|---|---|---|---|---|---|---|\n";
        for (name, sums) in self.sums() {
            text += &sums.row(&name);
            text.push('\n');
        }
        text += &self.totals();
        text += "| control | power failures | the judge found |\n|---|---|---|\n";
        for control in self.controls {
            let (name, cuts) = (control.control.name(), control.cuts);
            let found = control.violation.as_deref().unwrap_or("**nothing**");
            let _ = writeln!(text, "| {name} | {cuts} | {found} |");
        }
        text += &self.violations();
        let (program, machine) = (&self.program, machine());
        let _ = writeln!(
            text,
            "\nCommand: `{}`. Program: {program}. Machine: {machine}.",
            command()
        );
        text
    }

    /// Describes the number of recorded operations and the number of reads.
    fn totals(&self) -> String {
        let RecordingSums {
            operations,
            syncs,
            segments,
        } = self.recorded;
        let reads: u64 = self.cuts.iter().map(|cut| cut.judgement.reads).sum();
        let local = self.cuts.iter().map(|cut| cut.judgement.local_reads);
        let local: u64 = local.sum();
        format!(
            "\nThe replicas performed {operations} operations on files, among them {syncs} syncs. \
             {segments} segments of the log were begun. The judge read all keys through each replica, \
             in {reads} reads of up to 32 keys. A replica served {local} of these reads from its own \
             state.\n\n"
        )
    }

    fn violations(&self) -> String {
        let mut text = String::new();
        for cut in self.cuts.iter().filter(|cut| !cut.is_good()) {
            let _ = writeln!(text, "\n**Violation {}**: {}\n", cut.number, cut.words());
            for violation in cut.violations() {
                let _ = writeln!(text, "- {violation}");
            }
        }
        text
    }
}
