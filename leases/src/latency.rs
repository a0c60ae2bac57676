//! Latencies that follow from distance: the least latency of reads and writes, for a given leader
//! and given holders of a key.
//!
//! With `d(a, b)` half the round trip, leader `L`, origin `o` and holders `H`:
//!
//! - A write reaches the leader after `d(o, L)`. Acceptor `i` receives it `d(L, i)` later. If
//!   acceptors reply to the origin (Castro's optimization, §4), the reply of acceptor `i` reaches
//!   the origin another `d(i, o)` later. The write commits when a majority that contains the leader
//!   *and* every holder has replied, after `d(o, L)` plus the following time: `min over majorities
//!   Q with L in Q of max over i in Q + H of d(L, i) + d(i, o)`.
//! - Without Castro's optimization, acceptors reply to the leader, which notifies the origin:
//!   `d(o, L) + min over Q of max over i in Q + H of 2 d(L, i) + d(L, o)`.
//! - With Castro's optimization, the leader notifies the origin as well. The notification arrives
//!   before the acceptors' replies only if the way through the leader is shorter than the direct
//!   way. So the least latency is the smaller of the two times.
//! - A read takes the round trip to the nearest holder, and no time if the origin is a holder. If
//!   no replica holds the key, a read takes the round trip to the leader plus the time in which the
//!   leader asks a majority (read-index).
//!
//! Latencies are in milliseconds. They do not include the round trip between a client and its
//! replica, nor the time that disks take (a fraction of a millisecond).

use crate::membership::majority;
use crate::types::{ReplicaId, ReplicaSet};

/// Round trips between replicas, in ms.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundTrips {
    n: usize,
    /// Round trips in ms, row by row; 0 on the diagonal.
    ms: Vec<f64>,
}

impl RoundTrips {
    /// Creates the round trips between `n` replicas. `rtt_ms` returns the round trip between two
    /// different replicas, in ms.
    ///
    /// # Panics
    /// If a round trip is negative or not a finite number.
    pub fn new(n: usize, rtt_ms: impl Fn(usize, usize) -> f64) -> RoundTrips {
        let cell = |at: usize| match (at / n, at % n) {
            (a, b) if a == b => 0.0,
            (a, b) => rtt_ms(a, b),
        };
        let ms: Vec<f64> = (0..n * n).map(cell).collect();
        let usable = |ms: &f64| ms.is_finite() && *ms >= 0.0;
        assert!(ms.iter().all(usable), "round trips are finite: {ms:?}");
        RoundTrips { n, ms }
    }

    /// Returns the round trips of Table 1 of the paper, between JP, CA, OR, VA and IRL, for tests
    /// and benchmarks.
    pub fn paper() -> RoundTrips {
        let rows = [
            [0.0, 120.0, 120.0, 180.0, 270.0],
            [120.0, 0.0, 20.0, 85.0, 150.0],
            [120.0, 20.0, 0.0, 75.0, 170.0],
            [180.0, 85.0, 75.0, 0.0, 92.0],
            [270.0, 150.0, 170.0, 92.0, 0.0],
        ];
        RoundTrips::new(5, |a, b| rows[a][b])
    }

    /// Returns the number of replicas.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Returns the round trip from `a` to `b`, in ms; 0 from a replica to itself.
    #[inline]
    pub fn get(&self, a: ReplicaId, b: ReplicaId) -> f64 {
        self.ms[a.index() * self.n + b.index()]
    }

    /// Returns the replicas other than `from`, nearest first. Replicas at the same distance are in
    /// ascending order.
    pub fn nearest_to(&self, from: ReplicaId) -> Vec<ReplicaId> {
        let all = ReplicaSet::all(self.n).minus(ReplicaSet::one(from));
        let mut others: Vec<ReplicaId> = all.iter().collect();
        others.sort_by(|a, b| self.get(from, *a).total_cmp(&self.get(from, *b)));
        others
    }

