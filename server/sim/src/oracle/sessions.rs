//! All copies of a write have the same (client, sequence number), and get the same result (oracle
//! 11; protocol §1 "Sessions"). Every answer of a replica to a write, or to a read that went
//! through the log, equals the result of the state machine in `reference`. No command takes effect
//! twice.

use std::collections::{BTreeMap, HashMap, VecDeque};

use foldhash::fast::FixedState;
use leasehold_leases::Slot;
use leasehold_wire::command::Op;
use leasehold_wire::op_result::Result as OpAnswer;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Command, ErrorCode, Outcome, TxnResult, Version};

use super::reference::{Effect, ReferenceMachine, may_be_repeated};
use super::{ChosenValues, Verdict, ensure, id};
use leasehold_replica::action::ClientHandle;
use leasehold_replica::message::{LogId, Proposal, Value};
use leasehold_replica::placeholder;
use leasehold_replica::settings::SessionLimits;
use leasehold_replica::unavailable::is_no_room;

pub(super) const NAME: &str = "sessions";

/// Number of results of each client that are remembered after the client has acknowledged them.
/// Acknowledged results are still needed, because a lagging replica may answer with them.
const RESULTS_MAX: usize = 256;
/// Maximum number of commands in flight. No run reaches this number.
const IN_FLIGHT_MAX: usize = 10_000;

/// Request for which a client waits for an answer.
#[derive(Clone, Debug)]
enum PendingRequest {
    /// A write: (client, sequence number).
    Write(u64, u64),
    Read(Op),
}

/// Results of all copies of one write that the log contains so far. The write is identified by
/// (client, sequence number).
#[derive(Clone, Debug, Default)]
struct SequenceState {
    result: Option<Outcome>,
    /// Whether some copy of the write was refused.
    refused: bool,
    /// Whether some copy of the write was refused because there was no room for a new session.
    no_room: bool,
    /// Whether the write had a result that the oracle has forgotten, because the result is old.
    forgotten: bool,
}

#[derive(Clone, Debug, Default)]
struct ClientResults {
    /// Ranges of the sequence numbers of writes that took effect. The key is the first number of a
    /// range, and the value is the last number.
    executed: BTreeMap<u64, u64>,
    states: HashMap<u64, SequenceState, FixedState>,
    /// Sequence numbers in `states`, in the order in which they were first seen.
    seen: VecDeque<u64>,
    /// Answers that were given to writes before these writes were executed: (sequence number of the
    /// write, answer).
    early_answers: Vec<(u64, Outcome)>,
}

/// A read that went through the log.
#[derive(Clone, Debug)]
struct LoggedRead {
    slot: Slot,
    op: Op,
    outcome: Option<Outcome>,
}

/// Oracle that judges sessions: all copies of a write must get the same result. Copies have the
/// same (client, sequence number).
#[derive(Debug)]
pub struct SessionOracle {
    reference: ReferenceMachine,
    executed: Slot,
    clients: HashMap<u64, ClientResults, FixedState>,
    /// Unanswered requests that each replica has received.
    pending: Vec<HashMap<ClientHandle, PendingRequest, FixedState>>,
    /// Logged reads of each replica's clients that the replica has not executed yet.
    reads: Vec<VecDeque<LoggedRead>>,
    /// Number of times that a copy of each write has reached a replica.
    requests: HashMap<(u64, u64), u32, FixedState>,
    /// Number of answers compared.
    pub checks: u64,
}

impl SessionOracle {
    pub(super) fn new(n: usize, limits: &SessionLimits) -> SessionOracle {
        SessionOracle {
            reference: ReferenceMachine::new(limits),
            executed: Slot::ZERO,
            clients: HashMap::default(),
            pending: vec![HashMap::default(); n],
            reads: vec![VecDeque::new(); n],
            requests: HashMap::default(),
            checks: 0,
        }
    }

    /// Records a client's command that has reached `node`.
    pub(super) fn requested(&mut self, node: usize, from: ClientHandle, command: &Command) {
        let request = match &command.op {
            Some(Op::Get(_)) | None => return, // never in the log
            Some(op) if op.is_write() => {
                let (client, sequence) = (command.client, command.sequence);
                *self.requests.entry((client, sequence)).or_default() += 1;
                PendingRequest::Write(client, sequence)
            }
            Some(op) => PendingRequest::Read(op.clone()),
        };
        self.pending[node].insert(from, request);
    }

