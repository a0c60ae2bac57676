//! Commit tracking: which slots are known to be committed, which of their commands may be answered
//! before execution, and which slot is executed next.

use std::collections::HashSet;

use leasehold_leases::hashing::SeededState;
use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, Key, Slot};
use leasehold_wire::Outcome;
use leasehold_wire::command::Op;

use super::Consensus;
use super::cell::Accepted;
use crate::action::Record;
use crate::machine::version_of;
use crate::message::{LogId, LogNews, Value};
use crate::per_log::PerLog;
use crate::step::Step;

/// Maximum number of keys that a search through the writes of a slot compares. A slot may name ten
/// thousand keys, and thousands of reads may search it.
const SEARCHED_KEYS_MAX: usize = 2048;

/// Result of comparing a leader's report of commits with the entries accepted here.
#[derive(Clone, Debug, Default)]
pub struct CommitUpdate {
    /// Slots that are committed according to the report, and in which this replica has accepted the
    /// chosen value.
    pub chosen: Vec<Slot>,
    /// Whether the report also contains committed slots in which this replica has accepted no value
    /// under the ballot of the report.
    pub behind: bool,
    /// Whether the reported commit point is higher than in all earlier reports of the leader.
    pub new_commit_point: bool,
}

/// Permission to answer commands of a committed slot before the slot is executed.
#[derive(Debug)]
pub enum EarlyAnswer<'a> {
    /// The *infallible* blind writes of the slot may be answered now.
    Now(&'a Accepted),
    /// Nothing may be answered yet, because the slot's `last_multi` is not committed. Later slots
    /// cannot be answered yet either, because they have the same `last_multi` or a higher one.
    Later,
    /// Nothing may be answered before execution. This is true for an entry of another ballot, an
    /// entry that a leader recovered, a fetched entry, and an entry that is executed already.
    Never,
}

impl Consensus {
    /// Returns whether the votes on `slot` show that the slot is chosen. Returns false if the slot
    /// is already noted as committed.
    pub fn is_chosen(&self, step: &Step<'_>, log: LogId, slot: Slot) -> bool {
        let cell = self.logs[log].get(slot);
        // A learner that has not received the value of the votes' ballot commits nothing (hazard
        // 20).
        let Some((cell, accepted)) = cell.and_then(|cell| Some((cell, cell.accepted.as_ref()?)))
        else {
            return false;
        };
        let at_its_ballot = accepted.ballot == cell.votes.ballot() || off(Rule::H20Value);
        !cell.committed && at_its_ballot && cell.votes.is_committed(step.ctx.members)
    }

    /// Notes that the value accepted in `slot` is the chosen one.
    ///
    /// # Panics
    /// If no value is accepted in the slot.
    pub fn note_commit(&mut self, step: &mut Step<'_>, log: LogId, slot: Slot) {
        let paxos = &mut self.logs[log];
        let Some(cell) = paxos.get_mut(slot) else {
            return;
        };
        assert!(
            cell.accepted.is_some(),
            "slot {slot:?} is committed without a value"
        );
        cell.committed = true;
        paxos.commit(slot);
        if let Some(below) = paxos.forget_log_starts() {
            step.record(Record::ForgetLogStarts { log, below });
        }
        if let Some(leadership) = self.leadership_mut() {
            leadership.news_due[log] = true;
            if log == LogId::Commands {
                leadership.queue.close(slot);
            }
        }
    }

    /// Handles a leader's report of commits. Returns `None` if the leader's ballot is not the
    /// adopted ballot. A reported slot becomes committed here only if this replica has accepted the
    /// slot's value *under the leader's ballot*. The entries of other reported slots are fetched
    /// (hazard 28).
    pub fn hear_commits(
        &mut self,
        log: LogId,
        ballot: Ballot,
        news: &LogNews,
    ) -> Option<CommitUpdate> {
        let paxos = &mut self.logs[log];
        if paxos.adopted.0 != ballot {
            return None;
        }
        let mut update = CommitUpdate {
            new_commit_point: news.commit_point > paxos.heard_commit,
            ..CommitUpdate::default()
        };
        paxos.heard_commit = paxos.heard_commit.max(news.commit_point);
        let whole = (Slot(1), news.commit_point);
        for (first, last) in std::iter::once(&whole).chain(&news.above) {
            update.behind |= paxos.reported(*first, *last, &mut update.chosen);
        }
        Some(update)
    }

