//! The two halves of a connection, plain or over TLS. Both are of the replica's thread.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, BytesMut};
use leasehold_transport::tls::{Channel, Received};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt as _, Interest};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::handshakes::Shaken;
use super::inbox::Inbox;

/// Maximum number of bytes read at once, however much capacity there is: others wait meanwhile.
const READ_BYTES_MAX: usize = 64 << 10;

/// Where bytes come from.
#[expect(async_fn_in_trait, reason = "it is called on one thread")]
pub trait Source {
    /// Waits for more bytes and appends them; 0 at the end. May be dropped and called again
    /// without losing anything.
    ///
    /// # Errors
    /// If the connection failed.
    async fn fill(&mut self, buffer: &mut BytesMut, chunk_bytes: usize) -> io::Result<usize>;
}

impl<R: AsyncRead + Unpin> Source for R {
    async fn fill(&mut self, buffer: &mut BytesMut, chunk_bytes: usize) -> io::Result<usize> {
        let room = buffer.capacity() - buffer.len();
        if room < chunk_bytes / 4 {
            buffer.reserve(chunk_bytes);
        }
        self.read_buf(&mut buffer.limit(READ_BYTES_MAX)).await
    }
}

/// The half that is read from.
#[derive(Debug)]
pub struct ReadEnd {
    half: OwnedReadHalf,
    channel: Option<Rc<RefCell<Channel>>>,
    /// Where what is read counts, if it is a client's.
    inbox: Option<Rc<Inbox>>,
}

/// The half that is written to.
#[derive(Debug)]
pub(super) struct WriteEnd {
    half: OwnedWriteHalf,
    channel: Option<Rc<RefCell<Channel>>>,
}

/// Both halves of a connection.
pub(super) fn split(shaken: Shaken) -> (ReadEnd, WriteEnd) {
    let (reader, writer) = shaken.stream.into_split();
    let channel = shaken.channel.map(|channel| Rc::new(RefCell::new(channel)));
    let reader = ReadEnd {
        half: reader,
        channel: channel.clone(),
        inbox: None,
    };
    let writer = WriteEnd {
        half: writer,
        channel,
    };
    (reader, writer)
}

impl Source for ReadEnd {
    async fn fill(&mut self, buffer: &mut BytesMut, chunk_bytes: usize) -> io::Result<usize> {
        loop {
            let (received, work) = self.receive(buffer, chunk_bytes).await?;
            if let Some(inbox) = &self.inbox {
                inbox.turn(work).await;
            }
            match received {
                Received::Bytes(0) => {}
                Received::Bytes(count) => return Ok(count),
                Received::End => return Ok(0),
            }
        }
    }
}

impl ReadEnd {
    /// Makes reads take their turns ([`Inbox::turn`]), from the first byte on.
    pub(super) fn by_turns(self, inbox: Rc<Inbox>) -> ReadEnd {
        ReadEnd {
            inbox: Some(inbox),
            ..self
        }
    }

    /// Reads once. Returns what came, and how much work it was.
    async fn receive(
        &mut self,
        buffer: &mut BytesMut,
        chunk_bytes: usize,
    ) -> io::Result<(Received, usize)> {
        let half = &mut self.half;
        let Some(channel) = &self.channel else {
            return Ok(match half.fill(buffer, chunk_bytes).await? {
                0 => (Received::End, 0),
                count => (Received::Bytes(count), count),
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

impl WriteEnd {
    /// Writes what the socket takes now, and removes it from `buffer`.
    ///
    /// # Errors
    /// `WouldBlock` if something is left; `WriteZero` if it takes no more; or the socket's.
    pub(super) fn write(&self, buffer: &mut BytesMut) -> io::Result<()> {
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

    /// Bytes that were removed from the buffer, and wait for the socket in another form.
    pub(super) fn unsent(&self) -> usize {
        let channel = self.channel.as_ref();
        channel.map_or(0, |channel| channel.borrow().unsent())
    }

    /// Waits until the socket takes something.
    ///
    /// # Errors
    /// If the connection failed.
    pub(super) async fn writable(&self) -> io::Result<()> {
        self.half.writable().await
    }

    /// Waits until the other end has reset the connection, or it has failed otherwise. That the
    /// other end sends no more is neither.
    pub(super) async fn reset(&self) {
        let _ = self.half.ready(Interest::ERROR).await;
    }

    /// Ends the stream of bytes, so that the other side reads to its end.
    pub(super) fn shut(&self) {
        self.say_end();
        let socket = self.half.as_ref();
        // A connection that is gone already needs no end.
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
    }

    /// Makes the kernel forget what it has taken and not sent, once the connection is closed.
    /// Otherwise the kernel would keep it for a client that reads a byte now and then.
    pub(super) fn forget(&self) {
        let _ = sockopt::set_socket_linger(self.half.as_ref(), Some(Duration::ZERO));
    }

    fn say_end(&self) {
        if let Some(channel) = &self.channel {
            channel.borrow_mut().end(self.half.as_ref());
        }
    }
}

impl Drop for WriteEnd {
    fn drop(&mut self) {
        self.say_end();
    }
}

impl From<OwnedWriteHalf> for WriteEnd {
    fn from(half: OwnedWriteHalf) -> WriteEnd {
        WriteEnd {
            half,
            channel: None,
        }
    }
}
