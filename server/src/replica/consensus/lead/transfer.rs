//! Handing leadership over: the leader proposes nothing more, and hands over once
//! everything that it proposed is committed, or gives up.

use std::time::Duration;

use leases::{ReplicaId, Time};

/// After a transfer that failed a leader leads on for this many grace periods before
/// it tries another. Whoever asks again at once would keep every write waiting.
const PAUSE_GRACES: u32 = 4;

/// A leader's plans to hand over.
#[derive(Clone, Debug, Hash)]
pub struct Transfer {
    /// To whom, and when to give up.
    under_way: Option<(ReplicaId, Time)>,
    /// A transfer has failed: none that is asked for by preference before this.
    none_before: Time,
}

impl Transfer {
    pub fn none(now: Time) -> Transfer {
        Transfer {
            under_way: None,
            none_before: now,
        }
    }

    pub fn to(&self) -> Option<ReplicaId> {
        self.under_way.map(|(to, _)| to)
    }

    /// Begins, unless one is under way. Returns whether it did.
    pub fn begin(&mut self, to: ReplicaId, give_up: Time) -> bool {
        let begins = self.under_way.is_none();
        self.under_way.get_or_insert((to, give_up));
        begins
    }

    /// Whether one that is asked for by preference may begin.
    pub fn may_begin(&self, now: Time) -> bool {
        self.under_way.is_none() && now >= self.none_before
    }

    /// Gives up what has taken too long.
    pub fn give_up(&mut self, now: Time, grace: Duration) {
        if self.under_way.is_some_and(|(_, give_up)| now >= give_up) {
            self.under_way = None;
            self.none_before = now + grace * PAUSE_GRACES;
        }
    }
}
