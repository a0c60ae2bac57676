//! The acceptor's part of the round-based register of one resource (Flease §II.B, algorithm 1).

use leasehold_leases::Time;

use crate::attempt::MemberSet;
use crate::ballot::{AttemptBallot, MemberId};
use crate::message::{Body, Lease, LeaseEnd};
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
    /// Last moment, by this member's clock, at which the lease may be valid for its owner.
    kept_until: Time,
    /// Ballots of the last two releases, the newest first. The attempt with this ballot has acquired the
    /// lease, or was given up.
    released: [AttemptBallot; 2],
    /// Members that wait for the resource, as far as their READs tell.
    waiting: MemberSet,
    /// Round of the last attempt of this member. Its own acceptor need not have promised it.
    own_round: u64,
}

impl Register {
    /// Creates the register of a resource. The member may have promised ballots of rounds below
    /// `floor`.
    pub fn new(floor: u64) -> Register {
        let promised = AttemptBallot {
            round: floor,
            ..AttemptBallot::ZERO
        };
        Register {
            promised,
            ..Register::default()
        }
    }

    /// Returns the highest round that this member knows for the resource.
    pub fn last_round(&self) -> u64 {
        self.promised.round.max(self.own_round)
    }

    /// Records the round of a new attempt of this member, so that it is not used again.
    pub fn use_round(&mut self, round: u64) {
        self.own_round = round;
    }

    /// Returns the answer to a READ of a member that waits, or to a WRITE, if another lease blocks it.
    /// The READ must not block the renewals of this lease. `renews` is the ballot that acquired
    /// the lease to renew or to write.
    pub fn taken(
        &self,
        settings: &GroupSettings,
        ballot: AttemptBallot,
        renews: Option<AttemptBallot>,
        now: Time,
    ) -> Option<Body> {
        let held = self.held(now)?;
        if !rules::blocks(settings, held, ballot.proposer, renews) {
            return None;
        }
        let lease = self.told(settings, held, now);
        Some(Body::Taken { ballot, lease })
    }

    /// Returns the lease that the acceptor holds, as it tells others of it.
    pub fn held_lease(&self, settings: &GroupSettings, now: Time) -> Option<Lease> {
        Some(self.told(settings, self.held(now)?, now))
    }

    fn told(&self, settings: &GroupSettings, held: Lease, now: Time) -> Lease {
        if settings.has_timers() {
            let end = LeaseEnd::Left(self.kept_until.since(now));
            Lease { end, ..held }
        } else {
            held
        }
    }

    /// Records whether the sender of a READ waits for the resource.
    pub fn note_waiting(&mut self, reader: MemberId, waits: bool) {
        if waits {
            self.waiting.add_once(reader);
        } else {
            self.waiting.remove(reader);
        }
    }

    /// Returns the member that should own the resource after `owner`: the next one in the order of the
    /// members that waits for it.
    pub fn next_waiting(&self, owner: MemberId) -> Option<MemberId> {
        self.waiting.next_after(owner)
    }

    /// Returns the lease if it may not have ended.
    fn held(&self, now: Time) -> Option<Lease> {
        self.lease
            .filter(|_| !rules::has_ended(self.kept_until, now))
    }

    /// Whether the acceptor may report the resource as free ([`rules::may_report_free`]).
    pub fn may_report_free(&self, settings: &GroupSettings, silent_until: Time, now: Time) -> bool {
        let kept_until = self.lease.map_or(Time::ZERO, |_| self.kept_until);
        rules::may_report_free(settings, kept_until, silent_until, now)
    }

    /// Whether this lease was released, and at most one other one since.
    pub fn has_released(&self, acquired: AttemptBallot) -> bool {
        self.released.contains(&acquired)
    }

    /// Reads the register. Returns the ballot and the lease of the last write. A repeated READ gets
    /// the same answer again. If acceptors have timers, there is no lease in the answer: a READ is
    /// acked only if no other lease blocks it.
    ///
    /// # Errors
    /// The promised ballot, if it is above `ballot`.
    pub fn read(
        &mut self,
        settings: &GroupSettings,
        ballot: AttemptBallot,
    ) -> Result<(AttemptBallot, Option<Lease>), AttemptBallot> {
        if ballot < self.promised || ballot <= self.accepted {
            return Err(self.promised);
        }
        self.promised = ballot;
        Ok((self.accepted, self.lease.filter(|_| !settings.has_timers())))
    }

    /// Writes the register.
    ///
    /// # Errors
    /// The promised ballot, if it is above `ballot`.
    pub fn write(
        &mut self,
        settings: &GroupSettings,
        ballot: AttemptBallot,
        lease: Lease,
        now: Time,
    ) -> Result<(), AttemptBallot> {
        if ballot < self.promised {
            return Err(self.promised);
        }
        self.promised = ballot;
        self.accepted = ballot;
        self.waiting.remove(ballot.proposer.member);
        self.kept_until = rules::kept_until(settings, lease, now);
        // A release may overtake a renewal. Its owner has stopped, so the resource is free.
        self.lease = Some(lease).filter(|lease| !self.has_released(lease.acquired));
        Ok(())
    }

