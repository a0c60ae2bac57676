//! One thread of a run: it carries out one operation after another and measures each. At the end of
//! the run, the thread adds to the account the operations that it did not carry out.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use leasehold_wire::{command::Op, outcome};
use tokio::time::Instant;

use super::pace::{Pacer, Schedule};
use super::run_state::{Book, RunState};
use super::transaction::{PendingStep, Step, Transaction, perform};
use super::{Phase, RunOptions, SiteStore};
use crate::generator::Random;
use crate::measurement::{Availability, OpMeasurement, ReplicaName, ReturnCode, UnansweredOps};
use crate::sample::OpKind;
use crate::store::KvStore;
use crate::workload::{CoreWorkload, ThreadWorkload, WorkloadOperation};

/// Maximum number of random choices that all threads together make for operations that were never
/// sent. Each choice determines the kind of an operation. If more operations were never sent, one
/// choice applies to several of them.
const NEVER_SENT_DRAWS: u64 = 1_000_000;

pub(super) struct Worker<S> {
    pub thread: u64,
    pub threads: u64,
    /// Number of operations that the thread carries out; `None` means no limit.
    pub operations: Option<u64>,
    pub workload: CoreWorkload,
    pub store: SiteStore<S>,
    pub options: RunOptions,
    pub pacer: Option<Pacer>,
    pub shared: Arc<RunState>,
}

impl<S: KvStore> Worker<S> {
    pub async fn work(self) {
        let mut stream = self.workload.thread(self.store.site_number, self.thread);
        let issued = self.issue(&mut stream).await;
        let end = self.shared.end().unwrap_or_else(Instant::now);
        if self.shared.end().is_some() {
            self.never_sent(issued, end, &mut stream);
        }
        let end = self.shared.since_start(end);
        self.shared.availability().left(self.store.site, end);
    }

    /// Carries out operations until none is left or the run ends. Returns the number of operations
    /// sent.
    async fn issue(&self, stream: &mut ThreadWorkload) -> u64 {
        let abandon = self.shared.abandon.cancelled();
        tokio::pin!(abandon);
        let mut issued = 0;
        while self.operations.is_none_or(|all| issued < all) {
            let Some(due) = self.wait_until_due(issued).await else {
                break;
            };
            // If a store answers immediately, the run must still notice its end.
            tokio::task::coop::consume_budget().await;
            let Some(operation) = self.next_operation(stream) else {
                break;
            };
            issued += 1;
            let late = self.shared.last_due.is_some_and(|at| Instant::now() > at);
            let mut transaction = Transaction::default();
            tokio::select! {
                biased;
                () = self.carry_out(&operation, stream, &mut transaction) => {}
                () = &mut abandon => {}
            }
            self.record(&transaction, due, late);
        }
        issued
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.shared.book(self.store.core.number)
    }

    fn next_operation(&self, stream: &mut ThreadWorkload) -> Option<WorkloadOperation> {
        match self.options.phase {
            Phase::Load => Some(stream.next_load()),
            Phase::Run => stream.next(),
        }
    }

    fn schedule(&self) -> Option<Schedule> {
        let rate = self.options.target?;
        Some(Schedule::new(rate, self.threads, self.thread))
    }

    /// Waits until operation `number` is due, and returns its intended start. Without a target
    /// rate, the intended start is now. Returns `None` if the run ends before the operation can be
    /// sent.
    async fn wait_until_due(&self, number: u64) -> Option<Instant> {
        let due = match (self.schedule(), &self.pacer) {
            (Some(schedule), Some(pacer)) => {
                let Some(due) = self.shared.start.checked_add(schedule.due(number)) else {
                    self.shared.stop.cancelled().await;
                    return None;
                };
                tokio::select! {
                    () = pacer.sleep_until(due) => due,
                    () = self.shared.stop.cancelled() => return None,
                }
            }
            _ => Instant::now(),
        };
        self.shared.is_open().then_some(due)
    }

