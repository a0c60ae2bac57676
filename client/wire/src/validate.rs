//! Checks that every listener makes before it passes a command on to the replica, and the limits of
//! commands.

use bytes::Bytes;

use super::command::Op;
use super::request::Body;
use super::txn_op::Op as Operation;
use super::{
    Command, Comparison, DeleteFields, Error, ErrorCode, FRAME_BYTES_MAX, KEY_BYTES_MAX, KeyValue,
    LeaseRequest, NAME_BYTES_MAX, NODES_MAX, PROBE_KEY, Put, PutFields, Scan, Txn, TxnOp,
    VALUE_BYTES_MAX, comparison::Condition,
};

/// Maximum number of entries that one Scan may request.
pub const SCAN_ENTRIES_MAX: u32 = 10_000;
/// Maximum number of keys of one MultiGet, entries of one MultiPut, or fields of one PutFields that
/// a replica accepts from a client. For a Txn, it is the maximum number of comparisons, operations
/// and fields together. This maximum limits the work of one command, because other
/// commands wait while the command is executed.
pub const COMMAND_PARTS_MAX: usize = 1024;
/// Maximum number of operations of one Txn that read a stored value as a whole and write it again:
/// PutFields, DeleteFields and Append, in both lists together. Each of them may take as long as a
/// thousand other operations.
pub const TXN_REWRITES_MAX: usize = 16;
/// Maximum number of parts of a command that a replica accepts from another replica or reads from
/// its disk. This maximum is higher than [`COMMAND_PARTS_MAX`], because older versions accepted
/// this many parts from clients.
const LOGGED_PARTS_MAX: usize = 10_000;
/// Maximum difference between a write's sequence number and its low-water mark. For each session, a
/// replica keeps the results of all writes in this range. Each result takes 24 bytes. The results of
/// transactions take up to 5 KiB more together. Whenever a result is added, the replica stores all
/// results of the session again. A client with more writes in flight uses several sessions.
pub const UNACKNOWLEDGED_MAX: u64 = 64;

/// Maximum length of an encoded command in bytes. The rest of a frame is for the data that replicas
/// add when they forward the command.
pub const COMMAND_BYTES_MAX: usize = FRAME_BYTES_MAX - (64 << 10);

/// Refuses a request that every replica would refuse, regardless of the client. A command is
/// refused if [`validate`] refuses it, or if it has more than [`COMMAND_PARTS_MAX`] parts. A write
/// is refused if its session would have to keep too many results. It is also refused if it writes
/// or compares the reserved key [`PROBE_KEY`], but a delete of this key outside a transaction is
/// allowed. An operator's request is refused if its names or keys are too long.
///
/// # Errors
/// The same errors as [`validate`]. The message does not quote fields that are too long.
pub fn validate_body(body: Option<&Body>) -> Result<(), Error> {
    match body {
        Some(Body::Command(command)) => {
            validate_parts(command, COMMAND_PARTS_MAX)?;
            command.op.as_ref().map_or(Ok(()), check_unreserved)?;
            check_unacknowledged(command)
        }
        Some(Body::Status(request)) => check_size("status.key", request.key.len(), KEY_BYTES_MAX),
        Some(Body::Move(request)) => check_name("move.to", &request.to),
        Some(Body::Lease(request)) => check_lease(request),
        None => Err(bad_request(
            "request.body is not set, a command or a status is required",
        )),
    }
}

/// Refuses a command that would be unacceptable in every state of the store.
///
/// # Errors
/// `BAD_REQUEST` or `TOO_LARGE`, ready to be sent. The message names the field, its content and the
/// limit.
pub fn validate(command: &Command) -> Result<(), Error> {
    validate_parts(command, LOGGED_PARTS_MAX)
}

fn validate_parts(command: &Command, parts_max: usize) -> Result<(), Error> {
    let Some(op) = &command.op else {
        return Err(bad_request("op is not set, one operation is required"));
    };
    check_op(op, parts_max)?;
    if op.is_write() {
        validate_session(command)?;
    }
    Ok(())
}

/// Checks an operation in the same way as [`validate_body`], but without a session.
///
/// # Errors
/// The same errors as [`validate`].
pub fn validate_op(op: &Op) -> Result<(), Error> {
    check_op(op, COMMAND_PARTS_MAX)?;
    check_unreserved(op)
}

