//! A flag that stops a run from outside, for example on Ctrl-C, or because the caller has enough
//! results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A flag that is shared by all clones of this value. Once raised, the flag stays raised.
#[derive(Clone, Debug, Default)]
pub struct CancellationToken(Arc<Flag>);

#[derive(Debug, Default)]
struct Flag {
    raised: AtomicBool,
    changed: Notify,
}

impl CancellationToken {
    /// Returns a flag that is not raised.
    pub fn new() -> Self {
        CancellationToken::default()
    }

    /// Raises the flag.
    pub fn cancel(&self) {
        self.0.raised.store(true, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }

    /// Returns true if the flag is raised. A call costs only one load from memory.
    pub fn is_cancelled(&self) -> bool {
        self.0.raised.load(Ordering::SeqCst)
    }

    /// Waits until the flag is raised.
    pub async fn cancelled(&self) {
        let changed = self.0.changed.notified();
        tokio::pin!(changed);
        // From here on the notification is not missed, so the flag is read afterwards.
        changed.as_mut().enable();
        if !self.is_cancelled() {
            changed.await;
        }
    }
}
