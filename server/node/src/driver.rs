//! The loop around the replica.
//!
//! The driver takes arrived inputs in one step, up to the amount that an event-loop iteration
//! handles (`inbox`). *Then* it reads the clock, and then it steps the replica through all these
//! inputs (protocol §0: a `now` from before the arrival of an input could date a grant into the
//! past). After the last step it reads the clock once more, and only then answers reads under
//! leases. This second clock reading serves all these reads, and is their linearization point
//! (protocol §3.5).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use leasehold_clock::{Clocks, Divergence};
use leasehold_leases::{ReplicaId, Slot, Time};
use leasehold_wire::{Outcome, Path};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, Sleep};

use super::error::NodeError;
use super::events::Events;
use crate::admin::demand::DemandPasses;
use crate::admin::lease_changes::LeaseChanges;
use crate::admin::transfers::LeadershipTransfers;
use crate::front::inbox::Inbox;
use crate::front::listener::Clients;
use crate::peers::transport::Peers;
use crate::shutdown::LEAVE_TIMEOUT;
use crate::store::{Durability, PersistOutcome, StorageError, StorageReport, Writer};
use crate::watch::step::{self, StepWatch, WorkKind};
use crate::watch::timeouts::{self, TimeoutWatch};
use leasehold_replica::Replica;
use leasehold_replica::action::{Action, ClientHandle, Event, Record, Requester, Sequence};
use leasehold_replica::input::{Input, ReadFrom};
use leasehold_replica::message::{Envelope, LogId, PerLog};
use leasehold_replica::shell::{
    self, FencedAnswers, FencedReply, Host, IterationBuffers, IterationPart, Watches,
};

/// Maximum sleep between two event-loop iterations. This maximum ensures that the node notices the
/// end of a lease soon after a suspension of the machine. During a suspension, leases continue to
/// expire but the timer is paused.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The replica and all parts of the node around it.
pub(super) struct Driver {
    pub(super) replica: Replica,
    pub(super) me: ReplicaId,
    pub(super) names: Vec<String>,
    pub(super) durability: Durability,
    pub(super) directory: PathBuf,
    pub(super) inbox: Rc<Inbox>,
    pub(super) transfers: LeadershipTransfers,
    pub(super) lease_changes: LeaseChanges,
    pub(super) demand_passes: DemandPasses,
    pub(super) clients: Rc<Clients>,
    pub(super) peers: Rc<Peers>,
    pub(super) writer: Writer,
    pub(super) reports: UnboundedReceiver<StorageReport>,
    pub(super) events: Events,
    pub(super) watches: Watches,
    pub(super) step_watch: StepWatch,
    pub(super) timeout_watch: TimeoutWatch,
    /// Whether the node may end now. It may end when no other replica waits for it.
    pub(super) may_end: bool,
    /// Clocks of the machine.
    pub(super) clocks: Clocks,
}

/// Buffers that are reused in every event-loop iteration.
#[derive(Default)]
struct Scratch {
    inputs: Vec<Input>,
    actions: Vec<Action>,
    fenced: Vec<FencedReply>,
    answers: FencedAnswers,
}

/// Parts of a driver that remain after its event loop has ended. The storage is still open.
pub(super) struct StoppedDriver {
    /// Reason why the driver has ended; `Ok` if it was told to end.
    outcome: Result<(), NodeError>,
    writer: Writer,
    reports: UnboundedReceiver<StorageReport>,
    /// The replica. It is dropped last, because freeing the memory of its state may take long.
    replica: Replica,
}

impl StoppedDriver {
    /// Returns true if the node has failed for a reason that a restart may remove.
    pub(super) fn may_be_restarted(&self) -> bool {
        let failure = self.outcome.as_ref().err();
        failure.is_some_and(|failure| !NodeError::is_final(failure.status().into()))
    }

