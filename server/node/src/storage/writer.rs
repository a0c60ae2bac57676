//! The storage's own thread: it may wait for a disk, the replica may not.
//!
//! While one write is on its way to disk others gather; they then go as one, up to a
//! bound, so a slow disk makes groups larger, not the queue longer. A full disk is tried
//! again from time to time, with what it refused first. RocksDB takes some errors of a full disk
//! for final, and its C interface cannot tell it to go on: a store that refuses although there
//! is room has failed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leasehold_leases::Slot;

use super::{Durability, Storage, StorageError};
use leasehold_replica::action::{Asker, Record, Sequence};
use leasehold_replica::message::{LogId, Value};
use leasehold_replica::record_weight;

/// Interval between attempts on a full disk.
const RETRY: Duration = Duration::from_millis(500);
/// Refusals in a row of a disk that has room, after which the store is taken for stuck. With
/// [`RETRY`] they take 15 s; where RocksDB goes on by itself, it looks every 5 s.
const REFUSALS_MAX: u32 = 30;
/// Maximum size of one answer to a log read, in bytes on disk: a fraction of a frame.
const READ_BYTES_MAX: usize = 1 << 20;
/// Maximum size of one write, in bytes: the store keeps it a second time meanwhile. A single
/// persist may be larger.
const PIECE_BYTES: usize = 8 << 20;
/// Persists that may count as durable before they are written. Past it they wait, so that
/// what waits for a slow disk is bounded.
const AHEAD_MAX: u64 = 128;

/// Reports of the storage to the replica.
#[derive(Debug)]
pub enum Report {
    /// Everything up to here is durable.
    Persisted(Sequence),
    /// There is no room for writes, or there is again.
    Writable(bool),
    /// Entries that the log holds.
    LogRead {
        /// Log that was read.
        log: LogId,
        /// Recipient of the entries.
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
    Persist(Persist),
    Read(Read),
    Close,
}

/// Records that become durable as one.
struct Persist {
    sequence: Sequence,
    records: Vec<Record>,
    durable: Durable,
}

pub(super) struct Read {
    log: LogId,
    to: Asker,
    from: Slot,
    last: Slot,
}

/// The handle to the storage's thread. Dropping it ends the thread as
/// [`Writer::close`] does, and waits for it: RocksDB aborts a process that ends while a
/// database is still being closed.
#[derive(Debug)]
pub struct Writer {
    jobs: Sender<Job>,
    closing: Arc<AtomicBool>,
    /// `None` once it was waited for.
    thread: Option<JoinHandle<Result<(), StorageError>>>,
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
        let closing = Arc::new(AtomicBool::new(false));
        let ahead = in_memory.then(|| Ahead {
            written: written.clone(),
            waited: Sequence::default(),
        });
        let thread = std::thread::Builder::new()
            .name("storage".to_owned())
            .spawn({
                let closing = closing.clone();
                move || Desk::new((queue, closing), (retry, written), report).run(disk)
            })?;
        Ok(Writer {
            jobs,
            closing,
            thread: Some(thread),
            ahead,
        })
    }

    /// Makes records durable, and says when. After a `Report::Failed` nothing follows.
    pub fn persist(&mut self, sequence: Sequence, records: Vec<Record>) -> Durable {
        let ahead = self.ahead.as_mut();
        let durable = ahead.map_or(Durable::Later, |it| it.persist(sequence, &records));
        let persist = Persist {
            sequence,
            records,
            durable,
        };
        let _ = self.jobs.send(Job::Persist(persist));
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

    /// Writes what is queued and counts as durable already, if there is room, and closes the
    /// directory. What else is queued nobody was told of: a slow disk would take seconds for it.
    ///
    /// # Errors
    /// What closing met with; a write's failure was reported.
    pub fn close(mut self) -> Result<(), StorageError> {
        match self.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Has the thread end, and waits for it.
    fn join(&mut self) -> std::thread::Result<Result<(), StorageError>> {
        self.closing.store(true, Ordering::Release);
        let _ = self.jobs.send(Job::Close);
        self.thread.take().map_or(Ok(Ok(())), JoinHandle::join)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // What the thread met with was reported, or is a panic that it has shown.
        let _ = self.join();
    }
}

/// Operations of the storage that the thread needs, so that tests can be the disk.
pub(super) trait Disk: Send + 'static {
    fn write(&mut self, records: &[Record]) -> Result<(), StorageError>;
    fn read_log(&self, read: &Read) -> Result<Vec<(Slot, Value)>, StorageError>;
    fn has_room(&self) -> Result<bool, StorageError>;
    fn close(self) -> Result<(), StorageError>;
}

impl Disk for Storage {
    fn write(&mut self, records: &[Record]) -> Result<(), StorageError> {
        Storage::write(self, records)
    }

    fn read_log(&self, read: &Read) -> Result<Vec<(Slot, Value)>, StorageError> {
        Storage::read_log(self, read.log, read.from, read.last, READ_BYTES_MAX)
    }

    fn has_room(&self) -> Result<bool, StorageError> {
        Storage::has_room(self)
    }

