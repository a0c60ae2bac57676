//! Messages between members.

use bytes::Bytes;
use leasehold_leases::Time;

use crate::ballot::{AttemptBallot, MemberId, Proposer};

/// Name of a resource: 1 to 256 bytes.
pub type Resource = Bytes;

/// Maximum length of the name of a resource, in bytes.
pub const RESOURCE_BYTES_MAX: usize = 256;

/// A lease, as the registers hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Ballot of the attempt that acquired the lease. Its proposer is the owner. Renewals keep it.
    pub acquired: AttemptBallot,
    /// Last moment at which the lease is valid, by the synchronised clocks.
    pub until: Time,
}

impl Lease {
    /// Returns the owner.
    pub fn owner(self) -> Proposer {
        self.acquired.proposer
    }
}

/// Message about one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// READ of the register (Flease §II.B). An acceptor that acks it accepts no lower ballot later.
    Read {
        /// Ballot of the attempt.
        ballot: AttemptBallot,
        /// Whether the READ must not disturb an owner. If so, an acceptor that holds the lease of
        /// another proposer answers [`Body::Taken`], and still accepts this owner's renewals.
        gives_way: bool,
    },
    /// Positive answer to [`Body::Read`].
    ReadAck {
        /// Ballot of the attempt.
        ballot: AttemptBallot,
        /// Ballot of the last write that the acceptor accepted; [`AttemptBallot::ZERO`] if there is none.
        accepted: AttemptBallot,
        /// The lease of that write; `None` if there is none, or if it was released.
        lease: Option<Lease>,
    },
    /// Answer to a READ that gives way: the acceptor holds a lease of another proposer that has not
    /// ended by all clocks.
    Taken {
        /// Ballot of the attempt.
        ballot: AttemptBallot,
        /// The lease.
        lease: Lease,
    },
    /// WRITE of the register (Flease §II.B).
    Write {
        /// Ballot of the attempt.
        ballot: AttemptBallot,
        /// The lease to write.
        lease: Lease,
    },
    /// Positive answer to [`Body::Write`].
    WriteAck {
        /// Ballot of the attempt.
        ballot: AttemptBallot,
    },
    /// Negative answer to a READ or WRITE.
    Nack {
        /// Ballot of the attempt.
        ballot: AttemptBallot,
        /// Ballot below which the acceptor accepts nothing. The next attempt must be above it.
        promised: AttemptBallot,
    },
    /// The owner has stopped, and gives the lease up before its end.
    Release {
        /// Ballot of the attempt that acquired the lease.
        acquired: AttemptBallot,
    },
    /// Answer to [`Body::Release`]: the acceptor does not hold this lease.
    ReleaseAck {
        /// Ballot of the attempt that acquired the lease.
        acquired: AttemptBallot,
    },
}

/// All messages that a member sends to another member after a batch of inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Sender.
    pub from: MemberId,
    /// Receiver.
    pub to: MemberId,
    /// Reading of the sender's clock before it sent the packet, and after it received the messages
    /// that this packet answers.
    pub sent: Time,
    /// The messages, with their resources, in order.
    pub messages: Vec<(Resource, Body)>,
}
