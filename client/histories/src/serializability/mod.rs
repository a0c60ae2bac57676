//! Checks that operations on several keys took effect at one moment. A history of transactions,
//! which may be single operations, must be **strictly serializable**: some order explains every
//! answer and respects real time (Papadimitriou 1979; Herlihy & Wing 1990, §3.5).
//!
//! Unlike linearizability, this property is not local. The operations on each single key may have
//! an order while all operations together have none, for instance if a scan saw one half of a
//! write. So all keys are judged together:
//!
//! 1. Each key alone is judged first: a violation at one key is a violation of the whole, and
//!    easier to explain.
//! 2. `prepare` turns values into numbers, and decides about the transactions that were never
//!    answered.
//! 3. `search` follows all possible orders in parallel, from moment to moment. If no transaction is
//!    in flight at a moment, only the possible contents of the keys are kept for the next moment.
//! 4. `shrink` removes the parts that do not matter to a violation.
//!
//! The search is exact, and exponential in the worst case. It is meant for histories of a few
//! clients and a few keys. After a bounded amount of work it returns `Unknown`.

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

/// Maximum number of states that [`check`] expands. The expansion of this number of states takes a
/// few seconds.
pub const STEPS: usize = 2_000_000;

/// Actions on one or several keys that took effect at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Process that issued the transaction. A process has only one transaction in flight at a time.
    pub process: u32,
    /// Parts of the transaction: each part is a key and an action on this key. The parts take
    /// effect in this order. A transaction that changes keys names each key only once, except that
    /// it may read a key and then delete it. A scan is a read of every key that could exist in its
    /// range. If the transaction has no answer, the values that it read are ignored. An unanswered
    /// transaction has no effect if one of its compare-and-swaps finds another value than the
    /// expected one.
    pub parts: Vec<(u64, HistoryAction)>,
    /// Time at which the transaction began, in nanoseconds. All times of the history are read from
    /// one clock.
    pub invoke_ns: u64,
    /// Time at which the transaction's answer arrived, by the same clock; `None` if no answer
    /// arrived.
    pub return_ns: Option<u64>,
}

/// Result of checking a history of transactions for serializability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SerializabilityVerdict {
    /// Some order of the transactions explains every answer.
    Serializable {
        /// Number of transactions judged.
        transactions: usize,
        /// Number of keys that the transactions concern.
        keys: usize,
    },
    /// No order of the transactions explains every answer.
    Violation {
        /// Keys on which the transactions in `transactions` contradict each other.
        keys: Vec<u64>,
        /// Description of the contradictory transactions and of their times.
        explanation: String,
        /// Transactions that contradict each other, in the order in which they began. If a part of
        /// a transaction is not needed for the contradiction, this part is omitted.
        transactions: Vec<Transaction>,
    },
    /// No violation was found, but the history could not be judged completely.
    Unknown {
        /// Reason why the history could not be judged.
        reason: String,
    },
}

impl SerializabilityVerdict {
    /// Whether the verdict is `Serializable`.
    pub fn is_serializable(&self) -> bool {
        matches!(self, SerializabilityVerdict::Serializable { .. })
    }
}

/// Judges a history. The transactions may be in any order. The search expands at most [`STEPS`]
/// states.
pub fn check(transactions: &[Transaction]) -> SerializabilityVerdict {
    check_within(transactions, STEPS)
}

/// Judges a history. The search expands at most `steps` states. If the search needs more states,
/// the verdict is `Unknown`.
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

/// Returns a transaction without its unanswered reads, because the results of these reads are
/// unknown. Returns `None` if no part remains.
fn without_unread(transaction: &Transaction) -> Option<Transaction> {
    let mut transaction = transaction.clone();
    if transaction.return_ns.is_none() {
        let is_read = |action: &HistoryAction| matches!(action, HistoryAction::Read { .. });
        transaction.parts.retain(|(_, action)| !is_read(action));
    }
    (!transaction.parts.is_empty()).then_some(transaction)
}

/// Returns a violation at a single key, if there is one. Skips a key that cannot be judged alone,
/// because all keys are judged together afterwards.
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

/// Builds the verdict that the transactions in `culprits` contradict each other. No other
/// transaction can resolve this contradiction.
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
