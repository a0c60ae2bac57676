//! Encoder and decoder of data on disk. Encoders append to a buffer, so one buffer serves many
//! records.

use bytes::Bytes;
use leasehold_leases::{Ballot, ConfigId, Slot};
use prost::Message as _;

use super::check::{CodecResult, ballot, number, outcome, put_ballot, slot, version};
use super::{proto, value};
use crate::action::{SessionImage, StoredValue};
use crate::message::Value;
use crate::settings::SESSION_STEP;

/// Position of a checkpoint in each of the two logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Last executed slot of the log of commands.
    pub executed: Slot,
    /// Last executed configuration.
    pub config: ConfigId,
    /// Log time (the replicated clock) at `executed`, in ms.
    pub log_time_ms: u64,
    /// Earliest start time with which a client may still open a session, in ms of log time.
    pub opens_from_ms: u64,
}

/// Encodes an accepted entry for the disk.
pub fn encode_entry(accepted_at: Ballot, held: &Value, out: &mut Vec<u8>) {
    let entry = proto::Entry {
        ballot: Some(put_ballot(accepted_at)),
        value: Some(value::encode(held)),
    };
    entry.encode_raw(out);
}

/// Decodes an entry: the inverse of [`encode_entry`].
///
/// # Errors
/// Any [`CodecError`](super::CodecError) except `TooLong`. The error names the field at fault.
pub fn decode_entry(encoded: Bytes) -> CodecResult<(Ballot, Value)> {
    let entry = proto::Entry::decode(encoded)?;
    let accepted_at = ballot("entry.ballot", entry.ballot)?;
    Ok((accepted_at, value::decode("entry.value", entry.value)?))
}

/// Encodes a stored value for the disk. If `staged` is true, the bytes of the value are omitted,
/// because they are on disk already.
pub fn encode_stored(stored: &StoredValue, staged: bool, out: &mut Vec<u8>) {
    let encoded = proto::Stored {
        value: if staged {
            Bytes::new()
        } else {
            stored.value.clone()
        },
        version: Some(stored.version),
        created: Some(stored.created),
        staged,
    };
    encoded.encode_raw(out);
}

/// Decodes a stored value: the inverse of [`encode_stored`]. Also returns whether the value is
/// staged. The returned value is empty if the value is staged.
///
/// # Errors
/// Any [`CodecError`](super::CodecError) except `TooLong`. The error names the field at fault.
pub fn decode_stored(encoded: Bytes) -> CodecResult<(StoredValue, bool)> {
    let proto::Stored {
        value,
        version: written,
        created,
        staged,
    } = proto::Stored::decode(encoded)?;
    let stored = StoredValue {
        value: if staged { Bytes::new() } else { value },
        version: version("stored.version", written)?,
        created: version("stored.created", created)?,
    };
    Ok((stored, staged))
}

/// Encodes a session for the disk.
pub fn encode_session(session: &SessionImage, out: &mut Vec<u8>) {
    let result = |(sequence, outcome): &(u64, leasehold_wire::Outcome)| proto::SessionResult {
        sequence: *sequence,
        outcome: Some(outcome.clone()),
    };
    let encoded = proto::Session {
        acked_below: session.acked_below,
        active_ms: session.active_ms,
        results: session.results.iter().map(result).collect(),
    };
    encoded.encode_raw(out);
}

/// Decodes a session: the inverse of [`encode_session`].
///
/// # Errors
/// Any [`CodecError`](super::CodecError) except `TooLong`. The error names the field at fault.
pub fn decode_session(encoded: Bytes) -> CodecResult<SessionImage> {
    let session = proto::Session::decode(encoded)?;
    let result = |result: proto::SessionResult| {
        Ok((
            result.sequence,
            outcome("session.results[].outcome", result.outcome)?,
        ))
    };
    Ok(SessionImage {
        acked_below: session.acked_below,
        active_ms: number("session.active_ms", session.active_ms)?,
        results: session
            .results
            .into_iter()
            .map(result)
            .collect::<CodecResult<_>>()?,
    })
}

/// Encodes the position of a checkpoint for the disk.
pub fn encode_position(position: &Position, out: &mut Vec<u8>) {
    let encoded = proto::Position {
        executed: position.executed.0,
        config: position.config.0,
        log_time_ms: position.log_time_ms,
        opens_from_ms: position.opens_from_ms,
    };
    encoded.encode_raw(out);
}

/// Decodes a position: the inverse of [`encode_position`].
///
/// # Errors
/// Any [`CodecError`](super::CodecError) except `TooLong`. The error names the field at fault.
pub fn decode_position(encoded: Bytes) -> CodecResult<Position> {
    let position = proto::Position::decode(encoded)?;
    // `opens_from_ms` may exceed the log time by a step of sessions.
    let step_ms = SESSION_STEP.as_millis() as u64;
    let opens_after = position.opens_from_ms.saturating_sub(step_ms);
    number("position.opens_from_ms", opens_after)?;
    Ok(Position {
        executed: slot("position.executed", position.executed)?,
        config: ConfigId(number("position.config", position.config)?),
        log_time_ms: number("position.log_time_ms", position.log_time_ms)?,
        opens_from_ms: position.opens_from_ms,
    })
}

/// Encodes a ballot for the disk.
pub fn encode_ballot(found: Ballot, out: &mut Vec<u8>) {
    put_ballot(found).encode_raw(out);
}

/// Decodes a ballot: the inverse of [`encode_ballot`].
///
/// # Errors
/// Any [`CodecError`](super::CodecError) except `TooLong`. The error names the field at fault.
pub fn decode_ballot(encoded: Bytes) -> CodecResult<Ballot> {
    ballot("ballot", Some(proto::Ballot::decode(encoded)?))
}
