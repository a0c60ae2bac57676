//! The hunt for one mutant: seeds in order, on all processors, until one is caught.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use leases::mutants::{Rule, with};

use super::judge::{self, Violation};

/// Which seeds are tried.
pub struct Hunt {
    /// The first.
    pub from: u64,
    /// How many, at most.
    pub seeds: u64,
    /// Virtual time in which each begins requests, in ns.
    pub run_ns: u64,
    /// Seeds that fail with every rule in force: they show nothing but a fault
    /// of the program or of its checks.
    pub sick: Mutex<BTreeMap<u64, Violation>>,
}

/// The first seed that noticed.
pub struct Caught {
    /// It.
    pub seed: u64,
    /// How many seeds that took.
    pub after: u64,
    /// Who noticed, and what.
    pub violation: Violation,
}

impl Hunt {
    /// Runs seeds without `rule`. The answer is the lowest seed that notices,
    /// however the processors share the work.
    pub fn run(&self, rule: Rule) -> Option<Caught> {
        let next = AtomicU64::new(self.from);
        let first: Mutex<Option<(u64, Violation)>> = Mutex::new(None);
        let best = || first.lock().expect("no holder panics");
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                let late = best().as_ref().is_some_and(|(known, _)| *known < seed);
                if seed >= self.from + self.seeds || late {
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
        Some(Caught {
            seed,
            after: seed - self.from + 1,
            violation,
        })
    }

    /// What a seed notices without `rule`, and would not with it.
    fn notices(&self, rule: Rule, seed: u64) -> Option<Violation> {
        let violation = with(rule, || judge::seed(seed, self.run_ns))?;
        let Some(own) = judge::seed(seed, self.run_ns) else {
            return Some(violation);
        };
        let mut sick = self.sick.lock().expect("no holder panics");
        sick.insert(seed, own);
        None
    }
}
