//! The writing half of a connection, with a buffer. The driver fills the buffer and writes its
//! bytes without waiting. If the socket takes no more bytes, the connection's own task writes the
//! rest later.

use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::rc::Rc;

use bytes::BytesMut;
use leasehold_wire::VALUE_BYTES_MAX;
use tokio::sync::Notify;

use crate::security::halves::WriteHalf;

/// Capacity in bytes above which an empty buffer is freed. Such a buffer has grown in a burst. A
/// buffer for one answer with the longest value is kept, because new memory takes time.
const KEPT_BYTES: usize = VALUE_BYTES_MAX + (64 << 10);

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
        self.buffer.borrow_mut()
    }

    /// Returns the number of bytes that the socket has not taken yet.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.buffer.borrow().len() + self.sealed_bytes()
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
        *self.buffer.borrow_mut() = BytesMut::new();
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
        let mut buffer = self.buffer.borrow_mut();
        let before = buffer.len() + self.writer.unsent();
        let written = self.writer.write(&mut buffer);
        let after = buffer.len() + self.writer.unsent();
        // Sealing adds some bytes, which do not count as taken by the client.
        let taken = before.saturating_sub(after) as u64;
        self.taken.set(self.taken.get() + taken);
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.blocked.set(true),
            Err(_) => self.broken.set(true),
        }
        if buffer.is_empty() && buffer.capacity() > KEPT_BYTES {
            *buffer = BytesMut::new();
        }
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
        self.buffer.get_mut().clear();
        self.broken.set(true);
        self.update_unread();
    }
}
