//! The load generator: carries out a workload against stores, and measures.
//!
//! Without a target rate it is a *closed loop*: every thread sends its next
//! operation when the last one is answered. With a target rate each operation has
//! an intended start, fixed beforehand; a thread that is late sends at once, and
//! its latency counts from the intended start too, so that an outage is seen by
//! all operations it would have met. ("Threads" are YCSB's word for what are
//! tasks here: each has at most one operation in flight. The threads of the operating
//! system are [`Cores`].)
//!
//! A run ends when its operations are done, its time is over, or it is stopped. The
//! measured phase ends at that moment, whatever was answered in it. Operations in
//! flight are waited for a little longer, and then abandoned. Every operation that was
//! due before the end is in the [`Account`](crate::measurement::Account).

mod cancellation_token;
mod cores;
mod outcome;
mod pace;
mod run_state;
mod run_watcher;
mod transaction;
mod worker;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};

use crate::measurement::{Interval, ReplicaName, SeriesKey};
use crate::store::KvStore;
use crate::workload::CoreWorkload;
use pace::Pacer;
use run_state::RunState;
use run_watcher::{Ending, RunWatcher};
use worker::Worker;

pub use outcome::{BenchmarkOutcome, Shortfall};

pub use cancellation_token::CancellationToken;
pub use cores::{Core, Cores};

/// Time that a run that was stopped waits for the operations in flight.
const GRACE: Duration = Duration::from_secs(2);

/// Phase of a benchmark: load or run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Insert the records.
    Load,
    /// Carry out the operations.
    Run,
}

/// Options of a run of a workload.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Phase to carry out.
    pub phase: Phase,
    /// Operations in flight at most; 0 counts as 1.
    pub threads: u64,
    /// Operations a second, of all threads together; `None`: as many as possible.
    pub target: Option<f64>,
    /// Whether a thread of the operating system keeps the times of the target rate, to
    /// about 0.1 ms. The runtime's timers keep them to 1 ms, also in virtual time.
    pub precise: bool,
    /// The run ends after this time.
    pub time_max: Option<Duration>,
    /// Duration of the warm-up: operations that are due within it are not measured.
    pub warmup: Duration,
    /// Times that are kept.
    pub interval: Interval,
    /// Time between two calls of [`Observer::interval`].
    pub interval_every: Duration,
    /// Time between two calls of [`Observer::refresh`]; `None`: none.
    pub refresh_every: Option<Duration>,
    /// Number of times that a failed insertion of the load phase is tried again.
    pub insert_retries: u32,
    /// The pause before it is, give or take a fifth.
    pub insert_retry_pause: Duration,
    /// Whether the load phase goes on after an insertion that failed for good.
    pub insert_keep_going: bool,
}

/// A store, and the site that it is reached from.
#[derive(Clone, Debug)]
pub struct SiteStore<S> {
    /// Index of the site in the measurements.
    pub site: u8,
    /// Number of the site, which decides what is popular if `permutation=site`.
    pub site_number: u64,
    /// The site's own replica. What another one answers is reported apart, and what has
    /// no answer is counted against this one.
    pub address: ReplicaName,
    /// Whether the store chooses a replica for each operation: none is the site's own then,
    /// and none is passed over.
    pub routed: bool,
    /// The thread of the operating system on which it is asked.
    pub core: Core,
    /// The store.
    pub store: S,
}

/// An interval that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Tick<'a> {
    /// When the interval began, from the start of the run.
    pub start: Duration,
    /// Duration of the interval.
    pub length: Duration,
    /// Operations that ended since the start of the run.
    pub done: u64,
    /// Those of them that ended in this interval.
    pub done_in_interval: u64,
    /// Operations that are left; 0 if there is no end.
    pub todo: u64,
    /// Histograms that were measured in it.
    pub measured: &'a [(SeriesKey, Histogram<u64>)],
    /// Times that are kept.
    pub interval: Interval,
    /// Whether the run has ended.
    pub last: bool,
}

/// The state of a run, at any moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunProgress {
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
    fn refresh(&mut self, progress: &RunProgress);
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
pub async fn run<S: KvStore>(
    workload: &CoreWorkload,
    stores: &[SiteStore<S>],
    options: &RunOptions,
    observer: &mut dyn Observer,
    cancel: &CancellationToken,
) -> io::Result<BenchmarkOutcome> {
    assert!(!stores.is_empty(), "a run needs a store");
    let operations = match options.phase {
        Phase::Load => workload.insert_count(),
        Phase::Run => workload.operation_count(),
    };
    let pacer = pacer(options)?;
    let cores = stores.iter().map(|store| store.core.number + 1);
    let shared = Arc::new(RunState::new(options, operations, cores.max().unwrap_or(1)));
    let mut workers = JoinSet::new();
    for thread in 0..shared.threads {
        let store = stores[(thread % stores.len() as u64) as usize].clone();
        shared.availability().used(&store.address, store.site);
        let core = store.core.clone();
        let worker = Worker {
            thread,
            threads: shared.threads,
            operations: share(operations, shared.threads, thread),
            workload: workload.clone(),
            store,
            options: options.clone(),
            pacer: pacer.clone(),
            shared: Arc::clone(&shared),
        };
        core.spawn_into(&mut workers, worker.work());
    }
    let mut watch = RunWatcher::new(&shared, options, operations);
    let ending = watch.until_done(&mut workers, observer, cancel).await;
    // A thread that has no operation left is done before the phase ends; the others stop by its
    // end.
    shared.end_at(match (ending, shared.deadline) {
        (Ending::TimeOver, Some(deadline)) => deadline,
        _ => Instant::now(),
    });
    drain(&mut workers, &shared).await;
    watch.end_last_interval(observer);
    Ok(BenchmarkOutcome::new(&shared, ending == Ending::Cancelled))
}

fn pacer(options: &RunOptions) -> io::Result<Option<Pacer>> {
    Ok(match (options.target, options.precise) {
        (None, _) => None,
        (Some(_), true) => Some(Pacer::start()?),
        (Some(_), false) => Some(Pacer::Runtime),
    })
}

/// More threads than operations would be idle; 0 operations are without end.
fn thread_count(requested: u64, operations: u64) -> u64 {
    match operations {
        0 => requested.max(1),
        _ => requested.clamp(1, operations),
    }
}

/// The operations of one thread: `None` without end.
fn share(operations: u64, threads: u64, thread: u64) -> Option<u64> {
    let rest = u64::from(thread < operations % threads);
    (operations > 0).then_some(operations / threads + rest)
}

/// Waits for the operations in flight, within bounds; then they are abandoned.
async fn drain(workers: &mut JoinSet<()>, shared: &RunState) {
    let _ = timeout(GRACE, join_all(workers)).await;
    shared.abandon.cancel();
    join_all(workers).await;
}

async fn join_all(workers: &mut JoinSet<()>) {
    while let Some(joined) = workers.join_next().await {
        pass_on_panic(joined);
    }
}

fn pass_on_panic(joined: Result<(), JoinError>) {
    if let Some(panic) = joined.err().and_then(|error| error.try_into_panic().ok()) {
        std::panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests;
