//! Demand: the numbers of reads and writes of each key. Each replica counts those of its own
//! clients and reports them to the leader (§3.4).

use leasehold_leases::demand::{Demand, Tally};
use leasehold_leases::latency::RoundTrips;
use leasehold_leases::{Key, ReplicaId, Time};
use leasehold_wire::Command;
use smallvec::SmallVec;

use super::Leasing;
use super::rtt_matrix::RttMatrix;
use crate::context::ReplicaContext;
use crate::message::{DemandReport, Message};
use crate::step::Step;

/// Divisor of the memory for demand. The part `1 / OWN_PART` is for the demand of a replica's own
/// clients. The rest is for the reports that a leader receives from all replicas.
const OWN_PART: usize = 4;

/// Demand of this replica's clients. A leader also stores the demand of all clients, which all
/// replicas report to it.
#[derive(Clone, Debug)]
pub(super) struct DemandTracker {
    tally: Tally,
    /// Demand reported by all replicas; empty if this replica does not lead.
    pub(super) demand: Demand,
    pub(super) matrix: RttMatrix,
    bytes_max: usize,
    n: usize,
    /// Size, in bytes, of the last report that was sent.
    reported_bytes: usize,
}

impl DemandTracker {
    pub(super) fn new(now: Time, n: usize, bytes_max: usize) -> DemandTracker {
        let own = bytes_max / OWN_PART;
        DemandTracker {
            tally: Tally::new(own),
            demand: Demand::new(now, n, bytes_max - own),
            matrix: RttMatrix::new(n),
            bytes_max,
            n,
            reported_bytes: 0,
        }
    }

    /// Drops all reports that were received, because this replica begins or ceases to lead.
    pub(super) fn forget_reports(&mut self, now: Time) {
        let bytes_max = self.bytes_max - self.bytes_max / OWN_PART;
        self.demand = Demand::new(now, self.n, bytes_max);
    }
}

/// Amount of remembered demand: the number of keys, the memory, and the size of a report.
#[derive(Clone, Copy, Debug)]
pub struct DemandUse {
    /// Number of keys for which this leader knows the demand.
    pub keys: usize,
    /// Estimated memory of the demand, in bytes.
    pub bytes: usize,
    /// Size, in bytes, of the last report that was sent.
    pub reported_bytes: usize,
}

impl Leasing {
    /// Counts the reads and writes of a client of this replica. They are counted even if the
    /// present strategy does not use the counts, because a later strategy may use them.
    pub fn count_demand(&mut self, command: &Command) {
        let tally = &mut self.demand_tracker.tally;
        if command.is_write() {
            // A transaction may name a key several times, but notifies its holders once.
            let mut written: SmallVec<[&Key; 4]> = command.written_keys().collect();
            written.sort_unstable();
            written.dedup();
            written.into_iter().for_each(|key| tally.write(key));
        } else {
            command.keys().for_each(|key| tally.read(key));
        }
    }

    /// Reports to the leader the demand of this replica's clients since the last report, and the
    /// measured round trips to the others. Returns true if this replica leads and its clients have
    /// begun to request other keys.
    pub fn report_demand(&mut self, step: &mut Step<'_>, leader: Option<ReplicaId>) -> bool {
        let Some(leader) = leader else {
            return false;
        };
        let bytes_max = step.ctx.settings.report_bytes_max();
        let report = self.demand_tracker.tally.report(bytes_max);
        self.demand_tracker.reported_bytes = report.bytes();
        assert!(
            self.demand_tracker.reported_bytes <= bytes_max,
            "reports stay within their part of the traffic"
        );
        if leader == step.me() {
            return self.demand_tracker.demand.report(step.now, leader, &report);
        }
        let rtts_us = RttMatrix::row_of(step.ctx);
        let demand = DemandReport { report, rtts_us };
        step.send(leader, Message::Demand(demand));
        false
    }

    /// Key with the most reported operations; `None` if this replica does not lead or knows no
    /// demand.
    pub fn hottest(&self) -> Option<Key> {
        let hottest = self.demand_tracker.demand.hottest();
        hottest.map(Key::copy_from_slice)
    }

    /// Handles a peer's report of the demand of its clients to this leader. Returns whether the
    /// peer's clients have begun to request other keys.
    pub fn on_demand(&mut self, now: Time, from: ReplicaId, reported: &DemandReport) -> bool {
        let DemandReport { report, rtts_us } = reported;
        self.demand_tracker.matrix.note(from, rtts_us);
        self.demand_tracker.demand.report(now, from, report)
    }

    /// Demand of all clients, as reported to this leader.
    pub fn demand(&self) -> &Demand {
        &self.demand_tracker.demand
    }

    /// Returns the round trips between all replicas, as reported to this replica.
    pub fn round_trips(&self, ctx: &ReplicaContext) -> RoundTrips {
        self.demand_tracker.matrix.round_trips(ctx)
    }

    /// Amount of remembered demand: the number of keys, the memory, and the size of a report.
    pub fn demand_use(&self) -> DemandUse {
        let DemandTracker { tally, demand, .. } = &self.demand_tracker;
        DemandUse {
            keys: demand.len(),
            bytes: tally.bytes() + demand.bytes(),
            reported_bytes: self.demand_tracker.reported_bytes,
        }
    }
}
