//! Record of the operations of clients and their outcomes, by which a round is judged.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use leasehold_histories::history::{History, HistoryEvent};
use leasehold_histories::serializability::Transaction;
use leasehold_wire::Path;

use super::effects::{Effects, Parts};
use super::keys::group_of;
use super::ledger::{GrowthLedger, Span};
use super::request::OperationKind;

/// Maximum number of unexplained answers that are kept in the record. Even a single unexplained
/// answer is a violation, because no correct store could have given it.
const WRONG_MAX: usize = 20;

/// Outcome of an operation.
#[derive(Clone, Debug)]
pub enum OperationOutcome {
    /// The operation was answered. The effects follow from the answer.
    Answered(Effects),
    /// The operation was not answered. It may have been executed, or may be executed later. For
    /// each branch that may be executed, the list has the possible effects.
    Unknown(Vec<Effects>),
    /// The operation failed, and had no effect.
    Failed,
}

/// Numbers of operations of one kind, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct OutcomeCounts {
    /// Number of operations that were answered.
    pub answered: u64,
    /// Number of operations with an unknown outcome. An operation with an unknown outcome may have
    /// been executed.
    pub unknown: u64,
    /// Number of operations that failed without an effect.
    pub failed: u64,
}

impl OutcomeCounts {
    /// Returns the number of operations with any outcome.
    pub fn all(&self) -> u64 {
        self.answered + self.unknown + self.failed
    }
}

impl AddAssign for OutcomeCounts {
    fn add_assign(&mut self, other: OutcomeCounts) {
        self.answered += other.answered;
        self.unknown += other.unknown;
        self.failed += other.failed;
    }
}

/// An operation that ended.
#[derive(Clone, Debug)]
pub struct CompletedOperation {
    /// ID of the client.
    pub client: u32,
    /// Index of the client's site in the topology.
    pub site: usize,
    /// Whether the client sends requests to other replicas if the replica of its own site does not
    /// answer.
    pub roams: bool,
    /// Kind of the operation.
    pub kind: OperationKind,
    /// Time at which the operation began, in ns since the round began.
    pub began_ns: u64,
    /// Time at which the operation ended, in ns since the round began.
    pub now_ns: u64,
    /// Outcome of the operation.
    pub end: OperationOutcome,
}

impl CompletedOperation {
    fn span(&self, ended_ns: Option<u64>) -> Span {
        Span {
            process: self.client,
            began_ns: self.began_ns,
            ended_ns,
        }
    }
}

/// Record of a round: the operations of its clients, and their outcomes.
#[derive(Clone, Debug, Default)]
pub struct RoundRecord {
    /// Operations on hot and cold keys, one event for each key.
    pub history: History,
    /// Operations on the keys of each group. The map's key is the ID of the group.
    pub groups: BTreeMap<u64, Vec<Transaction>>,
    /// Operations on lists and counters.
    pub ledger: GrowthLedger,
    /// Numbers of operations, by kind and outcome.
    pub counts: BTreeMap<OperationKind, OutcomeCounts>,
    /// Descriptions of answers that a correct store could not have given in any state.
    pub wrong: Vec<String>,
    /// Number of answers that were served on each path.
    pub paths: BTreeMap<Path, u64>,
    /// Longest periods without an answer, by site. The first value of an entry is for the clients
    /// that use only the site's replica. The second value is for the clients that also use other
    /// replicas.
    pub gaps: Vec<[AnswerGap; 2]>,
}

/// Longest period in which the clients of one kind at a site got no answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerGap {
    last_ns: u64,
    /// Beginning of the longest gap, in ns since the round began.
    pub from_ns: u64,
    /// Duration of the longest gap, in ns.
    pub longest_ns: u64,
}

impl AnswerGap {
    /// Notes that an operation was answered at `now_ns`.
    pub fn answered(&mut self, now_ns: u64) {
        let gap_ns = now_ns.saturating_sub(self.last_ns);
        if gap_ns > self.longest_ns {
            (self.from_ns, self.longest_ns) = (self.last_ns, gap_ns);
        }
        self.last_ns = self.last_ns.max(now_ns);
    }
}

