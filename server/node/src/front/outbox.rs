//! The writing half of a connection, with a buffer. The driver fills the buffer and writes its
//! bytes without waiting. If the socket takes no more bytes, the connection's own task writes the
//! rest later.
//!
//! Many bytes may wait for a client that reads slowly. They are kept in parts. A single buffer would
//! be copied each time it grows, and the allocator would keep the memory of its smaller forms for a
//! while.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use bytes::BytesMut;
use leasehold_wire::VALUE_BYTES_MAX;
use tokio::sync::Notify;

use crate::security::halves::WriteHalf;

/// Capacity in bytes above which an empty buffer is freed. Such a buffer has grown in a burst. A
/// buffer for one answer with the longest value is kept, because new memory takes time.
const KEPT_BYTES: usize = VALUE_BYTES_MAX + (64 << 10);
/// Length in bytes from which a buffer is put aside as a part, and a new buffer begins.
const PART_BYTES: usize = VALUE_BYTES_MAX;

/// Counter of unsent bytes in several outboxes.
#[derive(Debug, Default)]
pub(crate) struct UnreadBytes {
    now: Cell<usize>,
    most: Cell<usize>,
}

impl UnreadBytes {
    /// Returns the current number of unsent bytes.
    pub(crate) fn now(&self) -> usize {
        self.now.get()
    }

    /// Returns the highest number of unsent bytes so far.
    pub(crate) fn most(&self) -> usize {
        self.most.get()
    }
}

#[derive(Debug)]
pub(crate) struct Outbox {
    writer: WriteHalf,
    /// Parts that are written before the buffer, in order. None of them is empty.
    parts: RefCell<VecDeque<BytesMut>>,
    /// Number of bytes in `parts`.
    part_bytes: Cell<usize>,
    buffer: RefCell<BytesMut>,
    unread: Rc<UnreadBytes>,
    /// Number of bytes of this outbox that are counted in `unread`.
    counted: Cell<usize>,
    /// Whether the socket accepted no more bytes at the last attempt to write.
    blocked: Cell<bool>,
    broken: Cell<bool>,
    /// Whether [`Outbox::drain`] must return, even if bytes wait.
    interrupted: Cell<bool>,
    /// Number of bytes that the socket has taken since the connection began.
    taken: Cell<u64>,
    changed: Notify,
    /// Notified when the socket has taken some bytes.
    progress: Notify,
}

impl Outbox {
    /// Creates an outbox. The bytes that wait in it are counted in `unread`.
    pub(crate) fn new(writer: impl Into<WriteHalf>, unread: Rc<UnreadBytes>) -> Outbox {
        Outbox {
            writer: writer.into(),
            parts: RefCell::default(),
            part_bytes: Cell::new(0),
            buffer: RefCell::default(),
            unread,
            counted: Cell::new(0),
            blocked: Cell::new(false),
            broken: Cell::new(false),
            interrupted: Cell::new(false),
            taken: Cell::new(0),
            changed: Notify::new(),
            progress: Notify::new(),
        }
    }

