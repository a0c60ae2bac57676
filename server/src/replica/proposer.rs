//! The proposer: what a leader puts into the log (§2.1, §3.9).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use client::wire::command::Op;
use client::wire::{Command, Outcome};
use foldhash::fast::FixedState;
use leases::mutants::{Rule, off};
use leases::{Ballot, LeaseParams, ReplicaId, ReplicaSet, Slot, StrategySpec, Time};

use super::action::Action;
use super::log::command_weight;
use super::message::{Accept, Batch, LogId, Message, Proposed, RequestId, Value};
use super::parts::{Room, chunks, outcome_weight};
use super::persist::After;
use super::plausible::NUMBER_MAX;
use super::session::Admission;
use super::{Replica, Role};

/// No class may have more slots in flight than this for each that is still free.
const OPEN_PER_FREE: usize = 3;
/// Accepts sent again in one go.
const RETRANSMIT_MAX: usize = 256;

/// Commands of one client that are proposed and not executed.
#[derive(Clone, Debug, Default, Hash)]
struct InFlight {
    sequences: Vec<u64>,
    /// The highest low-water mark among them: a lower sequence may be refused.
    acked_below: u64,
}

/// What a leader keeps while it leads.
#[derive(Clone, Debug)]
pub(super) struct Leadership {
    pub(super) ballot: Ballot,
    pub(super) since: Time,
    pub(super) next: [Slot; 2],
    queues: BTreeMap<ReplicaSet, VecDeque<Proposed>>,
    /// The class of the newest batch: the next in turn follows it.
    served: ReplicaSet,
    /// Classes of uncommitted slots, and how many slots each has.
    class_of: BTreeMap<Slot, ReplicaSet>,
    open: BTreeMap<ReplicaSet, usize>,
    in_flight: HashMap<u64, InFlight, FixedState>,
    /// Reads that are queued or proposed, by who answers them and the attempt's name.
    reads: BTreeSet<(ReplicaId, RequestId)>,
    last_multi: Slot,
    log_time_base_ms: u64,
    /// Commits that peers have not been told of.
    pub(super) news_due: bool,
    pub(super) probe: u64,
    /// Per replica, the newest probe it answered.
    pub(super) probe_acks: Vec<u64>,
    /// A read waits for a probe that is not sent yet.
    pub(super) probe_due: bool,
    /// Handing over: to whom, and when to give up.
    pub(super) transfer: Option<(ReplicaId, Time)>,
    /// A transfer has failed: none before this.
    pub(super) no_transfer_before: Time,
    /// The operator wants another strategy and durations.
    pub(super) switch: Option<(StrategySpec, LeaseParams)>,
    /// The other replicas, nearest first.
    pub(super) nearest: Vec<ReplicaId>,
}

impl Hash for Leadership {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.ballot, self.since, self.next, &self.queues).hash(state);
        (self.served, &self.class_of, &self.open).hash(state);
        leases::fingerprint::unordered(&self.in_flight, state);
        self.reads.hash(state);
        (self.last_multi, self.log_time_base_ms, self.news_due).hash(state);
        (self.probe, &self.probe_acks, self.probe_due).hash(state);
        (self.transfer, self.no_transfer_before, &self.switch).hash(state);
        self.nearest.hash(state);
    }
}

impl Leadership {
    pub(super) fn new(ballot: Ballot, n: usize, now: Time, log_time_base_ms: u64) -> Leadership {
        Leadership {
            ballot,
            since: now,
            next: [Slot(1); 2],
            queues: BTreeMap::new(),
            served: ReplicaSet::EMPTY,
            class_of: BTreeMap::new(),
            open: BTreeMap::new(),
            in_flight: HashMap::with_hasher(FixedState::default()),
            reads: BTreeSet::new(),
            last_multi: Slot::ZERO,
            log_time_base_ms,
            news_due: false,
            probe: 0,
            probe_acks: vec![0; n],
            probe_due: false,
            transfer: None,
            no_transfer_before: now,
            switch: None,
            nearest: Vec::new(),
        }
    }

