//! Types that the other modules share. They are newtypes, so that the compiler distinguishes a slot
//! from a round, and a replica from a count.

use std::fmt;

use bytes::Bytes;

/// A key of the store. Keys are compared byte by byte.
pub type Key = Bytes;

/// A replica's index in the member list, below [`ReplicaId::COUNT_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ReplicaId(pub u8);

impl ReplicaId {
    /// Maximum number of replicas in a cluster: a [`ReplicaSet`] has one bit for each.
    pub const COUNT_MAX: usize = 64;

    /// Returns the index as a `usize`, for tables with one row for each replica.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Debug for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// A set of replicas, with one bit for each replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ReplicaSet(pub u64);

impl ReplicaSet {
    /// The empty set.
    pub const EMPTY: ReplicaSet = ReplicaSet(0);

    /// Returns the set of the replicas `0..n`.
    ///
    /// # Panics
    /// If `n > 64`.
    #[inline]
    pub fn all(n: usize) -> ReplicaSet {
        assert!(n <= ReplicaId::COUNT_MAX, "a set has at most 64 replicas");
        let unused = ReplicaId::COUNT_MAX - n;
        ReplicaSet(u64::MAX.checked_shr(unused as u32).unwrap_or(0))
    }

    /// Returns the set that contains only `replica`.
    #[inline]
    pub fn one(replica: ReplicaId) -> ReplicaSet {
        // A shift by 64 or more would wrap around and denote another replica.
        assert!(
            replica.index() < ReplicaId::COUNT_MAX,
            "a set has a bit for the replica"
        );
        ReplicaSet(1 << replica.0)
    }

    /// Whether `replica` is in the set.
    #[inline]
    pub fn contains(self, replica: ReplicaId) -> bool {
        !self.intersection(ReplicaSet::one(replica)).is_empty()
    }

    /// Adds `replica`.
    #[inline]
    pub fn insert(&mut self, replica: ReplicaId) {
        *self = self.union(ReplicaSet::one(replica));
    }

    /// Removes `replica`.
    #[inline]
    pub fn remove(&mut self, replica: ReplicaId) {
        *self = self.minus(ReplicaSet::one(replica));
    }

    /// Returns the number of replicas in the set.
    #[inline]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether no replica is in the set.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the replicas that are in at least one of the two sets.
    #[inline]
    pub fn union(self, other: ReplicaSet) -> ReplicaSet {
        ReplicaSet(self.0 | other.0)
    }

    /// Returns the replicas that are in each of the two sets.
    #[inline]
    pub fn intersection(self, other: ReplicaSet) -> ReplicaSet {
        ReplicaSet(self.0 & other.0)
    }

    /// Returns the members of this set that are not in `other`.
    #[inline]
    pub fn minus(self, other: ReplicaSet) -> ReplicaSet {
        ReplicaSet(self.0 & !other.0)
    }

    /// Whether every member of this set is in `other`.
    #[inline]
    pub fn is_subset(self, other: ReplicaSet) -> bool {
        self.0 & !other.0 == 0
    }

    /// Returns the members, in ascending order.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = ReplicaId> {
        let mut bits = self.0;
        std::iter::from_fn(move || {
            (bits != 0).then(|| {
                let next = bits.trailing_zeros() as u8;
                bits &= bits - 1;
                ReplicaId(next)
            })
        })
    }
}

impl FromIterator<ReplicaId> for ReplicaSet {
    fn from_iter<I: IntoIterator<Item = ReplicaId>>(replicas: I) -> Self {
        let mut set = ReplicaSet::EMPTY;
        replicas.into_iter().for_each(|replica| set.insert(replica));
        set
    }
}

impl fmt::Debug for ReplicaSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A position in a log. The first entry is in slot 1. Slot 0 denotes the position before the first
/// entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Slot(pub u64);

impl Slot {
    /// The position before the first entry.
    pub const ZERO: Slot = Slot(0);

    /// Returns the slot after this one.
    #[must_use]
    #[inline]
    pub fn next(self) -> Slot {
        assert!(self.0 < u64::MAX, "slots do not wrap");
        Slot(self.0 + 1)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// A leader's term. Ballots are ordered by round, then by replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ballot {
    /// Number that rises with every attempt to become leader; 0 before the first attempt.
    pub round: u64,
    /// Replica that leads in this ballot.
    pub replica: ReplicaId,
}

impl Ballot {
    /// Ballot that is lower than every ballot under which a replica proposes values.
    pub const ZERO: Ballot = Ballot {
        round: 0,
        replica: ReplicaId(0),
    };
}

impl fmt::Debug for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}.{}", self.round, self.replica.0)
    }
}

/// Number of a replica's run, from a durable counter that rises at every start. The number is 0 if
/// the run is not known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u64);

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "i{}", self.0)
    }
}

/// Id of a lease configuration: its slot in the configuration log. The id 0 belongs to the
/// configuration before the first entry. In that configuration, no replica holds a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ConfigId(pub u64);

impl fmt::Debug for ConfigId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_behave_as_sets() {
        let set: ReplicaSet = [ReplicaId(4), ReplicaId(0), ReplicaId(63)]
            .into_iter()
            .collect();
        assert_eq!(set.len(), 3);
        assert_eq!(set.iter().map(|r| r.0).collect::<Vec<_>>(), [0, 4, 63]);
        assert!(ReplicaSet::one(ReplicaId(4)).is_subset(set));
        assert!(!set.is_subset(ReplicaSet::all(63)));
        assert!(set.is_subset(ReplicaSet::all(64)));
        assert_eq!(
            set.minus(ReplicaSet::all(5)),
            ReplicaSet::one(ReplicaId(63))
        );
    }

    #[test]
    #[should_panic(expected = "a set has a bit for the replica")]
    fn a_replica_without_a_bit_is_in_no_set() {
        ReplicaSet::all(64).contains(ReplicaId(64));
    }
}
