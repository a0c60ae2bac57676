//! RocksDB, which stores the executed state. It has no write-ahead log: the log of the replica is
//! the write-ahead log of the state.
//!
//! # Rules
//! - A flush names all column families and is atomic, so that the position never becomes durable
//!   without its rows (hazards 88 and 121). RocksDB may also flush by itself at any time; the
//!   option `atomic_flush` makes this atomic, too.
//! - A batch of changes is handed over only after all earlier records of the log are synced, so
//!   that the state on disk never gets ahead of the log (hazard 120).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use leasehold_leases::Slot;
use leasehold_replica::action::StateChanges;
use leasehold_replica::changes_size_estimate;
use leasehold_replica::message::PerLog;
use rocksdb::{DB, FlushOptions, WriteBatch, WriteOptions};

use super::StorageError;
use super::marker::Marker;
use super::records::{self, Column};
use crate::store::FlushReport;
use crate::store::reserve::Reserve;

/// Interval between attempts to flush to a full disk.
const RETRY: Duration = Duration::from_millis(500);

/// RocksDB and the marker file of a data directory.
pub(super) struct Engine {
    pub(super) db: Arc<DB>,
    pub(super) path: PathBuf,
    pub(super) marker: Marker,
    /// Reserve of disk space; `None` while the directory is being opened, and if none is wanted.
    pub(super) reserve: Option<Reserve>,
    /// Number of operations that failed because the disk was full.
    pub(super) refusals: AtomicU64,
}

impl Engine {
    /// Notes that the disk has refused an attempt for lack of space. Returns the error.
    pub(super) fn full(&self) -> StorageError {
        self.refusals.fetch_add(1, Ordering::AcqRel);
        if let Some(reserve) = &self.reserve {
            reserve.give_up();
        }
        let path = self.path.clone();
        StorageError::Full { path }
    }

    /// Applies a batch of changes to the state in memory. A flush makes the changes durable.
    pub(super) fn apply_changes(&self, changes: &StateChanges) -> Result<(), StorageError> {
        // Without this capacity the batch is copied each time that it grows.
        let bytes = changes_size_estimate(changes);
        let mut batch = WriteBatch::with_capacity_bytes(bytes);
        records::append(&self.db, changes, &mut batch);
        self.apply(batch)
    }

    /// Applies a batch to the state in memory. A flush makes the changes durable.
    pub(super) fn apply(&self, batch: WriteBatch) -> Result<(), StorageError> {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        let written = self.db.write_opt(batch, &options);
        written.map_err(|error| self.failed("writing", error))
    }

    /// Makes all applied changes durable. Records `position` in the marker file: the next start must
    /// find the state there.
    pub(super) fn flush(&self, position: PerLog<Slot>) -> Result<(), StorageError> {
        // RocksDB would write to whatever is at the path now.
        self.marker.check_place()?;
        // After an error of a full disk, RocksDB resumes within 5 s when the disk has space. Each
        // flush before that delays this by a second, and flushes twice a second would prevent it. A
        // write is refused without a delay.
        self.apply(WriteBatch::default())?;
        let columns = Column::ALL.map(|column| column.handle(&self.db));
        let flushed = self
            .db
            .flush_cfs_opt(&columns.each_ref(), &FlushOptions::default());
        flushed.map_err(|error| self.failed("flushing", error))?;
        let manifest = self.marker.find_manifest();
        let manifest = manifest.map_err(|error| self.unless_gone(error))?;
        let marked = self.marker.advance_state(position, manifest);
        marked.map_err(|error| self.unmarked(error))?;
        let synced = self.marker.sync();
        synced.map_err(|error| self.unmarked(error))?;
        self.marker.check_place()
    }
}

impl Drop for Engine {
    /// Leaves RocksDB open if the data directory is no longer at its path. If RocksDB were closed,
    /// it would write the state into any other directory that is at this path now.
    fn drop(&mut self) {
        if self.marker.check_place().is_err() {
            std::mem::forget(self.db.clone());
        }
    }
}

/// Thread that flushes the state, because a flush may take long.
pub(super) struct Flusher {
    orders: Option<Sender<FlushOrder>>,
    thread: Option<JoinHandle<()>>,
}

struct FlushOrder {
    /// Last slot of each log in the newest batch that was applied.
    position: PerLog<Slot>,
    report: FlushReport,
}

impl Flusher {
    /// Starts the thread. The thread calls `note` after each attempt to flush.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(super) fn start(
        engine: Arc<Engine>,
        note: impl Fn(FlushProgress) + Send + 'static,
    ) -> std::io::Result<Flusher> {
        let (orders, ordered) = channel();
        let thread = std::thread::Builder::new()
            .name("flush".to_owned())
            .spawn(move || flush_orders(&engine, &ordered, note))?;
        Ok(Flusher {
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    /// Requests a flush. `report` is called when the flush has ended.
    pub(super) fn order(&self, position: PerLog<Slot>, report: FlushReport) {
        if let Some(orders) = &self.orders {
            // The thread has ended if a flush has failed, which was reported.
            let _ = orders.send(FlushOrder { position, report });
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It ends after the flush in progress.
            let _ = thread.join();
        }
    }
}

/// Result of an attempt to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushProgress {
    /// The flush has succeeded.
    Done,
    /// The disk has refused the flush for lack of space. The thread tries again.
    Refused,
    /// A newer flush takes the place of a refused one.
    Replaced,
}

/// Performs the requested flushes. Repeats a flush that finds no space on the disk. Returns when no
/// further flush can be requested, or when a flush has failed for another reason.
fn flush_orders(engine: &Engine, ordered: &Receiver<FlushOrder>, note: impl Fn(FlushProgress)) {
    let mut next = ordered.recv().ok();
    while let Some(FlushOrder { position, report }) = next {
        match engine.flush(position) {
            Ok(()) => {
                note(FlushProgress::Done);
                report(Ok(position));
                next = ordered.recv().ok();
            }
            Err(StorageError::Full { .. }) => {
                note(FlushProgress::Refused);
                let again = FlushOrder { position, report };
                next = match ordered.recv_timeout(RETRY) {
                    Ok(newer) => {
                        note(FlushProgress::Replaced);
                        Some(newer)
                    }
                    Err(RecvTimeoutError::Timeout) => Some(again),
                    Err(RecvTimeoutError::Disconnected) => None,
                };
            }
            Err(error) => return report(Err(error)),
        }
    }
}
