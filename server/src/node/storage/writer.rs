//! The storage's own thread: it may wait for a disk, the replica may not.
//!
//! While one write is on its way to disk others gather; they then go as one, so
//! a slow disk makes groups larger, not the queue longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use leases::Slot;

use super::{Durability, Storage, StorageError};
use crate::replica::action::{Asker, Record, Sequence};
use crate::replica::message::{LogId, Value};

/// How often a full disk is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// What one answer to a log read holds, in bytes on disk: a fraction of a frame.
const READ_BYTES_MAX: usize = 1 << 20;
/// Persists that may count as durable before they are written. Past it they wait, so that
/// what waits for a slow disk is bounded.
const AHEAD_MAX: u64 = 128;

/// What the storage tells the replica.
#[derive(Debug)]
pub enum Report {
    /// Everything up to here is durable.
    Persisted(Sequence),
    /// There is no room for writes, or there is again.
    Writable(bool),
    /// What the log holds.
    LogRead {
        /// Which log.
        log: LogId,
        /// For whom.
        to: Asker,
        /// Rising by slot.
        entries: Vec<(Slot, Value)>,
    },
    /// The storage has failed for good, and its thread has ended.
    Failed(StorageError),
}

/// When records are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// They are already, with all before them: memory is enough.
    Now,
    /// When `Report::Persisted` says so.
    Later,
}

enum Job {
    Persist(Sequence, Vec<Record>, Durable),
    Read(Read),
    Close,
}

pub(super) struct Read {
    log: LogId,
    to: Asker,
    from: Slot,
    last: Slot,
}

/// The handle to the storage's thread. Dropping it ends the thread as
/// [`Writer::close`] does, but nobody waits for it.
#[derive(Debug)]
pub struct Writer {
    jobs: Sender<Job>,
    thread: JoinHandle<Result<(), StorageError>>,
    ahead: Option<Ahead>,
}

/// Where memory is enough ([`Durability::None`]).
#[derive(Debug)]
struct Ahead {
    /// The last persist that was written.
    written: Arc<AtomicU64>,
    /// The last that could not count before it was.
    waited: Sequence,
}

impl Ahead {
    fn persist(&mut self, sequence: Sequence, records: &[Record]) -> Durable {
        let written = self.written.load(Ordering::Acquire);
        let near = sequence.0 - written <= AHEAD_MAX;
        if near && written >= self.waited.0 && !records.iter().any(Record::is_synced_always) {
            return Durable::Now;
        }
        self.waited = sequence;
        Durable::Later
    }
}

impl Writer {
    /// Starts the thread. `report` is called on it.
    ///
    /// # Errors
    /// The operating system has no thread left.
    pub fn start(
        storage: Storage,
        report: impl Fn(Report) + Send + 'static,
    ) -> std::io::Result<Writer> {
        let in_memory = storage.durability == Durability::None;
        Writer::start_on(storage, (RETRY, in_memory), report)
    }

    pub(super) fn start_on(
        disk: impl Disk,
        (retry, in_memory): (Duration, bool),
        report: impl Fn(Report) + Send + 'static,
    ) -> std::io::Result<Writer> {
        let (jobs, queue) = channel();
        let written = Arc::new(AtomicU64::new(0));
        let ahead = in_memory.then(|| Ahead {
            written: written.clone(),
            waited: Sequence::default(),
        });
        let thread = std::thread::Builder::new()
            .name("storage".to_owned())
            .spawn(move || Desk::new(queue, (retry, written), report).run(disk))?;
        Ok(Writer {
            jobs,
            thread,
            ahead,
        })
    }

    /// Makes records durable, and says when. After a `Report::Failed` nothing follows.
    pub fn persist(&mut self, sequence: Sequence, records: Vec<Record>) -> Durable {
        let ahead = self.ahead.as_mut();
        let durable = ahead.map_or(Durable::Later, |it| it.persist(sequence, &records));
        let _ = self.jobs.send(Job::Persist(sequence, records, durable));
        durable
    }

    /// Reads a log; `Report::LogRead` follows, unless the disk is full and lacks what counts
    /// as durable.
    pub fn read_log(&self, log: LogId, to: Asker, from: Slot, last: Slot) {
        let read = Read {
            log,
            to,
            from,
            last,
        };
        let _ = self.jobs.send(Job::Read(read));
    }

