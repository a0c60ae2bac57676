//! The loop around the replica.
//!
//! What has arrived is taken at once, as much as a round may take (`inbox`), *then* the clock is read, then
//! the replica is stepped through all of it (protocol §0: a `now` from before an
//! input arrived could date a grant into the past). Reads made under leases
//! leave only after the clock was read once more, after the last step: one
//! sample serves the whole group, and is its linearization point (protocol
//! §3.5).

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use leasehold_leases::{ReplicaId, Slot, Time};
use leasehold_wire::{Outcome, Path};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, Sleep};

use super::clock;
use super::demand_passes::DemandPasses;
use super::ending::LEAVE_WITHIN;
use super::events::Events;
use super::inbox::Inbox;
use super::lease_wishes::LeaseWishes;
use super::listener::Clients;
use super::moves::Moves;
use super::step_watch::{self, StepWatch, Work};
use super::storage::{Durability, Durable, Report, StorageError, Writer};
use super::timeout_watch::{self, TimeoutWatch};
use super::transport::Peers;
use leasehold_replica::Replica;
use leasehold_replica::action::{Action, Asker, ClientHandle, Event, Record, Sequence};
use leasehold_replica::input::{Input, ReadFrom};
use leasehold_replica::message::{Envelope, LogId};
use leasehold_replica::shell::{self, Answers, Divergence, Fenced, Host, Part, Watches};

/// The longest sleep between two rounds. The timer stands still while the machine is
/// suspended, but leases do not: this bounds how late their deadlines are noticed.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The replica and all that is around it.
pub(super) struct Driver {
    pub(super) replica: Replica,
    pub(super) me: ReplicaId,
    pub(super) names: Vec<String>,
    pub(super) durability: Durability,
    pub(super) directory: PathBuf,
    pub(super) inbox: Rc<Inbox>,
    pub(super) moves: Moves,
    pub(super) wishes: LeaseWishes,
    pub(super) demand_passes: DemandPasses,
    pub(super) clients: Rc<Clients>,
    pub(super) peers: Rc<Peers>,
    pub(super) writer: Writer,
    pub(super) reports: UnboundedReceiver<Report>,
    pub(super) events: Events,
    pub(super) watches: Watches,
    pub(super) step_watch: StepWatch,
    pub(super) timeout_watch: TimeoutWatch,
    /// Nobody waits for this replica any more: it may end.
    pub(super) left: bool,
    /// When clocks were last compared.
    pub(super) compared: Cell<clock::Moment>,
}

/// Buffers that are reused for every group.
#[derive(Default)]
struct Scratch {
    inputs: Vec<Input>,
    actions: Vec<Action>,
    fenced: Vec<Fenced>,
    answers: Answers,
}

impl Driver {
    /// Runs until `shutdown` completes, hands over what others would wait for, and closes the
    /// storage.
    ///
    /// # Errors
    /// The storage failed, or turns out to have been wiped.
    pub(super) async fn run(
        mut self,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), StorageError> {
        let mut scratch = Scratch::default();
        let timer = tokio::time::sleep(Duration::ZERO);
        let leaving = tokio::time::sleep(Duration::MAX);
        let mut stopping = false;
        tokio::pin!(shutdown, timer, leaving);
        while !self.left {
            let report = tokio::select! {
                biased;
                () = &mut shutdown, if !stopping => {
                    stopping = true;
                    leaving.as_mut().reset(Instant::now() + LEAVE_WITHIN);
                    self.inbox.push(Input::Stop);
                    None
                }
                () = &mut leaving, if stopping => break,
                report = self.reports.recv() => report,
                () = self.inbox.arrival() => None,
                () = &mut timer => None,
            };
            self.hear(report)?;
            if let Err(wiped) = self.round(&mut scratch) {
                self.close()?;
                return Err(wiped);
            }
            self.arm(timer.as_mut());
            self.give_turns().await;
        }
        self.close()
    }

