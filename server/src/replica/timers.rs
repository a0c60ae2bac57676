//! What is due, and when. A deadline is a comparison; nothing fires by itself.

use leases::{Slot, Time};
use rand::RngExt as _;

use super::action::{Action, Checkpoint, Event, Record};
use super::message::{LogId, Message};
use super::persist::After;
use super::{Replica, Role};

/// Things that recur or fall due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The leader has been silent too long.
    Election,
    /// A leader's heartbeat.
    Heartbeat,
    /// Round trips are measured.
    Ping,
    /// The lease engine has something due.
    Lease,
    /// Unanswered things are asked again.
    Retransmit,
    /// Demand is reported to the leader.
    Report,
    /// The leader asks the strategy.
    Reconfigure,
    /// The state is checkpointed.
    Checkpoint,
    /// Missed entries are fetched.
    Fetch,
}

const TIMERS: usize = 9;

/// One deadline for each [`Timer`].
#[derive(Clone, Debug)]
pub(super) struct Timers {
    at: [Time; TIMERS],
    next: Time,
}

impl Timers {
    /// Everything recurrent begins now, but the election and what only leaders do.
    pub(super) fn new(now: Time) -> Timers {
        let mut timers = Timers {
            at: [Time::MAX; TIMERS],
            next: Time::MAX,
        };
        for timer in [Timer::Ping, Timer::Lease, Timer::Retransmit, Timer::Report] {
            timers.set(timer, now);
        }
        timers.set(Timer::Checkpoint, now);
        timers
    }

    pub(super) fn set(&mut self, timer: Timer, at: Time) {
        self.at[timer as usize] = at;
        self.next = self.at.iter().copied().min().unwrap_or(Time::MAX);
    }

    /// Brings a timer forward.
    pub(super) fn set_earlier(&mut self, timer: Timer, at: Time) {
        if at < self.at[timer as usize] {
            self.set(timer, at);
        }
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        self.set(timer, Time::MAX);
    }

    /// Deadlines, those after `horizon` as one.
    pub(super) fn until(&self, horizon: Time) -> [Time; TIMERS] {
        self.at.map(|at| if at <= horizon { at } else { Time::MAX })
    }

    /// Whether `timer` is due after `horizon` or never.
    pub(super) fn rests(&self, timer: Timer, horizon: Time) -> bool {
        self.at[timer as usize] > horizon
    }

    /// Nothing is due any more.
    pub(super) fn stop_all(&mut self) {
        self.at = [Time::MAX; TIMERS];
        self.next = Time::MAX;
    }

    fn due(&self, timer: Timer, now: Time) -> bool {
        self.at[timer as usize] <= now
    }
}

impl Replica {
    /// When to step with [`super::Input::Tick`] at the latest.
    pub fn next_deadline(&self) -> Time {
        self.timers.next
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Time, out: &mut Vec<Action>) {
        if now < self.timers.next {
            return;
        }
        let timing = self.settings.timing;
        if self.timers.due(Timer::Election, now) {
            if self.has_joined() {
                self.reset_election(now);
                self.campaign(now, out);
            } else {
                self.postpone_campaign();
            }
        }
        if self.timers.due(Timer::Heartbeat, now) {
            self.timers.set(Timer::Heartbeat, now + timing.heartbeat);
            self.lead_on(now, out);
        }
        if self.timers.due(Timer::Ping, now) {
            self.timers.set(Timer::Ping, now + timing.ping);
            self.broadcast(&Message::Ping { stamp: now.0 }, out);
            self.seek_preferred_leadership(now, out);
        }
        if self.timers.due(Timer::Lease, now) {
            if self.has_joined() {
                self.poll_leases(now, out);
            } else {
                self.timers.stop(Timer::Lease);
            }
        }
        if self.timers.due(Timer::Fetch, now) {
            self.timers.stop(Timer::Fetch);
            match self.role {
                Role::Candidate(_) => self.try_lead(now, out),
                _ => self.fetch_missing(now, out),
            }
        }
        if self.timers.due(Timer::Retransmit, now) {
            self.timers
                .set(Timer::Retransmit, now + timing.retransmit / 4);
            self.retransmit(now, out);
        }
        if self.timers.due(Timer::Report, now) {
            self.timers.set(Timer::Report, now + timing.report);
            self.report_demand(out);
        }
        if self.timers.due(Timer::Reconfigure, now) {
            self.timers
                .set(Timer::Reconfigure, now + timing.reconfigure);
            self.reconfigure(now, out);
        }
        if self.timers.due(Timer::Checkpoint, now) {
            self.timers.set(Timer::Checkpoint, now + timing.checkpoint);
            self.checkpoint();
        }
    }