    /// Closes the storage. This may take seconds if the disk fails. So close all connections before
    /// this call; otherwise clients and peers would wait for answers.
    ///
    /// # Errors
    /// Returns the reason why the driver has ended. If it was told to end, returns the error that
    /// occurred in the last writes or while the storage was closed.
    pub(super) fn close(self) -> Result<(), NodeError> {
        let StoppedDriver {
            outcome,
            writer,
            mut reports,
            replica: _dropped_last,
        } = self;
        if let Err(failed) = outcome {
            tracing::error!(error = %failed, "the node ends and closes its data directory");
            drop(writer);
            return Err(failed);
        }
        writer.close()?;
        while let Ok(report) = reports.try_recv() {
            if let StorageReport::Failed(error) = report {
                return Err(error.into());
            }
        }
        Ok(())
    }
}

impl Driver {
    /// Runs the loop until `shutdown` completes. Then hands over the duties that other replicas
    /// depend on. Ends early if the storage has failed or turns out to have been wiped.
    pub(super) async fn run(mut self, shutdown: impl Future<Output = ()>) -> StoppedDriver {
        let outcome = self.run_until(shutdown).await;
        self.stop(outcome)
    }

    /// Drops everything except the storage and the replica. `outcome` is the reason why the driver
    /// ends.
    pub(super) fn stop(self, outcome: Result<(), StorageError>) -> StoppedDriver {
        let Driver {
            writer,
            reports,
            replica,
            ..
        } = self;
        StoppedDriver {
            outcome: outcome.map_err(NodeError::from),
            writer,
            reports,
            replica,
        }
    }

    async fn run_until(&mut self, shutdown: impl Future<Output = ()>) -> Result<(), StorageError> {
        let mut scratch = Scratch::default();
        let timer = tokio::time::sleep(Duration::ZERO);
        let leaving = tokio::time::sleep(Duration::MAX);
        let mut stopping = false;
        tokio::pin!(shutdown, timer, leaving);
        while !self.may_end {
            let report = tokio::select! {
                biased;
                () = &mut shutdown, if !stopping => {
                    stopping = true;
                    leaving.as_mut().reset(Instant::now() + LEAVE_TIMEOUT);
                    self.inbox.push(Input::Stop);
                    None
                }
                () = &mut leaving, if stopping => break,
                report = self.reports.recv() => Some(report.expect("the storage's threads go on")),
                () = self.inbox.arrival() => None,
                () = &mut timer => None,
            };
            self.take_reports(report)?;
            self.run_iteration(&mut scratch)?;
            self.arm(timer.as_mut());
            self.yield_to_tasks().await;
        }
        Ok(())
    }

    /// Lets the tasks of connections run before the next event-loop iteration.
    async fn yield_to_tasks(&self) {
        let left = self.inbox.has_others()
            || self.inbox.is_read_budget_spent()
            || self.clients.has_waiting();
        if left {
            // Messages that peers have sent meanwhile must not wait for inputs that an iteration
            // has left. And connections that may read since that iteration must read before others
            // may.
            tokio::task::yield_now().await;
        } else {
            // A missed fence puts a new input into the inbox. So a replica without permits would
            // starve connections.
            tokio::task::consume_budget().await;
        }
    }

    /// Puts the reports of the storage into the inbox. `first` is the earliest report.
    fn take_reports(&mut self, first: Option<StorageReport>) -> Result<(), StorageError> {
        let mut next = first;
        while let Some(report) = next {
            let input = match report {
                StorageReport::Persisted(sequence) => {
                    self.watches.disk.persisted(sequence);
                    Input::Persisted(sequence)
                }
                StorageReport::Flushed(slots) => Input::Flushed(slots),
                StorageReport::LogReadBegun => {
                    self.watches.disk.read_begun(leasehold_clock::now());
                    next = self.reports.try_recv().ok();
                    continue;
                }
                StorageReport::LogRead { log, to, entries } => {
                    self.watches.disk.read_ended();
                    Input::LogRead { log, to, entries }
                }
                StorageReport::Writable(writable) => {
                    self.watches.disk.set_full(!writable);
                    next = self.reports.try_recv().ok();
                    continue;
                }
                StorageReport::Failed(error) => return Err(error),
            };
            self.inbox.push(input);
            next = self.reports.try_recv().ok();
        }
        Ok(())
    }

