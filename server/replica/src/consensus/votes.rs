//! The commit rule: a pure function that the leader and every origin use.

use std::hash::{Hash, Hasher};

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, Membership, ReplicaId, ReplicaSet};
use smallvec::SmallVec;

/// Acceptances of one slot that are known here, all under the same ballot.
#[derive(Clone, Debug, Default)]
pub struct Votes {
    ballot: Ballot,
    accepted: ReplicaSet,
    /// Tags of the acceptors. An acceptor may have several tags, but none of its tags is a superset
    /// of another one.
    tags: SmallVec<[(ReplicaId, ReplicaSet); 5]>,
}

impl Hash for Votes {
    /// Hashes the tags as a set, so the order of their arrival has no effect.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.ballot, self.accepted).hash(state);
        leasehold_leases::fingerprint::unordered(&self.tags, state);
    }
}

impl Votes {
    /// Returns the ballot of these acceptances.
    pub fn ballot(&self) -> Ballot {
        self.ballot
    }

    /// Returns the known tags of one acceptor.
    pub fn tags_of(&self, replica: ReplicaId) -> impl Iterator<Item = ReplicaSet> + '_ {
        let tags = self.tags.iter().filter(move |(who, _)| *who == replica);
        tags.map(|(_, tag)| *tag)
    }

    /// Returns the acceptors with a satisfied tag: every replica in that tag has accepted.
    pub fn satisfied(&self) -> ReplicaSet {
        satisfied(self.accepted, &self.tags)
    }

    /// Returns the acceptors that would have a satisfied tag if `replica` had accepted, too.
    pub fn satisfied_with(&self, replica: ReplicaId) -> ReplicaSet {
        let accepted = self.accepted.union(ReplicaSet::one(replica));
        satisfied(accepted, &self.tags)
    }

    /// Returns the replicas for which acceptors wait. These replicas have not accepted, but are in
    /// a tag of an acceptor that has no satisfied tag.
    pub fn missing(&self) -> ReplicaSet {
        let satisfied = self.satisfied();
        let open = self
            .tags
            .iter()
            .filter(|(who, _)| !satisfied.contains(*who));
        let demanded = open.fold(ReplicaSet::EMPTY, |all, (_, tag)| all.union(*tag));
        demanded.minus(self.accepted)
    }

    /// Counts an acceptance of `replica` under `ballot`. Only votes under one ballot are kept. A
    /// vote under a higher ballot replaces the kept votes, and a vote under a lower ballot is
    /// ignored.
    ///
    /// There is one exception. Votes under `here`, the ballot of the value that is accepted here,
    /// always replace votes under another ballot, because a ballot can only commit together with
    /// its value. Dropping votes is safe, because the leader requests them again.
    ///
    /// All tags of an acceptor are kept, because any of them may be used. Only a superset of
    /// another tag of this acceptor is dropped.
    pub fn add(&mut self, replica: ReplicaId, ballot: Ballot, tag: ReplicaSet, here: Ballot) {
        if ballot < self.ballot && ballot != here {
            return;
        }
        if ballot != self.ballot {
            *self = Votes {
                ballot,
                ..Votes::default()
            };
        }
        self.accepted.insert(replica);
        let same = |(who, known): &(ReplicaId, ReplicaSet)| *who == replica && known.is_subset(tag);
        if !self.tags.iter().any(same) {
            self.tags
                .retain(|(who, known)| *who != replica || !tag.is_subset(*known));
            self.tags.push((replica, tag));
        }
    }

    /// Whether these acceptances commit the slot among `members`.
    pub fn is_committed(&self, members: Membership) -> bool {
        assert!(
            self.accepted.is_subset(members.voters()),
            "only members vote"
        );
        committed(members, self.accepted, &self.tags)
    }
}

/// Returns whether a slot is committed (§3.2, condition 2). Let A be the replicas that accepted
/// under one ballot. A replica in A is *satisfied* if one of its tags is a subset of A. The slot is
/// committed iff the satisfied replicas are a majority.
pub fn committed(
    members: Membership,
    accepted: ReplicaSet,
    tags: &[(ReplicaId, ReplicaSet)],
) -> bool {
    members.is_quorum(satisfied(accepted, tags))
}

