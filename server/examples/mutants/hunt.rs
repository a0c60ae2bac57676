//! The hunt for one mutant: seeds in order, on all processors, until one is caught.

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
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                let known = first
                    .lock()
                    .expect("no holder panics")
                    .as_ref()
                    .map(|f| f.0);
                if seed >= self.from + self.seeds || known.is_some_and(|known| known < seed) {
                    return;
                }
                if let Some(violation) = with(rule, || judge::seed(seed, self.run_ns)) {
                    let mut first = first.lock().expect("no holder panics");
                    if first.as_ref().is_none_or(|(known, _)| seed < *known) {
                        *first = Some((seed, violation));
                    }
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
}
