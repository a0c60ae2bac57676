//! The load generator: carries out a workload against stores, and measures it.
//!
//! Without a target rate, a run is a *closed loop*: every thread sends its next operation when its
//! last operation is answered. With a target rate, each operation has an intended start, which is
//! fixed in advance. If a thread is late, it sends its next operation immediately. The latency is
//! also measured from the intended start. So an outage increases the latency of every operation
//! that was due during the outage. ("Threads" is YCSB's word for the tasks here: each has at most
//! one operation in flight. The threads of the operating system are [`Cores`].)
//!
//! A run ends when its operations are done, its time is over, or it is stopped. The measured phase
//! ends at that moment, even if operations are in flight. The run then waits a little longer for
//! the answers to these operations, and finally abandons them. Every operation that was due before
//! the end is counted in the [`Account`](crate::measurement::Account).

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

/// Time that a run waits after its end for the operations in flight.
const GRACE: Duration = Duration::from_secs(2);

/// Phase of a benchmark: load or run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Inserts the records.
    Load,
    /// Carries out the operations of the workload.
    Run,
}

/// Options of a run of a workload.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Phase to carry out.
    pub phase: Phase,
    /// Maximum number of operations in flight; 0 is treated as 1.
    pub threads: u64,
    /// Operations per second of all threads together; `None` means as many as possible.
    pub target: Option<f64>,
    /// If true, a separate thread of the operating system waits for the times at which operations
    /// are due. The error of this thread is about 0.1 ms. If false, timers of the runtime are used.
    /// The error of these timers is 1 ms, but they also work in virtual time.
    pub precise: bool,
    /// Time after which the run ends; `None` means no limit.
    pub time_max: Option<Duration>,
    /// Duration of the warm-up. Operations that are due during the warm-up are not measured.
    pub warmup: Duration,
    /// Times that are kept: the service time, the time from the intended start, or both.
    pub interval: Interval,
    /// Time between two calls of [`Observer::interval`].
    pub interval_every: Duration,
    /// Time between two calls of [`Observer::refresh`]; `None` means no calls.
    pub refresh_every: Option<Duration>,
    /// Maximum number of times that a failed insertion of the load phase is tried again.
    pub insert_retries: u32,
    /// Pause before a failed insertion is tried again. The pause varies at random by up to a fifth.
    pub insert_retry_pause: Duration,
    /// Whether the load phase continues after an insertion that failed for good.
    pub insert_keep_going: bool,
}

/// A store, and the site from which its operations are sent.
#[derive(Clone, Debug)]
pub struct SiteStore<S> {
    /// Index of the site in the measurements.
    pub site: u8,
    /// ID of the site. If `permutation=site`, the ID determines which records are popular.
    pub site_number: u64,
    /// Address of the site's own replica. Answers from other replicas are reported separately. A
    /// request without an answer is counted as unanswered by this replica.
    pub address: ReplicaName,
    /// True if the store chooses a replica for each operation. In that case, the site has no
    /// replica of its own. So an answer from one replica does not mean that another replica failed
    /// to answer.
    pub routed: bool,
    /// Thread of the operating system that sends the store's operations.
    pub core: Core,
    /// The store.
    pub store: S,
}

/// An interval that has just ended in a run, and the measurements of this interval.
#[derive(Clone, Copy, Debug)]
pub struct Tick<'a> {
    /// Time from the start of the run to the start of the interval.
    pub start: Duration,
    /// Duration of the interval.
    pub length: Duration,
    /// Number of operations that ended since the start of the run.
    pub done: u64,
    /// Number of operations that ended in this interval.
    pub done_in_interval: u64,
    /// Number of operations that remain; 0 if the run has no limit.
    pub todo: u64,
    /// Histograms of the interval.
    pub measured: &'a [(SeriesKey, Histogram<u64>)],
    /// Times that are kept: the service time, the time from the intended start, or both.
    pub interval: Interval,
    /// Whether the run has ended.
    pub last: bool,
}

/// State of a run at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunProgress {
    /// Time since the start of the run.
    pub elapsed: Duration,
    /// Number of operations that ended.
    pub done: u64,
    /// Number of operations of the whole run; 0 if the run has no limit.
    pub all: u64,
    /// Median of the latencies so far, in microseconds.
    pub p50_us: u64,
    /// 99th percentile of the latencies so far, in microseconds.
    pub p99_us: u64,
}

/// Observer of a running workload.
pub trait Observer {
    /// Handles the end of an interval. The last interval ends with the run.
    fn interval(&mut self, tick: &Tick<'_>);
    /// Shows the state of the run.
    fn refresh(&mut self, progress: &RunProgress);
}

/// Carries out a workload until its operations are done, its time is over, or `cancel` is raised.
/// Each thread of the run uses one of the `stores`; the stores are assigned in turn. A failed
/// operation is not an error, but part of the outcome.
///
/// # Errors
/// If there is a target rate, and the operating system refuses to start the thread that keeps its
/// times.
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
    // A thread without remaining operations is done before the phase ends; the others stop at its
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

/// Returns the number of threads. It is the requested number, but at most the number of operations,
/// because further threads would be idle. If `operations` is 0, there is no limit.
fn thread_count(requested: u64, operations: u64) -> u64 {
    match operations {
        0 => requested.max(1),
        _ => requested.clamp(1, operations),
    }
}

/// Returns the number of operations of one thread; `None` if there is no limit.
fn share(operations: u64, threads: u64, thread: u64) -> Option<u64> {
    let rest = u64::from(thread < operations % threads);
    (operations > 0).then_some(operations / threads + rest)
}

/// Waits for the operations in flight. After the grace time, abandons the operations that have not
/// ended.
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
