//! Lower bounds on latency. They follow from the distances between sites, and hold for any
//! implementation.
//!
//! The formulas are those of [`leasehold_leases::latency`], by which replicas choose holders. This
//! module applies them to the round trips of a topology.

use leasehold_leases::latency::{Distance, RoundTrips};
use leasehold_leases::{ReplicaId, ReplicaSet};
use serde::{Deserialize, Serialize};

use crate::topology::Topology;

/// A set of sites. Sites are identified by their index in the topology.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct SiteSet(pub u64);

impl SiteSet {
    /// The empty set.
    pub const EMPTY: SiteSet = SiteSet(0);

    /// Returns the set with only this site.
    pub fn one(site: usize) -> SiteSet {
        SiteSet(1 << site)
    }

    /// Returns the set of the first `n` sites. `n` must be at most 64.
    pub fn all(n: usize) -> SiteSet {
        SiteSet(u64::MAX.checked_shr(64 - n as u32).unwrap_or(0))
    }

    /// Returns true if `site` is in the set.
    pub fn contains(self, site: usize) -> bool {
        self.0 >> site & 1 == 1
    }

    /// Returns true if at least one site is in both sets.
    pub fn intersects(self, other: SiteSet) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the set of the sites that are in at least one of the two sets.
    pub fn union(self, other: SiteSet) -> SiteSet {
        SiteSet(self.0 | other.0)
    }

    /// Returns the sites in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |&site| self.contains(site))
    }
}

impl FromIterator<usize> for SiteSet {
    fn from_iter<I: IntoIterator<Item = usize>>(sites: I) -> SiteSet {
        SiteSet(sites.into_iter().fold(0, |set, site| set | 1 << site))
    }
}

pub use leasehold_leases::latency::Replies;

/// Latency bounds in one topology with one leader.
#[derive(Clone, Debug)]
pub struct Bounds(Distance);

impl Bounds {
    /// Creates the bounds for a leader at site `leader`.
    ///
    /// # Panics
    /// If the topology has no such site.
    pub fn new(topology: &Topology, leader: usize) -> Bounds {
        assert!(leader < topology.len(), "leader {leader} is not a site");
        let rtts = RoundTrips::new(topology.len(), |a, b| topology.rtt_ms(a, b));
        Bounds(Distance::new(rtts, replica(leader)))
    }

    /// Returns the minimum possible latency, in ms, of a write by a client at `origin` to a key
    /// with these `holders`.
    pub fn write_ms(&self, origin: usize, holders: SiteSet, replies: Replies) -> f64 {
        let Bounds(distance) = self;
        distance.write_ms(replica(origin), ReplicaSet(holders.0), replies)
    }

    /// Returns the minimum possible latency, in ms, of a write at `origin` under any strategy: the
    /// latency of a write to a key that only the leader holds.
    pub fn write_min_ms(&self, origin: usize) -> f64 {
        let alone = SiteSet::one(self.0.leader().index());
        self.write_ms(origin, alone, Replies::LeaderAndOrigin)
    }

    /// Returns the minimum possible latency, in ms, of a read at `origin`: 0 at a holder, otherwise
    /// the round trip to the nearest holder; `None` if no site holds the key.
    pub fn read_ms(&self, origin: usize, holders: SiteSet) -> Option<f64> {
        let held = holders != SiteSet::EMPTY;
        held.then(|| self.any_read_ms(origin, holders))
    }

    /// Returns the minimum possible latency, in ms, of a read at `origin`. If `holders` is empty,
    /// the leader asks a majority before it answers the read.
    pub fn any_read_ms(&self, origin: usize, holders: SiteSet) -> f64 {
        self.0.read_ms(replica(origin), ReplicaSet(holders.0))
    }
}

