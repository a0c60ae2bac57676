//! Sessions, which ensure that a write is executed only once even if it is sent several times.
//!
//! A command that is sent again keeps its (client, sequence). Replicas store the result under this
//! identity until the client declares that it will not send the command again. The client declares
//! this with a low-water mark: every sequence below the mark was answered or abandoned.
//!
//! An abandoned write may still be on its way. Later writes of the session have a mark above the
//! abandoned write's sequence. The abandoned write may still be executed until such a later write
//! is executed. After that, it is always refused. So the mark may move as soon as no caller waits
//! for the answer.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use leasehold_wire::UNACKNOWLEDGED_MAX;

/// Identity of one write. It is the same in all attempts to send the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub client: u64,
    pub sequence: u64,
    pub acked_below: u64,
    pub opened_ms: u64,
}

/// Issues tickets from as many sessions as the writes in flight need. There may be several
/// sessions, because replicas keep the results of only a limited number of writes for each session.
#[derive(Debug)]
pub(crate) struct Sessions {
    open: Vec<Session>,
    /// Newest known log time, in ms. New sessions are opened at this time.
    log_time_ms: u64,
    /// Sessions that were opened before this log time, in ms, may have expired.
    expired_before_ms: u64,
}

impl Sessions {
    pub fn new(log_time_ms: u64) -> Self {
        Sessions {
            open: Vec::new(),
            log_time_ms,
            expired_before_ms: 0,
        }
    }

    /// Returns a ticket of a session that was opened at log time `log_time_ms` or later.
    /// `log_time_ms` must not be above the newest known log time. An existing session is used if it
    /// is not known to have expired and has space for another write. Otherwise, a new session is
    /// opened.
    pub fn issue_since(&mut self, log_time_ms: u64) -> Ticket {
        let from_ms = self.expired_before_ms.max(log_time_ms);
        let lives = |session: &&mut Session| session.opened_ms >= from_ms;
        let mut living = self.open.iter_mut().filter(lives);
        match living.find(|session| session.has_capacity()) {
            Some(session) => session.issue(),
            None => {
                let mut session = Session::new(self.log_time_ms);
                let ticket = session.issue();
                self.open.push(session);
                ticket
            }
        }
    }

    /// Records that the ticket will not be used again. Has no effect for a ticket of a session that
    /// was replaced.
    pub fn release(&mut self, ticket: Ticket) {
        let mut open = self.open.iter_mut();
        if let Some(session) = open.find(|session| session.client == ticket.client) {
            session.outstanding.remove(&ticket.sequence);
        }
    }

    /// Abandons the expired session of `ticket`. Also abandons other sessions that are at least as
    /// old and have no writes in flight. New sessions are opened at log time `log_time_ms`. Writes
    /// in flight keep the identity with which they were sent.
    pub fn renew(&mut self, ticket: Ticket, log_time_ms: u64) {
        self.log_time_ms = self.log_time_ms.max(log_time_ms);
        let later_ms = self.log_time_ms.min(ticket.opened_ms + 1);
        self.expired_before_ms = self.expired_before_ms.max(later_ms);
        self.open.retain(|session| {
            let is_needed = session.opened_ms >= later_ms || !session.outstanding.is_empty();
            is_needed && session.client != ticket.client
        });
    }
}

/// One session, and its low-water mark.
#[derive(Debug)]
struct Session {
    /// Identity of the session; never 0, which means "no session" on the wire.
    client: u64,
    /// A log time, in ms, that is not later than the session's first write. A replica compares this
    /// time with the present log time. The replica thus recognizes that it may have forgotten the
    /// session.
    opened_ms: u64,
    /// Sequence number of the next write; the first write has number 1.
    next: u64,
    /// Sequence numbers that were issued and have not been released. All are below `next`.
    outstanding: BTreeSet<u64>,
}

impl Session {
    fn new(opened_ms: u64) -> Self {
        Session {
            client: random_u64().max(1),
            opened_ms,
            next: 1,
            outstanding: BTreeSet::new(),
        }
    }

    fn has_capacity(&self) -> bool {
        let oldest = *self.outstanding.first().unwrap_or(&self.next);
        self.next - oldest <= UNACKNOWLEDGED_MAX
    }

