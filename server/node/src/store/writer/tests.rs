//! Tests of the storage's thread with a disk that is slow, full, or broken.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::TryRecvError;

use leasehold_leases::{Incarnation, ReplicaId};

use super::*;
use crate::store::FlushReport;
use crate::store::rocks::tests::accepted;

/// A duration that is longer than any test.
const NEVER: Duration = Duration::from_secs(3600);
/// Time in which everything happens that does not wait for something else.
const LONG: Duration = Duration::from_secs(60);

/// First number that a [`Scripted`] store sends when it truncates its log.
const TRUNCATED: u64 = u64::MAX;

/// A simulated disk that answers writes and truncations as the test demands, and remembers the
/// records that it was given.
struct Scripted {
    answers: Arc<Mutex<VecDeque<Result<(), StorageError>>>>,
    entered: Sender<Vec<u64>>,
    go: Receiver<()>,
    has_room: Arc<AtomicBool>,
    /// Whether changes that were written are refused when they are applied, and flushes, too.
    is_stuck: Arc<AtomicBool>,
    /// Whether attempts to apply changes take long. While `is_stuck` is also set, the store answers
    /// `Full`, but counts no refusal, because the attempt has not ended.
    is_slow: Arc<AtomicBool>,
    lacks_reserve: Arc<AtomicBool>,
    refusals: AtomicU64,
}

impl Scripted {
    fn refuse_if_stuck(&self) -> Result<(), StorageError> {
        if !self.is_stuck.load(Ordering::Acquire) {
            return Ok(());
        }
        if !self.is_slow.load(Ordering::Acquire) {
            self.refusals.fetch_add(1, Ordering::AcqRel);
        }
        full()
    }

    fn answer(&self) -> Result<(), StorageError> {
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or(Ok(()));
        if answer.is_err() {
            self.refusals.fetch_add(1, Ordering::AcqRel);
        }
        answer
    }
}

impl Store for Scripted {
    fn write(&mut self, records: &[Record]) -> Result<(), StorageError> {
        let slot = |record: &Record| match record {
            Record::Accepted { slot, .. } => slot.0,
            _ => 0,
        };
        self.entered
            .send(records.iter().map(slot).collect())
            .unwrap();
        self.go.recv().unwrap();
        self.answer()
    }

    fn prepare_read(
        &mut self,
        _: LogId,
        _: Slot,
        _: Slot,
        _: usize,
    ) -> Result<PreparedRead, StorageError> {
        Ok(Box::new(|| Ok(vec![])))
    }

    fn flush(&mut self, report: FlushReport) -> Result<(), StorageError> {
        self.refuse_if_stuck()?;
        report(Ok(PerLog::default()));
        Ok(())
    }

    fn check(&mut self) -> Result<bool, StorageError> {
        self.refuse_if_stuck().map(|()| false)
    }

    fn truncate(&mut self, slots: PerLog<Slot>) -> Result<(), StorageError> {
        let entered = self.entered.send(vec![TRUNCATED, slots.commands.0]);
        entered.unwrap();
        self.go.recv().unwrap();
        self.answer()
    }

    fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Acquire)
    }

    fn lacks_reserve(&self) -> bool {
        self.lacks_reserve.load(Ordering::Acquire)
    }

    fn has_room(&self) -> Result<bool, StorageError> {
        Ok(self.has_room.load(Ordering::Acquire))
    }

    fn close(self: Box<Self>) -> Result<(), StorageError> {
        Ok(())
    }
}

/// The writer under test, with fields by which a test controls its disk. The writer is dropped
/// last, because its thread may wait for `go`.
struct Harness {
    entered: Receiver<Vec<u64>>,
    go: Sender<()>,
    reports: Receiver<StorageReport>,
    /// Whether the disk has space. The disk's answers to writes do not depend on this.
    has_room: Arc<AtomicBool>,
    is_stuck: Arc<AtomicBool>,
    is_slow: Arc<AtomicBool>,
    lacks_reserve: Arc<AtomicBool>,
    writer: Writer,
}

fn harness(answers: impl IntoIterator<Item = Result<(), StorageError>>) -> Harness {
    harness_where(answers, false)
}

