//! Disconnected clients, which no longer wait for the answers to their reads.
//!
//! Waiting reads are indexed by the event that they wait for. An additional index by client would
//! make each read more expensive. So disconnected clients are collected. A few times a second, all
//! waiting reads are searched once, however many clients have disconnected. The writes of these
//! clients continue unless they are queued here, because they may be in the log already.

use std::collections::BTreeSet;

use leasehold_wire::Path;

use crate::handles::ClientHandle;
use crate::step::Step;
use crate::unavailable::client_disconnected;

/// Client connections that have ended.
#[derive(Clone, Debug, Default, Hash)]
pub struct DisconnectedClients(BTreeSet<u64>);

impl DisconnectedClients {
    /// Notes that a connection has ended. The replica receives no command of this connection
    /// afterwards.
    pub fn note(&mut self, connection: u64) {
        self.0.insert(connection);
    }

    /// Removes and returns the connections that have ended since the last call, if there are any.
    pub fn take(&mut self) -> Option<DisconnectedClients> {
        (!self.0.is_empty()).then(|| std::mem::take(self))
    }

    /// Whether this client has disconnected.
    pub(super) fn has(&self, client: ClientHandle) -> bool {
        self.0.contains(&client.connection)
    }
}

/// Answers a request of a disconnected client. Every request must be answered, because the node
/// reserves space for an answer until the request is answered.
pub(super) fn reply_disconnected(step: &mut Step<'_>, client: ClientHandle) {
    step.reply(client, Path::Log, client_disconnected());
}
