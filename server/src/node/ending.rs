//! How long a node may take to end.
//!
//! It hands over, closes its directory, and what it had is dropped. None of the calls of a file
//! system that hangs returns, nor does the thread that made it: whoever waits for that thread
//! never ends. So another thread looks at the time, and ends the process when it is over.

use std::cell::RefCell;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// How long a node may take to hand over before it ends. By then it has, unless others are
/// down or cut off.
pub(super) const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// How long it may take to end, in all. To close the directory takes some ms, unless the disk
/// is slow.
const END_WITHIN: Duration = Duration::from_secs(5);
/// For the log, which another thread writes.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Ends the process some time after [`Ending::begin`], unless it is dropped before.
#[derive(Debug, Default)]
pub(super) struct Ending {
    watcher: RefCell<Option<Sender<()>>>,
}

impl Ending {
    /// The node was told to end.
    pub(super) fn begin(&self, node: &str) {
        let node = node.to_owned();
        self.watch(END_WITHIN, move || end_late(&node));
    }

    fn watch(&self, within: Duration, late: impl FnOnce() + Send + 'static) {
        let (watcher, ended) = channel::<()>();
        let watch = move || {
            if ended.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
                late();
            }
        };
        let thread = std::thread::Builder::new().name("ending".to_owned());
        match thread.spawn(watch) {
            Ok(_) => drop(self.watcher.replace(Some(watcher))),
            Err(error) => tracing::warn!(%error, "nobody looks how long it takes to end"),
        }
    }
}

/// By a signal that nothing delays: at an orderly exit destructors of RocksDB would wait for its
/// threads, which wait for the file system.
fn end_late(node: &str) {
    tracing::error!(
        node,
        after_s = END_WITHIN.as_secs(),
        "not ended in time, probably because the file system of its data hangs: the process ends \
         without closing the directory, with status 137 (SIGKILL). What was acknowledged is as safe \
         as after any kill; find out why the disk takes so long"
    );
    std::thread::sleep(LAST_WORDS);
    if let Err(error) = kill_process(getpid(), Signal::KILL) {
        tracing::error!(%error, "the process cannot end itself");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_ends_in_time_is_left_alone_and_who_does_not_is_ended() {
        let (report, reports) = channel();
        let ending = Ending::default();
        let told = report.clone();
        ending.watch(Duration::from_secs(3600), move || {
            told.send("early").unwrap()
        });
        drop(ending);
        let ending = Ending::default();
        ending.watch(Duration::from_millis(1), move || {
            report.send("late").unwrap()
        });
        assert_eq!(reports.recv(), Ok("late"));
        assert!(reports.recv().is_err(), "the other one is over");
    }
}
