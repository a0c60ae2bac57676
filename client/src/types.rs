//! Values and versions of keys, and operations on keys with their results.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use leasehold_wire as wire;

use crate::txn::{Txn, TxnOutcome};

const NO_VERSION: &str = "a value in the response has no version";

/// Version of a value: the log position of the write that stored the value. A later write of the
/// same key has a higher version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    slot: u64,
    index: u32,
}

/// Error for a text that cannot be parsed as a [`Version`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no version: a version is written slot.index, as 17.0")]
pub struct ParseVersionError {
    text: String,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.index)
    }
}

/// Parses the text that `Display` writes for a [`Version`].
impl FromStr for Version {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Version, ParseVersionError> {
        let parsed = text.split_once('.').and_then(|(slot, index)| {
            let (slot, index) = (slot.parse().ok()?, index.parse().ok()?);
            Some(Version { slot, index })
        });
        parsed.ok_or_else(|| ParseVersionError {
            text: text.to_owned(),
        })
    }
}

/// Value of a key, with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VersionedValue {
    /// The value.
    pub value: Bytes,
    /// Version of the value, for [`compare_and_swap`](crate::Client::compare_and_swap).
    pub version: Version,
}

/// A key with its value and version, from a scan or a read of several keys.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredEntry {
    /// The key.
    pub key: Bytes,
    /// Value of the key.
    pub value: Bytes,
    /// The value's version.
    pub version: Version,
}

/// Result of a compare-and-swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CasOutcome {
    /// The value was written under this version.
    Written(Version),
    /// Nothing was written. The field contains the version that the key had; `None` if the key did
    /// not exist.
    Mismatch(Option<Version>),
}

/// An operation on keys, for [`Client::execute`](crate::Client::execute).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Reads one key.
    Get {
        /// The key.
        key: Bytes,
    },
    /// Writes one key, whether or not it exists.
    Put {
        /// The key.
        key: Bytes,
        /// New value of the key.
        value: Bytes,
    },
    /// Removes one key, if it exists.
    Delete {
        /// The key.
        key: Bytes,
    },
    /// Writes one key if its version is the expected one.
    CompareAndSwap {
        /// The key.
        key: Bytes,
        /// New value of the key.
        value: Bytes,
        /// Version that the key must have. `None` means that the key must not exist.
        expected: Option<Version>,
    },
    /// Merges fields into the record at a key. The record is created if it does not exist.
    PutFields {
        /// The key.
        key: Bytes,
        /// Names and values of the fields.
        fields: Vec<(Bytes, Bytes)>,
    },
    /// Reads several keys at one moment.
    MultiGet {
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// Writes several keys at one moment.
    MultiPut {
        /// Keys and their new values.
        entries: Vec<(Bytes, Bytes)>,
    },
    /// Reads a range of keys at one moment.
    Scan {
        /// The first key.
        from: Bytes,
        /// The first key after the range. If it is empty, the range has no end.
        to: Bytes,
        /// Maximum number of entries.
        limit: u32,
    },
    /// Executes one of two lists of operations at one moment.
    Txn(Txn),
}

/// Result of an [`Operation`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperationResult {
    /// The write has taken effect under this version.
    Written(Version),
    /// The value of the key that was read.
    Value(VersionedValue),
    /// The key that was read does not exist.
    Missing,
    /// A compare-and-swap wrote nothing. The field contains the version that the key had; `None` if
    /// the key did not exist.
    Mismatch(Option<Version>),
    /// The entries of a scan or of a read of several keys. The entries of a scan are in key order.
    /// The entries of a read are in the order of the request. Keys that do not exist are omitted.
    Entries(Vec<StoredEntry>),
    /// The result of a transaction.
    Txn(TxnOutcome),
}

/// Path by which a read was served. Reads are linearizable on every path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReadPath {
    /// The replica served the read immediately, under its own lease.
    Local,
    /// The replica served the read under its own lease, after waiting for a write in flight to the
    /// same key.
    Held,
    /// The replica forwarded the read to another replica, which served it under a lease.
    Forwarded,
    /// The read was served after a majority had confirmed that the leader still leads.
    ReadIndex,
    /// The read was executed as a command in the log.
    Log,
    /// This version of the library does not know the path.
    Unknown,
}

