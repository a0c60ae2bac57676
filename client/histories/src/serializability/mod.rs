//! Checks that operations on several keys took effect at one moment. A history of
//! transactions (single operations among them) must be **strictly serializable**: some
//! order explains every answer and respects real time (Papadimitriou 1979; Herlihy
//! & Wing 1990, §3.5).
//!
//! Unlike linearizability this is not local: every key alone may be in order while the
//! whole is not, as when a scan saw one half of a write. So all keys are followed
//! together:
//!
//! 1. Each key alone is judged first: a violation there is one of the whole, and
//!    easier to explain.
//! 2. `prepare` makes numbers of values, and settles what was never answered.
//! 3. `search` follows all orders at once, from moment to moment. A moment at
//!    which nothing is in flight needs no special care: only what the keys may
//!    hold is carried over it.
//! 4. `shrink` leaves out what does not matter to a violation.
//!
//! The search is exact, and exponential in the worst case: it is meant for a
//! handful of clients and keys. It gives up with `Unknown` after a bounded amount
//! of work.

mod prepare;
mod search;
mod shrink;

#[cfg(test)]
mod brute;
#[cfg(test)]
mod generate;
#[cfg(test)]
mod tests;

use crate::history::{History, HistoryAction, HistoryEvent};
use crate::linearizability::{self, explain};
use prepare::PreparedTransactions;
use search::SearchOutcome;

/// States that [`check`] develops at most: a few seconds.
pub const STEPS: usize = 2_000_000;

/// Something that took effect at one moment, on one key or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Process that did it; a process does one thing at a time.
    pub process: u32,
    /// Actions on the keys, one key after the other, in this order; a scan is a read of every key
    /// there could be. A value that is read in a transaction without an answer does not count. If a
    /// compare-and-swap in a transaction without an answer would fail, none of it happens.
    pub parts: Vec<(u64, HistoryAction)>,
    /// When it began, in nanoseconds of one clock for the whole history.
    pub invoke_ns: u64,
    /// When its answer came, on the same clock; `None` if none ever did.
    pub return_ns: Option<u64>,
}

/// Result of a check: the conclusion that a history of transactions allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SerializabilityVerdict {
    /// Some order of the transactions explains every answer.
    Serializable {
        /// Transactions judged.
        transactions: usize,
        /// Keys that they concern.
        keys: usize,
    },
    /// No order does.
    Violation {
        /// The keys on which the transactions below contradict each other.
        keys: Vec<u64>,
        /// Transactions that contradict each other, with their times.
        explanation: String,
        /// Those transactions, in the order in which they began, without the parts
        /// that do not matter.
        transactions: Vec<Transaction>,
    },
    /// No violation was found, but none was ruled out either.
    Unknown {
        /// Why not.
        reason: String,
    },
}

impl SerializabilityVerdict {
    /// Whether it is `Serializable`.
    pub fn is_serializable(&self) -> bool {
        matches!(self, SerializabilityVerdict::Serializable { .. })
    }
}

/// Judges a history, in any order, with a bound on the work of [`STEPS`].
pub fn check(transactions: &[Transaction]) -> SerializabilityVerdict {
    check_within(transactions, STEPS)
}

/// Judges a history, developing at most `steps` states; more would be `Unknown`.
pub fn check_within(transactions: &[Transaction], mut steps: usize) -> SerializabilityVerdict {
    let relevant: Vec<Transaction> = transactions.iter().filter_map(without_unread).collect();
    if let Some(violation) = check_each_key(&relevant) {
        return violation;
    }
    let prepared = match PreparedTransactions::new(&relevant) {
        Ok(prepared) => prepared,
        Err(reason) => return SerializabilityVerdict::Unknown { reason },
    };
    match search::run(&prepared, &mut steps) {
        SearchOutcome::Ordered => SerializabilityVerdict::Serializable {
            transactions: relevant.len(),
            keys: prepared.keys.len(),
        },
        SearchOutcome::Contradiction => violation(shrink::shrink(relevant)),
        SearchOutcome::TooMany { reason } => SerializabilityVerdict::Unknown { reason },
    }
}

/// A transaction without the reads that were never answered: nobody knows what they
/// found.
fn without_unread(transaction: &Transaction) -> Option<Transaction> {
    let mut transaction = transaction.clone();
    if transaction.return_ns.is_none() {
        let is_read = |action: &HistoryAction| matches!(action, HistoryAction::Read { .. });
        transaction.parts.retain(|(_, action)| !is_read(action));
    }
    (!transaction.parts.is_empty()).then_some(transaction)
}

/// A violation at a single key, if there is one. A key that cannot be judged alone does
/// not matter here: all keys are judged together afterwards.
fn check_each_key(transactions: &[Transaction]) -> Option<SerializabilityVerdict> {
    let events = |transaction: &Transaction| -> Vec<HistoryEvent> {
        let event = |&(key, action): &(u64, HistoryAction)| HistoryEvent {
            process: transaction.process,
            key,
            action,
            invoke_ns: transaction.invoke_ns,
            return_ns: transaction.return_ns,
        };
        transaction.parts.iter().map(event).collect()
    };
    let history: History = transactions.iter().flat_map(events).collect();
    let linearizability::LinearizabilityVerdict::Violation {
        key,
        explanation,
        events,
    } = linearizability::check(&history)
    else {
        return None;
    };
    let transaction = |event: HistoryEvent| Transaction {
        process: event.process,
        parts: vec![(event.key, event.action)],
        invoke_ns: event.invoke_ns,
        return_ns: event.return_ns,
    };
    Some(SerializabilityVerdict::Violation {
        keys: vec![key],
        explanation: format!("key {key} alone: {explanation}"),
        transactions: events.into_iter().map(transaction).collect(),
    })
}

/// `culprits` contradict each other, whatever else happened.
fn violation(mut culprits: Vec<Transaction>) -> SerializabilityVerdict {
    culprits.sort_by_key(|culprit| (culprit.invoke_ns, culprit.return_ns, culprit.process));
    let mut keys: Vec<u64> = (culprits.iter())
        .flat_map(|culprit| culprit.parts.iter().map(|(key, _)| *key))
        .collect();
    keys.sort_unstable();
    keys.dedup();
    let lines: String = (culprits.iter())
        .map(|culprit| format!("\n  {}", explain::transaction(culprit)))
        .collect();
    let named: Vec<String> = keys.iter().map(u64::to_string).collect();
    SerializabilityVerdict::Violation {
        explanation: format!(
            "no order of these on the keys {} explains all their answers, and nothing else that happened can:{lines}",
            named.join(", ")
        ),
        keys,
        transactions: culprits,
    }
}
