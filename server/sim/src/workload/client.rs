//! One client: its session, its lanes, and what it has seen.

use std::collections::BTreeSet;

use leasehold_wire::Command;
use leasehold_wire::command::Op;

use super::choose::SeenVersions;

/// A client's session, as the library keeps it.
pub(super) struct ClientSession {
    id: u64,
    /// A log time that was told before the session's first write, in ms.
    opened_ms: u64,
    /// The newest sequence that was issued; the first is 1.
    sequence: u64,
    /// Sequences of the session that are not settled.
    open: BTreeSet<u64>,
}

impl ClientSession {
    /// The session `id`, opened at a log time.
    pub fn new(id: u64, opened_ms: u64) -> ClientSession {
        ClientSession {
            id,
            opened_ms,
            sequence: 0,
            open: BTreeSet::new(),
        }
    }

    /// A command that asks `op`, which has an identity if it writes.
    pub fn issue(&mut self, op: Op) -> Command {
        let mut command = Command {
            op: Some(op),
            ..Command::default()
        };
        if command.is_write() {
            self.sequence += 1;
            self.open.insert(self.sequence);
            command.client = self.id;
            command.sequence = self.sequence;
            command.opened_ms = self.opened_ms;
            // Every sequence below is settled.
            command.acked_below = self.open.first().copied().unwrap_or(self.sequence);
        }
        command
    }

    /// Whether it is as its client began it: nothing of it is settled.
    pub fn is_new(&self) -> bool {
        self.open.len() as u64 == self.sequence
    }

    /// Whether a command is of this session.
    pub fn issued(&self, command: &Command) -> bool {
        self.id == command.client
    }

    /// A command will not be sent again. Those of an earlier session are nothing to this one.
    pub fn complete(&mut self, command: &Command) {
        if self.issued(command) {
            self.open.remove(&command.sequence);
        }
    }
}

/// A client: its connections, its session, its lanes, and what it has seen.
pub(super) struct Client {
    /// Its connections, to all replicas. No other has this number.
    pub connection: u64,
    /// The replicas that it has asked on it.
    pub contacted: BTreeSet<usize>,
    /// A new one after the old has expired.
    pub session: ClientSession,
    /// The replica that it asks first.
    pub home: usize,
    /// It asks nothing before this, in virtual ns.
    pub silent_until_ns: u64,
    /// Lanes without an operation under way.
    pub idle: Vec<usize>,
    /// Knowledge that it has of the keys.
    pub seen: SeenVersions,
}
