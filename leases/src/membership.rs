//! The replicas that vote, and the sizes of quorums.
//!
//! All quorum arithmetic is in this module. The members of a cluster are fixed: replicas `0..n`.

use crate::mutants::{Rule, off};
use crate::types::{ReplicaId, ReplicaSet};

/// The replicas that vote. There are 1 to 64 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Membership {
    voters: ReplicaSet,
}

impl Membership {
    /// Returns the membership of the replicas `0..n`.
    ///
    /// # Panics
    /// If `n` is 0 or above 64.
    #[inline]
    pub fn fixed(n: usize) -> Membership {
        Membership::of(ReplicaSet::all(n))
    }

    /// Returns the membership of the replicas in `voters`.
    ///
    /// # Panics
    /// If `voters` is empty.
    #[inline]
    pub fn of(voters: ReplicaSet) -> Membership {
        assert!(!voters.is_empty(), "a cluster has at least one voter");
        Membership { voters }
    }

    /// Returns the replicas that vote.
    #[inline]
    pub fn voters(self) -> ReplicaSet {
        self.voters
    }

    /// Returns the number of voters.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(self) -> usize {
        self.voters.len()
    }

    /// Returns the size of a majority: the smallest size at which every two groups of voters have a
    /// voter in common.
    #[inline]
    pub fn majority(self) -> usize {
        smallest_overlapping(self.len())
    }

    /// Whether the voters in `set` are a majority. Replicas in `set` that are not voters are
    /// ignored.
    #[inline]
    pub fn is_quorum(self, set: ReplicaSet) -> bool {
        set.intersection(self.voters).len() >= self.majority()
    }

    /// Whether `replica` votes.
    #[inline]
    pub fn is_member(self, replica: ReplicaId) -> bool {
        self.voters.contains(replica)
    }

    /// Returns the voters other than `me`.
    #[inline]
    pub fn others(self, me: ReplicaId) -> ReplicaSet {
        self.voters.minus(ReplicaSet::one(me))
    }

    /// Returns the number of other replicas that must have made a promise to a voter before the
    /// voter may read locally. Together with the voter, these replicas form a majority. Every
    /// majority that accepts a write therefore includes at least one replica of this group.
    #[inline]
    pub fn grantors_needed(self) -> usize {
        let needed = self.len() / 2;
        assert!(
            needed + 1 >= self.majority(),
            "a voter and its grantors are a majority"
        );
        needed
    }
}

/// Returns the [`Membership::majority`] of `n` voters.
#[inline]
pub fn majority(n: usize) -> usize {
    smallest_overlapping(n)
}

/// Rule H22: half of an even number of voters is not a majority, because the other half would also
/// be a majority.
#[inline]
fn smallest_overlapping(n: usize) -> usize {
    if off(Rule::H22EvenHalf) {
        n.div_ceil(2)
    } else {
        n / 2 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test cases, one on each line. The file explains its columns.
    const CASES: &str = include_str!("membership/cases.txt");

    fn set(text: &str) -> ReplicaSet {
        let ids = text.split(',').filter(|id| *id != "-");
        let id = |id: &str| ReplicaId(id.parse().expect("a replica's number"));
        ids.map(id).collect()
    }

    #[test]
    fn the_cases_in_the_file_hold() {
        let lines = CASES.lines().map(|line| line.split('#').next());
        let lines = lines.flatten().filter(|line| !line.trim().is_empty());
        let mut cases = 0;
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [voters, majority, group, quorum] = words[..] else {
                panic!("not four columns: {line}");
            };
            let members = Membership::of(set(voters));
            assert_eq!(members.majority().to_string(), majority, "{line}");
            assert_eq!(members.is_quorum(set(group)).to_string(), quorum, "{line}");
            cases += 1;
        }
        assert!(cases >= 20, "only {cases} cases were read");
    }

    #[test]
    fn two_majorities_always_meet_and_none_is_larger_than_it_must_be() {
        for n in 1..=64 {
            let majority = Membership::fixed(n).majority();
            assert!(2 * majority > n && 2 * (majority - 1) <= n, "n = {n}");
        }
    }

    /// Checks every pair of groups of voters, for every cluster of up to 6 replicas.
    #[test]
    fn any_two_quorums_share_a_voter() {
        for n in 1..=6 {
            let members = Membership::fixed(n);
            let groups = || (0..1u64 << n).map(ReplicaSet);
            for a in groups().filter(|group| members.is_quorum(*group)) {
                for b in groups().filter(|group| members.is_quorum(*group)) {
                    assert!(!a.intersection(b).is_empty(), "{a:?} and {b:?} of {n}");
                }
            }
        }
    }

    #[test]
    fn a_reader_and_its_grantors_are_a_majority() {
        for n in 1..=64 {
            let members = Membership::fixed(n);
            let reader: ReplicaSet = (0..=members.grantors_needed() as u8)
                .map(ReplicaId)
                .collect();
            assert!(members.is_quorum(reader), "n = {n}");
        }
    }

    #[test]
    fn the_others_are_all_but_oneself() {
        let members = Membership::fixed(3);
        assert_eq!(members.others(ReplicaId(1)), set("0,2"));
        assert_eq!(members.others(ReplicaId(7)), set("0,1,2"));
        assert!(members.is_member(ReplicaId(2)) && !members.is_member(ReplicaId(3)));
    }
}
