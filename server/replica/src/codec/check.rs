//! Checks that all decoders use, and decoders of single fields.

use std::time::Duration;

use leasehold_leases::{Ballot, ReplicaId, Slot};
use leasehold_wire::{Outcome, Path, Version};

use super::{CodecError, proto};
use crate::message::LogId;
pub use crate::sanity::NUMBER_MAX;

/// Highest allowed id of a replica, because a set of replicas is stored in the bits of a 64-bit
/// number.
pub(super) const REPLICA_MAX: u64 = 63;

pub(super) type CodecResult<T> = Result<T, CodecError>;

pub(super) fn at_most(field: &'static str, found: u64, limit: u64) -> CodecResult<u64> {
    if found > limit {
        return Err(CodecError::OutOfRange {
            field,
            found,
            limit,
        });
    }
    Ok(found)
}

pub(super) fn number(field: &'static str, found: u64) -> CodecResult<u64> {
    at_most(field, found, NUMBER_MAX)
}

pub(super) fn slot(field: &'static str, found: u64) -> CodecResult<Slot> {
    number(field, found).map(Slot)
}

pub(super) fn duration(field: &'static str, ns: u64) -> CodecResult<Duration> {
    number(field, ns).map(Duration::from_nanos)
}

pub(super) fn replica(field: &'static str, found: u32) -> CodecResult<ReplicaId> {
    at_most(field, found.into(), REPLICA_MAX).map(|id| ReplicaId(id as u8))
}

pub(super) fn present<T>(field: &'static str, found: Option<T>) -> CodecResult<T> {
    found.ok_or(CodecError::Missing { field })
}

pub(super) fn consistent(
    holds: bool,
    field: &'static str,
    problem: &'static str,
) -> CodecResult<()> {
    if !holds {
        return Err(CodecError::Inconsistent { field, problem });
    }
    Ok(())
}

pub(super) fn ballot(field: &'static str, found: Option<proto::Ballot>) -> CodecResult<Ballot> {
    let found = present(field, found)?;
    Ok(Ballot {
        round: number(field, found.round)?,
        replica: replica(field, found.replica)?,
    })
}

pub(super) fn put_ballot(ballot: Ballot) -> proto::Ballot {
    proto::Ballot {
        round: ballot.round,
        replica: ballot.replica.0.into(),
    }
}

pub(super) fn log(field: &'static str, found: i32) -> CodecResult<LogId> {
    match proto::LogId::try_from(found) {
        Ok(proto::LogId::Commands) => Ok(LogId::Commands),
        Ok(proto::LogId::Configs) => Ok(LogId::Configs),
        Err(_) => Err(CodecError::Unknown { field, found }),
    }
}

pub(super) fn put_log(log: LogId) -> i32 {
    match log {
        LogId::Commands => proto::LogId::Commands.into(),
        LogId::Configs => proto::LogId::Configs.into(),
    }
}

pub(super) fn path(field: &'static str, found: i32) -> CodecResult<Path> {
    Path::try_from(found).map_err(|_| CodecError::Unknown { field, found })
}

pub(super) fn version(field: &'static str, found: Option<Version>) -> CodecResult<Version> {
    let found = present(field, found)?;
    number(field, found.slot)?;
    Ok(found)
}

pub(super) fn outcome(field: &'static str, found: Option<Outcome>) -> CodecResult<Outcome> {
    let found = present(field, found)?;
    present(field, found.result.as_ref())?;
    Ok(found)
}

/// Encodes a duration in ns, capped at the largest duration that a decoder accepts.
pub(super) fn put_duration(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).map_or(NUMBER_MAX, |ns| ns.min(NUMBER_MAX))
}
