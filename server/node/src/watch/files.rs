//! Files that are read again while the node runs.
//!
//! Another thread reads the files, because a file system may never answer. While the files cannot
//! be used, the log repeats the problem, but not every second.

use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// Interval between checks of files.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time to wait for an answer from the file system. After this time, the log reports that
/// the answer is missing.
const CHECK_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_millis(100)
} else {
    Duration::from_secs(5)
};
/// Interval at which the log repeats the reason why files cannot be used.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Watcher that reads files again and again. Each check returns a `T`.
pub(crate) struct FileWatcher<T> {
    /// Check that is still running; `None` if there is none.
    pending: Option<JoinHandle<T>>,
    /// Reason why the files cannot be used now, and the time at which the reason was last logged.
    last_report: Option<(String, Instant)>,
}

impl<T> Default for FileWatcher<T> {
    fn default() -> Self {
        FileWatcher {
            pending: None,
            last_report: None,
        }
    }
}

impl<T: Send + 'static> FileWatcher<T> {
    /// Checks the files and returns the result. If an earlier check is still running, waits for its
    /// result instead.
    ///
    /// # Errors
    /// Fails if the file system has not answered for a while.
    pub(crate) async fn check(
        &mut self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let pending = self.pending.get_or_insert_with(|| spawn_blocking(read));
        let ended = timeout(CHECK_TIMEOUT, pending).await;
        let ended = ended.map_err(|_| "the file system does not answer".to_owned())?;
        self.pending = None;
        ended.map_err(|error| error.to_string())
    }

    /// Notes that the files can be used.
    pub(crate) fn mark_usable(&mut self) {
        self.last_report = None;
    }

    /// Notes the reason why the files cannot be used. Returns true if the reason should be logged:
    /// it is new, or it was last logged long ago.
    pub(crate) fn mark_unusable(&mut self, problem: &str) -> bool {
        let now = Instant::now();
        let recently =
            |(known, told): &(String, Instant)| known == problem && now - *told < LOG_INTERVAL;
        if self.last_report.as_ref().is_some_and(recently) {
            return false;
        }
        self.last_report = Some((problem.to_owned(), now));
        true
    }

    /// Whether the files cannot be used in their current state.
    pub(crate) fn is_unusable(&self) -> bool {
        self.last_report.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn a_file_system_that_does_not_answer_is_waited_for_and_told_once() {
        let mut watcher = FileWatcher::default();
        let (answer, answered) = channel();
        let hanging = watcher.check(move || answered.recv().unwrap_or(0)).await;
        let problem = hanging.unwrap_err();
        assert_eq!(problem, "the file system does not answer");
        assert!(watcher.mark_unusable(&problem) && watcher.is_unusable());
        let hanging = watcher.check(|| panic!("one at a time")).await;
        assert!(!watcher.mark_unusable(&hanging.unwrap_err()));
        assert!(watcher.mark_unusable("another problem"));
        answer.send(7).unwrap();
        assert_eq!(watcher.check(|| panic!("it has ended")).await, Ok(7));
        watcher.mark_usable();
        assert!(!watcher.is_unusable() && watcher.mark_unusable(&problem));
        assert_eq!(watcher.check(|| 8).await, Ok(8));
    }
}
