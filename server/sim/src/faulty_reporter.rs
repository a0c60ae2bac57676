//! A replica that reports meaningless numbers as demand and round-trip times. All of its other
//! messages are correct. A leader may choose bad holders because of the reports, but nothing worse
//! may happen.

use leasehold_leases::Key;
use leasehold_leases::demand::Delta;
use leasehold_wire::KEY_BYTES_MAX;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use leasehold_replica::message::{DemandReport, Message};

/// Maximum number of keys in a report.
const KEYS_MAX: usize = 32;
/// Fraction of the reports that are sent unchanged. Because of these reports, some meaningless
/// reports follow plausible reports.
const HONEST: f64 = 0.3;
/// Fraction of the reported keys that have the maximum length.
const LONGEST: f64 = 0.05;
const SALT: u64 = 0x0dd_5eed;

/// The replica that reports meaningless numbers, and the random generator of these numbers.
#[derive(Debug)]
pub struct FaultyReporter {
    node: usize,
    rng: Pcg64Mcg,
}

impl FaultyReporter {
    /// Creates a reporter that distorts the reports of `node`. The reporter has its own random
    /// generator, so the other random choices of the run stay the same.
    pub fn new(node: usize, seed: u64) -> FaultyReporter {
        let rng = Pcg64Mcg::seed_from_u64(seed ^ SALT);
        FaultyReporter { node, rng }
    }

    /// Replaces values in `message` by meaningless ones, if `message` is a report of demand.
    /// Returns whether the message was changed.
    pub fn distort(&mut self, from: usize, message: &mut Message) -> bool {
        let Message::Demand(demand) = message else {
            return false;
        };
        if from != self.node || self.rng.random::<f64>() < HONEST {
            return false;
        }
        let DemandReport { report, rtts_us } = demand;
        let keys = self.rng.random_range(0..=KEYS_MAX);
        report.deltas = (0..keys).map(|_| self.delta()).collect();
        (report.rare_reads, report.rare_writes) = (self.number(), self.number());
        let ways = self.rng.random_range(0..=2 * rtts_us.len());
        *rtts_us = (0..ways).map(|_| self.number()).collect();
        true
    }

    fn delta(&mut self) -> Delta {
        Delta {
            key: self.key(),
            reads: self.number(),
            writes: self.number(),
        }
    }

    /// Returns a key that clients use, or one that no client uses.
    fn key(&mut self) -> Key {
        let nth = self.rng.random_range(0..10);
        match self.rng.random::<f64>() {
            share if share < LONGEST => vec![self.rng.random(); KEY_BYTES_MAX].into(),
            share if share < 0.5 => format!("key{nth:04}").into(),
            _ => self.rng.random::<u64>().to_be_bytes().to_vec().into(),
        }
    }

    /// Returns a random choice among 0, 1, an arbitrary number, and the maximum.
    fn number(&mut self) -> u32 {
        match self.rng.random_range(0..4) {
            0 => 0,
            1 => 1,
            2 => self.rng.random(),
            _ => u32::MAX,
        }
    }
}
