//! Estimates of the processor time that a request takes at a replica. All queues and event-loop
//! iterations use these units.
//!
//! Limits on queues and iterations are in these units only. A limit in bytes would be wrong for a
//! thousand keys of one byte, and a limit in entries would be wrong for one value of a mebibyte. A
//! *unit* is the time that a replica takes for one byte of a large put. That is 6.6 ns on the
//! machine of `results/charges`, where `benchmarks/charges.sh` compares these figures with measured
//! processor time.
//!
//! The module `replica::size_estimate` does something else: it estimates bytes in memory, in
//! messages and on disk.

use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::{Command, LeaseRequest, Outcome, Path, StatusRequest, Txn, outcome};

use crate::message::{Message, Proposal, Value};
use crate::size_estimate::command_size_estimate;

#[cfg(test)]
mod tests;

/// Fixed cost, in units of [`crate::cost`], of a request that is answered without the log. The cost
/// of the request's content is added to this fixed cost.
const READ: usize = 300;
/// Cost, in units of [`crate::cost`], of a read that another replica answers or confirms. The units
/// cover the message to that replica and the answer of that replica.
const PASSED_ON: usize = 1000;
/// Cost, in units of [`crate::cost`], of a command that goes through the log. The units cover the
/// messages, the sync and the answer.
const LOGGED: usize = 2000;
/// Cost, in units of [`crate::cost`], of a command in a batch, without the command's content.
const BATCHED: usize = 128;
/// Cost, in units of [`crate::cost`], of a key that is written. The units cover marking, storing,
/// unmarking and checkpointing the key.
const WRITTEN: usize = 400;
/// Cost, in units of [`crate::cost`], of a field that is merged into a record.
const MERGED: usize = 70;
/// Cost, in units of [`crate::cost`], of a key that is looked up, whether or not it is found.
const LOOKED_UP: usize = 60;
/// Cost, in units of [`crate::cost`], of an entry that a scan walks over.
const SCANNED: usize = 25;
/// Number of bytes that are decoded, compared, copied or encoded in the time of one unit of
/// [`crate::cost`]. Bytes that are written take longer.
const PASSED_BYTES: usize = 16;

/// Cost, in units of [`crate::cost`], of a refusal, which is sent in a message of its own.
const REFUSED: usize = 300;
/// Cost, in units of [`crate::cost`], of a status without its optional parts. The units cover the
/// counters and the state of each peer.
const STATUS: usize = 1600;
/// Cost, in units of [`crate::cost`], of each key range in a status that describes leases.
const RANGE: usize = 60;
/// Cost, in units of [`crate::cost`], of a report of demand in a status. This cost does not include
/// the cost of the keys in the report. The report compares the costs of all possible holders.
const DEMAND: usize = 4500;
/// Cost, in units of [`crate::cost`], of each key in a status that reports demand.
const IN_DEMAND: usize = 5;
/// Cost, in units of [`crate::cost`], of a request to change leases, if the request changes
/// nothing.
const LEASE: usize = 3000;
/// Cost, in units of [`crate::cost`], of a change of leases. The units cover a configuration and
/// the promises under it.
const CONFIGURATION: usize = 60_000;

/// Cost of a request, split by the kinds of work that the request causes at a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Cost, in units, of receiving, passing on and answering the request. It does not depend on
    /// the request's content.
    pub handling: usize,
    /// Number of keys that are written.
    pub written: usize,
    /// Number of fields that are merged.
    pub merged: usize,
    /// Number of keys that are looked up.
    pub lookups: usize,
    /// Number of entries that a scan walks over.
    pub scanned: usize,
    /// Number of bytes of the keys and values that are written.
    pub bytes_written: usize,
    /// Number of bytes that are only received or sent: names of keys that are read, and answers.
    pub bytes_passed: usize,
}

