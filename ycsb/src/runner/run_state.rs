//! State that the threads of a run share: the clock of the run, the end of the run, and the books
//! (the measurements and counts) of all threads.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{CancellationToken, RunOptions};
use crate::measurement::{Account, Availability, Measurements};

pub(super) struct RunState {
    /// Number of threads.
    pub threads: u64,
    pub start: Instant,
    /// Start of the measured phase.
    pub measured_from: Instant,
    /// Time from which no more operations are due or sent; `None` means no limit.
    pub deadline: Option<Instant>,
    /// Time at which the last operation of the run is due; `None` if there is no limit or no target
    /// rate.
    pub last_due: Option<Instant>,
    /// Books, one for each thread of the operating system. A book contains measurements and counts.
    books: Vec<Mutex<Book>>,
    availability: Mutex<Availability>,
    /// Number of operations that ended, including those of the warm-up.
    pub done: AtomicU64,
    end: OnceLock<Instant>,
    /// Flag that stops the threads from starting further operations.
    pub stop: CancellationToken,
    /// Flag that stops the threads from waiting for answers.
    pub abandon: CancellationToken,
}

/// Measurements and counts that one thread of the operating system keeps.
#[derive(Clone)]
pub(super) struct Book {
    pub measurements: Measurements,
    pub account: Account,
    /// True if an insertion of the load phase failed and thereby ended the phase.
    pub load_failed: bool,
    /// Description of the first failure of an operation.
    pub failure: Option<String>,
}

impl RunState {
    /// Creates the state of a run that begins now. The run has `operations` operations (0 means no
    /// limit) on `cores` threads of the operating system.
    pub fn new(options: &RunOptions, operations: u64, cores: usize) -> Self {
        let start = Instant::now();
        let after = |time| start.checked_add(time);
        let account = Account {
            target: options.target,
            threads: super::thread_count(options.threads, operations),
            ..Account::default()
        };
        let empty = Book {
            measurements: Measurements::new(options.interval),
            account,
            load_failed: false,
            failure: None,
        };
        let last_due = options.target.filter(|_| operations > 0).and_then(|rate| {
            let due_s = (operations - 1) as f64 / rate;
            after(Duration::try_from_secs_f64(due_s).ok()?)
        });
        RunState {
            threads: account.threads,
            start,
            measured_from: after(options.warmup).unwrap_or(start),
            deadline: options.time_max.and_then(after),
            last_due,
            books: (0..cores).map(|_| Mutex::new(empty.clone())).collect(),
            availability: Mutex::new(Availability::new(options.warmup)),
            done: AtomicU64::new(0),
            end: OnceLock::new(),
            stop: CancellationToken::new(),
            abandon: CancellationToken::new(),
        }
    }

    /// Returns the book of a thread of the operating system.
    pub fn book(&self, core: usize) -> MutexGuard<'_, Book> {
        lock(&self.books[core])
    }

    /// Returns the books of all threads.
    pub fn books(&self) -> impl Iterator<Item = MutexGuard<'_, Book>> {
        self.books.iter().map(lock)
    }

    /// Returns the record of answers by site and by replica. All threads share this record, because
    /// an answer to any thread ends a gap.
    pub fn availability(&self) -> MutexGuard<'_, Availability> {
        lock(&self.availability)
    }

    /// Returns the sum of all books.
    pub fn whole(&self) -> Book {
        let mut books = self.books();
        let mut whole = books.next().expect("a run has a thread").clone();
        for book in books {
            whole.measurements.merge(&book.measurements);
            whole.account.add(&book.account);
            whole.load_failed |= book.load_failed;
            whole.failure = whole.failure.or_else(|| book.failure.clone());
        }
        whole
    }

    /// Ends the measured phase at `at`. Does nothing if the phase has ended already. After the end,
    /// no operation is sent.
    pub fn end_at(&self, at: Instant) {
        self.end.get_or_init(|| at);
        self.stop.cancel();
    }

    /// Returns the time at which the measured phase ended; `None` if it has not ended.
    pub fn end(&self) -> Option<Instant> {
        self.end.get().copied()
    }

    /// Returns true if an operation may be sent now. Ends the run if the time of the run is over.
    pub fn is_open(&self) -> bool {
        if let Some(deadline) = self.deadline.filter(|at| Instant::now() >= *at) {
            self.end_at(deadline);
        }
        !self.stop.is_cancelled()
    }

    /// Returns the time from the start of the run to `at`.
    pub fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Ignores poisoning: a panic of a thread is passed on, so nothing is reported afterwards.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
