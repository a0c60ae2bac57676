//! Names in reports. If YCSB has a name for the same thing, that name is used.

use leasehold_wire::Path;

use crate::sample::{OpKind, OpOutcome};

/// Returns YCSB's name of an operation.
pub fn kind_name(kind: OpKind) -> &'static str {
    match kind {
        OpKind::Read => "READ",
        OpKind::Update => "UPDATE",
        OpKind::Insert => "INSERT",
        OpKind::Scan => "SCAN",
        OpKind::ReadModifyWrite => "READ-MODIFY-WRITE",
        OpKind::Txn => "TXN",
    }
}

/// Returns the name of a path on which an operation was served.
pub fn path_name(path: Path) -> &'static str {
    match path {
        Path::Unspecified => "unspecified",
        Path::Local => "local",
        Path::Held => "held",
        Path::Forwarded => "forwarded",
        Path::ReadIndex => "read_index",
        Path::Log => "log",
    }
}

/// Return status of an operation. If YCSB has the same status, YCSB's name is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReturnCode {
    /// The operation succeeded.
    Ok,
    /// The record does not exist.
    NotFound,
    /// There was no answer in time. If the operation is a write, it may still have taken effect.
    Timeout,
    /// The store cannot answer now.
    ServiceUnavailable,
    /// The request can never succeed.
    BadRequest,
    /// The client's token does not give the right to make the request.
    Forbidden,
    /// The answer does not fit the operation.
    UnexpectedState,
    /// Any other error.
    Error,
}

impl ReturnCode {
    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            ReturnCode::Ok => "OK",
            ReturnCode::NotFound => "NOT_FOUND",
            ReturnCode::Timeout => "TIMEOUT",
            ReturnCode::ServiceUnavailable => "SERVICE_UNAVAILABLE",
            ReturnCode::BadRequest => "BAD_REQUEST",
            ReturnCode::Forbidden => "FORBIDDEN",
            ReturnCode::UnexpectedState => "UNEXPECTED_STATE",
            ReturnCode::Error => "ERROR",
        }
    }
}

impl From<OpOutcome> for ReturnCode {
    fn from(end: OpOutcome) -> Self {
        match end {
            OpOutcome::Ok => ReturnCode::Ok,
            OpOutcome::Failed => ReturnCode::Error,
            OpOutcome::TimedOut => ReturnCode::Timeout,
        }
    }
}
