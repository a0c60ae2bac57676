//! Resources that all connections of clients take together, and counts of how often a limit
//! acted.

use std::cell::Cell;
use std::rc::Rc;

use crate::config::Limits;
use crate::front::outbox::UnreadBytes;
use crate::watch::log_rate_limiter::LogRateLimiter;

/// Counts of what the replica did to keep its limits.
#[derive(Debug, Default)]
pub(crate) struct LimitCounters {
    /// Connections abandoned, for they left too much unread.
    pub(crate) abandoned: Cell<u64>,
    /// Times that a connection was not read from, for it had enough in flight or unread.
    pub(crate) paused: Cell<u64>,
    /// Requests refused, for all together had too much in flight.
    pub(crate) requests_refused: Cell<u64>,
    /// Connections closed, for a frame was late or answers were not taken in time.
    pub(crate) timed_out: Cell<u64>,
    /// Connections closed, for nothing was asked on them for long.
    pub(crate) idle: Cell<u64>,
    /// Connections closed, for unfinished frames took too much together.
    pub(crate) evicted: Cell<u64>,
}

/// Resources that all connections of clients take together, and their limits. Fields are bytes,
/// if they do not say otherwise.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    pub(crate) limits: Limits,
    /// Charges of the requests in flight.
    pub(crate) charged: Cell<usize>,
    /// Bytes that have arrived of frames that are not whole yet.
    pub(crate) partial: Cell<usize>,
    pub(crate) unread: Rc<UnreadBytes>,
    /// By kind, the bytes that answers to all clients are expected to have.
    pub(super) expected: [Cell<usize>; 3],
    /// Number of entries that answers of several to all clients are expected to have.
    pub(super) expected_entries: Cell<usize>,
    /// Units of [`leasehold_replica::cost`] by which reads in flight may cost more than they are charged.
    pub(super) guessed: Cell<usize>,
    pub(crate) limit_counters: LimitCounters,
    /// Rate limit of the log lines about connections that are closed.
    pub(crate) close_log: LogRateLimiter,
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Budget {
        Budget {
            limits,
            ..Budget::default()
        }
    }

    /// Whether requests in flight take as much as they may.
    pub(super) fn is_spent(&self) -> bool {
        self.charged.get() >= self.limits.in_flight_bytes
    }

    /// Whether they take more than they may even if each is small.
    pub(super) fn is_overspent(&self) -> bool {
        let most = self.limits.in_flight_bytes;
        self.charged.get() >= most + most / 8
    }

    /// Whether they take so much that it matters what they keep beside what they are charged.
    pub(super) fn is_in_use(&self) -> bool {
        self.charged.get() >= self.limits.in_flight_bytes / 16
    }

    /// Whether unfinished frames take more than their share: half of what requests in flight
    /// may. The other half is for requests that have arrived.
    pub(crate) fn has_excess_partial(&self) -> bool {
        self.partial.get() > self.limits.in_flight_bytes / 2
    }
}

/// Adds one to a count.
pub(crate) fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}
