//! Transfers of leadership: at an operator's request, to the preferred replica, or before this
//! replica ends.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Time};

use super::Consensus;
use super::lead::TransferProgress;
use crate::message::{LogId, Message};
use crate::step::Step;

/// Maximum number of transfer targets that a leader tries, one after another, before it ends.
const TRANSFER_TARGETS_MAX: usize = 2;

/// Knowledge about the beginning of the present leadership, and about the next leader.
#[derive(Clone, Debug)]
pub(super) struct Succession {
    /// Time at which this replica began to follow the present leader.
    pub(super) led_since: Time,
    /// Notice of a leader that transfers leadership to this replica: the ballot of the leader, and
    /// whether an operator wants the transfer. `None` if no such notice has arrived.
    transfer_notice: Option<(Ballot, bool)>,
    /// Whether an operator moved leadership to this replica and no other replica has led since.
    pub(super) transferred_here: bool,
}

impl Succession {
    pub(super) fn begin(now: Time) -> Succession {
        Succession {
            led_since: now,
            transfer_notice: None,
            transferred_here: false,
        }
    }
}

impl Hash for Succession {
    /// Hashes this value, except the time at which the present leadership began. While a
    /// fingerprint is valid, this time has no effect (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.transfer_notice, self.transferred_here).hash(state);
    }
}

impl Consensus {
    /// Begins the transfer of leadership that an operator has requested. The replica `to` should
    /// lead from then on, even if another replica is preferred. The request is refused if `to` does
    /// not answer. If `to` has not reported yet that it would lead well, this leader continues to
    /// lead, and waits for such a report until `deadline`.
    pub fn begin_operator_transfer(&mut self, step: &mut Step<'_>, to: ReplicaId, deadline: Time) {
        let Some(leadership) = self.leadership_mut() else {
            return;
        };
        let touched = leadership.in_touch(step.now, step.ctx.majority_timeout());
        if to != step.me() && !touched.contains(to) {
            step.metrics.refused_messages += 1;
        } else if to == step.me() {
            leadership.transfer.end();
            self.succession.transferred_here = true;
        } else if step.ctx.fit().contains(to) {
            leadership.transfer.begin(to, true, deadline);
        } else {
            leadership.transfer.want(to, deadline);
        }
    }

    /// Returns the replicas that have answered this leader within `timeout`; `None` if this replica
    /// does not lead.
    pub fn in_touch(&self, now: Time, timeout: Duration) -> Option<ReplicaSet> {
        let leadership = self.leadership()?;
        Some(leadership.in_touch(now, timeout))
    }

    /// Ends the present transfer, because this replica is about to end. The next call of
    /// [`Self::transfer_before_leaving`] can then choose a new target.
    pub fn end_transfer(&mut self) {
        if let Some(leadership) = self.leadership_mut() {
            leadership.transfer.end();
        }
    }

    /// Transfers leadership to another replica, because this leader is about to end. The first call
    /// begins the transfer, and later calls continue it. If the target has not taken over within
    /// `timeout`, a second transfer to another replica begins. A target must have answered lately,
    /// and must report that it is fit to lead. Returns true if the leader should resign instead.
    /// Possible reasons are: two transfers have failed, no suitable target is left, or the leader's
    /// proposals are not committed in time.
    pub fn transfer_before_leaving(&mut self, step: &Step<'_>, timeout: Duration) -> bool {
        let majority_timeout = step.ctx.majority_timeout();
        let Some(leadership) = self.leadership_mut() else {
            return false;
        };
        match leadership.transfer.progress(step.now) {
            TransferProgress::Waits => return false,
            TransferProgress::Blocked => return true,
            TransferProgress::Open => {}
        }
        let failed = leadership.transfer.failed();
        let targets = leadership
            .in_touch(step.now, majority_timeout)
            .minus(failed);
        let target = step
            .ctx
            .successor(step.now, targets.intersection(step.ctx.fit()));
        let Some(target) = target.filter(|_| failed.len() < TRANSFER_TARGETS_MAX) else {
            return true;
        };
        assert!(
            !failed.contains(target),
            "no replica is asked twice to take over"
        );
        leadership.transfer.begin(target, false, step.now + timeout);
        false
    }

    /// Returns whether this leader has told `replica` to take over.
    pub fn transfers_to(&self, replica: ReplicaId) -> bool {
        let leadership = self.leadership();
        leadership.is_some_and(|leadership| leadership.transfer.has_notified(replica))
    }

