//! Resources that all connections of clients take together, and counters that show how often each
//! limit took effect.

use std::cell::Cell;
use std::rc::Rc;

use crate::config::Limits;
use crate::front::outbox::UnreadBytes;
use crate::watch::log_rate_limiter::LogRateLimiter;

/// Counters of the actions that enforce the replica's limits.
#[derive(Debug, Default)]
pub(crate) struct LimitCounters {
    /// Number of connections that were abandoned because their clients left too many bytes unread.
    pub(crate) abandoned: Cell<u64>,
    /// Number of times that the replica stopped reading from a connection. There are two reasons.
    /// The connection had too many requests in flight, bytes in flight or unread bytes. Or all
    /// connections together had too many bytes in flight.
    pub(crate) paused: Cell<u64>,
    /// Number of requests that were refused because all connections together had too many bytes in
    /// flight.
    pub(crate) requests_refused: Cell<u64>,
    /// Number of connections that were closed because a frame arrived late or the client did not
    /// take its answers in time.
    pub(crate) timed_out: Cell<u64>,
    /// Number of connections that were closed because they carried no request for a long time.
    pub(crate) idle: Cell<u64>,
    /// Number of connections that were closed because unfinished frames together took too much
    /// memory.
    pub(crate) evicted: Cell<u64>,
}

/// Resources that all client connections use together, and the limits on these resources. Fields
/// are in bytes unless stated otherwise.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    pub(crate) limits: Limits,
    /// Number of bytes that are charged for requests in flight.
    pub(crate) charged: Cell<usize>,
    /// Number of received bytes of incomplete frames.
    pub(crate) partial: Cell<usize>,
    pub(crate) unread: Rc<UnreadBytes>,
    /// Expected sizes of answers, by kind of request. They are estimated from the answers to all
    /// clients.
    pub(super) expected: [Cell<usize>; 4],
    /// Expected number of entries in the answer to a Scan or MultiGet. It is estimated from the
    /// answers to all clients.
    pub(super) expected_entries: Cell<usize>,
    /// Sum of the guessed extra costs of all reads in flight, in units of
    /// [`leasehold_replica::cost`]. These reads may cost more than their charges, by up to this
    /// sum.
    pub(super) guessed: Cell<usize>,
    pub(crate) limit_counters: LimitCounters,
    /// Rate limit of the log lines about closed connections.
    pub(crate) close_log: LogRateLimiter,
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Budget {
        Budget {
            limits,
            ..Budget::default()
        }
    }

    /// Whether the memory for requests in flight has reached its limit.
    pub(super) fn is_spent(&self) -> bool {
        self.charged.get() >= self.limits.in_flight_bytes
    }

    /// Whether requests in flight exceed their memory limit by so much that even small requests
    /// must be refused.
    pub(super) fn is_overspent(&self) -> bool {
        let most = self.limits.in_flight_bytes;
        self.charged.get() >= most + most / 8
    }

    /// Whether requests in flight take so much memory that the uncharged parts of shared buffers
    /// matter. A shared buffer is kept in memory as a whole, although only a part of it is charged.
    pub(super) fn is_in_use(&self) -> bool {
        self.charged.get() >= self.limits.in_flight_bytes / 16
    }

    /// Whether unfinished frames take more than their share of memory. The share is half of the
    /// limit for requests in flight; the other half is for requests that have arrived completely.
    pub(crate) fn has_excess_partial(&self) -> bool {
        self.partial.get() > self.limits.in_flight_bytes / 2
    }
}

/// Increments a counter.
pub(crate) fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}
