//! The learner: commits, executes in slot order, and answers this replica's clients.

use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};

use client::wire::command::Op;
use client::wire::{Command, Outcome, Path};
use foldhash::fast::FixedState;
use leases::mutants::{Rule, off};
use leases::{Ballot, ConfigChange, ConfigId, ReplicaId, Slot, Time};

use super::action::{Action, ClientHandle, Event, Record};
use super::kv::version_of;
use super::log::{Accepted, command_weight, weigh};
use super::message::{LogId, LogNews, Message, Proposed, RequestId, Value};
use super::parts::chunks;
use super::{Replica, Role};

/// A command of one of this replica's clients that has not been answered.
#[derive(Clone, Debug)]
pub(super) struct PendingCommand {
    from: ClientHandle,
    command: Command,
    request: RequestId,
    sent: Time,
    attempts: u32,
}

impl Hash for PendingCommand {
    /// When and how often it was sent decides only when it is sent again: not
    /// before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.from, &self.command, self.request).hash(state);
    }
}

/// Commands without an answer. Writes are known by their session, for a retry
/// may have come another way; reads in the log by their attempt.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    writes: HashMap<(u64, u64), PendingCommand, FixedState>,
    reads: HashMap<RequestId, PendingCommand, FixedState>,
    to_forward: Vec<(RequestId, Command)>,
    /// Committed slots with a command that could not be answered at commit.
    unanswered: BTreeSet<Slot>,
}

impl Hash for Pending {
    fn hash<H: Hasher>(&self, state: &mut H) {
        leases::fingerprint::unordered(&self.writes, state);
        leases::fingerprint::unordered(&self.reads, state);
        (&self.to_forward, &self.unanswered).hash(state);
    }
}

impl Pending {
    /// Whether nothing waits.
    pub(super) fn len(&self) -> usize {
        self.writes.len() + self.reads.len()
    }

    /// Whether a client waits for this command.
    fn awaits(&self, proposed: &Proposed) -> bool {
        let command = &proposed.command;
        let session = (command.client, command.sequence);
        match command.is_write() {
            true => self.writes.contains_key(&session),
            false => self.reads.contains_key(&proposed.request),
        }
    }

    /// The client that waits for this command. A write is the same whichever
    /// origin brought it; an attempt's name means something only at its own.
    fn take(&mut self, me: ReplicaId, proposed: &Proposed) -> Option<ClientHandle> {
        let command = &proposed.command;
        let pending = if command.is_write() {
            self.writes.remove(&(command.client, command.sequence))
        } else if proposed.origin == me {
            self.reads.remove(&proposed.request)
        } else {
            None
        };
        pending.map(|pending| pending.from)
    }
}

impl Replica {
    pub(super) fn on_client(
        &mut self,
        now: Time,
        from: ClientHandle,
        command: Command,
        out: &mut Vec<Action>,
    ) {
        if self.configs.strategy().wants_demand() {
            let write = command.is_write();
            for key in command.keys() {
                if write {
                    self.tally.write(key)
                } else {
                    self.tally.read(key)
                }
            }
        }
        match command.op {
            Some(Op::Get(get)) => {
                self.read(now, super::input::ReadFrom::Client(from), get.key, out)
            }
            Some(Op::MultiGet(_) | Op::Scan(_)) => {
                if !self.read_many(now, from, &command, out) {
                    self.counters.log_reads += 1;
                    self.submit(now, from, command);
                }
            }
            _ => self.submit_write(now, from, command, out),
        }
    }

    fn submit_write(
        &mut self,
        now: Time,
        from: ClientHandle,
        command: Command,
        out: &mut Vec<Action>,
    ) {
        use super::session::Admission;
        let (client, sequence) = (command.client, command.sequence);
        let sessions = &self.kv.sessions;
        if let Admission::Done(outcome) = sessions.admit(&command, self.kv.log_time_ms) {
            return out.push(Action::Reply {
                to: from,
                path: Path::Log,
                outcome,
            });
        }
        if let Some(pending) = self.pending.writes.get_mut(&(client, sequence)) {
            pending.from = from; // the client asks again, perhaps on a new connection
            return;
        }
        self.submit(now, from, command);
    }

