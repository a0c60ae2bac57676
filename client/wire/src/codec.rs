//! Frames. A frame consists of a length (4 bytes, big-endian) and one message. The format is the
//! same in both directions.
//!
//! The other side may claim any length. So a length is checked before memory is reserved. After
//! that, memory grows with the bytes that have arrived, not with the claimed length. Decoding does
//! not copy: `bytes` fields of a message share the memory of the buffer into which the frame was
//! read. Code that keeps such a field for a long time (a store, a cache) should copy it. Otherwise
//! the field keeps the whole buffer in memory.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use super::{FRAME_BYTES_MAX, MAGIC, Outcome, Response, Welcome};

/// Size of the length prefix of each message, in bytes.
const PREFIX_BYTES: usize = 4;
/// Number of bytes of memory that may be reserved for each received byte of a frame.
const RESERVED_PER_BYTE: usize = 4;

/// Reason why a frame could not be read or written. After `TooLong` from an encoder, the connection
/// can still be used, because the encoder wrote nothing. After any other error, the connection
/// cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length in the prefix, or the length of the message to send, is above the limit.
    #[error("frame of {length} bytes, the limit is {limit} bytes{}", hint(*length))]
    TooLong {
        /// Number of bytes according to the prefix, or number of bytes of the message to send.
        length: usize,
        /// Maximum number of bytes of a frame.
        limit: usize,
    },
    /// The frame does not hold the expected message.
    #[error("malformed message: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// The connection failed, or ended inside a frame.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Returns a hint for the text of an error if the prefix is the beginning of a TLS record;
/// otherwise an empty text. A TLS record begins with its type and version (RFC 8446 §5.1). These
/// bytes cannot be a valid length, because the length would be above the limit.
fn hint(length: usize) -> &'static str {
    match u32::try_from(length).map(u32::to_be_bytes) {
        Ok([0x14..=0x17, 3, ..]) => {
            "; these bytes are TLS, which this side does not speak: both need certificates, or \
             neither"
        }
        _ => "",
    }
}

/// Appends one frame to `buffer`. Several frames may be appended before a single write.
///
/// # Errors
/// `TooLong`; in this case `buffer` is unchanged.
pub fn encode_frame<M: Message>(message: &M, buffer: &mut BytesMut) -> Result<(), FrameError> {
    let length = message.encoded_len();
    if length > FRAME_BYTES_MAX {
        let limit = FRAME_BYTES_MAX;
        return Err(FrameError::TooLong { length, limit });
    }
    buffer.reserve(PREFIX_BYTES + length);
    buffer.put_u32(length as u32);
    message.encode_raw(buffer);
    Ok(())
}

/// Removes the next whole frame from `buffer`. Returns the frame without its prefix. Nothing is
/// copied. Returns `None` until the whole frame has arrived.
///
/// # Errors
/// `TooLong`, as soon as the prefix has arrived.
pub fn split_frame(buffer: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
    split_frame_at_most(buffer, FRAME_BYTES_MAX)
}

/// Works like [`split_frame`], but with another `limit`, in bytes. The limit is lower for a peer
/// that has not identified itself yet.
///
/// # Errors
/// The same errors as [`split_frame`].
pub fn split_frame_at_most(
    buffer: &mut BytesMut,
    limit: usize,
) -> Result<Option<Bytes>, FrameError> {
    let Some(prefix) = buffer.first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*prefix) as usize;
    if length > limit {
        return Err(FrameError::TooLong { length, limit });
    }
    let whole = PREFIX_BYTES + length;
    if buffer.len() < whole {
        // A buffer that doubles while a long frame arrives is copied several times. The memory
        // reserved for a client is in proportion to the bytes that it has sent: a prefix alone
        // reserves no memory.
        let missing = whole - buffer.len();
        buffer.reserve(missing.min(RESERVED_PER_BYTE * buffer.len()));
        return Ok(None);
    }
    buffer.advance(PREFIX_BYTES);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// Decodes the answer to `Hello`: a Welcome, or a Response that contains an error. No frame is