    fn log_time_ms(&self, now: Time) -> u64 {
        let led_ms = now.since(self.since).as_millis() as u64;
        (self.log_time_base_ms + led_ms).min(NUMBER_MAX)
    }

    fn knows(&self, client: u64, sequence: u64) -> bool {
        let in_flight = self.in_flight.get(&client);
        in_flight.is_some_and(|in_flight| in_flight.sequences.contains(&sequence))
    }

    fn note(&mut self, proposed: &Proposed) {
        let command = &proposed.command;
        if !command.is_write() {
            self.reads.insert((proposed.origin, proposed.request));
        } else {
            let in_flight = self.in_flight.entry(command.client).or_default();
            in_flight.sequences.push(command.sequence);
            in_flight.acked_below = in_flight.acked_below.max(command.acked_below);
        }
    }

    fn forget(&mut self, proposed: &Proposed) {
        let command = &proposed.command;
        if !command.is_write() {
            self.reads.remove(&(proposed.origin, proposed.request));
        } else if let Some(in_flight) = self.in_flight.get_mut(&command.client) {
            in_flight
                .sequences
                .retain(|sequence| *sequence != command.sequence);
            if in_flight.sequences.is_empty() {
                self.in_flight.remove(&command.client);
            }
        }
    }

    /// The class whose turn it is: the first after the one served last that has
    /// fewer than `open_max` slots open. So a class whose holder is dead fills
    /// neither the queue before the others nor all the slots in flight.
    fn next_class(&self, open_max: usize) -> Option<ReplicaSet> {
        let may = |class: &&ReplicaSet| self.open.get(class).copied().unwrap_or(0) < open_max;
        let after = (Bound::Excluded(self.served), Bound::Unbounded);
        let later = self.queues.range(after).map(|(class, _)| class).find(may);
        later.or_else(|| self.queues.keys().find(may)).copied()
    }

    /// A slot is committed: its class has one open slot less.
    pub(super) fn close(&mut self, slot: Slot) {
        if let Some(class) = self.class_of.remove(&slot)
            && let Some(open) = self.open.get_mut(&class)
        {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&class);
            }
        }
    }
}

/// Whether a command may touch several keys.
fn is_multi(command: &Command) -> bool {
    matches!(
        command.op,
        Some(Op::MultiPut(_) | Op::MultiGet(_) | Op::Scan(_))
    )
}

impl Replica {
    /// Takes commands from their origin (this replica included).
    pub(super) fn on_forward(
        &mut self,
        now: Time,
        origin: ReplicaId,
        commands: Vec<(RequestId, Command)>,
        out: &mut Vec<Action>,
    ) {
        let _ = now;
        if self.leads().is_none() {
            return; // the origin asks whoever leads
        }
        let mut answers: Vec<(RequestId, Outcome)> = Vec::new();
        for (request, command) in commands {
            if command.op.is_none() {
                self.counters.refused_messages += 1;
                continue;
            }
            if command.is_write() {
                let (client, sequence) = (command.client, command.sequence);
                if self.leads().is_some_and(|l| l.knows(client, sequence)) {
                    continue; // answered by its execution
                }
                let known = self.kv.sessions.admit(&command, self.kv.log_time_ms);
                if let Admission::Done(outcome) = known {
                    answers.push((request, outcome));
                    continue;
                }
            } else if self
                .leads()
                .is_some_and(|l| l.reads.contains(&(origin, request)))
            {
                // Asked again while it waits: queued once more, it would make the queue
                // longer, and so be asked again.
                continue;
            }
            self.enqueue(Proposed {
                origin,
                request,
                command,
            });
        }
        if answers.is_empty() {
            return;
        }
        if origin == self.me() {
            self.on_answered(answers, out);
        } else {
            for answers in chunks(answers, |(_, outcome)| outcome_weight(outcome)) {
                self.send(origin, Message::Answered { answers }, out);
            }
        }
    }

