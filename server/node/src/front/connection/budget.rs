//! Resources that all connections of clients take together, and counts of how often a limit took
//! effect.

use std::cell::Cell;
use std::rc::Rc;

use crate::config::Limits;
use crate::front::outbox::UnreadBytes;
use crate::watch::log_rate_limiter::LogRateLimiter;

/// Counts of actions by which the replica kept its limits.
#[derive(Debug, Default)]
pub(crate) struct LimitCounters {
    /// Connections abandoned because they left too much unread.
    pub(crate) abandoned: Cell<u64>,
    /// Times that a connection was not read from because it had enough in flight or unread.
    pub(crate) paused: Cell<u64>,
    /// Requests refused because all connections together had too much in flight.
    pub(crate) requests_refused: Cell<u64>,
    /// Connections closed because a frame was late or answers were not taken in time.
    pub(crate) timed_out: Cell<u64>,
    /// Connections closed because no request came on them for long.
    pub(crate) idle: Cell<u64>,
    /// Connections closed because unfinished frames took too much memory together.
    pub(crate) evicted: Cell<u64>,
}

/// Resources that all connections of clients take together, and their limits. Fields are in bytes
/// unless stated otherwise.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    pub(crate) limits: Limits,
    /// Charges of the requests in flight.
    pub(crate) charged: Cell<usize>,
    /// Bytes that have arrived of incomplete frames.
    pub(crate) partial: Cell<usize>,
    pub(crate) unread: Rc<UnreadBytes>,
    /// Expected sizes of answers to all clients, one for each kind.
    pub(super) expected: [Cell<usize>; 3],
    /// Expected number of entries in an answer with several entries to any client.
    pub(super) expected_entries: Cell<usize>,
    /// Units of [`leasehold_replica::cost`] by which reads in flight may exceed their charges.
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

    /// Whether requests in flight take as much memory as they may.
    pub(super) fn is_spent(&self) -> bool {
        self.charged.get() >= self.limits.in_flight_bytes
    }

    /// Whether requests in flight take more than they may, even if each of them is small.
    pub(super) fn is_overspent(&self) -> bool {
        let most = self.limits.in_flight_bytes;
        self.charged.get() >= most + most / 8
    }

    /// Whether requests in flight take enough memory that buffers kept in addition to their charges
    /// matter.
    pub(super) fn is_in_use(&self) -> bool {
        self.charged.get() >= self.limits.in_flight_bytes / 16
    }

    /// Whether unfinished frames take more than their share, which is half of the limit for
    /// requests in flight. The other half is for requests that have arrived whole.
    pub(crate) fn has_excess_partial(&self) -> bool {
        self.partial.get() > self.limits.in_flight_bytes / 2
    }
}

/// Increments a counter.
pub(crate) fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}