    /// Lets connections have their turn before the next round.
    async fn give_turns(&self) {
        let left = self.inbox.has_others() || self.inbox.is_read_up() || self.clients.has_waiting();
        match left {
            // Messages that peers have sent meanwhile are not to wait for what an iteration has
            // left. And connections that may read since that iteration do so before others may.
            true => tokio::task::yield_now().await,
            // A missed fence puts a new input into the inbox: a replica without permits would
            // starve connections.
            false => tokio::task::consume_budget().await,
        }
    }

    /// Closes the storage.
    ///
    /// # Errors
    /// Returns the error met while closing.
    pub(super) fn close(self) -> Result<(), StorageError> {
        self.writer.close()
    }

    /// Takes what the storage says.
    fn hear(&mut self, first: Option<Report>) -> Result<(), StorageError> {
        let mut next = first;
        while let Some(report) = next {
            let input = match report {
                Report::Persisted(sequence) => {
                    self.watches.disk.persisted(sequence);
                    Input::Persisted(sequence)
                }
                Report::LogRead { log, to, entries } => Input::LogRead { log, to, entries },
                Report::Writable(writable) => {
                    self.watches.disk.set_full(!writable);
                    next = self.reports.try_recv().ok();
                    continue;
                }
                Report::Failed(error) => return Err(error),
            };
            self.inbox.push(input);
            next = self.reports.try_recv().ok();
        }
        Ok(())
    }

    /// One group of inputs, and what comes of it.
    fn round(&mut self, scratch: &mut Scratch) -> Result<(), StorageError> {
        let writable = self.watches.disk.writable();
        let diverged = self.watches.clock.divergence().is_some();
        self.step_watch.begin(std::time::Instant::now());
        let stepped = catch_unwind(AssertUnwindSafe(|| self.step_all(scratch)));
        let Ok(now) = stepped else {
            die(&self.names[self.me.index()]);
        };
        if self.watches.clock.divergence().is_some() != diverged {
            self.tell_of_clock();
        }
        if self.watches.disk.writable() != writable {
            self.tell_of_disk();
        }
        self.enter(Work::Actions);
        self.clients.begin_round();
        self.perform(now, scratch)?;
        self.enter(Work::Status);
        self.answer_statuses(now);
        self.answer_moves(now);
        self.answer_wishes(now);
        self.enter(Work::Demand);
        self.answer_demand(now);
        let (watch, replica) = (&mut self.timeout_watch, &self.replica);
        if let Some(short) = watch.look(now, || replica.short_timeout()) {
            timeout_watch::warn(short);
        }
        self.clients.set_log_time(self.replica.log_time_ms());
        self.enter(Work::Writing);
        self.peers.flush();
        self.clients.flush();
        if let Some(long) = self.step_watch.end(std::time::Instant::now()) {
            step_watch::warn(&long);
        }
        Ok(())
    }

    fn enter(&mut self, work: Work) {
        self.step_watch.enter(work, std::time::Instant::now);
    }

