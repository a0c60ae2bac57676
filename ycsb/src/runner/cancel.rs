//! A flag that stops a run from outside: Ctrl-C, or a caller that has seen enough.

use std::sync::Arc;

use tokio::sync::watch;

/// Clones are the same flag; once raised it stays so.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Cancel {
    /// A flag that is not raised.
    pub fn new() -> Self {
        Cancel(Arc::new(watch::Sender::new(false)))
    }

    /// Raises it.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Whether it is raised.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once it is raised.
    pub async fn cancelled(&self) {
        // This flag holds the sender: waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|raised| *raised).await;
    }
}

impl Default for Cancel {
    fn default() -> Self {
        Cancel::new()
    }
}
