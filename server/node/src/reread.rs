//! Files that are read again while the node runs.
//!
//! Another thread reads them: a file system may never answer. While files cannot be used,
//! the log says so, but not every second.

use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// Interval between looks at files.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time that a file system may take before the log says that it does not answer.
const LOOK_WITHIN: Duration = match cfg!(test) {
    true => Duration::from_millis(100),
    false => Duration::from_secs(5),
};
/// Interval at which the log repeats why files cannot be used.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Looks at files, each of which finds a `T`.
pub(super) struct Looks<T> {
    /// A look that has not ended.
    pending: Option<JoinHandle<T>>,
    /// Why the files cannot be used now, and when the log said so last.
    told: Option<(String, Instant)>,
}

impl<T> Default for Looks<T> {
    fn default() -> Self {
        Looks {
            pending: None,
            told: None,
        }
    }
}

impl<T: Send + 'static> Looks<T> {
    /// Returns the result of a look at the files. A look that has not ended is waited for
    /// instead of beginning another.
    ///
    /// # Errors
    /// The file system does not answer, so far.
    pub(super) async fn look(
        &mut self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let pending = self.pending.get_or_insert_with(|| spawn_blocking(look));
        let ended = timeout(LOOK_WITHIN, pending).await;
        let ended = ended.map_err(|_| "the file system does not answer".to_owned())?;
        self.pending = None;
        ended.map_err(|error| error.to_string())
    }

    /// Notes that the files can be used.
    pub(super) fn usable(&mut self) {
        self.told = None;
    }

    /// Notes why the files cannot be used. Returns whether the log should say it: the reason
    /// is new, or was told long ago.
    pub(super) fn unusable(&mut self, problem: &str) -> bool {
        let now = Instant::now();
        let recently =
            |(known, told): &(String, Instant)| known == problem && now - *told < TELL_EVERY;
        if self.told.as_ref().is_some_and(recently) {
            return false;
        }
        self.told = Some((problem.to_owned(), now));
        true
    }

    /// Whether the files cannot be used as they are.
    pub(super) fn are_unusable(&self) -> bool {
        self.told.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn a_file_system_that_does_not_answer_is_waited_for_and_told_once() {
        let mut looks = Looks::default();
        let (answer, answered) = channel();
        let hanging = looks.look(move || answered.recv().unwrap_or(0)).await;
        let problem = hanging.unwrap_err();
        assert_eq!(problem, "the file system does not answer");
        assert!(looks.unusable(&problem) && looks.are_unusable());
        let hanging = looks.look(|| panic!("one at a time")).await;
        assert!(!looks.unusable(&hanging.unwrap_err()));
        assert!(looks.unusable("another problem"));
        answer.send(7).unwrap();
        assert_eq!(looks.look(|| panic!("it has ended")).await, Ok(7));
        looks.usable();
        assert!(!looks.are_unusable() && looks.unusable(&problem));
        assert_eq!(looks.look(|| 8).await, Ok(8));
    }
}
