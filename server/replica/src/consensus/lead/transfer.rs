//! Transfer of leadership: the leader proposes nothing more. It transfers leadership once
//! everything that it proposed is committed, or abandons the transfer.

use std::time::Duration;

use leasehold_leases::{ReplicaId, ReplicaSet, Time};

/// Transfer that has begun.
#[derive(Clone, Copy, Debug, Hash)]
struct UnderWay {
    to: ReplicaId,
    by_operator: bool,
    /// Time at which it is abandoned.
    give_up: Time,
    /// Time at which the transfer target was last notified that it is to take over.
    told: Option<Time>,
}

/// A leader's plans to transfer leadership.
#[derive(Clone, Debug, Default, Hash)]
pub struct Transfer {
    under_way: Option<UnderWay>,
    /// Replica that an operator wants to lead and that is not ready for it, and the time until
    /// which this leader waits for it.
    wanted: Option<(ReplicaId, Time)>,
    /// Replicas that were to take over and did not, while this leader leaves.
    failed: ReplicaSet,
}

/// Progress of a transfer that has to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The transfer target still has time.
    Waits,
    /// The proposals of this leader have not been committed in time.
    Blocked,
    /// The transfer target has not taken over, or there is none yet.
    Open,
}

impl Transfer {
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether one has begun, or is to begin for an operator.
    pub fn is_planned(&self) -> bool {
        self.is_under_way() || self.wanted.is_some()
    }

    /// An operator's transfer is to begin once `to` is ready, in place of any other. Until then
    /// this leader leads on.
    pub fn want(&mut self, to: ReplicaId, give_up: Time) {
        self.under_way = None;
        self.wanted = Some((to, give_up));
    }

    /// Returns the replica that is to lead for an operator once it is ready, and the time until
    /// which the request counts. A request that comes too late is dropped.
    pub fn wanted(&mut self, now: Time) -> Option<(ReplicaId, Time)> {
        self.wanted = self.wanted.filter(|(_, give_up)| now < *give_up);
        self.wanted
    }

    /// Begins a transfer. An operator's takes the place of any other, but one to the same replica
    /// goes on.
    pub fn begin(&mut self, to: ReplicaId, by_operator: bool, give_up: Time) {
        if by_operator {
            self.wanted = None;
        }
        if let Some(begun) = self.under_way.as_mut().filter(|begun| begun.to == to) {
            begun.by_operator |= by_operator;
        } else if by_operator || self.under_way.is_none() {
            self.under_way = Some(UnderWay {
                to,
                by_operator,
                give_up,
                told: None,
            });
        }
    }

    /// Returns the progress of the transfer while this leader leaves. One that has taken too long
    /// ends.
    pub fn attempt(&mut self, now: Time) -> Attempt {
        match self.under_way {
            None => Attempt::Open,
            Some(begun) if now < begun.give_up => Attempt::Waits,
            Some(begun) => {
                self.under_way = None;
                match begun.told {
                    None => Attempt::Blocked,
                    Some(_) => {
                        self.failed.insert(begun.to);
                        Attempt::Open
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
        (self.under_way, self.wanted) = (None, None);
    }

    /// Returns the replica to notify now that it is to take over, and whether an operator wants it.
    /// Returns them again once `again` has passed.
    pub fn tell(&mut self, now: Time, again: Duration) -> Option<(ReplicaId, bool)> {
        let under_way = self.under_way.as_mut()?;
        if under_way.told.is_some_and(|told| now.since(told) < again) {
            return None;
        }
        under_way.told = Some(now);
        Some((under_way.to, under_way.by_operator))
    }

    /// Returns whether `who` was notified that it is to take over.
    pub fn has_told(&self, who: ReplicaId) -> bool {
        let begun = self.under_way.as_ref();
        begun.is_some_and(|begun| begun.to == who && begun.told.is_some())
    }

    /// Returns true if an operator wants another replica to lead, and that replica was notified
    /// that it is to take over.
    pub fn is_by_operator(&self) -> bool {
        let begun = self.under_way.as_ref();
        begun.is_some_and(|begun| begun.by_operator && begun.told.is_some())
    }

    /// Abandons a transfer that has taken too long. Returns the replica that did not take over.
    pub fn give_up(&mut self, now: Time) -> Option<ReplicaId> {
        let late = self.under_way.filter(|begun| now >= begun.give_up)?;
        self.under_way = None;
        Some(late.to)
    }
}
