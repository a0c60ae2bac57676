//! Disconnected clients: nobody waits for their reads any more.
//!
//! Reads are known by what they wait for, not by their clients, and an index would cost something
//! with each read. So disconnected clients are gathered, and a few times a second all waiting reads
//! are looked through once, however many clients have disconnected. Their writes go on, unless they//! were queued here: they may be in the log already.

use std::collections::BTreeSet;

use leasehold_wire::Path;

use crate::handles::ClientHandle;
use crate::step::Step;
use crate::unavailable::client_disconnected;

/// Connections of clients that have ended.
#[derive(Clone, Debug, Default, Hash)]
pub struct DisconnectedClients(BTreeSet<u64>);

impl DisconnectedClients {
    /// A connection has ended, and no command of it follows.
    pub fn note(&mut self, connection: u64) {
        self.0.insert(connection);
    }

    /// Takes those that ended since the last time, if there are any.
    pub fn take(&mut self) -> Option<DisconnectedClients> {
        (!self.0.is_empty()).then(|| std::mem::take(self))
    }

    /// Whether this client has disconnected.
    pub(super) fn has(&self, client: ClientHandle) -> bool {
        self.0.contains(&client.connection)
    }
}

/// Answers a request of a disconnected client. Every request is answered: the node keeps space for
/// the answer until then.
pub(super) fn reply_disconnected(step: &mut Step<'_>, client: ClientHandle) {
    step.reply(client, Path::Log, client_disconnected());
}
