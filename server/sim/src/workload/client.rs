//! One client: its session, its lanes, and its knowledge of the keys.

use std::collections::BTreeSet;

use leasehold_wire::Command;
use leasehold_wire::command::Op;

use super::choose::SeenVersions;

/// Session of a client, with the same rules as sessions in the client library.
pub(super) struct ClientSession {
    id: u64,
    /// Log time in ms at the beginning of the session, before its first write. A replica told the
    /// client this log time.
    opened_ms: u64,
    /// Last sequence number that was issued. The first sequence number is 1.
    sequence: u64,
    /// Sequence numbers of the commands of this session that may still be sent again.
    open: BTreeSet<u64>,
}

impl ClientSession {
    /// Creates session `id`, opened at log time `opened_ms`.
    pub fn new(id: u64, opened_ms: u64) -> ClientSession {
        ClientSession {
            id,
            opened_ms,
            sequence: 0,
            open: BTreeSet::new(),
        }
    }

    /// Returns a command with operation `op`. A write gets the next sequence number of this
    /// session.
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
            // Every sequence below the first open one is settled.
            command.acked_below = self.open.first().copied().unwrap_or(self.sequence);
        }
        command
    }

    /// Whether the session is new. In a new session, no command is complete yet, so all commands
    /// may still be sent again.
    pub fn is_new(&self) -> bool {
        self.open.len() as u64 == self.sequence
    }

    /// Whether a command belongs to this session.
    pub fn issued(&self, command: &Command) -> bool {
        self.id == command.client
    }

    /// Marks a command as complete: it will not be sent again. Commands of earlier sessions are
    /// ignored.
    pub fn complete(&mut self, command: &Command) {
        if self.issued(command) {
            self.open.remove(&command.sequence);
        }
    }
}

/// A client: its connections, its session, its lanes, and its knowledge of the keys.
pub(super) struct Client {
    /// ID of the client's present connection. The client uses the same ID at all replicas. No other
    /// client uses this ID.
    pub connection: u64,
    /// Replicas to which the client has sent requests on the present connection.
    pub contacted: BTreeSet<usize>,
    /// Current session of the client. When a session has expired, the client begins a new one.
    pub session: ClientSession,
    /// Replica to which the client sends requests first.
    pub home: usize,
    /// Time before which the client sends nothing, in virtual ns.
    pub silent_until_ns: u64,
    /// Indexes of the client's free lanes.
    pub idle: Vec<usize>,
    /// Versions and values that the client has seen.
    pub seen: SeenVersions,
}
