//! Commands of this replica's clients that are on their way through the log: writes,
//! and reads of several keys.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::hashing::Seeded;
use leasehold_leases::{ReplicaId, Slot, Time};
use leasehold_wire::{Command, Outcome, Path};

use super::super::consensus::Accepted;
use super::super::handles::ClientHandle;
use super::super::machine::version_of;
use super::super::message::{Message, Proposed, RequestId};
use super::super::parts::chunks;
use super::super::step::Step;
use super::super::unavailable::{asked_again, too_many_merges};
use super::super::weight::command_weight;
use super::leavers::{Gone, tell_gone};
use super::logged::stand_in;
use super::merging::{Counts, Held, Merging};

/// Waits between attempts grow with their number, up to this.
const ATTEMPTS_COUNTED_MAX: u32 = 8;
/// Writes, and reads, that are sent again in one go: very many may wait long at once.
const RETRIED_MAX: usize = 4096;
/// Maximum number of merges held as small ones that turn out large in one go.
const RECOUNTED_MAX: usize = 4096;
/// A command that has not been answered.
#[derive(Clone, Debug)]
struct Pending {
    from: ClientHandle,
    command: Command,
    request: RequestId,
    /// `None` if it is no merge.
    counts: Option<Counts>,
    /// `None`: it was not sent yet, for too much merging is in the log.
    sent: Option<Sent>,
}

/// When a command was sent to be proposed, and how often.
#[derive(Clone, Copy, Debug)]
struct Sent {
    last: Time,
    attempts: u32,
}

impl Hash for Pending {
    /// When and how often it was sent decides only when it is sent again: not before
    /// the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.from, &self.command, self.request).hash(state);
        (self.counts, self.sent.is_some()).hash(state);
    }
}

impl Pending {
    /// Whether it is the write that is held under this name.
    fn is_held_as(&self, request: RequestId) -> bool {
        self.sent.is_none() && self.request == request
    }

    fn is_overdue(&self, now: Time, patience: Duration) -> bool {
        self.sent.is_some_and(|sent| {
            now.since(sent.last) >= patience * sent.attempts.min(ATTEMPTS_COUNTED_MAX)
        })
    }

    /// Says that it is sent now, and returns what goes into the log.
    fn send(&mut self, now: Time) -> (RequestId, Command) {
        self.sent = Some(Sent {
            last: now,
            attempts: self.sent.map_or(0, |sent| sent.attempts) + 1,
        });
        let logged = match self.command.is_write() {
            true => self.command.clone(),
            false => stand_in(&self.command),
        };
        (self.request, logged)
    }
}

type BySession = HashMap<(u64, u64), Pending, Seeded>;

/// A write that was held, unless it was answered meanwhile: another origin may have brought
/// it.
fn held_write(writes: &mut BySession, (session, request): Held) -> Option<&mut Pending> {
    let pending = writes.get_mut(&session)?;
    pending.is_held_as(request).then_some(pending)
}

