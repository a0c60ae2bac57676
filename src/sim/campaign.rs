//! Runs many seeds on all cores. The result does not depend on the number of cores: it
//! is that of the seeds in order, up to the first that fails or reaches the goal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_sim::tally::Tally;
use tokio::sync::mpsc;

use super::examine::Failure;
use crate::terminal::{interrupted, runtime};

/// Interval at which the terminal is brought up to date.
const TICK: Duration = Duration::from_millis(250);

/// When a campaign is over.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// When all seeds before this one are done.
    Seeds(u64),
    /// When so many cluster-hours were simulated.
    Hours(f64),
}

/// Way in which a campaign ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// At its goal, or at a failure.
    Over,
    /// By SIGINT or SIGTERM.
    Interrupted,
}

/// Progress of a campaign.
pub struct Course {
    pub goal: Goal,
    next: u64,
    tally: Tally,
    /// Seeds that have ended while a seed before them has not.
    waiting: BTreeMap<u64, Result<Tally, Failure>>,
    /// Seeds done, and virtual ns, those that wait included.
    done: (u64, u64),
    failed: u64,
}

impl Course {
    /// Continues at seed `next`, with the results of the seeds before it.
    pub fn new(goal: Goal, next: u64, tally: Tally) -> Course {
        Course {
            goal,
            next,
            done: (tally.seeds, tally.virtual_ns),
            tally,
            waiting: BTreeMap::new(),
            failed: 0,
        }
    }

    /// The first seed that does not count yet.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The sum of the seeds that count.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Seeds done, and virtual ns, whether they count yet or not.
    pub fn done(&self) -> (u64, u64) {
        self.done
    }

    /// Number of seeds that have failed.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Those seeds.
    pub fn failures(&self) -> Vec<&Failure> {
        let waiting = self.waiting.values();
        waiting.filter_map(|came| came.as_ref().err()).collect()
    }

    /// Whether no more seeds need to begin.
    fn enough(&self) -> bool {
        self.failed > 0 || self.reaches(self.done.1)
    }

    fn reaches(&self, virtual_ns: u64) -> bool {
        match self.goal {
            Goal::Seeds(end) => self.next >= end,
            Goal::Hours(hours) => virtual_ns as f64 >= hours * 3.6e12,
        }
    }

    fn take(&mut self, seed: u64, came: Result<Tally, Failure>) {
        match &came {
            Ok(tally) => {
                self.done.0 += 1;
                self.done.1 += tally.virtual_ns;
            }
            Err(_) => self.failed += 1,
        }
        self.waiting.insert(seed, came);
        while !self.reaches(self.tally.virtual_ns) {
            let Some(Ok(tally)) = self.waiting.get(&self.next) else {
                return;
            };
            self.tally.merge(tally);
            self.waiting.remove(&self.next);
            self.next += 1;
        }
    }
}

struct Shared<F> {
    next: AtomicU64,
    end: u64,
    stop: AtomicBool,
    examine: F,
}

/// Examines seeds until the goal is reached, one fails, or somebody interrupts;
/// seeds under way are finished in any case. `watch` is called now and then.
pub fn drive(
    course: &mut Course,
    threads: usize,
    examine: impl Fn(u64) -> Result<Tally, Failure> + Send + Sync + 'static,
    mut watch: impl FnMut(&Course) -> anyhow::Result<()>,
) -> anyhow::Result<Ended> {
    if course.enough() {
        return Ok(Ended::Over);
    }
    let shared = Arc::new(Shared {
        next: AtomicU64::new(course.next),
        end: match course.goal {
            Goal::Seeds(end) => end,
            Goal::Hours(_) => u64::MAX,
        },
        stop: AtomicBool::new(false),
        examine,
    });
    let (sender, results) = mpsc::unbounded_channel();
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (shared, sender) = (shared.clone(), sender.clone());
            std::thread::spawn(move || work(&shared, &sender))
        })
        .collect();
    drop(sender);
    let ended = runtime()?.block_on(gather(course, results, &shared.stop, &mut watch));
    // An error of `watch` must not leave threads behind.
    shared.stop.store(true, Ordering::Relaxed);
    for worker in workers {
        if worker.join().is_err() {
            anyhow::bail!("a thread of the campaign panicked");
        }
    }
    ended
}

