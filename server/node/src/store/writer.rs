//! The storage's own thread. Unlike the replica's thread, it may wait for a disk.
//!
//! Records collect while one write is in progress, and the next write takes all of them, up to a
//! maximum size. So on a slow disk the writes become larger, and the queue does not become longer.
//! A write that a full disk has refused is retried from time to time, before any other write.
//! RocksDB treats some errors of a full disk as final, and its C interface has no call to resume.
//! So a store that still refuses writes although the disk has space again has failed.
//! While the store lacks its reserve of disk space, only what was refused before is written, and
//! flushes and truncations go on. Otherwise new writes would use up the space that a flush needs.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel,
};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leasehold_leases::Slot;

use super::{Durability, PreparedRead, StorageError, Store};
use leasehold_replica::action::{Record, Requester, Sequence};
use leasehold_replica::message::{LogId, PerLog, Value};
use leasehold_replica::record_size_estimate;

/// Interval between attempts to write to a full disk.
const RETRY: Duration = Duration::from_millis(500);
/// Maximum number of consecutive refusals of a write while the disk has space. After more refusals,
/// the store is considered stuck. With the interval [`RETRY`], these refusals take 15 s. RocksDB
/// checks the disk every 5 s when it can resume by itself, so it has enough time to resume.
const REFUSALS_MAX: u32 = 30;
/// Maximum size of the answer to one log read, in bytes. Only the bytes of the entries on disk are
/// counted. This maximum is a fraction of the maximum size of a frame.
const READ_BYTES_MAX: usize = 1 << 20;
/// Maximum number of log reads that wait for the thread that performs them. Further reads are
/// dropped, and their requesters ask again.
const READS_MAX: usize = 64;
/// Maximum size of one write, in bytes. A single persist is written even if it is larger. Writes
/// are limited because the store keeps a second copy of the records during the write.
const GROUP_BYTES: usize = 8 << 20;
/// Maximum number of persists that are reported as durable before they are written. Each further
/// persist is reported only after it is written. This limit bounds the queue of a slow disk.
const WRITE_BEHIND_MAX: u64 = 128;

/// Report of the storage to the replica.
#[derive(Debug)]
pub enum StorageReport {
    /// Every persist up to and including this sequence number is durable.
    Persisted(Sequence),
    /// The requested flush has ended: the state up to these slots is durable.
    Flushed(PerLog<Slot>),
    /// Whether the disk has space for writes. This report is sent when the value changes.
    Writable(bool),
    /// A read of a log begins. `LogRead` or `Failed` follows at its end.
    LogReadBegun,
    /// Entries were read from a log.
    LogRead {
        /// Log that was read.
        log: LogId,
        /// Requester to which the entries are sent.
        to: Requester,
        /// Entries in ascending order of slot.
        entries: Vec<(Slot, Value)>,
    },
    /// The storage has failed permanently.
    Failed(StorageError),
}

/// Time at which records are considered durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistOutcome {
    /// These records and all earlier records are considered durable immediately, because the
    /// durability mode requires only that records are in memory.
    Now,
    /// The records are considered durable later, once a `StorageReport::Persisted` reports them.
    Later,
}

enum StorageJob {
    Persist(PersistRequest),
    Read(LogReadRequest),
    Flush,
    Truncate(PerLog<Slot>),
    Close,
}

/// Records that become durable together, atomically.
struct PersistRequest {
    sequence: Sequence,
    records: Vec<Record>,
    durable: PersistOutcome,
}

struct LogReadRequest {
    log: LogId,
    to: Requester,
    from: Slot,
    last: Slot,
}

/// Handle to the storage's thread. Dropping the handle ends the thread, as [`Writer::close`] does,
/// and waits for the end of the thread. The wait is necessary because RocksDB would abort a process
/// that exits while a database is still being closed.
#[derive(Debug)]
pub struct Writer {
    jobs: Sender<StorageJob>,
    closing: Arc<AtomicBool>,
    /// The storage's thread; `None` after the thread has ended and was joined.
    thread: Option<JoinHandle<Result<(), StorageError>>>,
    write_behind: Option<WriteBehind>,
}

/// Progress of writes that are acknowledged before they are written, under [`Durability::None`].
#[derive(Debug)]
struct WriteBehind {
    /// Sequence number of the last persist that was written.
    written: Arc<AtomicU64>,
    /// Sequence number of the last persist that had to be written before it could be reported as
    /// durable.
    waited: Sequence,
}

