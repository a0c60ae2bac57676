//! The hunt for one mutant, a replica without one rule: seeds are run in order, on all processors,
//! until one shows a violation. There are several rounds, because a single lucky seed says little.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_leases::mutants::{Rule, with};

use super::judge::{self, Violation};

/// Range of seeds to try.
pub struct Hunt {
    /// First seed.
    pub from: u64,
    /// Maximum number of seeds in a round.
    pub seeds: u64,
    /// Number of rounds. Each round uses other seeds.
    pub rounds: u64,
    /// Virtual time, in ns, in the run of each seed. Clients begin requests only during this time.
    pub run_ns: u64,
    /// Seeds that fail although every rule is in force, and their violations. Such a failure shows
    /// a mistake in the program or in the checks. It does not count as a detection of the mutant.
    pub baseline_failures: Mutex<BTreeMap<u64, Violation>>,
}

/// Difference between the first seeds of two successive rounds.
const ROUND: u64 = 1_000_000;

/// Seed at which a round first caught the mutant, with the violation.
pub struct Detection {
    /// The seed that caught the mutant.
    pub seed: u64,
    /// Number of seeds that the round needed to catch the mutant.
    pub after: u64,
    /// Oracle or assertion that caught the mutant, and its message.
    pub violation: Violation,
}

/// Outcome of all rounds.
pub struct HuntResult {
    /// One entry for each round that caught the mutant. The entry holds the first seed that caught
    /// it. The round that needed the fewest seeds comes first.
    pub caught: Vec<Detection>,
    /// Number of rounds.
    pub rounds: u64,
}

impl HuntResult {
    /// Returns the detection in the median round. Rounds are compared by the number of seeds that
    /// they needed. Returns `None` if the median round did not catch the mutant.
    pub fn median(&self) -> Option<&Detection> {
        self.caught.get(self.rounds as usize / 2)
    }
}

impl Hunt {
    /// Hunts the mutant in which `rule` is switched off.
    pub fn run(&self, rule: Rule) -> HuntResult {
        let rounds = (0..self.rounds).map(|round| self.from + round * ROUND);
        let mut caught: Vec<Detection> = rounds.filter_map(|from| self.round(rule, from)).collect();
        caught.sort_by_key(|caught| caught.after);
        let rounds = self.rounds;
        HuntResult { caught, rounds }
    }

    /// Runs the seeds of one round with `rule` switched off. Returns the lowest seed that catches
    /// the mutant. The result does not depend on how the work is distributed among processors.
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

    /// Returns the violation that a seed shows when `rule` is switched off. The result is `None` if
    /// the seed also shows a violation with every rule in force.
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