/// Refuses writes and comparisons of the reserved key [`PROBE_KEY`]. Clients read this key to check
/// whether a replica responds. After a write of it, every client would receive the value each time.
/// A delete outside a transaction is allowed, because older versions accepted writes of the key.
fn check_unreserved(op: &Op) -> Result<(), Error> {
    match op {
        Op::Get(_) | Op::MultiGet(_) | Op::Scan(_) | Op::Delete(_) => Ok(()),
        Op::Put(put) => check_unreserved_key("put.key", &put.key),
        Op::Cas(cas) => check_unreserved_key("cas.key", &cas.key),
        Op::PutFields(put) => check_unreserved_key("put_fields.key", &put.key),
        Op::MultiPut(put) => {
            let mut entries = put.entries.iter();
            entries
                .try_for_each(|entry| check_unreserved_key("multi_put.entries[].key", &entry.key))
        }
        Op::Txn(txn) => check_unreserved_in_txn(txn),
    }
}

fn check_unreserved_in_txn(txn: &Txn) -> Result<(), Error> {
    for (index, comparison) in txn.comparisons.iter().enumerate() {
        check_unreserved_key("key", &comparison.key)
            .map_err(|error| within(error, "comparisons", index))?;
    }
    for (name, list) in [("then", &txn.then), ("or_else", &txn.or_else)] {
        for (index, listed) in list.iter().enumerate() {
            let written = listed.op.as_ref().filter(|operation| operation.is_write());
            let Some(operation) = written else { continue };
            if operation.key() == PROBE_KEY {
                let error = reserved(&format!("{}.key", operation.name()));
                return Err(within(error, name, index));
            }
        }
    }
    Ok(())
}

fn check_unreserved_key(field: &str, key: &[u8]) -> Result<(), Error> {
    if key == PROBE_KEY.as_bytes() {
        Err(reserved(field))
    } else {
        Ok(())
    }
}

fn reserved(field: &str) -> Error {
    bad_request(format!(
        "{field} is {PROBE_KEY:?}: clients check with this key whether a replica responds, so it can \
         be neither written nor compared; use another key (to remove an old value, delete it outside a \
         transaction)"
    ))
}

fn check_op(op: &Op, parts_max: usize) -> Result<(), Error> {
    match op {
        Op::Get(get) => check_key("get.key", &get.key),
        Op::Delete(delete) => check_key("delete.key", &delete.key),
        Op::Put(put) => check_put(put),
        Op::Cas(cas) => {
            check_key("cas.key", &cas.key)?;
            check_size("cas.value", cas.value.len(), VALUE_BYTES_MAX)
        }
        Op::PutFields(put) => check_fields(put, parts_max),
        Op::MultiGet(get) => {
            check_count("multi_get.keys", get.keys.len(), parts_max)?;
            get.keys
                .iter()
                .try_for_each(|key| check_key("multi_get.keys[]", key))?;
            check_size("multi_get", op.encoded_len(), COMMAND_BYTES_MAX)
        }
        Op::MultiPut(put) => {
            check_count("multi_put.entries", put.entries.len(), parts_max)?;
            put.entries.iter().try_for_each(check_entry)?;
            check_size("multi_put", op.encoded_len(), COMMAND_BYTES_MAX)
        }
        Op::Scan(scan) => check_scan(scan),
        Op::Txn(txn) => {
            check_txn(txn, parts_max)?;
            check_size("txn", op.encoded_len(), COMMAND_BYTES_MAX)
        }
    }
}

fn check_txn(txn: &Txn, parts_max: usize) -> Result<(), Error> {
    if txn.then.is_empty() && txn.or_else.is_empty() {
        return Err(bad_request(
            "txn.then and txn.or_else are empty, at least one operation is required",
        ));
    }
    let parts = txn.comparisons.len() + txn.operations().map(Operation::parts).sum::<usize>();
    if parts > parts_max {
        return Err(too_many_txn_parts(parts, parts_max));
    }
    let rewrites = txn.rewritten_keys().count();
    if rewrites > TXN_REWRITES_MAX {
        return Err(bad_request(format!(
            "txn has {rewrites} put_fields, delete_fields and append, allowed are at most \
             {TXN_REWRITES_MAX}: split it into several commands, or put whole values"
        )));
    }
    for (index, comparison) in txn.comparisons.iter().enumerate() {
        check_comparison(comparison).map_err(|error| within(error, "comparisons", index))?;
    }
    for (name, list) in [("then", &txn.then), ("or_else", &txn.or_else)] {
        for (index, listed) in list.iter().enumerate() {
            check_listed(listed, parts_max).map_err(|error| within(error, name, index))?;
        }
    }
    Ok(())
}