    /// Writes what is queued, if there is room, and closes the directory.
    ///
    /// # Errors
    /// What closing met with; a write's failure was reported.
    pub fn close(self) -> Result<(), StorageError> {
        let _ = self.jobs.send(Job::Close);
        match self.thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// What the thread needs of the storage, so that tests can be the disk.
pub(super) trait Disk: Send + 'static {
    fn write(&mut self, records: &[Record]) -> Result<(), StorageError>;
    fn read_log(&self, read: &Read) -> Result<Vec<(Slot, Value)>, StorageError>;
    fn close(self) -> Result<(), StorageError>;
}

impl Disk for Storage {
    fn write(&mut self, records: &[Record]) -> Result<(), StorageError> {
        Storage::write(self, records)
    }

    fn read_log(&self, read: &Read) -> Result<Vec<(Slot, Value)>, StorageError> {
        Storage::read_log(self, read.log, read.from, read.last, READ_BYTES_MAX)
    }

    fn close(self) -> Result<(), StorageError> {
        Storage::close(self)
    }
}

/// Work that the thread has taken and not finished.
struct Desk<F> {
    queue: Receiver<Job>,
    retry: Duration,
    written: Arc<AtomicU64>,
    report: F,
    /// Not yet written, in order; kept until they are.
    records: Vec<Record>,
    /// Of the newest persist among them.
    sequence: Option<Sequence>,
    /// Whether the replica waits for any of them.
    awaited: bool,
    /// Whether any of them counts as durable already.
    ahead: bool,
    reads: Vec<Read>,
    writable: bool,
    closing: bool,
}

impl<F: Fn(Report)> Desk<F> {
    fn new(queue: Receiver<Job>, (retry, written): (Duration, Arc<AtomicU64>), report: F) -> Self {
        Desk {
            queue,
            retry,
            written,
            report,
            records: Vec::new(),
            sequence: None,
            awaited: false,
            ahead: false,
            reads: Vec::new(),
            writable: true,
            closing: false,
        }
    }

    fn run(mut self, mut disk: impl Disk) -> Result<(), StorageError> {
        while !self.closing {
            self.gather();
            if let Err(error) = self.work(&mut disk) {
                (self.report)(Report::Failed(error));
                return Ok(());
            }
        }
        disk.close()
    }

    /// Waits for a job, or for the time to try a full disk again, then takes all.
    fn gather(&mut self) {
        let first = if self.writable {
            self.queue
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            self.queue.recv_timeout(self.retry)
        };
        match first {
            Ok(job) => self.take(job),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.closing = true,
        }
        while let Ok(job) = self.queue.try_recv() {
            self.take(job);
        }
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Persist(sequence, records, durable) => {
                self.sequence = Some(sequence);
                self.awaited |= durable == Durable::Later;
                self.ahead |= durable == Durable::Now;
                if self.records.is_empty() {
                    self.records = records;
                } else {
                    self.records.extend(records);
                }
            }
            Job::Read(read) => self.reads.push(read),
            Job::Close => self.closing = true,
        }
    }

    fn work(&mut self, disk: &mut impl Disk) -> Result<(), StorageError> {
        if let Some(sequence) = self.sequence {
            match disk.write(&self.records) {
                Ok(()) => self.written(sequence),
                Err(StorageError::Full { .. }) => self.set_writable(false),
                Err(error) => return Err(error),
            }
        }
        let reads = std::mem::take(&mut self.reads);
        if self.ahead {
            // The disk holds less than counts as durable, and may hold other values in its
            // place. Whoever wants to read asks again.
            return Ok(());
        }
        for read in reads {
            let entries = disk.read_log(&read)?;
            let Read { log, to, .. } = read;
            (self.report)(Report::LogRead { log, to, entries });
        }
        Ok(())
    }

    fn written(&mut self, sequence: Sequence) {
        self.records = Vec::new();
        self.sequence = None;
        self.ahead = false;
        self.written.store(sequence.0, Ordering::Release);
        if std::mem::take(&mut self.awaited) {
            (self.report)(Report::Persisted(sequence));
        }
        self.set_writable(true);
    }

    fn set_writable(&mut self, writable: bool) {
        if self.writable != writable {
            self.writable = writable;
            (self.report)(Report::Writable(writable));
        }
    }
}
