//! Messages between grantors and holders.

use std::time::Duration;

use crate::types::{ConfigId, Slot};

/// A message of the lease engine. Sequences are the grantor's, rising over guards
/// and promises alike, retransmissions included.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LeaseMessage {
    /// Grantor: open a window for the promise that follows.
    Guard {
        /// The grantor's sequence.
        sequence: u64,
    },
    /// Holder: the window of this sequence is open.
    GuardAck {
        /// Sequence of the guard.
        sequence: u64,
        /// The newest configuration the holder knows.
        known: ConfigId,
    },
    /// Grantor: you will be notified of every write to what you hold.
    Promise(Promise),
    /// Holder: taken.
    PromiseAck {
        /// Sequence of the promise.
        sequence: u64,
        /// The newest configuration the holder knows.
        known: ConfigId,
    },
    /// Holder: I have erased your promises up to this sequence, and refuse them
    /// from now on; you may drop the grants behind them.
    Relinquish {
        /// The highest sequence given up.
        up_to: u64,
    },
    /// The sender's run ends. As a holder: I have erased all promises, and take none in this
    /// run, so drop every grant. As a grantor: erase my promises, and answer with a Relinquish.
    Leave {
        /// The highest sequence that the sender ever sent to the addressee, or a higher one.
        recalls: u64,
    },
}

/// A promise and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The grantor's sequence.
    pub sequence: u64,
    /// The acknowledged sequence it builds on.
    pub base: u64,
    /// Time from the grantor's receipt of that ack until it sends this, by its clock.
    pub t0: Duration,
    /// The holder takes it only within `t0 + t_guard` of sending that ack.
    pub t_guard: Duration,
    /// Duration of the promise from receipt, by the holder's clock.
    pub t_lease: Duration,
    /// The configuration it is under.
    pub config: ConfigId,
    /// The highest slot the grantor had accepted when it registered the grant.
    pub highest_accepted: Slot,
}
