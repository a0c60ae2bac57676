//! Phase 1: campaigns, promises, and the first steps of a new leader.

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, Incarnation, ReplicaId, Slot};

use super::Parts;
use crate::action::Event;
use crate::consensus::{ElectionProgress, Prepared};
use crate::message::{LogId, Message, PerLog, Value};
use crate::persist::Continuation;
use crate::step::Step;
use crate::timers::Timer;

impl Parts {
    /// Handles a long silence of the leader. Starts a pre-vote if it is this replica's turn.
    pub(super) fn seek_election(&mut self, step: &mut Step<'_>) {
        if !self.consensus.is_follower() {
            let anothers_turn = self.consensus.has_waited_long(step);
            self.step_down(step); // A candidate that was not elected starts again.
            if anothers_turn {
                return;
            }
        }
        let fit = self.is_fit(step);
        let may = step.ctx.may_campaign(step.now) && !self.leasing.is_leaving();
        if !self.consensus.is_its_turn(step, fit) || !may {
            return;
        }
        self.start_pre_vote(step);
    }

    /// Starts a pre-vote. This replica campaigns once a majority would promise its ballot. Without
    /// pre-votes, it campaigns immediately.
    fn start_pre_vote(&mut self, step: &mut Step<'_>) {
        if !step.ctx.settings.elections.pre_vote || step.ctx.others().next().is_none() {
            return self.campaign(step);
        }
        self.consensus.start_pre_vote(step);
    }

    /// Returns whether this replica is fit to lead. All these conditions must hold:
    ///
    /// - The replica takes part and does not leave.
    /// - Its disk accepts writes, its clock is trusted, and its restart wait is over.
    /// - It has the entries of all slots that it knows to be committed, and has executed nearly all
    ///   of them.
    pub(super) fn is_fit(&self, step: &Step<'_>) -> bool {
        let waits = self.leasing.in_restart_wait(step.now);
        let stays = self.joining.has_joined() && !self.leasing.is_leaving();
        let stays = stays && self.consensus.is_caught_up(step);
        stays && step.ctx.writable && step.ctx.clock_trusted && !waits
    }

    /// Handles a peer's question whether this replica would promise the peer's ballot.
    pub(super) fn on_pre_vote(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        ballot: Ballot,
        ask: u64,
    ) {
        let promised = self.consensus.promised();
        if ballot.replica != from {
            step.metrics.refused_messages += 1;
        } else if ballot == promised {
            // The candidate that has this replica's promise reports that promises of others are
            // arriving.
            self.consensus.heard_leader(step);
        } else if ballot < promised {
            step.send(from, Message::Rejected { promised });
        } else if step.ctx.writable && self.consensus.would_promise(step, from) {
            step.send(from, Message::PreVoted { ballot, ask });
            if self.consensus.is_follower() {
                self.consensus.give_way(step);
            }
        }
    }

    /// Handles the answer of a peer that would promise this replica's ballot.
    pub(super) fn on_pre_voted(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        ballot: Ballot,
        ask: u64,
    ) {
        if self.consensus.take_agreement(step, from, ballot, ask) {
            self.campaign(step);
        }
    }

    /// Campaigns. Does nothing if this replica has been told to end, could not keep its own
    /// promise, or receives messages from too few others.
    pub(super) fn campaign(&mut self, step: &mut Step<'_>) {
        if !step.ctx.may_campaign(step.now) || self.leasing.is_leaving() {
            return;
        }
        if !self.consensus.is_follower() {
            self.step_down(step);
        }
        self.consensus.campaign(step);
    }

    /// Requests promises, because this candidate's own promise is durable now, or because others
    /// have not answered.
    pub(super) fn ask_for_promises(&mut self, step: &mut Step<'_>, ballot: Ballot) {
        if self.consensus.send_prepare(step, ballot) {
            self.try_lead(step);
        }
    }

    pub(super) fn on_prepare(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        ballot: Ballot,
        commits: PerLog<Slot>,
    ) {
        if ballot.replica != from {
            step.metrics.refused_messages += 1;
            return;
        }
        if self.consensus.rejects(step, from, ballot) {
            return;
        }
        if self.consensus.promise(step, ballot) {
            self.step_down(step);
            self.consensus.heard_leader(step);
        }
        step.when_durable(Continuation::Prepared {
            to: from,
            ballot,
            commits,
        });
    }

    pub(super) fn on_prepared(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        incarnation: Incarnation,
        prepared: Prepared,
    ) {
        if self
            .consensus
            .take_promise(step, from, incarnation, prepared)
        {
            self.try_lead(step);
            self.consensus.promise_progressed(step);
        }
    }

