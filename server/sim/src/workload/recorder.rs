//! Record of the clients' operations and answers, for the checkers.

use std::collections::BTreeMap;

use leasehold_histories::history::{History, HistoryEvent};
use leasehold_histories::serializability::Transaction;
use leasehold_wire::Path;

use super::operations::{Operation, Parts};

/// Maximum length, in commands, of a history that is judged for all keys together. Longer histories
/// are judged only key by key.
pub(crate) const TOGETHER_MAX: usize = 800;
/// Maximum number of operations for which memory is reserved in advance.
const EXPECTED_MAX: u64 = 1 << 16;

/// Record of the clients' operations and answers, for the checkers.
pub struct HistoryRecorder {
    /// Maximum number of operations that one client has under way.
    window: usize,
    /// History of the operations, key by key.
    pub history: History,
    /// History of the operations, command by command. Only the first `TOGETHER_MAX` + 1 commands
    /// are stored. A history of this length is already too long to be judged for all keys together.
    pub transactions: Vec<Transaction>,
    /// Number of operations that were answered.
    pub answered: u64,
    /// Number of operations with an unknown outcome.
    pub unknown: u64,
    /// Number of permanently refused operations. These operations are not in the history.
    pub refused: u64,
    /// Number of answered operations, by the path that served them.
    pub paths: BTreeMap<Path, u64>,
}

impl HistoryRecorder {
    /// Creates an empty record. Each client has at most `window` operations under way. All clients
    /// together are expected to begin `expected` operations.
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

    /// Records the effects of an operation, unless there are none. `return_ns` is the time of the
    /// answer; `None` if the operation may be executed at any time, or never.
    pub(super) fn push(&mut self, operation: &Operation, parts: Parts, return_ns: Option<u64>) {
        if parts.is_empty() {
            return;
        }
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