    fn issue(&mut self) -> Ticket {
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
}

/// Returns a random number, for the identities of sessions and for random pauses between retries.
/// The standard library takes the seed from the operating system.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    impl Sessions {
        fn issue(&mut self) -> Ticket {
            self.issue_since(0)
        }
    }

    #[test]
    fn a_write_that_is_never_answered_does_not_keep_others_from_their_results() {
        let mut sessions = Sessions::new(7);
        let first = sessions.issue();
        for _ in 0..UNACKNOWLEDGED_MAX {
            let next = sessions.issue();
            assert_eq!((next.client, next.acked_below), (first.client, 1));
            assert!(next.sequence - next.acked_below <= UNACKNOWLEDGED_MAX);
            sessions.release(next);
        }
        let next = sessions.issue();
        assert_ne!(next.client, first.client);
        assert_eq!((next.sequence, next.opened_ms), (1, 7));
        // When that write is finally answered, the session is used again.
        sessions.release(next);
        sessions.release(first);
        let again = sessions.issue();
        assert!(sessions.open.iter().any(|it| it.client == again.client));
        assert_eq!(sessions.open.len(), 2);
    }

    #[test]
    fn there_are_as_many_sessions_as_writes_in_flight_need() {
        let mut sessions = Sessions::new(0);
        let mut in_flight: VecDeque<Ticket> = (0..200).map(|_| sessions.issue()).collect();
        for _ in 0..10_000 {
            sessions.release(in_flight.pop_front().expect("200 are in flight"));
            in_flight.push_back(sessions.issue());
        }
        assert!(sessions.open.len() <= 5, "{}", sessions.open.len());
    }

    /// All sessions that were opened at the same time may have expired. The refusals of their
    /// writes arrive while all sessions are in use.
    #[test]
    fn what_is_refused_because_sessions_expired_is_issued_again_in_a_new_one() {
        let mut sessions = Sessions::new(0);
        let refused: Vec<Ticket> = (0..200).map(|_| sessions.issue()).collect();
        for ticket in refused {
            sessions.renew(ticket, 70);
            assert_eq!(sessions.issue().opened_ms, 70);
        }
        assert!(sessions.open.iter().all(|session| session.opened_ms == 70));
        assert_eq!(sessions.open.len(), 4);
    }

    /// The sessions of a client may expire one after another. Each refusal contains its log time. A
    /// refused write has only one more attempt. So the client makes this attempt in a session that
    /// was opened at this log time or later.
    #[test]
    fn what_is_refused_is_issued_again_in_a_session_that_was_opened_since() {
        let mut sessions = Sessions::new(0);
        for log_time_ms in [50, 60, 70] {
            let refused: Vec<Ticket> = (0..200).map(|_| sessions.issue()).collect();
            for (later_ms, ticket) in (0..).zip(&refused) {
                sessions.renew(*ticket, log_time_ms + later_ms / 50);
                let again = sessions.issue_since(log_time_ms + later_ms / 50);
                assert!(again.opened_ms >= log_time_ms + later_ms / 50);
                assert_ne!(again.client, ticket.client);
            }
        }
        // Hours later, a ticket is issued.
        let ticket = sessions.issue();
        sessions.renew(ticket, 9000);
        assert!(
            sessions.issue().opened_ms < 9000,
            "others may live, as far as is known"
        );
        assert_eq!(sessions.issue_since(9000).opened_ms, 9000);
    }

    #[test]
    fn the_mark_stops_below_the_oldest_write_that_is_not_settled() {
        let mut session = Sessions::new(0);
        let tickets: Vec<Ticket> = (0..4).map(|_| session.issue()).collect();
        let sequences: Vec<u64> = tickets.iter().map(|t| t.sequence).collect();
        assert_eq!(sequences, [1, 2, 3, 4]);
        assert!(tickets.iter().all(|t| t.client != 0 && t.acked_below == 1));

        session.release(tickets[1]);
        assert_eq!(session.issue().acked_below, 1, "1 is still in flight");
        session.release(tickets[0]);
        assert_eq!(session.issue().acked_below, 3);
    }

    #[test]
    fn a_write_alone_marks_all_before_it_as_settled() {
        let mut session = Sessions::new(0);
        for sequence in 1..5 {
            let ticket = session.issue();
            assert_eq!((ticket.sequence, ticket.acked_below), (sequence, sequence));
            session.release(ticket);
        }
    }

    #[test]
    fn a_session_is_renewed_once_for_all_its_refused_writes() {
        let mut session = Sessions::new(0);
        let (one, two) = (session.issue(), session.issue());
        session.renew(one, 70);
        let renewed = session.issue();
        assert_ne!(renewed.client, one.client);
        assert_eq!((renewed.sequence, renewed.opened_ms), (1, 70));

        session.renew(two, 80);
        session.release(two);
        let next = session.issue();
        assert_eq!(next.client, renewed.client);
        assert_eq!((next.sequence, next.acked_below), (2, 1));
    }
}