    /// Queues by class: the holders of the command's keys (§3.9), so that a write
    /// never waits for the holders of another's keys.
    fn enqueue(&mut self, proposed: Proposed) {
        let mut class = ReplicaSet::EMPTY;
        if proposed.command.is_write() {
            for key in proposed.command.keys() {
                class = class.union(self.configs.holders(key));
            }
        }
        if let Role::Leader(leadership) = &mut self.role {
            leadership.note(&proposed);
            leadership
                .queues
                .entry(class)
                .or_default()
                .push_back(proposed);
        }
    }

    /// Proposes what is queued, as far as the slots in flight allow. Slots are
    /// bounded by how many are uncommitted, so a blocked one stops nobody.
    pub(super) fn propose_batches(&mut self, now: Time) {
        loop {
            let Role::Leader(leadership) = &mut self.role else {
                return;
            };
            if leadership.transfer.is_some() || !self.storage_writable {
                return;
            }
            let commands = &self.logs[0];
            if !commands.may_propose(leadership.next[0]) && !off(Rule::H79Room) {
                return; // until a checkpoint moves the window
            }
            let proposed = leadership.next[0].0 - 1;
            let in_flight = proposed - commands.commit_point.0 - commands.above.len();
            let idle = leadership.queues.is_empty();
            if idle || in_flight >= self.settings.in_flight_max as u64 {
                return;
            }
            let free = self.settings.in_flight_max - in_flight as usize;
            let Some(class) = leadership.next_class(free * OPEN_PER_FREE) else {
                return;
            };
            let batch = leadership.next_batch(class, self.settings.batch_max, now);
            self.counters.batches += 1;
            self.counters.batched_commands += batch.commands.len() as u64;
            self.propose(now, LogId::Commands, Value::Commands(Arc::new(batch)));
        }
    }

    /// Puts a value into the next slot of a log.
    pub(super) fn propose(&mut self, now: Time, log: LogId, value: Value) {
        let Role::Leader(leadership) = &mut self.role else {
            return;
        };
        let slot = leadership.next[log.index()];
        leadership.next[log.index()] = slot.next();
        if value
            .commands()
            .iter()
            .any(|proposed| is_multi(&proposed.command))
        {
            leadership.last_multi = slot;
        }
        let (ballot, last_multi) = (leadership.ballot, leadership.last_multi);
        let sure = self.sure(&value);
        let mut none = Vec::new();
        self.store(now, log, slot, ballot, value, last_multi, sure, &mut none);
        debug_assert!(none.is_empty(), "a fresh slot replaces no value");
        self.persister.after(After::Propose { log, slot, ballot });
    }

    /// A bit for each blind write that execution cannot refuse (§1): its session
    /// outlives the batch, and neither the executed sessions nor any slot of the
    /// log hold the same sequence or a low-water mark above it.
    fn sure(&mut self, value: &Value) -> Arc<[u64]> {
        let Value::Commands(batch) = value else {
            return Arc::from([]);
        };
        let mut bits = vec![0u64; batch.commands.len().div_ceil(64)];
        let Role::Leader(leadership) = &mut self.role else {
            return bits.into();
        };
        for (index, proposed) in batch.commands.iter().enumerate() {
            let command = &proposed.command;
            if !command.is_blind_write() {
                continue;
            }
            let sessions = &self.kv.sessions;
            let fresh = sessions.admit(command, batch.log_time_ms) == Admission::Fresh;
            let Some(in_flight) = leadership.in_flight.get_mut(&command.client) else {
                continue;
            };
            // Not by what a slot in flight would leave behind: that slot may yet turn
            // out empty, and what was answered already would be refused.
            let lives = match sessions.knows(command.client) {
                true => sessions.outlives(command.client, batch.log_time_ms),
                false => sessions.may_open(command, batch.log_time_ms),
            };
            let once = in_flight
                .sequences
                .iter()
                .filter(|s| **s == command.sequence)
                .count()
                == 1;
            let in_order = in_flight.acked_below <= command.sequence;
            if lives && fresh && once && in_order || off(Rule::H31Sure) {
                bits[index / 64] |= 1 << (index % 64);
            }
        }
        bits.into()
    }

