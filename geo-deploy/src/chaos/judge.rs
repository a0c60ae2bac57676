//! Judges a round from the history of the clients alone.
//!
//! Hot and cold keys are judged one by one, over the whole round. So an operation on several of
//! these keys is judged separately for each key. Groups are judged as histories of transactions,
//! with all keys of a group together. The ledger judges lists and counters. All histories include
//! the reads at the end, after every replica was killed and restarted. If an acknowledged write was
//! lost, such a read finds an earlier value.

use leasehold_histories::linearizability;
use leasehold_histories::serializability;

use super::record::RoundRecord;

/// Maximum number of states that are explored for one group. The exploration of this many states
/// takes some seconds.
const STEPS: usize = 2_000_000;

/// Verdict on a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Judgement {
    /// Number of operations on hot and cold keys. An operation on several keys is counted once for
    /// each key.
    pub operations: usize,
    /// Number of hot and cold keys that were judged.
    pub keys: usize,
    /// Number of transactions on groups.
    pub transactions: usize,
    /// Number of groups that were judged.
    pub groups: usize,
    /// Number of reads, appends and additions on lists and counters.
    pub growths: usize,
    /// Number of lists and counters that were judged.
    pub growing_keys: usize,
    /// One reason for each check that had no result, for example that the check took too long.
    pub undecided: Vec<String>,
    /// Descriptions of violations: answers that a correct store could not have given, and histories
    /// that the checkers found to be incorrect.
    pub violations: Vec<String>,
}

/// Judges the record of a round.
pub fn judge(record: &RoundRecord) -> Judgement {
    let mut judged = Judgement {
        violations: record.wrong.clone(),
        ..Judgement::default()
    };
    judged.single_keys(record);
    for (group, transactions) in &record.groups {
        judged.group(*group, transactions);
    }
    let ledger = record.ledger.judge();
    judged.growths = ledger.actions;
    judged.growing_keys = ledger.keys;
    judged.undecided.extend(ledger.undecided);
    judged.violations.extend(ledger.violations);
    judged
}

impl Judgement {
    fn single_keys(&mut self, record: &RoundRecord) {
        use linearizability::LinearizabilityVerdict;
        match linearizability::check(&record.history) {
            LinearizabilityVerdict::Linearizable { ops, keys } => {
                self.operations = ops;
                self.keys = keys;
            }
            LinearizabilityVerdict::Violation {
                key, explanation, ..
            } => self.violations.push(format!("key {key}: {explanation}")),
            LinearizabilityVerdict::Unknown { key, reason } => {
                self.undecided.push(format!("key {key}: {reason}"))
            }
        }
    }

    fn group(&mut self, group: u64, transactions: &[serializability::Transaction]) {
        use serializability::SerializabilityVerdict;
        match serializability::check_within(transactions, STEPS) {
            SerializabilityVerdict::Serializable { transactions, .. } => {
                self.transactions += transactions;
                self.groups += 1;
            }
            SerializabilityVerdict::Violation { explanation, .. } => {
                self.violations
                    .push(format!("group {group}: {explanation}"));
            }
            SerializabilityVerdict::Unknown { reason } => {
                self.undecided.push(format!("group {group}: {reason}"))
            }
        }
    }
}
