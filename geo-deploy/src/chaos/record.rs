//! Operations of clients and how they ended: the record by which a round is judged.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use leasehold_histories::history::{Event, History};
use leasehold_histories::serializability::Transaction;
use leasehold_wire::Path;

use super::ask::{Kind, Parts};
use super::choose::group_of;

/// Most answers kept that no state explains; one is a violation.
const WRONG_MAX: usize = 20;

/// Outcome of an operation.
#[derive(Clone, Debug)]
pub enum End {
    /// With an answer, which says this.
    Answered(Parts),
    /// Without one: it may have been executed, or may still be.
    Unknown(Parts),
    /// Without any effect.
    Failed,
}

/// Operations of one kind, by their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// With an answer.
    pub answered: u64,
    /// Nobody knows whether they were executed.
    pub unknown: u64,
    /// Without any effect.
    pub failed: u64,
}

impl Counts {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.answered + self.unknown + self.failed
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.answered += other.answered;
        self.unknown += other.unknown;
        self.failed += other.failed;
    }
}

/// An operation that ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Number of the client.
    pub client: u32,
    /// At which site it asked.
    pub site: usize,
    /// Whether it asks other replicas when its own does not answer.
    pub roams: bool,
    /// Kind of the operation.
    pub kind: Kind,
    /// When it began and ended, in ns since the round began.
    pub began_ns: u64,
    /// See `began_ns`.
    pub now_ns: u64,
    /// Outcome of the operation.
    pub end: End,
}

/// Record of a round: the operations of its clients, and how they ended.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Operations on hot and cold keys, key by key.
    pub history: History,
    /// Operations on the keys of each group.
    pub groups: BTreeMap<u64, Vec<Transaction>>,
    /// By kind.
    pub counts: BTreeMap<Kind, Counts>,
    /// Answers that no state of the store explains.
    pub wrong: Vec<String>,
    /// Number of answers by the path that served them.
    pub paths: BTreeMap<Path, u64>,
    /// Longest time without an answer at each site: for its clients that stay with its replica, and
    /// for those that roam.
    pub gaps: Vec<[Gap; 2]>,
}

/// The longest time without an answer, from when the load began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gap {
    last_ns: u64,
    /// When it began, in ns since the round began.
    pub from_ns: u64,
    /// Duration, in ns.
    pub longest_ns: u64,
}

impl Gap {
    /// Something was answered.
    pub fn answered(&mut self, now_ns: u64) {
        let gap_ns = now_ns.saturating_sub(self.last_ns);
        if gap_ns > self.longest_ns {
            (self.from_ns, self.longest_ns) = (self.last_ns, gap_ns);
        }
        self.last_ns = self.last_ns.max(now_ns);
    }
}

impl Record {
    /// Creates the record of clients at this many sites. They begin now.
    pub fn new(sites: usize, now_ns: u64) -> Record {
        let gap = Gap {
            last_ns: now_ns,
            ..Gap::default()
        };
        Record {
            gaps: vec![[gap; 2]; sites],
            ..Record::default()
        }
    }

    /// Notes an operation that ended.
    pub fn ended(&mut self, ended: &Ended) {
        let counts = self.counts.entry(ended.kind).or_default();
        match &ended.end {
            End::Answered(parts) => {
                counts.answered += 1;
                self.gaps[ended.site][usize::from(ended.roams)].answered(ended.now_ns);
                self.keep(ended, parts, Some(ended.now_ns));
            }
            End::Unknown(parts) => {
                counts.unknown += 1;
                self.keep(ended, parts, None);
            }
            End::Failed => counts.failed += 1,
        }
    }

    /// The clients have gone: nothing will be answered any more.
    pub fn close(&mut self, now_ns: u64) {
        let gaps = self.gaps.iter_mut().flatten();
        gaps.for_each(|gap| gap.answered(now_ns));
    }

    /// Notes what was read when the clients had gone. It is judged, and counted nowhere.
    pub fn read_at_the_end(&mut self, ended: &Ended) {
        if let End::Answered(parts) = &ended.end {
            self.keep(ended, parts, Some(ended.now_ns));
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

    fn keep(&mut self, ended: &Ended, parts: &Parts, return_ns: Option<u64>) {
        let Some(&(first, _)) = parts.first() else {
            return;
        };
        let (process, invoke_ns) = (ended.client, ended.began_ns);
        if let Some(group) = group_of(first) {
            self.groups.entry(group).or_default().push(Transaction {
                process,
                parts: parts.clone(),
                invoke_ns,
                return_ns,
            });
            return;
        }
        let event = |&(key, action)| Event {
            process,
            key,
            action,
            invoke_ns,
            return_ns,
        };
        self.history.extend(parts.iter().map(event));
    }

    /// Operations of all kinds.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.counts.values().for_each(|counts| total += *counts);
        total
    }

    /// Operations on groups, key by key, as a history that can be stored.
    pub fn grouped(&self) -> History {
        let mut history = History::new();
        for transaction in self.groups.values().flatten() {
            let event = |&(key, action)| Event {
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