    async fn carry_out(
        &self,
        operation: &WorkloadOperation,
        stream: &mut ThreadWorkload,
        transaction: &mut Transaction,
    ) {
        let store = &self.store.store;
        if self.options.phase == Phase::Run && operation.kind == OpKind::Insert {
            self.probe(operation).await;
        }
        perform(store, &self.workload, operation, transaction).await;
        if self.options.phase == Phase::Load {
            self.insert_again(operation, stream, transaction).await;
        } else if operation.kind == OpKind::Insert
            && let Err(error) = self.workload.acknowledge(operation.record)
        {
            tracing::warn!(%error, record = operation.record, "the newest records are not requested");
        }
    }

    /// Checks, for some insertions, whether the record already exists. As in YCSB, an insertion
    /// overwrites an existing record. Only this check shows that a record was overwritten. The
    /// check is not measured.
    async fn probe(&self, operation: &WorkloadOperation) {
        if !self.workload.is_probed(operation.record) {
            return;
        }
        let answer = self
            .store
            .store
            .execute(Op::get(operation.key.clone()))
            .await;
        let found = answer.result.ok().and_then(|reply| reply.outcome.result);
        let account = &mut self.book().account;
        account.probed += u64::from(found.is_some());
        account.overwrote += u64::from(matches!(found, Some(outcome::Result::Value(_))));
    }

    /// Tries a failed insertion of the load phase again, up to the maximum number of times. If the
    /// last attempt fails, too, the options determine whether the load phase continues or ends.
    async fn insert_again(
        &self,
        operation: &WorkloadOperation,
        stream: &mut ThreadWorkload,
        transaction: &mut Transaction,
    ) {
        for _ in 0..self.options.insert_retries {
            if transaction.succeeded() || self.shared.stop.is_cancelled() {
                break;
            }
            tokio::time::sleep(self.retry_pause(stream.random())).await;
            perform(&self.store.store, &self.workload, operation, transaction).await;
        }
        if !transaction.succeeded() && !self.options.insert_keep_going {
            self.book().load_failed = true;
            self.shared.end_at(Instant::now());
        }
    }

    fn retry_pause(&self, random: &mut Random) -> Duration {
        self.options
            .insert_retry_pause
            .mul_f64(0.8 + 0.4 * random.unit())
    }

    /// Records the outcome of an operation that was due at `due`. `late` is true if the operation
    /// was sent after the time at which the last operation of the run was due.
    fn record(&self, transaction: &Transaction, due: Instant, late: bool) {
        let end = self.shared.end();
        let mut availability = self.shared.availability();
        for step in &transaction.steps {
            self.note_answer(&mut availability, step, end);
        }
        for open in transaction.pending() {
            self.note_silence(&mut availability, open);
        }
        drop(availability);
        let ended = u64::from(!transaction.is_pending());
        self.shared.done.fetch_add(ended, Ordering::Relaxed);
        if due < self.shared.measured_from {
            return;
        }
        let mut book = self.book();
        self.count(&mut book, transaction, late);
        self.measure(&mut book, transaction, due);
        let abandoned_at = end.unwrap_or_else(Instant::now);
        for PendingStep { kind, started } in transaction.pending() {
            book.measurements.record_unanswered(&UnansweredOps {
                site: self.store.site,
                kind,
                service: Some(abandoned_at.saturating_duration_since(started)),
                intended: abandoned_at.saturating_duration_since(due),
                count: 1,
            });
        }
    }

    /// Records the replica that answered, and the time of the answer. If the answer came after the
    /// end of the run, records the end of the run as the time of the answer.
    fn note_answer(&self, seen: &mut Availability, step: &Step, end: Option<Instant>) {
        let site = self.store.site;
        let ended = self
            .shared
            .since_start(end.map_or(step.ended, |end| step.ended.min(end)));
        seen.requested(site, step.kind);
        if step.returned == ReturnCode::Ok {
            seen.succeeded(site, step.kind, ended);
        }
        let sent = self.shared.since_start(step.started);
        for replica in &step.silent {
            seen.unanswered(replica, sent);
        }
        // The parts of a read-modify-write are entered, so the whole must not be entered again.
        if let Some(replica) = step
            .from
            .as_ref()
            .filter(|_| step.kind != OpKind::ReadModifyWrite)
        {
            seen.answered(replica, ended);
            if self.is_away(replica) {
                seen.bypassed(&self.store.address, sent);
            }
        }
    }

