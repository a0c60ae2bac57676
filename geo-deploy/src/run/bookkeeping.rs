//! Perfect bookkeeping: an idealized `quorum` strategy that knows every read as soon as it happens.
//! This module computes the share of reads that would have been local under this strategy, and the
//! share of writes that would have had their minimum latency.
//!
//! No strategy knows reads that have not happened yet. So even a strategy that learns of every read
//! immediately, and changes holders without delay, misses the first reads of a key. The shares are
//! those that such a strategy would reach on the operations of one run, in their order. The
//! strategy follows the policy of `quorum`: a key is held by the leader and by the N/2 other sites
//! that have read it most often. Among sites with equally many reads, those nearer to the leader
//! are preferred, so they hold the keys that no site has read. The shares depend on the number of
//! requests, so every run is compared with its own shares.
//!
//! The shares are a yardstick for `quorum`, not an upper bound. Holders that were chosen at an
//! earlier time, or by another policy, may fit later requests better. So the measured shares of a
//! run may be higher than these.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::run::bound::{Bounds, Replies, SiteSet};
use crate::topology::Topology;

/// One operation of a run. Lists of operations contain the operations of all sites, in the order in
/// which clients issued them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IssuedOperation {
    /// Site at which the operation was issued, by index in the topology.
    pub site: usize,
    /// Whether the operation is a read; otherwise it is a write.
    pub is_read: bool,
    /// ID of the key.
    pub key: u64,
    /// Whether the operation is in the measured interval. Perfect bookkeeping also counts reads
    /// before this interval.
    pub measured: bool,
}

/// Shares of operations at each site under perfect bookkeeping: the share of local reads, and the
/// share of writes at their minimum latency. Shares are from 0 to 1. A share is 0 if no operation
/// of the site was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Bookkeeping {
    /// For each site, the share of the site's reads that its own replica would have served.
    pub local_reads: Vec<f64>,
    /// For each site, the share of the site's writes that would have been at their minimum latency
    /// (see [`AT_MINIMUM_SLACK_MS`]).
    pub writes_at_minimum: Vec<f64>,
}

/// Tolerance of the minimum latency, in ms. A write is at its minimum latency if its latency
/// exceeds the bound under a leader lease by at most this value.
pub const AT_MINIMUM_SLACK_MS: f64 = 1.0;

#[derive(Clone, Copy, Default)]
struct Share {
    good: u64,
    all: u64,
}

impl Share {
    fn count(&mut self, good: bool) {
        self.good += u64::from(good);
        self.all += 1;
    }

    fn value(self) -> f64 {
        match self.all {
            0 => 0.0,
            all => self.good as f64 / all as f64,
        }
    }
}

/// Computes the shares under perfect bookkeeping, for a run with the operations `stream` and a
/// leader at site `leader`.
///
/// # Panics
/// If `leader` or an operation's site is not in the topology.
pub fn bookkeeping(
    topology: &Topology,
    leader: usize,
    stream: impl IntoIterator<Item = IssuedOperation>,
) -> Bookkeeping {
    let mut ledger = Ledger::new(topology, leader);
    let mut reads = vec![Share::default(); topology.len()];
    let mut writes = vec![Share::default(); topology.len()];
    for op in stream {
        if op.measured {
            let holders = ledger.holders(op.key);
            if op.is_read {
                reads[op.site].count(holders.contains(op.site))
            } else {
                writes[op.site].count(ledger.at_minimum(op.site, holders))
            }
        }
        if op.is_read {
            ledger.count(op.key, op.site);
        }
    }
    Bookkeeping {
        local_reads: reads.into_iter().map(Share::value).collect(),
        writes_at_minimum: writes.into_iter().map(Share::value).collect(),
    }
}

/// Counts of reads so far, for each key and site. The counts determine the holders of each key.
struct Ledger {
    bounds: Bounds,
    n: usize,
    leader: usize,
    /// All sites except the leader's, the nearest to the leader first. If two sites have the same
    /// number of reads, the site that is earlier in this list is preferred as a holder.
    nearest: Vec<usize>,
    /// For each key, the index of its first entry in `counts`.
    rows: HashMap<u64, usize, FixedState>,
    counts: Vec<u32>,
    /// For each pair (site of a client, set of holders), whether a write by the client to a key
    /// with these holders has its minimum latency.
    minimum: HashMap<(usize, SiteSet), bool, FixedState>,
}

impl Ledger {
    fn new(topology: &Topology, leader: usize) -> Ledger {
        Ledger {
            bounds: Bounds::new(topology, leader),
            n: topology.len(),
            leader,
            nearest: topology.nearest_to(leader),
            rows: HashMap::default(),
            counts: Vec::new(),
            minimum: HashMap::default(),
        }
    }

    fn holders(&self, key: u64) -> SiteSet {
        let mut ranked = self.nearest.clone();
        if let Some(&row) = self.rows.get(&key) {
            // The sort is stable: sites with equally many reads, also with none, stay in order of
            // distance.
            ranked.sort_by_key(|&site| std::cmp::Reverse(self.counts[row + site]));
        }
        ranked
            .into_iter()
            .take(self.n / 2)
            .chain([self.leader])
            .collect()
    }

