//! The end of a node: the order to end, and the maximum time that the end may take.
//!
//! From the start of the process, a separate thread waits for the order to end. There are two
//! reasons: process 1 of a container ignores signals without a handler, and the replica's thread
//! may be busy with opening a large directory. After the order, the node transfers leadership,
//! closes its directory, and drops its resources. If a file system hangs, no call to it returns.
//! Then the thread that made the call never ends, and a thread that joins it does not end either.
//! So the separate thread measures the time, and ends the process when the maximum is exceeded.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use tokio::runtime::Builder;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

/// Maximum time for a leadership transfer before the node ends. A transfer needs this time only if
/// other nodes are down or cannot be reached.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum total time for a node to end. Usually, the directory is closed within some ms. This
/// takes longer only on a slow disk.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for another thread to write the last lines of the log.
const LOG_FLUSH_TIME: Duration = Duration::from_millis(200);

/// Watchdog for the end of a node. The watchdog is dropped when the node has ended.
#[derive(Debug)]
pub(crate) struct ShutdownWatchdog {
    /// Sender of a channel. Dropping the sender ends the watchdog's thread.
    _running: oneshot::Sender<()>,
    /// Notification that the node ends because it has failed.
    failed: Arc<Notify>,
}

/// Receiver that completes when the node must end.
pub(crate) type ShutdownSignal = oneshot::Receiver<()>;

impl ShutdownWatchdog {
    /// Starts to wait for `shutdown`, which usually waits for signals. After this function has
    /// returned, no signal is missed. Ends the process if the node is still running 5 s after
    /// `shutdown` has completed, or 5 s after [`note_failure`](Self::note_failure) was called.
    ///
    /// # Errors
    /// Fails if the system cannot start a thread or refuses to handle signals.
    pub(crate) fn watch<F: Future<Output = ()> + Send + 'static>(
        node: &str,
        shutdown: impl FnOnce() -> io::Result<F>,
    ) -> io::Result<(ShutdownWatchdog, ShutdownSignal)> {
        let node = node.to_owned();
        ShutdownWatchdog::watch_for(shutdown, END_TIMEOUT, move || force_exit(&node))
    }

    fn watch_for<F: Future<Output = ()> + Send + 'static>(
        shutdown: impl FnOnce() -> io::Result<F>,
        within: Duration,
        late: impl FnOnce() + Send + 'static,
    ) -> io::Result<(ShutdownWatchdog, ShutdownSignal)> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let shutdown = {
            let _inside = runtime.enter();
            shutdown()?
        };
        let (running, mut ended) = oneshot::channel::<()>();
        let (give, stop_signal) = oneshot::channel();
        let failed = Arc::new(Notify::new());
        let has_failed = failed.clone();
        let watch = async move {
            tokio::select! {
                () = shutdown => {
                    tracing::info!("the node was told to end");
                    // The node may be ending already.
                    let _ = give.send(());
                }
                () = has_failed.notified() => {}
                _ = &mut ended => return,
            }
            if timeout(within, ended).await.is_err() {
                late();
            }
        };
        let thread = std::thread::Builder::new().name("ending".to_owned());
        thread.spawn(move || runtime.block_on(watch))?;
        let _running = running;
        Ok((ShutdownWatchdog { _running, failed }, stop_signal))
    }

    /// Starts the timeout after which the process is killed. A node that has failed calls this
    /// before it ends.
    pub(crate) fn note_failure(&self) {
        self.failed.notify_one();
    }
}

/// Ends the process by a signal, which takes effect without delay. An orderly exit would run
/// destructors of RocksDB. These destructors wait for RocksDB's threads, and RocksDB's threads wait
/// for the file system.
fn force_exit(node: &str) {
    tracing::error!(
        node,
        after_s = END_TIMEOUT.as_secs(),
        "the process has not ended in time, probably because the file system of its data hangs: \
         it is killed without closing the directory, with status 137 (SIGKILL). What was \
         acknowledged is as safe as after any kill; find out why the disk takes so long"
    );
    std::thread::sleep(LOG_FLUSH_TIME);
    if let Err(error) = kill_process(getpid(), Signal::KILL) {
        tracing::error!(%error, "the process cannot end itself");
    }
    // Process 1 of a container ignores its own signals, so a fault ends it.
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_node_that_ends_in_time_is_left_alone_and_one_that_does_not_is_ended() {
        let (report, reports) = channel();
        let told = || Ok(ready(()));
        let early = report.clone();
        let late = move || early.send("early").unwrap();
        let (ending, stop_signal) =
            ShutdownWatchdog::watch_for(told, Duration::from_secs(3600), late).unwrap();
        stop_signal.blocking_recv().unwrap();
        drop(ending);
        let late = move || report.send("late").unwrap();
        let (_ending, stop_signal) =
            ShutdownWatchdog::watch_for(told, Duration::from_millis(1), late).unwrap();
        stop_signal.blocking_recv().unwrap();
        assert_eq!(reports.recv(), Ok("late"));
        assert!(reports.recv().is_err(), "the other one is over");
    }

    #[test]
    fn a_node_that_has_failed_and_does_not_end_is_ended() {
        let (report, reports) = channel();
        let late = move || report.send("late").unwrap();
        let never = || Ok(pending());
        let (watchdog, _stop_signal) =
            ShutdownWatchdog::watch_for(never, Duration::from_millis(1), late).unwrap();
        watchdog.note_failure();
        assert_eq!(reports.recv(), Ok("late"));
    }

    #[test]
    fn a_node_that_ends_by_itself_is_told_nothing() {
        let (ending, stop_signal) =
            ShutdownWatchdog::watch_for(|| Ok(pending()), Duration::ZERO, || panic!("late"))
                .unwrap();
        drop(ending);
        assert!(stop_signal.blocking_recv().is_err());
    }
}
