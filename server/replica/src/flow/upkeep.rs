//! Work that is due, work that follows a durable write, and work that is done once for each batch
//! of inputs.

use leasehold_leases::{Incarnation, ReplicaId, Time};

use super::Parts;
use crate::action::Event;
use crate::context::PeerContact;
use crate::handles::Sequence;
use crate::input::Input;
use crate::message::Message;
use crate::persist::{Continuation, Continuations, LogProgress};
use crate::step::Step;
use crate::timers::Timer;

impl Parts {
    /// Handles every input except four kinds that are handled elsewhere: a peer's message, a tick,
    /// `StorageWritable` and `ClockTrusted`.
    pub fn on_input(&mut self, step: &mut Step<'_>, input: Input) {
        match input {
            Input::Client { from, command } => self.on_client(step, from, command),
            Input::ClientDisconnected { connection } => self.disconnected.note(connection),
            Input::FenceMissed { from, again } => self.on_fence_missed(step, from, again),
            Input::Persisted(sequence) => self.on_persisted(step, sequence),
            Input::Flushed(slots) => self.on_flushed(step, slots),
            Input::LogRead { log, to, entries } => {
                self.consensus.on_log_read(step, log, to, entries)
            }
            Input::Operator(operator) => self.on_operator(step, operator),
            Input::Stop => self.leave(step),
            Input::Peer(_) | Input::Tick => {}
            Input::StorageWritable(_) | Input::ClockTrusted(_) => {}
        }
    }

    /// Handles the first message of a later run of a peer.
    pub fn peer_restarted(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        incarnation: Incarnation,
    ) {
        self.leasing.peer_restarted(step.now, from, incarnation);
        self.consensus.leader_restarted(step, from);
        step.set_timer(Timer::Lease, step.now);
    }

    /// Handles the first message of a peer after a long silence or a restart.
    pub fn peer_interrupted(&mut self, step: &mut Step<'_>, from: ReplicaId, contact: PeerContact) {
        self.consensus.peer_interrupted(step, from, contact);
    }

    /// Does the work of all timers that are due.
    pub fn tick(&mut self, step: &mut Step<'_>) {
        let now = step.now;
        if now < step.timers.next() {
            return;
        }
        let timing = step.ctx.settings.timing;
        let due = |step: &mut Step<'_>, timer, again| step.timers.take_due(timer, now, again);
        if due(step, Timer::Election, Time::MAX) {
            self.election_due(step);
        }
        if due(step, Timer::Heartbeat, now + timing.heartbeat) {
            self.lead_on(step);
        }
        if due(step, Timer::Ping, now + timing.ping) {
            self.ping(step);
            self.seek_leadership(step);
        }
        if due(step, Timer::Lease, Time::MAX) && self.joining.has_joined() {
            self.poll_leases(step);
        }
        if due(step, Timer::Fetch, Time::MAX) {
            self.fetch_due(step);
        }
        if due(step, Timer::Retransmit, now + timing.retransmit / 4) {
            self.retransmit(step);
        }
        if due(step, Timer::Report, now + timing.report) {
            self.report_demand(step);
        }
        if due(step, Timer::Reconfigure, now + timing.reconfigure) {
            self.reconfigure(step);
        }
        if due(step, Timer::Execute, Time::MAX) && self.execute_more(step) {
            self.fetch_due(step);
        }
        if due(step, Timer::Changes, Time::MAX) {
            self.hand_over_changes(step);
        }
        if due(step, Timer::Flush, now + timing.checkpoint) {
            self.flush_state(step);
        }
    }

    /// Sends pings, which measure round trips and report how well this replica would lead.
    fn ping(&mut self, step: &mut Step<'_>) {
        let cost_ms = step.ctx.cost_ms().filter(|_| self.is_fit(step));
        step.broadcast(&Message::Ping {
            stamp: step.now.0,
            cost_ms: cost_ms.unwrap_or(0),
            flushed: self.compaction.flushed(),
        });
    }