/// Returns the identifier of the replica at a site. A topology has at most 64 sites.
fn replica(site: usize) -> ReplicaId {
    ReplicaId(site as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paper_table() {
        let paper = Topology::paper();
        let bounds = Bounds::new(&paper, paper.index("CA").unwrap());
        let lines = include_str!("../testdata/bounds.txt").lines();
        let mut checked = 0;
        for line in lines.filter(|line| !line.starts_with('#')) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let holders = match cells[0] {
                "all" => SiteSet::all(5),
                names => names.split('+').map(|s| paper.index(s).unwrap()).collect(),
            };
            let replies = match cells[1] {
                "yes" => Replies::LeaderAndOrigin,
                _ => Replies::LeaderOnly,
            };
            for (origin, expected) in cells[2..].iter().enumerate() {
                let expected: f64 = expected.parse().unwrap();
                let found = bounds.write_ms(origin, holders, replies);
                assert_eq!(found, expected, "{line}, write at {origin}");
                checked += 1;
            }
        }
        assert_eq!(checked, 30);
    }

    #[test]
    fn reads_cost_the_way_to_the_nearest_holder() {
        let paper = Topology::paper();
        let bounds = Bounds::new(&paper, 1);
        let holders: SiteSet = [1, 2, 3].into_iter().collect();
        assert_eq!(bounds.read_ms(4, holders), Some(92.0));
        assert_eq!(bounds.read_ms(0, holders), Some(120.0));
        assert_eq!(bounds.read_ms(2, holders), Some(0.0));
        assert_eq!(bounds.read_ms(2, SiteSet::EMPTY), None);
    }

    #[test]
    fn a_site_alone_commits_at_once() {
        let t = Topology::new(vec!["A".into()], vec![vec![0.4]], 0.4).unwrap();
        assert_eq!(Bounds::new(&t, 0).write_min_ms(0), 0.0);
        assert_eq!(SiteSet::all(64).0, u64::MAX);
        assert_eq!(SiteSet::all(0), SiteSet::EMPTY);
    }

    fn matrices() -> impl Strategy<Value = Topology> {
        (2usize..8).prop_flat_map(|n| {
            proptest::collection::vec(1.0..300.0, n * n).prop_map(move |cells| {
                let value = |a: usize, b: usize| match a.cmp(&b) {
                    std::cmp::Ordering::Equal => 0.4,
                    _ => cells[a.min(b) * n + a.max(b)],
                };
                let rows = (0..n).map(|a| (0..n).map(|b| value(a, b)).collect());
                let names = (0..n).map(|i| format!("s{i}")).collect();
                Topology::new(names, rows.collect(), 0.4).unwrap()
            })
        })
    }

    proptest! {
        /// Compares the formula with its definition: the minimum over all majorities. The test
        /// computes this minimum by examining each majority.
        #[test]
        fn best_majority_is_the_best_of_all(t in matrices(), leader in 0usize..8, origin in 0usize..8, holders: u64) {
            let n = t.len();
            let (leader, origin) = (leader % n, origin % n);
            let holders = SiteSet(holders & SiteSet::all(n).0);
            let d = |a: usize, b: usize| if a == b { 0.0 } else { t.rtt_ms(a, b) / 2.0 };
            let cost = |to: usize| {
                (0..1u64 << n)
                    .filter(|q| q.count_ones() as usize > n / 2 && q >> leader & 1 == 1)
                    .map(|q| {
                        let waited = SiteSet(q | holders.0);
                        waited.iter().map(|i| d(leader, i) + d(i, to)).fold(0.0, f64::max)
                    })
                    .fold(f64::INFINITY, f64::min)
            };
            let forward = d(origin, leader);
            let plain = forward + cost(leader) + d(leader, origin);
            let castro = (forward + cost(origin)).min(plain);
            let bounds = Bounds::new(&t, leader);
            prop_assert!((bounds.write_ms(origin, holders, Replies::LeaderOnly) - plain).abs() < 1e-9);
            prop_assert!((bounds.write_ms(origin, holders, Replies::LeaderAndOrigin) - castro).abs() < 1e-9);
        }

        /// Checks that additional holders never make a write faster or a read slower.
        #[test]
        fn holders_trade_writes_for_reads(t in matrices(), origin in 0usize..8, few: u64, more: u64) {
            let (n, origin) = (t.len(), origin % t.len());
            let few = SiteSet(few & SiteSet::all(n).0 | 1);
            let more = SiteSet((few.0 | more) & SiteSet::all(n).0);
            let bounds = Bounds::new(&t, 0);
            let write = |h| bounds.write_ms(origin, h, Replies::LeaderAndOrigin);
            prop_assert!(write(few) <= write(more));
            prop_assert!(bounds.read_ms(origin, more) <= bounds.read_ms(origin, few));
        }
    }
}
