//! Costs of holders: for each set of holders that a strategy may choose, the cost of a key that the
//! set holds.

use smallvec::SmallVec;

use crate::demand::Rates;
use crate::latency::{Distance, Replies};
use crate::membership::majority;
use crate::types::{ReplicaId, ReplicaSet};

/// Maximum number of replicas at which all sets of holders are compared. In larger clusters, a set
/// is improved step by step.
const EXHAUSTIVE_MAX: usize = 9;

/// Number of replicas that are tried when a set of holders is improved step by step. A step adds or
/// removes one of the replicas that read the key most. This happens only in clusters of more than
/// `EXHAUSTIVE_MAX` replicas.
const READERS_MAX: usize = 8;

/// Settings, other than distance and demand, that affect the choice of holders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preference {
    /// Weight of reads relative to writes, from 0 to 1: at 0.5, reads and writes have the same
    /// weight.
    pub read_weight: f64,
    /// Minimum number of replicas that hold no lease on a key.
    pub spare: usize,
}

/// Weighted latencies, in ms, of a read at each origin, followed by those of a write at each
/// origin.
type WeightedLatencies = Box<[f32]>;

/// Weighted latencies for all sets of holders, under one leader.
#[derive(Clone, Debug)]
pub struct Costs {
    distance: Distance,
    replies: Replies,
    /// Maximum number of holders of a key.
    most: usize,
    /// Weight of reads, and weight of writes.
    weights: (f64, f64),
    /// Latencies of every set, indexed by the set, which is read as a binary number. The list is
    /// empty if there are too many replicas to compare all sets.
    all: Vec<WeightedLatencies>,
    /// Sets that may be the best for some key, in ascending order of size.
    best: Vec<ReplicaSet>,
    /// Latencies of the sets in `best`. There is one row for the reads of each origin, followed by
    /// one row for the writes of each origin. A row contains the latency of every set, so that one
    /// pass computes the costs of all sets.
    columns: Vec<f32>,
}

/// A set of holders, and the cost of a key with these holders. The cost is the weighted sum of the
/// expected waiting times of operations on the key, in ms for each second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The holders.
    pub holders: ReplicaSet,
    /// Cost of the holders.
    pub cost: f32,
}

impl Costs {
    /// Creates a table of the latencies of all sets that contain the leader.
    ///
    /// # Panics
    /// If the weight of reads is not from 0 to 1.
    pub fn new(distance: Distance, replies: Replies, preference: Preference) -> Costs {
        let n = distance.rtts().n();
        let weight = preference.read_weight;
        assert!((0.0..=1.0).contains(&weight), "a weight is a share");
        let mut costs = Costs {
            distance,
            replies,
            most: n.saturating_sub(preference.spare).max(1),
            weights: (2.0 * weight, 2.0 * (1.0 - weight)),
            all: Vec::new(),
            best: Vec::new(),
            columns: Vec::new(),
        };
        if Costs::tabulates(n) {
            costs.tabulate();
        }
        costs
    }

    /// Whether all sets of holders are compared in a cluster of `n` replicas.
    pub fn tabulates(n: usize) -> bool {
        n <= EXHAUSTIVE_MAX
    }

    fn tabulate(&mut self) {
        let sets = || (0..1_u64 << self.n()).map(ReplicaSet);
        let all: Vec<WeightedLatencies> = sets().map(|set| self.latencies(set)).collect();
        let mut best: Vec<ReplicaSet> = sets().filter(|set| self.may_hold(*set)).collect();
        best.sort_by_key(|set| (set.len(), *set));
        self.all = all;
        // A set is never chosen if a smaller set is at least as good for every operation.
        let mut kept: Vec<ReplicaSet> = Vec::new();
        for set in &best {
            let beats = |other: &ReplicaSet| self.beats(*other, *set);
            if !best.iter().any(beats) {
                kept.push(*set);
            }
        }
        let column = |at: usize| kept.iter().map(move |set| (at, *set));
        let cells = (0..2 * self.n()).flat_map(column);
        self.columns = cells
            .map(|(at, set)| self.all[set.0 as usize][at])
            .collect();
        self.best = kept;
    }

    /// Whether the set `one` is better than the set `other` for some operation, and at least as
    /// good for all operations. If both are equally good for all operations, returns whether `one`
    /// is the smaller set.
    fn beats(&self, one: ReplicaSet, other: ReplicaSet) -> bool {
        let (a, b) = (&self.all[one.0 as usize], &self.all[other.0 as usize]);
        let no_worse = a.iter().zip(b).all(|(a, b)| a <= b);
        no_worse && (a != b || (one.len(), one) < (other.len(), other))
    }

