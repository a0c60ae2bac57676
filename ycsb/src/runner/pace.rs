//! Computes the times at which operations are due under a target rate, and waits for these times.
//!
//! The runtime's timers have a resolution of a millisecond, and this error would be added to every
//! latency from the intended start. So one thread of the operating system does the waiting, with an
//! error of about a tenth of a millisecond.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// Schedule of one of several threads that share a target rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Schedule {
    first_s: f64,
    period_s: f64,
}

impl Schedule {
    /// Creates the schedule of the thread with the index `thread` among `threads` threads. All
    /// threads together carry out `rate` operations per second. The threads take turns, so that the
    /// load is even.
    pub fn new(rate: f64, threads: u64, thread: u64) -> Self {
        Schedule {
            first_s: thread as f64 / rate,
            period_s: threads as f64 / rate,
        }
    }

    /// Returns the time at which operation number `n` of this thread is due, counted from the start
    /// of the run.
    pub fn due(&self, n: u64) -> Duration {
        let due_s = self.first_s + self.period_s * n as f64;
        Duration::try_from_secs_f64(due_s).unwrap_or(Duration::MAX)
    }

    /// Returns the number of operations of this thread that are due before `time`.
    pub fn due_before(&self, time: Duration) -> u64 {
        let periods = (time.as_secs_f64() - self.first_s) / self.period_s;
        let mut count = periods.ceil().max(0.0) as u64;
        // Rounding may be off by one; `due` is authoritative.
        while count > 0 && self.due(count - 1) >= time {
            count -= 1;
        }
        while self.due(count) < time {
            count += 1;
        }
        count
    }
}

/// Request to wake a task at a certain time.
#[derive(Debug)]
pub(super) struct WakeRequest {
    at: std::time::Instant,
    waiter: oneshot::Sender<()>,
}

/// An alarm clock for tasks.
#[derive(Clone, Debug)]
pub(super) enum Pacer {
    /// Precise clock on a separate thread. The thread ends when the last clone of the sender is
    /// dropped.
    Thread(Sender<WakeRequest>),
    /// The runtime's timers. They are coarse, but they also work with virtual time.
    Runtime,
}

impl Pacer {
    /// Starts a precise clock.
    ///
    /// # Errors
    /// If the operating system refuses to start a thread.
    pub fn start() -> io::Result<Self> {
        let (sender, requests) = channel();
        thread::Builder::new()
            .name("pacer".to_owned())
            .spawn(move || serve(&requests))?;
        Ok(Pacer::Thread(sender))
    }

    /// Waits until the time `at`. Returns immediately if that time has passed.
    pub async fn sleep_until(&self, at: Instant) {
        if at <= Instant::now() {
            return;
        }
        let Pacer::Thread(thread) = self else {
            return tokio::time::sleep_until(at).await;
        };
        let (waiter, woken) = oneshot::channel();
        let at = at.into_std();
        // The thread ends only when all senders are dropped, and this is one of them.
        if thread.send(WakeRequest { at, waiter }).is_ok() {
            let _ = woken.await;
        }
    }
}

fn serve(requests: &Receiver<WakeRequest>) {
    // Sorted by time, then by arrival, since two requests may be due at the same moment.
    let mut waiting: BTreeMap<(std::time::Instant, u64), oneshot::Sender<()>> = BTreeMap::new();
    let mut arrivals = 0;
    loop {
        let now = std::time::Instant::now();
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= now) {
            // A waiter that was dropped no longer needs to be woken.
            let _ = first.remove().send(());
        }
        let request = match waiting.keys().next() {
            Some((at, _)) => requests.recv_timeout(at.saturating_duration_since(now)),
            None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match request {
            Ok(WakeRequest { at, waiter }) => {
                waiting.insert((at, arrivals), waiter);
                arrivals += 1;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns_at_the_target_rate() {
        // 100 operations a second by 4 threads: each thread has 25 a second, and the threads are 10
        // ms apart.
        let due = |thread, n| Schedule::new(100.0, 4, thread).due(n).as_millis();
        assert_eq!(
            [due(0, 0), due(1, 0), due(2, 0), due(3, 0), due(0, 1)],
            [0, 10, 20, 30, 40]
        );
        assert_eq!(due(3, 1_000_000), 40_000_030);
    }

    #[test]
    fn a_schedule_without_end_does_not_overflow() {
        assert_eq!(Schedule::new(1e-300, 1, 0).due(u64::MAX), Duration::MAX);
    }

    #[test]
    fn what_is_due_before_a_time_is_counted_exactly() {
        for (rate, threads) in [(500.0, 4), (3.0, 7), (1e-3, 1), (7_919.0, 13)] {
            for thread in 0..threads {
                let schedule = Schedule::new(rate, threads, thread);
                for millis in [0, 1, 2, 333, 1_000, 9_999, 10_000] {
                    let time = Duration::from_millis(millis);
                    let counted = (0..).take_while(|n| schedule.due(*n) < time).count();
                    assert_eq!(schedule.due_before(time), counted as u64);
                }
            }
        }
    }

    #[tokio::test]
    async fn sleepers_wake_in_order_and_not_before_time() {
        let pacer = Pacer::start().unwrap();
        let start = Instant::now();
        let (sender, mut woken) = tokio::sync::mpsc::unbounded_channel();
        for wait_ms in [30u64, 10, 20, 0] {
            let (pacer, sender) = (pacer.clone(), sender.clone());
            tokio::spawn(async move {
                let at = start + Duration::from_millis(wait_ms);
                pacer.sleep_until(at).await;
                assert!(Instant::now() >= at);
                sender.send(wait_ms).unwrap();
            });
        }
        drop(sender);
        let mut order = Vec::new();
        while let Some(wait_ms) = woken.recv().await {
            order.push(wait_ms);
        }
        assert_eq!(order, [0, 10, 20, 30]);
    }

    #[tokio::test]
    async fn abandoned_sleepers_do_not_matter() {
        let pacer = Pacer::start().unwrap();
        let soon = Instant::now() + Duration::from_millis(5);
        drop(tokio::spawn({
            let pacer = pacer.clone();
            async move { pacer.sleep_until(soon).await }
        }));
        let _ = tokio::time::timeout(Duration::ZERO, pacer.sleep_until(soon)).await;
        pacer.sleep_until(soon + Duration::from_millis(5)).await;
    }
}
