//! Messages between grantors and holders.

use std::time::Duration;

use crate::types::{ConfigId, Slot};

/// A message of the lease engine. Guards and promises have sequence numbers, which come from one
/// counter of the grantor. This counter rises with every message, including retransmissions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LeaseMessage {
    /// From the grantor: a request to open a window for the promise that follows.
    Guard {
        /// Sequence number that the grantor gave to this message.
        sequence: u64,
    },
    /// From the holder: the window of the guard with this sequence number is open.
    GuardAck {
        /// Sequence number of the guard.
        sequence: u64,
        /// The newest configuration that the holder knows.
        known: ConfigId,
    },
    /// From the grantor: the holder will be notified of every write to the keys that it holds.
    Promise(Promise),
    /// From the holder: the holder has accepted the promise.
    PromiseAck {
        /// Sequence number of the promise.
        sequence: u64,
        /// The newest configuration that the holder knows.
        known: ConfigId,
    },
    /// From the holder: the holder has erased the grantor's promises up to this sequence number,
    /// and refuses them from now on. So the grantor may drop the corresponding grants.
    Relinquish {
        /// Highest sequence number of all promises that were given back.
        up_to: u64,
    },
    /// The sender's run ends. As a holder, the sender has erased all promises that it received, and
    /// accepts no more promises in this run. So the receiver may drop every grant to the sender. As
    /// a grantor, the sender asks the receiver to erase the sender's promises and to answer with a
    /// Relinquish.
    Leave {
        /// The highest sequence number that the sender ever sent to the receiver, or a higher
        /// number.
        recalls: u64,
    },
}

/// A promise. It contains the sequence number of the acknowledged message on which it builds, the
/// durations, the configuration, and the grantor's highest accepted slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    /// Sequence number that the grantor gave to this message.
    pub sequence: u64,
    /// Sequence number of the acknowledged message on which the promise builds.
    pub base: u64,
    /// Age of the ack of `base` when the grantor sends the promise. It is measured from the receipt
    /// of the ack, by the grantor's clock.
    pub t0: Duration,
    /// The holder accepts the promise only within `t0 + t_guard` after the holder has sent the ack
    /// of `base`.
    pub t_guard: Duration,
    /// Duration of the promise from its receipt, by the holder's clock.
    pub t_lease: Duration,
    /// The configuration under which the promise is made.
    pub config: ConfigId,
    /// The highest slot that the grantor had accepted when it registered the grant.
    pub highest_accepted: Slot,
}
