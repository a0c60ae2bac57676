//! Record of what the clients saw, for the checkers.

use std::collections::BTreeMap;

use leasehold_histories::history::{History, HistoryEvent};
use leasehold_histories::serializability::Transaction;
use leasehold_wire::Path;

use super::operations::{Operation, Parts};

/// Histories up to this many commands are judged for all keys together, too.
pub(crate) const TOGETHER_MAX: usize = 800;
/// Room is made at the beginning for at most so many operations of a history.
const EXPECTED_MAX: u64 = 1 << 16;

/// Record of what the clients saw, for the checkers.
pub struct HistoryRecorder {
    /// Operations that one client has under way, at most.
    window: usize,
    /// History that the clients saw, key by key.
    pub history: History,
    /// The same, command by command, as far as they may be judged together.
    pub transactions: Vec<Transaction>,
    /// Operations answered.
    pub answered: u64,
    /// Operations that nobody can tell the fate of.
    pub unknown: u64,
    /// Operations that were refused for good: they are not in the history.
    pub refused: u64,
    /// By path.
    pub paths: BTreeMap<Path, u64>,
}

impl HistoryRecorder {
    /// Creates the record of clients that have up to `window` operations under way each; `expected`
    /// in all.
    pub(super) fn new(window: usize, expected: u64) -> HistoryRecorder {
        HistoryRecorder {
            window,
            history: History::with_capacity(expected.min(EXPECTED_MAX) as usize),
            transactions: Vec::new(),
            answered: 0,
            unknown: 0,
            refused: 0,
            paths: BTreeMap::new(),
        }
    }

    /// Nobody can tell what came of an operation: it may be executed at any time, or never.
    pub(super) fn leave_open(&mut self, operation: &Operation) {
        self.unknown += 1;
        self.push(operation, operation.ops.clone(), None);
    }

    /// An operation did this; `return_ns`: when it was answered, `None` if it may be
    /// executed at any time, or never.
    pub(super) fn push(&mut self, operation: &Operation, parts: Parts, return_ns: Option<u64>) {
        let process = (operation.client * self.window + operation.lane) as u32;
        let invoke_ns = operation.began_ns;
        for (key, action) in &parts {
            self.history.push(HistoryEvent {
                process,
                key: *key,
                action: *action,
                invoke_ns,
                return_ns,
            });
        }
        if self.transactions.len() <= TOGETHER_MAX {
            self.transactions.push(Transaction {
                process,
                parts: parts.into_vec(),
                invoke_ns,
                return_ns,
            });
        }
    }
}
