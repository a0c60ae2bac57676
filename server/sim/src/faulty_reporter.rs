//! A replica that reports nonsense for demand and round trips. It is honest in all else: a leader
//! may choose bad holders because of it, and nothing worse.

use leasehold_leases::Key;
use leasehold_leases::demand::Delta;
use leasehold_wire::KEY_BYTES_MAX;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use leasehold_replica::message::{DemandReport, Message};

/// Most keys of a report.
const KEYS_MAX: usize = 32;
/// Share of reports that are left as they are, so that nonsense follows sense.
const HONEST: f64 = 0.3;
/// Share of keys that are as long as a key may be.
const LONGEST: f64 = 0.05;
const SALT: u64 = 0x0dd_5eed;

/// The replica that reports nonsense, and the generator of its reports.
#[derive(Debug)]
pub struct FaultyReporter {
    node: usize,
    rng: Pcg64Mcg,
}

impl FaultyReporter {
    /// Makes `node` report nonsense. The nonsense has a generator of its own: no other draw moves.
    pub fn new(node: usize, seed: u64) -> FaultyReporter {
        let rng = Pcg64Mcg::seed_from_u64(seed ^ SALT);
        FaultyReporter { node, rng }
    }

    /// Puts nonsense into a report of demand. Returns whether it did.
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

    /// A key that clients ask, or one that nobody asks.
    fn key(&mut self) -> Key {
        let nth = self.rng.random_range(0..10);
        match self.rng.random::<f64>() {
            share if share < LONGEST => vec![self.rng.random(); KEY_BYTES_MAX].into(),
            share if share < 0.5 => format!("key{nth:04}").into(),
            _ => self.rng.random::<u64>().to_be_bytes().to_vec().into(),
        }
    }

    /// Nothing, next to nothing, anything, or as much as there may be.
    fn number(&mut self) -> u32 {
        match self.rng.random_range(0..4) {
            0 => 0,
            1 => 1,
            2 => self.rng.random(),
            _ => u32::MAX,
        }
    }
}