    /// Returns the replicas to which this leader has tried to transfer leadership because it is
    /// about to end, and that have not taken over in time.
    pub fn failed_targets(&self) -> ReplicaSet {
        let leadership = self.leadership();
        leadership.map_or(ReplicaSet::EMPTY, |l| l.transfer.failed())
    }

    /// Notes, before this replica campaigns, whether an operator wants this replica to lead.
    pub fn note_transferred_here(&mut self, by_operator: bool) {
        assert!(self.is_follower(), "leadership is moved to a follower");
        self.succession.transferred_here = by_operator;
        if by_operator {
            self.plan_end();
        }
    }

    /// Handles the preferred replica's request for leadership. The leader begins a transfer if all
    /// these conditions hold:
    ///
    /// - The preferred replica has been healthy for long enough since it last lost leadership.
    /// - No operator has moved leadership to this leader.
    /// - No transfer has begun or is planned.
    /// - The preferred replica has answered lately, so it receives this leader's messages.
    pub fn on_transfer_request(&mut self, step: &Step<'_>, from: ReplicaId, deadline: Time) {
        let preferred = self.preferred(step) == Some(from);
        let stays = self.succession.transferred_here;
        if let Some(leadership) = self.leadership_mut()
            && preferred
            && !stays
            && !leadership.transfer.is_planned()
            && leadership
                .in_touch(step.now, step.ctx.transfer_timeout())
                .contains(from)
        {
            leadership.transfer.begin(from, false, deadline);
        }
    }

    /// Begins the transfer that an operator wants, and tells the transfer target to take over once
    /// all proposals of this leader are committed.
    pub fn continue_transfer(&mut self, step: &mut Step<'_>) {
        let Some(leadership) = self.leadership_mut() else {
            return;
        };
        if let Some((to, deadline)) = leadership.transfer.wanted(step.now)
            && step.ctx.fit().contains(to)
        {
            leadership.transfer.begin(to, true, deadline);
        }
        let Some(leadership) = self.leadership() else {
            return;
        };
        if !leadership.transfer.is_active() || !self.is_drained(leadership) {
            return;
        }
        let (ballot, again) = (leadership.ballot, step.ctx.settings.timing.heartbeat);
        let leadership = self.leadership_mut();
        let notified = leadership.and_then(|l| l.transfer.next_notification(step.now, again));
        if let Some((to, by_operator)) = notified {
            step.send(
                to,
                Message::Transfer {
                    ballot,
                    by_operator,
                },
            );
        }
    }

    /// Abandons a transfer that has taken too long.
    pub fn abandon_transfer(&mut self, step: &Step<'_>) {
        let leadership = self.leadership_mut();
        let failed =
            leadership.and_then(|leadership| leadership.transfer.abandon_overdue(step.now));
        if failed.is_some() && failed == step.ctx.settings.elections.preferred {
            self.transfer_failed(step.now);
        }
    }

    /// Whether this replica has the entry of every slot that it knows to be committed, and has
    /// executed nearly all of them. Otherwise it should not lead yet, because requests that are
    /// answered after execution would wait for these slots.
    pub fn is_caught_up(&self, step: &Step<'_>) -> bool {
        let left = self.logs.commands.to_execute_work();
        left <= step.ctx.settings.behind_work()
            && LogId::ALL
                .into_iter()
                .all(|log| !self.logs[log].misses_commits())
    }

    /// Requests leadership, if this replica is the preferred leader and receives the leader's
    /// messages.
    pub fn seek_leadership(&self, step: &mut Step<'_>) {
        let leader = self.leader().filter(|leader| *leader != step.me());
        if let Some(leader) = leader
            && step.ctx.settings.elections.preferred == Some(step.me())
            && self.is_follower()
            && self.hears_leader(step)
            && step.ctx.may_campaign(step.now)
        {
            step.send(leader, Message::TransferRequest);
        }
    }

    /// Notes that the leader of `ballot` transfers leadership to this replica.
    pub fn note_transfer(&mut self, from: ReplicaId, ballot: Ballot, by_operator: bool) {
        if from == ballot.replica {
            self.succession.transfer_notice = Some((ballot, by_operator));
        }
    }

    /// Removes the notice that the followed leader transfers leadership to this replica. Returns
    /// whether an operator wants the transfer; `None` if there is no such notice.
    pub fn take_transfer_notice(&mut self) -> Option<bool> {
        let (ballot, by_operator) = self.succession.transfer_notice.take()?;
        (ballot == self.leader && self.is_follower()).then_some(by_operator)
    }
}
