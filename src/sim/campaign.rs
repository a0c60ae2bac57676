//! Runs many seeds on all cores. The result does not depend on the number of cores, because seeds
//! are included in numerical order. The last included seed is the first one that fails, or the one
//! that reaches the goal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub use leasehold_kernel::campaign::Goal;
use leasehold_kernel::campaign::{Progress, Sums};
use leasehold_sim::tally::CampaignTally;
use tokio::sync::mpsc;

use super::seed::SeedFailure;
use crate::terminal::{interrupted, runtime};

/// Interval at which the terminal is updated.
const TICK: Duration = Duration::from_millis(250);

/// Reason why a campaign ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CampaignEnd {
    /// The campaign has reached its goal, or a seed has failed.
    Over,
    /// SIGINT or SIGTERM interrupted the campaign.
    Interrupted,
}

/// Progress of a campaign of simulated clusters.
pub type CampaignProgress = Progress<CampaignTally, SeedFailure>;

struct SeedQueue<F> {
    next: AtomicU64,
    end: u64,
    stop: AtomicBool,
    examine: F,
}

/// Runs seeds until the goal is reached, a seed fails, or the user interrupts. A seed is always
/// finished once it has begun. `watch` is called at intervals.
pub fn drive<S: Sums + Send + 'static, F: Send + 'static>(
    progress: &mut Progress<S, F>,
    threads: usize,
    examine: impl Fn(u64) -> Result<S, F> + Send + Sync + 'static,
    mut watch: impl FnMut(&Progress<S, F>) -> anyhow::Result<()>,
) -> anyhow::Result<CampaignEnd> {
    if progress.is_enough() {
        return Ok(CampaignEnd::Over);
    }
    let queue = Arc::new(SeedQueue {
        next: AtomicU64::new(progress.next()),
        end: match progress.goal() {
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
    // The threads must be stopped even if `watch` fails.
    queue.stop.store(true, Ordering::Relaxed);
    for worker in workers {
        if worker.join().is_err() {
            anyhow::bail!("a thread of the campaign panicked");
        }
    }
    ended
}

/// Receives the results of the threads until all threads have ended.
async fn gather<S: Sums, F>(
    progress: &mut Progress<S, F>,
    mut results: mpsc::UnboundedReceiver<(u64, Result<S, F>)>,
    stop: &AtomicBool,
    watch: &mut impl FnMut(&Progress<S, F>) -> anyhow::Result<()>,
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

fn work<S, F>(
    queue: &SeedQueue<impl Fn(u64) -> Result<S, F>>,
    results: &mpsc::UnboundedSender<(u64, Result<S, F>)>,
) {
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
    fn threads_run_each_seed_once_and_stop_at_a_failure() {
        let mut progress = CampaignProgress::new(Goal::Seeds(50), 10, CampaignTally::default());
        let ended = drive(&mut progress, 3, |_| hour(), |_| Ok(()));
        assert_eq!(ended.unwrap(), CampaignEnd::Over);
        assert_eq!((progress.next(), progress.sums().seeds), (50, 40));
        let examine = |seed| if seed == 20 { failure(seed) } else { hour() };
        let mut progress = CampaignProgress::new(Goal::Hours(1e6), 0, CampaignTally::default());
        drive(&mut progress, 3, examine, |_| Ok(())).unwrap();
        assert_eq!((progress.next(), progress.failures()[0].seed), (20, 20));
    }
}