fn harness_where(
    answers: impl IntoIterator<Item = Result<(), StorageError>>,
    in_memory: bool,
) -> Harness {
    harness_with(answers, Duration::from_millis(1), in_memory)
}

fn harness_with(
    answers: impl IntoIterator<Item = Result<(), StorageError>>,
    retry: Duration,
    in_memory: bool,
) -> Harness {
    let (entered_send, entered) = channel();
    let (go, go_receive) = channel();
    let (report, reports) = channel();
    let has_room = Arc::new(AtomicBool::new(false));
    let is_stuck = Arc::new(AtomicBool::new(false));
    let is_slow = Arc::new(AtomicBool::new(false));
    let lacks_reserve = Arc::new(AtomicBool::new(false));
    let disk = Scripted {
        answers: Arc::new(Mutex::new(answers.into_iter().collect())),
        entered: entered_send,
        go: go_receive,
        has_room: has_room.clone(),
        is_stuck: is_stuck.clone(),
        is_slow: is_slow.clone(),
        lacks_reserve: lacks_reserve.clone(),
        refusals: AtomicU64::new(0),
    };
    let tell = move |news| report.send(news).unwrap();
    let writer = Writer::start_on(Box::new(disk), retry, in_memory, tell).unwrap();
    Harness {
        writer,
        entered,
        go,
        reports,
        has_room,
        is_stuck,
        is_slow,
        lacks_reserve,
    }
}

/// Returns the next report that is not the beginning of a read.
fn news(harness: &Harness) -> StorageReport {
    let mut reports = harness.reports.iter();
    let is_other = |it: &StorageReport| !matches!(it, StorageReport::LogReadBegun);
    reports.find(is_other).unwrap()
}

fn read(writer: &Writer) {
    let to = Requester {
        replica: ReplicaId(1),
        incarnation: Incarnation(1),
    };
    writer.read_log(LogId::Commands, to, Slot(1), Slot(1));
}

fn full() -> Result<(), StorageError> {
    let path = PathBuf::from("disk");
    Err(StorageError::Full { path })
}

#[test]
fn what_gathers_behind_a_write_goes_as_one() {
    let mut harness = harness([]);
    harness.writer.persist(Sequence(1), vec![accepted(1, "")]);
    assert_eq!(harness.entered.recv().unwrap(), [1]);
    for slot in 2..=5 {
        harness
            .writer
            .persist(Sequence(slot), vec![accepted(slot, "")]);
    }
    harness.go.send(()).unwrap();
    assert!(matches!(
        harness.reports.recv().unwrap(),
        StorageReport::Persisted(Sequence(1))
    ));
    assert_eq!(harness.entered.recv().unwrap(), [2, 3, 4, 5]);
    harness.go.send(()).unwrap();
    assert!(matches!(
        harness.reports.recv().unwrap(),
        StorageReport::Persisted(Sequence(5))
    ));
    harness.writer.close().unwrap();
}

/// Lets the disk refuse `times` writes.
fn refuse(harness: &Harness, times: u32) {
    for _ in 0..times {
        harness.entered.recv().unwrap();
        harness.go.send(()).unwrap();
    }
}

#[test]
fn a_store_that_refuses_although_there_is_room_fails() {
    let mut harness = harness((0..).map(|_| full()).take(3 * REFUSALS_MAX as usize));
    harness.writer.persist(Sequence(1), vec![accepted(1, "")]);
    // A disk without room is tried again without end.
    refuse(&harness, REFUSALS_MAX + 5);
    harness.entered.recv().unwrap();
    harness.has_room.store(true, Ordering::Release);
    harness.go.send(()).unwrap();
    refuse(&harness, REFUSALS_MAX);
    let first = harness.reports.recv().unwrap();
    assert!(matches!(first, StorageReport::Writable(false)), "{first:?}");
    let second = harness.reports.recv().unwrap();
    let is_stuck = matches!(second, StorageReport::Failed(StorageError::Stuck { .. }));
    assert!(is_stuck, "{second:?}");
    // The disk is not closed, because a stuck store may hang: its end of the channel stays open.
    let Harness {
        entered, writer, ..
    } = harness;
    writer.close().unwrap();
    assert_eq!(entered.try_recv(), Err(TryRecvError::Empty));
}

