//! Messages between grantors and holders.

use std::time::Duration;

use crate::types::{ConfigId, Slot};

/// A message of the lease engine. Guards and promises contain a sequence number. Each grantor has
/// one counter for these numbers, which rises with every message, including retransmissions.
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
    /// and refuses them from now on. The grantor may therefore drop the corresponding grants.
    Relinquish {
        /// Highest sequence number of all promises that were given back.
        up_to: u64,
    },
    /// The sender's run ends. As a holder, the sender has erased all promises that it received, and
    /// accepts no more promises in this run. The receiver may therefore drop every grant to the
    /// sender. As a grantor, the sender asks the receiver to erase the sender's promises and to
    /// answer with a Relinquish.
    Leave {
        /// A number that is at least as high as every sequence number that the sender has sent to
        /// the receiver.
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
    /// Age of the ack of `base` when the grantor sends the promise. The grantor's clock measures
    /// this age from the receipt of the ack.
    pub t0: Duration,
    /// Limit on the travel times of the ack of `base` and of this promise together. The holder
    /// accepts the promise only within `t0 + t_guard` after it has sent this ack.
    pub t_guard: Duration,
    /// Duration for which the promise lasts after its receipt, by the holder's clock.
    pub t_lease: Duration,
    /// The configuration under which the promise is made.
    pub config: ConfigId,
    /// The highest slot that the grantor had accepted at the registration of the grant.
    pub highest_accepted: Slot,
}
