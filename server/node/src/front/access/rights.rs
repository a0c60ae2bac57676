//! Rights of a token, and the rights that each request needs. The code is pure, without input or
//! output.
//!
//! A right covers the keys that begin with a prefix. The right *read* is for requests that reveal
//! stored data, and *write* is for requests that change data. A request that does both needs both
//! rights. This includes a compare-and-swap, because its answer contains a version, and the merging
//! of fields, because merging fails if the value is not a record. In a transaction, comparisons
//! reveal stored data, and so does every operation but a put. The right *admin* is for the
//! cluster: the holders of keys, the demand of clients, and changes of leases and of the leader. It
//! includes no right to any key.

use bytes::Bytes;
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::txn_op::Op as Operation;
use leasehold_wire::{Error, ErrorCode, PROBE_KEY, Scan, StatusRequest, Txn};

/// Maximum number of bytes of a key that are quoted in a message. Longer keys are cut off.
const QUOTED_BYTES: usize = 64;

/// Rights that a token gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Keys that the client may read.
    pub read: Keys,
    /// Keys that the client may write.
    pub write: Keys,
    /// Whether the client may inspect and change the entire cluster.
    pub admin: bool,
}

/// Set of all keys that begin with one of several prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Disjoint spans of keys, in ascending order. Each entry contains the first key of a span and
    /// the first key after the span. The second key is `None` if the span has no end. Between two
    /// spans there is always a key that is in no span.
    spans: Vec<(Bytes, Option<Bytes>)>,
}

impl Keys {
    /// Returns the set of all keys that begin with one of these prefixes. An empty prefix stands
    /// for all keys.
    pub fn with_prefixes(prefixes: impl IntoIterator<Item = Bytes>) -> Keys {
        let mut prefixes: Vec<Bytes> = prefixes.into_iter().collect();
        prefixes.sort();
        let mut spans: Vec<(Bytes, Option<Bytes>)> = Vec::new();
        for prefix in prefixes {
            let end = behind(&prefix);
            match spans.last_mut() {
                Some((_, last)) if last.as_ref().is_none_or(|last| prefix <= *last) => {
                    // A span without an end extends farther than any other.
                    if last.is_some() && (end.is_none() || end > *last) {
                        *last = end;
                    }
                }
                _ => spans.push((prefix, end)),
            }
        }
        Keys { spans }
    }

    /// Whether the set contains this key.
    pub fn contain(&self, key: &[u8]) -> bool {
        self.span_of(key).is_some()
    }

    /// Whether the set contains `from` and all later keys before `to`. An empty `to` means that the
    /// range has no end. An empty `from` means the first possible key.
    pub fn contain_range(&self, from: &[u8], to: &[u8]) -> bool {
        let first = if from.is_empty() { &[0] } else { from };
        match self.span_of(first) {
            None => false,
            Some(None) => true,
            Some(Some(end)) => !to.is_empty() && to <= &end[..],
        }
    }

    /// Returns the end of the span that contains this key. The outer `None` means that no span
    /// contains the key. The inner `None` means that the span has no end.
    fn span_of(&self, key: &[u8]) -> Option<Option<&Bytes>> {
        let after = self.spans.partition_point(|(start, _)| start <= key);
        let (_, end) = self.spans.get(after.checked_sub(1)?)?;
        let inside = end.as_ref().is_none_or(|end| key < &end[..]);
        inside.then_some(end.as_ref())
    }
}

/// Returns the first key after all keys that begin with `prefix`; `None` if there is no such key.
fn behind(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte < 0xFF)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

/// Checks that a client with these rights may make this request.
///
/// # Errors
/// Fails with `PERMISSION_DENIED`. The error may be sent to the client, because it quotes only
/// parts of the client's request.
pub fn check(rights: &Rights, body: &Body) -> Result<(), Error> {
    match body {
        Body::Command(command) => match &command.op {
            Some(op) => check_op(rights, op),
            None => Err(denied("a command without an operation is never allowed")),
        },
        Body::Status(request) => check_status(rights, request),
        Body::Move(_) => needs_admin(rights, "moving leadership"),
        Body::Lease(_) => needs_admin(rights, "changing leases"),
    }
}

fn check_op(rights: &Rights, op: &Op) -> Result<(), Error> {
    match op {
        Op::Get(get) => gets(rights, "get", &get.key),
        Op::Put(put) => writes(rights, "put", &put.key),
        Op::Delete(delete) => writes(rights, "delete", &delete.key),
        Op::Cas(cas) => {
            reads(rights, "cas", &cas.key).and_then(|()| writes(rights, "cas", &cas.key))
        }
        Op::PutFields(put) => {
            let name = "put_fields";
            reads(rights, name, &put.key).and_then(|()| writes(rights, name, &put.key))
        }
        Op::MultiGet(get) => match &get.keys[..] {
            [key] => gets(rights, "multi_get", key),
            keys => keys
                .iter()
                .try_for_each(|key| reads(rights, "multi_get", key)),
        },
        Op::MultiPut(put) => {
            let mut entries = put.entries.iter();
            entries.try_for_each(|entry| writes(rights, "multi_put", &entry.key))
        }
        Op::Scan(scan) => check_scan(rights, scan),
        Op::Txn(txn) => check_txn(rights, txn),
    }
}

