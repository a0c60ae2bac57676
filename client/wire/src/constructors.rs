//! Constructors of commands, outcomes, requests and responses.

use std::fmt;

use bytes::Bytes;
use prost::Message as _;

use super::command::Op;
use super::outcome;
use super::request::Body;
use super::{
    Command, CompareAndSwap, Delete, Entries, Entry, Error, ErrorCode, Field, Get, Hello, KeyValue,
    Mismatch, Missing, MultiGet, MultiPut, Outcome, Path, Put, PutFields, Request, Response, Scan,
    StatusReply, Txn, TxnResult, Value, Version,
};

impl Op {
    /// Returns an operation that reads one key.
    pub fn get(key: impl Into<Bytes>) -> Op {
        Op::Get(Get { key: key.into() })
    }

    /// Returns an operation that writes one key, whether or not the key exists.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Op {
        let (key, value) = (key.into(), value.into());
        Op::Put(Put { key, value })
    }

    /// Returns an operation that removes one key, whether or not the key exists.
    pub fn delete(key: impl Into<Bytes>) -> Op {
        Op::Delete(Delete { key: key.into() })
    }

    /// Returns an operation that writes `value` to `key` if the key's version is `expected`. If
    /// `expected` is `None`, the key must not exist.
    pub fn cas(key: impl Into<Bytes>, value: impl Into<Bytes>, expected: Option<Version>) -> Op {
        Op::Cas(CompareAndSwap {
            key: key.into(),
            value: value.into(),
            expected,
        })
    }

    /// Returns an operation that merges named fields into the record at `key`. The record is
    /// created if it is absent.
    pub fn put_fields(key: impl Into<Bytes>, fields: Vec<Field>) -> Op {
        let key = key.into();
        Op::PutFields(PutFields { key, fields })
    }

    /// Returns an operation that reads several keys at one moment.
    pub fn multi_get(keys: Vec<Bytes>) -> Op {
        Op::MultiGet(MultiGet { keys })
    }

    /// Returns an operation that writes several keys at one moment.
    pub fn multi_put(entries: Vec<KeyValue>) -> Op {
        Op::MultiPut(MultiPut { entries })
    }

    /// Returns an operation that executes one of two lists of operations at one moment.
    pub fn txn(txn: Txn) -> Op {
        Op::Txn(txn)
    }

    /// Returns an operation that reads up to `limit` entries with `from <= key < to`, in key order
    /// and at one moment. If `to` is empty, the range has no end.
    pub fn scan(from: impl Into<Bytes>, to: impl Into<Bytes>, limit: u32) -> Op {
        let (from, to) = (from.into(), to.into());
        Op::Scan(Scan { from, to, limit })
    }
}

/// Creates a command without a session, for instance for a read.
impl From<Op> for Command {
    fn from(op: Op) -> Command {
        Command::session(0, 0, 0, op)
    }
}

impl Body {
    /// Returns true if the request is a change: a write, a change of leases or a move of
    /// leadership.
    pub fn is_change(&self) -> bool {
        match self {
            Body::Command(command) => command.is_write(),
            Body::Status(_) => false,
            Body::Move(_) | Body::Lease(_) => true,
        }
    }
}

impl Command {
    /// Creates a command of the session `client`. The file `client.proto` explains `sequence` and
    /// `acked_below`.
    pub fn session(client: u64, sequence: u64, acked_below: u64, op: Op) -> Command {
        Command {
            client,
            sequence,
            acked_below,
            op: Some(op),
            opened_ms: 0,
        }
    }

    /// Copies the command into memory of its own. Without this copy, a command that was decoded
    /// from a frame keeps the frame's whole buffer in memory.
    pub fn in_own_memory(self) -> Command {
        Command::decode(Bytes::from(self.encode_to_vec())).unwrap_or(self)
    }

    /// Sets the earliest reading of the replicated clock, in ms, at which the session may have been
    /// opened.
    #[must_use]
    pub fn opened(mut self, log_time_ms: u64) -> Command {
        self.opened_ms = log_time_ms;
        self
    }
}

impl Outcome {
    fn of(result: outcome::Result) -> Outcome {
        Outcome {
            result: Some(result),
        }
    }

    /// Creates the outcome of a write that was executed. `version` is the version of the new value.
    pub fn written(version: Version) -> Outcome {
        Outcome::of(outcome::Result::Written(version))
    }