/// Commands without an answer. Writes are known by their session, for a retry may have
/// come another way; reads in the log by their attempt.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    writes: BySession,
    reads: HashMap<RequestId, Pending, Seeded>,
    to_forward: Vec<(RequestId, Command)>,
    merging: Merging,
    /// Committed slots with a command that could not be answered at commit.
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

    /// Whether this write waits here already.
    pub fn waits(&self, write: &Command) -> bool {
        self.writes.contains_key(&(write.client, write.sequence))
    }

    /// Takes a command of a client that is so much work. A write that waits already is answered
    /// where its client asked last, perhaps on a new connection. Where it asked before it hears
    /// so.
    pub fn submit(
        &mut self,
        step: &mut Step<'_>,
        from: ClientHandle,
        (command, work): (Command, usize),
    ) {
        let session = (command.client, command.sequence);
        if command.is_write()
            && let Some(pending) = self.writes.get_mut(&session)
        {
            let before = std::mem::replace(&mut pending.from, from);
            if before != from {
                step.reply(before, Path::Log, asked_again());
            }
            return;
        }
        let is_write = command.is_write();
        let settings = &step.us.settings;
        let many = settings.merges_of_key_max;
        let counts = self.merging.counts_of(&command, work, many);
        let work_max = settings.merge_work_max;
        let may_send = counts.is_none_or(|it| self.merging.has_turn(it, work_max));
        if !may_send && counts.is_some_and(Counts::is_long) {
            step.metrics.writes_held += 1;
            return step.reply(from, Path::Log, too_many_merges());
        }
        let mut pending = Pending {
            from,
            command,
            request: step.name_request(),
            counts,
            sent: None,
        };
        match counts.filter(|_| !may_send) {
            Some(counts) => {
                step.metrics.writes_held += 1;
                let held = (session, pending.request);
                self.merging.hold(counts, from.connection, held);
            }
            None => {
                counts.into_iter().for_each(|it| self.merging.sent(it));
                self.to_forward.push(pending.send(step.now));
            }
        }
        self.merging.count(&pending.command);
        let known = match is_write {
            true => self.writes.insert(session, pending),
            false => self.reads.insert(pending.request, pending),
        };
        assert!(known.is_none(), "a command waits once");
    }

    /// Sends what was held, as far as may be. `work` tells how much work a merge is as far as is
    /// known by now: writes that were on their way may have made its record large.
    fn send_held(&mut self, step: &mut Step<'_>, work: impl Fn(&Command) -> usize) {
        let work_max = step.us.settings.merge_work_max;
        let mut recounted = 0;
        while let Some(next) = self.merging.next(work_max, recounted >= RECOUNTED_MAX) {
            let Some(pending) = held_write(&mut self.writes, next.held) else {
                self.merging.pass_over(&next);
                continue;
            };
            let counts = pending.counts.expect("only merges are held");
            let counts = counts.raised_to(work(&pending.command));
            pending.counts = Some(counts);
            if self.merging.may_go(&next, counts, work_max) {
                self.merging.sent(counts);
                self.to_forward.push(pending.send(step.now));
            } else {
                recounted += 1;
                self.merging.hold(counts, next.connection, next.held);
            }
        }
    }

    /// Gives up the held writes of clients that have gone: they never left.
    pub fn forget_held(&mut self, step: &mut Step<'_>, gone: &Gone) {
        let held = self.writes.iter().filter(|(_, it)| it.sent.is_none());
        let of_gone = held.filter(|(_, it)| gone.has(it.from));
        let mut given_up: Vec<_> = of_gone.map(|(of, it)| (it.request, *of)).collect();
        given_up.sort_unstable();
        for (_, session) in given_up {
            if let Some(pending) = self.take_write(&session) {
                tell_gone(step, pending.from);
            }
        }
    }

    /// Takes what clients asked since the last group, for the leader. Without a leader
    /// it is sent again once one is heard of. `work` is as for [`Writes::submit`].
    pub fn take_forwards(
        &mut self,
        step: &mut Step<'_>,
        work: impl Fn(&Command) -> usize,
    ) -> Vec<(RequestId, Command)> {
        self.send_held(step, work);
        let writes = &self.writes;
        let waits = |(session, request): &Held| {
            let pending = writes.get(session);
            pending.is_some_and(|pending| pending.is_held_as(*request))
        };
        self.merging.tidy(waits);
        std::mem::take(&mut self.to_forward)
    }

    /// Sends commands to the leader.
    pub fn forward(step: &mut Step<'_>, leader: ReplicaId, commands: Vec<(RequestId, Command)>) {
        for commands in chunks(commands, |(_, command)| command_weight(command)) {
            step.send(leader, Message::Forward { commands });
        }
    }

    /// Sends pending commands again that have waited too long.
    pub fn retry(&mut self, step: &mut Step<'_>) {
        let patience = step.us.settings.timing.retransmit * 2;
        let now = step.now;
        let is_due = |pending: &Pending| pending.is_overdue(now, patience);
        self.forward_again(step, RETRIED_MAX, is_due);
    }

    /// Sends all of them, to a new leader.
    pub fn forward_all_again(&mut self, step: &mut Step<'_>) {
        self.forward_again(step, usize::MAX, |pending| pending.sent.is_some());
    }

    /// A read keeps its name: whichever of its attempts is executed first began after
    /// the client asked, and one that waits in a long queue must not be given up for
    /// one that waits behind it.
    fn forward_again(&mut self, step: &mut Step<'_>, most: usize, due: impl Fn(&Pending) -> bool) {
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

    /// The leader knows the answer to a write already: it had been executed.
    pub fn on_answered(&mut self, step: &mut Step<'_>, answers: Vec<(RequestId, Outcome)>) {
        let answered: HashSet<RequestId, Seeded> = answers.iter().map(|(name, _)| *name).collect();
        // Once through all that wait, however many are answered.
        let waiting = self
            .writes
            .iter()
            .map(|(session, it)| (it.request, *session));
        let waiting = waiting.filter(|(request, _)| answered.contains(request));
        let mut sessions: HashMap<RequestId, (u64, u64), Seeded> = waiting.collect();
        for (request, outcome) in answers {
            let session = sessions.remove(&request);
            if let Some(pending) = session.and_then(|session| self.take_write(&session)) {
                step.reply(pending.from, Path::Log, outcome);
            }
        }
    }

    /// Forgets what clients that have gone wanted to read. Each of these reads counts until it has come
    /// through the log. Otherwise a client that asks and leaves, again and again, could make the
    /// leader's queue grow without bound.
    pub fn forget_reads(&mut self, gone: &Gone) {
        let reads = self.reads.values_mut();
        for pending in reads.filter(|pending| gone.has(pending.from)) {
            pending.command = Command::default();
        }
    }

    /// The read for which a stand-in has come through the log, if it was asked here; without an
    /// operation if its client has gone.
    pub fn asked(&self, me: ReplicaId, stand_in: &Proposed) -> Option<&Command> {
        let pending = self.reads.get(&stand_in.request);
        pending
            .filter(|_| stand_in.origin == me)
            .map(|it| &it.command)
    }

    /// Whether a client waits for this command.
    fn awaits(&self, proposed: &Proposed) -> bool {
        let command = &proposed.command;
        match command.is_write() {
            true => self
                .writes
                .contains_key(&(command.client, command.sequence)),
            false => self.reads.contains_key(&proposed.request),
        }
    }

    fn take_write(&mut self, session: &(u64, u64)) -> Option<Pending> {
        let pending = self.writes.remove(session)?;
        let sent = pending.sent.is_some();
        self.merging.settle(&pending.command, pending.counts, sent);
        Some(pending)
    }

    /// The client that waits for this command. A write is the same whichever origin
    /// brought it; an attempt's name means something only at its own.
    fn take(&mut self, me: ReplicaId, proposed: &Proposed) -> Option<ClientHandle> {
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

    /// Answers the client that waits for this command.
    pub fn answer(&mut self, step: &mut Step<'_>, proposed: &Proposed, outcome: Outcome) {
        if let Some(to) = self.take(step.me(), proposed) {
            step.reply(to, Path::Log, outcome);
        }
    }

    /// Slots were committed: they may be answerable.
    pub fn note_committed(&mut self, slots: &[Slot]) {
        self.unanswered.extend(slots);
    }

    /// The first committed slot that was not answered at its commit.
    pub fn first_unanswered(&self) -> Option<Slot> {
        self.unanswered.first().copied()
    }

    /// Nothing more is answered of this slot before it is executed.
    pub fn settle(&mut self, slot: Slot) {
        self.unanswered.remove(&slot);
    }

    /// Answers the blind writes of a committed slot that execution cannot refuse
    /// (hazard 31).
    pub fn answer_at_commit(&mut self, step: &mut Step<'_>, slot: Slot, accepted: &Accepted) {
        let me = step.me();
        for (index, proposed) in accepted.value.commands().iter().enumerate() {
            let sure = proposed.command.is_blind_write() && accepted.sure(index);
            if sure && proposed.origin == me {
                let outcome = Outcome::written(version_of(slot, index));
                self.answer(step, proposed, outcome);
            }
        }
    }

    /// # Panics
    /// If what is held and what was sent do not add up.
    pub fn check(&self) {
        let writes = self.writes.values();
        let waiting = writes.map(|it| (&it.command, it.counts, it.sent.is_some()));
        self.merging.check(waiting);
    }

    /// Number of clients here with a command in this committed slot that needs its execution and so
    /// waits for a slot before it.
    pub fn blocked(&self, me: ReplicaId, accepted: Option<&Accepted>) -> usize {
        let proposed = accepted.map_or(&[][..], |accepted| accepted.value.commands());
        let mine = proposed.iter().filter(|proposed| proposed.origin == me);
        mine.filter(|proposed| self.awaits(proposed)).count()
    }
}
