//! A run over time: mean latencies over stretches of a few seconds. For each change of the clients'
//! requests, the report also shows the time until the strategy was as good as before the change.

use std::fmt::Write;

use leasehold_ycsb::sample::{OpOutcome, Sample};
use serde::Serialize;

use super::digest::{Class, share};
use super::summary::{ExperimentSummary, is_local};
use super::table::{Table, ms};
use super::{ExperimentReport, MeasuredInterval, RunEvent, StrategyRun};

/// Maximum length, in s, of one stretch of time. The report shows the mean of each stretch.
const STRETCH_S: f64 = 5.0;
/// Maximum ratio of the mean latency after a change to the mean latency before the change. A
/// strategy is as good as before if its ratio is at most this value.
const AS_BEFORE: f64 = 1.1;
/// Time within which the strategy `cost` must be as good as before a change, in reconfiguration
/// periods.
const PERIODS_MAX: f64 = 2.0;

/// A deliberate change by clients or operators. A fault is not such a change.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ChangeMark {
    /// Time of the change, in s since the measured interval began.
    pub at_s: f64,
    /// Text that a figure shows next to the mark.
    pub text: String,
}

/// Summary of the answered operations that started in a stretch of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TimeSlice {
    /// Beginning of the stretch of time, in s since the measured interval began.
    pub from_s: f64,
    pub to_s: f64,
    pub operations: u64,
    sum_ms: f64,
    reads: u64,
    local: u64,
}

impl TimeSlice {
    pub(super) fn mean_ms(&self) -> f64 {
        self.sum_ms / self.operations.max(1) as f64
    }

    /// Returns the share of reads that were local; `None` if there were no reads.
    pub(super) fn local(&self) -> Option<f64> {
        (self.reads > 0).then(|| share(self.local, self.reads))
    }

    fn add(&mut self, sample: &Sample) {
        self.operations += 1;
        self.sum_ms += sample.latency_ns as f64 / 1e6;
        if Class::of(sample.kind) == Class::Reads {
            self.reads += 1;
            self.local += u64::from(is_local(sample.path));
        }
    }
}

/// Adaptation of a strategy to a change of the clients' requests: the time until the strategy was
/// as good as before the change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Adaptation {
    /// Time of the change, in s since the measured interval began.
    pub at_s: f64,
    /// Steady mean: the mean latency in the last two reconfiguration periods before the change, in
    /// ms.
    pub steady_ms: f64,
    /// Greatest mean latency of a stretch of time after the change, in ms.
    pub worst_ms: f64,
    /// Time in s from the change to the first stretch in which the strategy was as good as before;
    /// `None` if there is no such stretch. For such a stretch, two means exceed the steady mean by
    /// at most a tenth: its mean latency, and the mean latency from the stretch to the next change.
    pub back_after_s: Option<f64>,
    /// The time `back_after_s`, in reconfiguration periods.
    pub back_after_periods: Option<f64>,
    /// Whether the strategy was as good as before within the required time; `None` if there is no
    /// required time for this strategy.
    pub kept: Option<bool>,
}

/// Returns true if the report shows means over time.
pub(super) fn is_shown(report: &ExperimentReport) -> bool {
    report.runs.iter().any(|run| !marks(report, run).is_empty())
}

/// Returns the deliberate changes in a run, in order of time.
pub(super) fn marks(report: &ExperimentReport, run: &StrategyRun) -> Vec<ChangeMark> {
    let start_s = run.measured.unwrap_or_default().start_s;
    let of_run = |event: &&RunEvent| event.run.as_ref() == Some(&run.label);
    let mark = |event: &RunEvent| match event.kind.as_str() {
        RunEvent::SWAP => Some(ChangeMark {
            at_s: event.at_s - start_s,
            text: format!("{} swap", event.sites.join(", ")),
        }),
        RunEvent::SWITCH => Some(ChangeMark {
            at_s: event.at_s - start_s,
            text: event.text.clone(),
        }),
        _ => None,
    };
    report
        .events
        .iter()
        .filter(of_run)
        .filter_map(mark)
        .collect()
}

fn length_s(run: &StrategyRun) -> f64 {
    let MeasuredInterval { start_s, end_s } = run.measured.unwrap_or_default();
    end_s - start_s
}

