//! Commands of this replica's clients that are on their way through the log: writes, and reads of
//! several keys.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::hashing::SeededState;
use leasehold_leases::{ReplicaId, Slot, Time};
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Command, Outcome, Path};

use super::disconnected::{DisconnectedClients, reply_disconnected};
use super::merge_queues::{MergeCost, MergeQueues, QueuedMerge};
use super::placeholder::placeholder;
use crate::consensus::Accepted;
use crate::handles::ClientHandle;
use crate::machine::version_of;
use crate::message::{Message, Proposal, RequestId};
use crate::parts::chunks;
use crate::size_estimate::command_size_estimate;
use crate::step::Step;
use crate::unavailable::{sent_again, too_many_merges};

/// Number of attempts after which the wait between two attempts no longer grows.
const ATTEMPTS_COUNTED_MAX: u32 = 8;
/// Maximum number of writes that are sent again in one step. The same maximum applies to reads. A
/// maximum is needed because very many commands may be overdue at the same time.
const RETRIED_MAX: usize = 4096;
/// Maximum number of merges that one step may move from the queue of small merges to the queue of
/// large merges. A merge is moved if its estimated cost has risen enough.
const RECOUNTED_MAX: usize = 4096;

/// Command that has not been answered.
#[derive(Clone, Debug)]
struct PendingCommand {
    from: ClientHandle,
    command: Command,
    request: RequestId,
    /// Cost that is counted for this command if it is a merge; `None` for other commands.
    cost: Option<MergeCost>,
    /// Attempts to send the command; `None` if it was not sent yet, because too many merges are in
    /// the log.
    sent: Option<SendAttempts>,
}

/// Time at which a command was last sent to be proposed, and the number of times it was sent.
#[derive(Clone, Copy, Debug)]
struct SendAttempts {
    last: Time,
    attempts: u32,
}

impl Hash for PendingCommand {
    /// Hashes the command without the time and number of attempts. This time and number have no
    /// effect in the period for which a fingerprint is valid (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.from, &self.command, self.request).hash(state);
        (self.cost, self.sent.is_some()).hash(state);
    }
}

impl PendingCommand {
    /// Whether this command is a write that is queued under the name `request` and was not sent
    /// yet.
    fn is_queued_as(&self, request: RequestId) -> bool {
        self.sent.is_none() && self.request == request
    }

    fn is_overdue(&self, now: Time, timeout: Duration) -> bool {
        self.sent.is_some_and(|sent| {
            now.since(sent.last) >= timeout * sent.attempts.min(ATTEMPTS_COUNTED_MAX)
        })
    }

    /// Notes that the command is sent now. Returns the name of the attempt and the command to be
    /// logged. If the command is a read, a placeholder is logged in its place.
    fn send(&mut self, now: Time) -> (RequestId, Command) {
        self.sent = Some(SendAttempts {
            last: now,
            attempts: self.sent.map_or(0, |sent| sent.attempts) + 1,
        });
        let logged = if self.command.is_write() {
            self.command.clone()
        } else {
            placeholder(&self.command)
        };
        (self.request, logged)
    }
}

type PendingBySession = HashMap<(u64, u64), PendingCommand, SeededState>;

/// Returns a queued write; `None` if it was answered meanwhile. This happens if another origin has
/// sent the same write.
fn queued_write(
    writes: &mut PendingBySession,
    session: (u64, u64),
    request: RequestId,
) -> Option<&mut PendingCommand> {
    let pending = writes.get_mut(&session)?;
    pending.is_queued_as(request).then_some(pending)
}

/// Unanswered commands. A write is identified by its session and sequence number, because its
/// client may also have sent it through another replica. A read is identified by the name of its
/// attempt.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    writes: PendingBySession,
    reads: HashMap<RequestId, PendingCommand, SeededState>,
    to_forward: Vec<(RequestId, Command)>,
    merging: MergeQueues,
    /// Committed slots with commands that may still be answered before the slot is executed.
    unanswered: BTreeSet<Slot>,
}