    fn n(&self) -> usize {
        self.distance.rtts().n()
    }

    fn leader(&self) -> ReplicaId {
        self.distance.leader()
    }

    /// Whether the replicas in `set` may be the holders of a key.
    pub fn may_hold(&self, set: ReplicaSet) -> bool {
        set.contains(self.leader()) && set.len() <= self.most
    }

    /// Returns the leader and the replicas of `set` that are nearest to the leader. The result
    /// contains at most the maximum number of holders.
    pub fn fitting(&self, set: ReplicaSet) -> ReplicaSet {
        let nearest = self.distance.rtts().nearest_to(self.leader());
        let others = nearest.into_iter().filter(|other| set.contains(*other));
        let others = others.take(self.most - 1);
        others.chain([self.leader()]).collect()
    }

    fn latencies(&self, set: ReplicaSet) -> WeightedLatencies {
        let Costs {
            distance, replies, ..
        } = self;
        let origins = || ReplicaSet::all(self.n()).iter();
        let reads = origins().map(|o| distance.read_ms(o, set) * self.weights.0);
        let writes = origins().map(|o| distance.write_ms(o, set, *replies) * self.weights.1);
        reads.chain(writes).map(|ms| ms as f32).collect()
    }

    /// Returns the cost of a key with these rates, if `holders` hold it.
    pub fn cost(&self, holders: ReplicaSet, rates: &Rates) -> f32 {
        match self.all.get(holders.0 as usize) {
            Some(latencies) => dot(latencies, rates),
            None => dot(&self.latencies(holders), rates),
        }
    }

    /// Returns the set of holders with the lowest cost for a key with these rates. If several sets
    /// have the lowest cost, returns the smallest.
    pub fn best(&self, rates: &Rates) -> Choice {
        if self.best.is_empty() {
            self.best_reached(rates)
        } else {
            self.best_of_all(rates)
        }
    }

    fn best_of_all(&self, rates: &Rates) -> Choice {
        let mut costs: SmallVec<[f32; 32]> = SmallVec::from_elem(0.0, self.best.len());
        for (rate, column) in rates.iter().zip(self.columns.chunks_exact(self.best.len())) {
            for (cost, ms) in costs.iter_mut().zip(column) {
                *cost += rate * ms;
            }
        }
        let costs = costs.into_iter().zip(&self.best);
        let cheapest = costs.reduce(|a, b| if b.0 < a.0 { b } else { a });
        let (cost, holders) = cheapest.expect("the leader alone is a set");
        Choice {
            holders: *holders,
            cost,
        }
    }

    /// Searches step by step for the best set, from two beginnings: the leader alone, and the
    /// leader with the replicas nearest to it. Each step adds or removes one of the replicas that
    /// read the key most. Returns the better one of the two results.
    fn best_reached(&self, rates: &Rates) -> Choice {
        let nearest = self.distance.rtts().nearest_to(self.leader());
        let near = |count: usize| -> ReplicaSet {
            let others = nearest.iter().copied().take(count);
            others.chain([self.leader()]).collect()
        };
        let alone = near(0);
        let majority = near((majority(self.n()) - 1).min(self.most - 1));
        let mut readers: Vec<ReplicaId> = nearest.clone();
        readers.sort_by(|a, b| rates[b.index()].total_cmp(&rates[a.index()]));
        readers.truncate(READERS_MAX);
        let from_alone = self.descend(alone, &readers, rates);
        let from_majority = self.descend(majority, &readers, rates);
        if from_majority.cost < from_alone.cost {
            from_majority
        } else {
            from_alone
        }
    }

    fn descend(&self, from: ReplicaSet, readers: &[ReplicaId], rates: &Rates) -> Choice {
        let choice = |holders| Choice {
            holders,
            cost: self.cost(holders, rates),
        };
        let mut best = choice(from);
        loop {
            let flip = |reader: &ReplicaId| ReplicaSet(best.holders.0 ^ ReplicaSet::one(*reader).0);
            let sets = readers.iter().map(flip).filter(|set| self.may_hold(*set));
            let cheapest = sets.map(choice).min_by(|a, b| a.cost.total_cmp(&b.cost));
            match cheapest.filter(|other| other.cost < best.cost) {
                Some(better) => best = better,
                None => return best,
            }
        }
    }
}

