//! Classification of operations. Each function is an exhaustive `match`, so a new operation must be
//! classified in all functions. Other code that treats some operations differently from others uses
//! these functions.

use bytes::Bytes;

use super::command::Op;
use super::{Command, Get, KeyValue, MultiGet, PutFields, Scan};

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
    /// Returns true if the operation may change the state. A command with such an operation needs a
    /// session.
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
            Op::Put(_) | Op::Delete(_) | Op::Cas(_) | Op::PutFields(_) | Op::MultiPut(_) => None,
        }
    }

    /// Returns the operation if it merges fields into a record; `None` if it is another operation.
    #[inline]
    pub fn as_merge(&self) -> Option<&PutFields> {
        match self {
            Op::PutFields(put) => Some(put),
            Op::Put(_) | Op::Delete(_) | Op::Cas(_) | Op::MultiPut(_) => None,
            Op::Get(_) | Op::MultiGet(_) | Op::Scan(_) => None,
        }
    }

    /// Returns true if the operation is a write to one key and its result does not depend on the
    /// state. Such a write may be answered before it is executed.
    #[inline]
    pub fn is_blind_write(&self) -> bool {
        match self {
            Op::Put(_) | Op::Delete(_) => true,
            Op::Cas(_) | Op::PutFields(_) | Op::MultiPut(_) => false,
            Op::Get(_) | Op::MultiGet(_) | Op::Scan(_) => false,
        }
    }

    /// Returns true if the operation may name several keys.
    #[inline]
    pub fn is_multi(&self) -> bool {
        self.one_key().is_none()
    }

    /// Returns the key of an operation on one key. Returns `None` for an operation on several keys,
    /// even if it names only one.
    #[inline]
    pub fn one_key(&self) -> Option<&Bytes> {
        match self {
            Op::Get(op) => Some(&op.key),
            Op::Put(op) => Some(&op.key),
            Op::Delete(op) => Some(&op.key),
            Op::Cas(op) => Some(&op.key),
            Op::PutFields(op) => Some(&op.key),
            Op::MultiGet(_) | Op::MultiPut(_) | Op::Scan(_) => None,
        }
    }

    /// Returns every key that the operation names, in order. Returns no keys for a scan, because a
    /// scan names a range.
    #[inline]
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        keys(Some(self))
    }
}

#[inline]
fn keys(op: Option<&Op>) -> impl Iterator<Item = &Bytes> {
    let one = op.and_then(Op::one_key);
    let (many, entries): (&[Bytes], &[KeyValue]) = match op {
        Some(Op::MultiGet(op)) => (&op.keys, &[]),
        Some(Op::MultiPut(op)) => (&[], &op.entries),
        Some(Op::Get(_) | Op::Put(_) | Op::Delete(_) | Op::Cas(_) | Op::PutFields(_)) => (&[], &[]),
        Some(Op::Scan(_)) | None => (&[], &[]),
    };
    one.into_iter()
        .chain(many)
        .chain(entries.iter().map(|entry| &entry.key))
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

    /// Returns the result of [`Op::as_merge`] for the command's operation. Returns `None` if the
    /// command has no operation.
    #[inline]
    pub fn as_merge(&self) -> Option<&PutFields> {
        self.op.as_ref().and_then(Op::as_merge)
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
        keys(self.op.as_ref())
    }
}
