//! The reading and the writing half of a connection, plain or over TLS. Both halves belong to the
//! replica's thread.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, BytesMut};
use leasehold_transport::tls::{Channel, ReadProgress};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt as _, Interest};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::front::inbox::Inbox;
use crate::security::handshakes::EstablishedStream;

/// Maximum number of bytes that are read in one step. The maximum applies even if the buffer has
/// space for more bytes, because other connections wait during the step.
const READ_BYTES_MAX: usize = 64 << 10;

/// A source from which bytes can be read.
#[expect(async_fn_in_trait, reason = "it is called on one thread")]
pub trait ByteSource {
    /// Waits for more bytes, appends them to `buffer` and returns their number, or 0 at the end of
    /// the stream. No bytes are lost if the future is dropped and the method is called again.
    ///
    /// # Errors
    /// Fails if the connection has failed.
    async fn fill(&mut self, buffer: &mut BytesMut, chunk_bytes: usize) -> io::Result<usize>;
}

impl<R: AsyncRead + Unpin> ByteSource for R {
    async fn fill(&mut self, buffer: &mut BytesMut, chunk_bytes: usize) -> io::Result<usize> {
        let room = buffer.capacity() - buffer.len();
        if room < chunk_bytes / 4 {
            buffer.reserve(chunk_bytes);
        }
        self.read_buf(&mut buffer.limit(READ_BYTES_MAX)).await
    }
}

/// The reading half of a connection.
#[derive(Debug)]
pub struct ReadHalf {
    half: OwnedReadHalf,
    channel: Option<Rc<RefCell<Channel>>>,
    /// Inbox that limits reads from a client's connection; `None` for other connections.
    inbox: Option<Rc<Inbox>>,
}

/// The writing half of a connection.
#[derive(Debug)]
pub(crate) struct WriteHalf {
    half: OwnedWriteHalf,
    channel: Option<Rc<RefCell<Channel>>>,
}

/// Splits a connection into its reading and its writing half.
pub(crate) fn split(established: EstablishedStream) -> (ReadHalf, WriteHalf) {
    let (reader, writer) = established.stream.into_split();
    let channel = established
        .channel
        .map(|channel| Rc::new(RefCell::new(channel)));
    let reader = ReadHalf {
        half: reader,
        channel: channel.clone(),
        inbox: None,
    };
    let writer = WriteHalf {
        half: writer,
        channel,
    };
    (reader, writer)
}

impl ByteSource for ReadHalf {
    async fn fill(&mut self, buffer: &mut BytesMut, chunk_bytes: usize) -> io::Result<usize> {
        loop {
            let (received, work) = self.receive(buffer, chunk_bytes).await?;
            if let Some(inbox) = &self.inbox {
                inbox.acquire_read_units(work).await;
            }
            match received {
                ReadProgress::Bytes(0) => {}
                ReadProgress::Bytes(count) => return Ok(count),
                ReadProgress::End => return Ok(0),
            }
        }
    }
}

impl ReadHalf {
    /// Makes the reads from this connection take turns with the reads from other connections
    /// ([`Inbox::acquire_read_units`]).
    pub(crate) fn round_robin(self, inbox: Rc<Inbox>) -> ReadHalf {
        ReadHalf {
            inbox: Some(inbox),
            ..self
        }
    }

    /// Reads once. Returns the number of bytes received, and the cost of the read in units.
    async fn receive(
        &mut self,
        buffer: &mut BytesMut,
        chunk_bytes: usize,
    ) -> io::Result<(ReadProgress, usize)> {
        let half = &mut self.half;
        let Some(channel) = &self.channel else {
            return Ok(match half.fill(buffer, chunk_bytes).await? {
                0 => (ReadProgress::End, 0),
                count => (ReadProgress::Bytes(count), count),
            });
        };
        let receive = |cx: &mut Context<'_>| {
            let mut channel = channel.borrow_mut();
            channel.poll_receive(cx, half, buffer)
        };
        let received = poll_fn(receive).await?;
        Ok((received, channel.borrow_mut().take_work()))
    }
}

impl WriteHalf {
    /// Writes as many bytes as the socket takes now, and removes them from `buffer`.
    ///
    /// # Errors
    /// `WouldBlock` if bytes remain that the socket cannot take now. `WriteZero` if the socket
    /// accepts no bytes. All other errors come from the socket.
    pub(crate) fn write(&self, buffer: &mut BytesMut) -> io::Result<()> {
        if let Some(channel) = &self.channel {
            return channel.borrow_mut().send(self.half.as_ref(), buffer);
        }
        while buffer.has_remaining() {
            match self.half.try_write(buffer) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => buffer.advance(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the number of encrypted bytes that wait for the socket. They are no longer in the
    /// buffer.
    pub(crate) fn unsent(&self) -> usize {
        let channel = self.channel.as_ref();
        channel.map_or(0, |channel| channel.borrow().unsent())
    }

    /// Waits until the socket can take bytes.
    ///
    /// # Errors
    /// Fails if the connection has failed.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.half.writable().await
    }

    /// Waits until the connection has failed, for example because the other end has reset it. If
    /// the other end only ends its stream of bytes, the wait continues.
    pub(crate) async fn reset(&self) {
        let _ = self.half.ready(Interest::ERROR).await;
    }

    /// Ends the stream of bytes. The other side reads an end of stream after the last byte.
    pub(crate) fn shutdown_write(&self) {
        self.close_notify();
        let socket = self.half.as_ref();
        // A connection that has failed already needs no end.
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
    }

    /// Makes the kernel discard unsent bytes when the connection is closed. Otherwise the kernel
    /// keeps these bytes as long as the client reads a byte now and then.
    pub(crate) fn discard_unsent(&self) {
        let _ = sockopt::set_socket_linger(self.half.as_ref(), Some(Duration::ZERO));
    }

    fn close_notify(&self) {
        if let Some(channel) = &self.channel {
            channel.borrow_mut().end(self.half.as_ref());
        }
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        self.close_notify();
    }
}

impl From<OwnedWriteHalf> for WriteHalf {
    fn from(half: OwnedWriteHalf) -> WriteHalf {
        WriteHalf {
            half,
            channel: None,
        }
    }
}
