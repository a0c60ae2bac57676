//! The two halves of a client's connection, in plain text or over TLS.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

#[cfg(not(feature = "tls"))]
pub use self::without_tls::Channel;
#[cfg(not(feature = "tls"))]
use self::without_tls::ReadProgress;
#[cfg(feature = "tls")]
pub use crate::tls::Channel;
#[cfg(feature = "tls")]
use crate::tls::ReadProgress;

/// Maximum capacity, in bytes, of an empty buffer that is kept for later data. A larger buffer is
/// freed.
const KEPT_BYTES: usize = 16 << 10;
/// Maximum amount of plaintext, in bytes, that is copied before it is sealed.
const COPIED_BYTES: usize = 64 << 10;

type SharedChannel = Arc<Mutex<Channel>>;

/// Reading half of a connection.
pub struct ClientReadHalf {
    half: OwnedReadHalf,
    tls: Option<(SharedChannel, BytesMut)>,
}

/// Writing half of a connection.
pub struct ClientWriteHalf {
    half: OwnedWriteHalf,
    tls: Option<(SharedChannel, BytesMut)>,
}

/// Splits a connection into its halves. If `channel` is given, both halves use TLS.
pub fn split(stream: TcpStream, channel: Option<Channel>) -> (ClientReadHalf, ClientWriteHalf) {
    let (reader, writer) = stream.into_split();
    let shared = channel.map(|channel| Arc::new(Mutex::new(channel)));
    let tls = || Some((shared.clone()?, BytesMut::new()));
    let (opened, sealed) = (tls(), tls());
    let reader = ClientReadHalf {
        half: reader,
        tls: opened,
    };
    let writer = ClientWriteHalf {
        half: writer,
        tls: sealed,
    };
    (reader, writer)
}

fn lock(shared: &SharedChannel) -> MutexGuard<'_, Channel> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AsyncRead for ClientReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some((shared, plain)) = &mut this.tls else {
            return Pin::new(&mut this.half).poll_read(cx, buffer);
        };
        while plain.is_empty() {
            let received = lock(shared).poll_receive(cx, &mut this.half, plain);
            if ready!(received)? == ReadProgress::End {
                return Poll::Ready(Ok(()));
            }
        }
        let count = plain.len().min(buffer.remaining());
        buffer.put_slice(&plain[..count]);
        plain.advance(count);
        if plain.is_empty() && plain.capacity() > KEPT_BYTES {
            *plain = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl ClientWriteHalf {
    /// Waits until all accepted data has been written.
    fn poll_empty(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((shared, plain)) = &mut self.tls else {
            return Poll::Ready(Ok(()));
        };
        let stream: &TcpStream = self.half.as_ref();
        loop {
            let sent = lock(shared).send(stream, plain);
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(stream.poll_write_ready(cx))?;
                }
                other => return Poll::Ready(other),
            }
        }
    }
}

impl AsyncWrite for ClientWriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.tls.is_none() {
            return Pin::new(&mut this.half).poll_write(cx, bytes);
        }
        ready!(this.poll_empty(cx))?;
        let count = bytes.len().min(COPIED_BYTES);
        if let Some((_, plain)) = &mut this.tls {
            plain.extend_from_slice(&bytes[..count]);
        }
        // The bytes are accepted, whether or not they are written already; a flush waits until they
        // are.
        match this.poll_empty(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(count)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_empty(cx))?;
        Pin::new(&mut this.half).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_empty(cx))?;
        if let Some((shared, _)) = &this.tls {
            lock(shared).end(this.half.as_ref());
        }
        Pin::new(&mut this.half).poll_shutdown(cx)
    }
}

impl Drop for ClientWriteHalf {
    fn drop(&mut self) {
        if let Some((shared, _)) = &self.tls {
            lock(shared).end(self.half.as_ref());
        }
    }
}

/// Replacement for the channel in builds without the feature `tls`. In such builds, every
/// connection is in plain text, so the type of the channel has no values.
#[cfg(not(feature = "tls"))]
mod without_tls {
    use std::io;
    use std::task::{Context, Poll};

    use bytes::BytesMut;
    use tokio::net::TcpStream;
    use tokio::net::tcp::OwnedReadHalf;

    /// Channel type without values.
    #[derive(Debug)]
    pub enum Channel {}

    /// Progress of a read from a channel.
    #[derive(PartialEq)]
    pub(super) enum ReadProgress {
        #[allow(dead_code)]
        End,
    }

    impl Channel {
        pub(super) fn poll_receive(
            &mut self,
            _: &mut Context<'_>,
            _: &mut OwnedReadHalf,
            _: &mut BytesMut,
        ) -> Poll<io::Result<ReadProgress>> {
            match *self {}
        }

        pub(super) fn send(&mut self, _: &TcpStream, _: &mut BytesMut) -> io::Result<()> {
            match *self {}
        }

        pub(super) fn end(&mut self, _: &TcpStream) {
            match *self {}
        }
    }
}
