//! The hunt for one mutant: seeds in order, on all processors, until one catches it;
//! in several rounds, for one lucky seed says little.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_leases::mutants::{Rule, with};

use super::judge::{self, Violation};

/// Range of seeds that are tried.
pub struct Hunt {
    /// The first.
    pub from: u64,
    /// Maximum number of seeds in a round.
    pub seeds: u64,
    /// Rounds; each has seeds of its own.
    pub rounds: u64,
    /// Virtual time in which each begins requests, in ns.
    pub run_ns: u64,
    /// Seeds that fail with every rule in force: they show nothing but a fault
    /// of the program or of its checks.
    pub baseline_failures: Mutex<BTreeMap<u64, Violation>>,
}

/// Between the first seeds of two rounds.
const ROUND: u64 = 1_000_000;

/// The first seed of a round that noticed.
pub struct Detection {
    /// It.
    pub seed: u64,
    /// Number of seeds that it took.
    pub after: u64,
    /// The oracle or assertion that noticed, and its text.
    pub violation: Violation,
}

/// Outcome of all rounds.
pub struct HuntResult {
    /// The rounds in which it was caught, the shortest first.
    pub caught: Vec<Detection>,
    /// Number of rounds.
    pub rounds: u64,
}

impl HuntResult {
    /// The round in the middle, if it was caught in that.
    pub fn median(&self) -> Option<&Detection> {
        self.caught.get(self.rounds as usize / 2)
    }
}

impl Hunt {
    /// Hunts the mutant without `rule`.
    pub fn run(&self, rule: Rule) -> HuntResult {
        let rounds = (0..self.rounds).map(|round| self.from + round * ROUND);
        let mut caught: Vec<Detection> = rounds.filter_map(|from| self.round(rule, from)).collect();
        caught.sort_by_key(|caught| caught.after);
        let rounds = self.rounds;
        HuntResult { caught, rounds }
    }

    /// Runs seeds without `rule`. The answer is the lowest seed that notices,
    /// however the processors share the work.
    fn round(&self, rule: Rule, from: u64) -> Option<Detection> {
        let next = AtomicU64::new(from);
        let first: Mutex<Option<(u64, Violation)>> = Mutex::new(None);
        let best = || first.lock().expect("no holder panics");
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                let late = best().as_ref().is_some_and(|(known, _)| *known < seed);
                if seed >= from + self.seeds || late {
                    return;
                }
                let Some(violation) = self.notices(rule, seed) else {
                    continue;
                };
                let mut best = best();
                if best.as_ref().is_none_or(|(known, _)| seed < *known) {
                    *best = Some((seed, violation));
                }
            }
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..processors {
                scope.spawn(work);
            }
        });
        let (seed, violation) = first.into_inner().expect("no holder panicked")?;
        Some(Detection {
            seed,
            after: seed - from + 1,
            violation,
        })
    }

    /// Returns the violation that a seed notices without `rule`, and would not notice with it.
    fn notices(&self, rule: Rule, seed: u64) -> Option<Violation> {
        let violation = with(rule, || judge::seed(seed, self.run_ns))?;
        let Some(own) = judge::seed(seed, self.run_ns) else {
            return Some(violation);
        };
        let mut baseline_failures = self.baseline_failures.lock().expect("no holder panics");
        baseline_failures.insert(seed, own);
        None
    }
}