impl WriteBehind {
    fn persist(&mut self, sequence: Sequence, records: &[Record]) -> PersistOutcome {
        let written = self.written.load(Ordering::Acquire);
        let near = sequence.0 - written <= WRITE_BEHIND_MAX;
        if near && written >= self.waited.0 && !records.iter().any(Record::is_synced_always) {
            return PersistOutcome::Now;
        }
        self.waited = sequence;
        PersistOutcome::Later
    }
}

impl Writer {
    /// Starts the storage's thread. The thread calls `report` for each report to the replica.
    ///
    /// # Errors
    /// Fails if the operating system cannot start a thread.
    pub fn start(
        store: Box<dyn Store>,
        durability: Durability,
        report: impl Fn(StorageReport) + Send + Sync + 'static,
    ) -> std::io::Result<Writer> {
        let in_memory = durability == Durability::None;
        Writer::start_on(store, RETRY, in_memory, report)
    }

    pub(super) fn start_on(
        store: Box<dyn Store>,
        retry: Duration,
        in_memory: bool,
        report: impl Fn(StorageReport) + Send + Sync + 'static,
    ) -> std::io::Result<Writer> {
        let (jobs, queue) = channel();
        let written = Arc::new(AtomicU64::new(0));
        let closing = Arc::new(AtomicBool::new(false));
        let write_behind = in_memory.then(|| WriteBehind {
            written: written.clone(),
            waited: Sequence::default(),
        });
        let report: Arc<dyn Fn(StorageReport) + Send + Sync> = Arc::new(report);
        let reader = start_reader(report.clone())?;
        let thread = std::thread::Builder::new()
            .name("storage".to_owned())
            .spawn({
                let closing = closing.clone();
                move || {
                    let reports = WriterReports { report, reader };
                    WriterThread::new(queue, closing, retry, written, reports).run(store)
                }
            })?;
        Ok(Writer {
            jobs,
            closing,
            thread: Some(thread),
            write_behind,
        })
    }

    /// Queues records that are to become durable. Returns whether these records are considered
    /// durable now or later. Reports after a `StorageReport::Failed` have no meaning.
    pub fn persist(&mut self, sequence: Sequence, records: Vec<Record>) -> PersistOutcome {
        let write_behind = self.write_behind.as_mut();
        let durable =
            write_behind.map_or(PersistOutcome::Later, |it| it.persist(sequence, &records));
        let persist = PersistRequest {
            sequence,
            records,
            durable,
        };
        let _ = self.jobs.send(StorageJob::Persist(persist));
        durable
    }

    /// Requests a flush of the state. The flush covers all persists queued so far. While the store
    /// lacks its reserve, the flush covers only those that the storage's thread has already written.
    pub fn flush(&self) {
        let _ = self.jobs.send(StorageJob::Flush);
    }

    /// Requests the truncation of the logs: the space of entries up to these slots is freed.
    pub fn truncate(&self, slots: PerLog<Slot>) {
        let _ = self.jobs.send(StorageJob::Truncate(slots));
    }

    /// Requests a read of a log. A `StorageReport::LogRead` follows, with two exceptions. No report
    /// follows if the disk is full and lacks records that were already reported as durable. No
    /// report follows if too many other reads wait.
    pub fn read_log(&self, log: LogId, to: Requester, from: Slot, last: Slot) {
        let read = LogReadRequest {
            log,
            to,
            from,
            last,
        };
        let _ = self.jobs.send(StorageJob::Read(read));
    }

