//! Histories to judge: those of a store that behaves, of one whose transactions come
//! apart, and the same with some answers or times changed.

use std::collections::BTreeMap;

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::Transaction;
use crate::history::{Action, ValueId};

/// What a generated history is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub seed: u64,
    pub transactions: usize,
    pub keys: u64,
    pub processes: u32,
    /// Of a hundred transactions, how many are on several keys.
    pub several: u32,
    /// Longest transaction, and longest pause between two of one process.
    pub duration_ns: u64,
    /// Of a hundred transactions, how many are never answered.
    pub unanswered: u32,
    /// Of a hundred transactions on several keys, how many take effect on each key at
    /// a moment of its own. None: always strictly serializable.
    pub torn: u32,
}

/// What a transaction does to one key, and the moment at which it does.
struct Planned {
    effect_ns: u64,
    transaction: usize,
    part: usize,
}

/// The answers of a store.
pub(super) fn history(shape: &Shape) -> Vec<Transaction> {
    let mut rng = Pcg64Mcg::seed_from_u64(shape.seed);
    let mut transactions = Vec::with_capacity(shape.transactions);
    let mut planned = Vec::new();
    let mut free_at = vec![0; shape.processes as usize];
    for index in 0..shape.transactions {
        let process = rng.random_range(0..shape.processes);
        let begin = free_at[process as usize] + rng.random_range(1..=shape.duration_ns);
        let end = begin + rng.random_range(0..=shape.duration_ns);
        free_at[process as usize] = end;
        let answered = rng.random_range(0..100) >= shape.unanswered;
        let parts = parts(shape, index as u64, &mut rng);
        // Without an answer nobody knows when, or whether, it took effect.
        let late = end + if answered { 0 } else { 3 * shape.duration_ns };
        let torn = rng.random_range(0..100) < shape.torn;
        let together = rng.random_range(begin..=late);
        if answered || rng.random_bool(0.5) {
            planned.extend((0..parts.len()).map(|part| Planned {
                effect_ns: if torn {
                    rng.random_range(begin..=late)
                } else {
                    together
                },
                transaction: index,
                part,
            }));
        }
        transactions.push(Transaction {
            process,
            parts,
            invoke_ns: begin,
            return_ns: answered.then_some(end),
        });
    }
    planned.sort_by_key(|step| (step.effect_ns, step.transaction));
    perform(&mut transactions, &planned, &mut rng);
    transactions
}

fn perform(transactions: &mut [Transaction], planned: &[Planned], rng: &mut Pcg64Mcg) {
    // By key what it holds, and what it held before that.
    let mut keys: BTreeMap<u64, (Option<ValueId>, Option<ValueId>)> = BTreeMap::new();
    for step in planned {
        let (key, action) = &mut transactions[step.transaction].parts[step.part];
        let (held, before) = keys.entry(*key).or_default();
        let was = *held;
        match action {
            Action::Read { value } => *value = *held,
            Action::Write { value } => *held = Some(*value),
            Action::Delete => *held = None,
            Action::Cas {
                expected,
                new,
                swapped,
            } => {
                *expected = if rng.random_bool(0.7) { *held } else { *before };
                *swapped = *expected == *held;
                if *swapped {
                    *held = Some(*new);
                }
            }
        }
        if *held != was {
            *before = was;
        }
    }
}

/// What the simulator's clients do: single operations, and writes, reads and scans
/// of several keys.
fn parts(shape: &Shape, index: u64, rng: &mut Pcg64Mcg) -> Vec<(u64, Action)> {
    let key = rng.random_range(0..shape.keys);
    let other = (key + 1) % shape.keys;
    let value = |offset| ValueId(index * 2 + offset);
    let write = |offset| Action::Write {
        value: value(offset),
    };
    let read = Action::Read { value: None };
    if rng.random_range(0..100) < shape.several {
        return match rng.random_range(0..10) {
            0..4 if other != key => vec![(key, write(0)), (other, write(1))],
            0..7 => vec![(key, read), (other, read)],
            _ => (0..shape.keys).map(|key| (key, read)).collect(),
        };
    }
    let action = match rng.random_range(0..12) {
        0..4 => read,
        4..8 => write(0),
        8 => Action::Delete,
        _ => Action::Cas {
            expected: None,
            new: value(0),
            swapped: false,
        },
    };
    vec![(key, action)]
}

/// Changes one transaction: what it found, or when it was.
pub(super) fn disturb(transactions: &mut [Transaction], rng: &mut impl Rng) {
    let index = rng.random_range(0..transactions.len());
    let part = rng.random_range(0..transactions[index].parts.len());
    let (key, action) = transactions[index].parts[part];
    let on_key = transactions.iter().flat_map(|t| &t.parts);
    let values: Vec<Option<ValueId>> = on_key
        .filter(|(of, _)| *of == key)
        .map(|(_, action)| value_of(action))
        .collect();
    let other = values[rng.random_range(0..values.len())];
    let shift = rng.random_range(0..6);
    let transaction = &mut transactions[index];
    let changed = match action {
        Action::Read { .. } if rng.random_bool(0.6) => Action::Read { value: other },
        Action::Cas { new, swapped, .. } if rng.random_bool(0.3) => Action::Cas {
            expected: other,
            new,
            swapped,
        },
        Action::Cas {
            expected,
            new,
            swapped,
        } if rng.random_bool(0.5) => Action::Cas {
            expected,
            new,
            swapped: !swapped,
        },
        unchanged => {
            let later = rng.random_bool(0.5);
            let moved = |at: &mut u64| {
                *at = if later {
                    *at + shift
                } else {
                    at.saturating_sub(shift)
                }
            };
            moved(&mut transaction.invoke_ns);
            transaction.return_ns.iter_mut().for_each(moved);
            unchanged
        }
    };
    transaction.parts[part].1 = changed;
}

fn value_of(action: &Action) -> Option<ValueId> {
    match *action {
        Action::Read { value } => value,
        Action::Write { value } | Action::Cas { new: value, .. } => Some(value),
        Action::Delete => None,
    }
}
