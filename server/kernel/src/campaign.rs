//! A campaign runs many seeds on several threads, and evaluates their results in order of the
//! seeds. The overall result covers all seeds up to the first seed that fails or with which the
//! goal is reached. It does not depend on the number of threads.

mod state;

use std::collections::BTreeMap;

pub use self::state::{CampaignState, ResumeError};

/// Numbers that a campaign adds up over its runs. Failed runs are not included.
pub trait Sums: Clone + Default {
    /// Returns the number of runs.
    fn seeds(&self) -> u64;
    /// Returns the total virtual time of the runs, in ns.
    fn virtual_ns(&self) -> u64;
    /// Adds the sums of other runs.
    fn merge(&mut self, other: &Self);
}

/// Condition under which a campaign ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// All seeds below this one have been run.
    Seeds(u64),
    /// This many hours of virtual time have been simulated.
    Hours(f64),
}

/// Progress of a campaign with sums `S` and failures `F`.
#[derive(Debug)]
pub struct Progress<S, F> {
    goal: Goal,
    next: u64,
    sums: S,
    /// Results of seeds that ended while an earlier seed was still running.
    waiting: BTreeMap<u64, Result<S, F>>,
    /// Number of seeds that ended without a failure, and total virtual time of these seeds in ns.
    /// Seeds in `waiting` are included.
    done: (u64, u64),
    failed: u64,
}

impl<S: Sums, F> Progress<S, F> {
    /// Creates the progress of a campaign that continues at seed `next`, with the sums of the seeds
    /// before `next`.
    pub fn new(goal: Goal, next: u64, sums: S) -> Progress<S, F> {
        Progress {
            goal,
            next,
            done: (sums.seeds(), sums.virtual_ns()),
            sums,
            waiting: BTreeMap::new(),
            failed: 0,
        }
    }

    /// Returns the condition under which the campaign ends.
    pub fn goal(&self) -> Goal {
        self.goal
    }

    /// Returns the first seed that is not included in the sums yet.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the sums over the seeds before [`Progress::next`].
    pub fn sums(&self) -> &S {
        &self.sums
    }

    /// Returns the number of seeds that ended without a failure, and the total virtual time of
    /// these seeds in ns. Seeds that are not in the sums yet are included.
    pub fn done(&self) -> (u64, u64) {
        self.done
    }

    /// Returns the number of seeds that have failed.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Returns the failures, in order of their seeds.
    pub fn failures(&self) -> Vec<&F> {
        let waiting = self.waiting.values();
        waiting.filter_map(|result| result.as_ref().err()).collect()
    }

    /// Whether the campaign needs no further seeds, because a seed has failed or the results reach
    /// the goal.
    pub fn is_enough(&self) -> bool {
        self.failed > 0 || self.reaches(self.done.1)
    }

    fn reaches(&self, virtual_ns: u64) -> bool {
        match self.goal {
            Goal::Seeds(end) => self.next >= end,
            Goal::Hours(hours) => virtual_ns as f64 >= hours * 3.6e12,
        }
    }

    /// Adds the result of a seed. Results may be passed in any order, but each seed must have only
    /// one result.
    pub fn take(&mut self, seed: u64, result: Result<S, F>) {
        match &result {
            Ok(sums) => {
                self.done.0 += 1;
                self.done.1 += sums.virtual_ns();
            }
            Err(_) => self.failed += 1,
        }
        self.waiting.insert(seed, result);
        while !self.reaches(self.sums.virtual_ns()) {
            let Some(Ok(sums)) = self.waiting.get(&self.next) else {
                return;
            };
            self.sums.merge(sums);
            self.waiting.remove(&self.next);
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of runs. Each run takes one hour of virtual time.
    #[derive(Clone, Debug, Default)]
    struct Hours(u64);

    impl Sums for Hours {
        fn seeds(&self) -> u64 {
            self.0
        }

        fn virtual_ns(&self) -> u64 {
            self.0 * 3_600_000_000_000
        }

        fn merge(&mut self, other: &Hours) {
            self.0 += other.0;
        }
    }

    fn begin(goal: Goal) -> Progress<Hours, &'static str> {
        Progress::new(goal, 0, Hours(0))
    }

    #[test]
    fn seeds_count_in_order() {
        let mut progress = begin(Goal::Seeds(4));
        for (seed, next) in [(1, 0), (3, 0), (0, 2), (2, 4)] {
            assert!(!progress.is_enough());
            progress.take(seed, Ok(Hours(1)));
            assert_eq!(progress.next(), next);
        }
        assert!(progress.is_enough());
        assert_eq!(progress.sums().seeds(), 4);
    }

    #[test]
    fn a_failure_and_what_follows_it_do_not_count() {
        let mut progress = begin(Goal::Seeds(9));
        progress.take(0, Ok(Hours(1)));
        progress.take(2, Ok(Hours(1)));
        progress.take(1, Err("freshness"));
        assert!(progress.is_enough());
        assert_eq!((progress.next(), progress.sums().seeds()), (1, 1));
        assert_eq!(progress.failures(), [&"freshness"]);
    }

    #[test]
    fn hours_end_at_the_same_seed_however_many_are_under_way() {
        let mut progress = begin(Goal::Hours(1.5));
        for seed in [2, 1, 0] {
            progress.take(seed, Ok(Hours(1)));
        }
        assert!(progress.is_enough());
        assert_eq!((progress.next(), progress.sums().seeds()), (2, 2));
    }
}