fn satisfied(accepted: ReplicaSet, tags: &[(ReplicaId, ReplicaSet)]) -> ReplicaSet {
    let satisfied = tags.iter().filter(|(replica, tag)| {
        accepted.contains(*replica) && (tag.is_subset(accepted) || off(Rule::H11Tags))
    });
    satisfied.map(|(replica, _)| *replica).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: Ballot = Ballot {
        round: 1,
        replica: ReplicaId(1),
    };

    fn votes(list: &[(u8, &[u8])]) -> Votes {
        let mut votes = Votes::default();
        for (replica, tag) in list {
            votes.add(
                ReplicaId(*replica),
                B,
                tag.iter().copied().map(ReplicaId).collect(),
                Ballot::ZERO,
            );
        }
        votes
    }

    #[test]
    fn a_plain_majority_commits_when_nobody_holds_the_keys() {
        assert!(!votes(&[(0, &[]), (1, &[])]).is_committed(Membership::fixed(5)));
        assert!(votes(&[(0, &[]), (1, &[]), (2, &[])]).is_committed(Membership::fixed(5)));
    }

    #[test]
    fn an_acceptance_waits_for_everyone_it_demands() {
        // Holder 4 has not accepted, and acceptor 2 has made a promise to it.
        let list: &[(u8, &[u8])] = &[(0, &[]), (1, &[]), (2, &[4])];
        assert!(!votes(list).is_committed(Membership::fixed(5)));
        assert_eq!(votes(list).missing(), ReplicaSet::one(ReplicaId(4)));
        // A third acceptor without such a promise completes a majority without acceptor 2.
        assert!(
            votes(&[(0, &[]), (1, &[]), (2, &[4]), (3, &[])]).is_committed(Membership::fixed(5))
        );
        // An acceptance of the holder itself satisfies the tag of acceptor 2.
        assert!(
            votes(&[(0, &[]), (1, &[]), (2, &[4]), (4, &[])]).is_committed(Membership::fixed(5))
        );
    }

    #[test]
    fn even_clusters_need_more_than_half() {
        assert!(!votes(&[(0, &[]), (1, &[])]).is_committed(Membership::fixed(4)));
        assert!(votes(&[(0, &[]), (1, &[]), (3, &[])]).is_committed(Membership::fixed(4)));
    }

    #[test]
    fn votes_of_another_ballot_do_not_mix() {
        let mut mixed = votes(&[(0, &[]), (1, &[])]);
        let higher = Ballot {
            round: 2,
            replica: ReplicaId(0),
        };
        mixed.add(ReplicaId(2), higher, ReplicaSet::EMPTY, Ballot::ZERO);
        assert!(!mixed.is_committed(Membership::fixed(3)));
        mixed.add(ReplicaId(3), B, ReplicaSet::EMPTY, Ballot::ZERO);
        assert_eq!(mixed.accepted, ReplicaSet::one(ReplicaId(2)));
    }

    #[test]
    fn votes_at_the_ballot_of_the_value_count_whatever_else_was_heard() {
        let far = Ballot {
            round: 1 << 20,
            replica: ReplicaId(1),
        };
        let mut v = votes(&[(0, &[])]);
        v.add(ReplicaId(1), far, ReplicaSet::EMPTY, B);
        v.add(ReplicaId(0), B, ReplicaSet::EMPTY, B);
        v.add(ReplicaId(2), B, ReplicaSet::EMPTY, B);
        assert!(v.is_committed(Membership::fixed(3)));
    }

    #[test]
    fn a_lapsed_grant_needs_one_new_tag_and_no_more() {
        let mut v = votes(&[(0, &[]), (1, &[]), (2, &[4])]);
        v.add(ReplicaId(2), B, ReplicaSet::EMPTY, Ballot::ZERO);
        assert!(v.is_committed(Membership::fixed(5)));
        v.add(ReplicaId(2), B, ReplicaSet::one(ReplicaId(4)), Ballot::ZERO);
        assert!(
            v.is_committed(Membership::fixed(5)),
            "a reordered older tag changes nothing"
        );
    }

    #[test]
    fn a_new_tag_of_the_same_size_is_as_good_as_the_old() {
        // Holder 4 is dead and its grant has lapsed. Replica 3 holds the key now.
        let mut v = votes(&[(0, &[]), (2, &[4]), (3, &[])]);
        assert!(!v.is_committed(Membership::fixed(5)));
        let mut blocked = votes(&[(0, &[4]), (2, &[4]), (3, &[4])]);
        for acceptor in [0, 2, 3] {
            blocked.add(
                ReplicaId(acceptor),
                B,
                ReplicaSet::one(ReplicaId(3)),
                Ballot::ZERO,
            );
        }
        assert!(blocked.is_committed(Membership::fixed(5)));
        v.add(ReplicaId(2), B, ReplicaSet::one(ReplicaId(3)), Ballot::ZERO);
        assert!(v.is_committed(Membership::fixed(5)));
        assert!(v.missing().is_empty());
        assert!(
            !v.clone().is_committed(Membership::fixed(7)),
            "one acceptor is one, whatever its tags"
        );
    }
}
