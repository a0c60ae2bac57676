//! One measured operation. Every report is made from such samples: percentiles and shares are
//! computed from them, never from other percentiles.

use leasehold_wire::Path;

/// Kind of an operation of the workload, by YCSB's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// Reads one record.
    Read,
    /// Writes all fields of a record, or one of them.
    Update,
    /// Writes a new record.
    Insert,
    /// Reads records in key order.
    Scan,
    /// Reads a record, then writes it.
    ReadModifyWrite,
    /// Reads a record and writes other records at one moment, if the first record exists.
    Txn,
}

/// Outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpOutcome {
    /// The operation was answered.
    Ok,
    /// The operation was answered with an error.
    Failed,
    /// The operation was not answered in time; a write may have taken effect.
    TimedOut,
}

/// One measured operation.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Index of the client's site in the topology.
    pub site: u8,
    /// Kind of the operation.
    pub kind: OpKind,
    /// Path on which the operation was served; `Unspecified` if it failed.
    pub path: Path,
    /// Outcome of the operation.
    pub end: OpOutcome,
    /// Start of the operation, in ns since the run began (virtual time in the simulator).
    pub start_ns: u64,
    /// Time from the start to the answer, in ns.
    pub latency_ns: u64,
}