    /// Handles a rejection by a peer that has promised a higher ballot than this replica's own. The
    /// peer will never accept anything under this replica's ballot. So if this replica leads, it
    /// immediately asks the others whether they would promise it an even higher ballot. The
    /// replicas that still follow this replica agree. If another replica has become the leader, no
    /// majority agrees, and this replica follows that leader. This replica does not ask if the
    /// higher ballot belongs to the replica to which it transfers leadership.
    pub(super) fn on_rejected(&mut self, step: &mut Step<'_>, promised: Ballot) {
        let mut asks_again = self.consensus.asks_below(promised);
        let leads_on = self.consensus.leads() && !self.consensus.transfers_to(promised.replica);
        if self.consensus.is_rejected_by(promised) {
            self.step_down(step);
            asks_again = leads_on;
        }
        let may = step.ctx.may_campaign(step.now) && !self.leasing.is_leaving();
        if asks_again && may && step.ctx.settings.elections.pre_vote {
            self.start_pre_vote(step);
        }
    }

    /// Begins to lead once two conditions hold. A majority has promised the ballot, and every slot
    /// that a member of this majority knows to be committed is committed here, too (hazard 27).
    pub(super) fn try_lead(&mut self, step: &mut Step<'_>) {
        match self.consensus.election_progress(step) {
            ElectionProgress::Waiting => {}
            ElectionProgress::Behind(behind) => {
                for (of, log, commit_point) in behind {
                    self.consensus.fetch(step, of, log, commit_point);
                }
            }
            ElectionProgress::Elected => self.lead(step),
        }
    }

    fn lead(&mut self, step: &mut Step<'_>) {
        let Some(recovery) = self.consensus.recover(self.machine.log_time_ms()) else {
            // Once the checkpoint is durable, this candidate tries again.
            return self.flush_state(step);
        };
        let ballot = self.consensus.become_leader(step, recovery.log_time_ms);
        self.consensus.note_unexecuted();
        for (log, values) in recovery.values.each() {
            self.open_log(step, log, ballot, values);
        }
        step.announce(Event::Leading(ballot));
        self.leasing.become_leader(step.now);
        step.timers.stop(Timer::Election);
        for timer in [Timer::Heartbeat, Timer::Reconfigure, Timer::Lease] {
            step.set_timer(timer, step.now);
        }
        self.ask_new_leader(step);
    }

    /// Proposes the recovered values of a log again, and then the opening no-op. This ballot begins
    /// at the slot of the no-op.
    fn open_log(&mut self, step: &mut Step<'_>, log: LogId, ballot: Ballot, values: Vec<Value>) {
        let first = self.consensus.log(log).commit_point().next();
        let start = self.consensus.begin_ballot(step, log, &values);
        for value in values {
            self.consensus.note_in_flight(&value);
            self.propose_recovered(step, log, ballot, value);
        }
        if off(Rule::H13Phase1) {
            let recovered: Vec<Slot> = (first.0..start.0).map(Slot).collect();
            self.commit(step, log, &recovered);
        }
        self.propose_recovered(step, log, ballot, Value::Noop);
    }

    /// Campaigns without a pre-vote, if the followed leader has transferred leadership to this
    /// replica. Must be called after all messages of a group of steps, because a later message of
    /// the group may show another leader.
    pub(super) fn take_over(&mut self, step: &mut Step<'_>) {
        let Some(by_operator) = self.consensus.take_transfer_notice() else {
            return;
        };
        let ready = self.consensus.is_caught_up(step) && !self.leasing.in_restart_wait(step.now);
        if ready && !self.leasing.is_leaving() {
            self.consensus.note_transferred_here(by_operator);
            self.campaign(step);
        }
    }

    /// Handles an operator's request to move leadership to `to`. The leader transfers leadership,
    /// and any other replica passes the request on to the leader.
    pub(super) fn transfer_leadership(&mut self, step: &mut Step<'_>, to: ReplicaId) {
        if !step.ctx.members.is_member(to) {
            step.metrics.refused_messages += 1;
        } else if self.consensus.leads() {
            let deadline = step.now + self.leasing.grace();
            self.consensus.begin_operator_transfer(step, to, deadline);
        } else if let Some(leader) = self.consensus.leader().filter(|l| *l != step.me()) {
            step.send(leader, Message::Move { to });
        }
    }

    /// Requests leadership if this replica is the preferred leader. Sends no request while
    /// forgotten grants of this replica may still be valid.
    pub(super) fn seek_leadership(&mut self, step: &mut Step<'_>) {
        if self.is_fit(step) {
            self.consensus.seek_leadership(step);
        }
    }

    pub(super) fn on_transfer_request(&mut self, step: &mut Step<'_>, from: ReplicaId) {
        let deadline = step.now + self.leasing.grace();
        self.consensus.on_transfer_request(step, from, deadline);
    }
}
