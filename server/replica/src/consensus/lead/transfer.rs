//! Transfer of leadership. The leader proposes nothing more. It hands leadership over once
//! everything that it proposed is committed, or abandons the transfer.

use std::time::Duration;

use leasehold_leases::{ReplicaId, ReplicaSet, Time};

/// A transfer that has begun.
#[derive(Clone, Copy, Debug, Hash)]
struct ActiveTransfer {
    to: ReplicaId,
    by_operator: bool,
    /// Time at which the transfer is abandoned.
    deadline: Time,
    /// Time at which the transfer target was last notified that it is to take over; `None` if it
    /// was not.
    notified_at: Option<Time>,
}

/// Transfers of leadership that a leader has begun or plans.
#[derive(Clone, Debug, Default, Hash)]
pub struct Transfer {
    active: Option<ActiveTransfer>,
    /// Replica that an operator wants to lead but that is not ready yet, and the time until which
    /// this leader waits for it.
    wanted: Option<(ReplicaId, Time)>,
    /// Replicas that were to take over from this leader, which is about to end, and did not.
    failed: ReplicaSet,
}

/// Progress of a transfer that has to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferProgress {
    /// The transfer has not exceeded its time yet.
    Waits,
    /// The proposals of this leader were not committed in time.
    Blocked,
    /// The transfer target has not taken over in time, or no target is chosen yet.
    Open,
}

impl Transfer {
    pub fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Whether a transfer has begun, or is to begin because an operator wants it.
    pub fn is_planned(&self) -> bool {
        self.is_active() || self.wanted.is_some()
    }

    /// Plans an operator's transfer, which replaces any other and begins once `to` is ready. Before
    /// that this leader continues to lead.
    pub fn want(&mut self, to: ReplicaId, deadline: Time) {
        self.active = None;
        self.wanted = Some((to, deadline));
    }

    /// Returns the replica that an operator wants to lead once it is ready, and the time until
    /// which the request is valid. A request that has expired is dropped.
    pub fn wanted(&mut self, now: Time) -> Option<(ReplicaId, Time)> {
        self.wanted = self.wanted.filter(|(_, deadline)| now < *deadline);
        self.wanted
    }

    /// Begins a transfer. One that an operator wants replaces any other, except that a transfer to
    /// the same replica continues.
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

    /// Returns the progress of the transfer of a leader that is about to end. A transfer that has
    /// taken too long ends.
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

    /// Returns the replicas that did not take over from this leader, which is about to end.
    pub fn failed(&self) -> ReplicaSet {
        self.failed
    }

    /// Ends a transfer that has begun or is to begin: this replica continues to lead.
    pub fn end(&mut self) {
        (self.active, self.wanted) = (None, None);
    }

    /// Returns the replica to notify now that it is to take over, and whether an operator wants the
    /// transfer. The same notification is returned again once `again` has passed.
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

    /// Returns whether an operator wants another replica to lead and that replica was notified that
    /// it is to take over.
    pub fn is_by_operator(&self) -> bool {
        let begun = self.active.as_ref();
        begun.is_some_and(|begun| begun.by_operator && begun.notified_at.is_some())
    }

    /// Abandons a transfer that has taken too long. Returns the replica that did not take over;
    /// `None` if no transfer was abandoned.
    pub fn abandon_overdue(&mut self, now: Time) -> Option<ReplicaId> {
        let late = self.active.filter(|begun| now >= begun.deadline)?;
        self.active = None;
        Some(late.to)
    }
}
