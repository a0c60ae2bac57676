//! Constraints of one key: the transactions that need each value of the key, and the failed swaps
//! that are not explained yet.

use super::sightings::Sightings;
use super::{ABSENT, Effect, Map, NEVER, NEVER_WRITTEN, Txn, TxnTime, ValueNumber, is_failed_swap};
use crate::history::{HistoryAction, ValueId};

/// Transactions that found one value, and the swap that replaced this value. These transactions
/// limit the possible orders.
#[derive(Debug, Clone, Copy, Default)]
pub(in super::super) struct TxnValueUses {
    /// Latest begin of a transaction that read the value.
    pub last_read: TxnTime,
    /// Swap that certainly replaced the value. `None` if the value is absence, because absence may
    /// be replaced several times.
    pub successor: Option<usize>,
    /// Whether an answer depends on the value.
    pub is_wanted: bool,
}

#[derive(Debug, Default)]
pub(in super::super) struct KeyConstraints {
    /// Transactions that found each value, and the swap that replaced it.
    pub uses: Vec<TxnValueUses>,
    values: Map<ValueId, ValueNumber>,
    /// One entry for each mutation, sorted by begin. The first time is the begin of the mutation.
    /// The second time is the earliest end among this mutation and all mutations that begin later.
    ends_from: Vec<(TxnTime, TxnTime)>,
    sightings: Sightings,
    /// One entry for each unexplained failed swap, sorted by begin. The first time is the begin of
    /// the swap. The second time is the latest end among this swap and the unexplained failed swaps
    /// that began before this swap.
    failures_to: Vec<(TxnTime, TxnTime)>,
    /// Latest end of a transaction that found the key absent.
    absent_until: TxnTime,
    /// Begin and end of the only write of each value; `None` if the value has no write. The entry
    /// for absence is also `None` if absence may have several writes.
    writes: Vec<Option<(TxnTime, TxnTime)>>,
    has_deletions: bool,
}

impl KeyConstraints {
    /// Returns the constraints of a key to which nothing is written yet.
    pub(super) fn new() -> KeyConstraints {
        KeyConstraints {
            uses: vec![TxnValueUses::default()],
            writes: vec![Some((0, 0))],
            ..KeyConstraints::default()
        }
    }

    /// Assigns the next number to a value that is written to the key.
    pub(super) fn number(&mut self, value: ValueId) {
        self.values.insert(value, self.uses.len() as ValueNumber);
        self.uses.push(TxnValueUses::default());
        self.writes.push(None);
    }

    fn held(&self, value: Option<ValueId>) -> ValueNumber {
        value.map_or(ABSENT, |value| {
            self.values.get(&value).copied().unwrap_or(NEVER_WRITTEN)
        })
    }

    pub(super) fn effect(&self, action: &HistoryAction, open: bool) -> Effect {
        match *action {
            HistoryAction::Read { value } => Effect::Read(self.held(value)),
            HistoryAction::Write { value } => Effect::Write(self.held(Some(value))),
            HistoryAction::Delete => Effect::Write(ABSENT),
            HistoryAction::Cas { expected, .. } if is_failed_swap(action, open) => {
                Effect::Fail(self.held(expected))
            }
            HistoryAction::Cas { expected, new, .. } => Effect::Swap {
                expected: self.held(expected),
                new: self.held(Some(new)),
            },
        }
    }

    pub(super) fn note(&mut self, effect: Effect, begin: TxnTime, end: TxnTime) {
        let (found, left) = (effect.finds(), effect.leaves());
        if let Some(found) = found.filter(|found| *found != NEVER_WRITTEN) {
            let uses = &mut self.uses[found as usize];
            uses.is_wanted = true;
            if left.is_none() {
                uses.last_read = uses.last_read.max(begin);
            }
            if found == ABSENT {
                self.absent_until = self.absent_until.max(end);
            }
        }
        if let Some(new) = left {
            self.has_deletions |= new == ABSENT;
            self.writes[new as usize] = Some((begin, end));
            self.ends_from.push((begin, end));
        }
        for held in found.into_iter().chain(left) {
            self.sightings.push(held, begin, end);
        }
    }

    pub(super) fn note_failure(&mut self, effect: Effect, begin: TxnTime, end: TxnTime) {
        // A value that no transaction wrote is never current, so a swap that expects it fails in
        // every order.
        if let Effect::Fail(expected) = effect
            && expected != NEVER_WRITTEN
        {
            self.uses[expected as usize].is_wanted = true;
            let latest = self.failures_to.last().map_or(0, |&(_, latest)| latest);
            self.failures_to.push((begin, latest.max(end)));
        }
    }

    /// Whether a failed swap may have found the value that the key had after `txn`. A swap cannot
    /// have found the value in two cases: the value was overwritten before the swap began, or the
    /// value was written after the swap ended.
    pub(super) fn may_explain(&self, txn: &Txn) -> bool {
        let until = self.overwritten(txn.end);
        let begun = self
            .failures_to
            .partition_point(|&(begin, _)| begin <= until);
        begun > 0 && self.failures_to[begun - 1].1 >= txn.begin
    }

    /// Returns the last moment at which an answer could depend on this effect. The effect must be a
    /// deletion, or a write of a value that no transaction found.
    pub(super) fn last_use(&self, effect: Effect) -> TxnTime {
        let failures = self.failures_to.last().map_or(0, |&(_, latest)| latest);
        match effect {
            Effect::Write(ABSENT) => failures.max(self.absent_until),
            _ => failures,
        }
    }

    pub(super) fn finish(&mut self) {
        self.sightings.finish();
        let mut earliest = NEVER;
        for (_, end) in self.ends_from.iter_mut().rev() {
            earliest = earliest.min(*end);
            *end = earliest;
        }
        if self.has_deletions {
            // The key may become absent again.
            self.writes[ABSENT as usize] = None;
            self.uses[ABSENT as usize].last_read = 0;
        }
    }

    /// Whether a failed swap's expectation was certainly wrong at some moment. This is true in
    /// three cases. First, the expected value was never written. Second, another value was
    /// certainly current at a moment of the swap. Third, the expected value has only one write, and
    /// at a moment of the swap the value was not written yet, or was already overwritten.
    pub(super) fn is_explained(&self, effect: Effect, begin: TxnTime, end: TxnTime) -> bool {
        let Effect::Fail(expected) = effect else {
            return false;
        };
        let write = match expected {
            NEVER_WRITTEN => return true,
            _ if self.sightings.has_other_value(expected, begin, end) => return true,
            expected => self.writes[expected as usize],
        };
        write.is_some_and(|(write_begin, write_end)| {
            begin <= write_begin || self.overwritten(write_end) <= end
        })
    }

    /// Returns the earliest moment at which the value of a write was certainly overwritten. `end`
    /// is the end of this write.
    fn overwritten(&self, end: TxnTime) -> TxnTime {
        let later = self.ends_from.partition_point(|&(begin, _)| begin <= end);
        self.ends_from.get(later).map_or(NEVER, |&(_, end)| end)
    }
}
