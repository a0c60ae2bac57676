//! Deadlines of a replica's timers. A deadline is a comparison; nothing fires by itself.

use leasehold_leases::Time;

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
    /// Committed slots are left to execute.
    Execute,
    /// More values of a checkpoint are written ahead.
    Stage,
}

const TIMERS: usize = 11;

const NAMES: [&str; TIMERS] = [
    "election",
    "heartbeat",
    "ping",
    "leases",
    "retransmit",
    "demand report",
    "holders",
    "checkpoint",
    "fetch",
    "execution",
    "checkpoint in parts",
];

/// Timers that are due, for the code that reports what a step had to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueTimers([bool; TIMERS]);

impl DueTimers {
    /// Names of the timers that are due.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let named = NAMES.iter().zip(self.0);
        named.filter_map(|(name, due)| due.then_some(*name))
    }
}

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

    /// The earliest deadline.
    pub(super) fn next(&self) -> Time {
        self.next
    }

    /// Whether `timer` is due; if so, it is set to `again`.
    pub(super) fn take_due(&mut self, timer: Timer, now: Time, again: Time) -> bool {
        let due = self.due(timer, now);
        if due {
            self.set(timer, again);
        }
        due
    }

    /// Returns the timers that are due.
    pub(super) fn all_due(&self, now: Time) -> DueTimers {
        if now < self.next {
            DueTimers::default()
        } else {
            DueTimers(self.at.map(|at| at <= now))
        }
    }

    /// # Panics
    /// If the earliest deadline is not the next.
    pub(super) fn check(&self) {
        let earliest = self.at.iter().copied().min();
        assert_eq!(Some(self.next), earliest, "the earliest deadline is next");
    }

    fn due(&self, timer: Timer, now: Time) -> bool {
        self.at[timer as usize] <= now
    }
}