    fn count(&mut self, key: u64, site: usize) {
        let row = *self.rows.entry(key).or_insert_with(|| {
            self.counts.resize(self.counts.len() + self.n, 0);
            self.counts.len() - self.n
        });
        self.counts[row + site] += 1;
    }

    fn at_minimum(&mut self, site: usize, holders: SiteSet) -> bool {
        let bounds = &self.bounds;
        *self.minimum.entry((site, holders)).or_insert_with(|| {
            let bound = bounds.write_ms(site, holders, Replies::LeaderAndOrigin);
            bound <= bounds.write_min_ms(site) + AT_MINIMUM_SLACK_MS
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    const CA: usize = 1;

    fn read(site: usize, key: u64) -> IssuedOperation {
        IssuedOperation {
            site,
            is_read: true,
            key,
            measured: true,
        }
    }

    #[test]
    fn unread_keys_are_held_near_the_leader() {
        let paper = Topology::paper();
        // Each site reads a key of its own, once.
        let found = bookkeeping(&paper, CA, (0..5).map(|site| read(site, site as u64)));
        assert_eq!(found.local_reads, [0.0, 1.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn a_read_does_not_count_for_itself() {
        let paper = Topology::paper();
        let found = bookkeeping(&paper, CA, [read(0, 7), read(0, 7), read(0, 7)]);
        assert_eq!(found.local_reads[0], 2.0 / 3.0);
    }

    #[test]
    fn who_reads_more_displaces_the_near() {
        let paper = Topology::paper();
        // JP and IRL have read key 7, so OR and VA no longer hold it.
        let found = bookkeeping(&paper, CA, [read(0, 7), read(4, 7), read(2, 7), read(3, 7)]);
        assert_eq!(found.local_reads, [0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn writes_are_judged_by_the_holders_of_their_time() {
        let paper = Topology::paper();
        let write = |site| IssuedOperation {
            is_read: false,
            ..read(site, 7)
        };
        let found = bookkeeping(&paper, CA, [write(3), read(4, 7), write(3), write(0)]);
        // The writes at VA are at their minimum while only near sites hold the key, but not after
        // IRL holds it, too.
        assert_eq!(found.writes_at_minimum, [0.0, 0.0, 0.0, 0.5, 0.0]);
    }

    #[test]
    fn warm_up_teaches_and_is_not_counted() {
        let paper = Topology::paper();
        let taught = IssuedOperation {
            measured: false,
            ..read(0, 7)
        };
        let found = bookkeeping(&paper, CA, [taught, read(0, 7)]);
        assert_eq!(found.local_reads[0], 1.0);
    }

    /// Returns the operations of the paper's workload. A Zipf distribution with exponent 0.99
    /// chooses the key of each operation from 100,000 keys. The ranks of the keys differ between
    /// sites. Each site has ten clients, which send operations in turn.
    fn paper_stream(
        reads: f64,
        requests: u64,
        warmup: u64,
    ) -> impl Iterator<Item = IssuedOperation> {
        const KEYS: usize = 100_000;
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        let mut sum = 0.0;
        let cdf: Vec<f64> = (1..=KEYS)
            .map(|rank| {
                sum += (rank as f64).powf(-0.99);
                sum
            })
            .collect();
        let order: Vec<Vec<u64>> = (0..5)
            .map(|_| {
                let mut keys: Vec<u64> = (0..KEYS as u64).collect();
                keys.shuffle(&mut rng);
                keys
            })
            .collect();
        (0..requests * 10).flat_map(move |turn| {
            let ops: Vec<IssuedOperation> = (0..5)
                .map(|site| {
                    let drawn = rng.random::<f64>() * sum;
                    let rank = cdf.partition_point(|&below| below < drawn);
                    IssuedOperation {
                        site,
                        is_read: rng.random::<f64>() < reads,
                        key: order[site][rank.min(KEYS - 1)],
                        measured: turn / 10 >= warmup,
                    }
                })
                .collect();
            ops
        })
    }

    fn assert_points(found: &[f64], expected: [f64; 5]) {
        for (site, (found, expected)) in found.iter().zip(expected).enumerate() {
            let points = found * 100.0;
            assert!(
                (points - expected).abs() <= 1.0,
                "site {site}: {points:.1}, expected {expected}"
            );
        }
    }

    #[test]
    fn paper_budget_one_to_one() {
        let paper = Topology::paper();
        let found = bookkeeping(&paper, CA, paper_stream(0.5, 10_000, 5_000));
        assert_points(&found.local_reads, [75.0, 100.0, 99.0, 94.0, 74.0]);
        let minimum = found.writes_at_minimum.iter().sum::<f64>() / 5.0 * 100.0;
        assert!(
            (minimum - 60.0).abs() <= 2.0,
            "writes at the minimum: {minimum:.1}"
        );
    }

    #[test]
    fn paper_budget_nine_to_one() {
        let paper = Topology::paper();
        let found = bookkeeping(&paper, CA, paper_stream(0.9, 10_000, 5_000));
        assert_points(&found.local_reads, [79.0, 100.0, 98.0, 93.0, 79.0]);
    }
}