fn period_s(report: &ExperimentReport) -> f64 {
    report.experiment.lease.reconfigure().as_secs_f64()
}

/// Divides the measured interval into stretches of time with the same length. If less than half a
/// stretch remains at the end, this rest is omitted. Otherwise, the rest is the last stretch.
pub(super) fn time_slices(report: &ExperimentReport, run: &StrategyRun) -> Vec<TimeSlice> {
    let width_s = STRETCH_S.min(period_s(report) / 2.0);
    let start_s = run.measured.unwrap_or_default().start_s;
    let count = (length_s(run) / width_s).round().max(0.0) as usize;
    let stretch = |index: usize| TimeSlice {
        from_s: index as f64 * width_s,
        to_s: ((index + 1) as f64 * width_s).min(length_s(run)),
        ..TimeSlice::default()
    };
    let mut all: Vec<TimeSlice> = (0..count).map(stretch).collect();
    for sample in run
        .samples
        .iter()
        .filter(|sample| sample.end == OpOutcome::Ok)
    {
        let at_s = sample.start_ns as f64 / 1e9 - start_s;
        if let Some(stretch) = all.get_mut((at_s / width_s) as usize) {
            stretch.add(sample);
        }
    }
    all
}

/// Returns the adaptation of a run's strategy to each change of the clients' requests.
pub(super) fn adaptations(report: &ExperimentReport, run: &StrategyRun) -> Vec<Adaptation> {
    let stretches = time_slices(report, run);
    let swaps = report
        .events
        .iter()
        .filter(|event| event.kind == RunEvent::SWAP);
    let swaps = swaps.filter(|event| event.run.as_ref() == Some(&run.label));
    let start_s = run.measured.unwrap_or_default().start_s;
    let mut times: Vec<f64> = swaps.map(|event| event.at_s - start_s).collect();
    times.push(length_s(run));
    let period_s = period_s(report);
    let spans = times.windows(2);
    spans
        .filter_map(|span| {
            let within = |from: f64, to: f64| {
                let inside = |s: &&TimeSlice| s.from_s >= from - 1e-6 && s.to_s <= to + 1e-6;
                stretches.iter().filter(inside).collect::<Vec<_>>()
            };
            let before = within(span[0] - 2.0 * period_s, span[0]);
            let after = within(span[0], span[1]);
            let mut found = of_change(&before, &after)?;
            found.back_after_periods = found.back_after_s.map(|s| s / period_s);
            let soon = found.back_after_periods.is_some_and(|n| n <= PERIODS_MAX);
            found.kept = (run.strategy == "cost").then_some(soon);
            Some(found)
        })
        .collect()
}

/// Returns the adaptation to one change; `None` if there were no requests before or after the
/// change.
fn of_change(before: &[&TimeSlice], after: &[&TimeSlice]) -> Option<Adaptation> {
    let at_s = after.first()?.from_s;
    let steady_ms = mean_ms(before)?;
    let limit_ms = steady_ms * AS_BEFORE;
    let is_back = |from: &usize| {
        let rest = mean_ms(&after[*from..]);
        after[*from].mean_ms() <= limit_ms && rest.is_some_and(|mean| mean <= limit_ms)
    };
    let back = (0..after.len()).find(is_back);
    Some(Adaptation {
        at_s,
        steady_ms,
        worst_ms: after.iter().map(|s| s.mean_ms()).fold(0.0, f64::max),
        back_after_s: back.map(|index| after[index].from_s - at_s),
        back_after_periods: None,
        kept: None,
    })
}

/// Returns the mean latency of all operations in several stretches, in ms.
fn mean_ms(stretches: &[&TimeSlice]) -> Option<f64> {
    let operations: u64 = stretches.iter().map(|s| s.operations).sum();
    let sum: f64 = stretches.iter().map(|s| s.sum_ms).sum();
    (operations > 0).then(|| sum / operations as f64)
}