/// Adds the place of a part of a transaction to an error. The error's message must begin with a
/// field of this part.
fn within(error: Error, list: &str, index: usize) -> Error {
    let message = format!("txn.{list}[{index}].{}", error.message);
    Error { message, ..error }
}

/// Returns an error's message without the place of an operation in a list of a transaction, such as
/// `txn.then[0]`. The errors of a command with a single operation need no place.
pub fn without_txn_place(message: &str) -> &str {
    let lists = ["txn.then[", "txn.or_else["];
    let after_list = lists.iter().find_map(|list| message.strip_prefix(list));
    let Some((index, rest)) = after_list.and_then(|rest| rest.split_once(']')) else {
        return message;
    };
    let rest = rest.strip_prefix(": ").or(rest.strip_prefix('.'));
    let is_place = index.parse::<u32>().is_ok();
    rest.filter(|_| is_place).unwrap_or(message)
}

fn check_comparison(comparison: &Comparison) -> Result<(), Error> {
    check_key("key", &comparison.key)?;
    match &comparison.condition {
        Some(Condition::Version(_) | Condition::Present(_)) => Ok(()),
        Some(Condition::Equal(value)) => check_size("equal", value.len(), VALUE_BYTES_MAX),
        Some(Condition::Less(value)) => check_size("less", value.len(), VALUE_BYTES_MAX),
        Some(Condition::AtMost(value)) => check_size("at_most", value.len(), VALUE_BYTES_MAX),
        Some(Condition::Greater(value)) => check_size("greater", value.len(), VALUE_BYTES_MAX),
        Some(Condition::AtLeast(value)) => check_size("at_least", value.len(), VALUE_BYTES_MAX),
        None => Err(bad_request(
            "condition is not set, one condition is required",
        )),
    }
}

fn check_listed(listed: &TxnOp, parts_max: usize) -> Result<(), Error> {
    match &listed.op {
        Some(Operation::Get(get)) => check_key("get.key", &get.key),
        Some(Operation::Put(put)) => check_put(put),
        Some(Operation::Delete(delete)) => check_key("delete.key", &delete.key),
        Some(Operation::PutFields(put)) => check_fields(put, parts_max),
        Some(Operation::DeleteFields(delete)) => check_names(delete, parts_max),
        Some(Operation::Add(add)) => check_key("add.key", &add.key),
        Some(Operation::Append(append)) => {
            check_key("append.key", &append.key)?;
            check_size("append.suffix", append.suffix.len(), VALUE_BYTES_MAX)
        }
        None => Err(bad_request("op is not set, one operation is required")),
    }
}

fn check_put(put: &Put) -> Result<(), Error> {
    check_key("put.key", &put.key)?;
    check_size("put.value", put.value.len(), VALUE_BYTES_MAX)
}

fn check_names(delete: &DeleteFields, parts_max: usize) -> Result<(), Error> {
    check_key("delete_fields.key", &delete.key)?;
    check_count("delete_fields.names", delete.names.len(), parts_max)?;
    let mut names = delete.names.iter();
    names.try_for_each(|name| check_key("delete_fields.names[]", name))
}

fn validate_session(command: &Command) -> Result<(), Error> {
    if command.client == 0 {
        return Err(bad_request("client is 0, a write needs a session above 0"));
    }
    if command.sequence == 0 {
        return Err(bad_request("sequence is 0, a write needs one above 0"));
    }
    if command.acked_below > command.sequence {
        return Err(bad_request(format!(
            "acked_below is {}, the limit is this command's own sequence {}",
            command.acked_below, command.sequence
        )));
    }
    Ok(())
}

/// Checks the difference between a write's sequence number and its low-water mark. Only requests
/// from clients are checked, because an older version may have accepted a forwarded request with a
/// larger difference.
fn check_unacknowledged(command: &Command) -> Result<(), Error> {
    let kept = command.sequence.saturating_sub(command.acked_below);
    if command.is_write() && kept > UNACKNOWLEDGED_MAX {
        return Err(bad_request(format!(
            "acked_below is {} and sequence is {}: results of at most {UNACKNOWLEDGED_MAX} writes are \
             kept for a session, so wait for the oldest, or open another session",
            command.acked_below, command.sequence
        )));
    }
    Ok(())
}

