//! Time at which the preferred leader may lead again. If the preferred leader lost leadership soon
//! after it began to lead, it must wait before it may lead again (see [`FlapBackoff`]), because
//! every change of leadership delays writes.
//!
//! The leader decides whether the preferred replica may take over. Every replica counts the losses
//! of leadership that it observes, so the count survives restarts of the preferred leader and
//! changes of the leader. A planned change is no loss: the preferred leader ends as it was told, or
//! an operator moves leadership. Only the two replicas between which leadership moves are sure to
//! know that a change was planned. The other replicas count a change as a loss only if the old
//! leader was silent before it.
//!
//! Safety does not depend on this count, so none of this state is durable.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_backoff::FlapBackoff;
use leasehold_leases::{Ballot, ReplicaId, Time};

use super::{Consensus, Role};
use crate::context::PeerContact;
use crate::step::Step;

/// Observations about the preferred leader, made by this replica.
#[derive(Clone, Debug)]
pub(super) struct Preference {
    backoff: FlapBackoff,
    /// Ballot under which the preferred leader leads, and the time of the last evidence that it
    /// leads; `None` if the preferred leader does not lead.
    led: Option<(Ballot, Time)>,
    /// Ballot of the preferred leader, if its leadership under this ballot has a planned end. The
    /// preferred leader may lead again under a later ballot.
    planned: Option<Ballot>,
}

impl Hash for Preference {
    /// Hashes this value, except two times: when the preferred leader was last known to lead, and
    /// when it became healthy. While a fingerprint is valid, these times have no effect
    /// (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        let led = self.led.map(|(ballot, _)| ballot);
        (self.backoff.wait(), led.is_some(), self.planned == led).hash(state);
    }
}

/// Returns the time between the beginning of the clock and `at`.
fn since_epoch(at: Time) -> Duration {
    at.since(Time::ZERO)
}

impl Preference {
    pub(super) fn begin(now: Time) -> Preference {
        Preference {
            backoff: FlapBackoff::new(since_epoch(now)),
            led: None,
            planned: None,
        }
    }

    /// Notes that the preferred replica leads under `ballot`.
    fn leads(&mut self, now: Time, ballot: Ballot) {
        if self.led.replace((ballot, now)).is_none() {
            self.backoff.chosen(since_epoch(now));
        }
    }

    /// Notes that another replica leads. If the preferred leader led before, calls `lost` with the
    /// time at which the preferred leader was last known to lead. `lost` returns true if the
    /// preferred leader lost its leadership. This loss counts as a failure, except if the change
    /// was planned.
    fn another_leads(&mut self, now: Time, lost: impl Fn(Time) -> bool) {
        let Some((ballot, led)) = self.led.take() else {
            return;
        };
        if lost(led) && self.planned != Some(ballot) {
            self.backoff.failed(since_epoch(now))
        } else {
            self.backoff.released()
        }
    }
}

impl Consensus {
    /// Returns the preferred leader, if it has been healthy without interruption for the time that
    /// [`Self::preferred_wait`] returns.
    pub(super) fn preferred(&self, step: &Step<'_>) -> Option<ReplicaId> {
        let may_return = self.preference.backoff.may_return(since_epoch(step.now));
        let preferred = step.ctx.settings.elections.preferred;
        preferred.filter(|_| may_return)
    }

    /// Returns how long the preferred leader must be healthy without interruption before it may
    /// lead again.
    pub fn preferred_wait(&self) -> Duration {
        self.preference.backoff.wait()
    }

    /// Notes that this replica regards the leader of `ballot` as the present leader.
    pub(super) fn note_leader(&mut self, step: &Step<'_>, ballot: Ballot) {
        let Some(preferred) = step.ctx.settings.elections.preferred else {
            return;
        };
        if ballot.replica == preferred {
            return self.preference.leads(step.now, ballot);
        }
        let is_sure = [preferred, ballot.replica].contains(&step.me());
        let silence = step.ctx.settings.timing.election_timeout * 7 / 8;
        let lost = |led: Time| is_sure || step.now.since(led) >= silence;
        self.preference.another_leads(step.now, lost);
    }

    /// Notes that the present leadership ends now or soon, and that this end is planned.
    pub fn plan_end(&mut self) {
        self.preference.planned = self.preference.led.map(|(ballot, _)| ballot);
    }

    /// Notes that the end of this leadership is planned, if this leader steps down because an
    /// operator wants another leader.
    pub(super) fn note_step_down(&mut self) {
        if let Role::Leader(leadership) = &self.role
            && leadership.transfer.is_by_operator()
        {
            self.plan_end();
        }
    }

    /// Handles the first message of a peer after a long silence or a restart. A peer that has
    /// restarted no longer leads.
    pub fn peer_interrupted(&mut self, step: &Step<'_>, peer: ReplicaId, contact: PeerContact) {
        if step.ctx.settings.elections.preferred != Some(peer) {
            return;
        }
        if contact.is_later_run {
            self.preference.another_leads(step.now, |_| true);
        }
        if let Some(last) = contact.interrupted {
            let backoff = &mut self.preference.backoff;
            backoff.interrupted(since_epoch(last), since_epoch(step.now));
        }
    }

    /// Notes that a peer has answered this leader. If the preferred leader answers after a long
    /// silence, it counts as healthy only from this answer on.
    pub(super) fn follower_answered(&mut self, step: &Step<'_>, from: ReplicaId) {
        let Some(leadership) = self.leadership_mut() else {
            return;
        };
        let last = leadership.heard(step.now, from);
        let preferred = step.ctx.settings.elections.preferred == Some(from);
        if preferred && step.now.since(last) >= step.ctx.health_gap() {
            let backoff = &mut self.preference.backoff;
            backoff.interrupted(since_epoch(last), since_epoch(step.now));
        }
    }

    /// Handles a peer's announcement that the peer is about to end.
    pub fn peer_leaves(&mut self, step: &Step<'_>, peer: ReplicaId) {
        if step.ctx.settings.elections.preferred == Some(peer) {
            self.plan_end();
        }
    }

    /// Notes that a transfer to the preferred replica has failed, so that the transfer is not
    /// repeated immediately.
    pub(super) fn transfer_failed(&mut self, now: Time) {
        self.preference.backoff.chosen(since_epoch(now));
        self.preference.backoff.failed(since_epoch(now));
    }
}
