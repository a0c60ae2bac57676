//! Reads and writes of clients: counted at their replica, reported to the leader (§3.4).

use leasehold_leases::demand::{Demand, Tally};
use leasehold_leases::latency::RoundTrips;
use leasehold_leases::{Key, ReplicaId, Time};
use leasehold_wire::Command;

use super::Leasing;
use super::rtt_matrix::RttMatrix;
use crate::context::ReplicaContext;
use crate::message::{DemandReport, Message};
use crate::step::Step;

/// Divisor: a replica takes one such part of the memory for demand for its own clients. The rest is
/// for what a leader hears of all.
const OWN_PART: usize = 4;

/// Demand at this replica, and of all as far as it was reported here.
#[derive(Clone, Debug)]
pub(super) struct DemandTracker {
    tally: Tally,
    /// Demand at all origins; empty where this replica does not lead.
    pub(super) demand: Demand,
    pub(super) matrix: RttMatrix,
    bytes_max: usize,
    n: usize,
    /// Size of the last report in its message, in bytes.
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

    /// A leadership begins, or ends: what was reported before is forgotten.
    pub(super) fn forget_reports(&mut self, now: Time) {
        let bytes_max = self.bytes_max - self.bytes_max / OWN_PART;
        self.demand = Demand::new(now, self.n, bytes_max);
    }
}

/// Amount of remembered demand, and its memory and message size.
#[derive(Clone, Copy, Debug)]
pub struct DemandUse {
    /// Keys that a leader knows the demand of.
    pub keys: usize,
    /// Memory, in bytes, estimated.
    pub bytes: usize,
    /// Size of the last report in its message, in bytes.
    pub reported_bytes: usize,
}

impl Leasing {
    /// Counts what a client of this replica asks. Every strategy's demand is counted: a
    /// later one will need it.
    pub fn count_demand(&mut self, command: &Command) {
        let tally = &mut self.demand_tracker.tally;
        let write = command.is_write();
        for key in command.keys() {
            if write {
                tally.write(key)
            } else {
                tally.read(key)
            }
        }
    }

    /// Tells the leader what clients of this replica asked since the last report, and how
    /// far away the others are. Returns whether this is the leader, and its clients have
    /// turned to other keys.
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

    /// The key with the most operations, as far as they were reported here: to the leader.
    pub fn hottest(&self) -> Option<Key> {
        let hottest = self.demand_tracker.demand.hottest();
        hottest.map(Key::copy_from_slice)
    }

    /// A peer reports its demand to this leader. Returns whether its clients have turned to
    /// other keys.
    pub fn on_demand(&mut self, now: Time, from: ReplicaId, reported: &DemandReport) -> bool {
        let DemandReport { report, rtts_us } = reported;
        self.demand_tracker.matrix.note(from, rtts_us);
        self.demand_tracker.demand.report(now, from, report)
    }

    /// The demand of all, as far as it was reported here: to the leader.
    pub fn demand(&self) -> &Demand {
        &self.demand_tracker.demand
    }

    /// Round trips between all replicas, as far as they were reported here.
    pub fn round_trips(&self, ctx: &ReplicaContext) -> RoundTrips {
        self.demand_tracker.matrix.round_trips(ctx)
    }

    /// Amount of remembered demand, and its memory and message size.
    pub fn demand_use(&self) -> DemandUse {
        let DemandTracker { tally, demand, .. } = &self.demand_tracker;
        DemandUse {
            keys: demand.len(),
            bytes: tally.bytes() + demand.bytes(),
            reported_bytes: self.demand_tracker.reported_bytes,
        }
    }
}
