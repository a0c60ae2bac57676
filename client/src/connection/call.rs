//! A call: one request, and a caller that waits for the answer.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{CallError, Connection};
use leasehold_wire::Response;

/// One copy of a request. This copy is in the connection's table of calls only while the caller
/// waits for the answer.
pub(crate) struct Call<'a> {
    pub(super) connection: &'a Connection,
    pub(super) id: u64,
    pub(super) reply: oneshot::Receiver<Result<Response, CallError>>,
    pub(super) sent: &'a AtomicBool,
    /// True if the request has certainly not been sent.
    pub(super) never_left: bool,
    pub requested_at: Instant,
}

impl Call<'_> {
    /// Returns true if the request was sent on the present connection.
    pub fn is_under_way(&self) -> bool {
        let table = self.connection.table();
        table.calls.contains_key(&self.id) && self.id < table.unsent_from
    }
}

impl Future for Call<'_> {
    type Output = Result<Response, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.reply).poll(context).map(|received| {
            let result = received.unwrap_or(Err(CallError::Closed));
            self.never_left = matches!(
                result,
                Err(CallError::Unreachable(_) | CallError::Refused(_))
            );
            result
        })
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut table = self.connection.table();
        let waited = table.calls.remove(&self.id).is_some();
        let unsent = waited && self.id >= table.unsent_from;
        let emptied = waited && table.calls.is_empty();
        drop(table);
        if !unsent && !self.never_left {
            self.sent.store(true, Ordering::Relaxed);
        }
        if emptied {
            self.connection.emptied.notify_one();
        }
    }
}
