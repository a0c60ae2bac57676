//! Encodes messages and records of the core for the wire and for disk.
//!
//! Bytes come from outside: from a peer of another version, or from a disk that
//! has lost a bit. So everything decoded here is checked before the core sees
//! it, in particular that no number is so large that counting on from it
//! overflows, and that no replica id leaves a [`leasehold_leases::ReplicaSet`].
//!
//! A batch goes to every replica and to disk, so it is encoded once, and a batch
//! that came from elsewhere is passed on in the bytes it came in. Decoding does
//! not copy: keys and values share the memory of the frame.

mod batch;
mod check;
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
pub use self::disk::{
    Position, decode_ballot, decode_entry, decode_position, decode_session, decode_stored,
    encode_ballot, encode_entry, encode_position, encode_session, encode_stored,
};

use self::check::{number, replica};
use crate::message::Envelope;

/// The messages of `proto/peer.proto`, not yet checked. Some are written and read
/// by hand.
#[allow(missing_docs, dead_code, clippy::all)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/leasehold.peer.rs"));
}

/// Reason why bytes are not a message, or why a message cannot become bytes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CodecError {
    /// Not the encoding of anything.
    #[error("malformed: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// A required part is missing.
    #[error("{field} is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A number so large that counting on from it could overflow.
    #[error("{field} is {found}, the limit is {limit}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Number that it holds.
        found: u64,
        /// The largest value allowed.
        limit: u64,
    },
    /// A value outside an enumeration.
    #[error("{field} is {found}, which this version does not know")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Number that it holds.
        found: i32,
    },
    /// Parts that contradict each other.
    #[error("{field}: {problem}")]
    Inconsistent {
        /// The field.
        field: &'static str,
        /// Description of the contradiction.
        problem: &'static str,
    },
    /// More than a frame may hold.
    #[error("a message of {length} bytes, the limit is {FRAME_BYTES_MAX} bytes")]
    TooLong {
        /// Bytes needed.
        length: usize,
    },
}

/// Appends `envelope` to `buffer` as one frame: length, then message.
///
/// # Errors
/// `TooLong`, and then `buffer` is as it was.
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

/// The envelope in a frame, its length prefix taken off.
///
/// # Errors
/// Any but `TooLong`, naming the field.
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
