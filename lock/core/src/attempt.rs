//! An attempt of a proposer: one READ and one WRITE of the register of a resource (Flease §II.H,
//! algorithm 4).

use std::fmt;

use leasehold_leases::Time;

use crate::ballot::{AttemptBallot, MemberId};
use crate::message::Lease;
use crate::register::HighestWrite;
use crate::rules;
use crate::settings::GroupSettings;

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

    /// Adds a member. A repeated addition never counts.
    pub fn add_once(&mut self, member: MemberId) {
        self.members |= 1 << member.0;
    }

    /// Removes a member.
    pub fn remove(&mut self, member: MemberId) {
        self.members &= !(1 << member.0);
    }

    /// Returns the first other member of the set after `member`, in a circle.
    pub fn next_after(self, member: MemberId) -> Option<MemberId> {
        let mut after = (1..16).map(|step| MemberId((member.0 + step) % 16));
        after.find(|it| self.contains(*it))
    }

    /// Whether the set contains a member.
    pub fn contains(self, member: MemberId) -> bool {
        self.members & 1 << member.0 != 0
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
    /// WRITE was sent.
    Writing {
        /// The lease.
        lease: Lease,
        /// Last moment at which the lease is valid, by this member's clock.
        until: Time,
    },
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
    /// Acceptors that hold another lease.
    taken: MemberSet,
    /// Acceptors that have rejected the attempt because of a higher ballot.
    rejected: MemberSet,
    /// Moment at which an attempt ends that some acceptors have rejected; [`Time::MAX`] if none has.
    gives_up: Time,
    /// Newest of these leases, by the ballot with which it was acquired, and the acceptors that hold
    /// it.
    newest: Option<(Lease, MemberSet)>,
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
            rejected: MemberSet::default(),
            gives_up: Time::MAX,
            newest: None,
        }
    }

    /// Begins the WRITE of a lease, which is sent next.
    pub fn write(&mut self, lease: Lease, until: Time, now: Time) {
        self.phase = AttemptPhase::Writing { lease, until };
        self.sent = now;
        self.acks = MemberSet::default();
        self.taken = MemberSet::default();
        self.newest = None;
    }

    /// Returns the moment from which the attempt has ended without success.
    pub fn ends(&self, settings: &GroupSettings) -> Time {
        rules::attempt_end(settings, self.began).min(self.gives_up)
    }

    /// Whether an acceptor has rejected the attempt.
    pub fn was_rejected(&self) -> bool {
        self.rejected.count() > 0
    }

    /// Adds an acceptor that has rejected the attempt. Returns whether the attempt ends now. A READ is
    /// then repeated with a higher ballot. A WRITE may still reach a majority: it gets twice the time
    /// that READ took.
    pub fn on_nack(&mut self, acceptor: MemberId, settings: &GroupSettings) -> bool {
        self.rejected.add_once(acceptor);
        let left = usize::from(settings.members) - self.rejected.count();
        if matches!(self.phase, AttemptPhase::Reading(_)) || left < settings.majority() {
            return true;
        }
        let read = self.sent.since(self.began);
        self.gives_up = self.gives_up.min(self.sent + read * 2);
        false
    }

    /// Returns the last moment, by this member's clock, at which the lease of a WRITE that was sent
    /// is valid.
    pub fn written_until(self) -> Option<Time> {
        match self.phase {
            AttemptPhase::Reading(_) => None,
            AttemptPhase::Writing { until, .. } => Some(until),
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

    /// Adds an acceptor that holds another lease. Returns whether so many acceptors hold one that no
    /// majority can ack the current phase.
    pub fn on_taken(
        &mut self,
        acceptor: MemberId,
        lease: Lease,
        members: u8,
        majority: usize,
    ) -> bool {
        self.taken.add(acceptor);
        match &mut self.newest {
            Some((newest, _)) if newest.acquired > lease.acquired => {}
            Some((newest, holders)) if newest.acquired == lease.acquired => {
                holders.add(acceptor);
                *newest = lease;
            }
            newest => {
                let mut holders = MemberSet::default();
                holders.add(acceptor);
                *newest = Some((lease, holders));
            }
        }
        self.taken.count() + majority > members.into()
    }

    /// Returns the lease that a majority of acceptors holds.
    pub fn taken_by(self, majority: usize) -> Option<Lease> {
        let (lease, holders) = self.newest?;
        (holders.count() >= majority).then_some(lease)
    }

    /// Adds the answer of an acceptor to WRITE. Returns the lease, and the last moment at which it is
    /// valid by this member's clock, once a majority has answered.
    pub fn on_write_ack(&mut self, acceptor: MemberId, majority: usize) -> Option<(Lease, Time)> {
        let AttemptPhase::Writing { lease, until } = self.phase else {
            return None;
        };
        self.acks.add(acceptor);
        (self.acks.count() >= majority).then_some((lease, until))
    }
}