impl Hash for Writes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        leasehold_leases::fingerprint::unordered(&self.writes, state);
        leasehold_leases::fingerprint::unordered(&self.reads, state);
        (&self.to_forward, &self.merging, &self.unanswered).hash(state);
    }
}

impl Writes {
    /// Number of unanswered commands.
    pub fn len(&self) -> usize {
        self.writes.len() + self.reads.len()
    }

    /// Whether the same write already waits for an answer at this replica.
    pub fn waits(&self, write: &Command) -> bool {
        self.writes.contains_key(&(write.client, write.sequence))
    }

    /// Handles a command of a client. `work` is its merging work. If the same write already waits
    /// here, the newer request will receive the result. The older request is answered with the
    /// error that the write was sent again.
    pub fn submit(
        &mut self,
        step: &mut Step<'_>,
        from: ClientHandle,
        command: Command,
        work: usize,
    ) {
        let session = (command.client, command.sequence);
        if command.is_write()
            && let Some(pending) = self.writes.get_mut(&session)
        {
            let before = std::mem::replace(&mut pending.from, from);
            if before != from {
                step.reply(before, Path::Log, sent_again());
            }
            return;
        }
        let is_write = command.is_write();
        let settings = &step.ctx.settings;
        let many = settings.merges_of_key_max;
        let cost = self.merging.cost_of(&command, work, many);
        let work_max = settings.merge_work_max;
        let may_send = cost.is_none_or(|it| self.merging.may_send(it, work_max));
        if !may_send && cost.is_some_and(MergeCost::is_long) {
            step.metrics.writes_held += 1;
            return step.reply(from, Path::Log, too_many_merges());
        }
        let mut pending = PendingCommand {
            from,
            command,
            request: step.name_request(),
            cost,
            sent: None,
        };
        match cost.filter(|_| !may_send) {
            Some(cost) => {
                step.metrics.writes_held += 1;
                let queued = (session, pending.request);
                self.merging.enqueue(cost, from.connection, queued);
            }
            None => {
                cost.into_iter().for_each(|it| self.merging.note_sent(it));
                self.to_forward.push(pending.send(step.now));
            }
        }
        self.merging.count(&pending.command);
        let known = if is_write {
            self.writes.insert(session, pending)
        } else {
            self.reads.insert(pending.request, pending)
        };
        assert!(known.is_none(), "a command waits once");
    }

    /// Sends queued merges as far as the limit permits. `work` returns the present estimate of the
    /// work of a merge. The estimate may have risen, because writes executed meanwhile may have
    /// made the record large.
    fn send_queued(&mut self, step: &mut Step<'_>, work: impl Fn(&Command) -> usize) {
        let work_max = step.ctx.settings.merge_work_max;
        let mut recounted = 0;
        while let Some(next) = self.merging.next(work_max, recounted >= RECOUNTED_MAX) {
            let (session, request) = next.queued;
            let Some(pending) = queued_write(&mut self.writes, session, request) else {
                self.merging.pass_over(&next);
                continue;
            };
            let cost = pending.cost.expect("only merges are queued");
            let cost = cost.raised_to(work(&pending.command));
            pending.cost = Some(cost);
            if self.merging.may_go(&next, cost, work_max) {
                self.merging.note_sent(cost);
                self.to_forward.push(pending.send(step.now));
            } else {
                recounted += 1;
                self.merging.enqueue(cost, next.connection, next.queued);
            }
        }
    }

    /// Drops the queued writes of disconnected clients. These writes were never sent.
    pub fn forget_queued(&mut self, step: &mut Step<'_>, disconnected: &DisconnectedClients) {
        let queued = self.writes.iter().filter(|(_, it)| it.sent.is_none());
        let of_disconnected = queued.filter(|(_, it)| disconnected.has(it.from));
        let mut dropped: Vec<_> = of_disconnected.map(|(of, it)| (it.request, *of)).collect();
        dropped.sort_unstable();
        for (_, session) in dropped {
            if let Some(pending) = self.take_write(&session) {
                reply_disconnected(step, pending.from);
            }
        }
    }

