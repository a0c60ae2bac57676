//! Repeated runs of one strategy. Each run has a seed of its own, and all runs are joined into one
//! result.
//!
//! The measured intervals are placed one after another, as in one continuous run. Everything
//! outside these intervals is omitted: warm-up and elections before an interval, and the end of a
//! run after it.

use super::RunResult;
use crate::experiment::Experiment;
use crate::run::{FaultSpan, HistoryVerdict, MeasuredInterval, RunEvent, StrategyRun, SwitchReads};

/// Ended runs of an experiment, by the label of the strategy.
#[derive(Debug, Default)]
pub struct EndedRuns(Vec<(String, Vec<RunResult>)>);

impl EndedRuns {
    /// Adds a run. The runs of a strategy are joined in the order in which they were added.
    pub(super) fn add(&mut self, label: &str, ran: RunResult) {
        match self.0.last_mut() {
            Some((last, runs)) if last == label => runs.push(ran),
            _ => self.0.push((label.to_owned(), vec![ran])),
        }
    }

    /// Returns true if no run has ended.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Describes how many runs of each strategy have ended; `None` if all runs of the experiment
    /// have ended.
    pub fn shortfall(&self, experiment: &Experiment) -> Option<String> {
        let ended = |label: &String| {
            let found = self.0.iter().find(|(of, _)| of == label);
            found.map_or(0, |(_, runs)| runs.len())
        };
        let all = experiment.runs as usize;
        let labels = experiment.strategies.iter().map(|plan| &plan.label);
        let counts: Vec<_> = labels.map(|label| (label, ended(label))).collect();
        if counts.iter().all(|(_, count)| *count == all) {
            return None;
        }
        let words = counts
            .iter()
            .map(|(label, count)| format!("{label} {count} of {all}"));
        let words = words.collect::<Vec<_>>().join(", ");
        Some(format!("runs that had ended: {words}"))
    }

    /// Joins the runs of each strategy, and returns one result for each strategy.
    pub fn joined(self) -> Vec<RunResult> {
        let strategies = self.0.into_iter();
        strategies.filter_map(|(_, runs)| joined(runs)).collect()
    }
}

/// Joins runs into one result; `None` if there are no runs.
fn joined(runs: Vec<RunResult>) -> Option<RunResult> {
    let count = runs.len();
    let mut runs = runs.into_iter();
    let first = runs.next()?;
    if count == 1 {
        return Some(first);
    }
    let mut verdicts = vec![first.run.linearizable.clone()];
    let mut all = only_measured(first);
    all.run.repeats = vec![measured(&all.run)];
    for next in runs {
        verdicts.push(next.run.linearizable.clone());
        append(&mut all, only_measured(next));
    }
    all.run.linearizable = together(&verdicts);
    all.run.workload = format!("{count} runs, each: {}", all.run.workload);
    Some(all)
}

/// Removes the events outside the measured interval of a run. Also removes the results of perfect
/// bookkeeping, because these results are defined only for a single run.
fn only_measured(mut ran: RunResult) -> RunResult {
    let MeasuredInterval { start_s, end_s } = ran.run.measured.unwrap_or_default();
    ran.events
        .retain(|event| (start_s..end_s).contains(&event.at_s));
    ran.run.bookkeeping_local = None;
    ran.run.bookkeeping_minimum = None;
    ran
}

fn append(all: &mut RunResult, next: RunResult) {
    let (before, after) = (measured(&all.run), measured(&next.run));
    let shift_s = before.end_s - after.start_s;
    let shift_ns = (shift_s * 1e9) as i64;
    let run = &mut all.run;
    let end_s = after.end_s + shift_s;
    run.measured = Some(MeasuredInterval {
        start_s: before.start_s,
        end_s,
    });
    run.repeats.push(MeasuredInterval {
        start_s: before.end_s,
        end_s,
    });
    // Holders are kept only if they are known for all operations.
    let known = run.samples.len() == run.leased_to.len()
        && next.run.samples.len() == next.run.leased_to.len();
    run.leased_to.extend(next.run.leased_to);
    run.samples
        .extend(next.run.samples.into_iter().map(|mut sample| {
            sample.start_ns = sample.start_ns.saturating_add_signed(shift_ns);
            sample
        }));
    if !known {
        run.leased_to.clear();
    }
    run.faults
        .extend(next.run.faults.into_iter().map(|fault| FaultSpan {
            at_s: fault.at_s + shift_s,
            until_s: fault.until_s.map(|until| until + shift_s),
            ..fault
        }));
    run.issued += next.run.issued;
    run.part_of.extend(next.run.part_of);
    let length_s = before.end_s - before.start_s;
    run.switches
        .extend(next.run.switches.into_iter().map(|switch| SwitchReads {
            at_s: switch.at_s + length_s,
            ..switch
        }));
    run.wall_s += next.run.wall_s;
    run.virtual_s = run.virtual_s.zip(next.run.virtual_s).map(|(a, b)| a + b);
    for (name, count) in next.run.counters {
        *run.counters.entry(name).or_insert(0) += count;
    }
    for note in next.run.notes {
        if !run.notes.contains(&note) {
            run.notes.push(note);
        }
    }
    all.events
        .extend(next.events.into_iter().map(|event| RunEvent {
            at_s: event.at_s + shift_s,
            ..event
        }));
    all.histories.extend(next.histories);
}

fn measured(run: &StrategyRun) -> MeasuredInterval {
    run.measured.unwrap_or_default()
}

/// Joins verdicts. The result is `No` if any history is not linearizable, `Yes` if all histories
/// are linearizable, and otherwise `Unchecked`.
fn together(verdicts: &[HistoryVerdict]) -> HistoryVerdict {
    let numbered = || verdicts.iter().zip(1..);
    let one = |wanted: fn(&HistoryVerdict) -> bool| {
        let found = numbered().find(|(verdict, _)| wanted(verdict));
        found.map(|(verdict, number)| format!("run {number}: {}", verdict.text()))
    };
    if let Some(text) = one(|verdict| matches!(verdict, HistoryVerdict::No(_))) {
        return HistoryVerdict::No(text);
    }
    if let Some(text) = one(|verdict| matches!(verdict, HistoryVerdict::Unchecked(_))) {
        return HistoryVerdict::Unchecked(text);
    }
    HistoryVerdict::Yes(format!("each of {} runs", verdicts.len()))
}
