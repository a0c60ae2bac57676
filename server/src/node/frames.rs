//! The reading half of a connection, in frames. All that arrived together is
//! handed on together.

use std::io;

use bytes::{Bytes, BytesMut};
use client::wire::{FrameError, split_frame};
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

/// Reads frames, without copying what is in them.
#[derive(Debug)]
pub(super) struct Frames {
    reader: OwnedReadHalf,
    buffer: BytesMut,
    chunk_bytes: usize,
}

impl Frames {
    /// Asks the socket for about `chunk_bytes` at a time, which is also what an
    /// idle connection holds.
    pub(super) fn new(reader: OwnedReadHalf, chunk_bytes: usize) -> Frames {
        Frames {
            reader,
            buffer: BytesMut::new(),
            chunk_bytes,
        }
    }

    /// Waits for more bytes; false at the end of the connection. May be dropped
    /// and called again without losing anything.
    pub(super) async fn fill(&mut self) -> io::Result<bool> {
        let room = self.buffer.capacity() - self.buffer.len();
        if room < self.chunk_bytes / 4 {
            self.buffer.reserve(self.chunk_bytes);
        }
        Ok(self.reader.read_buf(&mut self.buffer).await? > 0)
    }

    /// The next frame that has arrived whole.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        split_frame(&mut self.buffer)
    }

    /// Waits for one frame; `None` at the end of the connection.
    pub(super) async fn wait(&mut self) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let Some(frame) = self.next()? {
                return Ok(Some(frame));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// Reads to the end of the connection and forgets it.
    pub(super) async fn discard(&mut self) {
        self.buffer.clear();
        while let Ok(true) = self.fill().await {
            self.buffer.clear();
        }
    }
}
