//! Summary of a run of several rounds: as text for people, and as `summary.json` for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::record::OutcomeCounts;
use super::request::OperationKind;
use super::result::{RoundResult, SiteOutage};

/// Summary of all rounds of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChaosSummary {
    /// Seed of the run.
    pub seed: u64,
    /// Number of faults that began.
    pub faults_total: u64,
    /// For each kind of fault, the number of faults that began.
    pub faults: BTreeMap<String, u64>,
    /// Number of faults of the schedules that could not begin. Either the targets of such a fault
    /// were down already, or no replica had the role that the fault names.
    pub skipped: u64,
    /// Number of operations that ended.
    pub operations_total: u64,
    /// Numbers of operations, by kind and outcome.
    pub operations: BTreeMap<&'static str, OutcomeCounts>,
    /// Number of answers that were served on each path.
    pub paths: BTreeMap<&'static str, u64>,
    /// Number of history checks without a result, for example because a check took too long.
    pub undecided: usize,
    /// Longest outage of a single site, for clients that use only the replica of their own site.
    /// The first value is the sequence number of the round; the second is the outage.
    pub outage: (u32, SiteOutage),
    /// Longest outage of a single site, for clients that also use replicas of other sites. The
    /// first value is the sequence number of the round; the second is the outage.
    pub outage_roaming: (u32, SiteOutage),
    /// Results of the rounds, in the order of the rounds.
    pub rounds: Vec<RoundResult>,
}

impl ChaosSummary {
    /// Creates the summary of these rounds.
    pub fn new(seed: u64, rounds: Vec<RoundResult>) -> ChaosSummary {
        let mut summary = ChaosSummary {
            seed,
            ..ChaosSummary::default()
        };
        for ran in &rounds {
            summary.add(ran);
        }
        ChaosSummary { rounds, ..summary }
    }

    fn add(&mut self, ran: &RoundResult) {
        for (kind, count) in &ran.faults {
            *self.faults.entry(kind.clone()).or_default() += count;
            self.faults_total += count;
        }
        for (kind, counts) in &ran.operations {
            *self.operations.entry(kind).or_default() += *counts;
            self.operations_total += counts.all();
        }
        for (path, count) in &ran.paths {
            *self.paths.entry(path).or_default() += count;
        }
        self.skipped += ran.skipped;
        self.undecided += ran.judged.undecided.len();
        longer(&mut self.outage, ran.number, &ran.outage);
        longer(&mut self.outage_roaming, ran.number, &ran.outage_roaming);
    }

    /// Returns the rounds that have a violation.
    pub fn violations(&self) -> impl Iterator<Item = &RoundResult> {
        self.rounds.iter().filter(|ran| ran.is_violation())
    }

    /// Returns the summary as text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let seconds: f64 = self.rounds.iter().map(|ran| ran.seconds).sum();
        writeln!(
            out,
            "{} rounds, {:.1} minutes of load, {} faults, {} operations; seed {}\n",
            self.rounds.len(),
            seconds / 60.0,
            self.faults_total,
            self.operations_total,
            self.seed
        )?;
        self.write_rounds(out)?;
        self.write_operations(out)?;
        let faults = self.faults.iter();
        let faults: Vec<String> = faults
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        writeln!(out, "\nfaults: {}", faults.join(", "))?;
        writeln!(
            out,
            "  not begun, because the targets were down already: {}",
            self.skipped
        )?;
        self.write_paths(out)?;
        self.write_outages(out)?;
        self.write_verdict(out)
    }

    fn write_rounds(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{:>5} {:10} {:>7} {:>10} {:>9} {:>7} {:>12}  verdict",
            "round", "strategy", "faults", "operations", "outage", "memory", "judged"
        )?;
        for ran in &self.rounds {
            let operations: u64 = ran.operations.values().map(OutcomeCounts::all).sum();
            writeln!(
                out,
                "{:>5} {:10} {:>7} {operations:>10} {:>7.1} s {:>3} MiB {:>12}  {}",
                ran.number,
                ran.strategy,
                ran.faults.values().sum::<u64>(),
                ran.outage.seconds,
                ran.memory_bytes >> 20,
                ran.judged.operations + ran.judged.transactions + ran.judged.growths,
                verdict(ran)
            )?;
        }
        Ok(())
    }

    fn write_operations(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "\n{:10} {:>10} {:>12} {:>8}",
            "operation", "answered", "unknown fate", "failed"
        )?;
        for kind in OperationKind::ALL.map(OperationKind::name) {
            let counts = self.operations.get(kind).copied().unwrap_or_default();
            let OutcomeCounts {
                answered,
                unknown,
                failed,
            } = counts;
            writeln!(out, "{kind:10} {answered:>10} {unknown:>12} {failed:>8}")?;
        }
        Ok(())
    }

    fn write_paths(&self, out: &mut String) -> std::fmt::Result {
        let all: u64 = self.paths.values().sum();
        let share = |count: &u64| 100.0 * *count as f64 / all.max(1) as f64;
        let words = |(path, count): (&&str, &u64)| {
            let path = path.to_lowercase().replace('_', " ");
            format!("{path} {:.1}%", share(count))
        };
        let paths: Vec<String> = self.paths.iter().map(words).collect();
        writeln!(out, "answers by path: {}", paths.join(", "))
    }

    fn write_outages(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "longest time without an answer for clients that")?;
        let stay = ("stay with a replica", &self.outage);
        for (who, (round, outage)) in [stay, ("ask another one then", &self.outage_roaming)] {
            let SiteOutage {
                site,
                from_s,
                seconds,
            } = outage;
            writeln!(
                out,
                "  {who}: {seconds:.1} s at {site} (round {round}, from {from_s:.1} s)"
            )?;
        }
        Ok(())
    }

    fn write_verdict(&self, out: &mut String) -> std::fmt::Result {
        if self.undecided > 0 {
            writeln!(
                out,
                "took too long to be judged: {} keys or groups",
                self.undecided
            )?;
        }
        match self.violations().count() {
            0 => writeln!(
                out,
                "verdict: linearizable, and everything acknowledged was there after the last kill of all"
            ),
            wrong => writeln!(
                out,
                "verdict: VIOLATION in {wrong} of {} rounds",
                self.rounds.len()
            ),
        }
    }
}

/// Replaces `longest` by `round` and `outage` if `outage` is longer than the outage in `longest`.
/// `round` is the sequence number of the round.
fn longer(longest: &mut (u32, SiteOutage), round: u32, outage: &SiteOutage) {
    if outage.seconds > longest.1.seconds {
        *longest = (round, outage.clone());
    }
}

fn verdict(ran: &RoundResult) -> &'static str {
    match (ran.is_violation(), ran.judged.undecided.is_empty()) {
        (true, _) => "VIOLATION",
        (false, true) => "linearizable",
        (false, false) => "linearizable as far as judged",
    }
}