    /// Waits anew for the leader, for a random span.
    pub(super) fn reset_election(&mut self, now: Time) {
        let base = self.settings.timing.election_timeout;
        let jitter = base.mul_f64(self.rng.random::<f64>());
        self.timers.set(Timer::Election, now + base + jitter);
    }

    /// Asks again for what was not answered.
    fn retransmit(&mut self, now: Time, out: &mut Vec<Action>) {
        self.retransmit_join(out);
        self.retransmit_proposals(now, out);
        self.retransmit_prepare(now, out);
        self.reforward_writes(now);
        self.retry_reads(now, out);
    }

    /// Writes down what changed in the state, so that a restart replays little.
    pub(super) fn checkpoint(&mut self) {
        let executed = self.commands().executed;
        let config = self.configs.newest();
        if (executed, config) == self.counters.checkpointed {
            return;
        }
        self.counters.checkpointed = (executed, config);
        let checkpoint = Checkpoint {
            executed,
            config,
            log_time_ms: self.kv.log_time_ms,
            entries: self.kv.take_dirty(),
            sessions: self.kv.sessions.take_dirty(),
        };
        self.persister.record(Record::Checkpoint(checkpoint));
        let slots = [executed, Slot(config.0)];
        self.persister.after(After::Checkpointed(slots));
    }

    /// Brings the checkpoint forward if one of the logs would run out of its window.
    pub(super) fn keep_windows_open(&mut self, now: Time) {
        let (executed, config) = self.counters.checkpointed;
        let asked = [executed, Slot(config.0)];
        let mut logs = self.logs.iter().zip(asked);
        if logs.any(|(paxos, asked)| paxos.wants_checkpoint(asked)) {
            self.timers.set_earlier(Timer::Checkpoint, now);
        }
    }

    /// A checkpoint is durable: whoever had no room in a window goes on. A leader does
    /// so by itself, at the end of the group.
    pub(super) fn move_windows(&mut self, now: Time, slots: [Slot; 2], out: &mut Vec<Action>) {
        let mut waited = false;
        for (paxos, slot) in self.logs.iter_mut().zip(slots) {
            waited |= paxos.checkpointed(slot);
        }
        match self.role {
            Role::Candidate(_) => self.try_lead(now, out),
            _ if waited => self.fetch_missing(now, out),
            _ => {}
        }
    }

    /// A leader's heartbeat; it also notices what has been blocked for too long.
    fn lead_on(&mut self, now: Time, out: &mut Vec<Action>) {
        if !matches!(self.role, Role::Leader(_)) {
            self.timers.stop(Timer::Heartbeat);
            return;
        }
        if self.is_deaf(now) {
            return self.step_down(now, out);
        }
        self.heartbeat(out);
        self.continue_transfer(now, out);
        self.suspect_blockers(now, out);
        for log in LogId::ALL {
            debug_assert!(self.logs[log.index()].executed <= self.logs[log.index()].commit_point);
        }
    }

    pub(super) fn announce(&self, event: Event, out: &mut Vec<Action>) {
        out.push(Action::Event(event));
    }
}
