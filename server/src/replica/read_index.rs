//! Read-index (protocol §3): without a lease, the leader confirms a read with a
//! majority that it leads still, and then answers from the slot that it waits for.

use std::collections::{BTreeMap, VecDeque};

use client::wire::{Outcome, Path};
use leases::mutants::{Rule, off};
use leases::{Key, Slot, Time};
use smallvec::SmallVec;

use super::action::Action;
use super::input::ReadFrom;
use super::message::LogId;
use super::{Replica, Role};

/// A read that the leader confirms with a majority.
#[derive(Clone, Debug, Hash)]
struct Indexed {
    from: ReadFrom,
    key: Key,
    /// Execute up to here first.
    index: Slot,
}

/// Reads that the leader confirms: a majority has to answer, then a slot to execute.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Indexing {
    /// With the probe, sent after the read arrived, that a majority must have
    /// answered; rising.
    unconfirmed: VecDeque<(u64, Indexed)>,
    /// By [`Indexed::index`].
    confirmed: BTreeMap<Slot, Vec<Indexed>>,
}

impl Indexing {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.unconfirmed.len() + self.confirmed.values().map(Vec::len).sum::<usize>()
    }

    fn take_executed(&mut self, executed: Slot) -> Vec<Indexed> {
        let first = self.confirmed.first_key_value();
        if first.is_none_or(|(index, _)| *index > executed) {
            return Vec::new();
        }
        let waiting = self.confirmed.split_off(&executed.next());
        let ready = std::mem::replace(&mut self.confirmed, waiting);
        ready.into_values().flatten().collect()
    }
}

impl Replica {
    /// Confirms a read with a majority (hazard 26). The index is the highest slot
    /// *proposed* that writes the key, for an origin may have answered that write
    /// already; and a majority must answer a probe sent from now on, for an older
    /// answer says nothing about the leadership of today.
    pub(super) fn index_read(&mut self, from: ReadFrom, key: Key, out: &mut Vec<Action>) {
        let start = self.logs[LogId::Commands.index()].adopted.1;
        let commit_point = self.commands().commit_point;
        let marked = match self.marks.on(&key).last() {
            Some(_) if off(Rule::H26Proposed) => commit_point,
            newest => newest.copied().unwrap_or_default(),
        };
        let Role::Leader(leadership) = &mut self.role else {
            return;
        };
        leadership.probe_due = true;
        let probe = match off(Rule::H26Probe) {
            true => leadership.probe,
            false => leadership.probe + 1,
        };
        let index = marked.max(start);
        let read = Indexed { from, key, index };
        self.reader.indexing.unconfirmed.push_back((probe, read));
        if self.settings.n == 1 {
            self.confirm_reads(out);
        }
    }

    /// A majority may have confirmed reads: they are answered, or wait for their slot.
    pub(super) fn confirm_reads(&mut self, out: &mut Vec<Action>) {
        if self.reader.indexing.unconfirmed.is_empty() {
            return;
        }
        let Some(confirmed) = self.confirmed_probe() else {
            return;
        };
        while let Some((probe, _)) = self.reader.indexing.unconfirmed.front()
            && *probe <= confirmed
            && let Some((_, read)) = self.reader.indexing.unconfirmed.pop_front()
        {
            self.answer_confirmed(read, out);
        }
    }

    /// Answers a confirmed read from its slot, if that is executed, or committed and
    /// says what the key holds then. Else it waits for it.
    fn answer_confirmed(&mut self, read: Indexed, out: &mut Vec<Action>) {
        let outcome = if read.index <= self.executed() {
            Some(self.kv.read(&read.key))
        } else {
            self.value_at_commit(read.index, &read.key)
        };
        match outcome {
            Some(outcome) => self.answer_indexed(read.from, outcome, out),
            None => {
                let waiting = &mut self.reader.indexing.confirmed;
                waiting.entry(read.index).or_default().push(read);
            }
        }
    }

    fn answer_indexed(&mut self, from: ReadFrom, outcome: Outcome, out: &mut Vec<Action>) {
        match from {
            ReadFrom::Client(to) => out.push(Action::Reply {
                to,
                path: Path::ReadIndex,
                outcome,
            }),
            ReadFrom::Peer(to, request) => {
                self.answer_peer(to, request, Some((outcome, Path::ReadIndex)));
            }
        }
    }

    /// The newest probe that a majority, the leader included, has answered.
    fn confirmed_probe(&self) -> Option<u64> {
        let leadership = self.leads()?;
        let mut acks: SmallVec<[u64; 8]> = leadership.probe_acks.as_slice().into();
        acks[self.me().index()] = leadership.probe + 1;
        acks.sort_unstable_by(|a, b| b.cmp(a));
        Some(acks[self.majority() - 1])
    }

    /// This replica no longer leads: what it was confirming is asked elsewhere.
    pub(super) fn index_elsewhere(&mut self, now: Time, out: &mut Vec<Action>) {
        let Indexing {
            unconfirmed,
            confirmed,
        } = std::mem::take(&mut self.reader.indexing);
        let unconfirmed = unconfirmed.into_iter().map(|(_, read)| read);
        for read in unconfirmed.chain(confirmed.into_values().flatten()) {
            match read.from {
                ReadFrom::Client(client) => self.ask(now, client, read.key, 1, out),
                ReadFrom::Peer(to, request) => self.answer_peer(to, request, None),
            }
        }
    }

    /// Slots were executed: confirmed reads that waited for them are answered.
    pub(super) fn answer_executed(&mut self, out: &mut Vec<Action>) {
        for read in self.reader.indexing.take_executed(self.executed()) {
            let outcome = self.kv.read(&read.key);
            self.answer_indexed(read.from, outcome, out);
        }
    }

    /// A committed slot may answer the confirmed reads that wait for it.
    pub(super) fn answer_by_commit(&mut self, slot: Slot, out: &mut Vec<Action>) {
        let ready = self.reader.indexing.confirmed.remove(&slot);
        for read in ready.into_iter().flatten() {
            self.answer_confirmed(read, out);
        }
    }
}
