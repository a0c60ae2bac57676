//! Transfers of leadership: at an operator's request, to the preferred replica, or before this
//! replica ends.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Time};

use super::Consensus;
use super::lead::TransferProgress;
use crate::message::{LogId, Message};
use crate::step::Step;

/// Maximum number of transfer targets that a leaving leader waits for, one after another.
const TRANSFER_TARGETS_MAX: usize = 2;

/// Time since which a replica leads, and what is known of the replica that should lead next.
#[derive(Clone, Debug)]
pub(super) struct Succession {
    /// Time at which this replica began to take the leader that it follows for the leader.
    pub(super) led_since: Time,
    /// Ballot of the leader that transfers leadership to this replica, and whether an operator
    /// wants that.
    transfer_notice: Option<(Ballot, bool)>,
    /// An operator moved leadership to this replica, and no other replica has led since.
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
    /// The time since which a replica leads decides nothing before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.transfer_notice, self.transferred_here).hash(state);
    }
}

impl Consensus {
    /// Begins a transfer to `to` because an operator wants it to lead, from now on and whichever
    /// replica is preferred. Leadership is not transferred to a replica that does not answer. A
    /// replica that does not say that it would lead well has until `deadline` to say so. Meanwhile
    /// this leader leads on: otherwise writes would wait in vain.
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

    /// Returns the replicas that have answered this leader within `timeout`; `None` if it does not
    /// lead.
    pub fn in_touch(&self, now: Time, timeout: Duration) -> Option<ReplicaSet> {
        let leadership = self.leadership()?;
        Some(leadership.in_touch(now, timeout))
    }

    /// This replica is to end: a transfer target is chosen again.
    pub fn end_transfer(&mut self) {
        if let Some(leadership) = self.leadership_mut() {
            leadership.transfer.end();
        }
    }

    /// While this leader leaves: begins to transfer leadership, to another replica if the first has
    /// not taken over within `timeout`. Only replicas that have answered lately and say that they are
    /// fit are chosen. Returns whether to resign instead: no replica is left, or what was proposed
    /// does not commit.
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

    /// Returns whether this leader has notified `replica` that it is to take over.
    pub fn transfers_to(&self, replica: ReplicaId) -> bool {
        let leadership = self.leadership();
        leadership.is_some_and(|leadership| leadership.transfer.has_notified(replica))
    }

    /// Returns the replicas that did not take over while this leader leaves.
    pub fn failed_targets(&self) -> ReplicaSet {
        let leadership = self.leadership();
        leadership.map_or(ReplicaSet::EMPTY, |l| l.transfer.failed())
    }

    /// Notes whether an operator wants this replica to lead, which is about to campaign.
    pub fn note_transferred_here(&mut self, by_operator: bool) {
        assert!(self.is_follower(), "leadership is moved to a follower");
        self.succession.transferred_here = by_operator;
        if by_operator {
            self.plan_end();
        }
    }

    /// The preferred replica asks this leader to transfer leadership. The leader does so unless an
    /// operator wants it to lead, the other has lost leadership too lately, or the other may not
    /// hear it.
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

    /// Begins the transfer that an operator wants, and transfers leadership once everything
    /// proposed is committed.
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

    /// Whether everything is here that this replica knows to be committed, and not much of it is
    /// left to execute: what is answered after execution would wait for that if it led.
    pub fn is_caught_up(&self, step: &Step<'_>) -> bool {
        let left = self.logs.commands.to_execute_work();
        left <= step.ctx.settings.behind_work()
            && LogId::ALL
                .into_iter()
                .all(|log| !self.logs[log].misses_commits())
    }

    /// The preferred replica asks for leadership, while it hears the leader.
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

    /// The leader of `ballot` transfers leadership to this replica.
    pub fn note_transfer(&mut self, from: ReplicaId, ballot: Ballot, by_operator: bool) {
        if from == ballot.replica {
            self.succession.transfer_notice = Some((ballot, by_operator));
        }
    }

    /// Takes the note that the leader followed here transfers leadership to this replica: whether
    /// an operator wants that; `None` if it does not.
    pub fn take_transfer_notice(&mut self) -> Option<bool> {
        let (ballot, by_operator) = self.succession.transfer_notice.take()?;
        (ballot == self.leader && self.is_follower()).then_some(by_operator)
    }
}