    /// Whether a READ or WRITE with this ballot would change the register, now or later. The others are
    /// rejected for good, or repeat what was accepted.
    pub fn may_accept(&self, body: Body) -> bool {
        match body {
            Body::Read { ballot, waits, .. } => {
                ballot > self.promised || waits != self.waiting.contains(ballot.proposer.member)
            }
            Body::Write { ballot, .. } => ballot >= self.promised,
            _ => true,
        }
    }

    /// Frees the lease that was acquired with the ballot `acquired`, if the register holds it. The
    /// ballots stay. A reader that also gets the lease from another acceptor, with the same ballot,
    /// knows that it was released.
    ///
    /// `successor` begins at once if it waits. Its READ says so; until then it does not count as waiting.
    pub fn release(&mut self, acquired: AttemptBallot, successor: Option<MemberId>) {
        if let Some(successor) = successor {
            self.waiting.remove(successor);
        }
        if !self.has_released(acquired) {
            self.released = [acquired, self.released[0]];
        }
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
    use std::time::Duration;

    use leasehold_leases::time::ClockBound;

    use super::*;
    use crate::ballot::{MemberId, Proposer};
    use crate::settings::ClockModel;

    const NOW: Time = Time(5);

    fn settings() -> GroupSettings {
        let epsilon = Duration::from_millis(1);
        let clocks = ClockModel::Synchronised { epsilon };
        GroupSettings::new(3, Duration::from_secs(1), clocks)
    }

    fn ballot(round: u64, member: u8) -> AttemptBallot {
        let member = MemberId(member);
        let proposer = Proposer { member, run: 1 };
        AttemptBallot { round, proposer }
    }

    fn lease(acquired: AttemptBallot) -> Lease {
        let end = LeaseEnd::At(Time(9));
        Lease { acquired, end }
    }

    #[test]
    fn nothing_is_accepted_below_a_promise() {
        let mut register = Register::default();
        assert_eq!(
            register.read(&settings(), ballot(2, 0)),
            Ok((AttemptBallot::ZERO, None))
        );
        assert_eq!(
            register.read(&settings(), ballot(2, 0)),
            Ok((AttemptBallot::ZERO, None)),
            "again"
        );
        assert_eq!(register.read(&settings(), ballot(1, 1)), Err(ballot(2, 0)));
        let low = ballot(1, 1);
        assert_eq!(
            register.write(&settings(), low, lease(low), NOW),
            Err(ballot(2, 0))
        );
        let high = ballot(2, 0);
        assert_eq!(register.write(&settings(), high, lease(high), NOW), Ok(()));
        assert_eq!(
            register.write(&settings(), high, lease(high), NOW),
            Ok(()),
            "again"
        );
        assert_eq!(
            register.read(&settings(), high),
            Err(high),
            "it was written"
        );
        assert_eq!(
            register.read(&settings(), ballot(2, 1)),
            Ok((high, Some(lease(high))))
        );
    }

    #[test]
    fn a_release_frees_the_named_lease_only() {
        let mut register = Register::default();
        let (first, second) = (ballot(1, 0), ballot(2, 0));
        register
            .write(&settings(), second, lease(second), NOW)
            .unwrap();
        register.release(first, None);
        assert_eq!(
            register.read(&settings(), ballot(3, 0)),
            Ok((second, Some(lease(second))))
        );
        register.release(second, None);
        assert_eq!(register.read(&settings(), ballot(4, 0)), Ok((second, None)));
    }

    #[test]
    fn a_release_that_overtakes_a_renewal_is_not_undone() {
        let mut register = Register::default();
        let (first, renewal) = (ballot(1, 0), ballot(2, 0));
        register
            .write(&settings(), first, lease(first), NOW)
            .unwrap();
        register.release(first, None);
        register
            .write(&settings(), renewal, lease(first), NOW)
            .unwrap();
        assert_eq!(
            register.read(&settings(), ballot(3, 1)),
            Ok((renewal, None))
        );
    }

    #[test]
    fn a_timer_starts_when_a_lease_is_accepted() {
        let term = Duration::from_secs(10);
        let clocks = ClockModel::Bounded(ClockBound { rho_ppm: 0 });
        let settings = GroupSettings::new(3, term, clocks);
        let (first, renewal) = (ballot(1, 0), ballot(2, 0));
        let end = LeaseEnd::Left(term);
        let acquired = first;
        let lease = Lease { acquired, end };
        let mut register = Register::default();
        register.write(&settings, first, lease, NOW).unwrap();
        let left = |register: &Register, now, reader: AttemptBallot, renews| match register
            .taken(&settings, reader, renews, now)
        {
            Some(Body::Taken { lease, .. }) => Some(lease.end),
            other => {
                assert_eq!(other, None);
                None
            }
        };
        let half = NOW + term / 2;
        let other = ballot(9, 1);
        assert_eq!(
            left(&register, half, other, None),
            Some(LeaseEnd::Left(term / 2))
        );
        assert_eq!(left(&register, half, first, Some(first)), None, "a renewal");
        assert!(left(&register, half, first, Some(renewal)).is_some());
        register.write(&settings, renewal, lease, half).unwrap();
        let last = half + term;
        assert_eq!(
            left(&register, last, other, None),
            Some(LeaseEnd::Left(Duration::ZERO))
        );
        assert_eq!(left(&register, Time(last.0 + 1), other, None), None);
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
