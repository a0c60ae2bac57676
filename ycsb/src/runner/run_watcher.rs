//! Watcher of a run. It handles the intervals, the deadlines and the cancellation of the run.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::run_state::RunState;
use super::{CancellationToken, Observer, RunOptions, RunProgress, Tick, pass_on_panic};
use crate::measurement::{Metric, sum_of};
use crate::sample::OpKind;

/// A time that no run reaches.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Reason why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Every thread has carried out all its operations.
    Done,
    /// The threads may start no further operation.
    Stopped,
    /// The time of the run is over.
    TimeOver,
    /// The caller or the user stopped the run.
    Cancelled,
}

/// Watcher of a run. It handles the intervals, the deadlines and the cancellation of the run.
pub(super) struct RunWatcher<'a> {
    shared: &'a RunState,
    options: &'a RunOptions,
    operations: u64,
    interval_start: Duration,
    done_before: u64,
}

impl<'a> RunWatcher<'a> {
    pub fn new(shared: &'a RunState, options: &'a RunOptions, operations: u64) -> Self {
        RunWatcher {
            shared,
            options,
            operations,
            interval_start: Duration::ZERO,
            done_before: 0,
        }
    }

    /// Waits until all threads are done or have to stop.
    pub async fn until_done(
        &mut self,
        workers: &mut JoinSet<()>,
        observer: &mut dyn Observer,
        cancel: &CancellationToken,
    ) -> Ending {
        let mut ticks = self.timer(Some(self.options.interval_every));
        let mut refreshes = self.timer(self.options.refresh_every);
        let forever = self.shared.start + FOREVER;
        let time_over = sleep_until(self.shared.deadline.unwrap_or(forever));
        tokio::pin!(time_over);
        loop {
            // The end of the run comes before an interval that ends at the same moment and would be
            // empty.
            tokio::select! {
                biased;
                joined = workers.join_next() => match joined {
                    Some(joined) => pass_on_panic(joined),
                    None => return Ending::Done,
                },
                () = self.shared.stop.cancelled() => return Ending::Stopped,
                () = &mut time_over => return Ending::TimeOver,
                () = cancel.cancelled() => return Ending::Cancelled,
                _ = ticks.tick() => self.end_interval(observer, Instant::now(), false),
                _ = refreshes.tick() => observer.refresh(&self.progress()),
            }
        }
    }

    fn timer(&self, every: Option<Duration>) -> tokio::time::Interval {
        let every = every.unwrap_or(FOREVER).max(Duration::from_millis(1));
        let mut timer = interval_at(self.shared.start + every, every);
        timer.set_missed_tick_behavior(MissedTickBehavior::Skip);
        timer
    }

    /// Ends the last interval at the end of the run. This interval also includes events after the
    /// end of the run.
    pub fn end_last_interval(&mut self, observer: &mut dyn Observer) {
        let end = self.shared.end().unwrap_or_else(Instant::now);
        self.end_interval(observer, end, true);
    }

    fn end_interval(&mut self, observer: &mut dyn Observer, end: Instant, last: bool) {
        let end = self.shared.since_start(end).max(self.interval_start);
        let parts = self.shared.books();
        let measured = sum_of(parts.map(|mut book| book.measurements.end_interval()));
        let done = self.shared.done.load(Ordering::Relaxed);
        observer.interval(&Tick {
            start: self.interval_start,
            length: end - self.interval_start,
            done,
            done_in_interval: done - self.done_before,
            todo: self.operations.saturating_sub(done),
            measured: &measured,
            interval: self.options.interval,
            last,
        });
        self.interval_start = end;
        self.done_before = done;
    }

    fn progress(&self) -> RunProgress {
        let measurements = self.shared.whole().measurements;
        let basis = measurements.main_basis();
        let all = measurements.total(|key| {
            let part = matches!(
                key.metric,
                Metric::Done(OpKind::ReadModifyWrite)
                    | Metric::Verify
                    | Metric::PerRecord
                    | Metric::All
            );
            key.basis == basis && !part
        });
        RunProgress {
            elapsed: self.shared.start.elapsed(),
            done: self.shared.done.load(Ordering::Relaxed),
            all: self.operations,
            p50_us: all.value_at_quantile(0.5),
            p99_us: all.value_at_quantile(0.99),
        }
    }
}
