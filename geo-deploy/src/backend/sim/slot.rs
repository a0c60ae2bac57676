//! Client of a simulated run, with its operation in flight.

use leasehold_wire::{Command, command::Op};
use leasehold_ycsb::sample::OpKind;

use crate::backend::load::{HistoryProcess, KeyRequest};
use crate::backend::{key_name, value};

/// A client, and its operation in flight if there is one.
pub(super) struct ClientSlot {
    pub(super) process: HistoryProcess,
    /// Time at which the client's session began, in ms of the replicated clock.
    opened_ms: u64,
    sequence: u64,
    /// Number of attempts so far, over all operations of the client. This count is also the ID of
    /// the latest attempt.
    pub(super) attempts: u64,
    /// Number of operations of the client that have ended.
    pub(super) ended: u64,
    pub(super) operation: Option<Operation>,
}

/// An operation in flight.
pub(super) struct Operation {
    pub(super) request: KeyRequest,
    pub(super) due_ns: u64,
    pub(super) sent_ns: u64,
    pub(super) command: Command,
    /// ID of the operation's first attempt.
    pub(super) first: u64,
    /// Replica to which each attempt of the operation was sent, in order of the attempts.
    pub(super) targets: Vec<usize>,
    /// Replicas that may still answer one of the operation's attempts.
    pub(super) open: Vec<usize>,
}

impl ClientSlot {
    /// Creates the client `process`. Its session began at `opened_ms` of the replicated clock.
    pub(super) fn new(process: HistoryProcess, opened_ms: u64) -> ClientSlot {
        ClientSlot {
            process,
            opened_ms,
            sequence: 0,
            attempts: 0,
            ended: 0,
            operation: None,
        }
    }

    /// Returns a command for `request`. The command is the next one of the client's session.
    pub(super) fn command(&mut self, request: KeyRequest) -> Command {
        if request.kind == OpKind::Read {
            return Op::get(key_name(request.key)).into();
        }
        self.sequence += 1;
        let op = Op::put(key_name(request.key), value(request.value, 8));
        let session = u64::from(self.process.id) + 1;
        Command::session(session, self.sequence, self.sequence, op).opened(self.opened_ms)
    }

    /// Returns the replica to which an attempt of the operation in flight was sent; `None` if the
    /// attempt belongs to another operation.
    pub(super) fn target(&self, attempt: u64) -> Option<usize> {
        let operation = self.operation.as_ref()?;
        let index = attempt.checked_sub(operation.first)?;
        operation.targets.get(index as usize).copied()
    }
}
