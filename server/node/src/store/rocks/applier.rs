//! Thread that applies changes to the executed state. A write of the log waits for RocksDB only if
//! several batches of changes are not applied yet.
//!
//! # Rules
//! - Batches are applied in the order in which they are handed over.
//! - A flush covers exactly the batches that were handed over before it.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use leasehold_leases::Slot;
use leasehold_replica::action::StateChanges;
use leasehold_replica::message::PerLog;

use super::StorageError;
use super::engine::{Engine, FlushProgress, Flusher};
use crate::store::FlushReport;

/// Interval between attempts to apply a batch that RocksDB has refused.
const RETRY: Duration = Duration::from_millis(500);
/// Number of waiting batches at which the log begins to wait. The limit bounds the
/// memory of the batches.
const WAITING_MAX: usize = 4;
/// Increment of the thread's nice value. Clients wait for the log, and rarely for a batch. So other
/// threads that wake get the processor soon, although a batch is being applied. With a larger
/// increment, the thread would fall behind on a machine that is always busy, and the log would wait
/// for it.
const NICE: i32 = 10;

/// The thread that applies changes.
pub(super) struct Applier {
    orders: Option<Sender<StateOrder>>,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

/// Work for the thread.
enum StateOrder {
    Apply(Arc<StateChanges>),
    Flush(FlushReport),
}

/// Progress of the thread, and a condition that is signalled when the progress changes.
#[derive(Default)]
struct Progress {
    state: Mutex<ApplierState>,
    changed: Condvar,
}

#[derive(Default)]
struct ApplierState {
    /// Number of batches that were handed over and are not applied yet.
    waiting: usize,
    /// Last slot of each log in the newest batch that was applied.
    applied: PerLog<Slot>,
    /// Whether RocksDB has refused the oldest waiting batch, because the disk is full.
    is_refused: bool,
    /// Number of flushes that were requested and have not ended yet.
    flushes: usize,
    /// Whether RocksDB has refused the oldest of these flushes, because the disk is full.
    is_flush_refused: bool,
    /// Error with which the thread has ended.
    failure: Option<StorageError>,
    /// Whether the thread has ended.
    has_ended: bool,
    /// Whether a batch that is refused need not be tried again.
    is_closing: bool,
}

impl ApplierState {
    fn check(&mut self, path: &Path) -> Result<(), StorageError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        assert!(!self.has_ended, "the thread that applies changes goes on");
        if self.is_full() {
            let path = path.to_owned();
            return Err(StorageError::Full { path });
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.is_refused || self.is_flush_refused
    }

