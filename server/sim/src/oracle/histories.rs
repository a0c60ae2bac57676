//! Histories that clients observe (oracle 12): the history of each key must be linearizable. If
//! commands concern several keys, the whole history must be strictly serializable (§3.6; Herlihy &
//! Wing 1990). This is judged only by values and times. Versions, and everything else that replicas
//! report about themselves, are ignored.

use leasehold_histories::history::History;
use leasehold_histories::linearizability;
use leasehold_histories::serializability::{self, Transaction};

use super::{Verdict, ensure};

pub(super) const NAME: &str = "histories";

/// Oracle that judges the clients' histories. It uses only the values and the times in a history.
#[derive(Debug, Default)]
pub struct HistoryOracle {
    /// Number of operations and transactions judged.
    pub checks: u64,
    /// Number of histories that took too long to judge.
    pub unknown: u64,
}

impl HistoryOracle {
    /// Judges each key of a whole run.
    ///
    /// # Errors
    /// The history of some key is not linearizable.
    pub fn judge(&mut self, history: &History) -> Verdict {
        match linearizability::check(history) {
            linearizability::LinearizabilityVerdict::Linearizable { ops, .. } => {
                self.checks += ops as u64
            }
            linearizability::LinearizabilityVerdict::Unknown { .. } => self.unknown += 1,
            linearizability::LinearizabilityVerdict::Violation {
                key, explanation, ..
            } => ensure!(NAME, false, "key {key} is not linearizable: {explanation}"),
        }
        Ok(())
    }

    /// Judges all keys of a small run together.
    ///
    /// # Errors
    /// No order of the transactions explains every answer.
    pub fn judge_together(&mut self, transactions: &[Transaction]) -> Verdict {
        match serializability::check(transactions) {
            serializability::SerializabilityVerdict::Serializable { transactions, .. } => {
                self.checks += transactions as u64;
            }
            serializability::SerializabilityVerdict::Unknown { .. } => self.unknown += 1,
            serializability::SerializabilityVerdict::Violation {
                keys, explanation, ..
            } => ensure!(
                NAME,
                false,
                "keys {keys:?} are not serializable: {explanation}"
            ),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leasehold_histories::history::{HistoryAction, HistoryEvent, ValueId};

    use super::*;

    const A: ValueId = ValueId(1);

    fn event(process: u32, key: u64, action: HistoryAction, invoke_ns: u64) -> HistoryEvent {
        HistoryEvent {
            process,
            key,
            action,
            invoke_ns,
            return_ns: Some(invoke_ns + 1),
        }
    }

    fn read(value: Option<ValueId>) -> HistoryAction {
        HistoryAction::Read { value }
    }

    #[test]
    fn a_stale_read_is_no_history() {
        for (found, good) in [(Some(A), true), (None, false)] {
            let mut history = History::new();
            history.push(event(0, 1, HistoryAction::Write { value: A }, 0));
            history.push(event(1, 1, read(found), 10));
            let mut histories = HistoryOracle::default();
            assert_eq!(histories.judge(&history).is_ok(), good);
            assert_eq!(histories.checks > 0, good);
        }
    }

    #[test]
    fn half_a_write_of_two_keys_is_no_history() {
        let transaction =
            |process, parts: Vec<(u64, HistoryAction)>, invoke_ns, return_ns| Transaction {
                process,
                parts,
                invoke_ns,
                return_ns: Some(return_ns),
            };
        let both = vec![
            (1, HistoryAction::Write { value: A }),
            (2, HistoryAction::Write { value: ValueId(2) }),
        ];
        for (second, good) in [(Some(ValueId(2)), true), (None, false)] {
            // Each key alone is linearizable, because the read overlaps the write.
            let seen = vec![(1, read(Some(A))), (2, read(second))];
            let all = [
                transaction(0, both.clone(), 0, 20),
                transaction(1, seen, 10, 30),
            ];
            let mut histories = HistoryOracle::default();
            assert_eq!(histories.judge_together(&all).is_ok(), good);
        }
    }
}
