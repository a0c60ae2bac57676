//! Runs many seeds on all cores. The result does not depend on the number of cores: it
//! is that of the seeds in order, up to the first that fails or reaches the goal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_sim::tally::CampaignTally;
use tokio::sync::mpsc;

use super::seed::SeedFailure;
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
pub enum CampaignEnd {
    /// At its goal, or at a failure.
    Over,
    /// By SIGINT or SIGTERM.
    Interrupted,
}

/// Progress of a campaign.
pub struct CampaignProgress {
    pub goal: Goal,
    next: u64,
    tally: CampaignTally,
    /// Seeds that have ended while a seed before them has not.
    waiting: BTreeMap<u64, Result<CampaignTally, SeedFailure>>,
    /// Seeds done, and virtual ns, those that wait included.
    done: (u64, u64),
    failed: u64,
}

impl CampaignProgress {
    /// Continues at seed `next`, with the results of the seeds before it.
    pub fn new(goal: Goal, next: u64, tally: CampaignTally) -> CampaignProgress {
        CampaignProgress {
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
    pub fn tally(&self) -> &CampaignTally {
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
    pub fn failures(&self) -> Vec<&SeedFailure> {
        let waiting = self.waiting.values();
        waiting
            .filter_map(|outcome| outcome.as_ref().err())
            .collect()
    }

    /// Whether no more seeds need to begin.
    fn is_enough(&self) -> bool {
        self.failed > 0 || self.reaches(self.done.1)
    }

    fn reaches(&self, virtual_ns: u64) -> bool {
        match self.goal {
            Goal::Seeds(end) => self.next >= end,
            Goal::Hours(hours) => virtual_ns as f64 >= hours * 3.6e12,
        }
    }

    fn take(&mut self, seed: u64, outcome: Result<CampaignTally, SeedFailure>) {
        match &outcome {
            Ok(tally) => {
                self.done.0 += 1;
                self.done.1 += tally.virtual_ns;
            }
            Err(_) => self.failed += 1,
        }
        self.waiting.insert(seed, outcome);
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

struct SeedQueue<F> {
    next: AtomicU64,
    end: u64,
    stop: AtomicBool,
    examine: F,
}

/// Examines seeds until the goal is reached, one fails, or somebody interrupts;
/// seeds under way are finished in any case. `watch` is called now and then.
pub fn drive(
    progress: &mut CampaignProgress,
    threads: usize,
    examine: impl Fn(u64) -> Result<CampaignTally, SeedFailure> + Send + Sync + 'static,
    mut watch: impl FnMut(&CampaignProgress) -> anyhow::Result<()>,
) -> anyhow::Result<CampaignEnd> {
    if progress.is_enough() {
        return Ok(CampaignEnd::Over);
    }
    let queue = Arc::new(SeedQueue {
        next: AtomicU64::new(progress.next),
        end: match progress.goal {
            Goal::Seeds(end) => end,
            Goal::Hours(_) => u64::MAX,
        },
        stop: AtomicBool::new(false),
        examine,
    });
    let (sender, results) = mpsc::unbounded_channel();
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (queue, sender) = (queue.clone(), sender.clone());
            std::thread::spawn(move || work(&queue, &sender))
        })
        .collect();
    drop(sender);
    let ended = runtime()?.block_on(gather(progress, results, &queue.stop, &mut watch));
    // An error of `watch` must not leave threads behind.
    queue.stop.store(true, Ordering::Relaxed);
    for worker in workers {
        if worker.join().is_err() {
            anyhow::bail!("a thread of the campaign panicked");
        }
    }
    ended
}

/// Takes what the threads examine, until they have ended.
async fn gather(
    progress: &mut CampaignProgress,
    mut results: mpsc::UnboundedReceiver<(u64, Result<CampaignTally, SeedFailure>)>,
    stop: &AtomicBool,
    watch: &mut impl FnMut(&CampaignProgress) -> anyhow::Result<()>,
) -> anyhow::Result<CampaignEnd> {
    let mut ended = CampaignEnd::Over;
    let mut signal = std::pin::pin!(interrupted());
    let mut ticks = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            () = &mut signal, if ended == CampaignEnd::Over => {
                ended = CampaignEnd::Interrupted;
                stop.store(true, Ordering::Relaxed);
            }
            result = results.recv() => {
                let Some((seed, outcome)) = result else {
                    return Ok(ended);
                };
                progress.take(seed, outcome);
                if progress.is_enough() {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            _ = ticks.tick() => watch(progress)?,
        }
    }
}

type Results = mpsc::UnboundedSender<(u64, Result<CampaignTally, SeedFailure>)>;

fn work<F: Fn(u64) -> Result<CampaignTally, SeedFailure>>(queue: &SeedQueue<F>, results: &Results) {
    while !queue.stop.load(Ordering::Relaxed) {
        let seed = queue.next.fetch_add(1, Ordering::Relaxed);
        if seed >= queue.end {
            return;
        }
        let outcome = (queue.examine)(seed);
        if results.send((seed, outcome)).is_err() {
            return; // nobody waits for it any more
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hour() -> Result<CampaignTally, SeedFailure> {
        Ok(CampaignTally {
            seeds: 1,
            virtual_ns: 3_600_000_000_000,
            ..CampaignTally::default()
        })
    }

    fn failure(seed: u64) -> Result<CampaignTally, SeedFailure> {
        Err(SeedFailure {
            seed,
            oracle: "freshness".to_owned(),
            what: String::new(),
        })
    }

    #[test]
    fn seeds_count_in_order() {
        let mut progress = CampaignProgress::new(Goal::Seeds(4), 0, CampaignTally::default());
        for (seed, next) in [(1, 0), (3, 0), (0, 2), (2, 4)] {
            assert!(!progress.is_enough());
            progress.take(seed, hour());
            assert_eq!(progress.next(), next);
        }
        assert!(progress.is_enough());
        assert_eq!(progress.tally().seeds, 4);
    }

    #[test]
    fn a_failure_and_what_follows_it_do_not_count() {
        let mut progress = CampaignProgress::new(Goal::Seeds(9), 0, CampaignTally::default());
        progress.take(0, hour());
        progress.take(2, hour());
        progress.take(1, failure(1));
        assert!(progress.is_enough());
        assert_eq!((progress.next(), progress.tally().seeds), (1, 1));
        assert_eq!(progress.failures().len(), 1);
    }

    #[test]
    fn hours_end_at_the_same_seed_however_many_are_under_way() {
        let mut progress = CampaignProgress::new(Goal::Hours(1.5), 0, CampaignTally::default());
        for seed in [2, 1, 0] {
            progress.take(seed, hour());
        }
        assert!(progress.is_enough());
        assert_eq!((progress.next(), progress.tally().seeds), (2, 2));
    }

    #[test]
    fn threads_run_each_seed_once_and_stop_at_a_failure() {
        let mut progress = CampaignProgress::new(Goal::Seeds(50), 10, CampaignTally::default());
        let ended = drive(&mut progress, 3, |_| hour(), |_| Ok(()));
        assert_eq!(ended.unwrap(), CampaignEnd::Over);
        assert_eq!((progress.next(), progress.tally().seeds), (50, 40));
        let examine = |seed| if seed == 20 { failure(seed) } else { hour() };
        let mut progress = CampaignProgress::new(Goal::Hours(1e6), 0, CampaignTally::default());
        drive(&mut progress, 3, examine, |_| Ok(())).unwrap();
        assert_eq!((progress.next(), progress.failures()[0].seed), (20, 20));
    }
}
