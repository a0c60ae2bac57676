//! Numbers of attempts. All members order the attempts for a resource by their ballots.

use std::fmt;

/// Position of a member in the group file, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MemberId(pub u8);

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

/// One run of a member's process. Two processes with the same member, for example on a copied
/// machine, are different proposers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Proposer {
    /// The member.
    pub member: MemberId,
    /// Random number that the process chose when it started.
    pub run: u64,
}

impl fmt::Debug for Proposer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:x}", self.member, self.run)
    }
}

/// Number of an attempt. No two attempts for a resource have the same ballot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AttemptBallot {
    /// The round. A proposer never uses a round twice for the same resource.
    pub round: u64,
    /// The proposer, so that ballots of different proposers differ.
    pub proposer: Proposer,
}

impl AttemptBallot {
    /// The ballot below all ballots of attempts.
    pub const ZERO: AttemptBallot = AttemptBallot {
        round: 0,
        proposer: Proposer {
            member: MemberId(0),
            run: 0,
        },
    };

    /// Returns the fence token of a lease that an attempt with this ballot acquires.
    pub fn fence(self) -> Fence {
        assert!(
            self.round <= ROUND_MAX && u64::from(self.proposer.member.0) < 1 << MEMBER_BITS,
            "settings and received ballots are checked"
        );
        Fence(self.round << MEMBER_BITS | u64::from(self.proposer.member.0))
    }
}

impl fmt::Debug for AttemptBallot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:?}", self.round, self.proposer)
    }
}

/// Number of bits of a fence token that hold the member. A group has at most 15 members.
const MEMBER_BITS: u32 = 4;

/// Largest round. A fence token has 64 bits, which hold the round and the member.
pub const ROUND_MAX: u64 = u64::MAX >> MEMBER_BITS;

/// Fence token: a number that rises with every owner of a resource. A renewal does not change it.
/// A store that remembers the largest token can refuse the late requests of an earlier owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fence(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    fn ballot(round: u64, member: u8, run: u64) -> AttemptBallot {
        let member = MemberId(member);
        let proposer = Proposer { member, run };
        AttemptBallot { round, proposer }
    }

    #[test]
    fn fences_are_ordered_as_the_rounds_and_members_of_their_ballots() {
        let ordered = [
            ballot(1, 3, 9),
            ballot(2, 0, 8),
            ballot(2, 14, 7),
            ballot(3, 0, 6),
        ];
        assert!(ordered.is_sorted());
        assert!(ordered.map(AttemptBallot::fence).is_sorted_by(|a, b| a < b));
        ballot(ROUND_MAX, 14, 0).fence();
    }
}