    fn submit(&mut self, now: Time, from: ClientHandle, command: Command) {
        let request = self.new_request();
        let pending = PendingCommand {
            from,
            command: command.clone(),
            request,
            sent: now,
            attempts: 1,
        };
        if command.is_write() {
            self.pending
                .writes
                .insert((command.client, command.sequence), pending);
        } else {
            self.pending.reads.insert(request, pending);
        }
        self.pending.to_forward.push((request, command));
    }

    /// Sends what clients asked since the last group to the leader.
    pub(super) fn flush_forwards(&mut self, now: Time, out: &mut Vec<Action>) {
        if self.pending.to_forward.is_empty() {
            return;
        }
        let Some(leader) = self.leader() else {
            self.pending.to_forward.clear(); // sent again once a leader is heard of
            return;
        };
        let commands = std::mem::take(&mut self.pending.to_forward);
        if leader == self.me() {
            self.on_forward(now, leader, commands, out);
            self.propose_batches(now);
            return;
        }
        for commands in chunks(commands, |(_, command)| command_weight(command)) {
            self.send(leader, Message::Forward { commands }, out);
        }
    }

    /// Sends pending commands again that have waited too long, or all of them to
    /// a new leader. A read keeps its name: whichever of its attempts is executed
    /// first began after the client asked, and one that waits in a long queue must
    /// not be given up for one that waits behind it.
    pub(super) fn reforward_writes(&mut self, now: Time) {
        let patience = self.settings.timing.retransmit * 2;
        let due = |pending: &PendingCommand| {
            now.since(pending.sent) >= patience * pending.attempts.min(8)
        };
        self.reforward(now, due);
    }

    pub(super) fn reforward_all(&mut self, now: Time) {
        self.reforward(now, |_| true);
    }

    fn reforward(&mut self, now: Time, due: impl Fn(&PendingCommand) -> bool) {
        let mut again: Vec<RequestId> = Vec::new();
        let all = self
            .pending
            .writes
            .values()
            .chain(self.pending.reads.values());
        again.extend(
            all.filter(|pending| due(pending))
                .map(|pending| pending.request),
        );
        if again.is_empty() {
            return;
        }
        again.sort_unstable();
        let mut writes: Vec<_> = self
            .pending
            .writes
            .iter_mut()
            .filter(|(_, p)| due(p))
            .collect();
        writes.sort_unstable_by_key(|(_, pending)| pending.request);
        let mut forward = Vec::with_capacity(again.len());
        for (_, pending) in writes {
            pending.request = super::name_request(self.incarnation, &mut self.next_request);
            pending.sent = now;
            pending.attempts += 1;
            forward.push((pending.request, pending.command.clone()));
        }
        for request in again {
            if let Some(pending) = self.pending.reads.get_mut(&request) {
                pending.sent = now;
                pending.attempts += 1;
                forward.push((request, pending.command.clone()));
            }
        }
        self.counters.reforwards += forward.len() as u64;
        self.pending.to_forward.extend(forward);
    }

    /// The leader knows the answer already: the command had been executed.
    pub(super) fn on_answered(
        &mut self,
        answers: Vec<(RequestId, Outcome)>,
        out: &mut Vec<Action>,
    ) {
        for (request, outcome) in answers {
            let found = self
                .pending
                .writes
                .iter()
                .find(|(_, p)| p.request == request);
            let Some(session) = found.map(|(session, _)| *session) else {
                continue;
            };
            if let Some(pending) = self.pending.writes.remove(&session) {
                out.push(Action::Reply {
                    to: pending.from,
                    path: Path::Log,
                    outcome,
                });
            }
        }
    }

    /// Applies the commit rule to a slot that was accepted or voted for.
    pub(super) fn try_commit(&mut self, now: Time, log: LogId, slot: Slot, out: &mut Vec<Action>) {
        if self.is_chosen(log, slot) {
            self.commit_slots(now, log, &[slot], out);
        }
    }

    /// Whether the votes say so, and it is not known yet.
    pub(super) fn is_chosen(&self, log: LogId, slot: Slot) -> bool {
        let cell = self.logs[log.index()].get(slot);
        // A learner that has not received the value at the votes' ballot commits
        // nothing (hazard 20).
        let Some((cell, accepted)) = cell.and_then(|cell| Some((cell, cell.accepted.as_ref()?)))
        else {
            return false;
        };
        let at_its_ballot = accepted.ballot == cell.votes.ballot() || off(Rule::H20Value);
        !cell.committed && at_its_ballot && cell.votes.commit(self.settings.n)
    }