/// Returns a table with a line for each strategy and change; `None` if the clients' requests never
/// changed.
pub(super) fn table(summary: &ExperimentSummary) -> Option<Table> {
    let title = "How soon each strategy was as good as before, after what clients ask for changed";
    let columns = [
        "strategy",
        "change at s",
        "steady mean ms",
        "worst stretch ms",
        "back within a tenth after s",
        "in periods",
        "bound, periods",
        "kept",
    ];
    let mut table = Table::new(title, &columns);
    let shown =
        |value: Option<f64>| value.map_or("never".to_owned(), |value| format!("{value:.1}"));
    for run in &summary.runs {
        for change in &run.adapting {
            let bound = change.kept.map(|_| format!("{PERIODS_MAX}"));
            let kept = change.kept.map(|kept| if kept { "yes" } else { "NO" });
            table.rows.push(vec![
                run.label.clone(),
                format!("{:.0}", change.at_s),
                ms(change.steady_ms),
                ms(change.worst_ms),
                shown(change.back_after_s),
                shown(change.back_after_periods),
                bound.unwrap_or_else(|| "–".to_owned()),
                kept.unwrap_or("–").to_owned(),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Returns one line for each strategy and stretch:
/// `strategy,start_s,end_s,operations,mean_ms,local`. Times are measured from the beginning of the
/// measured interval.
pub(super) fn csv(report: &ExperimentReport) -> String {
    let mut csv = String::from("strategy,start_s,end_s,operations,mean_ms,local\n");
    for run in &report.runs {
        for s in time_slices(report, run) {
            let local = s
                .local()
                .map_or_else(String::new, |share| format!("{share:.6}"));
            let times = format!("{:.1},{:.1}", s.from_s, s.to_s);
            let figures = format!("{},{:.3},{local}", s.operations, s.mean_ms());
            // Writing to a string cannot fail. Labels are plain names.
            let _ = writeln!(csv, "{},{times},{figures}", run.label);
        }
    }
    csv
}

/// Returns an explanation of the figure and the table.
pub(super) fn prose(report: &ExperimentReport) -> Vec<String> {
    let width_s = STRETCH_S.min(period_s(report) / 2.0);
    let picture = format!(
        "Mean latency of all operations and share of local reads, in stretches of {width_s} s. \
         Holders are chosen anew every {} s, the reconfiguration period.",
        period_s(report)
    );
    let swaps = report
        .events
        .iter()
        .any(|event| event.kind == RunEvent::SWAP);
    let adapting = swaps.then(|| {
        format!(
            "The steady mean is that of the last two periods before a change. A strategy is back \
             when the mean of a stretch, and that of the time from there to the next change, is \
             at most a tenth above it. Of cost that is demanded within {PERIODS_MAX} periods."
        )
    });
    [Some(picture), adapting].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(from_s: f64, mean_ms: f64) -> TimeSlice {
        TimeSlice {
            from_s,
            to_s: from_s + 5.0,
            operations: 100,
            sum_ms: mean_ms * 100.0,
            ..TimeSlice::default()
        }
    }

    fn of(before: &[f64], after: &[f64]) -> Adaptation {
        let make = |means: &[f64]| -> Vec<TimeSlice> {
            let means = means.iter().zip(0..);
            means
                .map(|(ms, i)| stretch(f64::from(i) * 5.0, *ms))
                .collect()
        };
        let (before, after) = (make(before), make(after));
        let all = |stretches: &'static [TimeSlice]| stretches.iter().collect::<Vec<_>>();
        let (before, after) = (before.leak(), after.leak());
        of_change(&all(before), &all(after)).unwrap()
    }

    #[test]
    fn a_strategy_is_back_when_it_stays_within_a_tenth() {
        let found = of(&[90.0, 110.0], &[150.0, 130.0, 109.0, 105.0]);
        assert_eq!((found.steady_ms, found.worst_ms), (100.0, 150.0));
        assert_eq!(found.back_after_s, Some(10.0));
        // A good stretch is ignored if later stretches are worse.
        let found = of(&[100.0], &[150.0, 105.0, 140.0, 130.0, 100.0]);
        assert_eq!(found.back_after_s, Some(20.0));
        assert_eq!(of(&[100.0], &[101.0, 99.0]).back_after_s, Some(0.0));
        assert_eq!(of(&[100.0], &[130.0, 120.0]).back_after_s, None);
    }
}
