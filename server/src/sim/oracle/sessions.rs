//! Same (client, sequence), same result (oracle 11; protocol §1 "Sessions"): what
//! any replica answers to a write, or to a read that went through the log, is what
//! a state machine of the oracles' own gives, and no command takes effect twice.

use std::collections::{BTreeMap, HashMap, VecDeque};

use client::wire::command::Op;
use client::wire::outcome::Result as Answer;
use client::wire::{Command, ErrorCode, Outcome, Version};
use foldhash::fast::FixedState;
use leases::Slot;

use super::reference::{Effect, Reference};
use super::{Chosen, Verdict, ensure, id};
use crate::replica::action::ClientHandle;
use crate::replica::message::{LogId, Proposed, Value};

pub(super) const NAME: &str = "sessions";

/// Results of a client that are remembered after it acknowledged them: for
/// replicas that lag.
const RESULTS_MAX: usize = 256;

/// What a client waits for.
#[derive(Clone, Debug)]
enum Asked {
    /// (client, sequence).
    Write(u64, u64),
    Read(Op),
}

/// What the log did with a (client, sequence).
#[derive(Clone, Debug, Default)]
struct Known {
    result: Option<Outcome>,
    /// Some occurrence of it was refused.
    refused: bool,
    /// It had a result, so long ago that it has been forgotten here.
    forgotten: bool,
}

#[derive(Clone, Debug, Default)]
struct Client {
    /// Everything that took effect, as ranges: first to last.
    executed: BTreeMap<u64, u64>,
    known: HashMap<u64, Known, FixedState>,
    /// Of which sequences, in the order in which they were first seen.
    seen: VecDeque<u64>,
    /// Answered before it was executed.
    told: Vec<(u64, Outcome)>,
}

/// A read that went through the log.
#[derive(Clone, Debug)]
struct LogRead {
    slot: Slot,
    op: Op,
    outcome: Option<Outcome>,
}

/// See the module.
#[derive(Debug)]
pub struct Sessions {
    reference: Reference,
    executed: Slot,
    clients: HashMap<u64, Client, FixedState>,
    /// By replica.
    asked: Vec<HashMap<ClientHandle, Asked, FixedState>>,
    /// By origin, those that it has not executed.
    reads: Vec<VecDeque<LogRead>>,
    /// Answers compared.
    pub checks: u64,
}

impl Sessions {
    pub(super) fn new(n: usize, ttl_ms: u64) -> Sessions {
        Sessions {
            reference: Reference::new(ttl_ms),
            executed: Slot::ZERO,
            clients: HashMap::default(),
            asked: vec![HashMap::default(); n],
            reads: vec![VecDeque::new(); n],
            checks: 0,
        }
    }

    /// A client's command has reached `node`.
    pub(super) fn asked(&mut self, node: usize, from: ClientHandle, command: &Command) {
        let asked = match &command.op {
            Some(Op::Get(_)) | None => return, // never in the log
            Some(op) if op.is_write() => Asked::Write(command.client, command.sequence),
            Some(op) => Asked::Read(op.clone()),
        };
        self.asked[node].insert(from, asked);
    }

    /// `node` has answered under a lease.
    pub(super) fn answered_elsewise(&mut self, node: usize, to: ClientHandle) {
        self.asked[node].remove(&to);
    }

    /// `node` has ended: it answers nobody any more.
    pub(super) fn crashed(&mut self, node: usize) {
        self.asked[node].clear();
    }

    /// More is chosen: it is executed as soon as all before it is known.
    pub(super) fn advance(&mut self, chosen: &Chosen) -> Verdict {
        while let Some(value) = chosen.value(LogId::Commands, self.executed.next()) {
            self.executed = self.executed.next();
            self.execute(value)?;
        }
        Ok(())
    }

    fn execute(&mut self, value: &Value) -> Verdict {
        let slot = self.executed;
        if let Value::Commands(batch) = value {
            self.reference.begin(batch.log_time_ms);
        }
        for (index, proposed) in value.commands().iter().enumerate() {
            let version = Version {
                slot: slot.0,
                index: index as u32,
            };
            match &proposed.command.op {
                Some(op) if !op.is_write() => self.read(slot, proposed, op),
                _ => self.write(version, &proposed.command)?,
            }
        }
        Ok(())
    }

    fn read(&mut self, slot: Slot, proposed: &Proposed, op: &Op) {
        let outcome = self.reference.read(op);
        if let Some(reads) = self.reads.get_mut(proposed.origin.index()) {
            let op = op.clone();
            reads.push_back(LogRead { slot, op, outcome });
        }
    }