    /// Removes and returns the commands that are to be sent to the leader: commands of clients
    /// since the last group, and queued merges that may be sent now. If no leader is known, the
    /// caller drops these commands; they are sent again once a leader is known. `work` is the same
    /// as for [`Writes::send_queued`].
    pub fn take_forwards(
        &mut self,
        step: &mut Step<'_>,
        work: impl Fn(&Command) -> usize,
    ) -> Vec<(RequestId, Command)> {
        self.send_queued(step, work);
        let writes = &self.writes;
        let waits = |(session, request): &QueuedMerge| {
            let pending = writes.get(session);
            pending.is_some_and(|pending| pending.is_queued_as(*request))
        };
        self.merging.tidy(waits);
        std::mem::take(&mut self.to_forward)
    }

    /// Sends commands to the leader.
    pub fn forward(step: &mut Step<'_>, leader: ReplicaId, commands: Vec<(RequestId, Command)>) {
        for commands in chunks(commands, |(_, command)| command_size_estimate(command)) {
            step.send(leader, Message::Forward { commands });
        }
    }

    /// Sends again the pending commands that have waited too long.
    pub fn retry(&mut self, step: &mut Step<'_>) {
        let timeout = step.ctx.settings.timing.retransmit * 2;
        let now = step.now;
        let is_due = |pending: &PendingCommand| pending.is_overdue(now, timeout);
        self.forward_again(step, RETRIED_MAX, is_due);
    }

    /// Sends to the new leader all commands that were already sent before.
    pub fn forward_all_again(&mut self, step: &mut Step<'_>) {
        self.forward_again(step, usize::MAX, |pending| pending.sent.is_some());
    }

    /// Sends again the commands for which `due` returns true, up to `most` writes and `most` reads.
    /// A write gets a new name. A read keeps its name, so the attempt that is executed first
    /// answers the read. This is correct, because every attempt began after the client's request.
    fn forward_again(
        &mut self,
        step: &mut Step<'_>,
        most: usize,
        due: impl Fn(&PendingCommand) -> bool,
    ) {
        let mut writes: Vec<_> = self.writes.values_mut().filter(|p| due(p)).collect();
        writes.sort_unstable_by_key(|pending| pending.request);
        writes.truncate(most);
        let mut reads: Vec<_> = self.reads.values_mut().filter(|p| due(p)).collect();
        reads.sort_unstable_by_key(|pending| pending.request);
        reads.truncate(most);
        step.metrics.forwarded_again += (writes.len() + reads.len()) as u64;
        for pending in writes {
            pending.request = step.name_request();
            self.to_forward.push(pending.send(step.now));
        }
        for pending in reads {
            self.to_forward.push(pending.send(step.now));
        }
    }

    /// Handles the leader's answers to writes that were executed before. An answer to a transaction
    /// may lack what the session has not kept. Such an answer is ignored: this replica has not
    /// executed the transaction yet, and will have the whole answer when it does.
    pub fn on_answered(&mut self, step: &mut Step<'_>, answers: Vec<(RequestId, Outcome)>) {
        let answered: HashSet<RequestId, SeededState> =
            answers.iter().map(|(name, _)| *name).collect();
        // All waiting writes are searched once, however many are answered.
        let waiting = self
            .writes
            .iter()
            .map(|(session, it)| (it.request, *session));
        let waiting = waiting.filter(|(request, _)| answered.contains(request));
        let mut sessions: HashMap<RequestId, (u64, u64), SeededState> = waiting.collect();
        let whole = answers.into_iter().filter(|(_, it)| !is_abridged(it));
        for (request, outcome) in whole {
            let session = sessions.remove(&request);
            if let Some(pending) = session.and_then(|session| self.take_write(&session)) {
                step.reply(pending.from, Path::Log, outcome);
            }
        }
    }

    /// Drops the content of reads if their clients have disconnected. Each of these reads still
    /// counts as an unanswered command until its placeholder is executed. Otherwise a client that
    /// repeatedly sends reads and disconnects could make the leader's queue grow without bound.
    pub fn forget_reads(&mut self, disconnected: &DisconnectedClients) {
        let reads = self.reads.values_mut();
        for pending in reads.filter(|pending| disconnected.has(pending.from)) {
            pending.command = Command::default();
        }
    }