    /// Forgets a request that `node` has answered under a lease.
    pub(super) fn forget_request(&mut self, node: usize, to: ClientHandle) {
        self.pending[node].remove(&to);
    }

    /// Handles the end of `node`, which will not answer its pending requests.
    pub(super) fn crashed(&mut self, node: usize) {
        self.pending[node].clear();
    }

    /// Executes newly chosen slots in order, up to the first slot that is not known to be chosen.
    pub(super) fn advance(&mut self, chosen: &ChosenValues) -> Verdict {
        while let Some(value) = chosen.value(LogId::Commands, self.executed.next()) {
            self.executed = self.executed.next();
            self.execute(value)?;
        }
        Ok(())
    }

    fn execute(&mut self, value: &Value) -> Verdict {
        let slot = self.executed;
        if let Value::Commands(batch) = value {
            self.reference.begin(batch.log_time_ms, batch.sessions_max);
        }
        for (index, proposed) in value.commands().iter().enumerate() {
            let version = Version {
                slot: slot.0,
                index: index as u32,
            };
            match &proposed.command.op {
                Some(op) if !op.is_write() => self.read(slot, proposed),
                _ => self.write(version, &proposed.command)?,
            }
        }
        Ok(())
    }

    /// Records the results of reads for which the log contains a placeholder. The placeholder
    /// represents all waiting reads of the same kind at its origin.
    fn read(&mut self, slot: Slot, proposed: &Proposal) {
        let node = proposed.origin.index();
        let Some(requests) = self.pending.get(node) else {
            return;
        };
        for request in requests.values() {
            let PendingRequest::Read(op) = request else {
                continue;
            };
            if placeholder(&op.clone().into()) == proposed.command {
                let (op, outcome) = (op.clone(), self.reference.read(op));
                self.reads[node].push_back(LoggedRead { slot, op, outcome });
            }
        }
    }

    fn write(&mut self, version: Version, command: &Command) -> Verdict {
        let effect = self.reference.write(version, command);
        let client = self.clients.entry(command.client).or_default();
        let sequence = command.sequence;
        let known = client.state_of(sequence);
        match effect {
            Effect::Executed(outcome) => {
                known.result = Some(outcome);
                let refused = known.refused;
                ensure!(
                    NAME,
                    !refused,
                    "({}, {sequence}) was refused, and takes effect later, at {version:?}",
                    command.client
                );
                let once = client.take_effect(sequence);
                ensure!(
                    NAME,
                    once,
                    "({}, {sequence}) takes effect a second time, at {version:?}: its session \
                     has ended and was opened again",
                    command.client
                );
            }
            Effect::Repeated(outcome) => {
                debug_assert!(known.result.is_none() || known.result.as_ref() == Some(&outcome));
                known.result = Some(outcome);
            }
            Effect::Refused => known.refused = true,
            Effect::NoRoom => known.no_room = true,
        }
        client.compare_early_answer(command.client, sequence)
    }

    /// Judges an answer of `node` to a client.
    pub(super) fn replied(
        &mut self,
        chosen: &ChosenValues,
        node: usize,
        to: ClientHandle,
        outcome: &Outcome,
    ) -> Verdict {
        match self.pending[node].remove(&to) {
            Some(PendingRequest::Write(client, sequence)) => {
                self.certain(chosen, node, outcome)?;
                self.wrote(node, client, sequence, outcome)
            }
            Some(PendingRequest::Read(op)) => self.has_read(node, &op, outcome),
            None => Ok(()),
        }
    }

    /// Checks a write that is answered at commit. It must be certain that the write will be
    /// executed, whatever value is chosen in each earlier open slot (hazard 31). An open slot may
    /// turn out empty, and an empty slot opens no session.
    fn certain(&self, chosen: &ChosenValues, node: usize, outcome: &Outcome) -> Verdict {
        let Some(Answer::Written(version)) = &outcome.result else {
            return Ok(());
        };
        let (slot, index) = (Slot(version.slot), version.index as usize);
        let value = chosen.value(LogId::Commands, slot);
        let Some(Value::Commands(batch)) = value.filter(|_| slot > self.executed) else {
            return Ok(());
        };
        let Some(Proposal { command, .. }) = batch.commands.get(index) else {
            return Ok(());
        };
        let is_crowded = self.reference.is_crowded(IN_FLIGHT_MAX);
        if !is_crowded && !self.reference.refuses(command, batch.log_time_ms) {
            return Ok(());
        }
        let mut alone = self.by_chosen(chosen, (!is_crowded).then_some(command.client), slot);
        alone.begin(batch.log_time_ms, batch.sessions_max);
        if is_crowded {
            for (place, before) in batch.commands.iter().take(index).enumerate() {
                write_alone(&mut alone, slot, place, before);
            }
        }
        let (client, sequence) = (command.client, command.sequence);
        ensure!(
            NAME,
            !matches!(
                alone.write(*version, command),
                Effect::Refused | Effect::NoRoom
            ),
            "{:?} answers ({client}, {sequence}) at the commit of {slot:?}, but if what is not \
             chosen before it turns out empty, its session has ended by then",
            id(node)
        );
        Ok(())
    }