    /// A slot was executed: its commands are no longer in flight.
    pub(super) fn forget_in_flight(&mut self, value: &Value) {
        if let Role::Leader(leadership) = &mut self.role {
            for proposed in value.commands() {
                leadership.forget(proposed);
            }
        }
    }

    /// Remembers commands that were in the log before this replica led.
    pub(super) fn note_in_flight(&mut self, value: &Value) {
        if let Role::Leader(leadership) = &mut self.role {
            for proposed in value.commands() {
                leadership.note(proposed);
            }
        }
    }

    /// The leader's own acceptances are durable: the Accept that says so is its vote.
    pub(super) fn send_durable_proposals(
        &mut self,
        now: Time,
        afters: &[After],
        out: &mut Vec<Action>,
    ) {
        let Some(ballot) = self.leads().map(|leadership| leadership.ballot) else {
            return;
        };
        let proposals = afters.iter().filter_map(|after| match after {
            After::Propose {
                log,
                slot,
                ballot: at,
            } if *at == ballot => Some((*log, *slot)),
            _ => None,
        });
        let proposals: Vec<(LogId, Slot)> = proposals.collect();
        if proposals.is_empty() {
            return;
        }
        let live = self.grantor.live(now);
        for (log, slot) in &proposals {
            let me = self.me();
            let Some(cell) = self.logs[log.index()].get_mut(*slot) else {
                continue;
            };
            let Some(accepted) = cell.accepted.as_mut().filter(|a| a.ballot == ballot) else {
                continue;
            };
            accepted.durable = true;
            accepted.sent = now;
            // Hazard 9: the leader is a grantor too, and its Accept carries its tag.
            let tag = match off(Rule::H09LeaderTag) {
                true => ReplicaSet::EMPTY,
                false => super::leasing::vote_tag(&live, &self.configs, accepted),
            };
            cell.votes.add(me, ballot, tag);
            if let Some(message) = self.accept_message(*log, *slot, tag) {
                self.broadcast(&Message::Accept(message), out);
            }
            if let Role::Leader(leadership) = &mut self.role {
                leadership.news_due = false; // the Accept carried it
            }
        }
        for (log, slot) in proposals {
            self.try_commit(now, log, slot, out);
        }
    }

    fn accept_message(&self, log: LogId, slot: Slot, tag: ReplicaSet) -> Option<Accept> {
        let paxos = &self.logs[log.index()];
        let accepted = paxos.get(slot)?.accepted.as_ref()?;
        Some(Accept {
            ballot: accepted.ballot,
            log,
            slot,
            value: accepted.value.clone(),
            tag,
            news: paxos.news(),
            last_multi: accepted.last_multi,
            sure: accepted.sure.clone(),
        })
    }

    /// Sends Accepts again to those whose vote is missing, and to those whose
    /// every vote demands somebody who has not accepted: the grant behind it may
    /// have lapsed, and the vote that said so been lost.
    pub(super) fn retransmit_proposals(&mut self, now: Time, out: &mut Vec<Action>) {
        let Some(ballot) = self.leads().map(|leadership| leadership.ballot) else {
            return;
        };
        let patience = self.settings.timing.retransmit;
        let live = self.grantor.live(now);
        for log in LogId::ALL {
            let paxos = &self.logs[log.index()];
            let overdue = paxos.uncommitted().filter(|(_, accepted)| {
                accepted.ballot == ballot
                    && accepted.durable
                    && now.since(accepted.sent) >= patience
            });
            let slots: Vec<Slot> = overdue.map(|(slot, _)| slot).take(RETRANSMIT_MAX).collect();
            for slot in slots {
                self.retransmit_slot(now, log, slot, &live, out);
            }
        }
    }