    /// The values accepted in `slots` are the chosen ones.
    pub(super) fn commit_slots(
        &mut self,
        now: Time,
        log: LogId,
        slots: &[Slot],
        out: &mut Vec<Action>,
    ) {
        if slots.is_empty() {
            return;
        }
        for slot in slots {
            self.note_commit(log, *slot);
        }
        match log {
            LogId::Configs => self.execute_configs(now, out),
            LogId::Commands => {
                self.pending.unanswered.extend(slots);
                self.answer_committed(now, out);
                self.execute_commands(now, out);
                slots.iter().for_each(|slot| self.count_blocked(*slot));
            }
        }
        self.keep_windows_open(now);
    }

    fn note_commit(&mut self, log: LogId, slot: Slot) {
        let Some(cell) = self.log(log).get_mut(slot) else {
            return;
        };
        assert!(
            cell.accepted.is_some(),
            "slot {slot:?} is committed without a value"
        );
        cell.committed = true;
        self.log(log).commit(slot);
        if let Some(below) = self.log(log).forget_log_starts() {
            self.persister
                .record(Record::ForgetLogStarts { log, below });
        }
        if let Role::Leader(leadership) = &mut self.role {
            leadership.news_due = true;
            if log == LogId::Commands {
                leadership.close(slot);
            }
        }
    }

    /// Counts clients here whose command is committed in `slot`, but needs its
    /// execution and so waits for a slot before it.
    fn count_blocked(&mut self, slot: Slot) {
        let commands = self.commands();
        if commands.executed >= slot {
            return;
        }
        let accepted = commands.get(slot).and_then(|cell| cell.accepted.as_ref());
        let proposed = accepted.map_or(&[][..], |accepted| accepted.value.commands());
        let me = self.me();
        let waits = |p: &&Proposed| p.origin == me && self.pending.awaits(p);
        let blocked = proposed.iter().filter(waits).count() as u64;
        self.counters.blocked_prefix += blocked;
    }

    /// Takes a leader's news of commits. A commit point of ballot b commits, here,
    /// only slots accepted *at b*; others are fetched (hazard 28).
    pub(super) fn learn_news(
        &mut self,
        now: Time,
        log: LogId,
        ballot: Ballot,
        news: &LogNews,
        out: &mut Vec<Action>,
    ) {
        let paxos = &mut self.logs[log.index()];
        if paxos.adopted.0 != ballot {
            return;
        }
        let heard_more = news.commit_point > paxos.heard_commit;
        paxos.heard_commit = paxos.heard_commit.max(news.commit_point);
        let whole = (Slot(1), news.commit_point);
        let (mut chosen, mut behind) = (Vec::new(), false);
        let paxos = &self.logs[log.index()];
        for (first, last) in std::iter::once(&whole).chain(&news.above) {
            behind |= paxos.accepted_at(ballot, *first, *last, &mut chosen);
        }
        self.commit_slots(now, log, &chosen, out);
        if behind {
            self.want_fetch(now);
        }
        if log == LogId::Configs {
            self.note_config_lag(now);
        }
        if heard_more && chosen.is_empty() && log == LogId::Commands {
            self.answer_committed(now, out);
        }
    }

    /// Whether blind writes in this committed slot may be answered at commit (§1),
    /// those that are `sure`.
    fn answerable(&self, slot: Slot, accepted: &Accepted) -> bool {
        let commands = self.commands();
        let (ballot, start) = commands.adopted;
        accepted.ballot == ballot
            && slot > start
            // `last_multi` knows only its own ballot: all before it must be committed (hazard 38).
            && (commands.all_committed_to(start, ballot) || off(Rule::H38LogStart))
            // No multi-key command before it may still be open (hazard 34).
            && (commands.all_committed_to(accepted.last_multi, ballot) || off(Rule::H34LastMulti))
    }