    /// Runs one event-loop iteration: passes the waiting inputs to the replica, and performs the
    /// resulting actions.
    fn run_iteration(&mut self, scratch: &mut Scratch) -> Result<(), StorageError> {
        let writable = self.watches.disk.writable();
        let diverged = self.watches.clock.divergence().is_some();
        self.step_watch.begin(std::time::Instant::now());
        let stepped = catch_unwind(AssertUnwindSafe(|| self.step_all(scratch)));
        let Ok(now) = stepped else {
            die(&self.names[self.me.index()]);
        };
        if self.watches.clock.divergence().is_some() != diverged {
            self.report_clock_state();
        }
        if self.watches.disk.writable() != writable {
            self.report_disk_state();
        }
        self.enter(WorkKind::Actions);
        self.clients.begin_iteration();
        self.perform(now, scratch)?;
        self.enter(WorkKind::Status);
        self.answer_statuses(now);
        self.answer_transfers(now);
        self.answer_lease_changes(now);
        self.enter(WorkKind::Demand);
        self.answer_demand(now);
        let (watch, replica) = (&mut self.timeout_watch, &self.replica);
        if let Some(short) = watch.look(now, || replica.short_timeout()) {
            timeouts::warn(short);
        }
        self.inbox
            .note_round_trip(self.replica.longest_round_trip());
        self.clients.set_log_time(self.replica.log_time_ms());
        self.enter(WorkKind::Writing);
        // Clients wait for their answers, and peers can use news a little later.
        self.clients.flush();
        self.peers.flush();
        if let Some(long) = self.step_watch.end(std::time::Instant::now()) {
            step::warn(&long);
        }
        Ok(())
    }

    fn enter(&mut self, work: WorkKind) {
        self.step_watch.enter(work, std::time::Instant::now);
    }

    fn step_all(&mut self, scratch: &mut Scratch) -> Time {
        let (inbox, clocks) = (&self.inbox, &self.clocks);
        let watch = &mut self.step_watch;
        let begins = |part: &IterationPart<'_>| {
            if let IterationPart::Begin(due) = part {
                watch.note_due(*due);
            }
            watch.enter(WorkKind::of(part), std::time::Instant::now);
        };
        shell::run_iteration(
            &mut self.replica,
            &mut self.watches,
            IterationBuffers {
                inputs: &mut scratch.inputs,
                actions: &mut scratch.actions,
            },
            |inputs: &mut Vec<Input>| inbox.take(inputs),
            || clocks.reading(),
            begins,
        )
    }

    fn report_disk_state(&self) {
        let directory = self.directory.display();
        if self.watches.disk.writable() {
            tracing::warn!(%directory, "the disk takes writes again")
        } else {
            tracing::warn!(
                %directory,
                "the disk takes no writes: it is full, it hangs, or the machine is too busy. This \
                 replica takes part in no writes until the disk takes them again; if the disk is \
                 full, make room"
            )
        }
    }

    fn report_clock_state(&self) {
        match self.watches.clock.divergence() {
            Some(Divergence {
                clock,
                ahead_ns,
                within,
            }) => tracing::warn!(
                clock,
                ahead_us = ahead_ns / 1000,
                ?within,
                "the machine's clocks diverge by more than lease.rho allows: this replica serves no \
                 reads under leases until they agree again"
            ),
            None => tracing::info!("the machine's clocks agree again"),
        }
    }

    fn perform(&mut self, now: Time, scratch: &mut Scratch) -> Result<(), StorageError> {
        let mut host = ActionHost {
            driver: self,
            now,
            fenced: &mut scratch.fenced,
            wiped: None,
        };
        for action in scratch.actions.drain(..) {
            shell::perform(action, &mut host);
            if let Some(wiped) = host.wiped.take() {
                return Err(wiped);
            }
        }
        if !scratch.fenced.is_empty() {
            self.pass_fences(scratch);
        }
        Ok(())
    }

    /// Checks the permit of each read. Sends the answer if the permit is still valid. Otherwise
    /// returns the read to the replica.
    fn pass_fences(&self, scratch: &mut Scratch) {
        let sampled = leasehold_clock::now();
        for fenced in scratch.fenced.drain(..) {
            if !fenced.may_leave(sampled) {
                self.inbox.push(fenced.missed());
                continue;
            }
            let FencedReply {
                to, path, outcome, ..
            } = fenced;
            match to {
                ReadFrom::Client(client) => self.reply(client, path, outcome),
                ReadFrom::Peer(peer, request) => {
                    scratch.answers.push(peer, request, outcome, path);
                }
            }
        }
        for (peer, message) in scratch.answers.take() {
            self.peers.send(peer, self.replica.envelope(peer, message));
        }
    }

    fn reply(&self, to: ClientHandle, path: Path, outcome: Outcome) {
        let hint = |key: &[u8]| self.replica.hint(key);
        self.clients.reply(to, path, outcome, hint);
    }

    /// Sets the timer to an earlier time if the timer would fire too late. A timer that would fire
    /// too early stays unchanged. It causes one empty event-loop iteration, but this costs less
    /// than setting the timer in every iteration.
    fn arm(&self, mut timer: std::pin::Pin<&mut Sleep>) {
        let requested = self
            .transfers
            .next_deadline()
            .min(self.lease_changes.next_deadline());
        let next = self.replica.next_deadline().min(requested);
        // Clients that wait for demand or a large answer get the next part as soon as other
        // connections had a turn.
        let at_once = !self.demand_passes.is_empty() || self.clients.has_waiting();
        let next = if at_once { Time::ZERO } else { next };
        let wait = next.since(leasehold_clock::now());
        let due = Instant::now() + wait.min(SLEEP_MAX);
        if timer.is_elapsed() || due < timer.deadline() {
            timer.as_mut().reset(due);
        }
    }
}