/// No further write comes, so only a check or a flush can notice the refusal.
#[test]
fn an_idle_store_that_refuses_what_was_written_is_noticed() {
    for flushes in [false, true] {
        let mut harness = harness([]);
        harness.writer.persist(Sequence(1), vec![accepted(1, "")]);
        harness.entered.recv().unwrap();
        harness.is_stuck.store(true, Ordering::Release);
        harness.go.send(()).unwrap();
        let persisted = harness.reports.recv().unwrap();
        assert!(matches!(persisted, StorageReport::Persisted(Sequence(1))));
        if flushes {
            harness.writer.flush();
        }
        let full = harness.reports.recv().unwrap();
        assert!(matches!(full, StorageReport::Writable(false)), "{full:?}");
        // It goes on when the disk has room.
        harness.is_stuck.store(false, Ordering::Release);
        let is_writable = |report| matches!(report, StorageReport::Writable(true));
        assert!(harness.reports.iter().any(is_writable));
        // It is stuck if it refuses changes although the disk has room.
        harness.has_room.store(true, Ordering::Release);
        harness.writer.persist(Sequence(2), vec![accepted(2, "")]);
        harness.entered.recv().unwrap();
        harness.is_stuck.store(true, Ordering::Release);
        harness.go.send(()).unwrap();
        if flushes {
            harness.writer.flush();
        }
        let is_stuck = |report| matches!(report, StorageReport::Failed(StorageError::Stuck { .. }));
        assert!(harness.reports.iter().any(is_stuck));
    }
}

/// RocksDB may delay a single attempt for many seconds after it has refused the one before.
#[test]
fn an_attempt_that_takes_long_is_one_refusal_however_often_it_is_looked_at() {
    let mut harness = harness([]);
    harness.has_room.store(true, Ordering::Release);
    harness.is_slow.store(true, Ordering::Release);
    harness.writer.persist(Sequence(1), vec![accepted(1, "")]);
    harness.entered.recv().unwrap();
    harness.is_stuck.store(true, Ordering::Release);
    harness.go.send(()).unwrap();
    assert!(matches!(news(&harness), StorageReport::Persisted(_)));
    assert!(matches!(news(&harness), StorageReport::Writable(false)));
    std::thread::sleep(Duration::from_millis(1) * 10 * REFUSALS_MAX);
    harness.is_stuck.store(false, Ordering::Release);
    let after = news(&harness);
    assert!(matches!(after, StorageReport::Writable(true)), "{after:?}");
}

