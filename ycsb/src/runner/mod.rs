//! The load generator: carries out a workload against stores, and measures.
//!
//! Without a target rate it is a *closed loop*: every thread sends its next
//! operation when the last one is answered. With a target rate each operation has
//! an intended start, fixed beforehand; a thread that is late sends at once, and
//! its latency counts from the intended start too, so that an outage is seen by
//! all operations it would have met. ("Threads" are YCSB's word for what are
//! tasks here: each has at most one operation in flight.)

mod cancel;
mod pace;
mod transaction;
mod worker;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval_at, sleep_until, timeout};

use crate::measurement::{Interval, Key, Measurements, What};
use crate::sample::OpKind;
use crate::store::Store;
use crate::workload::CoreWorkload;
use pace::Pacer;
use worker::Worker;

pub use cancel::Cancel;

/// How long a run that was stopped waits for the operations in flight.
const GRACE: Duration = Duration::from_secs(2);

/// A time that no run reaches.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Which half of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Insert the records.
    Load,
    /// Carry out the operations.
    Run,
}

/// How a workload is carried out.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Which half.
    pub phase: Phase,
    /// Operations in flight at most; 0 counts as 1.
    pub threads: u64,
    /// Operations a second, of all threads together; `None`: as many as possible.
    pub target: Option<f64>,
    /// No operation starts after this time.
    pub time_max: Option<Duration>,
    /// What starts within this time is not measured.
    pub warmup: Duration,
    /// Which times are kept.
    pub interval: Interval,
    /// Time between two calls of [`Observer::interval`].
    pub status_every: Duration,
    /// Time between two calls of [`Observer::refresh`]; `None`: none.
    pub refresh_every: Option<Duration>,
    /// How often a failed insertion of the load phase is tried again.
    pub insert_retries: u32,
    /// The pause before it is, give or take a fifth.
    pub insert_retry_pause: Duration,
}

/// A store, and the site that it is reached from.
#[derive(Clone, Debug)]
pub struct SiteStore<S> {
    /// Index of the site in the measurements.
    pub site: u8,
    /// Number of the site, which decides what is popular if `permutation=site`.
    pub site_number: u64,
    /// The store.
    pub store: S,
}

/// An interval that has ended.
#[derive(Debug)]
pub struct Tick<'a> {
    /// When the interval began, from the start of the run.
    pub start: Duration,
    /// How long it was.
    pub length: Duration,
    /// Operations that ended since the start of the run.
    pub done: u64,
    /// Those of them that ended in this interval.
    pub done_in_interval: u64,
    /// Operations that are left; 0 if there is no end.
    pub todo: u64,
    /// What was measured in it.
    pub measured: &'a [(Key, Histogram<u64>)],
    /// Which times are kept.
    pub interval: Interval,
}

/// The state of a run, at any moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Live {
    /// Time since the start of the run.
    pub elapsed: Duration,
    /// Operations that ended.
    pub done: u64,
    /// Operations there are in all; 0 if there is no end.
    pub all: u64,
    /// Median latency of what was measured so far, in microseconds.
    pub p50_us: u64,
    /// 99th percentile of it, in microseconds.
    pub p99_us: u64,
}

/// Looks on while a workload runs.
pub trait Observer {
    /// An interval has ended. The last one ends with the run.
    fn interval(&mut self, tick: &Tick<'_>);
    /// It is time to show the state of the run.
    fn refresh(&mut self, live: &Live);
}

/// What a run has to show.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Everything measured.
    pub measurements: Measurements,
    /// Length of the measured phase.
    pub runtime: Duration,
    /// Operations that ended in the measured phase, failures included.
    pub operations: u64,
    /// Operations in flight that a stopped run did not wait for: not measured.
    pub abandoned: u64,
    /// Whether it was stopped from outside.
    pub cancelled: bool,
}

/// What the threads of a run share.
struct Shared {
    start: Instant,
    measurements: Mutex<Measurements>,
    /// Operations that ended, those of the warm-up included.
    done: AtomicU64,
    /// Operations that ended in the measured phase.
    measured: AtomicU64,
    /// When the last of them did, in nanoseconds from the start.
    last_end_ns: AtomicU64,
    /// Raised when no further operation may start.
    stop: Cancel,
}

impl Shared {
    fn new(interval: Interval) -> Self {
        Shared {
            start: Instant::now(),
            measurements: Mutex::new(Measurements::new(interval)),
            done: AtomicU64::new(0),
            measured: AtomicU64::new(0),
            last_end_ns: AtomicU64::new(0),
            stop: Cancel::new(),
        }
    }