    fn step_all(&mut self, scratch: &mut Scratch) -> Time {
        let (inbox, compared) = (&self.inbox, &self.compared);
        let watch = &mut self.step_watch;
        let begins = |part: &Part<'_>| {
            if let Part::Begin(due) = part {
                watch.note_due(*due);
            }
            watch.enter(Work::of(part), std::time::Instant::now);
        };
        shell::round(
            &mut self.replica,
            &mut self.watches,
            (&mut scratch.inputs, &mut scratch.actions),
            (
                |inputs: &mut Vec<Input>| inbox.take(inputs),
                || clock::reading(compared),
            ),
            begins,
        )
    }

    fn tell_of_disk(&self) {
        let directory = self.directory.display();
        match self.watches.disk.writable() {
            true => tracing::warn!(%directory, "the disk takes writes again"),
            false => tracing::warn!(
                %directory,
                "the disk takes no writes: it is full, or hangs. This replica takes part in no \
                 writes until it does; if it is full, make room"
            ),
        }
    }

    fn tell_of_clock(&self) {
        match self.watches.clock.divergence() {
            Some(Divergence {
                clock,
                ahead_ns,
                within,
            }) => tracing::warn!(
                clock,
                ahead_us = ahead_ns / 1000,
                ?within,
                "the machine's clocks diverge by more than lease.rho allows: no reads under leases \
                 here until they agree again"
            ),
            None => tracing::info!("the machine's clocks agree again"),
        }
    }

    fn perform(&mut self, now: Time, scratch: &mut Scratch) -> Result<(), StorageError> {
        let mut performing = Performing {
            driver: self,
            now,
            fenced: &mut scratch.fenced,
            wiped: None,
        };
        for action in scratch.actions.drain(..) {
            shell::perform(action, &mut performing);
            if let Some(wiped) = performing.wiped.take() {
                return Err(wiped);
            }
        }
        if !scratch.fenced.is_empty() {
            self.pass_fences(scratch);
        }
        Ok(())
    }

    /// Sends the reads whose permits are still valid; the others go back.
    fn pass_fences(&self, scratch: &mut Scratch) {
        let sampled = clock::now();
        for fenced in scratch.fenced.drain(..) {
            if !fenced.may_leave(sampled) {
                self.inbox.push(fenced.missed());
                continue;
            }
            let Fenced {
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

    /// Sets the timer if it would fire too late. A timer that fires too early costs one
    /// empty round; setting it in every round would cost more.
    fn arm(&self, mut timer: std::pin::Pin<&mut Sleep>) {
        let asked = self.moves.next_deadline().min(self.wishes.next_deadline());
        let next = self.replica.next_deadline().min(asked);
        // Clients that wait for demand or a large answer get the next part as soon as others had
        // a turn.
        let at_once = !self.demand_passes.is_empty() || self.clients.has_waiting();
        let next = if at_once { Time::ZERO } else { next };
        let wait = next.since(clock::now());
        let due = Instant::now() + wait.min(SLEEP_MAX);
        if timer.is_elapsed() || due < timer.deadline() {
            timer.as_mut().reset(due);
        }
    }
}

/// Performs the actions of one group of inputs.
struct Performing<'a> {
    driver: &'a mut Driver,
    /// When the group was stepped through.
    now: Time,
    /// Reads that wait until the clock has been read again.
    fenced: &'a mut Vec<Fenced>,
    /// The storage turned out to have been wiped: nothing more is performed.
    wiped: Option<StorageError>,
}

impl Host for Performing<'_> {
    fn send(&mut self, to: ReplicaId, envelope: Envelope) {
        self.driver.peers.send(to, envelope);
    }

    fn persist(&mut self, sequence: Sequence, records: Vec<Record>) {
        match self.driver.writer.persist(sequence, records) {
            Durable::Now => self.driver.inbox.push(Input::Persisted(sequence)),
            Durable::Later => self.driver.watches.disk.asked(sequence, self.now),
        }
    }

    fn reply(&mut self, to: ClientHandle, path: Path, outcome: Outcome) {
        self.driver.reply(to, path, outcome);
    }

    fn fenced_reply(&mut self, read: Fenced) {
        self.fenced.push(read);
    }

    fn read_log(&mut self, log: LogId, to: Asker, from: Slot, last: Slot) {
        self.driver.writer.read_log(log, to, from, last);
    }

    fn event(&mut self, event: Event) {
        self.driver.events.tell(&event);
        self.driver.left |= event == Event::Left;
        if let Event::LeaseAnswered { ask, answer } = &event
            && let Some((client, refusal)) = self.driver.wishes.answered(*ask, answer)
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

/// Ends the process after a broken invariant: anything that this replica sends next could
/// be wrong, and others would act on it. A restart begins from the durable state.
fn die(name: &str) -> ! {
    tracing::error!(
        replica = name,
        "an invariant of the replica is broken; the process ends here so that nobody is told anything \
         that may be wrong. Please report the panic message above."
    );
    std::process::abort()
}
