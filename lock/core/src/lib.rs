//! Exclusive leases without a lock server. The members of a small group agree on one *owner* of
//! each *resource*, and until when it owns the resource. There are two algorithms, and the clocks of
//! the group decide between them ("Clocks" below). PaxosLease is the default. The other one is Flease
//! (Kolbeck et al., *Flease: Lease Coordination Without a Lock Server*, IPDPS 2011). "Flease §n" is a
//! section of this paper. The module [`rules`] lists the deviations from it, and the reasons.
//!
//! Each member is both a proposer and an acceptor of a round-based register for each resource. A
//! proposer *reads* a register from a majority, and then *writes* a lease to a majority. No member
//! writes a lease to a disk. A member that restarts stays silent until all leases that it may have accepted
//! have ended.
//!
//! # The call contract
//! - [`MemberMachine::step`] takes one input. `now` is sampled *after* the input has arrived.
//! - [`MemberMachine::take_packets`] follows the last step of a batch of inputs that shared a `now`. It
//!   returns at most one packet for each member.
//! - [`MemberMachine::take_events`] returns the results of requests, and losses of leases, in order.
//! - [`MemberMachine::next_deadline`] returns the time by which the next step with [`MemberInput::Tick`] must be
//!   made.
//! - [`MemberMachine::holding`] compares the end of a lease with the clock. A program must call it each
//!   time before it relies on its lease.
//!
//! The member never waits and never reads a clock. All its random numbers come from the seed that
//! it was given. So the same seed and inputs always give the same run.
//!
//! # Clocks
//! The settings of a group say on which clocks it relies ([`ClockModel`]).
//!
//! By default, only the *rates* of clocks are bounded. Each acceptor has a timer of its own for a
//! lease. Until the timer ends, the acceptor tells other proposers that the resource is taken. This
//! is the algorithm of PaxosLease. `now` is a reading of a clock that nobody sets or steers.
//!
//! Otherwise the clocks of all members are synchronised: at any moment, the readings of any two of
//! them differ by at most `epsilon`. NTP states the offset of *one* clock, so `epsilon` is at least
//! twice that offset. Each ack bounds the offset of the acceptor's clock. If the bound shows that
//! `epsilon` is exceeded, the member gives up all its leases. This is the algorithm of Flease.

pub mod ballot;
pub mod message;
pub mod mutants;
pub mod rules;
pub mod settings;

mod agenda;
mod attempt;
mod claim;
mod member;
mod register;

pub use self::ballot::{AttemptBallot, Fence, MemberId, Proposer};
pub use self::claim::Holding;
pub use self::member::{
    AcquireRefusal, KnownOwner, LeaseLoss, MemberEvent, MemberInput, MemberMachine,
};
pub use self::message::{Body, Lease, LeaseEnd, Packet, ReportedState};
pub use self::settings::{ClockModel, GroupSettings};