/// Performs the actions that the replica requests in one event-loop iteration.
struct ActionHost<'a> {
    driver: &'a mut Driver,
    /// Clock reading that was passed to the replica with the inputs of this iteration.
    now: Time,
    /// Prepared answers to reads. They are held back until the clock has been read again.
    fenced: &'a mut Vec<FencedReply>,
    /// Error that is set if the storage was wiped. After this error, no further action is
    /// performed.
    wiped: Option<StorageError>,
}

impl Host for ActionHost<'_> {
    fn send(&mut self, to: ReplicaId, envelope: Envelope) {
        self.driver.peers.send(to, envelope);
    }

    fn persist(&mut self, sequence: Sequence, records: Vec<Record>) {
        match self.driver.writer.persist(sequence, records) {
            PersistOutcome::Now => self.driver.inbox.push(Input::Persisted(sequence)),
            PersistOutcome::Later => self.driver.watches.disk.requested(sequence, self.now),
        }
    }

    fn flush(&mut self) {
        self.driver.writer.flush();
    }

    fn truncate(&mut self, slots: PerLog<Slot>) {
        self.driver.writer.truncate(slots);
    }

    fn reply(&mut self, to: ClientHandle, path: Path, outcome: Outcome) {
        self.driver.reply(to, path, outcome);
    }

    fn fenced_reply(&mut self, read: FencedReply) {
        self.fenced.push(read);
    }

    fn read_log(&mut self, log: LogId, to: Requester, from: Slot, last: Slot) {
        self.driver.writer.read_log(log, to, from, last);
    }

    fn event(&mut self, event: Event) {
        self.driver.events.report(&event);
        self.driver.may_end |= event == Event::Left;
        if let Event::LeaseAnswered { ask, answer } = &event
            && let Some((client, refusal)) = self.driver.lease_changes.note_answer(*ask, answer)
        {
            self.driver.clients.refuse(client, refusal);
        }
        if let Event::Wiped { witness } = event {
            self.wiped = Some(StorageError::Wiped {
                path: self.driver.directory.clone(),
                witness: self.driver.names[witness.index()].clone(),
            });
        }
    }
}

/// Ends the process after a broken invariant. Any further message of this replica could be wrong,
/// and other replicas would act on this message. A restarted process begins from the durable state.
fn die(name: &str) -> ! {
    tracing::error!(
        replica = name,
        "an invariant of the replica is broken; the process ends here so that it sends nothing \
         that may be wrong. Please report the panic message above."
    );
    std::process::abort()
}