/// Returns the sum of the products of rates and latencies.
#[inline]
fn dot(latencies: &[f32], rates: &[f32]) -> f32 {
    latencies
        .iter()
        .zip(rates)
        .map(|(ms, rate)| ms * rate)
        .sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::latency::RoundTrips;

    const NEUTRAL: Preference = Preference {
        read_weight: 0.5,
        spare: 0,
    };

    fn costs(rtts: RoundTrips, leader: u8, preference: Preference) -> Costs {
        let distance = Distance::new(rtts, ReplicaId(leader));
        Costs::new(distance, Replies::LeaderAndOrigin, preference)
    }

    fn set(ids: &[u8]) -> ReplicaSet {
        ids.iter().copied().map(ReplicaId).collect()
    }

    #[test]
    fn who_reads_holds_and_who_writes_does_not_wait() {
        let costs = costs(RoundTrips::paper(), 1, NEUTRAL);
        let best = |reads: [f32; 5], writes: [f32; 5]| {
            let rates = reads.into_iter().chain(writes).collect();
            costs.best(&rates).holders
        };
        assert_eq!(best([0.0, 1.0, 0.0, 0.0, 0.0], [0.0; 5]), set(&[1]));
        let japan = [1.0, 0.0, 0.0, 0.0, 0.0];
        // JP's own writes wait for JP and OR with any set of holders.
        assert_eq!(best(japan, japan), set(&[0, 1, 2]));
        // If JP were a holder, VA's writes would wait for JP.
        assert!(!best(japan, [0.0, 0.0, 0.0, 9.0, 0.0]).contains(ReplicaId(0)));
        assert_eq!(best([1.0; 5], [0.0; 5]), set(&[0, 1, 2, 3, 4]));
    }

    #[test]
    fn replicas_are_spared_and_reads_are_weighed() {
        let everywhere: Rates = std::iter::repeat_n(1.0, 10).collect();
        let best = |read_weight, spare| {
            let preference = Preference { read_weight, spare };
            costs(RoundTrips::paper(), 1, preference)
                .best(&everywhere)
                .holders
        };
        assert_eq!(best(1.0, 0), set(&[0, 1, 2, 3, 4]), "only reads count");
        assert_eq!(best(0.0, 0), set(&[1]), "only writes count");
        assert_eq!(best(1.0, 2).len(), 3);
        assert_eq!(best(1.0, 9), set(&[1]), "the leader holds in any case");
    }

    fn cases() -> impl Strategy<Value = (usize, Vec<f64>, Vec<f32>, u8)> {
        (1_usize..7).prop_flat_map(|n| {
            let cells = proptest::collection::vec(1.0..300.0, n * n);
            let rates = proptest::collection::vec(0.0_f32..10.0, 2 * n);
            (Just(n), cells, rates, 0..n as u8)
        })
    }

    fn rtts(n: usize, cells: &[f64]) -> RoundTrips {
        RoundTrips::new(n, |a, b| cells[a.min(b) * n + a.max(b)])
    }

    proptest! {
        /// No set outside the table is better than the best set in the table.
        #[test]
        fn no_set_costs_less_than_the_best((n, cells, rates, leader) in cases()) {
            let costs = costs(rtts(n, &cells), leader, NEUTRAL);
            let rates: Rates = rates.into_iter().collect();
            let best = costs.best(&rates);
            prop_assert!(best.holders.contains(ReplicaId(leader)));
            let own = costs.cost(best.holders, &rates);
            prop_assert!((own - best.cost).abs() <= own * 1e-5);
            for set in (0..1_u64 << n).map(ReplicaSet).filter(|set| set.contains(ReplicaId(leader))) {
                prop_assert!(best.cost <= costs.cost(set, &rates) * 1.000_01);
            }
        }

        /// If not all sets are compared, the chosen set has at most the cost of each set from which
        /// the search starts.
        #[test]
        fn descending_ends_no_higher_than_it_starts((n, cells, rates, leader) in cases()) {
            let costs = costs(rtts(n, &cells), leader, NEUTRAL);
            let rates: Rates = rates.into_iter().collect();
            let reached = costs.best_reached(&rates);
            let alone = costs.cost(ReplicaSet::one(ReplicaId(leader)), &rates);
            prop_assert!(reached.cost <= alone);
            prop_assert!(reached.holders.contains(ReplicaId(leader)));
        }
    }
}
