//! An attempt of a proposer: one READ and one WRITE of the register of a resource (Flease §II.H,
//! algorithm 4).

use std::fmt;

use leasehold_leases::Time;

use crate::ballot::{AttemptBallot, MemberId};
use crate::message::Lease;
use crate::register::HighestWrite;
use crate::rules;

/// Set of members, of which a group has at most 15.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MemberSet {
    members: u16,
    /// Number of repeated additions that count. It is 0 except in a mutant.
    repeats: u16,
}

impl MemberSet {
    /// Adds a member.
    pub fn add(&mut self, member: MemberId) {
        let bit = 1 << member.0;
        let is_repeated = self.members & bit != 0;
        self.repeats += u16::from(is_repeated && rules::counts_again());
        self.members |= bit;
    }

    /// Returns the number of members.
    pub fn count(self) -> usize {
        self.members.count_ones() as usize + usize::from(self.repeats)
    }
}

impl fmt::Debug for MemberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = (0..16).filter(|bit| self.members & 1 << bit != 0);
        f.debug_set().entries(members.map(MemberId)).finish()
    }
}

/// Phase of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptPhase {
    /// READ was sent. The value is the highest write among the answers so far.
    Reading(HighestWrite),
    /// WRITE of this lease was sent.
    Writing(Lease),
}

/// An attempt that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// Ballot of the attempt.
    pub ballot: AttemptBallot,
    /// Moment before READ was sent.
    pub began: Time,
    /// Moment before the messages of the current phase were sent.
    pub sent: Time,
    /// Current phase.
    pub phase: AttemptPhase,
    /// Acceptors that have acked in the current phase.
    acks: MemberSet,
    /// Acceptors that hold the lease of another proposer.
    taken: MemberSet,
}

impl Attempt {
    /// Begins an attempt. Its READ is sent next.
    pub fn begin(ballot: AttemptBallot, now: Time) -> Attempt {
        Attempt {
            ballot,
            began: now,
            sent: now,
            phase: AttemptPhase::Reading(HighestWrite::default()),
            acks: MemberSet::default(),
            taken: MemberSet::default(),
        }
    }

    /// Begins the WRITE of a lease, which is sent next.
    pub fn write(&mut self, lease: Lease, now: Time) {
        self.phase = AttemptPhase::Writing(lease);
        self.sent = now;
        self.acks = MemberSet::default();
    }

    /// Returns the lease of a WRITE that was sent.
    pub fn lease(self) -> Option<Lease> {
        match self.phase {
            AttemptPhase::Reading(_) => None,
            AttemptPhase::Writing(lease) => Some(lease),
        }
    }

    /// Adds the answer of an acceptor to READ. Returns the highest write once a majority has
    /// answered.
    pub fn on_read_ack(
        &mut self,
        acceptor: MemberId,
        accepted: AttemptBallot,
        lease: Option<Lease>,
        majority: usize,
    ) -> Option<HighestWrite> {
        let AttemptPhase::Reading(highest) = &mut self.phase else {
            return None;
        };
        highest.add(accepted, lease);
        self.acks.add(acceptor);
        (self.acks.count() >= majority).then_some(*highest)
    }

    /// Adds an acceptor that holds the lease of another proposer. Returns whether so many acceptors
    /// hold one that no majority can ack the READ.
    pub fn on_taken(&mut self, acceptor: MemberId, members: u8, majority: usize) -> bool {
        self.taken.add(acceptor);
        let is_reading = matches!(self.phase, AttemptPhase::Reading(_));
        is_reading && self.taken.count() + majority > members.into()
    }

    /// Adds the answer of an acceptor to WRITE. Returns the lease once a majority has answered.
    pub fn on_write_ack(&mut self, acceptor: MemberId, majority: usize) -> Option<Lease> {
        let AttemptPhase::Writing(lease) = self.phase else {
            return None;
        };
        self.acks.add(acceptor);
        (self.acks.count() >= majority).then_some(lease)
    }
}