    /// Returns true if `replica` is not the site's own replica.
    fn is_away(&self, replica: &ReplicaName) -> bool {
        !self.store.routed && *replica != self.store.address
    }

    fn note_silence(&self, seen: &mut Availability, open: PendingStep) {
        seen.requested(self.store.site, open.kind);
        if open.kind != OpKind::ReadModifyWrite && !self.store.routed {
            let sent = self.shared.since_start(open.started);
            seen.unanswered(&self.store.address, sent);
        }
    }

    fn count(&self, book: &mut Book, transaction: &Transaction, late: bool) {
        let account = &mut book.account;
        if transaction.is_pending() {
            account.abandoned += 1;
            return;
        }
        account.late += u64::from(late);
        if transaction.succeeded() {
            account.succeeded += 1
        } else {
            account.failed += 1;
            if book.failure.is_none() {
                book.failure.clone_from(&transaction.failure);
            }
        }
    }

    fn measure(&self, book: &mut Book, transaction: &Transaction, due: Instant) {
        let (site, measurements) = (self.store.site, &mut book.measurements);
        for step in &transaction.steps {
            measurements.record(&OpMeasurement {
                site,
                kind: step.kind,
                path: step.path,
                away: step.from.as_ref().is_some_and(|from| self.is_away(from)),
                returned: step.returned,
                service: step.ended - step.started,
                intended: step.ended.saturating_duration_since(due),
            });
        }
        let ended = match transaction.steps.last() {
            Some(last) if !transaction.is_pending() => last.ended,
            _ => self.shared.end().unwrap_or_else(Instant::now),
        };
        measurements.record_due(site, ended.saturating_duration_since(due), 1);
        if let Some((returned, took)) = transaction.check {
            measurements.record_check(site, returned, took);
        }
        if let Some((found, took)) = transaction.scanned {
            measurements.record_scan(site, found, took);
        }
    }

    /// Adds to the account the operations that were due before `end` and were never sent. Adds
    /// nothing if there is no target rate, because an operation is then due only when it is sent.
    fn never_sent(&self, issued: u64, end: Instant, stream: &mut ThreadWorkload) {
        let Some(schedule) = self.schedule() else {
            return;
        };
        let before = |at: Instant| schedule.due_before(self.shared.since_start(at));
        let last = before(end).min(self.operations.unwrap_or(u64::MAX));
        let first = issued.max(before(self.shared.measured_from));
        let count = last.saturating_sub(first);
        let at_a_time = count.div_ceil((NEVER_SENT_DRAWS / self.threads).max(1));
        let mut next = first;
        while next < last {
            let many = at_a_time.min(last - next);
            let due = schedule.due(next + many / 2);
            let waited = self.shared.since_start(end).saturating_sub(due);
            self.count_never_sent(stream, waited, many);
            next += many;
        }
    }

    /// Counts `count` operations that were never sent. The workload chooses the kind of these
    /// operations at random, in the same way as for operations that are sent.
    fn count_never_sent(&self, stream: &mut ThreadWorkload, waited: Duration, count: u64) {
        let kind = match self.options.phase {
            Phase::Load => Some(OpKind::Insert),
            Phase::Run => stream.next_kind(),
        };
        let Some(kind) = kind else { return };
        let (site, mut book) = (self.store.site, self.book());
        book.account.never_sent += count;
        book.measurements.record_due(site, waited, count);
        for part in parts(kind) {
            self.shared.availability().requested(site, *part);
            book.measurements.record_unanswered(&UnansweredOps {
                site,
                kind: *part,
                service: None,
                intended: waited,
                count,
            });
        }
    }
}

/// Returns the kinds under which an operation is measured. A read-modify-write is measured under
/// several kinds.
fn parts(kind: OpKind) -> &'static [OpKind] {
    match kind {
        OpKind::Read => &[OpKind::Read],
        OpKind::Update => &[OpKind::Update],
        OpKind::Insert => &[OpKind::Insert],
        OpKind::Scan => &[OpKind::Scan],
        OpKind::ReadModifyWrite => &[OpKind::Read, OpKind::Update, OpKind::ReadModifyWrite],
        OpKind::Txn => &[OpKind::Txn],
    }
}
