//! Prepares transactions for the search. Keys and values are replaced by small numbers.
//! Transactions without an answer get an end or are omitted. For each value, the limits on the
//! possible orders are collected.

mod key;
mod sightings;

use std::collections::HashMap;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::Transaction;
use crate::history::{HistoryAction, TIME_NS_MAX, ValueId};
pub(super) use key::KeyConstraints;

/// Content of a key, as a number. Each value written to the key has its own number. Number 0 means
/// that the key is absent.
pub(super) type ValueNumber = u32;
pub(super) const ABSENT: ValueNumber = 0;
/// Value that a transaction expected, but that no transaction wrote.
const NEVER_WRITTEN: ValueNumber = u32::MAX;

/// Time of a moment in the history, plus one. The number 0 is therefore before every moment.
pub(super) type TxnTime = u64;
pub(super) const NEVER: TxnTime = u64::MAX;

type Map<K, V> = HashMap<K, V, FixedState>;
/// Effect that one part of a transaction has on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// The key must hold this value.
    Read(ValueNumber),
    /// The key must not hold this value.
    Fail(ValueNumber),
    Write(ValueNumber),
    Swap {
        expected: ValueNumber,
        new: ValueNumber,
    },
}

impl Effect {
    /// Returns the value that the key must hold; `None` if the key may hold any value.
    pub fn finds(self) -> Option<ValueNumber> {
        match self {
            Effect::Read(found) => Some(found),
            Effect::Swap { expected, .. } => Some(expected),
            Effect::Fail(_) | Effect::Write(_) => None,
        }
    }

    /// Returns the value that the key holds after the effect; `None` if the effect does not change
    /// the key.
    pub fn leaves(self) -> Option<ValueNumber> {
        match self {
            Effect::Write(new) | Effect::Swap { new, .. } => Some(new),
            Effect::Read(_) | Effect::Fail(_) => None,
        }
    }

    /// Returns the effect of this read and of a deletion of the same key at the same moment.
    fn then_deleted(self) -> Effect {
        match self {
            Effect::Read(ABSENT) => self,
            Effect::Read(expected) => Effect::Swap {
                expected,
                new: ABSENT,
            },
            Effect::Fail(_) | Effect::Write(_) | Effect::Swap { .. } => Effect::Write(ABSENT),
        }
    }
}

#[derive(Debug)]
pub(super) struct Txn {
    /// Parts of the transaction, each as (index of the key, effect on the key).
    pub parts: SmallVec<[(usize, Effect); 2]>,
    pub begin: TxnTime,
    /// End of the transaction; `NEVER` if the transaction may or may not have taken effect.
    pub end: TxnTime,
    /// Whether the transaction changes nothing.
    pub is_read: bool,
    /// Whether the transaction can take effect regardless of the contents of the keys.
    pub is_blind: bool,
    /// Whether a compare-and-swap may have failed because of a value that this transaction wrote.
    pub explains_a_failure: bool,
    /// Last moment at which an answer could depend on the transaction. This field is used only for
    /// transactions that may never have taken effect.
    pub last_use: TxnTime,
}

#[derive(Debug)]
pub(super) struct PreparedTransactions {
    /// Transactions in the order in which they began.
    pub txns: Vec<Txn>,
    pub keys: Vec<KeyConstraints>,
}

impl PreparedTransactions {
    /// Prepares the transactions for the search.
    ///
    /// # Errors
    /// The reason why the transactions cannot be judged.
    pub fn new(transactions: &[Transaction]) -> Result<PreparedTransactions, String> {
        let mut order: Vec<&Transaction> = transactions.iter().collect();
        order.sort_by_key(|transaction| (transaction.invoke_ns, transaction.return_ns));
        let backwards = |t: &&&Transaction| t.return_ns.is_some_and(|end| end < t.invoke_ns);
        if let Some(transaction) = order.iter().find(backwards) {
            let process = transaction.process;
            return Err(format!(
                "a transaction of process {process} ends before it begins"
            ));
        }
        let too_late = |t: &&&Transaction| t.return_ns.unwrap_or(t.invoke_ns) > TIME_NS_MAX;
        if let Some(transaction) = order.iter().find(too_late) {
            let process = transaction.process;
            return Err(format!(
                "a transaction of process {process} has an impossible time"
            ));
        }
        order.iter().try_for_each(|one| check_keys(one))?;
        let writers = find_writers(&order)?;
        let ends = complete_open(&order, &writers);
        let mut builder = TxnBuilder::default();
        order
            .iter()
            .for_each(|transaction| builder.number(transaction));
        for (transaction, end) in order.iter().zip(ends) {
            builder.add(transaction, end);
        }
        Ok(builder.build())
    }
}

