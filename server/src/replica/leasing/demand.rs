//! What clients read and write: counted at their replica, reported to the leader (§3.4).

use client::wire::Command;
use leases::demand::{Delta, Demand, Tally};
use leases::{Key, ReplicaId};

use super::super::message::Message;
use super::super::step::Step;
use super::Leasing;

/// The demand that one report may carry: with one report a second, the paper's bound
/// of 100 KB/s a replica (§3.4).
const REPORT_BYTES_MAX: usize = 100_000;

/// Demand at this replica, and at all as far as it was reported here.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    tally: Tally,
    pub(super) demand: Demand,
}

impl Counted {
    pub(super) fn new(n: usize, keys_max: usize) -> Counted {
        Counted {
            tally: Tally::new(keys_max),
            demand: Demand::new(n, keys_max),
        }
    }

    pub(super) fn add(&mut self, origin: ReplicaId, deltas: Vec<Delta>) {
        for delta in deltas {
            self.demand
                .add(&delta.key, origin, delta.reads, delta.writes);
        }
    }
}

impl Leasing {
    /// Counts what a client of this replica asks, if the strategy wants to know.
    pub fn count_demand(&mut self, command: &Command) {
        if !self.configs.wants_demand() {
            return;
        }
        let tally = &mut self.counted.tally;
        let write = command.is_write();
        for key in command.keys() {
            if write {
                tally.write(key)
            } else {
                tally.read(key)
            }
        }
    }

    /// Tells the leader what clients of this replica asked since the last report.
    pub fn report_demand(&mut self, step: &mut Step<'_>, leader: Option<ReplicaId>) {
        let Some(leader) = leader.filter(|_| self.configs.wants_demand()) else {
            return;
        };
        let deltas = self.counted.tally.report(REPORT_BYTES_MAX);
        if deltas.is_empty() {
            return;
        }
        if leader == step.me() {
            self.counted.add(leader, deltas);
        } else {
            step.send(leader, Message::Demand(deltas));
        }
    }

    /// The key with the most operations, as far as they were reported here: to the leader.
    pub fn hottest(&self) -> Option<&Key> {
        self.counted.demand.hottest()
    }

    /// A peer reports its demand.
    pub fn on_demand(&mut self, from: ReplicaId, deltas: Vec<Delta>) {
        self.counted.add(from, deltas);
    }
}
