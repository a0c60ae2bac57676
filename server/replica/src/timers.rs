//! Deadlines of a replica's timers. A deadline is only compared with the time of a step; no timer
//! fires by itself.

use leasehold_leases::Time;

/// Timers. Each is named after the work that is due when the timer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The leader has been silent for too long.
    Election,
    /// A leader sends a heartbeat.
    Heartbeat,
    /// Pings are sent to measure round trips.
    Ping,
    /// Work of the lease engine is due.
    Lease,
    /// Unanswered requests are repeated.
    Retransmit,
    /// Demand is reported to the leader.
    Report,
    /// The leader asks the strategy for changes of holders.
    Reconfigure,
    /// The state is flushed.
    Flush,
    /// Missed entries are fetched.
    Fetch,
    /// Execution continues with committed slots that were not executed in an earlier group of
    /// inputs.
    Execute,
    /// Changes of the state are handed to the storage.
    Changes,
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
    "flush",
    "fetch",
    "execution",
    "changes of the state",
];

/// Set of the timers that are due. Code that reports the work of a step uses this type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueTimers([bool; TIMERS]);

impl DueTimers {
    /// Returns the names of the timers that are due.
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
    /// Creates the timers. All recurrent work is due at `now`, except elections and the work that
    /// only leaders do.
    pub(super) fn new(now: Time) -> Timers {
        let mut timers = Timers {
            at: [Time::MAX; TIMERS],
            next: Time::MAX,
        };
        for timer in [Timer::Ping, Timer::Lease, Timer::Retransmit, Timer::Report] {
            timers.set(timer, now);
        }
        timers.set(Timer::Flush, now);
        timers
    }

    pub(super) fn set(&mut self, timer: Timer, at: Time) {
        self.at[timer as usize] = at;
        self.next = self.at.iter().copied().min().unwrap_or(Time::MAX);
    }

    /// Moves the deadline of a timer to `at` if that is earlier.
    pub(super) fn set_earlier(&mut self, timer: Timer, at: Time) {
        if at < self.at[timer as usize] {
            self.set(timer, at);
        }
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        self.set(timer, Time::MAX);
    }

    /// Returns the deadlines. Those after `horizon` are replaced by [`Time::MAX`].
    pub(super) fn until(&self, horizon: Time) -> [Time; TIMERS] {
        self.at.map(|at| if at <= horizon { at } else { Time::MAX })
    }

    /// Returns whether `timer` is stopped, or is due after `horizon`.
    pub(super) fn rests(&self, timer: Timer, horizon: Time) -> bool {
        self.at[timer as usize] > horizon
    }

    /// Stops all timers.
    pub(super) fn stop_all(&mut self) {
        self.at = [Time::MAX; TIMERS];
        self.next = Time::MAX;
    }

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Time {
        self.next
    }

    /// Returns whether `timer` is due. If it is due, sets its next deadline to `again`.
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

    /// Checks the next deadline.
    ///
    /// # Panics
    /// If the stored next deadline is not the earliest one.
    pub(super) fn check(&self) {
        let earliest = self.at.iter().copied().min();
        assert_eq!(Some(self.next), earliest, "the earliest deadline is next");
    }

    fn due(&self, timer: Timer, now: Time) -> bool {
        self.at[timer as usize] <= now
    }
}
