//! Tokens at the clients' port.

use std::rc::Rc;
use std::time::Instant;

use client::wire::Error;
use client::wire::request::Body;

use super::reload::Access;
use crate::node::connection::Connection;
use crate::node::listener::Clients;

impl Clients {
    /// Clients need tokens, if there is something to check them with.
    pub(in crate::node) fn with_access(mut self, access: Option<Rc<Access>>) -> Clients {
        self.access = access;
        self
    }

    /// Keeps the rights of all connections as the file of tokens says, for as long as it is
    /// polled.
    pub(in crate::node) async fn follow_tokens(self: Rc<Self>) {
        if let Some(access) = &self.access {
            access.clone().follow(|| self.renew_rights(access)).await;
        }
    }

    /// Closes the connections that have lost their rights, with whatever waits to be sent.
    fn renew_rights(&self, access: &Access) {
        for connection in self.connections.borrow().values() {
            if !access.renew(&connection.pass) {
                if let Some(untold) = self.budget.closed.due(Instant::now()) {
                    let client = connection.address;
                    tracing::info!(%client, untold, "closed: its token was revoked, or has expired");
                }
                connection.outbox.abandon();
            }
        }
    }

    /// Whether a connection may ask for this.
    ///
    /// # Errors
    /// As [`Access::check`].
    pub(in crate::node) fn allow(
        &self,
        connection: &Connection,
        body: Option<&Body>,
    ) -> Result<(), Error> {
        match (&self.access, body) {
            (Some(access), Some(body)) => access.check(&connection.pass, body),
            _ => Ok(()),
        }
    }

    /// What became of tokens, by name; nothing if clients need none.
    pub(in crate::node) fn access_counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counters = self.access.as_ref().map(|access| access.counters());
        counters.into_iter().flatten()
    }
}
