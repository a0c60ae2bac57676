//! Messages between members.

use std::time::Duration;

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
    /// End of the lease.
    pub end: LeaseEnd,
}

/// End of a lease, as messages describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseEnd {
    /// Last moment at which the lease is valid, by the synchronised clocks.
    At(Time),
    /// Time that is left until the lease has ended, by the timer of the acceptor that sends it.
    Left(Duration),
}

impl Lease {
    /// Returns the owner.
    pub fn owner(self) -> Proposer {
        self.acquired.proposer
    }

    /// Returns the last moment at which the lease may be valid, by the clock of the member that
    /// received it at `now`.
    pub fn until(self, now: Time) -> Time {
        match self.end {
            LeaseEnd::At(until) => until,
            LeaseEnd::Left(left) => now + left,
        }
    }
}

/// Message about one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// READ of the register (Flease §II.B). An acceptor that acks it accepts no lower ballot later.
    Read {
        /// Ballot of the attempt.
        ballot: AttemptBallot,
        /// Whether the sender waits for the resource. Such a READ must not disturb an owner: an acceptor
        /// that holds another lease answers [`Body::Taken`], and still accepts its owner's renewals.
        /// With clocks of bounded rates, all READs are treated like this.
        waits: bool,
        /// Ballot that acquired the lease to renew; `None` if the attempt acquires a lease. Groups with
        /// synchronised clocks leave it out.
        renews: Option<AttemptBallot>,
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
    /// Answer of an acceptor that holds another lease, which may not have ended. It answers a READ of a
    /// member that waits. With clocks of bounded rates, it also answers a WRITE.
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
    /// Release of a lease before its end. Its owner has stopped using it, or has never used it.
    Release {
        /// Ballot of the attempt that acquired the lease.
        acquired: AttemptBallot,
        /// Member that should own the resource next. The other waiting members let it go first.
        successor: Option<MemberId>,
    },
    /// Answer to [`Body::Release`]: the acceptor does not hold this lease.
    ReleaseAck {
        /// Ballot of the attempt that acquired the lease.
        acquired: AttemptBallot,
    },
    /// Query for the owner of the resource. It changes nothing.
    Query {
        /// Random number that names the query.
        number: u64,
    },
    /// Answer to [`Body::Query`].
    Report {
        /// Number of the query.
        number: u64,
        /// Owner, as far as the sender knows.
        state: ReportedState,
    },
}

/// State of a resource, as one member knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReportedState {
    /// The member owns the resource. By its own clock, its lease is valid.
    Mine(Lease),
    /// As an acceptor, the member holds a lease that may be valid, or may have been valid a short
    /// time ago.
    Held,
    /// As an acceptor, the member holds no such lease.
    Free,
}

impl Body {
    /// Returns the highest round in the message that this member did not choose itself.
    pub fn round(self) -> Option<u64> {
        match self {
            Body::Read { ballot, .. } | Body::Write { ballot, .. } => Some(ballot.round),
            Body::Release { acquired, .. } => Some(acquired.round),
            Body::ReadAck { accepted, .. } => Some(accepted.round),
            Body::Taken { lease, .. } => Some(lease.acquired.round),
            Body::Nack { promised, .. } => Some(promised.round),
            Body::Report {
                state: ReportedState::Mine(lease),
                ..
            } => Some(lease.acquired.round),
            Body::WriteAck { .. }
            | Body::ReleaseAck { .. }
            | Body::Query { .. }
            | Body::Report { .. } => None,
        }
    }
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