    /// Creates the outcome of a read that found a value.
    pub fn value(value: impl Into<Bytes>, version: Version) -> Outcome {
        Outcome::of(outcome::Result::Value(Value {
            value: value.into(),
            version: Some(version),
        }))
    }

    /// Creates the outcome of a read that did not find the key.
    pub fn missing() -> Outcome {
        Outcome::of(outcome::Result::Missing(Missing {}))
    }

    /// Creates the outcome of a compare-and-swap that wrote nothing. `actual` is the version of the
    /// key; `None` if the key does not exist.
    pub fn mismatch(actual: Option<Version>) -> Outcome {
        Outcome::of(outcome::Result::Mismatch(Mismatch { actual }))
    }

    /// Creates the outcome of a MultiGet or a Scan that found these entries.
    pub fn entries(entries: Vec<Entry>) -> Outcome {
        Outcome::of(outcome::Result::Entries(Entries { entries }))
    }

    /// Creates the outcome of a transaction.
    pub fn txn(result: TxnResult) -> Outcome {
        Outcome::of(outcome::Result::Txn(result))
    }

    /// Creates the outcome of a refused command.
    pub fn error(code: ErrorCode, message: impl Into<String>) -> Outcome {
        Error::new(code, message).into()
    }
}

impl From<Error> for Outcome {
    fn from(error: Error) -> Outcome {
        Outcome::of(outcome::Result::Error(error))
    }
}

impl Request {
    /// Creates the request `id`, which does not ask for a hint.
    pub fn new(id: u64, body: Option<Body>) -> Request {
        let hint = false;
        Request { id, body, hint }
    }
}

impl Response {
    /// Creates the answer to the command of request `id`.
    pub fn answer(id: u64, path: Path, outcome: Outcome) -> Response {
        Response {
            id,
            path: path.into(),
            outcome: Some(outcome),
            status: None,
            hint: None,
        }
    }

    /// Creates the answer to the status request `id`.
    pub fn status(id: u64, status: StatusReply) -> Response {
        Response {
            id,
            path: Path::Unspecified.into(),
            outcome: None,
            status: Some(Box::new(status)),
            hint: None,
        }
    }

    /// Returns true if the request was refused, or could not be executed.
    pub fn is_error(&self) -> bool {
        let result = self.outcome.as_ref().and_then(|it| it.result.as_ref());
        matches!(result, Some(outcome::Result::Error(_)))
    }

    /// Creates the refusal of request `id`. With `id` 0, it is the refusal of the connection
    /// itself.
    pub fn refusal(id: u64, error: Error) -> Response {
        Response::answer(id, Path::Unspecified, error.into())
    }
}

/// Formats the message without its token, because any reader of a log could use the token.
impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("magic", &self.magic)
            .field("cluster", &self.cluster)
            .field("has_token", &!self.token.is_empty())
            .finish()
    }
}

impl Error {
    /// Creates an error that is sent to the other side.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Error {
        Error {
            log_time_ms: 0,
            code: code.into(),
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &'static str, value: usize) -> KeyValue {
        KeyValue {
            key: key.into(),
            value: vec![0; value].into(),
        }
    }

    #[test]
    fn a_command_in_its_own_memory_keeps_nothing_else() {
        let padded = [&[0x7A, 0xC0, 0x3E][..], &[7; 8000]].concat();
        let op = Op::put("key", "value");
        let frame = [Command::session(1, 2, 3, op).encode_to_vec(), padded].concat();
        let frame = Bytes::from(frame);
        let decoded = Command::decode(frame.clone()).unwrap();
        let own = decoded.clone().in_own_memory();
        assert_eq!(own, decoded);
        let within = |command: &Command| {
            let key = command.keys().next().unwrap();
            frame.as_ptr_range().contains(&key.as_ptr())
        };
        assert!(within(&decoded) && !within(&own));
    }

    #[test]
    fn keys_are_all_those_named() {
        let named = |op: Op| Command::from(op).keys().cloned().collect::<Vec<_>>();
        assert_eq!(named(Op::cas("a", "v", None)), ["a"]);
        assert_eq!(
            named(Op::multi_get(vec!["b".into(), "a".into()])),
            ["b", "a"]
        );
        assert_eq!(
            named(Op::multi_put(vec![entry("a", 0), entry("b", 0)])),
            ["a", "b"]
        );
        assert_eq!(named(Op::scan("a", "b", 1)), Vec::<Bytes>::new());
    }
}