/// Checks the rights for a transaction. Every key of both lists counts, whichever list will be
/// executed. The error names the comparison or the operation.
fn check_txn(rights: &Rights, txn: &Txn) -> Result<(), Error> {
    for (index, comparison) in txn.comparisons.iter().enumerate() {
        reads(rights, "a comparison", &comparison.key)
            .map_err(|error| within(&format!("txn.comparisons[{index}]"), error))?;
    }
    for (list, operations) in [("then", &txn.then), ("or_else", &txn.or_else)] {
        for (index, listed) in operations.iter().enumerate() {
            let place = || format!("txn.{list}[{index}]");
            let Some(operation) = &listed.op else {
                let error = denied("an entry without an operation is never allowed");
                return Err(within(&place(), error));
            };
            check_listed(rights, operation)
                .map_err(|error| within(&format!("{}.{}", place(), operation.name()), error))?;
        }
    }
    Ok(())
}

/// Checks the rights for an operation of a transaction. The result of every write but a put depends
/// on the stored value. So such a write needs the right to read, too.
fn check_listed(rights: &Rights, operation: &Operation) -> Result<(), Error> {
    let (name, key) = (operation.name(), operation.key());
    if operation.is_read() {
        reads(rights, name, key)?;
    }
    if operation.is_write() {
        writes(rights, name, key)?;
    }
    Ok(())
}

/// Adds the place of a part of a transaction to an error about this part.
fn within(place: &str, error: Error) -> Error {
    denied(format!("{place}: {}", error.message))
}
fn check_scan(rights: &Rights, scan: &Scan) -> Result<(), Error> {
    if rights.read.contain_range(&scan.from, &scan.to) {
        return Ok(());
    }
    let to = if scan.to.is_empty() {
        "the end".to_owned()
    } else {
        quoted(&scan.to)
    };
    Err(denied(format!(
        "scan from {} to {to} needs the right to read every key there can be between them; scan \
         less, or use a token with this right",
        quoted(&scan.from)
    )))
}

/// Checks the rights for a status request. Every client with a token may request the bare status,
/// which names no key. Clients use the bare status to measure the round-trip time to a replica.
fn check_status(rights: &Rights, request: &StatusRequest) -> Result<(), Error> {
    if request.leases {
        needs_admin(rights, "the status with `leases`")?;
    }
    if request.demand {
        needs_admin(rights, "the status with `demand`")?;
    }
    if !request.holders {
        return Ok(());
    }
    if request.key.is_empty() {
        return needs_admin(rights, "the status with `holders` of the hottest key");
    }
    if rights.admin {
        return Ok(());
    }
    reads(rights, "the status with `holders`", &request.key)
}

/// Checks the rights for a Get. The probe key is never written, so a client may read it without a
/// right. Other kinds of requests need rights even for the probe key, because they may go through
/// the log.
fn gets(rights: &Rights, what: &str, key: &[u8]) -> Result<(), Error> {
    if key == PROBE_KEY.as_bytes() {
        Ok(())
    } else {
        reads(rights, what, key)
    }
}

fn reads(rights: &Rights, what: &str, key: &[u8]) -> Result<(), Error> {
    if rights.read.contain(key) {
        Ok(())
    } else {
        Err(key_denied(what, "read", key))
    }
}

fn writes(rights: &Rights, what: &str, key: &[u8]) -> Result<(), Error> {
    if rights.write.contain(key) {
        Ok(())
    } else {
        Err(key_denied(what, "write", key))
    }
}

fn needs_admin(rights: &Rights, what: &str) -> Result<(), Error> {
    if rights.admin {
        Ok(())
    } else {
        Err(denied(format!(
            "{what} needs the right `admin`; use a token that has it"
        )))
    }
}

fn key_denied(what: &str, right: &str, key: &[u8]) -> Error {
    denied(format!(
        "{what} of {} needs the right to {right} this key; use a token that has it",
        quoted(key)
    ))
}

fn denied(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::PermissionDenied, message)
}

/// Returns a key as text. A long key is cut off.
fn quoted(key: &[u8]) -> String {
    let shown = &key[..key.len().min(QUOTED_BYTES)];
    let rest = if shown.len() < key.len() { "..." } else { "" };
    format!("\"{}{rest}\"", shown.escape_ascii())
}