    /// Answers what can be answered at commit; the rest waits for its execution.
    fn answer_committed(&mut self, now: Time, out: &mut Vec<Action>) {
        let executed = self.commands().executed;
        let (ballot, start) = self.commands().adopted;
        while let Some(slot) = self.pending.unanswered.first().copied() {
            let cell = self.logs[0].get(slot);
            let accepted = cell.and_then(|cell| cell.accepted.as_ref());
            if let Some(accepted) = accepted.filter(|_| slot > executed) {
                if self.answerable(slot, accepted) {
                    let accepted = accepted.clone();
                    self.answer_slot(slot, &accepted, out);
                    self.release_by_commit(now, slot, &accepted.value, out);
                } else if accepted.ballot == ballot && slot > start {
                    // It waits for its `last_multi`, which never falls: so do all
                    // behind it, and there may be thousands.
                    return;
                }
                // Else only its execution answers: another ballot wrote it, a leader
                // has recovered it, or it was fetched.
            }
            self.pending.unanswered.remove(&slot);
        }
    }

    fn answer_slot(&mut self, slot: Slot, accepted: &Accepted, out: &mut Vec<Action>) {
        let me = self.me();
        for (index, proposed) in accepted.value.commands().iter().enumerate() {
            // Execution cannot refuse what is sure (hazard 31).
            let now = proposed.command.is_blind_write() && accepted.sure(index);
            if proposed.origin == me
                && now
                && let Some(to) = self.pending.take(me, proposed)
            {
                let outcome = Outcome::written(version_of(slot, index));
                out.push(Action::Reply {
                    to,
                    path: Path::Log,
                    outcome,
                });
            }
        }
    }

    /// The value that a committed, unexecuted slot gives to a read of `key`
    /// (protocol §3.3): its last command on the key, if that is an answerable
    /// blind write.
    pub(super) fn value_at_commit(&self, slot: Slot, key: &[u8]) -> Option<Outcome> {
        let cell = self.commands().get(slot).filter(|cell| cell.committed)?;
        let accepted = cell.accepted.as_ref()?;
        let mut commands = accepted.value.commands().iter().enumerate().rev();
        let (index, last) =
            commands.find(|(_, p)| p.command.is_write() && p.command.keys().any(|k| k == key))?;
        if !self.answerable(slot, accepted) || !accepted.sure(index) {
            return None;
        }
        let version = version_of(slot, index);
        match &last.command.op {
            Some(Op::Put(put)) => Some(Outcome::value(put.value.clone(), version)),
            Some(Op::Delete(_)) => Some(Outcome::missing()),
            _ => None,
        }
    }

    fn execute_commands(&mut self, now: Time, out: &mut Vec<Action>) {
        let me = self.me();
        while self.commands().executed < self.commands().commit_point {
            let slot = self.commands().executed.next();
            let value = self.committed_value(LogId::Commands, slot);
            if let Value::Commands(batch) = &value {
                self.kv.begin(batch.log_time_ms);
            }
            for (index, proposed) in value.commands().iter().enumerate() {
                let outcome = self.kv.execute(slot, index, &proposed.command);
                if let Some(to) = self.pending.take(me, proposed) {
                    out.push(Action::Reply {
                        to,
                        path: Path::Log,
                        outcome,
                    });
                }
            }
            self.forget_in_flight(&value);
            self.pending.unanswered.remove(&slot);
            self.logs[0].executed(slot, weigh(&value));
            let reader = &mut self.reader;
            self.marks
                .unmark(slot, &value, |key| reader.note_executed(key));
        }
        self.release_executed(now, out);
    }

    fn execute_configs(&mut self, now: Time, out: &mut Vec<Action>) {
        let configs = LogId::Configs.index();
        while self.logs[configs].executed < self.logs[configs].commit_point {
            let slot = self.logs[configs].executed.next();
            let value = self.committed_value(LogId::Configs, slot);
            let none = ConfigChange::default();
            let change = match &value {
                Value::Config(change) => change,
                _ => &none,
            };
            self.configured |= matches!(value, Value::Config(_));
            self.configs.apply(ConfigId(slot.0), change);
            self.logs[configs].executed(slot, weigh(&value));
            self.announce(
                Event::Configured {
                    id: ConfigId(slot.0),
                    keys: change.keys.iter().map(|(_, keys)| keys.len()).sum(),
                    strategy: self.configs.strategy().name(),
                    excluded: self.configs.excluded(),
                },
                out,
            );
        }
        self.note_config_lag(now);
    }

    fn committed_value(&self, log: LogId, slot: Slot) -> Value {
        let cell = self.logs[log.index()].get(slot);
        let accepted = cell
            .filter(|cell| cell.committed)
            .and_then(|cell| cell.accepted.as_ref());
        accepted
            .expect("a committed slot has its value")
            .value
            .clone()
    }
}
