//! Round trips between all replicas, as the replicas have measured and reported them.

use std::time::Duration;

use leasehold_leases::latency::RoundTrips;
use leasehold_leases::{ReplicaId, ReplicaSet};

use crate::context::ReplicaContext;

/// Round trip, in ms, that is assumed for two replicas without a measurement. If the longest
/// measured round trip is longer, it is assumed instead of this value.
const UNMEASURED_MS: f64 = 1000.0;

/// Maximum for a round trip that a peer reports, in us. A longer reported round trip is replaced by
/// this maximum.
const RTT_MAX_US: u32 = 60_000_000;

/// Round trips, in us, that the other replicas have measured. Each replica has a row, with one
/// number for each peer: 0 if that replica has not measured the round trip to the peer.
#[derive(Clone, Debug)]
pub(super) struct RttMatrix {
    rows: Vec<Vec<u32>>,
}

impl RttMatrix {
    pub(super) fn new(n: usize) -> RttMatrix {
        RttMatrix {
            rows: vec![Vec::new(); n],
        }
    }

    /// Returns the round trips that this replica has measured and reports to others, in us. The
    /// entry of a peer is 0 if there is no measurement, and at least 1 otherwise.
    pub(super) fn row_of(ctx: &ReplicaContext) -> Vec<u32> {
        let measured_us = |rtt: Duration| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX).max(1);
        let rtt_us = |replica| ctx.rtt(replica).map_or(0, measured_us);
        ctx.members.voters().iter().map(rtt_us).collect()
    }

    /// Notes the measurements that a peer reports.
    pub(super) fn note(&mut self, from: ReplicaId, rtts_us: &[u32]) {
        let n = self.rows.len();
        if let Some(row) = self.rows.get_mut(from.index()) {
            let usable = rtts_us.iter().take(n).map(|us| (*us).min(RTT_MAX_US));
            *row = usable.collect();
            assert!(
                row.len() <= n,
                "a row has no more round trips than replicas"
            );
        }
    }

    /// Returns whether each pair of replicas in `among` has a measured round trip. A measurement by
    /// one replica of the pair is enough.
    pub(super) fn is_known(&self, ctx: &ReplicaContext, among: ReplicaSet) -> bool {
        let own = RttMatrix::row_of(ctx);
        let measured = |a: ReplicaId, b: ReplicaId| {
            let row = if a == ctx.me() {
                &own
            } else {
                &self.rows[a.index()]
            };
            row.get(b.index()).is_some_and(|us| *us > 0)
        };
        let pairs = among.iter().flat_map(|a| among.iter().map(move |b| (a, b)));
        let mut apart = pairs.filter(|(a, b)| a < b);
        apart.all(|(a, b)| measured(a, b) || measured(b, a))
    }

    /// Returns the longest round trip that any replica has measured.
    pub(super) fn longest(&self, ctx: &ReplicaContext) -> Duration {
        let own = RttMatrix::row_of(ctx);
        let measured = self.rows.iter().chain([&own]).flatten();
        Duration::from_micros(measured.max().map_or(0, |us| (*us).into()))
    }

    /// Returns the round trips between all replicas. If both replicas of a pair have measured the
    /// round trip, the mean is returned. If only one replica has measured it, this measurement is
    /// returned.
    pub(super) fn round_trips(&self, ctx: &ReplicaContext) -> RoundTrips {
        let own = RttMatrix::row_of(ctx);
        assert_eq!(own.len(), self.rows.len(), "one row for each replica");
        let measured = |a: usize, b: usize| {
            let row = if a == ctx.me().index() {
                &own
            } else {
                &self.rows[a]
            };
            row.get(b).copied().filter(|us| *us > 0)
        };
        let n = self.rows.len();
        let between = |a, b| match (measured(a, b), measured(b, a)) {
            (Some(there), Some(back)) => Some(f64::from(there) / 2000.0 + f64::from(back) / 2000.0),
            (Some(one), None) | (None, Some(one)) => Some(f64::from(one) / 1000.0),
            (None, None) => None,
        };
        let pairs = (0..n).flat_map(|a| (0..a).map(move |b| (a, b)));
        let known = pairs.filter_map(|(a, b)| between(a, b));
        let unmeasured = known.fold(UNMEASURED_MS, f64::max);
        RoundTrips::new(n, |a, b| between(a, b).unwrap_or(unmeasured))
    }
}
