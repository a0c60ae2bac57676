//! Transfer of leadership. During a transfer the leader proposes nothing new. It hands leadership
//! over once all its proposals are committed; if that takes too long, it abandons the transfer.

use std::time::Duration;

use leasehold_leases::{ReplicaId, ReplicaSet, Time};

/// A transfer of leadership that has begun.
#[derive(Clone, Copy, Debug, Hash)]
struct ActiveTransfer {
    to: ReplicaId,
    by_operator: bool,
    /// Time at which the transfer is abandoned.
    deadline: Time,
    /// Time at which the transfer target was last told to take over; `None` if it was not told yet.
    notified_at: Option<Time>,
}

/// Transfers of leadership that a leader has begun or plans.
#[derive(Clone, Debug, Default, Hash)]
pub struct Transfer {
    active: Option<ActiveTransfer>,
    /// Next leader that an operator has requested, and the time limit of the request. Until this
    /// time, the present leader waits for that replica to become ready.
    wanted: Option<(ReplicaId, Time)>,
    /// Replicas to which this leader has tried to transfer leadership because it is about to end,
    /// and that have not taken over in time.
    failed: ReplicaSet,
}

/// Progress of a leadership transfer that was begun because the leader is about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferProgress {
    /// A transfer is under way, and its time limit is not reached yet.
    Waits,
    /// The proposals of this leader were not committed in time.
    Blocked,
    /// No transfer is under way: either no target was chosen yet, or the last target did not take
    /// over in time.
    Open,
}

impl Transfer {
    pub fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Whether a transfer has begun, or an operator has requested one that has not begun yet.
    pub fn is_planned(&self) -> bool {
        self.is_active() || self.wanted.is_some()
    }

    /// Plans a transfer that an operator wants. The transfer replaces any other transfer, and
    /// begins once `to` is ready. Until then this leader continues to lead.
    pub fn want(&mut self, to: ReplicaId, deadline: Time) {
        self.active = None;
        self.wanted = Some((to, deadline));
    }

    /// Returns the next leader that an operator has requested, and the time until which the request
    /// is valid. Drops the request if it has expired.
    pub fn wanted(&mut self, now: Time) -> Option<(ReplicaId, Time)> {
        self.wanted = self.wanted.filter(|(_, deadline)| now < *deadline);
        self.wanted
    }

    /// Begins a transfer to the replica `to`. If a transfer to `to` is already under way, that
    /// transfer continues. A transfer to another replica is replaced only if `by_operator` is true.
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

    /// Returns the progress of the transfer that was begun because this leader is about to end.
    /// Ends the transfer if it has taken too long.
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

    /// Returns the replicas to which this leader has tried to transfer leadership because it is
    /// about to end, and that have not taken over in time.
    pub fn failed(&self) -> ReplicaSet {
        self.failed
    }

    /// Ends any transfer, whether it has begun or is only planned. This replica continues to lead.
    pub fn end(&mut self) {
        (self.active, self.wanted) = (None, None);
    }

    /// Returns the replica that should now receive a notice to take over, and whether an operator
    /// wants the transfer. Returns `None` if no transfer is under way, or if the last notice was
    /// less than `again` ago.
    pub fn next_notification(&mut self, now: Time, again: Duration) -> Option<(ReplicaId, bool)> {
        let active = self.active.as_mut()?;
        if active.notified_at.is_some_and(|at| now.since(at) < again) {
            return None;
        }
        active.notified_at = Some(now);
        Some((active.to, active.by_operator))
    }

    /// Returns whether `replica` was told to take over.
    pub fn has_notified(&self, replica: ReplicaId) -> bool {
        let begun = self.active.as_ref();
        begun.is_some_and(|begun| begun.to == replica && begun.notified_at.is_some())
    }

    /// Returns whether an operator has requested another leader, and that replica was told to take
    /// over.
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
