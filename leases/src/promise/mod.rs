//! The lease engine: guard, promise, renew, expire (§3.5, Figure 5).
//!
//! Every replica is a grantor to every other, and a holder of what the others
//! promised. The rules of time, which everything else rests on:
//!
//! 1. *A holder stops before its grantor does.* The grantor records the expiry
//!    of a grant before it sends the promise, and outwaits every clock it could
//!    meet; the holder counts `t_lease` from receipt on its own clock, and takes
//!    a promise only within the window of an ack it sent itself.
//! 2. *Validity is a comparison*, of `now` with a stored deadline at the moment
//!    of use, never a flag that a timer clears.

mod grantor;
mod holder;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use grantor::{Grantor, Live, PollContext};
pub use holder::{Holder, NoPermit, Permit};

use crate::types::{ConfigId, Slot};

/// What grantors and holders say to each other. Sequences are the grantor's,
/// rising over guards and promises alike, retransmissions included.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LeaseMessage {
    /// Grantor: open a window for the promise that follows.
    Guard {
        /// The grantor's sequence.
        sequence: u64,
    },
    /// Holder: the window of this sequence is open.
    GuardAck {
        /// Of the guard.
        sequence: u64,
        /// The newest configuration the holder knows.
        known: ConfigId,
    },
    /// Grantor: you will be notified of every write to what you hold.
    Promise(Promise),
    /// Holder: taken.
    PromiseAck {
        /// Of the promise.
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
}

/// A promise and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The grantor's sequence.
    pub sequence: u64,
    /// The acknowledged sequence it builds on.
    pub base: u64,
    /// How long ago the grantor received that ack, on its clock.
    pub t0: Duration,
    /// How long after sending that ack (plus `t0`) it may be taken.
    pub t_guard: Duration,
    /// How long it lasts from receipt.
    pub t_lease: Duration,
    /// The configuration it is under.
    pub config: ConfigId,
    /// The highest slot the grantor had accepted when it registered the grant.
    pub highest_accepted: Slot,
}
