//! Sessions: what makes a write happen once however often it is sent.
//!
//! A command that is sent again keeps its (client, sequence). Replicas store its result
//! under that identity, until the client says that it will not ask again: with a
//! low-water mark, below which every sequence was answered or given up.
//!
//! A write that was given up stays on its way. It may be executed until a later write
//! of the session is, whose mark is above it; from then on it is refused for ever. So
//! the mark may move as soon as nobody waits for the answer.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use crate::wire::UNACKNOWLEDGED_MAX;

/// The identity of one write, the same at all its attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub client: u64,
    pub sequence: u64,
    pub acked_below: u64,
    pub opened_ms: u64,
}

/// Issues tickets, and keeps the low-water mark.
#[derive(Debug)]
pub(crate) struct Session {
    /// Never 0, which means "no session" on the wire.
    client: u64,
    /// A log time from before the session's first write, in ms. With it a replica can tell
    /// that it may have forgotten the session.
    opened_ms: u64,
    /// The sequence of the next write; the first is 1.
    next: u64,
    /// Issued and not settled; all below `next`.
    outstanding: BTreeSet<u64>,
}

impl Session {
    pub fn new(opened_ms: u64) -> Self {
        Session {
            client: random_u64().max(1),
            opened_ms,
            next: 1,
            outstanding: BTreeSet::new(),
        }
    }

    pub fn issue(&mut self) -> Ticket {
        let oldest = *self.outstanding.first().unwrap_or(&self.next);
        if self.next - oldest > UNACKNOWLEDGED_MAX {
            // An old write is still in flight: it keeps the session that it was sent with.
            *self = Session::new(self.opened_ms);
        }
        let sequence = self.next;
        self.next += 1;
        self.outstanding.insert(sequence);
        Ticket {
            client: self.client,
            sequence,
            acked_below: *self.outstanding.first().unwrap_or(&sequence),
            opened_ms: self.opened_ms,
        }
    }

    /// The ticket will not be used again. Has no effect for a ticket of an earlier
    /// session.
    pub fn settle(&mut self, ticket: Ticket) {
        if ticket.client == self.client {
            self.outstanding.remove(&ticket.sequence);
        }
    }

    /// Starts over under a new identity at a log time, in ms, unless someone else
    /// has since `ticket` was issued. Writes in flight keep the identity that they were sent with.
    pub fn renew(&mut self, ticket: Ticket, log_time_ms: u64) {
        if ticket.client == self.client {
            *self = Session::new(log_time_ms);
        }
    }
}

/// Randomness for identities and for spreading retries; the standard library
/// seeds it from the operating system.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_is_never_answered_does_not_keep_others_from_their_results() {
        let mut session = Session::new(7);
        let first = session.issue();
        for _ in 0..UNACKNOWLEDGED_MAX {
            let next = session.issue();
            assert_eq!((next.client, next.acked_below), (first.client, 1));
            assert!(next.sequence - next.acked_below <= UNACKNOWLEDGED_MAX);
            session.settle(next);
        }
        let next = session.issue();
        assert_ne!(next.client, first.client);
        assert_eq!((next.sequence, next.opened_ms), (1, 7));
    }

    #[test]
    fn the_mark_stops_below_the_oldest_write_that_is_not_settled() {
        let mut session = Session::new(0);
        let tickets: Vec<Ticket> = (0..4).map(|_| session.issue()).collect();
        let sequences: Vec<u64> = tickets.iter().map(|t| t.sequence).collect();
        assert_eq!(sequences, [1, 2, 3, 4]);
        assert!(tickets.iter().all(|t| t.client != 0 && t.acked_below == 1));

        session.settle(tickets[1]);
        assert_eq!(session.issue().acked_below, 1, "1 is still in flight");
        session.settle(tickets[0]);
        assert_eq!(session.issue().acked_below, 3);
    }

    #[test]
    fn a_write_alone_marks_all_before_it_as_settled() {
        let mut session = Session::new(0);
        for sequence in 1..5 {
            let ticket = session.issue();
            assert_eq!((ticket.sequence, ticket.acked_below), (sequence, sequence));
            session.settle(ticket);
        }
    }

    #[test]
    fn a_session_is_renewed_once_for_all_its_refused_writes() {
        let mut session = Session::new(0);
        let (one, two) = (session.issue(), session.issue());
        session.renew(one, 70);
        let renewed = session.issue();
        assert_ne!(renewed.client, one.client);
        assert_eq!((renewed.sequence, renewed.opened_ms), (1, 70));

        session.renew(two, 80);
        session.settle(two);
        let next = session.issue();
        assert_eq!(next.client, renewed.client);
        assert_eq!((next.sequence, next.acked_below), (2, 1));
    }
}
