//! Oracles: they know everything, and true time, and judge every step. One
//! safety property a file, with the rule that it guards and where it comes from.
//!
//! An oracle recomputes what it judges from what replicas have *done* (messages,
//! promises, entries) wherever it can, and does not ask the code under judgement.

mod agreement;
mod chosen;
mod containment;
mod freshness;
mod notified;
mod progress;
mod quorums;

use client::wire::{Outcome, Path};
use leases::{Key, ReplicaId, Time};

pub use agreement::Agreement;
pub use containment::Containment;
pub use freshness::Freshness;
pub use notified::Notified;
pub use quorums::Quorums;

use self::chosen::Chosen;
use self::progress::{Progress, Stage};
use super::clock::Clock;
use super::node::Node;
use super::world::WorldSettings;
use crate::replica::Replica;
use crate::replica::action::Action;
use crate::replica::input::{Again, ReadFrom};

/// A rule that was seen broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which oracle saw it.
    pub oracle: &'static str,
    /// What it saw.
    pub what: String,
}

/// What an oracle says.
pub type Verdict = Result<(), Violation>;

/// Says that a rule is broken, unless a condition holds.
macro_rules! ensure {
    ($oracle:expr, $holds:expr, $($what:tt)*) => {
        if !$holds {
            return Err($crate::sim::oracle::Violation {
                oracle: $oracle,
                what: format!($($what)*),
            });
        }
    };
}
use ensure;

/// Everything there is to see, at one moment of true time.
pub struct Sight<'a> {
    /// True time, in ns.
    pub now_ns: u64,
    nodes: &'a [Node],
}

impl<'a> Sight<'a> {
    pub(super) fn new(now_ns: u64, nodes: &'a [Node]) -> Sight<'a> {
        Sight { now_ns, nodes }
    }

    /// How many replicas there are.
    pub fn n(&self) -> usize {
        self.nodes.len()
    }

    /// A process and its machine.
    pub fn node(&self, node: usize) -> &'a Node {
        &self.nodes[node]
    }

    /// A replica, if it runs.
    pub fn replica(&self, node: usize) -> Option<&'a Replica> {
        self.nodes[node].replica()
    }

    /// A replica's clock.
    pub fn clock(&self, node: usize) -> &'a Clock {
        self.nodes[node].clock()
    }

    /// What a replica's clock reads.
    pub fn time(&self, node: usize) -> Time {
        self.clock(node).read(self.now_ns)
    }
}

/// A read made under leases, as it leaves.
#[derive(Clone, Debug)]
pub struct Fenced {
    /// For whom.
    pub to: ReadFrom,
    /// How it was served.
    pub path: Path,
    /// With what.
    pub outcome: Outcome,
    /// When its permit ends, by its replica's clock.
    pub until: Time,
    /// What was read.
    pub again: Again,
}

impl Fenced {
    /// The single key that was read, if it was one.
    pub fn key(&self) -> Option<&Key> {
        match &self.again {
            Again::Key(key) => Some(key),
            Again::Command(_) => None,
        }
    }
}

/// All oracles. The first violation ends a run: a world that has violated safety
/// has nothing more to tell.
#[derive(Debug)]
pub struct Oracles {
    progress: Progress,
    chosen: Chosen,
    containment: Containment,
    notified: Notified,
    quorums: Quorums,
    agreement: Agreement,
    /// Told of every invocation and answer by whoever drives the clients.
    pub freshness: Freshness,
}

impl Oracles {
    /// For the world of these settings.
    pub(super) fn new(settings: &WorldSettings) -> Oracles {
        let n = settings.replica.n;
        Oracles {
            progress: Progress::new(n),
            chosen: Chosen::default(),
            containment: Containment::default(),
            notified: Notified::default(),
            quorums: Quorums::new(n),
            agreement: Agreement::default(),
            freshness: Freshness::default(),
        }
    }

    /// A replica has started from its disk.
    pub(super) fn started(&mut self, sight: &Sight<'_>, node: usize) {
        if let Some(replica) = sight.replica(node) {
            self.progress.started(node, replica);
        }
    }

    /// A replica is about to end.
    pub(super) fn crashed(&mut self, sight: &Sight<'_>, node: usize) {
        let _ = (sight, node);
    }

    /// `node` has taken a step, and is about to do this.
    pub(super) fn stepped(
        &mut self,
        sight: &Sight<'_>,
        node: usize,
        actions: &[Action],
    ) -> Verdict {
        let Some(replica) = sight.replica(node) else {
            return Ok(());
        };
        for action in actions {
            if let Action::Send { envelope, .. } = action {
                self.quorums.sent(sight, node, envelope)?;
            }
        }
        for (log, slot, stage) in self.progress.news(node, replica) {
            let Some(value) = replica.entry(log, slot) else {
                continue;
            };
            match stage {
                Stage::Committed => {
                    let first = self.chosen.committed(log, slot, value);
                    self.agreement
                        .committed(&self.chosen, node, log, slot, value)?;
                    if first {
                        self.quorums.chosen(sight, node, log, slot, value)?;
                        self.notified.chosen(sight, log, slot, value)?;
                    }
                }
                Stage::Executed => {
                    self.agreement
                        .executed(&self.chosen, node, log, slot, value)?;
                }
            }
        }
        self.agreement.stepped(node, replica)?;
        self.containment.stepped(sight, node)
    }

    /// `node` answers a read that it made under leases.
    pub(super) fn read(&mut self, sight: &Sight<'_>, node: usize, read: &Fenced) -> Verdict {
        self.notified.read(sight, &self.chosen, node, read)
    }

    /// Checks that were made, by oracle, so that a silent one is noticed.
    pub fn checks(&self) -> Vec<(&'static str, u64)> {
        vec![
            (containment::NAME, self.containment.checks),
            (notified::NAME, self.notified.checks),
            (quorums::NAME, self.quorums.checks),
            (freshness::NAME, self.freshness.checks),
            (agreement::NAME, self.agreement.checks),
        ]
    }
}

/// Whom `node` is, as others name it.
fn id(node: usize) -> ReplicaId {
    ReplicaId(node as u8)
}