    fn write(&mut self, version: Version, command: &Command) -> Verdict {
        let effect = self.reference.write(version, command);
        let client = self.clients.entry(command.client).or_default();
        let sequence = command.sequence;
        let known = client.known(sequence);
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
        }
        client.compare_told(command.client, sequence)
    }

    /// `node` answers a client.
    pub(super) fn replied(
        &mut self,
        chosen: &Chosen,
        node: usize,
        to: ClientHandle,
        outcome: &Outcome,
    ) -> Verdict {
        match self.asked[node].remove(&to) {
            Some(Asked::Write(client, sequence)) => {
                self.certain(chosen, node, outcome)?;
                self.wrote(node, client, sequence, outcome)
            }
            Some(Asked::Read(op)) => self.has_read(node, &op, outcome),
            None => Ok(()),
        }
    }

    /// What is answered at commit is executed whatever comes of the slots before it
    /// that are not chosen yet (hazard 31): each may turn out empty, and then opens no
    /// session.
    fn certain(&self, chosen: &Chosen, node: usize, outcome: &Outcome) -> Verdict {
        let Some(Answer::Written(version)) = &outcome.result else {
            return Ok(());
        };
        let (slot, index) = (Slot(version.slot), version.index as usize);
        let value = chosen.value(LogId::Commands, slot);
        let Some(Value::Commands(batch)) = value.filter(|_| slot > self.executed) else {
            return Ok(());
        };
        let Some(Proposed { command, .. }) = batch.commands.get(index) else {
            return Ok(());
        };
        if !self.reference.refuses(command, batch.log_time_ms) {
            return Ok(());
        }
        let alone = self.by_chosen(chosen, command.client, slot);
        let (client, sequence) = (command.client, command.sequence);
        ensure!(
            NAME,
            !alone.refuses(command, batch.log_time_ms),
            "{:?} answers ({client}, {sequence}) at the commit of {slot:?}, but if what is not \
             chosen before it turns out empty, its session has ended by then",
            id(node)
        );
        Ok(())
    }

    /// The session of a client before `slot`, if every slot that is not chosen turns out
    /// empty. Chosen slots may keep the session alive, or open it.
    fn by_chosen(&self, chosen: &Chosen, client: u64, slot: Slot) -> Reference {
        let mut alone = self.reference.only(client);
        let before = chosen.beyond(LogId::Commands, self.executed);
        for (at, value) in before.take_while(|(at, _)| *at < slot) {
            let Value::Commands(batch) = value else {
                continue;
            };
            alone.begin(batch.log_time_ms);
            let its = |proposed: &&Proposed| proposed.command.client == client;
            for proposed in batch.commands.iter().filter(its) {
                let version = Version {
                    slot: at.0,
                    index: 0,
                };
                alone.write(version, &proposed.command);
            }
        }
        alone
    }

    fn wrote(&mut self, node: usize, client: u64, sequence: u64, outcome: &Outcome) -> Verdict {
        self.checks += 1;
        let of = self.clients.entry(client).or_default();
        let told = of.told.iter().find(|(other, _)| *other == sequence);
        if let Some((_, before)) = told {
            ensure!(
                NAME,
                same(before, outcome),
                "{:?} answers ({client}, {sequence}) with {outcome:?}, after {before:?}",
                id(node)
            );
            return Ok(());
        }
        match of.known.get(&sequence) {
            Some(known) => ensure!(
                NAME,
                known.explains(outcome),
                "{:?} answers ({client}, {sequence}) with {outcome:?}, but the log gives {known:?}",
                id(node)
            ),
            // So long ago that it has been forgotten.
            None if of.has_taken_effect(sequence) => {}
            None => of.told.push((sequence, outcome.clone())),
        }
        Ok(())
    }

    fn has_read(&mut self, node: usize, op: &Op, outcome: &Outcome) -> Verdict {
        self.checks += 1;
        let explains = |read: &&LogRead| {
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

    /// `node` has executed so far, and given the answers that this gave.
    pub(super) fn step_ends(&mut self, node: usize, executed: Slot) {
        let reads = &mut self.reads[node];
        while reads.front().is_some_and(|read| read.slot <= executed) {
            reads.pop_front();
        }
    }
}

impl Client {
    /// What was answered at commit is what its execution gives.
    fn compare_told(&mut self, name: u64, sequence: u64) -> Verdict {
        if let Some(place) = self.told.iter().position(|(of, _)| *of == sequence) {
            let (_, told) = self.told.swap_remove(place);
            let known = self.known(sequence);
            ensure!(
                NAME,
                known.explains(&told),
                "({name}, {sequence}) was answered {told:?} at its commit, but gives {known:?}"
            );
        }
        Ok(())
    }

    fn known(&mut self, sequence: u64) -> &mut Known {
        if !self.known.contains_key(&sequence) {
            if self.seen.len() == RESULTS_MAX
                && let Some(oldest) = self.seen.pop_front()
            {
                self.known.remove(&oldest);
            }
            self.seen.push_back(sequence);
            let forgotten = self.has_taken_effect(sequence);
            let known = Known {
                forgotten,
                ..Known::default()
            };
            self.known.insert(sequence, known);
        }
        self.known.entry(sequence).or_default()
    }

    fn has_taken_effect(&self, sequence: u64) -> bool {
        let before = self.executed.range(..=sequence).next_back();
        before.is_some_and(|(_, last)| *last >= sequence)
    }

    /// Returns whether it is the first time.
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

impl Known {
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

fn code(outcome: &Outcome) -> Option<i32> {
    match &outcome.result {
        Some(Answer::Error(error)) => Some(error.code),
        _ => None,
    }
}

/// Errors are the same by their codes.
fn same(a: &Outcome, b: &Outcome) -> bool {
    match (code(a), code(b)) {
        (None, None) => a == b,
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leases::ReplicaId;

    use super::*;
    use crate::replica::message::{Batch, RequestId};

    fn at(slot: u64) -> Outcome {
        Outcome::written(Version { slot, index: 0 })
    }

    fn handle(request: u64) -> ClientHandle {
        ClientHandle {
            connection: 1,
            request,
        }
    }

    /// Of a session that opens whenever it is first heard of.
    fn put(sequence: u64, acked_below: u64) -> Command {
        Command::session(7, sequence, acked_below, Op::put("k", "v")).opened(LONG)
    }

    /// Commands that are chosen, one a slot, a minute of log time apart.
    struct Log(Chosen, u64);

    impl Log {
        fn choose(&mut self, sessions: &mut Sessions, command: Command) -> Verdict {
            self.1 += 1;
            let proposed = Proposed {
                origin: ReplicaId(0),
                request: RequestId(self.1),
                command,
            };
            let batch = Batch {
                log_time_ms: self.1 * 60_000,
                commands: vec![proposed],
                ..Batch::default()
            };
            let value = Value::Commands(Arc::new(batch));
            self.0.committed(LogId::Commands, Slot(self.1), &value);
            sessions.advance(&self.0)
        }
    }

    fn world(ttl_ms: u64) -> (Sessions, Log) {
        (Sessions::new(2, ttl_ms), Log(Chosen::default(), 0))
    }

    const LONG: u64 = 3_600_000;

    #[test]
    fn every_answer_to_a_sequence_is_its_result() {
        let (mut sessions, mut log) = world(LONG);
        sessions.asked(0, handle(1), &put(1, 1));
        sessions.asked(1, handle(2), &put(1, 1));
        sessions.asked(1, handle(3), &put(1, 1));
        assert!(log.choose(&mut sessions, put(1, 1)).is_ok());
        assert!(sessions.replied(&log.0, 0, handle(1), &at(1)).is_ok());
        assert!(sessions.replied(&log.0, 1, handle(2), &at(1)).is_ok());
        assert!(sessions.replied(&log.0, 1, handle(3), &at(2)).is_err());
        assert_eq!(sessions.checks, 3);
    }

    #[test]
    fn an_answer_at_commit_is_held_against_the_execution() {
        let (mut sessions, mut log) = world(LONG);
        for request in 1..4 {
            sessions.asked(0, handle(request), &put(1, 1));
        }
        assert!(sessions.replied(&log.0, 0, handle(1), &at(1)).is_ok());
        assert!(
            sessions.replied(&log.0, 0, handle(2), &at(2)).is_err(),
            "another answer"
        );
        assert!(log.choose(&mut sessions, put(1, 1)).is_ok());
        sessions.asked(0, handle(4), &put(2, 2));
        assert!(sessions.replied(&log.0, 0, handle(4), &at(3)).is_ok());
        assert!(
            log.choose(&mut sessions, put(2, 2)).is_err(),
            "it is in slot 2"
        );
    }

    #[test]
    fn what_is_answered_at_commit_needs_nothing_that_is_not_chosen() {
        // Slots are a minute apart; slot 1 opens the session, slot 2 is open.
        for (ttl_ms, sequence, good) in [(LONG, 2, true), (90_000, 2, false), (90_000, 1, true)] {
            let (mut sessions, mut log) = world(ttl_ms);
            let opens = |command: Command| command.opened(0);
            assert!(log.choose(&mut sessions, opens(put(1, 1))).is_ok());
            log.1 += 1;
            // Slot 3: with what was executed alone, its session may have ended.
            let next = opens(put(sequence, sequence));
            sessions.asked(0, handle(1), &next);
            assert!(log.choose(&mut sessions, next).is_ok());
            let told = match sequence {
                1 => at(1),
                _ => at(3),
            };
            let verdict = sessions.replied(&log.0, 0, handle(1), &told);
            assert_eq!(verdict.is_ok(), good, "{ttl_ms} {sequence}: {verdict:?}");
        }
        // A chosen slot between keeps it alive, executed or not.
        let (mut sessions, mut log) = world(130_000);
        for (sequence, skip) in [(1, 0), (2, 1), (3, 0)] {
            log.1 += skip;
            let next = put(sequence, sequence).opened(0);
            sessions.asked(0, handle(sequence), &next);
            let slot = log.1 + 1;
            assert!(log.choose(&mut sessions, next).is_ok());
            if sequence == 3 {
                let verdict = sessions.replied(&log.0, 0, handle(3), &at(slot));
                assert_eq!(verdict, Ok(()));
            }
        }
    }

    #[test]
    fn what_was_acknowledged_must_not_be_refused() {
        // The session is opened in slot 1, and has ended a minute later in slot 2.
        let (mut sessions, mut log) = world(1000);
        let put = |sequence| put(sequence, sequence).opened(60_000);
        assert!(log.choose(&mut sessions, put(1)).is_ok());
        sessions.asked(0, handle(1), &put(2));
        assert!(sessions.replied(&log.0, 0, handle(1), &at(2)).is_ok());
        assert!(log.choose(&mut sessions, put(2)).is_err());
    }

    #[test]
    fn a_refusal_needs_a_reason() {
        let refused = Outcome::error(ErrorCode::SessionExpired, "gone");
        // The session is opened in slot 1, and has ended a minute later in slot 2.
        let (mut sessions, mut log) = world(1000);
        let put = |sequence| put(sequence, sequence).opened(60_000);
        assert!(log.choose(&mut sessions, put(1)).is_ok());
        assert!(log.choose(&mut sessions, put(2)).is_ok());
        sessions.asked(0, handle(1), &put(2));
        sessions.asked(0, handle(2), &put(1));
        assert!(sessions.replied(&log.0, 0, handle(1), &refused).is_ok());
        assert!(sessions.replied(&log.0, 0, handle(2), &refused).is_err());
    }

    #[test]
    fn a_result_that_was_forgotten_is_not_held_against_a_laggard() {
        let (mut sessions, mut log) = world(LONG * 1000);
        for request in 1..4 {
            sessions.asked(0, handle(request), &put(1, 1));
        }
        let last = RESULTS_MAX as u64;
        for sequence in 1..=last {
            let verdict = log.choose(&mut sessions, put(sequence, sequence));
            assert!(verdict.is_ok());
        }
        assert!(sessions.replied(&log.0, 0, handle(1), &at(2)).is_err());
        let next = put(last + 1, last + 1);
        assert!(log.choose(&mut sessions, next).is_ok());
        assert!(sessions.replied(&log.0, 0, handle(2), &at(1)).is_ok());
        assert!(log.choose(&mut sessions, put(1, 1)).is_ok(), "refused");
        assert!(sessions.replied(&log.0, 0, handle(3), &at(1)).is_ok());
    }

    #[test]
    fn nothing_takes_effect_twice() {
        let (mut sessions, mut log) = world(1000);
        assert!(log.choose(&mut sessions, put(1, 1)).is_ok());
        assert!(log.choose(&mut sessions, put(1, 1)).is_err());
        let mut client = Client::default();
        let taken = [3, 1, 2, 2, 5, 4, 3].map(|sequence| client.take_effect(sequence));
        assert_eq!(taken, [true, true, true, false, true, true, false]);
        assert_eq!(client.executed.len(), 1);
    }

    #[test]
    fn nothing_takes_effect_after_it_was_refused() {
        let (mut sessions, mut log) = world(1000);
        assert!(log.choose(&mut sessions, put(1, 1).opened(0)).is_ok());
        // Only a command that names another time than its copy can do that.
        assert!(log.choose(&mut sessions, put(1, 1)).is_err());
    }

    #[test]
    fn a_read_in_the_log_sees_what_is_before_it() {
        let (mut sessions, mut log) = world(LONG);
        let scan = || Command::from(Op::scan("", "", 10));
        for request in 1..4 {
            sessions.asked(0, handle(request), &scan());
        }
        assert!(log.choose(&mut sessions, scan()).is_ok());
        assert!(log.choose(&mut sessions, put(1, 1)).is_ok());
        let nothing = Outcome::entries(Vec::new());
        assert!(sessions.replied(&log.0, 0, handle(1), &nothing).is_ok());
        sessions.step_ends(0, Slot(1));
        assert!(sessions.replied(&log.0, 0, handle(2), &nothing).is_err());
        assert!(log.choose(&mut sessions, scan()).is_ok());
        assert!(sessions.replied(&log.0, 0, handle(3), &nothing).is_err());
    }
}