    fn election_due(&mut self, step: &mut Step<'_>) {
        if self.joining.has_joined() {
            self.seek_election(step);
        } else {
            self.joining.postpone_campaign(step);
        }
    }

    /// Repeats requests that were not answered.
    fn retransmit(&mut self, step: &mut Step<'_>) {
        self.joining.retransmit(step);
        self.leasing.say_leave(step);
        self.retransmit_accepts(step);
        if let Some(ballot) = self.consensus.overdue_candidate(step) {
            self.ask_for_promises(step, ballot);
        }
        self.forget_disconnected(step);
        self.writes.retry(step);
        let (reads, view) = self.reads();
        reads.retry(step, view);
    }

    /// Does the work that waited until the persist `sequence` was durable. This persist and all
    /// earlier ones are durable now.
    pub fn on_persisted(&mut self, step: &mut Step<'_>, sequence: Sequence) {
        let continuations: Continuations = step.persister.done(sequence);
        for continuation in continuations {
            match continuation {
                Continuation::Vote {
                    log,
                    slot,
                    ballot,
                    executed,
                } => self.consensus.vote_durable(log, slot, ballot, executed),
                Continuation::Prepared {
                    to,
                    ballot,
                    commits,
                } => self.consensus.answer_prepare(step, to, ballot, commits),
                Continuation::Campaign { ballot } => self.ask_for_promises(step, ballot),
                Continuation::Joined { to } => self.joining.answer_join(step, to),
                Continuation::TakePart => self.take_part(step),
                Continuation::Left => self.leasing.left_durable(),
                Continuation::RestartWait(wait) => self.leasing.restart_wait_durable(step, wait),
            }
        }
    }

    /// Makes this replica take part from now on, because the record that it has joined is durable.
    /// Answers the Phase 1 request that arrived before, if there is one. Otherwise, if the election
    /// timer has already run out, a preferred leader campaigns.
    fn take_part(&mut self, step: &mut Step<'_>) {
        let postponed = self.joining.take_part();
        step.announce(Event::Joined);
        step.set_timer(Timer::Lease, step.now);
        let preferred = step.ctx.settings.elections.preferred == Some(step.me());
        match postponed.prepare {
            Some((ballot, commits)) => {
                self.consensus.reset_election(step);
                self.on_prepare(step, ballot.replica, ballot, commits);
            }
            None if !postponed.campaign => {}
            None if preferred => step.set_timer(Timer::Election, step.now),
            // Without a new random delay, replicas that joined together would campaign together.
            None => self.first_election(step),
        }
    }

    /// Sets the timers at the beginning of a run.
    pub fn begin_run(&mut self, step: &mut Step<'_>) {
        self.first_election(step);
        // What was committed before the restart is executed without a leader.
        if self.consensus.has_to_execute() {
            step.set_timer(Timer::Execute, step.now);
        }
    }

    /// Sets the timer for the first election of a run.
    fn first_election(&mut self, step: &mut Step<'_>) {
        let waits = self.leasing.in_restart_wait(step.now);
        self.consensus.first_election(step, waits);
    }

    /// Does the work that is done once for each group of steps: proposes batches, and sends votes,
    /// forwarded requests and reports of commits.
    pub fn flush(&mut self, step: &mut Step<'_>) {
        self.take_over(step);
        self.send_votes(step);
        self.propose_batches(step);
        self.consensus.continue_transfer(step);
        self.send_forwards(step);
        self.send_due_probe(step);
        self.consensus.send_news(step);
        self.reads.flush(step);
        self.leave_on(step);
        self.execution = self.execution.next_group();
        self.marks_looked_at = 0;
        let progress = LogProgress {
            committed: self.consensus.committed(),
            executed: self.consensus.executed(),
        };
        step.persister.flush(progress, step.out);
    }
}
