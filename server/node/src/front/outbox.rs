//! The writing half of a connection: a buffer that the driver fills and writes
//! without waiting, and that the connection's own task drains when the socket
//! takes no more.

use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::rc::Rc;

use bytes::BytesMut;
use tokio::sync::Notify;

use crate::security::halves::WriteHalf;

/// A buffer that a burst made larger than this is freed.
const KEPT_BYTES: usize = 1 << 20;

/// Bytes that wait in several outboxes together.
#[derive(Debug, Default)]
pub(crate) struct UnreadBytes {
    now: Cell<usize>,
    most: Cell<usize>,
}

impl UnreadBytes {
    /// Bytes that wait now.
    pub(crate) fn now(&self) -> usize {
        self.now.get()
    }

    /// The most bytes that ever waited.
    pub(crate) fn most(&self) -> usize {
        self.most.get()
    }
}

#[derive(Debug)]
pub(crate) struct Outbox {
    writer: WriteHalf,
    buffer: RefCell<BytesMut>,
    unread: Rc<UnreadBytes>,
    /// Bytes of this outbox that are counted in `unread`.
    counted: Cell<usize>,
    /// The socket was full when last tried.
    blocked: Cell<bool>,
    broken: Cell<bool>,
    /// Its task is to end, whether or not something waits.
    interrupted: Cell<bool>,
    /// Bytes that the socket has taken.
    taken: Cell<u64>,
    changed: Notify,
    /// The socket has taken something.
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

    /// The buffer, for appending frames. It must not be held across an await.
    pub(crate) fn buffer(&self) -> RefMut<'_, BytesMut> {
        self.buffer.borrow_mut()
    }

    /// Bytes not yet taken by the socket.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.buffer.borrow().len() + self.sealed_bytes()
    }

    /// Bytes that left the buffer and wait for the socket. Of a broken connection they are
    /// freed with it, which is soon.
    fn sealed_bytes(&self) -> usize {
        if self.broken.get() {
            0
        } else {
            self.writer.unsent()
        }
    }

    /// Bytes that the socket has taken since the connection began.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken.get()
    }

    /// Counts what was appended, or written.
    pub(crate) fn update_unread(&self) {
        let pending = self.pending_bytes();
        let others = self.unread.now.get() - self.counted.replace(pending);
        self.unread.now.set(others + pending);
        self.unread
            .most
            .set(self.unread.most.get().max(others + pending));
    }

    /// Whether nothing can be sent any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Gives the connection up: its task ends, and what was not written is freed.
    pub(crate) fn abandon(&self) {
        self.broken.set(true);
        *self.buffer.borrow_mut() = BytesMut::new();
        self.writer.discard_unsent();
        self.update_unread();
        self.changed.notify_one();
    }

    /// Ends [`Outbox::drain`]; what waits may still be written.
    pub(crate) fn interrupt(&self) {
        self.interrupted.set(true);
        self.changed.notify_one();
    }

    /// Writes what the socket takes now.
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

    /// Waits until at most so many bytes wait for the socket.
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
        // Sealing adds some bytes, which are not what the client has taken.
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

    /// Writes whatever a flush had to leave, for as long as the connection
    /// lives. Returns when it is broken, abandoned or interrupted. That it is broken is noticed
    /// also while nothing is read from it and nothing is to be written.
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

    /// Drains until nothing is left to write, or the connection is broken.
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

    /// Ends the stream of bytes, so that the other side reads to its end.
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
