//! Use of tokens at the clients' port.

use std::rc::Rc;
use std::time::Instant;

use leasehold_wire::Error;
use leasehold_wire::request::Body;

use super::reload::Access;
use crate::front::connection::Connection;
use crate::front::listener::Clients;

impl Clients {
    /// Sets the table of tokens that clients need. If `access` is `None`, clients need no tokens.
    pub(crate) fn with_access(mut self, access: Option<Rc<Access>>) -> Clients {
        self.access = access;
        self
    }

    /// Keeps the rights of all connections up to date with the token file, for as long as the
    /// future is polled.
    pub(crate) async fn follow_tokens(self: Rc<Self>) {
        if let Some(access) = &self.access {
            access.clone().follow(|| self.renew_rights(access)).await;
        }
    }

    /// Closes the connections of clients that have lost their rights, and drops their unsent
    /// answers.
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

    /// Checks that the client of a connection may make a request with this body.
    ///
    /// # Errors
    /// Returns the errors of [`Access::check`].
    pub(crate) fn allow(&self, connection: &Connection, body: Option<&Body>) -> Result<(), Error> {
        match (&self.access, body) {
            (Some(access), Some(body)) => access.check(&connection.auth, body),
            _ => Ok(()),
        }
    }

    /// Returns the counters about tokens, by name. There are no counters if clients need no tokens.
    pub(crate) fn access_counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counters = self.access.as_ref().map(|access| access.counters());
        counters.into_iter().flatten()
    }
}