    /// Returns the read that a placeholder from the log represents, if the read was sent by a
    /// client of this replica. If that client has disconnected, the content of the read is empty.
    pub fn read_of_placeholder(&self, me: ReplicaId, placeholder: &Proposal) -> Option<&Command> {
        let pending = self.reads.get(&placeholder.request);
        pending
            .filter(|_| placeholder.origin == me)
            .map(|it| &it.command)
    }

    /// Whether a client of this replica waits for this command.
    fn awaits(&self, proposed: &Proposal) -> bool {
        let command = &proposed.command;
        if command.is_write() {
            self.writes
                .contains_key(&(command.client, command.sequence))
        } else {
            self.reads.contains_key(&proposed.request)
        }
    }

    fn take_write(&mut self, session: &(u64, u64)) -> Option<PendingCommand> {
        let pending = self.writes.remove(session)?;
        let sent = pending.sent.is_some();
        self.merging.release(&pending.command, pending.cost, sent);
        Some(pending)
    }

    /// Removes the command and returns the client that waits for it. A write is recognized
    /// regardless of its origin. A read is recognized only if this replica is its origin.
    fn take(&mut self, me: ReplicaId, proposed: &Proposal) -> Option<ClientHandle> {
        let command = &proposed.command;
        let pending = if command.is_write() {
            self.take_write(&(command.client, command.sequence))
        } else if proposed.origin == me {
            self.reads.remove(&proposed.request)
        } else {
            None
        };
        pending.map(|pending| pending.from)
    }

    /// Answers the client that waits for this command, if there is one.
    pub fn answer(&mut self, step: &mut Step<'_>, proposed: &Proposal, outcome: Outcome) {
        if let Some(to) = self.take(step.me(), proposed) {
            step.reply(to, Path::Log, outcome);
        }
    }

    /// Notes that `slots` were committed: their commands may be answerable.
    pub fn note_committed(&mut self, slots: &[Slot]) {
        self.unanswered.extend(slots);
    }

    /// Returns the first committed slot with commands that may still be answered before the slot is
    /// executed.
    pub fn first_unanswered(&self) -> Option<Slot> {
        self.unanswered.first().copied()
    }

    /// Notes that no more commands of this slot can be answered before the slot is executed.
    pub fn complete(&mut self, slot: Slot) {
        self.unanswered.remove(&slot);
    }

    /// Answers blind writes in a committed slot if execution cannot refuse these writes (hazard
    /// 31).
    pub fn answer_at_commit(&mut self, step: &mut Step<'_>, slot: Slot, accepted: &Accepted) {
        let me = step.me();
        for (index, proposed) in accepted.value.commands().iter().enumerate() {
            let infallible = proposed.command.is_blind_write() && accepted.is_infallible(index);
            if infallible && proposed.origin == me {
                let outcome = Outcome::written(version_of(slot, index));
                self.answer(step, proposed, outcome);
            }
        }
    }

    /// # Panics
    /// If the counts of queued and sent merges do not match the waiting commands.
    pub fn check(&self) {
        let writes = self.writes.values();
        let waiting = writes.map(|it| (&it.command, it.cost, it.sent.is_some()));
        self.merging.check(waiting);
    }

    /// Number of commands in this committed slot for which clients of this replica still wait.
    /// Commands that were answered at commit are not counted.
    pub fn blocked(&self, me: ReplicaId, accepted: Option<&Accepted>) -> usize {
        let proposed = accepted.map_or(&[][..], |accepted| accepted.value.commands());
        let mine = proposed.iter().filter(|proposed| proposed.origin == me);
        mine.filter(|proposed| self.awaits(proposed)).count()
    }
}

/// Returns true if the outcome of a transaction lacks what its session has not kept.
fn is_abridged(outcome: &Outcome) -> bool {
    matches!(&outcome.result, Some(Answer::Txn(result)) if result.abridged)
}
