//! A connection's TLS state after its handshake, and how it meets the socket.

use std::cell::RefCell;
use std::io::{self, BufRead as _, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use rustls::Connection;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

/// Bytes asked of a socket at a time.
const READ_BYTES: usize = 64 << 10;
/// Cost of a byte around the plaintext, in bytes of plaintext: a record has 22 of them, and takes
/// the time of some 350 bytes.
const SEAL_WORK: usize = 16;
/// Most plaintext that is sealed before the socket has taken what was sealed before.
const SEAL_BYTES: usize = 128 << 10;
/// Bytes that a record may hold, and that it takes beside them.
const RECORD_BYTES: usize = 16 << 10;
const RECORD_OVERHEAD: usize = 22;

thread_local! {
    /// Bytes that were read from a socket and are opened at once. One buffer for all connections of
    /// a thread: an idle connection holds none.
    static ARRIVED: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Result of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadProgress {
    /// Number of bytes of plaintext; 0 if more must be read first.
    Bytes(usize),
    /// The other side sends no more.
    End,
}

/// Seals and opens what goes over one connection. Both directions share it.
#[derive(Debug)]
pub struct Channel {
    connection: Connection,
    /// Bytes sealed and not yet taken by the socket.
    unsent: usize,
    /// Nothing was read yet, but perhaps by the handshake.
    is_new: bool,
    /// Much was read: others have a turn before the next read. What was read may hold
    /// thousands of records with hardly a byte of plaintext.
    yields: bool,
    /// Bytes received, weighed by the work they are.
    work: usize,
    ended: bool,
}

impl Channel {
    /// Creates the channel of a connection after its handshake.
    pub fn new(mut connection: Connection) -> Channel {
        // What is sealed at a time is bounded here.
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

    /// Bytes sealed and not yet taken by the socket.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// Reads what has arrived, and appends its plaintext to `plain`. Nothing is lost if it is
    /// not called again.
    ///
    /// # Errors
    /// `InvalidData` if it was not sealed by the other side; or the socket's.
    pub fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        half: &mut OwnedReadHalf,
        plain: &mut BytesMut,
    ) -> Poll<io::Result<ReadProgress>> {
        let before = plain.len();
        if std::mem::take(&mut self.is_new) {
            // The handshake may have read more than its own.
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

    /// Returns the cost of the bytes received since the last call, in bytes. Bytes that are not
    /// plaintext count more, for there may be thousands of records with hardly a byte.
    pub fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }

    /// Reads once. Through the half, and not by trying: it knows from a short read that there
    /// is no more, and saves the system call that would only say so.
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
        // It takes a part at a time, and nothing after the end.
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

    /// Seals what is in `plain` and writes it, as far as the socket takes it.
    ///
    /// # Errors
    /// `WouldBlock` if it took a part; `WriteZero` if it takes no more; or the socket's.
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

    /// Writes what is sealed.
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

    /// Tells the other side that nothing follows, if the socket takes that at once.
    pub fn end(&mut self, stream: &TcpStream) {
        self.connection.send_close_notify();
        // One that takes no more learns it from the end of the connection.
        let _ = self.write(stream);
    }
}

/// Reads and writes as far as that is possible without waiting.
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
            // Most answers are one record, and a plain write takes the kernel less.
            [one] => self.0.try_write(one),
            _ => self.0.try_write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
