//! The definition of serializability itself, for histories that are so small that every order can
//! be tried. The checker is tested against this definition. The two share no code.

#![allow(clippy::disallowed_methods)] // sets are only tested for their members

use std::collections::{BTreeMap, HashSet};

use super::Transaction;
use crate::history::{HistoryAction, ValueId};

type StoreContents = BTreeMap<u64, ValueId>;

pub(super) fn is_serializable(transactions: &[Transaction]) -> bool {
    assert!(transactions.len() <= 16, "that would take too long");
    extend(transactions, 0, &StoreContents::new(), &mut HashSet::new())
}

/// Whether an order that begins with the transactions in `done` can be completed. `held` contains
/// the values of the keys after these transactions.
fn extend(
    all: &[Transaction],
    done: u32,
    held: &StoreContents,
    seen: &mut HashSet<(u32, StoreContents)>,
) -> bool {
    let waiting = || (0..all.len()).filter(|i| done & (1 << i) == 0);
    if waiting().all(|i| all[i].return_ns.is_none()) {
        return true;
    }
    if !seen.insert((done, held.clone())) {
        return false;
    }
    waiting().any(|next| {
        let may_be_next = waiting().all(|other| !precedes(&all[other], &all[next]));
        may_be_next
            && effect(&all[next], held)
                .is_some_and(|held| extend(all, done | (1 << next), &held, seen))
    })
}

fn precedes(one: &Transaction, two: &Transaction) -> bool {
    one.return_ns.is_some_and(|end| end < two.invoke_ns)
}

/// Returns the values that the keys hold after the transaction; `None` if the answer of the
/// transaction is wrong.
fn effect(transaction: &Transaction, before: &StoreContents) -> Option<StoreContents> {
    let open = transaction.return_ns.is_none();
    let mut held = before.clone();
    for (key, action) in &transaction.parts {
        let found = held.get(key).copied();
        match *action {
            HistoryAction::Read { value } if !open && value != found => return None,
            HistoryAction::Read { .. } => {}
            HistoryAction::Write { value } => {
                held.insert(*key, value);
            }
            HistoryAction::Delete => {
                held.remove(key);
            }
            HistoryAction::Cas { expected, new, .. } if open => {
                if found != expected {
                    return None;
                }
                held.insert(*key, new);
            }
            HistoryAction::Cas {
                expected,
                new,
                swapped,
            } => {
                if swapped != (found == expected) {
                    return None;
                }
                if swapped {
                    held.insert(*key, new);
                }
            }
        }
    }
    Some(held)
}