    fn note_flush(&mut self, flush: FlushProgress) {
        self.is_flush_refused = match flush {
            FlushProgress::Done => false,
            FlushProgress::Refused => true,
            FlushProgress::Replaced => self.is_flush_refused,
        };
        if flush != FlushProgress::Refused {
            self.flushes -= 1;
        }
    }
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, ApplierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut ApplierState)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits while the condition holds and the thread makes progress.
    fn wait_while(
        &self,
        condition: impl Fn(&ApplierState) -> bool,
    ) -> MutexGuard<'_, ApplierState> {
        let goes_on =
            |state: &mut ApplierState| condition(state) && !state.is_refused && !state.has_ended;
        let waited = self.changed.wait_while(self.lock(), goes_on);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Applier {
    /// Starts the thread. `applied` has the last slots that the state covers now.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(super) fn start(engine: Arc<Engine>, applied: PerLog<Slot>) -> std::io::Result<Applier> {
        let progress = Arc::new(Progress::default());
        let flusher = Flusher::start(engine.clone(), {
            let progress = progress.clone();
            move |flush| progress.change(|state| state.note_flush(flush))
        })?;
        progress.lock().applied = applied;
        let (orders, ordered) = channel();
        let worker = Worker {
            engine,
            flusher,
            progress: progress.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("state".to_owned())
            .spawn(move || {
                // On Linux, this concerns the calling thread alone.
                let _ = rustix::process::nice(NICE);
                worker.run(&ordered);
            })?;
        Ok(Applier {
            orders: Some(orders),
            progress,
            thread: Some(thread),
        })
    }

    /// Waits until few batches wait.
    ///
    /// # Errors
    /// `Full` for the directory `path` if RocksDB refuses a batch or a flush at present. Any other
    /// error is final.
    pub(super) fn wait_for_room(&self, path: &Path) -> Result<(), StorageError> {
        self.progress
            .wait_while(|it| it.waiting >= WAITING_MAX)
            .check(path)
    }

    /// Returns whether any batch or flush waits.
    ///
    /// # Errors
    /// The same errors as [`Applier::wait_for_room`].
    pub(super) fn check(&self, path: &Path) -> Result<bool, StorageError> {
        let mut state = self.progress.lock();
        state.check(path)?;
        Ok(state.waiting > 0 || state.flushes > 0)
    }

    /// Whether RocksDB refuses a batch or a flush at present.
    pub(super) fn is_full(&self) -> bool {
        self.progress.lock().is_full()
    }

    /// Makes the thread give up a batch that is refused.
    pub(super) fn stop(&self) {
        self.progress.change(|state| state.is_closing = true);
    }

    /// Hands over a batch.
    pub(super) fn apply(&self, changes: Arc<StateChanges>) {
        self.progress.lock().waiting += 1;
        self.order(StateOrder::Apply(changes));
    }

    /// Requests a flush. `report` is called when the flush has ended.
    pub(super) fn flush(&self, report: FlushReport) {
        self.progress.lock().flushes += 1;
        self.order(StateOrder::Flush(report));
    }

    fn order(&self, order: StateOrder) {
        if let Some(orders) = &self.orders {
            // If the thread has ended, the next call of `wait_for_room` returns its error.
            let _ = orders.send(order);
        }
    }

    /// Waits until all batches are applied, or until RocksDB refuses one. Returns the last slots
    /// that the state covers.
    ///
    /// # Errors
    /// Any error that has ended the thread.
    pub(super) fn finish(&self) -> Result<PerLog<Slot>, StorageError> {
        let mut state = self.progress.wait_while(|it| it.waiting > 0);
        match state.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(state.applied),
        }
    }
}

impl Drop for Applier {
    fn drop(&mut self) {
        self.stop();
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It ends after the waiting batches and the flush in progress.
            let _ = thread.join();
        }
    }
}

/// State of the thread.
struct Worker {
    engine: Arc<Engine>,
    flusher: Flusher,
    progress: Arc<Progress>,
}

impl Worker {
    fn run(self, orders: &Receiver<StateOrder>) {
        while let Ok(order) = orders.recv() {
            match order {
                StateOrder::Apply(changes) => {
                    if !self.apply(&changes) {
                        return;
                    }
                }
                StateOrder::Flush(report) => {
                    let applied = self.progress.lock().applied;
                    self.flusher.order(applied, report);
                }
            }
        }
    }

    /// Applies a batch. Tries again while RocksDB refuses it. Returns false if the batch was not
    /// applied.
    fn apply(&self, changes: &StateChanges) -> bool {
        loop {
            match self.engine.apply_changes(changes) {
                Ok(()) => {
                    self.progress.change(|state| {
                        state.waiting -= 1;
                        state.is_refused = false;
                        state.applied = PerLog {
                            commands: changes.executed,
                            configs: Slot(changes.config.0),
                        };
                    });
                    return true;
                }
                Err(StorageError::Full { .. }) => {
                    self.progress.change(|state| state.is_refused = true);
                    let waits = |state: &mut ApplierState| !state.is_closing;
                    let lock = self.progress.lock();
                    let waited = self.progress.changed.wait_timeout_while(lock, RETRY, waits);
                    let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                    if state.is_closing {
                        return false;
                    }
                }
                Err(error) => {
                    self.progress.change(|state| state.failure = Some(error));
                    return false;
                }
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.progress.change(|state| state.has_ended = true);
    }
}
