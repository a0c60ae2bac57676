//! The strategy `quorum`, which implements the paper's quorum leases (§3.4): each key is held by
//! the leader and the N/2 other replicas that have read the key most.

use super::chooser::HolderChange;
use super::situation::Situation;
use crate::config::UnlistedHolders;
use crate::demand::Row;
use crate::types::{ReplicaId, ReplicaSet};

/// The strategy `quorum` in one situation.
#[derive(Clone, Debug)]
pub(super) struct Quorum {
    unlisted: UnlistedHolders,
    situation: Situation,
}

impl Quorum {
    pub(super) fn new(unlisted: UnlistedHolders, situation: Situation) -> Quorum {
        Quorum {
            unlisted,
            situation,
        }
    }

    pub(super) fn defaults(&self) -> ReplicaSet {
        match self.unlisted {
            UnlistedHolders::Leader => ReplicaSet::one(self.situation.leader),
            UnlistedHolders::Nearest => self.situation.near_majority(),
        }
    }

    /// Returns the change that makes the leader and N/2 other replicas the holders of the key.
    /// Returns `None` if the key should keep its `current_holders`. The other replicas are those
    /// that have read the key most. If fewer than N/2 other replicas have read the key, the
    /// replicas nearest to the leader are added, because their leases cost least.
    pub(super) fn choose(&self, row: Row<'_>, current_holders: ReplicaSet) -> Option<HolderChange> {
        let reads = |replica: &ReplicaId| row.count(*replica).reads;
        let mut others: Vec<ReplicaId> = self.situation.nearest.clone();
        // The sort is stable: replicas with equal reads, or without reads, stay in order of
        // distance.
        others.sort_by(|a, b| reads(b).total_cmp(&reads(a)));
        let holders = self.situation.with_leader(others.into_iter());
        let all: f32 = row.counts().map(|count| count.reads).sum();
        // Without any reads of the key, its holders stay.
        (holders != current_holders && all > 0.0).then(|| HolderChange {
            holders,
            gain: holders
                .minus(current_holders)
                .iter()
                .map(|new| reads(&new))
                .sum(),
        })
    }

    /// Returns the leader and N/2 other replicas. Replicas in `current_holders` are preferred to
    /// other replicas. Among equally preferred replicas, those nearer to the leader come first.
    pub(super) fn keep(&self, current_holders: ReplicaSet) -> ReplicaSet {
        let mut others: Vec<ReplicaId> = self.situation.nearest.clone();
        others.sort_by_key(|replica| !current_holders.contains(*replica));
        self.situation.with_leader(others.into_iter())
    }
}