/// Takes what the threads examine, until they have ended.
async fn gather(
    course: &mut Course,
    mut results: mpsc::UnboundedReceiver<(u64, Result<Tally, Failure>)>,
    stop: &AtomicBool,
    watch: &mut impl FnMut(&Course) -> anyhow::Result<()>,
) -> anyhow::Result<Ended> {
    let mut ended = Ended::Over;
    let mut signal = std::pin::pin!(interrupted());
    let mut ticks = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            () = &mut signal, if ended == Ended::Over => {
                ended = Ended::Interrupted;
                stop.store(true, Ordering::Relaxed);
            }
            result = results.recv() => {
                let Some((seed, came)) = result else {
                    return Ok(ended);
                };
                course.take(seed, came);
                if course.enough() {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            _ = ticks.tick() => watch(course)?,
        }
    }
}

type Results = mpsc::UnboundedSender<(u64, Result<Tally, Failure>)>;

fn work<F: Fn(u64) -> Result<Tally, Failure>>(shared: &Shared<F>, results: &Results) {
    while !shared.stop.load(Ordering::Relaxed) {
        let seed = shared.next.fetch_add(1, Ordering::Relaxed);
        if seed >= shared.end {
            return;
        }
        let came = (shared.examine)(seed);
        if results.send((seed, came)).is_err() {
            return; // nobody waits for it any more
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hour() -> Result<Tally, Failure> {
        Ok(Tally {
            seeds: 1,
            virtual_ns: 3_600_000_000_000,
            ..Tally::default()
        })
    }

    fn failure(seed: u64) -> Result<Tally, Failure> {
        Err(Failure {
            seed,
            oracle: "freshness".to_owned(),
            what: String::new(),
        })
    }

    #[test]
    fn seeds_count_in_order() {
        let mut course = Course::new(Goal::Seeds(4), 0, Tally::default());
        for (seed, next) in [(1, 0), (3, 0), (0, 2), (2, 4)] {
            assert!(!course.enough());
            course.take(seed, hour());
            assert_eq!(course.next(), next);
        }
        assert!(course.enough());
        assert_eq!(course.tally().seeds, 4);
    }

    #[test]
    fn a_failure_and_what_follows_it_do_not_count() {
        let mut course = Course::new(Goal::Seeds(9), 0, Tally::default());
        course.take(0, hour());
        course.take(2, hour());
        course.take(1, failure(1));
        assert!(course.enough());
        assert_eq!((course.next(), course.tally().seeds), (1, 1));
        assert_eq!(course.failures().len(), 1);
    }

    #[test]
    fn hours_end_at_the_same_seed_however_many_are_under_way() {
        let mut course = Course::new(Goal::Hours(1.5), 0, Tally::default());
        for seed in [2, 1, 0] {
            course.take(seed, hour());
        }
        assert!(course.enough());
        assert_eq!((course.next(), course.tally().seeds), (2, 2));
    }

    #[test]
    fn threads_run_each_seed_once_and_stop_at_a_failure() {
        let mut course = Course::new(Goal::Seeds(50), 10, Tally::default());
        let ended = drive(&mut course, 3, |_| hour(), |_| Ok(()));
        assert_eq!(ended.unwrap(), Ended::Over);
        assert_eq!((course.next(), course.tally().seeds), (50, 40));
        let examine = |seed| if seed == 20 { failure(seed) } else { hour() };
        let mut course = Course::new(Goal::Hours(1e6), 0, Tally::default());
        drive(&mut course, 3, examine, |_| Ok(())).unwrap();
        assert_eq!((course.next(), course.failures()[0].seed), (20, 20));
    }
}
