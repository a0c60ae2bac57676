//! Frames: a 4-byte big-endian length and one message, the same on both sides.
//!
//! The other side may claim any length. So a length is checked before memory is
//! reserved, and memory then grows with the bytes that arrived, not with the claim. Decoding does not copy: `bytes` fields of a
//! message share the memory of the buffer that the frame was read into. Whoever
//! keeps such a field for long (a store, a cache) should copy it, or it keeps
//! the whole buffer alive.

use std::io;
use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::codec::{Decoder, Encoder};

use super::{FRAME_BYTES_MAX, MAGIC, Outcome, Response, Welcome};

/// Bytes of the length before each message.
const PREFIX_BYTES: usize = 4;
/// For each byte of a frame that has arrived, room is made for so many more.
const RESERVED_PER_BYTE: usize = 4;
/// Bytes asked of a socket at a time; also what an idle connection holds.
const READ_BYTES: usize = 32 << 10;
/// A write buffer that a burst made larger than this is given back.
const WRITE_BYTES_KEPT: usize = 1 << 20;

/// Why a frame could not be read or written. The connection cannot go on after
/// any of these, except `TooLong` from an encoder, which wrote nothing.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length prefix, or the message to send, is above the limit.
    #[error("frame of {length} bytes, the limit is {limit} bytes{}", hint(*length))]
    TooLong {
        /// Bytes claimed by the prefix, or needed by the message.
        length: usize,
        /// Bytes that a frame may have here.
        limit: usize,
    },
    /// The frame does not hold the message expected here.
    #[error("malformed message: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// The connection failed, or ended inside a frame.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What the prefix may be instead of a length: the first bytes of a TLS record are its type and
/// version (RFC 8446 §5.1). No frame is so long.
fn hint(length: usize) -> &'static str {
    match u32::try_from(length).map(u32::to_be_bytes) {
        Ok([0x14..=0x17, 3, ..]) => {
            "; these bytes are TLS, which this side does not speak: both need certificates, or \
             neither"
        }
        _ => "",
    }
}

/// Appends one frame to `buffer`. Many may be appended before a single write.
///
/// # Errors
/// `TooLong`, and then `buffer` is as it was.
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

/// Splits the next whole frame off `buffer`, without its prefix and without
/// copying it; `None` until all of it has arrived.
///
/// # Errors
/// `TooLong` as soon as the prefix is seen.
pub fn split_frame(buffer: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
    split_frame_at_most(buffer, FRAME_BYTES_MAX)
}

/// As [`split_frame`], with another `limit` in bytes: whoever has not said yet who it is may
/// send less.
///
/// # Errors
/// As [`split_frame`].
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
        // A buffer that doubles as a long frame arrives is copied again and again. What a client
        // makes us reserve depends on what it has sent: a prefix alone takes no memory.
        let missing = whole - buffer.len();
        buffer.reserve(missing.min(RESERVED_PER_BYTE * buffer.len()));
        return Ok(None);
    }
    buffer.advance(PREFIX_BYTES);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// The framing as a `tokio_util` codec: decodes `In`, encodes `Out`.
#[derive(Debug)]
pub struct MessageCodec<In, Out = In> {
    messages: PhantomData<fn(Out) -> In>,
}

impl<In, Out> Default for MessageCodec<In, Out> {
    fn default() -> Self {
        MessageCodec {
            messages: PhantomData,
        }
    }
}

impl<In: Message + Default, Out> Decoder for MessageCodec<In, Out> {
    type Item = In;
    type Error = FrameError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<In>, FrameError> {
        Ok(split_frame(source)?.map(In::decode).transpose()?)
    }
}

impl<In, Out: Message> Encoder<Out> for MessageCodec<In, Out> {
    type Error = FrameError;

    fn encode(&mut self, message: Out, buffer: &mut BytesMut) -> Result<(), FrameError> {
        encode_frame(&message, buffer)
    }
}

/// The reading half of a connection. The type of a message is named at each
/// call, since a connection changes it after its handshake.
#[derive(Debug)]
pub struct FrameReader<R> {
    io: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads frames from `io`.
    pub fn new(io: R) -> Self {
        FrameReader {
            io,
            buffer: BytesMut::new(),
        }
    }

    /// The next message, or `None` if the connection ended between two frames.
    /// May be dropped and called again without losing anything.
    ///
    /// # Errors
    /// Any [`FrameError`]; the connection is of no use then.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, FrameError> {
        Ok(self.next_frame().await?.map(M::decode).transpose()?)
    }

    /// The next message if all of it has been read already: what arrived
    /// together can be handled together.
    ///
    /// # Errors
    /// As [`FrameReader::next`].
    pub fn next_buffered<M: Message + Default>(&mut self) -> Result<Option<M>, FrameError> {
        MessageCodec::<M>::default().decode(&mut self.buffer)
    }

    /// As [`FrameReader::next`], undecoded.
    ///
    /// # Errors
    /// As [`FrameReader::next`].
    pub async fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let Some(frame) = split_frame(&mut self.buffer)? {
                return Ok(Some(frame));
            }
            // Only when there is little room, or the few bytes of a length would double it.
            if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 4 {
                self.buffer.reserve(READ_BYTES);
            }
            if self.io.read_buf(&mut self.buffer).await? == 0 {
                return self.end();
            }
        }
    }

    fn end(&self) -> Result<Option<Bytes>, FrameError> {
        if self.buffer.is_empty() {
            return Ok(None);
        }
        Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }
}

