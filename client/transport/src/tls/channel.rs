//! TLS state of a connection after its handshake, and the transfer of sealed data to and from the
//! socket.

use std::cell::RefCell;
use std::io::{self, BufRead as _, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use rustls::Connection;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

/// Number of bytes read from a socket at a time.
const READ_BYTES: usize = 64 << 10;
/// Cost of a received byte that is not plaintext, relative to a byte of plaintext. A record has 22
/// such bytes. These 22 bytes take as much time to open as about 350 bytes of plaintext.
const SEAL_WORK: usize = 16;
/// Maximum amount of plaintext that is sealed before the socket has accepted the data that was
/// sealed earlier.
const SEAL_BYTES: usize = 128 << 10;
/// Maximum number of bytes of plaintext in a record.
const RECORD_BYTES: usize = 16 << 10;
/// Number of bytes in a record that are not plaintext.
const RECORD_OVERHEAD: usize = 22;

thread_local! {
    /// Buffer for bytes that were read from a socket and are opened immediately. All connections of
    /// a thread share this buffer, so an idle connection needs no buffer.
    static ARRIVED: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Result of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadProgress {
    /// This many bytes of plaintext were read; 0 if more data must be read first.
    Bytes(usize),
    /// The other side has ended the connection and sends no more data.
    End,
}

/// Seals and opens the data of one connection. Both directions of the connection share the channel.
#[derive(Debug)]
pub struct Channel {
    connection: Connection,
    /// Number of bytes that have been sealed, but that the socket has not accepted yet.
    unsent: usize,
    /// True until the first read after the handshake.
    is_new: bool,
    /// Whether so much data was read that other tasks must run before the next read.
    yields: bool,
    /// Cost of the bytes that were received since [`take_work`](Self::take_work) was last called.
    /// The unit is the cost of a byte of plaintext.
    work: usize,
    ended: bool,
}

impl Channel {
    /// Creates the channel of a connection after its handshake.
    pub fn new(mut connection: Connection) -> Channel {
        // This type limits the amount that is sealed at a time.
        connection.set_buffer_limit(None);
        Channel {
            connection,
            unsent: 0,
            is_new: true,
            yields: false,
            work: 0,
            ended: false,
        }
    }

    /// Returns the number of bytes that have been sealed, but that the socket has not accepted yet.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// Reads the data that has arrived, and appends the plaintext to `plain`. If the caller stops
    /// polling, no data is lost.
    ///
    /// # Errors
    /// `InvalidData` if the data was not sealed by the other side; or the error of the socket.
    pub fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        half: &mut OwnedReadHalf,
        plain: &mut BytesMut,
    ) -> Poll<io::Result<ReadProgress>> {
        let before = plain.len();
        if std::mem::take(&mut self.is_new) {
            // The handshake may have read more than its own data.
            self.process(plain)?;
        }
        if plain.len() == before && !self.ended {
            ready!(self.poll_read(cx, half, plain))?;
        }
        Poll::Ready(Ok(match plain.len() - before {
            0 if self.ended => ReadProgress::End,
            count => ReadProgress::Bytes(count),
        }))
    }

    /// Returns the cost of the bytes that were received since the last call of this method. The
    /// unit is the cost of a byte of plaintext. Bytes that are not plaintext cost more than one
    /// unit.
    pub fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }

    /// Reads from the socket once. The method polls the socket's half and does not call `try_read`,
    /// because polling can save a system call. After a short read, the next poll knows without a
    /// system call that no more data is available.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        half: &mut OwnedReadHalf,
        plain: &mut BytesMut,
    ) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.yields) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ARRIVED.with_borrow_mut(|arrived| {
            let mut arrived = ReadBuf::new(arrived);
            ready!(Pin::new(half).poll_read(cx, &mut arrived))?;
            let arrived = arrived.filled();
            self.yields = arrived.len() >= READ_BYTES / 2;
            let before = plain.len();
            self.open(arrived, plain)?;
            let opened = plain.len() - before;
            self.work += opened + arrived.len().saturating_sub(opened) * SEAL_WORK;
            self.ended |= arrived.is_empty();
            Poll::Ready(Ok(()))
        })
    }

    fn open(&mut self, mut arrived: &[u8], plain: &mut BytesMut) -> io::Result<()> {
        // `read_tls` takes a part at a time, and nothing after the end.
        while !arrived.is_empty() && self.connection.read_tls(&mut arrived)? > 0 {
            self.process(plain)?;
        }
        Ok(())
    }

    fn process(&mut self, plain: &mut BytesMut) -> io::Result<()> {
        let state = self.connection.process_new_packets();
        let state = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.take(state.plaintext_bytes_to_read(), plain)?;
        self.ended |= state.peer_has_closed();
        Ok(())
    }

    fn take(&mut self, mut count: usize, plain: &mut BytesMut) -> io::Result<()> {
        let mut reader = self.connection.reader();
        while count > 0 {
            let chunk = reader.fill_buf()?;
            let length = chunk.len();
            plain.extend_from_slice(chunk);
            reader.consume(length);
            count -= length;
        }
        Ok(())
    }

    /// Seals the data in `plain`, and writes as much of it as the socket accepts.
    ///
    /// # Errors
    /// `WouldBlock` if the socket accepted only a part; `WriteZero` if the socket accepts no more
    /// data; or the error of the socket.
    pub fn send(&mut self, stream: &TcpStream, plain: &mut BytesMut) -> io::Result<()> {
        loop {
            self.write(stream)?;
            if plain.is_empty() {
                return Ok(());
            }
            let part = plain.len().min(SEAL_BYTES);
            let sealed = self.connection.writer().write(&plain[..part])?;
            plain.advance(sealed);
            self.unsent += sealed + sealed.div_ceil(RECORD_BYTES) * RECORD_OVERHEAD;
        }
    }

    /// Writes the sealed data.
    fn write(&mut self, stream: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Socket(stream)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.unsent = self.unsent.saturating_sub(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.unsent = 0;
        Ok(())
    }

    /// Notifies the other side that no data follows, if the socket accepts the notice immediately.
    pub fn end(&mut self, stream: &TcpStream) {
        self.connection.send_close_notify();
        // Otherwise the other side learns it from the end of the connection.
        let _ = self.write(stream);
    }
}

/// Adapter that reads from a socket and writes to it, as far as this is possible without waiting.
pub(super) struct Socket<'a>(pub(super) &'a TcpStream);

impl io::Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl io::Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match parts {
            // Most answers are one record, and a plain write costs the kernel less.
            [one] => self.0.try_write(one),
            _ => self.0.try_write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