/// A request, and the facts about the replica's state that determine the cost of the request.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// A command of a client. A read is charged as if this replica answered it.
    Command(&'a Command),
    /// A read of a client, and the path that it takes.
    Read(&'a Command, Path),
    /// A question about the state of a replica.
    Status(&'a StatusRequest, Sizes),
    /// A request to move leadership.
    Move,
    /// A request to change leases.
    Lease {
        /// The request.
        request: &'a LeaseRequest,
        /// Sizes of the state from which the answer is made.
        sizes: Sizes,
        /// Whether the request changes anything: some part of it is not in force yet.
        changes: bool,
    },
    /// A request that is refused before it reaches the replica, with its number of bytes.
    Refused(usize),
}

/// Sizes of parts of a replica's state. The cost of operators' requests depends on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Number of key ranges with a strategy of their own.
    pub ranges: usize,
    /// Total size, in bytes, of the first keys of all ranges.
    pub starts_bytes: usize,
    /// Number of keys with known demand.
    pub demand_keys: usize,
}

impl Cost {
    /// Returns the cost of the whole request, in units of [`crate::cost`].
    pub const fn units(self) -> usize {
        self.handling + self.executing()
    }

    /// Returns the cost, in units of [`crate::cost`], that the request adds to its batch, slot or
    /// group of inputs. The fixed cost of the batch, slot or group is not included.
    pub const fn executing(self) -> usize {
        self.written * WRITTEN
            + self.merged * MERGED
            + self.lookups * LOOKED_UP
            + self.scanned * SCANNED
            + self.bytes_written
            + self.bytes_passed / PASSED_BYTES
    }

    /// Returns the cost of the same request if its answer has `bytes` bytes and `entries` entries.
    /// The cost of a scan then covers at most `entries` entries.
    pub fn and_answering(self, bytes: usize, entries: usize) -> Cost {
        Cost {
            scanned: self.scanned.min(entries),
            ..self.and_passing(bytes)
        }
    }

    /// Returns the cost of the same request if `bytes` further bytes are received or sent because
    /// of the request.
    pub const fn and_passing(self, bytes: usize) -> Cost {
        Cost {
            bytes_passed: self.bytes_passed + bytes,
            ..self
        }
    }

    /// Returns the number of keys, fields and entries that the request names or reads.
    pub const fn parts(self) -> usize {
        self.written + self.merged + self.lookups + self.scanned
    }
}

/// Returns the cost of a request. If the length of its answer is not known in advance, the answer
/// is assumed to be empty; [`Cost::and_answering`] adds it later.
pub fn of(request: Request<'_>) -> Cost {
    match request {
        Request::Command(command) => of_command(command),
        Request::Read(command, path) => Cost {
            handling: of_path(path),
            ..of_command(command)
        },
        Request::Status(request, sizes) => of_status(request, sizes),
        Request::Move => of_status(&StatusRequest::default(), Sizes::default()),
        Request::Lease {
            request,
            sizes,
            changes,
        } => of_lease(request, sizes, changes),
        Request::Refused(bytes) => Cost {
            handling: REFUSED,
            bytes_passed: bytes,
            ..NOTHING
        },
    }
}

/// Returns the cost of the body of a request. A cost that depends on the state of a replica is not
/// included.
pub fn of_body(body: &Body) -> Cost {
    let sizes = Sizes::default();
    of(match body {
        Body::Command(command) => Request::Command(command),
        Body::Status(request) => Request::Status(request, sizes),
        Body::Move(_) => Request::Move,
        Body::Lease(request) => Request::Lease {
            request,
            sizes,
            changes: false,
        },
    })
}

const NOTHING: Cost = Cost {
    handling: 0,
    written: 0,
    merged: 0,
    lookups: 0,
    scanned: 0,
    bytes_written: 0,
    bytes_passed: 0,
};

const fn of_path(path: Path) -> usize {
    match path {
        Path::Unspecified | Path::Local | Path::Held => READ,
        Path::Forwarded | Path::ReadIndex => PASSED_ON,
        Path::Log => LOGGED,
    }
}

fn of_command(command: &Command) -> Cost {
    let bytes = command_size_estimate(command);
    let read = Cost {
        handling: READ,
        bytes_passed: bytes,
        ..NOTHING
    };
    let write = |written| Cost {
        handling: LOGGED,
        written,
        bytes_written: bytes,
        ..NOTHING
    };
    match &command.op {
        Some(Op::Get(_)) => Cost { lookups: 1, ..read },
        Some(Op::MultiGet(get)) => Cost {
            lookups: get.keys.len(),
            ..read
        },
        Some(Op::Scan(scan)) => Cost {
            scanned: scan.limit as usize,
            ..read
        },
        Some(Op::Put(_) | Op::Delete(_) | Op::Cas(_)) => write(1),
        Some(Op::PutFields(put)) => Cost {
            merged: put.fields.len(),
            ..write(1)
        },
        Some(Op::MultiPut(put)) => write(put.entries.len()),
        Some(Op::Txn(txn)) => of_txn(txn, bytes),
        None => read,
    }
}

/// Returns the cost of a transaction. Both lists count, because it is not known which of them will be
/// executed.
fn of_txn(txn: &Txn, bytes: usize) -> Cost {
    let (writes, reads): (Vec<_>, Vec<_>) = txn.operations().partition(|it| it.is_write());
    Cost {
        handling: LOGGED,
        written: writes.len(),
        merged: writes.iter().map(|it| it.parts() - 1).sum(),
        lookups: txn.comparisons.len() + reads.len(),
        bytes_written: bytes,
        ..NOTHING
    }
}

fn of_status(request: &StatusRequest, sizes: Sizes) -> Cost {
    let described = if request.leases {
        sizes
    } else {
        Sizes::default()
    };
    let demand = if request.demand {
        DEMAND + sizes.demand_keys * IN_DEMAND
    } else {
        0
    };
    Cost {
        handling: STATUS + described.ranges * RANGE + demand,
        lookups: usize::from(request.holders),
        // Each first key is sent twice: as the start of its range and as the end of the range
        // before it.
        bytes_passed: request.key.len() + 2 * described.starts_bytes,
        ..NOTHING
    }
}

/// Returns the cost of a request to change leases. The request is compared with each key range, and
/// the answer lists all ranges.
fn of_lease(request: &LeaseRequest, sizes: Sizes, changes: bool) -> Cost {
    let answer = StatusRequest {
        leases: true,
        ..StatusRequest::default()
    };
    let cost = of_status(&answer, sizes);
    let change = if changes { CONFIGURATION } else { 0 };
    Cost {
        handling: cost.handling + sizes.ranges * RANGE + LEASE + change,
        ..cost
    }
    .and_passing(request.from.len() + request.to.len())
}

/// Returns the cost of executing a command with this outcome, in units of [`crate::cost`]. The cost
/// of a scan covers the entries that the scan found.
pub fn executed(command: &Command, outcome: &Outcome) -> usize {
    let cost = of_command(command);
    let found = match &outcome.result {
        Some(outcome::Result::Entries(found)) => found.entries.len(),
        _ => cost.scanned,
    };
    let cost = Cost {
        scanned: cost.scanned.min(found),
        ..cost
    };
    BATCHED + cost.executing()
}

/// Returns the cost of executing a value of the log, in units of [`crate::cost`].
pub fn executing(value: &Value) -> usize {
    let commands = value.commands().iter();
    let units = commands.map(|proposed| BATCHED + of_command(&proposed.command).executing());
    units.sum()
}

/// Returns the size, in entries, of the scan that takes as long to execute as `command`.
pub fn scanned_instead(command: &Command) -> usize {
    of_command(command).executing().div_ceil(SCANNED)
}

/// Returns the cost of handling a peer's message of `bytes` bytes, in units of [`crate::cost`].
pub fn of_message(message: &Message, bytes: usize) -> usize {
    let of_proposed = |commands: &[Proposal]| {
        let commands = commands.iter();
        commands.map(|it| of_batched(&it.command)).sum::<usize>()
    };
    let parts = match message {
        Message::Accept(accept) => of_proposed(accept.value.commands()),
        Message::Forward { commands } => commands.iter().map(|(_, it)| of_batched(it)).sum(),
        Message::Prepared { entries, .. } => {
            let values = entries.iter().map(|it| of_proposed(it.value.commands()));
            values.sum()
        }
        Message::Fetched { entries, .. } => {
            let values = entries.iter().map(|(_, it)| of_proposed(it.commands()));
            values.sum()
        }
        Message::ForwardRead { reads, .. } => reads.len() * (BATCHED + LOOKED_UP),
        Message::ReadAnswers(answers) => answers.len() * BATCHED,
        Message::Answered { answers } => answers.len() * BATCHED,
        Message::Accepted { votes, .. } => votes.len() * BATCHED,
        Message::Demand(demand) => demand.report.deltas.len() * LOOKED_UP,
        Message::SetLease { .. } => CONFIGURATION,
        Message::Lease(_)
        | Message::Ping { .. }
        | Message::Pong { .. }
        | Message::Join { .. }
        | Message::Joined { .. }
        | Message::PreVote { .. }
        | Message::PreVoted { .. }
        | Message::Prepare { .. }
        | Message::Rejected { .. }
        | Message::Heartbeat { .. }
        | Message::HeartbeatAck { .. }
        | Message::Fetch { .. }
        | Message::TransferRequest
        | Message::Transfer { .. }
        | Message::Move { .. }
        | Message::LeaseAnswer { .. } => 0,
    };
    bytes + parts
}

/// Returns the cost of a command in a peer's message, in units of [`crate::cost`]. The cost of the
/// command's bytes is not included.
fn of_batched(command: &Command) -> usize {
    let cost = Cost {
        bytes_written: 0,
        bytes_passed: 0,
        ..of_command(command)
    };
    BATCHED + cost.executing()
}

/// Number of units of [`Cost`] that take as long as one unit of [`merging`].
pub const MERGING: usize = 2;
/// Work, in units of merging, for each field of a record into which fields are merged.
const FIELD: usize = 1;
/// Number of bytes of a record that are copied in the time of one unit of merging.
const COPIED_BYTES: usize = 128;
/// Number of bytes of new memory that the operating system clears in the time of one unit of
/// merging.
const CLEARED_BYTES: usize = 16;
/// Minimum length in bytes of a value for which the operating system must provide new memory.
/// Shorter values reuse memory of the process.
const CLEARED_FROM_BYTES: usize = 32 << 10;

/// Returns the work of merging fields into a record of `fields` fields and `bytes` bytes, in units
/// of merging. One unit of merging takes as long as [`MERGING`] units of [`Cost`].
pub const fn merging(fields: usize, bytes: usize) -> usize {
    fields * FIELD + bytes / COPIED_BYTES
}

/// Returns the work of writing a value of `bytes` bytes into memory that must be allocated first,
/// in units of merging.
pub const fn clearing(bytes: usize) -> usize {
    if bytes < CLEARED_FROM_BYTES {
        0
    } else {
        bytes / CLEARED_BYTES
    }
}