/// The writing half of a connection: messages are appended, then leave in one
/// write.
#[derive(Debug)]
pub struct FrameWriter<W> {
    io: W,
    buffer: BytesMut,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// Writes frames to `io`.
    pub fn new(io: W) -> Self {
        FrameWriter {
            io,
            buffer: BytesMut::new(),
        }
    }

    /// Appends a message to what the next flush will write.
    ///
    /// # Errors
    /// `TooLong`; nothing was appended then.
    pub fn feed<M: Message>(&mut self, message: &M) -> Result<(), FrameError> {
        encode_frame(message, &mut self.buffer)
    }

    /// Gives the socket back; what was appended and not flushed is lost.
    pub fn into_inner(self) -> W {
        self.io
    }

    /// Bytes appended and not yet written.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Writes all that was appended. May be dropped and called again without
    /// losing or repeating anything.
    ///
    /// # Errors
    /// `Io` if the connection failed.
    pub async fn flush(&mut self) -> Result<(), FrameError> {
        self.io.write_all_buf(&mut self.buffer).await?;
        self.io.flush().await?;
        if self.buffer.capacity() > WRITE_BYTES_KEPT {
            self.buffer = BytesMut::new();
        }
        Ok(())
    }
}

/// The answer to `Hello`, as the protocol allows it: a Welcome, or a Response
/// that holds an error. The two differ in the wire types of their fields, so a
/// frame is never valid as both.
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

/// The first message of a connection, without a token.
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
    use crate::wire::{Command, Request, command::Op, request::Body};

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
    fn many_frames_of_one_buffer_come_back_in_order() {
        let mut buffer = BytesMut::new();
        let mut codec = MessageCodec::<Request>::default();
        for value in [&b"one"[..], b"", b"three"] {
            codec.encode(put_request(value), &mut buffer).unwrap();
        }
        for value in [&b"one"[..], b"", b"three"] {
            let decoded = codec.decode(&mut buffer).unwrap();
            assert_eq!(decoded, Some(put_request(value)));
        }
        assert_eq!(codec.decode(&mut buffer).unwrap(), None);
        assert!(buffer.is_empty());
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
        let request = MessageCodec::<Request>::default()
            .decode(&mut buffer)
            .unwrap()
            .unwrap();
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

    #[tokio::test]
    async fn a_reader_told_of_four_gibibytes_holds_less_than_64_kib() {
        let mut reader = FrameReader::new(&[0xFF_u8; 4][..]);
        let error = reader.next::<Request>().await.unwrap_err();
        assert!(matches!(error, FrameError::TooLong { .. }), "{error}");
        assert!(reader.buffer.capacity() <= 64 << 10);
    }

    #[tokio::test]
    async fn a_reader_reserves_for_what_arrived_not_for_what_was_claimed() {
        let claim = (FRAME_BYTES_MAX as u32).to_be_bytes();
        let mut reader = FrameReader::new(&claim[..]);
        let error = reader.next::<Request>().await.unwrap_err();
        assert!(matches!(error, FrameError::Io(_)), "{error}");
        assert!(reader.buffer.capacity() <= 64 << 10);
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

    #[tokio::test]
    async fn what_a_writer_flushed_a_reader_reads_and_the_end_is_clean() {
        let (near, far) = tokio::io::duplex(64);
        let mut writer = FrameWriter::new(near);
        let send = async move {
            writer.feed(&put_request(b"first")).unwrap();
            writer.feed(&put_request(b"second")).unwrap();
            writer.flush().await.unwrap();
            assert_eq!(writer.buffered_bytes(), 0);
        };
        let receive = async move {
            let mut reader = FrameReader::new(far);
            for value in [&b"first"[..], b"second"] {
                let request = reader.next::<Request>().await.unwrap();
                assert_eq!(request, Some(put_request(value)));
            }
            assert_eq!(reader.next::<Request>().await.unwrap(), None);
        };
        tokio::join!(send, receive);
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

        let refusal = super::super::Error::new(super::super::ErrorCode::WrongCluster, "other");
        let response = Response::refusal(0, refusal.clone());
        let greeting = decode_greeting(response.encode_to_vec().into());
        assert_eq!(greeting.unwrap(), Err(refusal));
    }
}