/// Refuses a transaction if its effect would depend on the order of its parts. A transaction may
/// read a key and then delete it, because no single action expresses this.
fn check_keys(transaction: &Transaction) -> Result<(), String> {
    let is_read = |(_, action): &(u64, HistoryAction)| matches!(action, HistoryAction::Read { .. });
    if transaction.parts.iter().all(is_read) {
        return Ok(());
    }
    let mut parts: Vec<(u64, HistoryAction)> = transaction.parts.clone();
    parts.sort_by_key(|(key, _)| *key);
    let mut of_keys = parts.chunk_by(|a, b| a.0 == b.0);
    let is_unclear = |of_key: &&[(u64, HistoryAction)]| {
        use HistoryAction::{Delete, Read};
        !matches!(of_key, [_] | [(_, Read { .. }), (_, Delete)])
    };
    match of_keys.find(is_unclear) {
        None => Ok(()),
        Some(of_key) => Err(format!(
            "a transaction of process {} changes key {} and names it twice",
            transaction.process, of_key[0].0
        )),
    }
}

/// Map from a key and a value to the transaction that wrote the value or may have written it.
type Writers = Map<(u64, ValueId), usize>;

/// Returns the value that the action wrote or may have written.
fn written(action: &HistoryAction, open: bool) -> Option<ValueId> {
    match *action {
        HistoryAction::Write { value } => Some(value),
        HistoryAction::Cas { new, swapped, .. } if swapped || open => Some(new),
        _ => None,
    }
}

/// Returns the value that the action must have found, if the action took effect.
fn found(action: &HistoryAction, open: bool) -> Option<Option<ValueId>> {
    match *action {
        HistoryAction::Read { value } => Some(value),
        HistoryAction::Cas {
            expected, swapped, ..
        } if swapped || open => Some(expected),
        _ => None,
    }
}

fn is_failed_swap(action: &HistoryAction, open: bool) -> bool {
    !open && matches!(action, HistoryAction::Cas { swapped: false, .. })
}

fn find_writers(order: &[&Transaction]) -> Result<Writers, String> {
    let mut writers = Writers::default();
    for (index, transaction) in order.iter().enumerate() {
        for (key, action) in &transaction.parts {
            let Some(value) = written(action, transaction.return_ns.is_none()) else {
                continue;
            };
            if writers.insert((*key, value), index).is_some() {
                return Err(format!("value {} was written twice to key {key}", value.0));
            }
        }
    }
    Ok(writers)
}

/// Returns the end of each transaction. An answered transaction ends at its answer. An unanswered
/// transaction gets its end from the transactions that found its values: it took effect before the
/// first of them ended. If no transaction found its values, its end is `NEVER`.
fn complete_open(order: &[&Transaction], writers: &Writers) -> Vec<TxnTime> {
    let end = |t: &&Transaction| t.return_ns.map_or(NEVER, |end| end.saturating_add(1));
    let mut ends: Vec<TxnTime> = order.iter().map(end).collect();
    let mut finders: Vec<usize> = (0..order.len()).filter(|i| ends[*i] != NEVER).collect();
    // The finder with the earliest end comes last, since `pop` takes the last.
    finders.sort_by_key(|&index| std::cmp::Reverse(ends[index]));
    while let Some(finder) = finders.pop() {
        let open = order[finder].return_ns.is_none();
        for (key, action) in &order[finder].parts {
            let Some(Some(value)) = found(action, open) else {
                continue;
            };
            if let Some(&writer) = writers.get(&(*key, value))
                && ends[writer] == NEVER
            {
                ends[writer] = ends[finder];
                finders.push(writer);
            }
        }
    }
    ends
}