/// Result of an operation. Also contains the path by which a read was served, and the replica that
/// answered.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Reply {
    /// The result.
    pub result: OperationResult,
    /// Path by which a read was served; `Log` for a write.
    pub path: ReadPath,
    /// Name of the replica that answered.
    pub replica: Arc<str>,
}

/// Kind of a refusal. A request is refused by a replica or by this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The replica failed to execute the request.
    Internal,
    /// The request can never succeed. The message describes the fault.
    BadRequest,
    /// A key, a value or the whole request is too large.
    TooLarge,
    /// No replica can serve the request now, for instance because there is no leader.
    Unavailable,
    /// The session of a write has expired. Before the client reports this error, it sends the write
    /// once more in another session, if no earlier attempt can have taken effect.
    SessionExpired,
    /// Fields cannot be merged into the stored value, because it is not a record.
    NotARecord,
    /// The replica belongs to another cluster.
    WrongCluster,
    /// The connection was idle for too long.
    Idle,
    /// The token is missing, unknown, expired or revoked.
    Unauthenticated,
    /// The token gives no right to this request.
    PermissionDenied,
    /// The stored value is not a decimal integer, or the sum needs more than 64 bits.
    NotAnInteger,
}

impl VersionedValue {
    pub(crate) fn from_wire(found: wire::Value) -> Result<VersionedValue, &'static str> {
        Ok(VersionedValue {
            value: found.value,
            version: Version::from_wire(found.version.ok_or(NO_VERSION)?),
        })
    }

    /// Returns the names and values of the fields of a record that
    /// [`put_fields`](crate::Client::put_fields) wrote. Returns `None` if the value is not a
    /// record.
    pub fn fields(&self) -> Option<Vec<(Bytes, Bytes)>> {
        use prost::Message as _;
        let record = wire::Record::decode(self.value.clone()).ok()?;
        let fields = record.fields.into_iter();
        Some(fields.map(|field| (field.name, field.value)).collect())
    }
}

impl Version {
    pub(crate) fn from_wire(version: wire::Version) -> Version {
        let wire::Version { slot, index } = version;
        Version { slot, index }
    }

    pub(crate) fn to_wire(self) -> wire::Version {
        let Version { slot, index } = self;
        wire::Version { slot, index }
    }
}

impl Operation {
    pub(crate) fn into_wire(self) -> wire::command::Op {
        use wire::command::Op;
        match self {
            Operation::Get { key } => Op::get(key),
            Operation::Put { key, value } => Op::put(key, value),
            Operation::Delete { key } => Op::delete(key),
            Operation::CompareAndSwap {
                key,
                value,
                expected,
            } => Op::cas(key, value, expected.map(Version::to_wire)),
            Operation::PutFields { key, fields } => {
                let field = |(name, value)| wire::Field { name, value };
                Op::put_fields(key, fields.into_iter().map(field).collect())
            }
            Operation::MultiGet { keys } => Op::multi_get(keys),
            Operation::MultiPut { entries } => {
                let entry = |(key, value)| wire::KeyValue { key, value };
                Op::multi_put(entries.into_iter().map(entry).collect())
            }
            Operation::Scan { from, to, limit } => Op::scan(from, to, limit),
            Operation::Txn(txn) => Op::txn(txn.into_wire()),
        }
    }
}

impl OperationResult {
    /// Converts a result from a response message.
    ///
    /// # Errors
    /// Returns a description of the fault, if the protocol does not allow the result.
    pub(crate) fn from_wire(
        result: wire::outcome::Result,
    ) -> std::result::Result<OperationResult, &'static str> {
        use wire::outcome::Result;
        Ok(match result {
            Result::Written(version) => OperationResult::Written(Version::from_wire(version)),
            Result::Value(found) => OperationResult::Value(VersionedValue::from_wire(found)?),
            Result::Missing(_) => OperationResult::Missing,
            Result::Mismatch(found) => {
                OperationResult::Mismatch(found.actual.map(Version::from_wire))
            }
            Result::Entries(found) => {
                let entry = |entry: wire::Entry| {
                    Ok(StoredEntry {
                        key: entry.key,
                        value: entry.value,
                        version: Version::from_wire(entry.version.ok_or(NO_VERSION)?),
                    })
                };
                let entries: std::result::Result<_, &str> =
                    found.entries.into_iter().map(entry).collect();
                OperationResult::Entries(entries?)
            }
            Result::Txn(result) => OperationResult::Txn(TxnOutcome::from_wire(result)?),
            Result::Error(_) => return Err("an error stands in place of a result"),
        })
    }
}