    fn close(self) -> Result<(), StorageError> {
        Storage::close(self)
    }
}

/// Persists that are written as one.
#[derive(Default)]
struct Piece {
    records: Vec<Record>,
    /// About what they take.
    bytes: usize,
    /// Sequence number of the newest persist among them; `None` if there is none.
    sequence: Option<Sequence>,
    /// Whether the replica waits for any of them.
    awaited: bool,
    /// Whether any of them counts as durable already.
    ahead: bool,
}

impl Piece {
    /// Takes the next persist, if it fits. The first always does.
    fn takes(&mut self, next: &mut Persist) -> bool {
        let bytes = self.bytes + next.records.iter().map(record_weight).sum::<usize>();
        if self.sequence.is_some() && bytes > PIECE_BYTES {
            return false;
        }
        self.bytes = bytes;
        self.sequence = Some(next.sequence);
        self.awaited |= next.durable == Durable::Later;
        self.ahead |= next.durable == Durable::Now;
        match self.records.is_empty() {
            true => self.records = std::mem::take(&mut next.records),
            false => self.records.append(&mut next.records),
        }
        true
    }
}

/// Work that the thread has taken and not finished.
struct Desk<F> {
    queue: Receiver<Job>,
    /// The thread is to end. It hears of it here before it has taken all jobs.
    told_to_close: Arc<AtomicBool>,
    retry: Duration,
    written: Arc<AtomicU64>,
    report: F,
    /// Piece that is written next; kept until it is.
    piece: Piece,
    /// Persists that follow it, in order.
    waiting: VecDeque<Persist>,
    reads: Vec<Read>,
    /// When a full disk is tried again; `None` if the disk takes writes.
    retry_at: Option<Instant>,
    /// Refusals in a row of a disk that has room.
    refusals: u32,
    closing: bool,
}

impl<F: Fn(Report)> Desk<F> {
    fn new(
        (queue, told_to_close): (Receiver<Job>, Arc<AtomicBool>),
        (retry, written): (Duration, Arc<AtomicU64>),
        report: F,
    ) -> Self {
        Desk {
            queue,
            told_to_close,
            retry,
            written,
            report,
            piece: Piece::default(),
            waiting: VecDeque::new(),
            reads: Vec::new(),
            retry_at: None,
            refusals: 0,
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
        let first = match self.retry_at {
            None => self
                .queue
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => self
                .queue
                .recv_timeout(at.saturating_duration_since(Instant::now())),
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
            Job::Persist(persist) => self.waiting.push_back(persist),
            Job::Read(read) => self.reads.push(read),
            Job::Close => self.closing = true,
        }
    }

    fn work(&mut self, disk: &mut impl Disk) -> Result<(), StorageError> {
        let due = self.retry_at.is_none_or(|at| Instant::now() >= at);
        while (due || self.closing) && self.fill() {
            match disk.write(&self.piece.records) {
                Ok(()) => self.written(),
                Err(StorageError::Full { path }) => {
                    self.set_full();
                    if self.is_stuck(disk)? {
                        return Err(StorageError::Stuck { path });
                    }
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let reads = std::mem::take(&mut self.reads);
        let waits = self.waiting.iter();
        if self.piece.ahead || waits.map(|it| it.durable).any(|it| it == Durable::Now) {
            // The disk holds less than counts as durable, and may hold other values in its
            // place. An asker that wants to read asks again.
            return Ok(());
        }
        for read in reads {
            let entries = disk.read_log(&read)?;
            let Read { log, to, .. } = read;
            (self.report)(Report::LogRead { log, to, entries });
        }
        Ok(())
    }

    /// Adds to the piece what fits. Returns whether it holds anything.
    fn fill(&mut self) -> bool {
        if self.told_to_close.load(Ordering::Acquire) {
            self.drop_what_is_not_promised();
        }
        while let Some(next) = self.waiting.front_mut()
            && self.piece.takes(next)
        {
            self.waiting.pop_front();
        }
        self.piece.sequence.is_some()
    }

    /// Forgets the newest persists, as far as none of them counts as durable.
    fn drop_what_is_not_promised(&mut self) {
        let promised = |it: &Persist| it.durable == Durable::Now;
        let kept = self
            .waiting
            .iter()
            .rposition(promised)
            .map_or(0, |at| at + 1);
        self.waiting.truncate(kept);
    }

    /// The piece is durable.
    fn written(&mut self) {
        let piece = std::mem::take(&mut self.piece);
        let Some(sequence) = piece.sequence else {
            return;
        };
        self.refusals = 0;
        self.written.store(sequence.0, Ordering::Release);
        if piece.awaited {
            (self.report)(Report::Persisted(sequence));
        }
        // The rest is as late as this was: the disk counts as full until all is written.
        if self.waiting.is_empty() && self.retry_at.take().is_some() {
            (self.report)(Report::Writable(true));
        }
    }

    /// Counts a refusal. Returns whether no room will help.
    fn is_stuck(&mut self, disk: &impl Disk) -> Result<bool, StorageError> {
        self.refusals = match disk.has_room()? {
            true => self.refusals + 1,
            false => 0,
        };
        Ok(self.refusals > REFUSALS_MAX)
    }

    /// There is no room: the piece is kept, and tried again later.
    fn set_full(&mut self) {
        let retry_at = Instant::now() + self.retry;
        if self.retry_at.replace(retry_at).is_none() {
            (self.report)(Report::Writable(false));
        }
    }
}

#[cfg(test)]
mod tests;
