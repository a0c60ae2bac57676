//! Judges a round by what its clients saw, and by nothing else.
//!
//! Hot and cold keys are judged one by one, over the whole round; an operation on several
//! keys must be in order on each of them. Groups are judged as histories of transactions:
//! all keys together. Both include what was read at the end, after every replica was
//! killed, so an acknowledged write that was lost is a read of what came before it.

use leasehold_histories::linearizability;
use leasehold_histories::serializability;

use super::record::RoundRecord;

/// Most states developed for one group: some seconds.
const STEPS: usize = 2_000_000;

/// Verdict on a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Judgement {
    /// Operations on hot and cold keys, counted at each key.
    pub operations: usize,
    /// These keys.
    pub keys: usize,
    /// Transactions of groups.
    pub transactions: usize,
    /// Groups.
    pub groups: usize,
    /// Checks that took too long, and why.
    pub undecided: Vec<String>,
    /// Contradictions to linearizability, in the checkers' words.
    pub violations: Vec<String>,
}

/// Judges a round.
pub fn judge(record: &RoundRecord) -> Judgement {
    let mut judged = Judgement {
        violations: record.wrong.clone(),
        ..Judgement::default()
    };
    judged.single_keys(record);
    for (group, transactions) in &record.groups {
        judged.group(*group, transactions);
    }
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