    /// Whether the two differ in the number of replicas, or clearly differ in a round trip. A
    /// difference is clear if it is greater than 5% of the longer round trip plus half a
    /// millisecond.
    pub fn is_far_from(&self, other: &RoundTrips) -> bool {
        let far = |(a, b): (&f64, &f64)| (a - b).abs() > 0.5 + a.max(*b) / 20.0;
        self.n != other.n || self.ms.iter().zip(&other.ms).any(far)
    }
}

/// Replicas to which acceptors send their replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// Acceptors reply to the leader and to the origin (Castro's optimization).
    LeaderAndOrigin,
    /// Acceptors reply only to the leader, and the leader notifies the origin.
    LeaderOnly,
}

/// Latencies that result from the distances between replicas, under one leader.
#[derive(Clone, Debug)]
pub struct Distance {
    rtts: RoundTrips,
    leader: ReplicaId,
    /// Times in ms, with a row for each collector and a column for each replica. A time is the
    /// duration from the sending of a message by the leader to the arrival of the replica's reply
    /// at the collector.
    arrivals: Vec<f64>,
    /// For each collector, the time, in ms, until the collector has received the replies of the
    /// fastest majority.
    majority: Vec<f64>,
}

impl Distance {
    /// Creates the latencies between replicas with these round trips, under `leader`.
    ///
    /// # Panics
    /// If `leader` is not one of the replicas.
    pub fn new(rtts: RoundTrips, leader: ReplicaId) -> Distance {
        let n = rtts.n();
        assert!(leader.index() < n, "the leader is a member");
        let members = || ReplicaSet::all(n).iter();
        let arrival = |at, of| (rtts.get(leader, of) + rtts.get(of, at)) / 2.0;
        let arrivals: Vec<f64> = members()
            .flat_map(|at| members().map(move |of| (at, of)))
            .map(|(at, of)| arrival(at, of))
            .collect();
        let of_majority = |at: ReplicaId| {
            let others = members().filter(|of| *of != leader);
            let mut others: Vec<f64> = others.map(|of| arrival(at, of)).collect();
            others.sort_unstable_by(f64::total_cmp);
            // The leader, and the replicas with the earliest replies.
            let first = others.into_iter().take(majority(n) - 1);
            first.fold(arrival(at, leader), f64::max)
        };
        Distance {
            majority: members().map(of_majority).collect(),
            arrivals,
            leader,
            rtts,
        }
    }

    /// Returns the round trips between all replicas.
    pub fn rtts(&self) -> &RoundTrips {
        &self.rtts
    }

    /// Returns the leader.
    pub fn leader(&self) -> ReplicaId {
        self.leader
    }

    /// Returns the minimum latency, in ms, of a write by a client at `origin`, if `holders` hold
    /// the key.
    pub fn write_ms(&self, origin: ReplicaId, holders: ReplicaSet, replies: Replies) -> f64 {
        let forward = self.rtts.get(origin, self.leader) / 2.0;
        let notified = forward + self.gather_ms(self.leader, holders);
        match replies {
            Replies::LeaderOnly => forward + notified,
            Replies::LeaderAndOrigin => forward + notified.min(self.gather_ms(origin, holders)),
        }
    }

    /// Returns the minimum latency, in ms, of a read by a client at `origin`, if `holders` hold the
    /// key.
    pub fn read_ms(&self, origin: ReplicaId, holders: ReplicaSet) -> f64 {
        let distances = holders.iter().map(|holder| self.rtts.get(origin, holder));
        match distances.min_by(f64::total_cmp) {
            Some(nearest) => nearest,
            None => self.read_index_ms(origin),
        }
    }

