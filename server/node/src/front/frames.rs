//! The reading half of a connection, which divides the bytes into frames. Frames that arrived
//! together are passed on together.

use std::io;

use bytes::{Bytes, BytesMut};
use leasehold_wire::{FrameError, split_frame, split_frame_at_most};

use crate::security::halves::{ByteSource, ReadHalf};

/// Reader of frames. It does not copy the contents of frames.
#[derive(Debug)]
pub struct Frames<R = ReadHalf> {
    reader: R,
    buffer: BytesMut,
    chunk_bytes: usize,
}

impl<R: ByteSource> Frames<R> {
    /// Creates a reader that requests about `chunk_bytes` bytes from the socket at a time. Even an
    /// idle connection takes this much memory.
    pub fn new(reader: R, chunk_bytes: usize) -> Self {
        Frames {
            reader,
            buffer: BytesMut::new(),
            chunk_bytes,
        }
    }

    /// Waits for more bytes, and returns their number, or 0 at the end of the connection. No bytes
    /// are lost if the future is dropped and the method is called again.
    ///
    /// # Errors
    /// Fails if the connection has failed.
    pub async fn fill(&mut self) -> io::Result<usize> {
        self.reader.fill(&mut self.buffer, self.chunk_bytes).await
    }

    /// Returns the next frame that has arrived completely; `None` if there is none yet.
    ///
    /// # Errors
    /// `TooLong`, which is returned as soon as the length of the frame has arrived.
    #[allow(clippy::should_implement_trait, reason = "an error is not an item")]
    pub fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        let frame = split_frame(&mut self.buffer)?;
        if frame.as_ref().is_some_and(|f| f.len() > self.chunk_bytes) {
            self.detach_buffer();
        }
        Ok(frame)
    }

    /// Moves the bytes that follow a large frame to a new buffer. Otherwise the small frames among
    /// these bytes would keep the whole old buffer in memory.
    fn detach_buffer(&mut self) {
        let mut rest = BytesMut::new();
        rest.extend_from_slice(&self.buffer);
        self.buffer = rest;
    }

    /// Returns the number of bytes of an incomplete frame. Must be called after [`Frames::next`]
    /// has returned `None`.
    pub(crate) fn partial_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Waits for the next frame. Returns `None` at the end of the connection.
    ///
    /// # Errors
    /// `TooLong`, `Io`.
    pub async fn wait(&mut self) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let Some(frame) = self.next()? {
                return Ok(Some(frame));
            }
            if self.fill().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Waits for one frame like [`Frames::wait`], but refuses a frame of more than `bytes` bytes as
    /// soon as its length has arrived. Used as long as the peer or client has not identified
    /// itself.
    ///
    /// # Errors
    /// `TooLong`, `Io`.
    pub(crate) async fn wait_at_most(&mut self, bytes: usize) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let Some(frame) = split_frame_at_most(&mut self.buffer, bytes)? {
                return Ok(Some(frame));
            }
            if self.fill().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Reads and discards all bytes up to the end of the connection.
    pub(crate) async fn discard(&mut self) {
        self.buffer = BytesMut::new();
        while let Ok(1..) = self.fill().await {
            self.buffer.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_small_frame_does_not_keep_the_memory_of_a_large_one_before_it() {
        let mut sent = Vec::new();
        for bytes in [1 << 20, 100] {
            sent.extend_from_slice(&(bytes as u32).to_be_bytes());
            sent.resize(sent.len() + bytes, 7);
        }
        let mut frames = Frames::new(&sent[..], 16 << 10);
        let large = frames.wait().await.unwrap().unwrap();
        let small = frames.wait().await.unwrap().unwrap();
        assert_eq!((large.len(), small.len()), (1 << 20, 100));
        let behind = large.as_ptr_range().end.wrapping_add(4);
        assert_ne!(small.as_ptr(), behind, "it is where it was read");
    }
}
