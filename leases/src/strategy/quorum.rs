//! The paper's quorum leases (§3.4): each key is held by the leader and the
//! N/2 other replicas that have read it most.

use super::chooser::Wish;
use super::situation::Situation;
use crate::config::Unlisted;
use crate::demand::Row;
use crate::types::{ReplicaId, ReplicaSet};

/// See the file.
#[derive(Clone, Debug)]
pub(super) struct Quorum {
    unlisted: Unlisted,
    situation: Situation,
}

impl Quorum {
    pub(super) fn new(unlisted: Unlisted, situation: Situation) -> Quorum {
        Quorum {
            unlisted,
            situation,
        }
    }

    pub(super) fn defaults(&self) -> ReplicaSet {
        match self.unlisted {
            Unlisted::Leader => ReplicaSet::one(self.situation.leader),
            Unlisted::Nearest => self.situation.near_majority(),
        }
    }

    /// The leader and the N/2 others that read the key most; places that no reader
    /// claims go to the replicas nearest to the leader, where they cost least.
    pub(super) fn choose(&self, row: Row<'_>, held: ReplicaSet) -> Option<Wish> {
        let reads = |replica: &ReplicaId| row.count(*replica).reads;
        let mut others: Vec<ReplicaId> = self.situation.nearest.clone();
        // Stable: among equals, and among those that never read it, nearest first.
        others.sort_by(|a, b| reads(b).total_cmp(&reads(a)));
        let holders = self.situation.with_leader(others.into_iter());
        let all: f32 = row.counts().map(|count| count.reads).sum();
        // Nobody's reads say nothing.
        (holders != held && all > 0.0).then(|| Wish {
            holders,
            gain: holders.minus(held).iter().map(|new| reads(&new)).sum(),
        })
    }

    /// Returns the leader and N/2 other replicas: first those that held the key before, and the
    /// nearest first.
    pub(super) fn keep(&self, held: ReplicaSet) -> ReplicaSet {
        let mut others: Vec<ReplicaId> = self.situation.nearest.clone();
        others.sort_by_key(|replica| !held.contains(*replica));
        self.situation.with_leader(others.into_iter())
    }
}