    /// Returns the time, in ms, for which a write by a client at `origin` blocks reads of the key
    /// at replica `at`. This time begins when `at` learns of the write, and ends when `at` learns
    /// that the write is committed. `holders` are the holders of the key.
    pub fn blocked_ms(
        &self,
        at: ReplicaId,
        origin: ReplicaId,
        holders: ReplicaSet,
        replies: Replies,
    ) -> f64 {
        let accept_ms = self.rtts.get(self.leader, at) / 2.0;
        let notified = self.gather_ms(self.leader, holders) + accept_ms;
        let known = match replies {
            Replies::LeaderAndOrigin if at == origin => notified.min(self.gather_ms(at, holders)),
            _ => notified,
        };
        known - accept_ms
    }

    /// Returns the latency of a read that the leader confirms, in ms: the round trip to the leader
    /// plus the time in which the leader asks a majority.
    fn read_index_ms(&self, origin: ReplicaId) -> f64 {
        self.rtts.get(origin, self.leader) + self.gather_ms(self.leader, ReplicaSet::EMPTY)
    }

    /// Returns the time, in ms, from the sending of the Accepts by the leader until `collector` has
    /// received enough replies.
    fn gather_ms(&self, collector: ReplicaId, holders: ReplicaSet) -> f64 {
        let n = self.rtts.n();
        let demanded = holders.intersection(ReplicaSet::all(n)).iter();
        let arrivals = demanded.map(|of| self.arrivals[collector.index() * n + of.index()]);
        arrivals.fold(self.majority[collector.index()], f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the round trips of three sites in a line: A - 10 ms - B - 20 ms - C.
    fn line() -> RoundTrips {
        let place = [0.0_f64, 10.0, 30.0];
        RoundTrips::new(3, |a, b| (place[a] - place[b]).abs())
    }

    fn set(ids: &[u8]) -> ReplicaSet {
        ids.iter().copied().map(ReplicaId).collect()
    }

    #[test]
    fn a_write_waits_for_the_nearest_majority_and_every_holder() {
        let distance = Distance::new(line(), ReplicaId(0));
        for (origin, holders, expected) in [
            (0, set(&[0]), 10.0),
            (0, set(&[0, 2]), 30.0),
            // The write goes to A, and A's reply comes back to B.
            (1, set(&[0]), 10.0),
            // C's acceptance comes back to B: 5 + 15 + 10.
            (1, set(&[0, 2]), 30.0),
            (2, set(&[0]), 30.0),
        ] {
            let found = distance.write_ms(ReplicaId(origin), holders, Replies::LeaderAndOrigin);
            assert_eq!(found, expected, "write at {origin}, {holders:?}");
        }
    }

    #[test]
    fn without_replies_to_the_origin_the_leader_tells_it() {
        let distance = Distance::new(line(), ReplicaId(0));
        assert_eq!(
            distance.write_ms(ReplicaId(2), set(&[0]), Replies::LeaderOnly),
            40.0
        );
    }

    #[test]
    fn a_read_costs_the_way_to_the_nearest_holder_or_a_confirmation_by_the_leader() {
        let distance = Distance::new(line(), ReplicaId(0));
        assert_eq!(distance.read_ms(ReplicaId(2), set(&[0, 2])), 0.0);
        assert_eq!(distance.read_ms(ReplicaId(2), set(&[0, 1])), 20.0);
        assert_eq!(distance.read_ms(ReplicaId(2), ReplicaSet::EMPTY), 40.0);
    }

    #[test]
    fn only_a_clear_difference_makes_another_matrix() {
        let shifted = |by: f64| {
            RoundTrips::new(3, |a, b| {
                line().get(ReplicaId(a as u8), ReplicaId(b as u8)) + by
            })
        };
        assert!(!line().is_far_from(&shifted(0.4)));
        assert!(line().is_far_from(&shifted(2.0)));
    }

    #[test]
    fn a_replica_alone_commits_at_once() {
        let rtts = RoundTrips::new(1, |_, _| 0.0);
        let distance = Distance::new(rtts.clone(), ReplicaId(0));
        assert_eq!(
            distance.write_ms(ReplicaId(0), set(&[0]), Replies::LeaderAndOrigin),
            0.0
        );
        assert_eq!(rtts.nearest_to(ReplicaId(0)), []);
    }
}