    /// Returns the buffer, to which frames may be appended. The reference must not be held across
    /// an await.
    pub(crate) fn buffer(&self) -> RefMut<'_, BytesMut> {
        let mut buffer = self.buffer.borrow_mut();
        if buffer.len() >= PART_BYTES {
            let part = std::mem::take(&mut *buffer);
            self.part_bytes.set(self.part_bytes.get() + part.len());
            self.parts.borrow_mut().push_back(part);
        }
        buffer
    }

    /// Returns the number of bytes that the socket has not taken yet.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.buffered_bytes() + self.sealed_bytes()
    }

    fn buffered_bytes(&self) -> usize {
        self.part_bytes.get() + self.buffer.borrow().len()
    }

    /// Frees all bytes that wait.
    pub(crate) fn free(&self) {
        self.parts.take();
        self.part_bytes.set(0);
        self.buffer.take();
    }

    /// Returns the number of encrypted bytes that have left the buffer and wait for the socket. For
    /// a broken connection the result is 0, because these bytes are soon freed with the connection.
    fn sealed_bytes(&self) -> usize {
        if self.broken.get() {
            0
        } else {
            self.writer.unsent()
        }
    }

    /// Returns the number of bytes that the socket has taken since the connection began.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken.get()
    }

    /// Updates the shared count `unread`. Must be called after bytes were appended or written.
    pub(crate) fn update_unread(&self) {
        let pending = self.pending_bytes();
        let others = self.unread.now.get() - self.counted.replace(pending);
        self.unread.now.set(others + pending);
        self.unread
            .most
            .set(self.unread.most.get().max(others + pending));
    }

    /// Whether no more bytes can be sent.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Abandons the connection: the connection's task ends, and unwritten bytes are freed.
    pub(crate) fn abandon(&self) {
        self.broken.set(true);
        self.free();
        self.writer.discard_unsent();
        self.update_unread();
        self.changed.notify_one();
    }

    /// Makes [`Outbox::drain`] return. Waiting bytes may still be written afterwards.
    pub(crate) fn interrupt(&self) {
        self.interrupted.set(true);
        self.changed.notify_one();
    }

    /// Writes as many bytes as the socket takes now.
    pub(crate) fn flush(&self) {
        if self.blocked.get() || self.broken.get() {
            return;
        }
        self.write();
        if self.blocked.get() || self.broken.get() {
            self.changed.notify_one();
        }
    }

    fn write(&self) {
        self.write_some();
        self.update_unread();
        self.progress.notify_waiters();
    }

    /// Waits until at most `bytes` bytes are left for the socket.
    pub(crate) async fn wait_until_at_most(&self, bytes: usize) {
        while self.pending_bytes() > bytes {
            self.progress.notified().await;
        }
    }

    fn write_some(&self) {
        let before = self.buffered_bytes() + self.writer.unsent();
        let written = self.write_parts().and_then(|()| self.write_buffer());
        let after = self.buffered_bytes() + self.writer.unsent();
        // Sealing adds some bytes, which do not count as taken by the client.
        let taken = before.saturating_sub(after) as u64;
        self.taken.set(self.taken.get() + taken);
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.blocked.set(true),
            Err(_) => self.broken.set(true),
        }
    }

    fn write_parts(&self) -> io::Result<()> {
        let mut parts = self.parts.borrow_mut();
        while let Some(part) = parts.front_mut() {
            let before = part.len();
            let written = self.writer.write(part);
            let taken = before - part.len();
            self.part_bytes.set(self.part_bytes.get() - taken);
            // An empty part is removed. Its last bytes may wait in the writer, encrypted.
            if part.is_empty() {
                parts.pop_front();
            }
            written?;
        }
        Ok(())
    }

    fn write_buffer(&self) -> io::Result<()> {
        let mut buffer = self.buffer.borrow_mut();
        let written = self.writer.write(&mut buffer);
        if buffer.is_empty() && buffer.capacity() > KEPT_BYTES {
            *buffer = BytesMut::new();
        }
        written
    }

    /// Writes bytes that [`Outbox::flush`] could not write, for as long as the connection lives.
    /// Returns when the connection is broken, abandoned or interrupted. A broken connection is
    /// noticed even if nothing is read from it and no bytes wait to be written.
    pub(crate) async fn drain(&self) {
        let reset = self.writer.reset();
        tokio::pin!(reset);
        while !self.broken.get() && !self.interrupted.get() {
            tokio::select! {
                ready = self.writer.writable(), if self.blocked.get() => match ready {
                    Ok(()) => {
                        self.blocked.set(false);
                        self.write();
                    }
                    Err(_) => self.broken.set(true),
                },
                () = self.changed.notified() => {}
                () = &mut reset => self.broken.set(true),
            }
        }
    }

    /// Writes until all bytes are written, or the connection is broken.
    pub(crate) async fn wait_until_empty(&self) {
        self.flush();
        while self.pending_bytes() > 0 && !self.broken.get() {
            if self.writer.writable().await.is_err() {
                return;
            }
            self.blocked.set(false);
            self.write();
        }
    }

    /// Ends the stream of bytes. The other side reads an end of stream after the last byte.
    pub(crate) fn shutdown_write(&self) {
        self.writer.shutdown_write();
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.free();
        self.broken.set(true);
        self.update_unread();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn bytes_wait_in_parts_and_arrive_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap());
        let (stream, accepted) = tokio::join!(stream, listener.accept());
        let (unread, writer) = (Rc::<UnreadBytes>::default(), stream.unwrap().into_split().1);
        let outbox = Outbox::new(writer, unread.clone());
        let mut sent = Vec::new();
        for number in 0..60_u8 {
            let frame = vec![number; 700 << 10];
            outbox.buffer().extend_from_slice(&frame);
            outbox.update_unread();
            outbox.flush();
            sent.extend(frame);
        }
        let waiting = sent.len() - outbox.taken_bytes() as usize;
        assert_eq!((outbox.pending_bytes(), unread.now()), (waiting, waiting));
        assert!(
            outbox.parts.borrow().len() > 10,
            "the socket takes some MiB"
        );
        let largest = outbox.parts.borrow().iter().map(BytesMut::capacity).max();
        assert!(largest <= Some(3 * PART_BYTES), "{largest:?}");

        let mut read = vec![0; sent.len()];
        let mut reader = accepted.unwrap().0;
        let (received, ()) = tokio::join!(reader.read_exact(&mut read), outbox.wait_until_empty());
        received.unwrap();
        assert!(read == sent, "every byte arrives, in order");
        assert_eq!((outbox.pending_bytes(), unread.now()), (0, 0));

        outbox.buffer().extend_from_slice(&sent);
        outbox.update_unread();
        assert_eq!(unread.now(), sent.len());
        drop(outbox);
        assert_eq!(unread.now(), 0);
    }
}
