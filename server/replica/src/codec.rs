//! Encodes messages and records of the core for the wire and for disk.
//!
//! Bytes come from outside: from a peer with another version, or from a disk with a flipped bit. So
//! everything decoded here is checked before the core sees it. In particular, no number may be so
//! large that counting up from it overflows, and no replica id may be outside a
//! [`leasehold_leases::ReplicaSet`].
//!
//! A batch is sent to every replica and written to disk, so it is encoded only once. A batch
//! received from another replica is passed on in the bytes in which it arrived. Decoding does not
//! copy: keys and values share the memory of the frame.

mod batch;
mod check;
mod checkpoint;
mod disk;
mod lease;
mod lease_set;
mod message;
#[cfg(test)]
mod tests;
mod value;

use bytes::{BufMut, Bytes, BytesMut};
use leasehold_leases::Incarnation;
use leasehold_wire::FRAME_BYTES_MAX;
use prost::Message as _;

pub use self::batch::BATCH_COMMANDS_MAX;
pub use self::check::NUMBER_MAX;
pub use self::checkpoint::{decode_frames, decode_listed, encode_frames, encode_listed};
pub use self::disk::{
    Position, decode_ballot, decode_entry, decode_position, decode_session, decode_stored,
    encode_ballot, encode_entry, encode_position, encode_session, encode_stored,
};

use self::check::{number, replica};
use crate::message::Envelope;

/// Messages of `proto/peer.proto` that are not yet checked. Some of them are encoded and decoded by
/// hand.
#[allow(missing_docs, dead_code, clippy::all)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/leasehold.peer.rs"));
}

/// Reason why some bytes are not a valid message, or why a message cannot be encoded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CodecError {
    /// The bytes are not a valid encoding of a message.
    #[error("malformed: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// A required part is missing.
    #[error("{field} is missing")]
    Missing {
        /// Name of the field.
        field: &'static str,
    },
    /// A number is too large. A counter that starts from such a number could overflow.
    #[error("{field} is {found}, the limit is {limit}")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// Number that the field holds.
        found: u64,
        /// Largest number allowed.
        limit: u64,
    },
    /// A number is not a value of its enumeration.
    #[error("{field} is {found}, which this version does not know")]
    Unknown {
        /// Name of the field.
        field: &'static str,
        /// Number that the field holds.
        found: i32,
    },
    /// Parts of the message contradict each other.
    #[error("{field}: {problem}")]
    Inconsistent {
        /// Name of the field.
        field: &'static str,
        /// Description of the contradiction.
        problem: &'static str,
    },
    /// The message is longer than a frame may be.
    #[error("a message of {length} bytes, the limit is {FRAME_BYTES_MAX} bytes")]
    TooLong {
        /// Length of the encoded message, in bytes.
        length: usize,
    },
}

/// Appends `envelope` to `buffer` as one frame: the length, then the message.
///
/// # Errors
/// `TooLong` if the message does not fit into a frame. `buffer` is then unchanged.
pub fn encode_envelope(envelope: Envelope, buffer: &mut BytesMut) -> Result<(), CodecError> {
    let encoded = wire_envelope(envelope);
    let length = encoded.encoded_len();
    if length > FRAME_BYTES_MAX {
        return Err(CodecError::TooLong { length });
    }
    buffer.reserve(4 + length);
    buffer.put_u32(length as u32);
    encoded.encode_raw(buffer);
    Ok(())
}

/// Returns the number of bytes of an envelope's frame, the length prefix included.
pub fn envelope_bytes(envelope: Envelope) -> usize {
    4 + wire_envelope(envelope).encoded_len()
}

fn wire_envelope(envelope: Envelope) -> proto::Envelope {
    proto::Envelope {
        from: envelope.from.0.into(),
        from_incarnation: envelope.from_incarnation.0,
        to_incarnation: envelope.to_incarnation.0,
        message: Some(message::encode(envelope.message)),
    }
}

/// Decodes the envelope in a frame without its length prefix.
///
/// # Errors
/// Any error except `TooLong`. The error names the field at fault.
pub fn decode_envelope(frame: Bytes) -> Result<Envelope, CodecError> {
    let envelope = proto::Envelope::decode(frame)?;
    let said = check::present("envelope.message", envelope.message)?;
    Ok(Envelope {
        from: replica("envelope.from", envelope.from)?,
        from_incarnation: Incarnation(number(
            "envelope.from_incarnation",
            envelope.from_incarnation,
        )?),
        to_incarnation: Incarnation(number("envelope.to_incarnation", envelope.to_incarnation)?),
        message: message::decode(said)?,
    })
}
