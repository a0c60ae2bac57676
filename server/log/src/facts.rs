//! The facts that the log holds besides its entries.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_leases::{Ballot, Incarnation, ReplicaId, Slot};
use leasehold_replica::message::{LogId, PerLog};

use crate::record::Fact;

/// Facts that a log contains besides its entries. The facts are small. The head of every segment
/// repeats all facts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFacts {
    /// Incarnation of the newest run.
    pub incarnation: Incarnation,
    /// Highest ballot that the replica has promised.
    pub promised: Ballot,
    /// Map from each log and ballot to the slot at which the ballot began.
    pub log_starts: BTreeMap<(LogId, Ballot), Slot>,
    /// Restart wait that the replica recorded last; `None` if it recorded none.
    pub restart_wait: Option<Duration>,
    /// Life of each other replica: the random number that identifies the replica's data directory.
    pub lives: BTreeMap<ReplicaId, u64>,
    /// Whether the replica has joined the cluster with this directory.
    pub joined: bool,
    /// Commit points that were recorded last.
    pub committed: PerLog<Slot>,
}

impl LogFacts {
    pub(crate) fn apply(&mut self, fact: &Fact) {
        match *fact {
            Fact::Promised(ballot) => self.promised = ballot,
            Fact::LogStart { log, ballot, slot } => {
                self.log_starts.insert((log, ballot), slot);
            }
            Fact::ForgetLogStarts { log, below } => {
                let is_kept = |of: LogId, ballot: Ballot| of != log || ballot >= below;
                self.log_starts.retain(|(of, at), _| is_kept(*of, *at));
            }
            Fact::RestartWait(wait) => self.restart_wait = Some(wait),
            Fact::Life { replica, life } => {
                self.lives.insert(replica, life);
            }
            Fact::Joined => self.joined = true,
            Fact::Incarnation(incarnation) => self.incarnation = incarnation,
            Fact::Committed(slots) => self.committed = slots,
        }
    }

    /// Returns the records for the head of a segment. Together they contain all facts.
    pub(crate) fn restated(&self) -> impl Iterator<Item = Fact> {
        let log_starts = self.log_starts.iter();
        let lives = self.lives.iter();
        // A log of an older format has no commit points, and the older program knows no such fact.
        let is_committed = self.committed != PerLog::default();
        [
            Fact::Incarnation(self.incarnation),
            Fact::Promised(self.promised),
        ]
        .into_iter()
        .chain(self.restart_wait.map(Fact::RestartWait))
        .chain(self.joined.then_some(Fact::Joined))
        .chain(is_committed.then_some(Fact::Committed(self.committed)))
        .chain(lives.map(|(&replica, &life)| Fact::Life { replica, life }))
        .chain(log_starts.map(|(&(log, ballot), &slot)| Fact::LogStart { log, ballot, slot }))
    }
}
