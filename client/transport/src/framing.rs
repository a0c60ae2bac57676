//! Frames on sockets: a reader and a writer for each connection.

use std::io;
use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use leasehold_wire::{FRAME_BYTES_MAX, FrameError, encode_frame, split_frame, split_frame_at_most};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::codec::{Decoder, Encoder};

/// Number of bytes that are read from a socket at a time. An idle connection keeps a buffer of this
/// size.
const READ_BYTES: usize = 32 << 10;
/// Maximum capacity of a write buffer that is kept after a flush. A larger buffer is freed.
const WRITE_BYTES_KEPT: usize = 1 << 20;

/// A `tokio_util` codec for frames, which decodes messages of type `In` and encodes messages of
/// type `Out`.
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

/// The reading half of a connection. Each call names the type of the next message, because the
/// first message of a connection has another type than later messages.
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

    /// Returns the next message, or `None` if the connection ended between two frames. If the
    /// future is dropped and the call is repeated, nothing is lost.
    ///
    /// # Errors
    /// Any [`FrameError`]; the connection cannot be used afterwards.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, FrameError> {
        Ok(self.next_frame().await?.map(M::decode).transpose()?)
    }

    /// Returns the next message if it has been read completely.
    ///
    /// # Errors
    /// The same errors as [`FrameReader::next`].
    pub fn next_buffered<M: Message + Default>(&mut self) -> Result<Option<M>, FrameError> {
        MessageCodec::<M>::default().decode(&mut self.buffer)
    }

    /// Returns the next frame without decoding it, and otherwise works like [`FrameReader::next`].
    ///
    /// # Errors
    /// The same errors as [`FrameReader::next`].
    pub async fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        self.next_frame_at_most(FRAME_BYTES_MAX).await
    }

    /// Returns the next frame if it has at most `limit` bytes, and otherwise works like
    /// [`FrameReader::next_frame`]. The limit is lower for a peer that has not identified itself
    /// yet.
    ///
    /// # Errors
    /// The same errors as [`FrameReader::next`].
    pub async fn next_frame_at_most(&mut self, limit: usize) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let Some(frame) = split_frame_at_most(&mut self.buffer, limit)? {
                return Ok(Some(frame));
            }
            // Reserves only if there is little room, or if the few bytes of a length would double
            // the buffer.
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

/// The writing half of a connection. Messages are appended to a buffer, and a flush sends all of
/// them in one write.
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

    /// Appends a message to the data that the next flush writes.
    ///
    /// # Errors
    /// `TooLong`; in this case nothing was appended.
    pub fn feed<M: Message>(&mut self, message: &M) -> Result<(), FrameError> {
        encode_frame(message, &mut self.buffer)
    }

    /// Returns the socket. Data that was appended and not flushed is lost.
    pub fn into_inner(self) -> W {
        self.io
    }

    /// Returns the number of bytes that have been appended, but not written yet.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Writes all appended data. If the future is dropped and the call is repeated, nothing is lost
    /// or written twice.
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

/// Whether the first bytes of an answer are a TLS alert. A peer that uses TLS sends such an alert
/// to a peer that does not use TLS.
pub fn is_tls_alert(prefix: [u8; 4]) -> bool {
    // The bytes of an alert in a record of any version, of less than 256 bytes.
    prefix[0] == 21 && prefix[1] == 3 && prefix[3] == 0
}

#[cfg(test)]
mod tests {
    use leasehold_wire::command::Op;
    use leasehold_wire::request::Body;
    use leasehold_wire::{Command, Request};

    use super::*;

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
}