impl RoundRecord {
    /// Creates the record of a round with `sites` sites. The clients begin at `now_ns`.
    pub fn new(sites: usize, now_ns: u64) -> RoundRecord {
        let gap = AnswerGap {
            last_ns: now_ns,
            ..AnswerGap::default()
        };
        RoundRecord {
            gaps: vec![[gap; 2]; sites],
            ..RoundRecord::default()
        }
    }

    /// Adds an ended operation to the record.
    pub fn add(&mut self, operation: &CompletedOperation) {
        let counts = self.counts.entry(operation.kind).or_default();
        match &operation.end {
            OperationOutcome::Answered(effects) => {
                counts.answered += 1;
                self.gaps[operation.site][usize::from(operation.roams)].answered(operation.now_ns);
                self.add_answered(operation, effects);
            }
            OperationOutcome::Unknown(branches) => {
                counts.unknown += 1;
                for effects in branches {
                    self.append(operation, &effects.parts, None);
                }
                let growths = branches.iter().map(|effects| &effects.growths);
                self.ledger.add_unanswered(operation.span(None), growths);
            }
            OperationOutcome::Failed => counts.failed += 1,
        }
    }

    /// Ends the record after the clients have ended. At each site, the current period without an
    /// answer ends at `now_ns`.
    pub fn close(&mut self, now_ns: u64) {
        let gaps = self.gaps.iter_mut().flatten();
        gaps.for_each(|gap| gap.answered(now_ns));
    }

    /// Adds a read that was made after the clients had ended. The read is judged, but is not
    /// included in any count.
    pub fn add_final_read(&mut self, operation: &CompletedOperation) {
        if let OperationOutcome::Answered(effects) = &operation.end {
            self.add_answered(operation, effects);
        }
    }

    /// Notes the path on which an answer was served.
    pub fn served(&mut self, path: Path) {
        *self.paths.entry(path).or_default() += 1;
    }

    /// Adds the description of an answer that a correct store could not have given.
    pub fn wrong(&mut self, what: String) {
        if self.wrong.len() < WRONG_MAX {
            self.wrong.push(what);
        }
    }

    fn add_answered(&mut self, operation: &CompletedOperation, effects: &Effects) {
        let end_ns = Some(operation.now_ns);
        self.append(operation, &effects.parts, end_ns);
        self.ledger.add(operation.span(end_ns), &effects.growths);
    }

    fn append(&mut self, operation: &CompletedOperation, parts: &Parts, return_ns: Option<u64>) {
        let Some(&(first, _)) = parts.first() else {
            return;
        };
        let (process, invoke_ns) = (operation.client, operation.began_ns);
        if let Some(group) = group_of(first) {
            self.groups.entry(group).or_default().push(Transaction {
                process,
                parts: parts.clone(),
                invoke_ns,
                return_ns,
            });
            return;
        }
        let event = |&(key, action)| HistoryEvent {
            process,
            key,
            action,
            invoke_ns,
            return_ns,
        };
        self.history.extend(parts.iter().map(event));
    }

    /// Returns the number of operations of all kinds, by outcome.
    pub fn total(&self) -> OutcomeCounts {
        let mut total = OutcomeCounts::default();
        self.counts.values().for_each(|counts| total += *counts);
        total
    }

    /// Returns one history of all operations on groups, which can be written to a file. The history
    /// has an event for each key of an operation.
    pub fn grouped(&self) -> History {
        let mut history = History::new();
        for transaction in self.groups.values().flatten() {
            let event = |&(key, action)| HistoryEvent {
                process: transaction.process,
                key,
                action,
                invoke_ns: transaction.invoke_ns,
                return_ns: transaction.return_ns,
            };
            history.extend(transaction.parts.iter().map(event));
        }
        history
    }
}
