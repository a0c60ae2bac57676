//! Handing leadership over: the leader proposes nothing more, and hands over once
//! everything that it proposed is committed, or gives up.

use std::time::Duration;

use leasehold_leases::{ReplicaId, ReplicaSet, Time};

/// A handing over that has begun.
#[derive(Clone, Copy, Debug, Hash)]
struct UnderWay {
    to: ReplicaId,
    by_operator: bool,
    /// When to give up.
    give_up: Time,
    /// When the other was last told to take over.
    told: Option<Time>,
}

/// A leader's plans to hand over.
#[derive(Clone, Debug, Default, Hash)]
pub struct Transfer {
    under_way: Option<UnderWay>,
    /// Whom an operator wants to lead who is not ready for it, and until when.
    wanted: Option<(ReplicaId, Time)>,
    /// Who was to take over and did not, while this leader leaves.
    failed: ReplicaSet,
}

/// How a handing over goes on that has to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The other has time yet.
    Waits,
    /// What this leader proposed has not been committed in time.
    Blocked,
    /// The other has not taken over, or nobody is to yet.
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

    /// An operator's is to begin once `to` is ready, in place of any other. Until then this
    /// leader leads on.
    pub fn want(&mut self, to: ReplicaId, give_up: Time) {
        self.under_way = None;
        self.wanted = Some((to, give_up));
    }

    /// Who is to lead for an operator, once it is ready. A wish that has come too late is
    /// forgotten.
    pub fn wanted(&mut self, now: Time) -> Option<(ReplicaId, Time)> {
        self.wanted = self.wanted.filter(|(_, give_up)| now < *give_up);
        self.wanted
    }

    /// Begins. An operator's takes the place of any other, but one to the same replica goes on.
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

    /// While this leader leaves: how the attempt goes. One that has taken too long ends.
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

    /// Who did not take over while this leader leaves.
    pub fn failed(&self) -> ReplicaSet {
        self.failed
    }

    /// Ends what has begun, or is to begin: this replica leads on.
    pub fn end(&mut self) {
        (self.under_way, self.wanted) = (None, None);
    }

    /// Whom to tell now to take over, and whether an operator wants it; again after `again`.
    pub fn tell(&mut self, now: Time, again: Duration) -> Option<(ReplicaId, bool)> {
        let under_way = self.under_way.as_mut()?;
        if under_way.told.is_some_and(|told| now.since(told) < again) {
            return None;
        }
        under_way.told = Some(now);
        Some((under_way.to, under_way.by_operator))
    }

    /// Whether `who` was told to take over.
    pub fn has_told(&self, who: ReplicaId) -> bool {
        let begun = self.under_way.as_ref();
        begun.is_some_and(|begun| begun.to == who && begun.told.is_some())
    }

    /// Returns true if an operator wants another replica to lead, and that replica was told to
    /// take over.
    pub fn is_by_operator(&self) -> bool {
        let begun = self.under_way.as_ref();
        begun.is_some_and(|begun| begun.by_operator && begun.told.is_some())
    }

    /// Gives up what has taken too long. Returns the replica that did not take over.
    pub fn give_up(&mut self, now: Time) -> Option<ReplicaId> {
        let late = self.under_way.filter(|begun| now >= begun.give_up)?;
        self.under_way = None;
        Some(late.to)
    }
}