    fn measurements(&self) -> MutexGuard<'_, Measurements> {
        // Ignores poisoning: histograms are consistent after every statement, so a panic
        // in another thread cannot leave one half changed.
        self.measurements
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries out a workload, its threads spread over `stores` in turn, until its
/// operations are done, its time is over, or `cancel` is raised. What failed is
/// in the outcome, not an error.
///
/// # Errors
/// If a target rate is set and the system refuses a thread to keep the time.
///
/// # Panics
/// If there is no store.
pub async fn run<S: Store>(
    workload: &CoreWorkload,
    stores: &[SiteStore<S>],
    options: &RunOptions,
    observer: &mut dyn Observer,
    cancel: &Cancel,
) -> io::Result<Outcome> {
    assert!(!stores.is_empty(), "a run needs a store");
    let operations = match options.phase {
        Phase::Load => workload.insert_count(),
        Phase::Run => workload.operation_count(),
    };
    let pacer = options.target.map(|_| Pacer::start()).transpose()?;
    let shared = Arc::new(Shared::new(options.interval));
    let threads = thread_count(options.threads, operations);
    let mut workers = JoinSet::new();
    for thread in 0..threads {
        let store = stores[(thread % stores.len() as u64) as usize].clone();
        let worker = Worker {
            thread,
            threads,
            operations: share(operations, threads, thread),
            workload: workload.clone(),
            store,
            options: options.clone(),
            pacer: pacer.clone(),
            shared: Arc::clone(&shared),
        };
        workers.spawn(worker.work());
    }
    let mut watch = Watch::new(&shared, options, operations);
    let cancelled = watch.until_done(&mut workers, observer, cancel).await;
    shared.stop.cancel();
    let abandoned = settle(&mut workers).await;
    watch.end_interval(observer);
    Ok(outcome(&shared, options.warmup, abandoned, cancelled))
}

/// More threads than operations would be idle; 0 operations are without end.
fn thread_count(asked: u64, operations: u64) -> u64 {
    match operations {
        0 => asked.max(1),
        _ => asked.clamp(1, operations),
    }
}

/// The operations of one thread: `None` without end.
fn share(operations: u64, threads: u64, thread: u64) -> Option<u64> {
    let rest = u64::from(thread < operations % threads);
    (operations > 0).then_some(operations / threads + rest)
}

/// Waits for the operations in flight, within bounds. Returns how many were given up.
async fn settle(workers: &mut JoinSet<()>) -> u64 {
    let all = async {
        while let Some(joined) = workers.join_next().await {
            pass_on_panic(joined);
        }
    };
    let _ = timeout(GRACE, all).await;
    let abandoned = workers.len() as u64;
    workers.shutdown().await;
    abandoned
}

fn pass_on_panic(joined: Result<(), JoinError>) {
    if let Some(panic) = joined.err().and_then(|error| error.try_into_panic().ok()) {
        std::panic::resume_unwind(panic);
    }
}

fn outcome(shared: &Shared, warmup: Duration, abandoned: u64, cancelled: bool) -> Outcome {
    let last_end = Duration::from_nanos(shared.last_end_ns.load(Ordering::Relaxed));
    Outcome {
        measurements: shared.measurements().clone(),
        runtime: last_end.saturating_sub(warmup),
        operations: shared.measured.load(Ordering::Relaxed),
        abandoned,
        cancelled,
    }
}

/// Watches a run: intervals, deadlines, cancellation.
struct Watch<'a> {
    shared: &'a Shared,
    options: &'a RunOptions,
    operations: u64,
    interval_start: Duration,
    done_before: u64,
}

impl<'a> Watch<'a> {
    fn new(shared: &'a Shared, options: &'a RunOptions, operations: u64) -> Self {
        Watch {
            shared,
            options,
            operations,
            interval_start: Duration::ZERO,
            done_before: 0,
        }
    }

    /// Until all threads are done or have to stop; whether `cancel` was raised.
    async fn until_done(
        &mut self,
        workers: &mut JoinSet<()>,
        observer: &mut dyn Observer,
        cancel: &Cancel,
    ) -> bool {
        let mut ticks = self.timer(Some(self.options.status_every));
        let mut refreshes = self.timer(self.options.refresh_every);
        let time_max = self.options.time_max.unwrap_or(FOREVER);
        let time_over = sleep_until((self.shared.start + time_max).into());
        tokio::pin!(time_over);
        loop {
            tokio::select! {
                joined = workers.join_next() => match joined {
                    Some(joined) => pass_on_panic(joined),
                    None => return false,
                },
                _ = ticks.tick() => self.end_interval(observer),
                _ = refreshes.tick() => observer.refresh(&self.live()),
                () = &mut time_over => return false,
                () = cancel.cancelled() => return true,
            }
        }
    }

    fn timer(&self, every: Option<Duration>) -> tokio::time::Interval {
        let every = every.unwrap_or(FOREVER).max(Duration::from_millis(1));
        let mut timer = interval_at((self.shared.start + every).into(), every);
        timer.set_missed_tick_behavior(MissedTickBehavior::Skip);
        timer
    }

    fn end_interval(&mut self, observer: &mut dyn Observer) {
        let end = self.shared.start.elapsed();
        let measured = self.shared.measurements().end_interval();
        let done = self.shared.done.load(Ordering::Relaxed);
        observer.interval(&Tick {
            start: self.interval_start,
            length: end - self.interval_start,
            done,
            done_in_interval: done - self.done_before,
            todo: self.operations.saturating_sub(done),
            measured: &measured,
            interval: self.options.interval,
        });
        self.interval_start = end;
        self.done_before = done;
    }

    fn live(&self) -> Live {
        let measurements = self.shared.measurements();
        let basis = measurements.main_basis();
        let all = measurements.total(|key| {
            let part = key.what == What::Done(OpKind::ReadModifyWrite) || key.what == What::Verify;
            key.basis == basis && !part
        });
        Live {
            elapsed: self.shared.start.elapsed(),
            done: self.shared.done.load(Ordering::Relaxed),
            all: self.operations,
            p50_us: all.value_at_quantile(0.5),
            p99_us: all.value_at_quantile(0.99),
        }
    }
}

#[cfg(test)]
mod tests;