    /// Writes the queued persists that were already reported as durable, if the disk has space.
    /// Then closes the directory. Other queued persists are dropped, because they were not reported
    /// as durable, and a slow disk would take seconds to write them.
    ///
    /// # Errors
    /// Returns the errors that occur while the directory is closed. A write that failed earlier was
    /// reported as `StorageReport::Failed`.
    pub fn close(mut self) -> Result<(), StorageError> {
        match self.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Makes the storage's thread end, and waits until it has ended.
    fn join(&mut self) -> std::thread::Result<Result<(), StorageError>> {
        self.closing.store(true, Ordering::Release);
        let _ = self.jobs.send(StorageJob::Close);
        self.thread.take().map_or(Ok(Ok(())), JoinHandle::join)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // An error of the thread was reported, or is a panic that was printed.
        let _ = self.join();
    }
}

/// Starts the thread that reads entries from the log. Without this thread, writes would wait while
/// entries are read for a requester that is far behind. The thread ends after the sender was
/// dropped. Nothing waits for this end, because a read may hang, and reads change nothing.
fn start_reader(
    report: Arc<dyn Fn(StorageReport) + Send + Sync>,
) -> std::io::Result<SyncSender<WaitingRead>> {
    let (reader, reads) = sync_channel::<WaitingRead>(READS_MAX);
    let thread = std::thread::Builder::new().name("log reads".to_owned());
    thread.spawn(move || {
        for WaitingRead { log, to, read } in reads {
            report(StorageReport::LogReadBegun);
            report(match read() {
                Ok(entries) => StorageReport::LogRead { log, to, entries },
                Err(error) => StorageReport::Failed(error),
            });
        }
    })?;
    Ok(reader)
}

/// A read that waits for the thread that performs reads.
struct WaitingRead {
    log: LogId,
    to: Requester,
    read: PreparedRead,
}

/// Outputs of the storage's thread: a function for reports, and a channel for reads.
struct WriterReports {
    report: Arc<dyn Fn(StorageReport) + Send + Sync>,
    reader: SyncSender<WaitingRead>,
}

/// Persists that are written together, in one write.
#[derive(Default)]
struct WriteGroup {
    records: Vec<Record>,
    /// Approximate size of the records in bytes.
    bytes: usize,
    /// Sequence number of the newest persist in the group; `None` if there is none.
    sequence: Option<Sequence>,
    /// Whether the replica waits for at least one persist in the group to become durable.
    awaited: bool,
    /// Whether at least one persist in the group was already reported as durable.
    ahead: bool,
}

impl WriteGroup {
    /// Moves the records of the next persist into the group if they fit. The first persist of a
    /// group always fits.
    fn try_add(&mut self, next: &mut PersistRequest) -> bool {
        let bytes = self.bytes + next.records.iter().map(record_size_estimate).sum::<usize>();
        if self.sequence.is_some() && bytes > GROUP_BYTES {
            return false;
        }
        self.bytes = bytes;
        self.sequence = Some(next.sequence);
        self.awaited |= next.durable == PersistOutcome::Later;
        self.ahead |= next.durable == PersistOutcome::Now;
        if self.records.is_empty() {
            self.records = std::mem::take(&mut next.records)
        } else {
            self.records.append(&mut next.records)
        }
        true
    }
}

/// Work that the thread has received and not finished.
struct WriterThread {
    queue: Receiver<StorageJob>,
    /// Flag that tells the thread to end. The thread notices the flag even before it has taken all
    /// queued jobs.
    close_requested: Arc<AtomicBool>,
    retry: Duration,
    written: Arc<AtomicU64>,
    report: Arc<dyn Fn(StorageReport) + Send + Sync>,
    reader: SyncSender<WaitingRead>,
    /// Group that is written next. It is kept until the write has succeeded.
    group: WriteGroup,
    /// Persists that follow the group, in order.
    waiting: VecDeque<PersistRequest>,
    reads: Vec<LogReadRequest>,
    /// Whether the last read was dropped because too many reads were waiting.
    drops_reads: bool,
    /// Whether a flush of the state is requested.
    wants_flush: bool,
    /// Slots up to which entries may be removed; `None` if no entries may be removed.
    truncate_to: Option<PerLog<Slot>>,
    /// A truncation that a full disk has refused, and the time of the next attempt.
    refused_truncation: Option<(PerLog<Slot>, Instant)>,
    /// Time of the next check of the changes that are not applied yet; `None` if there are none.
    check_at: Option<Instant>,
    /// Time of the next attempt to write to a full disk; `None` if the disk accepts writes.
    retry_at: Option<Instant>,
    /// Number of consecutive refusals by a disk that has space.
    refusals: u32,
    /// Value of [`Store::refusals`] when this thread last noticed a refusal.
    refused_attempts: u64,
    closing: bool,
}

impl WriterThread {
    fn new(
        queue: Receiver<StorageJob>,
        close_requested: Arc<AtomicBool>,
        retry: Duration,
        written: Arc<AtomicU64>,
        WriterReports { report, reader }: WriterReports,
    ) -> Self {
        WriterThread {
            queue,
            close_requested,
            retry,
            written,
            report,
            reader,
            group: WriteGroup::default(),
            waiting: VecDeque::new(),
            reads: Vec::new(),
            drops_reads: false,
            wants_flush: false,
            truncate_to: None,
            refused_truncation: None,
            // A start may find that the store lacks its reserve.
            check_at: Some(Instant::now()),
            retry_at: None,
            refusals: 0,
            refused_attempts: 0,
            closing: false,
        }
    }

