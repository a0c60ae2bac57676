//! Read-index (protocol §3.7): serves reads without a lease. The leader first asks a majority to
//! confirm that it still leads. Then it waits until a certain slot is executed, and answers the
//! read with the value after that slot.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use leasehold_leases::hashing::SeededState;
use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Key, Slot};
use leasehold_wire::{Outcome, Path};

use super::answers::{ReadAnswers, ReadRequest};
use super::view::View;
use crate::handles::ReadFrom;
use crate::step::Step;

/// Reads that the leader serves by read-index. Each read first waits for the answers of a majority,
/// and then for the execution of a slot.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct ReadIndex {
    /// Unconfirmed reads as (probe, slot, read), in ascending order of probes. The probe was sent
    /// after the read arrived, and a majority must answer it. The slot must be executed before the
    /// read is answered.
    unconfirmed: VecDeque<(u64, Slot, ReadRequest)>,
    /// Confirmed reads, by the slot for which they wait.
    confirmed: BTreeMap<Slot, Vec<ReadRequest>>,
    /// Whether a read waits for a probe that is not sent yet.
    probe_due: bool,
}

/// Returns the slot for which a read of `key` waits at the leader (hazard 26). The slot is the
/// highest *proposed* slot that writes the key. The slot need not be committed, because an origin
/// may already have answered the write in this slot. The returned slot is never below the slot of
/// the leader's opening no-op.
fn index_of(view: View<'_>, key: &[u8]) -> Slot {
    let commands = view.consensus.commands();
    let marked = match view.newest_mark(key) {
        Some(_) if off(Rule::H26Proposed) => commands.commit_point(),
        newest => newest.unwrap_or_default(),
    };
    marked.max(commands.start())
}

impl ReadIndex {
    /// Number of waiting reads.
    pub(super) fn len(&self) -> usize {
        self.unconfirmed.len() + self.confirmed.values().map(Vec::len).sum::<usize>()
    }

    /// Begins to confirm a read (hazard 26). A majority must answer a probe that is sent after this
    /// call, because answers to older probes do not show that this replica leads now. If this
    /// replica does not lead, the read is dropped.
    pub(super) fn begin(
        &mut self,
        step: &mut Step<'_>,
        view: View<'_>,
        answers: &mut ReadAnswers,
        read: ReadRequest,
    ) {
        let Some((newest, _)) = view.consensus.probes(step) else {
            return;
        };
        let probe = if off(Rule::H26Probe) {
            newest
        } else {
            newest + 1
        };
        let index = index_of(view, &read.key);
        let start = view.consensus.commands().start();
        assert!(index >= start, "no read is before the opening no-op");
        self.probe_due = true;
        self.unconfirmed.push_back((probe, index, read));
        if step.ctx.members.majority() == 1 {
            self.confirm(step, view, answers);
        }
    }

    /// Whether a read waits for a probe that is not sent yet.
    pub(super) fn is_probe_due(&self) -> bool {
        self.probe_due
    }

    /// Notes that a probe was sent.
    pub(super) fn probe_sent(&mut self) {
        self.probe_due = false;
    }

    /// Handles the reads that a majority has confirmed by now. Answers each read, or lets it wait
    /// until its slot is executed.
    pub(super) fn confirm(
        &mut self,
        step: &mut Step<'_>,
        view: View<'_>,
        answers: &mut ReadAnswers,
    ) {
        if self.unconfirmed.is_empty() {
            return;
        }
        let Some((_, confirmed)) = view.consensus.probes(step) else {
            return;
        };
        while let Some((probe, ..)) = self.unconfirmed.front()
            && *probe <= confirmed
            && let Some((_, index, read)) = self.unconfirmed.pop_front()
        {
            self.answer(step, view, answers, index, read);
        }
    }

    /// Answers a confirmed read with the value after its slot if this value is known. The value is
    /// known if the slot is executed. The value is also known if the slot is committed and
    /// determines the value of the key. If the value is not known, the read waits for the slot.
    fn answer(
        &mut self,
        step: &mut Step<'_>,
        view: View<'_>,
        answers: &mut ReadAnswers,
        index: Slot,
        read: ReadRequest,
    ) {
        match view.value_after(index, &read.key) {
            Some(outcome) => answers.answer(step, read.from, Path::ReadIndex, outcome),
            None => self.confirmed.entry(index).or_default().push(read),
        }
    }

    /// Removes and returns all reads. Another replica must serve these reads, because this replica
    /// no longer leads.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = ReadRequest> + use<> {
        let all = std::mem::take(self);
        let unconfirmed = all.unconfirmed.into_iter().map(|(.., read)| read);
        unconfirmed.chain(all.confirmed.into_values().flatten())
    }

    /// Drops the reads of requesters for which `stays` returns false.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(ReadFrom) -> bool) {
        self.unconfirmed.retain(|(.., read)| stays(read.from));
        self.confirmed.retain(|_, reads| {
            reads.retain(|read| stays(read.from));
            !reads.is_empty()
        });
    }

    /// Answers the confirmed reads that waited for slots which are executed now.
    pub(super) fn answer_executed(
        &mut self,
        step: &mut Step<'_>,
        view: View<'_>,
        answers: &mut ReadAnswers,
    ) {
        while let Some(first) = self.confirmed.first_entry()
            && *first.key() <= view.executed()
        {
            for read in first.remove() {
                let outcome = view.kv.read(&read.key);
                answers.answer(step, read.from, Path::ReadIndex, outcome);
            }
        }
    }

    /// Answers confirmed reads that wait for the committed `slot`, if this slot determines the
    /// value of their key.
    pub(super) fn answer_by_commit(
        &mut self,
        step: &mut Step<'_>,
        view: View<'_>,
        answers: &mut ReadAnswers,
        slot: Slot,
    ) {
        let Some(ready) = self.confirmed.remove(&slot) else {
            return;
        };
        let keys: HashSet<Key, SeededState> = ready.iter().map(|read| read.key.clone()).collect();
        // There may be thousands of reads, so the slot is searched once for all of them.
        let values = view
            .consensus
            .values_at_commit(slot, |key| keys.contains(key));
        let values: HashMap<Key, Outcome, SeededState> = values.into_iter().collect();
        let mut waiting = Vec::new();
        for read in ready {
            match values.get(&read.key) {
                Some(outcome) => {
                    answers.answer(step, read.from, Path::ReadIndex, outcome.clone());
                }
                None => waiting.push(read),
            }
        }
        if !waiting.is_empty() {
            self.confirmed.insert(slot, waiting);
        }
    }

    /// # Panics
    /// If reads wait for probes out of order.
    pub(super) fn check(&self) {
        let (first, last) = (self.unconfirmed.front(), self.unconfirmed.back());
        assert!(
            first.map(|(probe, ..)| probe) <= last.map(|(probe, ..)| probe),
            "reads wait for rising probes"
        );
        let next = self.confirmed.first_key_value();
        assert!(
            next.is_none_or(|(_, reads)| !reads.is_empty()),
            "no slot is kept without reads"
        );
    }
}
