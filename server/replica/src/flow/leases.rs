//! Steps about leases: promises, suspicion, and the configurations that a leader proposes.

use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{LeaseMessage, ReplicaId, ReplicaSet, Time};

use super::Parts;
use crate::action::Event;
use crate::input::OperatorRequest;
use crate::lease_set::LeaseSet;
use crate::leasing::NextConfig;
use crate::message::{DemandReport, LogId, Message, Value};
use crate::step::Step;
use crate::timers::Timer;

/// Delay before a leader checks again whether it may propose a configuration.
const CONFIGURE_AGAIN: Duration = Duration::from_millis(50);

/// Delay before a leader looks at further keys with known demand.
const LOOK_ON: Duration = Duration::from_millis(5);

impl Parts {
    /// Makes the promises that are due, and ends those that have expired.
    pub(super) fn poll_leases(&mut self, step: &mut Step<'_>) {
        let barrier = self.consensus.barrier();
        let executed = self.consensus.commands().executed();
        if self.leasing.poll(step, barrier, executed) {
            self.consensus.vote_again();
        }
    }

    pub(super) fn on_lease(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        message: &LeaseMessage,
    ) {
        if self.leasing.on_message(step, from, message) {
            self.consensus.vote_again();
        }
        if let LeaseMessage::Leave { .. } = message {
            self.consensus.peer_leaves(step, from);
            // The promises of this peer have ended: reads that waited under them look again.
            let (reads, view) = self.reads();
            reads.look_again_all(step, view);
        }
    }

    /// Handles a report that the storage accepts no writes, or accepts them again. A replica that
    /// cannot persist would only block writes, so it gives back its leases and its leadership
    /// (hazard 36).
    pub fn on_writable(&mut self, step: &mut Step<'_>) {
        self.hold_if_fit(step);
        let gives_up = counts_blockers() && !step.ctx.writable;
        if gives_up && !self.consensus.is_follower() {
            self.step_down(step);
        }
    }

    /// Handles a report that the clock is not trusted, or is trusted again. While the clock is not
    /// trusted, this replica makes no promises (hazard 80). It also gives its leases back, because
    /// it cannot know when they end. It may lead, because no rule about ballots depends on time.
    pub fn on_clock_trusted(&mut self, step: &mut Step<'_>) {
        let trusted = step.ctx.clock_trusted;
        self.leasing.on_clock_trusted(step);
        step.metrics.clock_distrusted += u64::from(!trusted);
        step.announce(Event::ClockTrusted(trusted));
        self.hold_if_fit(step);
    }

    /// Accepts promises again if this replica is fit to hold leases; otherwise gives all promises
    /// back. A holder that cannot persist blocks writes, and a holder with a wrong clock does not
    /// know when its leases end.
    fn hold_if_fit(&mut self, step: &mut Step<'_>) {
        let durable = step.ctx.writable || !counts_blockers();
        if durable && step.ctx.clock_trusted {
            return self.leasing.accept_again();
        }
        self.leasing.relinquish(step);
        let (reads, view) = self.reads();
        reads.look_again_all(step, view);
    }

    /// Handles a request of the operator. The leader carries out such requests.
    pub fn on_operator(&mut self, step: &mut Step<'_>, operator: OperatorRequest) {
        match operator {
            OperatorRequest::Transfer(to) => self.transfer_leadership(step, to),
            OperatorRequest::Lease { ask, set } => self.set_leases(step, step.me(), ask, set),
        }
    }

    /// Handles an operator's request to change leases. The leader carries out the request, and any
    /// other replica passes the request on to the leader.
    pub(super) fn set_leases(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        ask: u64,
        set: LeaseSet,
    ) {
        let me = step.me();
        if self.consensus.leads() {
            let has_begun = self.consensus.knows_configs();
            if self.leasing.take_request(step, from, ask, set, has_begun) {
                step.set_timer(Timer::Reconfigure, step.now);
            }
        } else if let Some(leader) = self.consensus.leader().filter(|l| *l != me && from == me) {
            step.send(leader, Message::SetLease { ask, set });
        }
    }

    /// Sends a leader's heartbeat. The leader also suspects replicas that have blocked a slot for
    /// too long. It resigns if too few replicas answer.
    pub(super) fn lead_on(&mut self, step: &mut Step<'_>) {
        if !self.consensus.leads() {
            return step.timers.stop(Timer::Heartbeat);
        }
        if self.consensus.is_out_of_touch(step) {
            return self.resign(step);
        }
        self.send_probe(step);
        let grace = self.leasing.grace();
        if self.leasing.is_leaving() {
            return self.transfer_before_leaving(step);
        } else {
            self.consensus.abandon_transfer(step)
        }
        self.suspect_blockers(step, grace);
    }

    /// Transfers leadership, because this leader has been told to end. The leader waits a short
    /// time for a message from its successor before it ends.
    pub(super) fn transfer_before_leaving(&mut self, step: &mut Step<'_>) {
        if step.ctx.others().next().is_none() {
            return;
        }
        let timeout = step.ctx.transfer_timeout();
        self.awaits_successor_until = step.now + timeout;
        if self.consensus.transfer_before_leaving(step, timeout) {
            self.resign(step);
        }
    }