#[derive(Default)]
struct TxnBuilder {
    indexes: Map<u64, usize>,
    keys: Vec<KeyConstraints>,
    txns: Vec<Txn>,
}

impl TxnBuilder {
    /// Assigns numbers to the keys of a transaction, and to the values that the transaction writes.
    fn number(&mut self, transaction: &Transaction) {
        for (key, action) in &transaction.parts {
            let next = self.keys.len();
            let index = *self.indexes.entry(*key).or_insert(next);
            if index == next {
                self.keys.push(KeyConstraints::new());
            }
            if let Some(value) = written(action, transaction.return_ns.is_none()) {
                self.keys[index].number(value);
            }
        }
    }

    fn add(&mut self, transaction: &Transaction, end: TxnTime) {
        let open = transaction.return_ns.is_none();
        let begin = transaction.invoke_ns.saturating_add(1);
        let mut parts: SmallVec<[(usize, Effect); 2]> = SmallVec::new();
        for (key, action) in &transaction.parts {
            let index = self.indexes[key];
            let effect = self.keys[index].effect(action, open);
            let mut before = parts.iter_mut().filter(|(of, _)| *of == index);
            match before.next() {
                Some((_, read)) if effect == Effect::Write(ABSENT) => *read = read.then_deleted(),
                _ => parts.push((index, effect)),
            }
        }
        for &(key, effect) in &parts {
            self.keys[key].note(effect, begin, end);
        }
        let changes = |(_, effect): &(usize, Effect)| effect.leaves().is_some();
        let is_blind = |(_, effect): &(usize, Effect)| matches!(effect, Effect::Write(_));
        self.txns.push(Txn {
            is_read: !parts.iter().any(changes),
            is_blind: parts.iter().all(is_blind),
            explains_a_failure: false,
            last_use: NEVER,
            parts,
            begin,
            end,
        });
    }

    fn build(mut self) -> PreparedTransactions {
        self.keys.iter_mut().for_each(KeyConstraints::finish);
        self.leave_out_explained();
        self.find_uses();
        self.txns
            .retain(|txn| !txn.parts.is_empty() && txn.begin <= txn.last_use);
        self.find_successors();
        PreparedTransactions {
            txns: self.txns,
            keys: self.keys,
        }
    }

    /// Omits each transaction that consists of one failed swap, if this swap is explained in every
    /// order. Adds all other failed swaps to the constraints of their keys.
    fn leave_out_explained(&mut self) {
        for txn in &mut self.txns {
            let (begin, end) = (txn.begin, txn.end);
            if let [(key, effect)] = txn.parts[..]
                && self.keys[key].is_explained(effect, begin, end)
            {
                txn.parts.clear();
            }
            for &(key, effect) in &txn.parts {
                self.keys[key].note_failure(effect, begin, end);
            }
        }
    }

    /// Determines for each transaction whether a failed swap could depend on this transaction. For
    /// a transaction that never ends, also determines the last moment at which an answer could
    /// depend on it.
    fn find_uses(&mut self) {
        for txn in &mut self.txns {
            let explains = |&(key, _): &(usize, Effect)| self.keys[key].may_explain(txn);
            txn.explains_a_failure = !txn.is_read && txn.parts.iter().any(explains);
            if txn.end == NEVER {
                let last_use = |&(key, effect): &(usize, Effect)| self.keys[key].last_use(effect);
                txn.last_use = txn.parts.iter().map(last_use).max().unwrap_or(0);
            }
        }
    }

    fn find_successors(&mut self) {
        for (index, txn) in self.txns.iter().enumerate() {
            for &(key, effect) in &txn.parts {
                let Effect::Swap { expected, .. } = effect else {
                    continue;
                };
                let key = &mut self.keys[key];
                let is_unique = expected != ABSENT;
                if is_unique && expected != NEVER_WRITTEN && txn.end != NEVER {
                    key.uses[expected as usize].successor = Some(index);
                }
            }
        }
    }
}
