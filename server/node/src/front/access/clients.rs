//! Tokens at the clients' port.

use std::rc::Rc;
use std::time::Instant;

use leasehold_wire::Error;
use leasehold_wire::request::Body;

use super::reload::Access;
use crate::front::connection::Connection;
use crate::front::listener::Clients;

impl Clients {
    /// Clients need tokens, if there is something to check them with.
    pub(crate) fn with_access(mut self, access: Option<Rc<Access>>) -> Clients {
        self.access = access;
        self
    }

    /// Keeps the rights of all connections as the file of tokens says, for as long as it is
    /// polled.
    pub(crate) async fn follow_tokens(self: Rc<Self>) {
        if let Some(access) = &self.access {
            access.clone().follow(|| self.renew_rights(access)).await;
        }
    }

    /// Closes the connections that have lost their rights, with whatever waits to be sent.
    fn renew_rights(&self, access: &Access) {
        for connection in self.connections.borrow().values() {
            if !access.renew(&connection.auth) {
                if let Some(untold) = self.budget.close_log.due(Instant::now()) {
                    let client = connection.address;
                    tracing::info!(%client, untold, "the connection is closed: its token was revoked, or has expired");
                }
                connection.outbox.abandon();
            }
        }
    }

    /// Checks that a connection may ask for this.
    ///
    /// # Errors
    /// As [`Access::check`].
    pub(crate) fn allow(&self, connection: &Connection, body: Option<&Body>) -> Result<(), Error> {
        match (&self.access, body) {
            (Some(access), Some(body)) => access.check(&connection.auth, body),
            _ => Ok(()),
        }
    }

    /// Counters about tokens, by name; none if clients need no tokens.
    pub(crate) fn access_counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counters = self.access.as_ref().map(|access| access.counters());
        counters.into_iter().flatten()
    }
}