/// New writes would take the space that was given up for a flush.
#[test]
fn without_its_reserve_a_store_gets_only_what_it_has_refused() {
    let mut harness = harness([full()]);
    harness.writer.persist(Sequence(1), vec![accepted(1, "")]);
    assert_eq!(harness.entered.recv().unwrap(), [1]);
    harness.writer.persist(Sequence(2), vec![accepted(2, "")]);
    harness.lacks_reserve.store(true, Ordering::Release);
    harness.go.send(()).unwrap();
    assert!(matches!(news(&harness), StorageReport::Writable(false)));
    assert_eq!(harness.entered.recv().unwrap(), [1]);
    harness.go.send(()).unwrap();
    assert!(matches!(news(&harness), StorageReport::Persisted(it) if it.0 == 1));
    // A flush and a truncation make room.
    harness.writer.flush();
    assert!(matches!(news(&harness), StorageReport::Flushed(_)));
    harness.writer.truncate([Slot(7), Slot(1)].into());
    assert_eq!(harness.entered.recv().unwrap(), [TRUNCATED, 7]);
    harness.go.send(()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(harness.entered.try_recv(), Err(TryRecvError::Empty));
    // The reserve is there again.
    harness.lacks_reserve.store(false, Ordering::Release);
    assert_eq!(harness.entered.recv().unwrap(), [2]);
    harness.go.send(()).unwrap();
    assert!(matches!(news(&harness), StorageReport::Persisted(it) if it.0 == 2));
    assert!(matches!(news(&harness), StorageReport::Writable(true)));
}

#[test]
fn a_store_that_lacks_its_reserve_while_idle_is_not_writable() {
    let mut harness = harness_with([], Duration::from_millis(1), false);
    harness.writer.persist(Sequence(1), vec![accepted(1, "")]);
    harness.entered.recv().unwrap();
    // The flush of another thread has met the full disk.
    harness.lacks_reserve.store(true, Ordering::Release);
    harness.go.send(()).unwrap();
    assert!(matches!(news(&harness), StorageReport::Persisted(_)));
    assert!(matches!(news(&harness), StorageReport::Writable(false)));
    harness.lacks_reserve.store(false, Ordering::Release);
    assert!(matches!(news(&harness), StorageReport::Writable(true)));
}

#[test]
fn a_store_that_goes_on_in_time_is_not_stuck() {
    let refusals = (0..REFUSALS_MAX).map(|_| full());
    let mut harness = harness(refusals.clone().chain([Ok(())]).chain(refusals));
    harness.has_room.store(true, Ordering::Release);
    for sequence in 1..=2 {
        let record = accepted(sequence, "");
        harness.writer.persist(Sequence(sequence), vec![record]);
        refuse(&harness, REFUSALS_MAX + 1);
        let persisted = |report| matches!(report, StorageReport::Persisted(it) if it.0 == sequence);
        assert!(harness.reports.iter().any(persisted));
    }
}

#[test]
fn a_full_disk_loses_nothing_and_reorders_nothing() {
    let mut harness = harness([full(), full(), Ok(())]);
    harness.writer.persist(Sequence(1), vec![accepted(1, "")]);
    assert_eq!(harness.entered.recv().unwrap(), [1]);
    harness.writer.persist(Sequence(2), vec![accepted(2, "")]);
    harness.go.send(()).unwrap();
    assert!(matches!(
        harness.reports.recv().unwrap(),
        StorageReport::Writable(false)
    ));
    assert_eq!(harness.entered.recv().unwrap(), [1, 2]);
    harness.go.send(()).unwrap();
    assert_eq!(harness.entered.recv().unwrap(), [1, 2]);
    harness.go.send(()).unwrap();
    assert!(matches!(
        harness.reports.recv().unwrap(),
        StorageReport::Persisted(Sequence(2))
    ));
    assert!(matches!(
        harness.reports.recv().unwrap(),
        StorageReport::Writable(true)
    ));
    harness.writer.close().unwrap();
}

#[test]
fn any_other_failure_ends_the_thread_without_a_retry() {
    let failed = StorageError::Damaged {
        path: PathBuf::from("disk"),
        what: "log/1".to_owned(),
        problem: "in pieces".to_owned(),
    };
    let mut harness = harness([Err(failed)]);
    harness.writer.persist(Sequence(1), vec![accepted(1, "")]);
    assert_eq!(harness.entered.recv().unwrap(), [1]);
    harness.go.send(()).unwrap();
    assert!(matches!(
        harness.reports.recv().unwrap(),
        StorageReport::Failed(_)
    ));
    harness.writer.persist(Sequence(2), vec![accepted(2, "")]);
    harness.writer.close().unwrap();
    assert!(
        harness.entered.recv().is_err(),
        "nothing is written after a failure"
    );
}

/// With durability "none" a vote counts as durable immediately, but only after an earlier restart
/// wait is really durable (hazard 15), and only while the disk keeps up.
#[test]
fn in_memory_all_but_a_restart_wait_is_durable_at_once() {
    let mut harness = harness_where([], true);
    let vote = |slot| vec![accepted(slot, "")];
    let wait = vec![Record::RestartWait(Duration::from_secs(3))];
    let mut persist = |sequence, records| harness.writer.persist(Sequence(sequence), records);
    let begun = || harness.entered.recv().unwrap();
    let written = || harness.go.send(()).unwrap();
    let reported = || harness.reports.recv().unwrap();

    assert_eq!(persist(1, vote(1)), PersistOutcome::Now);
    assert_eq!(begun(), [1]);
    assert_eq!(persist(2, wait), PersistOutcome::Later);
    assert_eq!(
        persist(3, vote(3)),
        PersistOutcome::Later,
        "it follows a wait"
    );
    written();
    begun();
    written();
    assert!(matches!(reported(), StorageReport::Persisted(Sequence(3))));

    assert_eq!(persist(4, vote(4)), PersistOutcome::Now);
    assert_eq!(begun(), [4]);
    for sequence in 5..=131 {
        assert_eq!(persist(sequence, vote(sequence)), PersistOutcome::Now);
    }
    assert_eq!(
        persist(132, vote(132)),
        PersistOutcome::Later,
        "too far ahead"
    );
    written();
    begun();
    written();
    assert!(matches!(
        reported(),
        StorageReport::Persisted(Sequence(132))
    ));

    assert_eq!(persist(133, vote(133)), PersistOutcome::Now);
    begun();
    written();
    let Harness {
        writer, reports, ..
    } = harness;
    writer.close().unwrap();
    assert!(reports.recv().is_err(), "nobody waits for the last");
}

/// A full disk lacks records that were reported as durable before they were written. On disk, the
/// slots of these records may still hold values of an earlier ballot. So the contents of the log
/// are reported to no replica.
#[test]
fn no_log_is_read_from_a_full_disk_that_lacks_what_counts_as_durable() {
    for in_memory in [true, false] {
        let mut harness = harness_where([full(), full(), full()], in_memory);
        let write = |harness: &Harness| {
            harness.entered.recv().unwrap();
            harness.go.send(()).unwrap();
        };
        harness.writer.persist(Sequence(1), vec![accepted(1, "")]);
        write(&harness);
        let report = harness.reports.recv().unwrap();
        assert!(matches!(report, StorageReport::Writable(false)));
        read(&harness.writer);
        (0..3).for_each(|_| write(&harness));
        let reports = harness.reports.iter();
        let while_full: Vec<StorageReport> = reports
            .take_while(|it| !matches!(it, StorageReport::Writable(true)))
            .collect();
        if in_memory {
            assert!(while_full.is_empty(), "{while_full:?}");
        } else {
            let is_durable =
                |it: &StorageReport| matches!(it, StorageReport::Persisted(Sequence(1)));
            assert!(while_full.iter().any(is_durable));
            // Another thread reads the log, so its report may come later.
            let is_log = |it: &StorageReport| matches!(it, StorageReport::LogRead { .. });
            assert!(while_full.iter().any(is_log) || is_log(&news(&harness)));
        }
        read(&harness.writer);
        let report = news(&harness);
        assert!(matches!(report, StorageReport::LogRead { .. }));
        harness.writer.close().unwrap();
    }
}

/// A write waits for space, and truncation makes space (hazard 96).
#[test]
fn truncation_passes_a_write_that_waits_for_space() {
    let mut harness = harness_with([full()], NEVER, false);
    harness.writer.persist(Sequence(1), vec![accepted(1, "v")]);
    assert_eq!(harness.entered.recv().unwrap(), [1]);
    harness.go.send(()).unwrap();
    harness.writer.truncate([Slot(7), Slot(1)].into());
    let entered = harness.entered.recv_timeout(LONG);
    assert_eq!(entered, Ok(vec![TRUNCATED, 7]), "the truncation waits");
    (0..2).for_each(|_| harness.go.send(()).unwrap());
}

/// Some file systems need space even to overwrite a file. Writes may go on meanwhile.
#[test]
fn a_truncation_that_a_full_disk_refuses_is_tried_again() {
    let harness = harness_with([full()], Duration::from_millis(1), false);
    harness.writer.truncate([Slot(7), Slot(1)].into());
    for _ in 0..2 {
        assert_eq!(harness.entered.recv().unwrap(), [TRUNCATED, 7]);
        harness.go.send(()).unwrap();
    }
}

/// While the disk is full, new persists arrive repeatedly. Only the end of the retry interval, or
/// closing the writer, causes another attempt to write.
#[test]
fn a_full_disk_is_not_tried_again_for_whatever_comes() {
    let mut harness = harness_with([full(), full()], NEVER, false);
    harness.writer.persist(Sequence(1), vec![accepted(1, "")]);
    assert_eq!(harness.entered.recv().unwrap(), [1]);
    harness.go.send(()).unwrap();
    let report = harness.reports.recv().unwrap();
    assert!(matches!(report, StorageReport::Writable(false)));
    for slot in 2..=100 {
        let records = vec![accepted(slot, "")];
        harness.writer.persist(Sequence(slot), records);
        read(&harness.writer);
        // The thread has taken the earlier persist by now.
        let report = news(&harness);
        assert!(matches!(report, StorageReport::LogRead { .. }));
    }
    assert_eq!(harness.entered.try_recv(), Err(TryRecvError::Empty));
    // The thread tries the refused records once more before it ends.
    harness.go.send(()).unwrap();
    let Harness {
        writer, entered, ..
    } = harness;
    writer.close().unwrap();
    assert_eq!(entered.recv().unwrap(), [1]);
    assert!(entered.recv().is_err());
}

#[test]
fn a_backlog_is_written_in_order_and_in_bounded_pieces() {
    let mut harness = harness([full(), full()]);
    let quarter = "x".repeat(GROUP_BYTES / 4);
    let records = |slot| vec![accepted(slot, &quarter)];
    harness.writer.persist(Sequence(1), records(1));
    assert_eq!(harness.entered.recv().unwrap(), [1]);
    for slot in 2..=7 {
        harness.writer.persist(Sequence(slot), records(slot));
    }
    // The persist is larger than a group, and must not be split.
    let large = [records(8), records(9), records(10), records(11)].concat();
    harness.writer.persist(Sequence(8), large);
    harness.writer.persist(Sequence(9), vec![accepted(12, "")]);
    let pieces: [&[u64]; 5] = [
        &[1, 2, 3], // refused once more
        &[1, 2, 3],
        &[4, 5, 6],
        &[7],
        &[8, 9, 10, 11],
    ];
    for piece in pieces {
        harness.go.send(()).unwrap();
        assert_eq!(harness.entered.recv().unwrap(), piece);
    }
    (0..2).for_each(|_| harness.go.send(()).unwrap());
    assert_eq!(harness.entered.recv().unwrap(), [12]);
    harness.writer.close().unwrap();
    let told: Vec<String> = harness.reports.iter().map(|it| format!("{it:?}")).collect();
    let expected = [
        "Writable(false)",
        "Persisted(Sequence(3))",
        "Persisted(Sequence(6))",
        "Persisted(Sequence(7))",
        "Persisted(Sequence(8))",
        "Persisted(Sequence(9))",
        "Writable(true)",
    ];
    assert_eq!(told, expected);
}

/// The disk would take seconds to write the waiting records. This must not delay the end of the
/// process.
#[test]
fn what_nobody_was_told_of_is_not_written_before_the_end() {
    let mut harness = harness([]);
    harness.writer.persist(Sequence(1), vec![accepted(1, "")]);
    assert_eq!(harness.entered.recv().unwrap(), [1]);
    for slot in 2..=5 {
        let records = vec![accepted(slot, "")];
        harness.writer.persist(Sequence(slot), records);
    }
    let Harness {
        writer,
        go,
        entered,
        reports,
        ..
    } = harness;
    writer.closing.store(true, Ordering::Release);
    go.send(()).unwrap();
    // Any further write fails.
    drop(go);
    writer.close().unwrap();
    assert!(entered.recv().is_err(), "nothing else was written");
    let told: Vec<String> = reports.iter().map(|it| format!("{it:?}")).collect();
    assert_eq!(told, ["Persisted(Sequence(1))"]);
}

#[test]
fn what_counts_as_durable_is_written_before_the_end() {
    let mut harness = harness_where([], true);
    for slot in 1..=3 {
        let records = vec![accepted(slot, "")];
        let durable = harness.writer.persist(Sequence(slot), records);
        assert_eq!(durable, PersistOutcome::Now);
    }
    // The replica waits until this record is durable.
    let wait = vec![Record::RestartWait(NEVER)];
    assert_eq!(
        harness.writer.persist(Sequence(4), wait),
        PersistOutcome::Later
    );
    let Harness {
        writer,
        go,
        entered,
        reports: _reports,
        ..
    } = harness;
    writer.closing.store(true, Ordering::Release);
    (0..4).for_each(|_| go.send(()).unwrap());
    writer.close().unwrap();
    let written: Vec<u64> = entered.iter().flatten().collect();
    assert!(written.starts_with(&[1, 2, 3]), "{written:?}");
}

#[test]
fn a_read_that_hangs_delays_no_write() {
    struct Hanging(Arc<Mutex<Receiver<()>>>);
    impl Store for Hanging {
        fn write(&mut self, _: &[Record]) -> Result<(), StorageError> {
            Ok(())
        }
        fn prepare_read(
            &mut self,
            _: LogId,
            _: Slot,
            _: Slot,
            _: usize,
        ) -> Result<PreparedRead, StorageError> {
            let hangs_until = self.0.clone();
            Ok(Box::new(move || {
                hangs_until.lock().unwrap().recv().unwrap();
                Ok(vec![])
            }))
        }
        fn flush(&mut self, _: FlushReport) -> Result<(), StorageError> {
            Ok(())
        }
        fn truncate(&mut self, _: PerLog<Slot>) -> Result<(), StorageError> {
            Ok(())
        }
        fn has_room(&self) -> Result<bool, StorageError> {
            Ok(true)
        }
        fn refusals(&self) -> u64 {
            0
        }
        fn close(self: Box<Self>) -> Result<(), StorageError> {
            Ok(())
        }
    }
    let (go_on, hangs_until) = channel();
    let store = Hanging(Arc::new(Mutex::new(hangs_until)));
    let (report, reports) = channel();
    let tell = move |news| drop(report.send(news));
    let mut writer = Writer::start_on(Box::new(store), NEVER, false, tell).unwrap();
    // More reads than may wait: the rest is dropped.
    (0..2 * READS_MAX).for_each(|_| read(&writer));
    // The watch over the disk learns of the read that hangs.
    let begun = reports.recv().unwrap();
    assert!(matches!(begun, StorageReport::LogReadBegun), "{begun:?}");
    for sequence in 1..4 {
        writer.persist(Sequence(sequence), vec![accepted(sequence, "v")]);
        let written = reports.recv().unwrap();
        assert!(matches!(written, StorageReport::Persisted(it) if it == Sequence(sequence)));
    }
    go_on.send(()).unwrap();
    assert!(matches!(
        reports.recv().unwrap(),
        StorageReport::LogRead { .. }
    ));
    // A read that hangs does not delay the end either.
    writer.close().unwrap();
}

/// Dropping the writer must wait until the disk is closed, because RocksDB aborts a process that
/// exits while a database is still being closed.
#[test]
fn whoever_drops_the_writer_waits_until_the_disk_is_closed() {
    struct Slow(Arc<AtomicU64>);
    impl Store for Slow {
        fn write(&mut self, _: &[Record]) -> Result<(), StorageError> {
            let path = PathBuf::from("disk");
            let source = std::io::ErrorKind::ReadOnlyFilesystem.into();
            Err(StorageError::Directory { path, source })
        }
        fn prepare_read(
            &mut self,
            _: LogId,
            _: Slot,
            _: Slot,
            _: usize,
        ) -> Result<PreparedRead, StorageError> {
            Ok(Box::new(|| Ok(vec![])))
        }
        fn flush(&mut self, _: FlushReport) -> Result<(), StorageError> {
            Ok(())
        }
        fn truncate(&mut self, _: PerLog<Slot>) -> Result<(), StorageError> {
            Ok(())
        }
        fn has_room(&self) -> Result<bool, StorageError> {
            Ok(true)
        }
        fn refusals(&self) -> u64 {
            0
        }
        fn close(self: Box<Self>) -> Result<(), StorageError> {
            Ok(())
        }
    }
    impl Drop for Slow {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_millis(50));
            self.0.store(1, Ordering::Release);
        }
    }
    let closed = Arc::new(AtomicU64::new(0));
    let (report, reports) = channel();
    let tell = move |news| report.send(news).unwrap();
    let mut writer = Writer::start_on(Box::new(Slow(closed.clone())), RETRY, false, tell).unwrap();
    writer.persist(Sequence(1), vec![accepted(1, "")]);
    assert!(matches!(reports.recv().unwrap(), StorageReport::Failed(_)));
    drop(writer);
    assert_eq!(closed.load(Ordering::Acquire), 1);
}
