//! Operations of clients and how they ended: the record by which a round is judged.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use leasehold_histories::history::{History, HistoryEvent};
use leasehold_histories::serializability::Transaction;
use leasehold_wire::Path;

use super::chooser::group_of;
use super::request::{OperationKind, Parts};

/// Most answers kept that no state explains; one is a violation.
const WRONG_MAX: usize = 20;

/// Outcome of an operation.
#[derive(Clone, Debug)]
pub enum OperationOutcome {
    /// With an answer, which says this.
    Answered(Parts),
    /// Without one: it may have been executed, or may still be.
    Unknown(Parts),
    /// Without any effect.
    Failed,
}

/// Operations of one kind, by their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct OutcomeCounts {
    /// With an answer.
    pub answered: u64,
    /// Nobody knows whether they were executed.
    pub unknown: u64,
    /// Without any effect.
    pub failed: u64,
}

impl OutcomeCounts {
    /// All of them.
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
    /// Number of the client.
    pub client: u32,
    /// At which site it asked.
    pub site: usize,
    /// Whether it asks other replicas when its own does not answer.
    pub roams: bool,
    /// Kind of the operation.
    pub kind: OperationKind,
    /// When it began and ended, in ns since the round began.
    pub began_ns: u64,
    /// See `began_ns`.
    pub now_ns: u64,
    /// Outcome of the operation.
    pub end: OperationOutcome,
}

/// Record of a round: the operations of its clients, and how they ended.
#[derive(Clone, Debug, Default)]
pub struct RoundRecord {
    /// Operations on hot and cold keys, key by key.
    pub history: History,
    /// Operations on the keys of each group.
    pub groups: BTreeMap<u64, Vec<Transaction>>,
    /// By kind.
    pub counts: BTreeMap<OperationKind, OutcomeCounts>,
    /// Answers that no state of the store explains.
    pub wrong: Vec<String>,
    /// Number of answers by the path that served them.
    pub paths: BTreeMap<Path, u64>,
    /// Longest time without an answer at each site: for its clients that stay with its replica, and
    /// for those that roam.
    pub gaps: Vec<[AnswerGap; 2]>,
}

/// The longest time without an answer, from when the load began.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerGap {
    last_ns: u64,
    /// When it began, in ns since the round began.
    pub from_ns: u64,
    /// Duration, in ns.
    pub longest_ns: u64,
}

impl AnswerGap {
    /// Something was answered.
    pub fn answered(&mut self, now_ns: u64) {
        let gap_ns = now_ns.saturating_sub(self.last_ns);
        if gap_ns > self.longest_ns {
            (self.from_ns, self.longest_ns) = (self.last_ns, gap_ns);
        }
        self.last_ns = self.last_ns.max(now_ns);
    }
}

impl RoundRecord {
    /// Creates the record of clients at this many sites. They begin now.
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

    /// Notes an operation that ended.
    pub fn add(&mut self, operation: &CompletedOperation) {
        let counts = self.counts.entry(operation.kind).or_default();
        match &operation.end {
            OperationOutcome::Answered(parts) => {
                counts.answered += 1;
                self.gaps[operation.site][usize::from(operation.roams)].answered(operation.now_ns);
                self.append(operation, parts, Some(operation.now_ns));
            }
            OperationOutcome::Unknown(parts) => {
                counts.unknown += 1;
                self.append(operation, parts, None);
            }
            OperationOutcome::Failed => counts.failed += 1,
        }
    }

    /// The clients have gone: nothing will be answered any more.
    pub fn close(&mut self, now_ns: u64) {
        let gaps = self.gaps.iter_mut().flatten();
        gaps.for_each(|gap| gap.answered(now_ns));
    }

    /// Notes what was read when the clients had gone. It is judged, and counted nowhere.
    pub fn add_final_read(&mut self, operation: &CompletedOperation) {
        if let OperationOutcome::Answered(parts) = &operation.end {
            self.append(operation, parts, Some(operation.now_ns));
        }
    }

    /// Notes how an answer was served.
    pub fn served(&mut self, path: Path) {
        *self.paths.entry(path).or_default() += 1;
    }

    /// Notes an answer that no state of the store explains.
    pub fn wrong(&mut self, what: String) {
        if self.wrong.len() < WRONG_MAX {
            self.wrong.push(what);
        }
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

    /// Operations of all kinds.
    pub fn total(&self) -> OutcomeCounts {
        let mut total = OutcomeCounts::default();
        self.counts.values().for_each(|counts| total += *counts);
        total
    }

    /// Operations on groups, key by key, as a history that can be stored.
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