/// valid as both messages, because the wire types of their fields differ.
///
/// # Errors
/// `Malformed` if the frame is neither.
pub fn decode_greeting(frame: Bytes) -> Result<Result<Welcome, super::Error>, FrameError> {
    if let Ok(Response {
        outcome:
            Some(Outcome {
                result: Some(super::outcome::Result::Error(error)),
            }),
        ..
    }) = Response::decode(frame.clone())
    {
        return Ok(Err(error));
    }
    Ok(Ok(Welcome::decode(frame)?))
}

/// Returns the first message of a connection, without a token.
pub fn hello(cluster: Option<&str>) -> super::Hello {
    super::Hello {
        magic: MAGIC,
        cluster: cluster.unwrap_or_default().to_owned(),
        token: Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Request, command::Op, request::Body};

    fn put_request(value: &'static [u8]) -> Request {
        Request::new(
            7,
            Some(Body::Command(Command::session(
                1,
                2,
                1,
                Op::put("key", value),
            ))),
        )
    }

    #[test]
    fn a_frame_cut_anywhere_is_awaited() {
        let mut whole = BytesMut::new();
        encode_frame(&put_request(b"value"), &mut whole).unwrap();
        for cut in 0..whole.len() {
            let mut partial = BytesMut::from(&whole[..cut]);
            assert!(split_frame(&mut partial).unwrap().is_none());
            assert_eq!(partial, &whole[..cut], "nothing is consumed");
        }
    }

    #[test]
    fn bytes_fields_share_the_memory_of_their_frame() {
        let mut buffer = BytesMut::new();
        encode_frame(&put_request(&[b'v'; 4096]), &mut buffer).unwrap();
        let memory = buffer.as_ptr_range();
        let frame = split_frame(&mut buffer).unwrap().unwrap();
        let request = Request::decode(frame).unwrap();
        let Some(Body::Command(Command {
            op: Some(Op::Put(put)),
            ..
        })) = request.body
        else {
            panic!("a put was encoded");
        };
        assert!(memory.contains(&put.value.as_ptr()));
        assert!(memory.contains(&put.key.as_ptr()));
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_anything_is_reserved() {
        for length in [FRAME_BYTES_MAX as u32 + 1, u32::MAX] {
            let mut buffer = BytesMut::from(&length.to_be_bytes()[..]);
            let capacity = buffer.capacity();
            let error = split_frame(&mut buffer).unwrap_err();
            assert!(error.to_string().contains(&length.to_string()), "{error}");
            assert_eq!(buffer.capacity(), capacity);
        }
    }

    #[test]
    fn tls_where_none_is_expected_is_told() {
        let prefixes = [
            ([0x16, 3, 1, 2], true),
            ([0x15, 3, 3, 0], true),
            (*b"GET ", false),
            ([0xFF; 4], false),
        ];
        for (prefix, is_tls) in prefixes {
            let error = split_frame(&mut BytesMut::from(&prefix[..])).unwrap_err();
            assert_eq!(error.to_string().contains("are TLS"), is_tls, "{error}");
        }
    }

    #[test]
    fn a_message_above_the_limit_leaves_the_buffer_alone() {
        let mut buffer = BytesMut::from(&b"earlier"[..]);
        let request = Request::new(
            1,
            Some(Body::Command(Op::put("k", vec![0; FRAME_BYTES_MAX]).into())),
        );
        let error = encode_frame(&request, &mut buffer).unwrap_err();
        assert!(matches!(error, FrameError::TooLong { .. }), "{error}");
        assert_eq!(buffer, &b"earlier"[..]);
    }

    #[test]
    fn a_greeting_is_told_from_a_refusal() {
        let welcome = Welcome {
            cluster: "test".into(),
            replica: "CA".into(),
            incarnation: 3,
            ..Welcome::default()
        };
        let greeting = decode_greeting(welcome.encode_to_vec().into());
        assert_eq!(greeting.unwrap(), Ok(welcome));
        let nameless = Welcome {
            incarnation: 3,
            ..Welcome::default()
        };
        let greeting = decode_greeting(nameless.encode_to_vec().into());
        assert_eq!(greeting.unwrap(), Ok(nameless));

        let refusal = crate::Error::new(crate::ErrorCode::WrongCluster, "other");
        let response = Response::refusal(0, refusal.clone());
        let greeting = decode_greeting(response.encode_to_vec().into());
        assert_eq!(greeting.unwrap(), Err(refusal));
    }
}