    /// Returns a state machine with the session that `client` has before `slot`. If `client` is
    /// `None`, the state machine has the sessions of all clients. Commands in chosen slots may open
    /// a session or keep it alive. Slots that are not chosen are assumed to be empty.
    fn by_chosen(
        &self,
        chosen: &ChosenValues,
        client: Option<u64>,
        slot: Slot,
    ) -> ReferenceMachine {
        let mut alone = match client {
            Some(client) => self.reference.only(client),
            None => self.reference.clone(),
        };
        let before = chosen.beyond(LogId::Commands, self.executed);
        for (at, value) in before.take_while(|(at, _)| *at < slot) {
            let Value::Commands(batch) = value else {
                continue;
            };
            alone.begin(batch.log_time_ms, batch.sessions_max);
            let its =
                |proposed: &&Proposal| client.is_none_or(|its| its == proposed.command.client);
            for proposed in batch.commands.iter().filter(its) {
                write_alone(&mut alone, at, 0, proposed);
            }
        }
        alone
    }

    fn wrote(&mut self, node: usize, client: u64, sequence: u64, outcome: &Outcome) -> Verdict {
        self.checks += 1;
        let is_abridged = matches!(&outcome.result, Some(Answer::Txn(it)) if it.abridged);
        ensure!(
            NAME,
            !is_abridged || self.requests.get(&(client, sequence)) > Some(&1),
            "{:?} answers ({client}, {sequence}) without its values, but it was requested once",
            id(node)
        );
        let of = self.clients.entry(client).or_default();
        if is_no_room(outcome) {
            // The answer was given after an execution. A later copy may still be executed.
            let explained = match of.states.get(&sequence) {
                Some(known) => known.no_room,
                None => of.seen.len() == RESULTS_MAX,
            };
            ensure!(
                NAME,
                explained,
                "{:?} answers ({client}, {sequence}) that there is no room, but there is",
                id(node)
            );
            return Ok(());
        }
        let earlier = of
            .early_answers
            .iter()
            .find(|(other, _)| *other == sequence);
        if let Some((_, before)) = earlier {
            ensure!(
                NAME,
                same(before, outcome) || same(outcome, before),
                "{:?} answers ({client}, {sequence}) with {outcome:?}, after {before:?}",
                id(node)
            );
            return Ok(());
        }
        match of.states.get(&sequence).filter(|known| known.is_decided()) {
            Some(known) => ensure!(
                NAME,
                known.explains(outcome),
                "{:?} answers ({client}, {sequence}) with {outcome:?}, but the log gives {known:?}",
                id(node)
            ),
            // It was executed so long ago that its result has been forgotten.
            None if of.has_taken_effect(sequence) => {}
            None if matches!(outcome.result, Some(Answer::Txn(_))) => ensure!(
                NAME,
                false,
                "{:?} answers the transaction ({client}, {sequence}) with {outcome:?} before it is \
                 executed anywhere",
                id(node)
            ),
            None => of.early_answers.push((sequence, outcome.clone())),
        }
        Ok(())
    }

    fn has_read(&mut self, node: usize, op: &Op, outcome: &Outcome) -> Verdict {
        self.checks += 1;
        let explains = |read: &&LoggedRead| {
            read.op == *op
                && read
                    .outcome
                    .as_ref()
                    .is_none_or(|known| same(known, outcome))
        };
        ensure!(
            NAME,
            self.reads[node].iter().any(|read| explains(&read)),
            "{:?} answers {op:?} with {outcome:?}, but the log gives {:?}",
            id(node),
            self.reads[node]
        );
        Ok(())
    }