    /// Returns which commands of this committed slot may be answered before the slot is executed
    /// (protocol §1).
    pub fn at_commit(&self, slot: Slot) -> EarlyAnswer<'_> {
        let commands = &self.logs.commands;
        let (ballot, start) = commands.adopted;
        match commands.accepted(slot) {
            Some(accepted) if slot > commands.executed => {
                if commands.is_answerable(slot, accepted) {
                    EarlyAnswer::Now(accepted)
                } else if accepted.ballot == ballot && slot > start {
                    EarlyAnswer::Later
                } else {
                    EarlyAnswer::Never
                }
            }
            _ => EarlyAnswer::Never,
        }
    }

    /// Returns the answer to a read of `key`, if the committed, unexecuted slot `slot` determines
    /// the answer (protocol §3.3). The last write of the slot that names the key must be an
    /// answerable blind write (hazard 134). The answer is the value that this write stores.
    pub fn value_at_commit(&self, slot: Slot, key: &[u8]) -> Option<Outcome> {
        let accepted = self.answerable(slot)?;
        let mut named = named_from_the_end(accepted);
        let (index, _) = named.find(|(_, named)| *named == key)?;
        written_at_commit(slot, index, accepted)
    }

    /// Returns each key that a read waits for and for which [`Self::value_at_commit`] has a result,
    /// with this result. `wanted` returns whether a read waits for a key.
    pub fn values_at_commit(
        &self,
        slot: Slot,
        wanted: impl Fn(&Key) -> bool,
    ) -> Vec<(Key, Outcome)> {
        let mut seen: HashSet<&Key, SeededState> = HashSet::default();
        let accepted = self.answerable(slot).into_iter();
        let named = accepted.flat_map(|accepted| {
            let named = named_from_the_end(accepted);
            named.map(move |(index, key)| (accepted, index, key))
        });
        let last = named.filter(|(.., key)| wanted(key) && seen.insert(key));
        let values = last.filter_map(|(accepted, index, key)| {
            let outcome = written_at_commit(slot, index, accepted)?;
            Some((key.clone(), outcome))
        });
        values.collect()
    }

    /// Returns the value accepted in a committed slot, if the infallible blind writes of the slot
    /// may be answered at commit.
    fn answerable(&self, slot: Slot) -> Option<&Accepted> {
        let commands = &self.logs.commands;
        let cell = commands.get(slot).filter(|cell| cell.committed)?;
        let accepted = cell.accepted.as_ref()?;
        commands.is_answerable(slot, accepted).then_some(accepted)
    }

    /// Whether the state must be flushed early, because one of the logs would otherwise reach the
    /// end of its window. `requested` contains, for each log, the last slot that the newest
    /// requested flush covers.
    pub fn wants_flush(&self, requested: PerLog<Slot>) -> bool {
        let wants = |log: LogId| self.logs[log].wants_flush(requested[log]);
        LogId::ALL.into_iter().any(wants)
    }

    /// Moves the windows of both logs, because the executed state up to these slots is durable now.
    /// Returns whether a window was full before.
    pub fn move_windows(&mut self, slots: PerLog<Slot>) -> bool {
        let waited = PerLog::of(|log| self.logs[log].note_flushed(slots[log]));
        waited.commands || waited.configs
    }

    /// Returns the next slot to execute, with its value; `None` if no committed slot is left.
    pub fn next_to_execute(&self, log: LogId) -> Option<(Slot, Value)> {
        let paxos = &self.logs[log];
        if paxos.executed >= paxos.commit_point {
            return None;
        }
        let slot = paxos.executed.next();
        let cell = paxos.get(slot).filter(|cell| cell.committed);
        let accepted = cell.and_then(|cell| cell.accepted.as_ref());
        let value = &accepted.expect("a committed slot has its value").value;
        assert!(
            !matches!(
                (log, value),
                (LogId::Commands, Value::Config(_)) | (LogId::Configs, Value::Commands(_))
            ),
            "a log holds values of its own kind"
        );
        Some((slot, value.clone()))
    }

    /// Returns true if too much data waits to be written to the disk, or too many committed slots
    /// wait to be executed. This replica must then not accept more commands. Committed slots above
    /// a missing entry are not counted, because they wait for that entry. The limit is lower for a
    /// leader than for other replicas, so the others can still accept everything that the leader
    /// has proposed.
    pub fn is_backlogged(&self, step: &Step<'_>) -> bool {
        let most = step.ctx.settings.to_execute_work_max;
        let most = if self.leads() { most } else { 2 * most };
        step.is_disk_behind() || self.logs.commands.to_execute_work() > most
    }

    /// Returns true if this replica must accept nothing more in `log`, because its backlog is too
    /// large. In the log of configurations, only the backlog of the disk counts, because
    /// configurations are few and commands may wait for them.
    pub fn takes_nothing(&self, step: &Step<'_>, log: LogId) -> bool {
        match log {
            LogId::Configs => step.is_disk_behind(),
            LogId::Commands => self.is_backlogged(step),
        }
    }

    /// Notes that a slot was executed. Calls `unmarked` with each key that the slot wrote.
    pub fn note_executed(
        &mut self,
        log: LogId,
        slot: Slot,
        value: &Value,
        unmarked: impl FnMut(&Key),
    ) {
        self.logs[log].advance_executed(slot);
        if log == LogId::Configs {
            return;
        }
        if let Some(leadership) = self.leadership_mut() {
            for proposed in value.commands() {
                leadership.in_flight.forget(proposed);
            }
        }
        self.marks.unmark(slot, value, unmarked);
    }

    /// Returns the barrier for a promise that is made now. A holder must have executed the log up
    /// to this slot before it reads under the promise (hazards 5, 7 and 30). The barrier is at or
    /// above every slot that is accepted or executed here, even if the slot's entry is not durable
    /// yet, or was truncated (hazard 44).
    pub fn barrier(&self) -> Slot {
        let commands = &self.logs.commands;
        if off(Rule::H07Pending) {
            let durable = commands.unexecuted().filter(|(_, cell)| {
                let accepted = cell.accepted.as_ref();
                accepted.is_some_and(|accepted| accepted.durable)
            });
            return durable.last().map_or(commands.executed, |(slot, _)| slot);
        }
        if off(Rule::H19Holes) {
            return commands.commit_point;
        }
        if off(Rule::H44Truncated) {
            let last = commands.unexecuted().last();
            return last.map_or(Slot::ZERO, |(slot, _)| slot);
        }
        commands.highest.max(commands.executed)
    }
}

