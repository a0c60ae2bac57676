//! Classification of operations. Each function is an exhaustive `match`, so a new operation must be
//! classified in all functions. Other code that treats some operations differently from others uses
//! these functions.

use bytes::Bytes;

use super::command::Op;
use super::{Command, Get, KeyValue, MultiGet, Scan, Txn};

/// An operation that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReadOp<'a> {
    /// Read of one key.
    Get(&'a Get),
    /// Read of several keys.
    MultiGet(&'a MultiGet),
    /// Read of a range of keys.
    Scan(&'a Scan),
}

impl Op {
    /// Returns true if the operation is not a [`ReadOp`]. A transaction counts as a write even if
    /// it only reads. A command with such an operation needs a session.
    #[inline]
    pub fn is_write(&self) -> bool {
        self.as_read().is_none()
    }

    /// Returns the operation as a read; `None` if it is a write.
    #[inline]
    pub fn as_read(&self) -> Option<ReadOp<'_>> {
        match self {
            Op::Get(get) => Some(ReadOp::Get(get)),
            Op::MultiGet(get) => Some(ReadOp::MultiGet(get)),
            Op::Scan(scan) => Some(ReadOp::Scan(scan)),
            Op::Put(_) | Op::Delete(_) | Op::Cas(_) | Op::PutFields(_) => None,
            Op::MultiPut(_) | Op::Txn(_) => None,
        }
    }

    /// Returns the keys of the values that the operation may read as a whole and write again. This
    /// takes time in proportion to the stored value.
    pub fn rewritten_keys(&self) -> impl Iterator<Item = &Bytes> {
        let (merge, txn) = match self {
            Op::Txn(txn) => (None, Some(txn)),
            Op::PutFields(put) => (Some(&put.key), None),
            Op::Put(_) | Op::Delete(_) | Op::Cas(_) | Op::MultiPut(_) => (None, None),
            Op::Get(_) | Op::MultiGet(_) | Op::Scan(_) => (None, None),
        };
        let of_txn = txn.into_iter().flat_map(Txn::rewritten_keys);
        merge.into_iter().chain(of_txn)
    }

    /// Returns true if the operation is a write to one key and its result does not depend on the
    /// state. Such a write may be answered before it is executed.
    #[inline]
    pub fn is_blind_write(&self) -> bool {
        match self {
            Op::Put(_) | Op::Delete(_) => true,
            Op::Cas(_) | Op::PutFields(_) | Op::MultiPut(_) | Op::Txn(_) => false,
            Op::Get(_) | Op::MultiGet(_) | Op::Scan(_) => false,
        }
    }

    /// Returns true if the operation may name several keys. The keys that a transaction compares or
    /// reads count, too (hazard 34).
    #[inline]
    pub fn is_multi(&self) -> bool {
        self.one_key().is_none()
    }

    /// Returns the key of an operation on one key. Returns `None` for a multi-get, a multi-put or a
    /// scan, even if it names only one key.
    #[inline]
    pub fn one_key(&self) -> Option<&Bytes> {
        match self {
            Op::Get(op) => Some(&op.key),
            Op::Put(op) => Some(&op.key),
            Op::Delete(op) => Some(&op.key),
            Op::Cas(op) => Some(&op.key),
            Op::PutFields(op) => Some(&op.key),
            Op::Txn(op) => op.one_key(),
            Op::MultiGet(_) | Op::MultiPut(_) | Op::Scan(_) => None,
        }
    }

    /// Returns every key that the operation names, in order. Returns no keys for a scan, because a
    /// scan names a range.
    #[inline]
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        keys(Some(self), Txn::keys)
    }

    /// Returns every key that the operation may write, in order.
    #[inline]
    pub fn written_keys(&self) -> impl Iterator<Item = &Bytes> {
        written_keys(Some(self))
    }
}

#[inline]
fn written_keys(op: Option<&Op>) -> impl Iterator<Item = &Bytes> {
    keys(op.filter(|op| op.is_write()), Txn::written_keys)
}

#[inline]
fn keys<'a, I: Iterator<Item = &'a Bytes>>(
    op: Option<&'a Op>,
    of_txn: impl Fn(&'a Txn) -> I,
) -> impl Iterator<Item = &'a Bytes> {
    let mut one = op.and_then(Op::one_key);
    let mut txn = None;
    let (many, entries): (&[Bytes], &[KeyValue]) = match op {
        Some(Op::MultiGet(op)) => (&op.keys, &[]),
        Some(Op::MultiPut(op)) => (&[], &op.entries),
        Some(Op::Txn(op)) => {
            (one, txn) = (None, Some(op));
            (&[], &[])
        }
        Some(Op::Get(_) | Op::Put(_) | Op::Delete(_) | Op::Cas(_) | Op::PutFields(_)) => (&[], &[]),
        Some(Op::Scan(_)) | None => (&[], &[]),
    };
    one.into_iter()
        .chain(many)
        .chain(entries.iter().map(|entry| &entry.key))
        .chain(txn.into_iter().flat_map(of_txn))
}

impl Command {
    /// Returns the result of [`Op::is_write`] for the command's operation. Returns false if the
    /// command has no operation.
    #[inline]
    pub fn is_write(&self) -> bool {
        self.op.as_ref().is_some_and(Op::is_write)
    }

    /// Returns the result of [`Op::as_read`] for the command's operation. Returns `None` if the
    /// command has no operation.
    #[inline]
    pub fn as_read(&self) -> Option<ReadOp<'_>> {
        self.op.as_ref().and_then(Op::as_read)
    }

    /// Returns the keys that [`Op::rewritten_keys`] returns for the command's operation. If there is
    /// no operation, there are no keys.
    pub fn rewritten_keys(&self) -> impl Iterator<Item = &Bytes> {
        self.op.iter().flat_map(Op::rewritten_keys)
    }

    /// Returns the result of [`Op::is_blind_write`] for the command's operation. Returns false if
    /// the command has no operation.
    #[inline]
    pub fn is_blind_write(&self) -> bool {
        self.op.as_ref().is_some_and(Op::is_blind_write)
    }

    /// Returns the result of [`Op::is_multi`] for the command's operation. Returns false if the
    /// command has no operation.
    #[inline]
    pub fn is_multi(&self) -> bool {
        self.op.as_ref().is_some_and(Op::is_multi)
    }

    /// Returns the keys that [`Op::keys`] returns for the command's operation. If there is no
    /// operation, there are no keys.
    #[inline]
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        keys(self.op.as_ref(), Txn::keys)
    }

    /// Returns the keys that [`Op::written_keys`] returns for the command's operation. If there is
    /// no operation, there are no keys.
    #[inline]
    pub fn written_keys(&self) -> impl Iterator<Item = &Bytes> {
        written_keys(self.op.as_ref())
    }
}