    /// Handles the end of a step of `node`. The replica has executed all slots up to `executed`,
    /// and has given the resulting answers.
    pub(super) fn step_ends(&mut self, node: usize, executed: Slot) {
        let reads = &mut self.reads[node];
        while reads.front().is_some_and(|read| read.slot <= executed) {
            reads.pop_front();
        }
    }
}

impl ClientResults {
    /// Compares the answer that a write received at commit with the result of the write's
    /// execution.
    fn compare_early_answer(&mut self, name: u64, sequence: u64) -> Verdict {
        if let Some(place) = self
            .early_answers
            .iter()
            .position(|(of, _)| *of == sequence)
        {
            let (_, early_answer) = self.early_answers.swap_remove(place);
            let known = self.state_of(sequence);
            ensure!(
                NAME,
                known.explains(&early_answer),
                "({name}, {sequence}) was answered {early_answer:?} at its commit, but gives {known:?}"
            );
        }
        Ok(())
    }

    fn state_of(&mut self, sequence: u64) -> &mut SequenceState {
        if !self.states.contains_key(&sequence) {
            if self.seen.len() == RESULTS_MAX
                && let Some(oldest) = self.seen.pop_front()
            {
                self.states.remove(&oldest);
            }
            self.seen.push_back(sequence);
            let forgotten = self.has_taken_effect(sequence);
            let known = SequenceState {
                forgotten,
                ..SequenceState::default()
            };
            self.states.insert(sequence, known);
        }
        self.states.entry(sequence).or_default()
    }

    fn has_taken_effect(&self, sequence: u64) -> bool {
        let before = self.executed.range(..=sequence).next_back();
        before.is_some_and(|(_, last)| *last >= sequence)
    }

    /// Records that the write with this sequence number takes effect. Returns true if it has not
    /// taken effect before.
    fn take_effect(&mut self, sequence: u64) -> bool {
        let before = self.executed.range_mut(..=sequence).next_back();
        match before {
            Some((_, last)) if *last >= sequence => return false,
            Some((_, last)) if *last + 1 == sequence => *last = sequence,
            _ => {
                self.executed.insert(sequence, sequence);
            }
        }
        if let Some(last) = self.executed.remove(&(sequence + 1)) {
            let joined = self.executed.range_mut(..=sequence).next_back();
            joined.into_iter().for_each(|(_, end)| *end = last);
        }
        true
    }
}

impl SequenceState {
    /// Whether the outcome of the write is decided. A copy that found no room for its session does
    /// not decide the outcome, because a later copy may be executed.
    fn is_decided(&self) -> bool {
        self.refused || self.forgotten || self.result.is_some()
    }

    fn explains(&self, outcome: &Outcome) -> bool {
        let expired = code(outcome) == Some(ErrorCode::SessionExpired as i32);
        let refusal = self.refused && expired;
        refusal
            || self.forgotten
            || self
                .result
                .as_ref()
                .is_some_and(|known| same(known, outcome))
    }
}

fn write_alone(alone: &mut ReferenceMachine, slot: Slot, index: usize, proposed: &Proposal) {
    let version = Version {
        slot: slot.0,
        index: index as u32,
    };
    if proposed.command.is_write() {
        alone.write(version, &proposed.command);
    }
}

fn code(outcome: &Outcome) -> Option<i32> {
    match &outcome.result {
        Some(Answer::Error(error)) => Some(error.code),
        _ => None,
    }
}

/// Returns true if `answer` is an answer with the outcome `known`. Errors are compared by their
/// codes. The answer to a repeated transaction may lack what a session does not keep.
fn same(known: &Outcome, answer: &Outcome) -> bool {
    match (&known.result, &answer.result) {
        (Some(Answer::Txn(known)), Some(Answer::Txn(answer))) => {
            let (known, answer) = (without_texts(known), without_texts(answer));
            known == answer || (answer.abridged && may_be_repeated(&known, &answer))
        }
        _ => match (code(known), code(answer)) {
            (None, None) => known == answer,
            (known, answer) => known == answer,
        },
    }
}

/// Returns a result without the texts of its errors.
fn without_texts(result: &TxnResult) -> TxnResult {
    let mut bare = result.clone();
    for result in &mut bare.results {
        if let Some(OpAnswer::Error(error)) = &mut result.result {
            error.message.clear();
        }
    }
    bare
}

#[cfg(test)]
mod tests;