/// Returns the keys that the writes of a slot name, each with the index of the write. The writes are
/// in descending order. The keys that a transaction only compares or reads are included. At most
/// [`SEARCHED_KEYS_MAX`] keys are returned.
fn named_from_the_end(accepted: &Accepted) -> impl Iterator<Item = (usize, &Key)> {
    let commands = accepted.value.commands().iter().enumerate().rev();
    let writes = commands.filter(|(_, proposed)| {
        let is_ignored = off(Rule::H134LastWrite) && proposed.command.is_multi();
        proposed.command.is_write() && !is_ignored
    });
    let named = writes.flat_map(|(index, proposed)| {
        let keys = proposed.command.keys();
        keys.map(move |key| (index, key))
    });
    named.take(SEARCHED_KEYS_MAX)
}

/// Returns the result that a read of the same key would have directly after this command. Returns
/// `None` if the command is not an infallible blind write.
fn written_at_commit(slot: Slot, index: usize, accepted: &Accepted) -> Option<Outcome> {
    if !accepted.is_infallible(index) {
        return None;
    }
    match &accepted.value.commands()[index].command.op {
        Some(Op::Put(put)) => {
            let version = version_of(slot, index);
            Some(Outcome::value(put.value.clone(), version))
        }
        Some(Op::Delete(_)) => Some(Outcome::missing()),
        Some(Op::Cas(_) | Op::PutFields(_) | Op::MultiPut(_) | Op::Txn(_)) => None,
        Some(Op::Get(_) | Op::MultiGet(_) | Op::Scan(_)) | None => None,
    }
}
