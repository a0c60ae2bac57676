//! Transfer of leadership: the leader proposes nothing more. It transfers leadership once
//! everything that it proposed is committed, or abandons the transfer.

use std::time::Duration;

use leasehold_leases::{ReplicaId, ReplicaSet, Time};

/// Transfer that has begun.
#[derive(Clone, Copy, Debug, Hash)]
struct ActiveTransfer {
    to: ReplicaId,
    by_operator: bool,
    /// Time at which it is abandoned.
    deadline: Time,
    /// Time at which the transfer target was last notified that it is to take over.
    notified_at: Option<Time>,
}

/// A leader's plans to transfer leadership.
#[derive(Clone, Debug, Default, Hash)]
pub struct Transfer {
    active: Option<ActiveTransfer>,
    /// Replica that an operator wants to lead and that is not ready for it, and the time until
    /// which this leader waits for it.
    wanted: Option<(ReplicaId, Time)>,
    /// Replicas that were to take over and did not, while this leader leaves.
    failed: ReplicaSet,
}

/// Progress of a transfer that has to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferProgress {
    /// The transfer target still has time.
    Waits,
    /// The proposals of this leader have not been committed in time.
    Blocked,
    /// The transfer target has not taken over, or there is none yet.
    Open,
}

impl Transfer {
    pub fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Whether one has begun, or is to begin for an operator.
    pub fn is_planned(&self) -> bool {
        self.is_active() || self.wanted.is_some()
    }

    /// An operator's transfer is to begin once `to` is ready, in place of any other. Until then
    /// this leader leads on.
    pub fn want(&mut self, to: ReplicaId, deadline: Time) {
        self.active = None;
        self.wanted = Some((to, deadline));
    }

    /// Returns the replica that is to lead for an operator once it is ready, and the time until
    /// which the request counts. A request that comes too late is dropped.
    pub fn wanted(&mut self, now: Time) -> Option<(ReplicaId, Time)> {
        self.wanted = self.wanted.filter(|(_, deadline)| now < *deadline);
        self.wanted
    }

    /// Begins a transfer. An operator's takes the place of any other, but one to the same replica
    /// goes on.
    pub fn begin(&mut self, to: ReplicaId, by_operator: bool, deadline: Time) {
        if by_operator {
            self.wanted = None;
        }
        if let Some(begun) = self.active.as_mut().filter(|begun| begun.to == to) {
            begun.by_operator |= by_operator;
        } else if by_operator || self.active.is_none() {
            self.active = Some(ActiveTransfer {
                to,
                by_operator,
                deadline,
                notified_at: None,
            });
        }
    }

    /// Returns the progress of the transfer while this leader leaves. One that has taken too long
    /// ends.
    pub fn progress(&mut self, now: Time) -> TransferProgress {
        match self.active {
            None => TransferProgress::Open,
            Some(begun) if now < begun.deadline => TransferProgress::Waits,
            Some(begun) => {
                self.active = None;
                match begun.notified_at {
                    None => TransferProgress::Blocked,
                    Some(_) => {
                        self.failed.insert(begun.to);
                        TransferProgress::Open
                    }
                }
            }
        }
    }

    /// Returns the replicas that did not take over while this leader leaves.
    pub fn failed(&self) -> ReplicaSet {
        self.failed
    }

    /// Ends what has begun, or is to begin: this replica leads on.
    pub fn end(&mut self) {
        (self.active, self.wanted) = (None, None);
    }

    /// Returns the replica to notify now that it is to take over, and whether an operator wants it.
    /// Returns them again once `again` has passed.
    pub fn next_notification(&mut self, now: Time, again: Duration) -> Option<(ReplicaId, bool)> {
        let active = self.active.as_mut()?;
        if active.notified_at.is_some_and(|at| now.since(at) < again) {
            return None;
        }
        active.notified_at = Some(now);
        Some((active.to, active.by_operator))
    }

    /// Returns whether `replica` was notified that it is to take over.
    pub fn has_notified(&self, replica: ReplicaId) -> bool {
        let begun = self.active.as_ref();
        begun.is_some_and(|begun| begun.to == replica && begun.notified_at.is_some())
    }

    /// Returns true if an operator wants another replica to lead, and that replica was notified
    /// that it is to take over.
    pub fn is_by_operator(&self) -> bool {
        let begun = self.active.as_ref();
        begun.is_some_and(|begun| begun.by_operator && begun.notified_at.is_some())
    }

    /// Abandons a transfer that has taken too long. Returns the replica that did not take over.
    pub fn abandon_overdue(&mut self, now: Time) -> Option<ReplicaId> {
        let late = self.active.filter(|begun| now >= begun.deadline)?;
        self.active = None;
        Some(late.to)
    }
}