impl ReadPath {
    pub(crate) fn from_wire(path: wire::Path) -> ReadPath {
        match path {
            wire::Path::Local => ReadPath::Local,
            wire::Path::Held => ReadPath::Held,
            wire::Path::Forwarded => ReadPath::Forwarded,
            wire::Path::ReadIndex => ReadPath::ReadIndex,
            wire::Path::Log => ReadPath::Log,
            wire::Path::Unspecified => ReadPath::Unknown,
        }
    }
}

impl RefusalKind {
    pub(crate) fn from_wire(code: wire::ErrorCode) -> RefusalKind {
        use wire::ErrorCode;
        match code {
            ErrorCode::Internal => RefusalKind::Internal,
            ErrorCode::BadRequest => RefusalKind::BadRequest,
            ErrorCode::TooLarge => RefusalKind::TooLarge,
            ErrorCode::Unavailable => RefusalKind::Unavailable,
            ErrorCode::SessionExpired => RefusalKind::SessionExpired,
            ErrorCode::NotARecord => RefusalKind::NotARecord,
            ErrorCode::WrongCluster => RefusalKind::WrongCluster,
            ErrorCode::Idle => RefusalKind::Idle,
            ErrorCode::Unauthenticated => RefusalKind::Unauthenticated,
            ErrorCode::PermissionDenied => RefusalKind::PermissionDenied,
            ErrorCode::NotAnInteger => RefusalKind::NotAnInteger,
        }
    }

    /// Returns the name of this kind for use in messages.
    pub fn name(self) -> &'static str {
        match self {
            RefusalKind::Internal => "INTERNAL",
            RefusalKind::BadRequest => "BAD_REQUEST",
            RefusalKind::TooLarge => "TOO_LARGE",
            RefusalKind::Unavailable => "UNAVAILABLE",
            RefusalKind::SessionExpired => "SESSION_EXPIRED",
            RefusalKind::NotARecord => "NOT_A_RECORD",
            RefusalKind::WrongCluster => "WRONG_CLUSTER",
            RefusalKind::Idle => "IDLE",
            RefusalKind::Unauthenticated => "UNAUTHENTICATED",
            RefusalKind::PermissionDenied => "PERMISSION_DENIED",
            RefusalKind::NotAnInteger => "NOT_AN_INTEGER",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_as_it_is_printed() {
        let version = Version { slot: 17, index: 3 };
        assert_eq!(version.to_string(), "17.3");
        assert_eq!("17.3".parse(), Ok(version));
        for bad in ["", "17", "17.", ".3", "17.3.1", "-1.0"] {
            let error = bad.parse::<Version>().expect_err("no version");
            assert!(error.to_string().contains("slot.index"), "{error}");
        }
    }

    #[test]
    fn versions_of_one_key_rise_with_the_log() {
        let version = |slot, index| Version { slot, index };
        assert!(version(1, 9) < version(2, 0) && version(2, 0) < version(2, 1));
    }

    #[test]
    fn a_value_without_a_version_is_no_result() {
        let value = wire::Value {
            value: Bytes::from("v"),
            version: None,
        };
        let result = wire::outcome::Result::Value(value);
        let problem = OperationResult::from_wire(result).expect_err("no version");
        assert!(problem.contains("version"), "{problem}");
    }

    #[test]
    fn kinds_have_the_names_of_the_protocol() {
        for number in 0..=10 {
            let code = wire::ErrorCode::try_from(number).expect("it has eleven");
            assert_eq!(RefusalKind::from_wire(code).name(), code.as_str_name());
        }
    }
}
