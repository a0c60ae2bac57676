//! Detection of the slots that a replica has newly committed and executed. Most oracles need these
//! slots.

use std::collections::BTreeSet;

use leasehold_leases::Slot;
use smallvec::SmallVec;

use leasehold_replica::Replica;
use leasehold_replica::message::LogId;

/// Stage that a slot has reached at a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Committed,
    Executed,
}

impl Stage {
    pub(super) fn name(self) -> &'static str {
        match self {
            Stage::Committed => "committed",
            Stage::Executed => "executed",
        }
    }
}

#[derive(Clone, Debug, Default)]
struct ReplicaProgress {
    commit_point: Slot,
    above: BTreeSet<Slot>,
    executed: Slot,
}

/// Progress of each replica in each log, as far as the oracles have seen it.
#[derive(Debug)]
pub(super) struct Progress {
    seen: Vec<[ReplicaProgress; 2]>,
}

impl Progress {
    pub(super) fn new(n: usize) -> Progress {
        Progress {
            seen: vec![Default::default(); n],
        }
    }

    /// Sets the progress of a replica that has just started: it has committed and executed the
    /// slots of its checkpoint.
    pub(super) fn started(&mut self, node: usize, replica: &Replica) {
        for log in LogId::ALL {
            let seen = &mut self.seen[node][log.index()];
            *seen = ReplicaProgress {
                commit_point: replica.commits_of(log).0,
                executed: replica.executed_of(log),
                ..ReplicaProgress::default()
            };
        }
    }

    /// Returns the new commits at `node`, followed by the new executions. Both are in rising order
    /// of slots.
    pub(super) fn news(
        &mut self,
        node: usize,
        replica: &Replica,
    ) -> SmallVec<[(LogId, Slot, Stage); 8]> {
        let mut news = SmallVec::new();
        for log in LogId::ALL {
            let seen = &mut self.seen[node][log.index()];
            seen.look(log, replica, |slot, stage| news.push((log, slot, stage)));
        }
        news
    }
}

impl ReplicaProgress {
    fn look(&mut self, log: LogId, replica: &Replica, mut news: impl FnMut(Slot, Stage)) {
        let (commit_point, above) = replica.commits_of(log);
        while self.commit_point < commit_point {
            self.commit_point = self.commit_point.next();
            if !self.above.remove(&self.commit_point) {
                news(self.commit_point, Stage::Committed);
            }
        }
        if above != self.above.len() as u64 {
            let beyond = commit_point.0 + 1..=replica.highest_of(log).0;
            for slot in beyond.map(Slot) {
                if replica.is_committed(log, slot) && self.above.insert(slot) {
                    news(slot, Stage::Committed);
                }
            }
        }
        let executed = replica.executed_of(log);
        while self.executed < executed {
            self.executed = self.executed.next();
            news(self.executed, Stage::Executed);
        }
    }
}
