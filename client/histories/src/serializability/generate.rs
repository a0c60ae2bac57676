//! Generated histories for testing the checker: histories of a correct store, histories of a store
//! in which the parts of one transaction take effect at different moments, and the same histories
//! with some answers or times changed.

use std::collections::BTreeMap;

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::Transaction;
use crate::history::{HistoryAction, ValueId};
use crate::linearizability::generate::{Processes, Register, any_of, disturb_one, value_of};

/// Parameters of a generated history.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransactionsShape {
    pub seed: u64,
    pub transactions: usize,
    pub keys: u64,
    pub processes: u32,
    /// Percentage of transactions with several keys.
    pub several: u32,
    /// Duration of the longest transaction. The longest pause between two transactions of one
    /// process has the same length.
    pub duration_ns: u64,
    /// Percentage of the transactions that are never answered.
    pub unanswered: u32,
    /// Percentage of torn transactions among the transactions with several keys. The parts of a
    /// torn transaction take effect at different moments. With 0, the history is always strictly
    /// serializable.
    pub torn: u32,
}

/// The part of a transaction that concerns one key, with the moment at which this part takes
/// effect.
struct PlannedPart {
    effect_ns: u64,
    transaction: usize,
    part: usize,
}

/// Returns the history of a store.
pub(super) fn history(shape: &TransactionsShape) -> Vec<Transaction> {
    let mut rng = Pcg64Mcg::seed_from_u64(shape.seed);
    let mut transactions = Vec::with_capacity(shape.transactions);
    let mut planned = Vec::new();
    let mut processes = Processes::new(shape.processes, shape.duration_ns, shape.unanswered);
    for index in 0..shape.transactions {
        let invocation = processes.next(&mut rng);
        let parts = parts(shape, index as u64, &mut rng);
        let torn = rng.random_range(0..100) < shape.torn;
        let some_time = invocation.invoke_ns..=invocation.latest_ns;
        let together = rng.random_range(some_time.clone());
        if invocation.return_ns.is_some() || rng.random_bool(0.5) {
            planned.extend((0..parts.len()).map(|part| PlannedPart {
                effect_ns: if torn {
                    rng.random_range(some_time.clone())
                } else {
                    together
                },
                transaction: index,
                part,
            }));
        }
        transactions.push(Transaction {
            process: invocation.process,
            parts,
            invoke_ns: invocation.invoke_ns,
            return_ns: invocation.return_ns,
        });
    }
    planned.sort_by_key(|step| (step.effect_ns, step.transaction));
    let mut keys: BTreeMap<u64, Register> = BTreeMap::new();
    for step in planned {
        let (key, action) = &mut transactions[step.transaction].parts[step.part];
        keys.entry(*key).or_default().perform(action, &mut rng);
    }
    transactions
}

/// Returns the parts of a random transaction. The transaction is of a kind that clients send: an
/// operation on one key, a write, read or scan of several keys, or a mixture of reads and changes.
fn parts(shape: &TransactionsShape, index: u64, rng: &mut Pcg64Mcg) -> Vec<(u64, HistoryAction)> {
    let key = rng.random_range(0..shape.keys);
    let other = (key + 1) % shape.keys;
    let value = |offset| ValueId(index * 2 + offset);
    let write = |offset| HistoryAction::Write {
        value: value(offset),
    };
    let read = HistoryAction::Read { value: None };
    let swap = HistoryAction::Cas {
        expected: None,
        new: value(0),
        swapped: false,
    };
    if rng.random_range(0..100) < shape.several {
        return match rng.random_range(0..14) {
            0..4 if other != key => vec![(key, write(0)), (other, write(1))],
            4 if other != key => vec![(key, read), (other, write(1))],
            5 if other != key => vec![(key, read), (other, read), (other, HistoryAction::Delete)],
            6 if other != key => vec![(key, swap), (other, write(1))],
            7 if other != key => vec![(key, swap), (other, read)],
            0..11 => vec![(key, read), (other, read)],
            _ => (0..shape.keys).map(|key| (key, read)).collect(),
        };
    }
    match rng.random_range(0..13) {
        0..4 => vec![(key, read)],
        4..8 => vec![(key, write(0))],
        8 => vec![(key, HistoryAction::Delete)],
        9 => vec![(key, read), (key, HistoryAction::Delete)],
        _ => vec![(key, swap)],
    }
}

/// Changes one transaction: either the values that the transaction found, or the times of the
/// transaction.
pub(super) fn disturb(transactions: &mut [Transaction], rng: &mut impl Rng) {
    let index = rng.random_range(0..transactions.len());
    let part = rng.random_range(0..transactions[index].parts.len());
    let key = transactions[index].parts[part].0;
    let on_key = transactions.iter().flat_map(|t| &t.parts);
    let values: Vec<Option<ValueId>> = on_key
        .filter(|(of, _)| *of == key)
        .map(|(_, action)| value_of(action))
        .collect();
    let other = any_of(&values, rng);
    let shift_ns = rng.random_range(0..6);
    let transaction = &mut transactions[index];
    disturb_one(
        &mut transaction.parts[part].1,
        &mut transaction.invoke_ns,
        &mut transaction.return_ns,
        other,
        shift_ns,
        rng,
    );
}
