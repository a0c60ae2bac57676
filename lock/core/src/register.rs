//! The acceptor's part of the round-based register of one resource (Flease §II.B, algorithm 1).

use leasehold_leases::Time;

use crate::ballot::{AttemptBallot, Proposer};
use crate::message::Lease;
use crate::rules;
use crate::settings::GroupSettings;

/// State of the register of one resource at one acceptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Register {
    /// Highest ballot that was read or written. Nothing is accepted below.
    promised: AttemptBallot,
    /// Ballot of the last write; [`AttemptBallot::ZERO`] if nothing was written.
    accepted: AttemptBallot,
    /// The lease of the last write; `None` if there is none, or if it was released.
    lease: Option<Lease>,
    /// Ballot with which the lease was acquired that was released last.
    released: AttemptBallot,
    /// Round of the last attempt of this member. Its own acceptor need not have promised it.
    own_round: u64,
}

impl Register {
    /// Returns the highest round that this member knows for the resource.
    pub fn last_round(&self) -> u64 {
        self.promised.round.max(self.own_round)
    }

    /// Records the round of a new attempt of this member, so that it is not used again.
    pub fn use_round(&mut self, round: u64) {
        self.own_round = round;
    }

    /// Returns the lease of another proposer that has not ended by all clocks. A READ that gives way
    /// must not block its renewals.
    pub fn taken(&self, settings: &GroupSettings, reader: Proposer, now: Time) -> Option<Lease> {
        self.lease.filter(|lease| {
            lease.owner() != reader && !rules::has_ended_everywhere(settings, *lease, now)
        })
    }

    /// Reads the register. Returns the ballot and the lease of the last write. A repeated READ gets
    /// the same answer again.
    ///
    /// # Errors
    /// The promised ballot, if it is above `ballot`.
    pub fn read(
        &mut self,
        ballot: AttemptBallot,
    ) -> Result<(AttemptBallot, Option<Lease>), AttemptBallot> {
        if ballot < self.promised || ballot <= self.accepted {
            return Err(self.promised);
        }
        self.promised = ballot;
        Ok((self.accepted, self.lease))
    }

    /// Writes the register.
    ///
    /// # Errors
    /// The promised ballot, if it is above `ballot`.
    pub fn write(&mut self, ballot: AttemptBallot, lease: Lease) -> Result<(), AttemptBallot> {
        if ballot < self.promised {
            return Err(self.promised);
        }
        self.promised = ballot;
        self.accepted = ballot;
        // A release may overtake a renewal. Its owner has stopped, so the resource is free.
        self.lease = Some(lease).filter(|lease| lease.acquired != self.released);
        Ok(())
    }

    /// Frees the lease that was acquired with the ballot `acquired`, if the register holds it. The
    /// ballots stay. A reader that also gets the lease from another acceptor, with the same ballot,
    /// knows that it was released.
    pub fn release(&mut self, acquired: AttemptBallot) {
        self.released = acquired;
        self.lease
            .take_if(|lease| rules::is_released(*lease, acquired));
    }
}

/// Highest write among the answers to a READ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HighestWrite {
    accepted: AttemptBallot,
    lease: Option<Lease>,
}

impl HighestWrite {
    /// Adds the answer of an acceptor. If two acceptors accepted the same write, but the lease was
    /// released at one of them, it counts as released: its owner has stopped.
    pub fn add(&mut self, accepted: AttemptBallot, lease: Option<Lease>) {
        let is_newer = accepted > self.accepted;
        let is_released = accepted == self.accepted && lease.is_none();
        if is_newer || is_released {
            *self = HighestWrite { accepted, lease };
        }
    }

    /// Returns the lease; `None` if the resource is free.
    pub fn lease(&self) -> Option<Lease> {
        self.lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ballot::MemberId;

    fn ballot(round: u64, member: u8) -> AttemptBallot {
        let member = MemberId(member);
        let proposer = Proposer { member, run: 1 };
        AttemptBallot { round, proposer }
    }

    fn lease(acquired: AttemptBallot) -> Lease {
        let until = Time(9);
        Lease { acquired, until }
    }

    #[test]
    fn nothing_is_accepted_below_a_promise() {
        let mut register = Register::default();
        assert_eq!(register.read(ballot(2, 0)), Ok((AttemptBallot::ZERO, None)));
        assert_eq!(
            register.read(ballot(2, 0)),
            Ok((AttemptBallot::ZERO, None)),
            "again"
        );
        assert_eq!(register.read(ballot(1, 1)), Err(ballot(2, 0)));
        let low = ballot(1, 1);
        assert_eq!(register.write(low, lease(low)), Err(ballot(2, 0)));
        let high = ballot(2, 0);
        assert_eq!(register.write(high, lease(high)), Ok(()));
        assert_eq!(register.write(high, lease(high)), Ok(()), "again");
        assert_eq!(register.read(high), Err(high), "it was written");
        assert_eq!(register.read(ballot(2, 1)), Ok((high, Some(lease(high)))));
    }

    #[test]
    fn a_release_frees_the_named_lease_only() {
        let mut register = Register::default();
        let (first, second) = (ballot(1, 0), ballot(2, 0));
        register.write(second, lease(second)).unwrap();
        register.release(first);
        assert_eq!(
            register.read(ballot(3, 0)),
            Ok((second, Some(lease(second))))
        );
        register.release(second);
        assert_eq!(register.read(ballot(4, 0)), Ok((second, None)));
    }

    #[test]
    fn a_release_that_overtakes_a_renewal_is_not_undone() {
        let mut register = Register::default();
        let (first, renewal) = (ballot(1, 0), ballot(2, 0));
        register.write(first, lease(first)).unwrap();
        register.release(first);
        register.write(renewal, lease(first)).unwrap();
        assert_eq!(register.read(ballot(3, 1)), Ok((renewal, None)));
    }

    #[test]
    fn a_released_lease_is_free_also_if_an_acceptor_missed_the_release() {
        let (low, high) = (ballot(1, 0), ballot(2, 1));
        for answers in [[Some(lease(high)), None], [None, Some(lease(high))]] {
            let mut highest = HighestWrite::default();
            highest.add(low, Some(lease(low)));
            for answer in answers {
                highest.add(high, answer);
            }
            highest.add(low, None);
            assert_eq!(highest.lease(), None);
        }
    }
}