fn check_entry(entry: &KeyValue) -> Result<(), Error> {
    check_key("multi_put.entries[].key", &entry.key)?;
    check_size(
        "multi_put.entries[].value",
        entry.value.len(),
        VALUE_BYTES_MAX,
    )
}

fn check_fields(put: &PutFields, parts_max: usize) -> Result<(), Error> {
    check_key("put_fields.key", &put.key)?;
    check_count("put_fields.fields", put.fields.len(), parts_max)?;
    for field in &put.fields {
        check_key("put_fields.fields[].name", &field.name)?;
    }
    let total = put
        .fields
        .iter()
        .map(|f| f.name.len() + f.value.len())
        .sum();
    check_size("put_fields.fields", total, VALUE_BYTES_MAX)
}

fn check_scan(scan: &Scan) -> Result<(), Error> {
    check_size("scan.from", scan.from.len(), KEY_BYTES_MAX)?;
    check_size("scan.to", scan.to.len(), KEY_BYTES_MAX)?;
    if scan.limit == 0 || scan.limit > SCAN_ENTRIES_MAX {
        return Err(bad_request(format!(
            "scan.limit is {}, allowed are 1 to {SCAN_ENTRIES_MAX} entries",
            scan.limit
        )));
    }
    Ok(())
}

fn check_lease(request: &LeaseRequest) -> Result<(), Error> {
    check_size("lease.from", request.from.len(), KEY_BYTES_MAX)?;
    check_size("lease.to", request.to.len(), KEY_BYTES_MAX)?;
    check_name("lease.strategy", &request.strategy)?;
    check_name("lease.unlisted", &request.unlisted)?;
    if request.holders.len() > NODES_MAX {
        return Err(too_many_holders(request.holders.len()));
    }
    let mut holders = request.holders.iter();
    holders.try_for_each(|holder| check_name("lease.holders[]", holder))
}

fn check_name(field: &str, name: &str) -> Result<(), Error> {
    check_size(field, name.len(), NAME_BYTES_MAX)
}

fn check_key(field: &str, key: &Bytes) -> Result<(), Error> {
    if key.is_empty() {
        return Err(bad_request(format!(
            "{field} is empty, allowed are 1 to {KEY_BYTES_MAX} bytes"
        )));
    }
    check_size(field, key.len(), KEY_BYTES_MAX)
}

fn check_size(field: &str, found: usize, limit: usize) -> Result<(), Error> {
    if found > limit {
        return Err(Error::new(
            ErrorCode::TooLarge,
            format!("{field} is {found} bytes long, the limit is {limit} bytes"),
        ));
    }
    Ok(())
}

fn check_count(field: &str, found: usize, most: usize) -> Result<(), Error> {
    if found == 0 || found > most {
        return Err(too_many(field, found, most));
    }
    Ok(())
}

/// Builds the refusal of a command with `found` entries in `field`. The maximum is `most` entries.
pub(super) fn too_many(field: &str, found: usize, most: usize) -> Error {
    bad_request(format!(
        "{field} has {found} entries, allowed are 1 to {most}: split it into several commands"
    ))
}

/// Builds the refusal of a transaction with `found` comparisons, operations and fields. The maximum
/// is `most`.
pub(super) fn too_many_txn_parts(found: usize, most: usize) -> Error {
    bad_request(format!(
        "txn has {found} comparisons, operations and fields, allowed are 1 to {most}: split it into \
         several commands"
    ))
}

/// Builds the refusal of a change of leases that names `found` holders.
pub(super) fn too_many_holders(found: usize) -> Error {
    bad_request(format!(
        "lease.holders has {found} entries, a cluster has at most {NODES_MAX} nodes"
    ))
}

/// Builds the refusal of a request with more than `most` fields.
pub(super) fn too_many_fields(most: usize) -> Error {
    bad_request(format!(
        "request has more than {most} fields: leave out those that are there twice"
    ))
}

fn bad_request(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::BadRequest, message)
}

#[cfg(test)]
mod tests;
