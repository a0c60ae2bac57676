//! The words under which results are reported: YCSB's where it has one.

use leasehold_wire::Path;

use crate::sample::{OpKind, OpOutcome};

/// YCSB's name of an operation.
pub fn kind_name(kind: OpKind) -> &'static str {
    match kind {
        OpKind::Read => "READ",
        OpKind::Update => "UPDATE",
        OpKind::Insert => "INSERT",
        OpKind::Scan => "SCAN",
        OpKind::ReadModifyWrite => "READ-MODIFY-WRITE",
    }
}

/// The name of a path: how an operation was served.
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

/// Return status of an operation, by YCSB's names of its statuses where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReturnCode {
    /// It did what was asked.
    Ok,
    /// There is no such record.
    NotFound,
    /// No answer in time: a write may have taken effect.
    Timeout,
    /// The store is not able to answer now.
    ServiceUnavailable,
    /// The request can never succeed.
    BadRequest,
    /// The token has no right to it.
    Forbidden,
    /// The answer is not what such an operation gives.
    UnexpectedState,
    /// Anything else.
    Error,
}

impl ReturnCode {
    /// The name that is reported.
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