    fn retransmit_slot(
        &mut self,
        now: Time,
        log: LogId,
        slot: Slot,
        live: &leases::promise::Live,
        out: &mut Vec<Action>,
    ) {
        let Some(cell) = self.logs[log.index()].get_mut(slot) else {
            return;
        };
        let settled = cell.votes.settled();
        let Some(accepted) = cell.accepted.as_mut() else {
            return;
        };
        accepted.sent = now;
        let tag = match log {
            LogId::Commands if !off(Rule::H09LeaderTag) => {
                super::leasing::tag_of(live, &self.configs, &accepted.value)
            }
            _ => ReplicaSet::EMPTY,
        };
        let Some(message) = self.accept_message(log, slot, tag) else {
            return;
        };
        for to in self.others().filter(|to| !settled.contains(*to)) {
            self.counters.retransmits += 1;
            self.send(to, Message::Accept(message.clone()), out);
        }
    }
}

impl Leadership {
    /// Takes a batch of this class for the next slot.
    fn next_batch(&mut self, class: ReplicaSet, commands_max: usize, now: Time) -> Batch {
        self.served = class;
        self.class_of.insert(self.next[0], class);
        *self.open.entry(class).or_default() += 1;
        let log_time_ms = self.log_time_ms(now);
        let mut commands = Vec::new();
        if let Some(queue) = self.queues.get_mut(&class) {
            let mut room = Room::default();
            let fits = |proposed: &&Proposed| room.takes(command_weight(&proposed.command));
            let fitting = queue.iter().take(commands_max).take_while(fits).count();
            // A single command may be as large as a frame; it then goes alone.
            commands = queue.drain(..fitting.max(1).min(queue.len())).collect();
            if queue.is_empty() {
                self.queues.remove(&class);
            }
        }
        Batch {
            log_time_ms,
            commands,
            ..Batch::default()
        }
    }
}

impl Replica {
    /// Proposes in the next slot a value that Phase 1 found, over whatever is there.
    pub(super) fn propose_recovered(
        &mut self,
        now: Time,
        log: LogId,
        value: Value,
        out: &mut Vec<Action>,
    ) {
        let Role::Leader(leadership) = &mut self.role else {
            return;
        };
        let slot = leadership.next[log.index()];
        leadership.next[log.index()] = slot.next();
        let ballot = leadership.ballot;
        // Never sure and at or below log_start: answered after execution.
        self.store(
            now,
            log,
            slot,
            ballot,
            value,
            Slot::ZERO,
            Arc::from([]),
            out,
        );
        self.persister.after(After::Propose { log, slot, ballot });
    }
}

#[cfg(test)]
mod tests {
    use super::super::parts::{ITEM_OVERHEAD, PART_BYTES};
    use super::*;

    #[test]
    fn a_batch_takes_what_fits_and_one_command_at_least() {
        let class = ReplicaSet::EMPTY;
        let mut leadership = Leadership::new(Ballot::ZERO, 3, Time::ZERO, 0);
        let mut batches = |bytes: &[usize], commands_max| {
            let put = |(sequence, bytes): (usize, &usize)| Proposed {
                origin: ReplicaId(0),
                request: RequestId(sequence as u64),
                command: Command::session(1, sequence as u64, 1, Op::put("", vec![0; *bytes])),
            };
            let queued = bytes.iter().enumerate().map(put).collect();
            leadership.queues.insert(class, queued);
            let mut sizes = Vec::new();
            while leadership.queues.contains_key(&class) {
                let batch = leadership.next_batch(class, commands_max, Time::ZERO);
                let values = batch.commands.iter().map(|p| command_weight(&p.command));
                sizes.push(values.collect::<Vec<_>>());
            }
            sizes
        };
        let (half, most) = (PART_BYTES / 2, PART_BYTES);
        let fitting = half - ITEM_OVERHEAD;
        assert_eq!(batches(&[1, 2, 3], 2), [vec![1, 2], vec![3]]);
        assert_eq!(batches(&[1, 2], 0), [[1], [2]]);
        let all = [fitting, fitting, 2 * most, 1, half, half];
        let expected: [&[usize]; 4] = [&all[..2], &all[2..3], &all[3..5], &all[5..]];
        assert_eq!(batches(&all, 9), expected);
    }
}