    /// Gives up leadership, because this leader can no longer commit or has been told to end.
    /// Notifies the replica that should lead next. The notified replica then need not wait for an
    /// election timeout.
    fn resign(&mut self, step: &mut Step<'_>) {
        let ballot = self.consensus.promised();
        let failed = self.consensus.failed_targets();
        let others: ReplicaSet = step.ctx.others().collect();
        let successor = step.ctx.successor(step.now, others.minus(failed));
        self.step_down(step);
        if let Some(to) = successor {
            let by_operator = false;
            step.send(
                to,
                Message::Transfer {
                    ballot,
                    by_operator,
                },
            );
        }
    }

    /// Suspects replicas that have blocked a slot for t_grace because they have not accepted it.
    /// They are suspected even if they answer lease promises (§3.7, hazard 36). A leader that blocks
    /// slots itself gives up leadership.
    fn suspect_blockers(&mut self, step: &mut Step<'_>, grace: Duration) {
        let blockers = if counts_blockers() {
            self.consensus.blockers(step.now, grace)
        } else {
            ReplicaSet::EMPTY
        };
        if blockers.contains(step.me()) {
            return self.resign(step); // its own disk is too slow
        }
        if self.leasing.note_blockers(step, blockers) {
            self.reconfigure(step);
        }
    }

    /// Proposes the next configuration, if it would differ from the newest configuration. Only one
    /// configuration is in flight at a time. No configuration is proposed before the opening no-op
    /// is committed.
    pub(super) fn reconfigure(&mut self, step: &mut Step<'_>) {
        let Some(leadership) = self.consensus.leadership() else {
            return step.timers.stop(Timer::Reconfigure);
        };
        let may = self.consensus.may_configure(leadership);
        if !may || !round_trips_known(step, leadership.since) {
            return step.set_timer(Timer::Reconfigure, step.now + CONFIGURE_AGAIN);
        }
        let next = self.leasing.next_change(step);
        self.probe_for_requests(step);
        let (change, again) = match next {
            NextConfig::Exclude(change) => (Some(change), step.now + CONFIGURE_AGAIN),
            NextConfig::LookOn => (None, step.now + LOOK_ON),
            NextConfig::Chosen { change, again } => (change, again),
        };
        if let Some(change) = change {
            self.propose(step, LogId::Configs, Value::Config(Arc::new(change)));
        }
        step.set_timer(Timer::Reconfigure, again);
    }

    /// Sends a probe if operators have requested settings that are in force already. Such a request
    /// is answered only after a majority has answered the probe, because these answers confirm that
    /// this replica still leads.
    fn probe_for_requests(&mut self, step: &mut Step<'_>) {
        let newest = self.consensus.probes(step).map(|(newest, _)| newest);
        if newest.is_some_and(|newest| self.leasing.await_probe(newest + 1)) {
            self.send_probe(step);
            self.answer_confirmed_requests(step);
        }
    }

    /// Answers operators' requests for settings that were in force already, if a majority has since
    /// confirmed that this replica leads.
    pub(super) fn answer_confirmed_requests(&mut self, step: &mut Step<'_>) {
        if let Some((_, confirmed)) = self.consensus.probes(step) {
            self.leasing.answer_confirmed(step, confirmed);
        }
    }

    /// Reports to the leader how often clients of this replica have read and written each key.
    pub(super) fn report_demand(&mut self, step: &mut Step<'_>) {
        let leader = self.consensus.leader();
        if self.leasing.report_demand(step, leader) {
            self.hurry(step);
        }
    }

    /// Handles a peer's report of demand, if this replica leads.
    pub(super) fn on_demand(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        report: &DemandReport,
    ) {
        if self.consensus.leads() && self.leasing.on_demand(step.now, from, report) {
            self.hurry(step);
        }
    }

    /// Makes this leader choose holders more often for a while, because clients now use other keys.
    pub(super) fn hurry(&mut self, step: &mut Step<'_>) {
        let soon = self.leasing.hurry(step);
        step.timers.set_earlier(Timer::Reconfigure, soon);
    }
}

/// Whether rule H36 is switched on. Under this rule, a replica that cannot persist gives its leases
/// back, and a replica that blocks a slot is suspected. Without the rule, such a replica would
/// acknowledge every promise and block every write.
fn counts_blockers() -> bool {
    !off(Rule::H36Blockers)
}

/// Returns true if all round trips of this replica are measured. Also returns true a long time
/// after `since`, because decisions are then made without the missing round trips.
fn round_trips_known(step: &Step<'_>, since: Time) -> bool {
    let timeout = step.ctx.settings.timing.election_timeout * 2;
    let known = step.ctx.others().all(|peer| step.ctx.rtt(peer).is_some());
    known || step.now.since(since) >= timeout
}
