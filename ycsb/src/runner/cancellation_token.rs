//! A flag that stops a run from outside: Ctrl-C, or a caller that has seen enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Clones are the same flag; once raised it stays so.
#[derive(Clone, Debug, Default)]
pub struct CancellationToken(Arc<Flag>);

#[derive(Debug, Default)]
struct Flag {
    raised: AtomicBool,
    changed: Notify,
}

impl CancellationToken {
    /// A flag that is not raised.
    pub fn new() -> Self {
        CancellationToken::default()
    }

    /// Raises it.
    pub fn cancel(&self) {
        self.0.raised.store(true, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }

    /// Whether it is raised. Every operation asks this: it is one load.
    pub fn is_cancelled(&self) -> bool {
        self.0.raised.load(Ordering::SeqCst)
    }

    /// Returns once it is raised.
    pub async fn cancelled(&self) {
        let changed = self.0.changed.notified();
        tokio::pin!(changed);
        // From here on it is told, so the flag is looked at afterwards.
        changed.as_mut().enable();
        if !self.is_cancelled() {
            changed.await;
        }
    }
}
