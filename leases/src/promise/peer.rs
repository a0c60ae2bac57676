//! State that a grantor keeps about one holder.

use std::time::Duration;

use super::grants::Grants;
use super::rules;
use crate::time::Time;
use crate::types::{ConfigId, Incarnation};

/// The newest ack received from a holder.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct LatestAck {
    pub(super) sequence: u64,
    pub(super) received: Time,
}

/// The newest promise sent to a holder. Only the ack of this promise may shorten the holder's
/// grant.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct LatestPromise {
    pub(super) sequence: u64,
    pub(super) config: ConfigId,
    /// Time for which the grantor keeps the grant after it has received the ack of the promise.
    pub(super) keep: Duration,
}

/// State of one holder, as its grantor knows it.
#[derive(Clone, Debug, Hash)]
pub(super) struct Peer {
    pub(super) incarnation: Incarnation,
    pub(super) base: Option<LatestAck>,
    /// The newest configuration that the holder knows, according to its acks.
    pub(super) known: ConfigId,
    pub(super) latest: Option<LatestPromise>,
    pub(super) grants: Grants,
    /// Highest sequence number that the holder has given back. The holder refuses this number and
    /// all lower numbers.
    relinquished: u64,
    pub(super) next_send: Time,
    /// Whether the holder has just acknowledged a guard, so that a promise is due. The promise
    /// builds on this ack.
    pub(super) promise_due: bool,
    pub(super) last_reply: Time,
    pub(super) suspected: bool,
}

impl Peer {
    /// Creates the state of run `incarnation` of a holder. No message of this run has been handled
    /// yet.
    pub(super) fn new(now: Time, incarnation: Incarnation) -> Peer {
        Peer {
            incarnation,
            base: None,
            known: ConfigId(0),
            latest: None,
            grants: Grants::default(),
            relinquished: 0,
            next_send: now,
            promise_due: false,
            last_reply: now,
            suspected: false,
        }
    }

    /// Handles the holder's ack of the message with the sequence number `sequence`. The holder
    /// knows configuration `known`.
    pub(super) fn handle_ack(&mut self, now: Time, sequence: u64, known: ConfigId) {
        self.known = self.known.max(known);
        self.last_reply = now;
        self.suspected = false;
        // An ack that arrives after a later Relinquish of its holder opens no window.
        let newer = self.base.is_none_or(|base| base.sequence < sequence);
        if newer && sequence > self.relinquished {
            self.base = Some(LatestAck {
                sequence,
                received: now,
            });
        }
    }

    /// Handles the holder's ack of the promise with the sequence number `sequence`. Returns whether
    /// the grant became shorter.
    pub(super) fn shorten(&mut self, now: Time, sequence: u64) -> bool {
        let Some(latest) = self.latest else {
            return false;
        };
        rules::only_latest_ack_shortens(latest.sequence, sequence)
            && self
                .grants
                .shorten(latest.sequence, latest.config, now + latest.keep)
    }

    /// Handles the holder's Relinquish of all sequence numbers up to `up_to`. Returns whether a
    /// grant ended.
    ///
    /// If the newest ack has one of these numbers, the ack is forgotten, so the next promise needs
    /// a new guard. Otherwise, the next promise would refer to an erased window. The holder would
    /// refuse this promise, but the promise would still bind this replica.
    pub(super) fn relinquish(&mut self, up_to: u64) -> bool {
        self.relinquished = self.relinquished.max(up_to);
        self.base = self.base.filter(|base| base.sequence > up_to);
        self.grants.drop_up_to(up_to)
    }

    /// Returns the next time at which a message to the holder is due, or at which a grant to the
    /// holder ends.
    pub(super) fn next_deadline(&self) -> Time {
        let send = if self.promise_due {
            Time::ZERO
        } else {
            self.next_send
        };
        let expiries = self.grants.iter().map(|grant| grant.expires);
        expiries.fold(send, Time::min)
    }

    /// Panics if the state is invalid. `next` is the grantor's next sequence number.
    pub(super) fn check(&self, next: u64) {
        self.grants.check();
        for grant in self.grants.iter() {
            assert!(
                grant.sequence < next,
                "a grant is of a promise that was sent"
            );
            assert!(
                grant.sequence > self.relinquished,
                "a grant was not given back"
            );
        }
        if let Some(base) = self.base {
            assert!(base.sequence < next, "an acknowledged promise was sent");
            assert!(
                base.sequence > self.relinquished,
                "the window of an acknowledged promise was not given back"
            );
        }
        assert!(
            self.relinquished < next,
            "a promise that was given back was sent"
        );
        let Some(latest) = self.latest else {
            assert!(
                self.grants.is_empty(),
                "a peer without a promise has no grant"
            );
            return;
        };
        assert!(latest.sequence < next, "the latest promise was sent");
        let own = self.grants.iter().find(|g| g.config == latest.config);
        assert!(
            own.is_none_or(|grant| grant.sequence == latest.sequence),
            "the grant of the latest configuration is of the latest promise"
        );
    }
}