    fn run(mut self, mut store: Box<dyn Store>) -> Result<(), StorageError> {
        while !self.closing {
            self.gather();
            if let Err(error) = self.work(store.as_mut()) {
                if matches!(error, StorageError::Stuck { .. }) {
                    // A stuck RocksDB can take more than a minute to close. All synced records are
                    // durable, and the process ends now.
                    store.abandon();
                }
                (self.report)(StorageReport::Failed(error));
                return Ok(());
            }
        }
        store.close()
    }

    /// Waits for a job, or until the next attempt to write to a full disk is due. Then takes all
    /// queued jobs.
    fn gather(&mut self) {
        let truncate_at = self.refused_truncation.map(|(_, at)| at);
        let times = [
            self.retry_at,
            truncate_at,
            self.check_at.filter(|_| self.is_idle()),
        ];
        let first = match times.into_iter().flatten().min() {
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

    fn take(&mut self, job: StorageJob) {
        match job {
            StorageJob::Persist(persist) => self.waiting.push_back(persist),
            StorageJob::Read(read) => self.reads.push(read),
            StorageJob::Flush => self.wants_flush = true,
            StorageJob::Truncate(slots) => self.truncate_to = Some(slots),
            StorageJob::Close => self.closing = true,
        }
    }

    fn work(&mut self, store: &mut dyn Store) -> Result<(), StorageError> {
        // This comes before the writes, because they may wait for the space (hazard 96).
        self.truncate(store)?;
        if self.is_idle() {
            self.check(store)?;
        }
        if store.lacks_reserve() && self.retry_at.is_none() {
            self.set_full();
        }
        let now = Instant::now();
        let due = self.retry_at.is_none_or(|at| now >= at);
        while (due || self.closing) && self.fill(store) {
            match store.write(&self.group.records) {
                Ok(()) => self.written(store),
                Err(StorageError::Full { path }) => {
                    self.refused(store, path)?;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if self.wants_flush && self.group.sequence.is_none() && due {
            self.flush(store)?;
        }
        if let Some(at) = &mut self.retry_at
            && *at <= now
        {
            *at = now + self.retry;
        }
        let reads = std::mem::take(&mut self.reads);
        let waits = self.waiting.iter();
        if self.group.ahead
            || waits
                .map(|it| it.durable)
                .any(|it| it == PersistOutcome::Now)
        {
            // The disk lacks persists that were reported as durable, and may hold other values in
            // their slots. A requester that still wants to read asks again.
            return Ok(());
        }
        for read in reads {
            let LogReadRequest {
                log,
                to,
                from,
                last,
            } = read;
            let read = store.prepare_read(log, from, last, READ_BYTES_MAX)?;
            match self.reader.try_send(WaitingRead { log, to, read }) {
                Ok(()) => self.drops_reads = false,
                Err(TrySendError::Full(_)) if self.drops_reads => {}
                Err(TrySendError::Full(_)) => {
                    self.drops_reads = true;
                    tracing::warn!(
                        "{READS_MAX} reads of the log wait for the disk, so further ones are dropped; \
                         replicas that lag get their entries late, or from others"
                    );
                }
                Err(TrySendError::Disconnected(_)) => {
                    panic!("the thread that reads the log has ended")
                }
            }
        }
        Ok(())
    }

    /// Truncates the log if this is requested. If the disk is full, the truncation is repeated
    /// later.
    fn truncate(&mut self, store: &mut dyn Store) -> Result<(), StorageError> {
        let refused = self.refused_truncation;
        let again = refused.filter(|(_, at)| Instant::now() >= *at);
        let Some(slots) = self.truncate_to.take().or(again.map(|(slots, _)| slots)) else {
            return Ok(());
        };
        self.refused_truncation = None;
        match store.truncate(slots) {
            Err(StorageError::Full { .. }) => {
                self.refused_truncation = Some((slots, Instant::now() + self.retry));
                Ok(())
            }
            truncated => truncated,
        }
    }

    /// Begins the requested flush. Everything before the request is already written, unless the
    /// store lacks its reserve. If the disk is full, the flush begins at the next attempt to write.
    fn flush(&mut self, store: &mut dyn Store) -> Result<(), StorageError> {
        let report = self.report.clone();
        let report = move |flushed| {
            report(match flushed {
                Ok(slots) => StorageReport::Flushed(slots),
                Err(error) => StorageReport::Failed(error),
            });
        };
        match store.flush(Box::new(report)) {
            Ok(()) => {
                self.wants_flush = false;
                self.refusals = 0;
                self.check_later();
                self.set_writable(store);
            }
            Err(StorageError::Full { path }) => return self.refused(store, path),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether no write and no flush was refused. Otherwise the next attempt is also a check.
    fn is_idle(&self) -> bool {
        self.group.sequence.is_none() && !self.wants_flush
    }

    /// Checks, from time to time, the changes that were written and are not applied yet, and the
    /// flushes in progress. Without this check, an idle replica would not notice that its store
    /// refuses them.
    fn check(&mut self, store: &mut dyn Store) -> Result<(), StorageError> {
        if self.check_at.is_none_or(|at| Instant::now() < at) {
            return Ok(());
        }
        self.check_at = Some(Instant::now() + self.retry);
        match store.check() {
            Ok(waits) => {
                self.refusals = 0;
                self.set_writable(store);
                let goes_on = waits || self.retry_at.is_some();
                self.check_at = self.check_at.filter(|_| goes_on);
                Ok(())
            }
            Err(StorageError::Full { path }) => self.refused(store, path),
            Err(error) => Err(error),
        }
    }

    /// Notes a refusal.
    ///
    /// # Errors
    /// `Stuck` if the refusals show that the store is stuck.
    fn refused(&mut self, store: &dyn Store, path: PathBuf) -> Result<(), StorageError> {
        self.set_full();
        if self.is_stuck(store)? {
            return Err(StorageError::Stuck { path });
        }
        Ok(())
    }

    /// Fills the group with waiting persists that fit. While the store lacks its reserve, adds
    /// persists only if the writer is closing. Returns whether the group holds any records.
    fn fill(&mut self, store: &dyn Store) -> bool {
        if store.lacks_reserve() && !self.closing {
            return self.group.sequence.is_some();
        }
        if self.close_requested.load(Ordering::Acquire) {
            self.drop_unacknowledged();
        }
        while let Some(next) = self.waiting.front_mut()
            && self.group.try_add(next)
        {
            self.waiting.pop_front();
        }
        self.group.sequence.is_some()
    }

    /// Drops waiting persists at the end of the queue. Keeps the last persist that was already
    /// reported as durable, and all persists before it.
    fn drop_unacknowledged(&mut self) {
        let promised = |it: &PersistRequest| it.durable == PersistOutcome::Now;
        let kept = self
            .waiting
            .iter()
            .rposition(promised)
            .map_or(0, |at| at + 1);
        self.waiting.truncate(kept);
    }

    /// Notes that the group has become durable.
    fn written(&mut self, store: &dyn Store) {
        let group = std::mem::take(&mut self.group);
        let Some(sequence) = group.sequence else {
            return;
        };
        self.refusals = 0;
        self.check_later();
        self.written.store(sequence.0, Ordering::Release);
        if group.awaited {
            (self.report)(StorageReport::Persisted(sequence));
        }
        self.set_writable(store);
    }

    /// Schedules a [`check`](Self::check), unless one is already scheduled.
    fn check_later(&mut self) {
        self.check_at = self.check_at.or(Some(Instant::now() + self.retry));
    }

    /// Reports that the disk accepts writes again, if it was full before. While persists wait, or
    /// while the store lacks its reserve, the disk still counts as full.
    fn set_writable(&mut self, store: &dyn Store) {
        if !self.waiting.is_empty() || store.lacks_reserve() {
            return;
        }
        if self.retry_at.take().is_some() {
            (self.report)(StorageReport::Writable(true));
        }
    }

    /// Returns true if the store is stuck: it has refused too often although the disk has space. A
    /// refusal counts only if a further attempt was refused since the last call. A single attempt
    /// may take many seconds, and several calls may see it.
    fn is_stuck(&mut self, store: &dyn Store) -> Result<bool, StorageError> {
        let attempts = store.refusals();
        let is_new = attempts != self.refused_attempts;
        self.refused_attempts = attempts;
        if is_new {
            self.refusals = if store.has_room()? {
                self.refusals + 1
            } else {
                0
            };
        }
        Ok(self.refusals > REFUSALS_MAX)
    }

    /// Notes that the disk has no space. The group is kept and written again later.
    fn set_full(&mut self) {
        self.check_later();
        let retry_at = Instant::now() + self.retry;
        if self.retry_at.replace(retry_at).is_none() {
            (self.report)(StorageReport::Writable(false));
        }
    }
}

#[cfg(all(test, feature = "store"))]
mod tests;
