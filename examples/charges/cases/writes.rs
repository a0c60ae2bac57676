//! Cases of writes.

use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{
    COMMAND_BYTES_MAX, COMMAND_PARTS_MAX, ErrorCode, Field, KEY_BYTES_MAX, KeyValue, Response,
    VALUE_BYTES_MAX, Version,
};

use super::{BATCH, Case, CaseRequest, bytes, key, long_key, sizes};

/// Number of keys to which a case writes in turn.
const SPREAD: usize = 16;
/// Maximum number of bytes of an entry in addition to the bytes of its key and its value.
const ENTRY_BYTES: usize = 16;
/// Number of fields of the largest record into which a case merges fields.
pub(super) const RECORD_FIELDS: usize = 1_020;
const RECORD_BYTES: usize = 256 << 10;

pub(super) fn cases() -> Vec<Case> {
    let values = || sizes(VALUE_BYTES_MAX).into_iter();
    let keys = || sizes(KEY_BYTES_MAX).into_iter();
    let parts = || sizes(COMMAND_PARTS_MAX).into_iter();
    let mut all: Vec<Case> = values().map(put).collect();
    all.extend(keys().map(put_long_key));
    all.extend(keys().map(delete));
    all.extend(values().map(cas));
    all.extend(parts().map(put_fields));
    all.extend(sizes(RECORD_FIELDS).into_iter().map(put_field_into));
    all.extend(values().map(put_field_bytes));
    all.extend(parts().map(multi_put));
    all.extend(values().map(multi_put_bytes));
    let longest = COMMAND_BYTES_MAX / (KEY_BYTES_MAX + ENTRY_BYTES);
    let longest = longest.min(COMMAND_PARTS_MAX);
    all.extend(sizes(longest).into_iter().map(multi_put_long_keys));
    all
}

fn put(size: usize) -> Case {
    let key = |number| format!("put-{size}-{number}");
    let ops = (0..SPREAD).map(|number| Op::put(key(number), bytes(size)));
    Case::new("put", size, "bytes of the value", 1, size).round_robin(ops.collect())
}

fn put_long_key(size: usize) -> Case {
    let key = |number| long_key("put", number, size);
    let ops = (0..SPREAD).map(|number| Op::put(key(number), "v"));
    Case::new("put-long-key", size, "bytes of the key", 1, size).round_robin(ops.collect())
}

fn delete(size: usize) -> Case {
    let key = |number| long_key("delete", number, size);
    let ops = (0..SPREAD).map(|number| Op::delete(key(number)));
    Case::new("delete", size, "bytes of the key", 1, size).round_robin(ops.collect())
}

/// Creates a case of compare-and-swaps. Each lane has a key of its own, so that it knows the
/// present version of that key.
fn cas(size: usize) -> Case {
    let value = bytes(size);
    let mut case = Case::new("cas", size, "bytes of the value", 1, size);
    case.writes = true;
    case.ask = Box::new(move |turn| {
        let key = format!("cas-{size}-{}", turn.lane);
        CaseRequest::Op(Op::cas(key, value.clone(), turn.last.and_then(version)))
    });
    case
}

/// Returns the version of a key that an answer contains.
fn version(answer: &Response) -> Option<Version> {
    match answer.outcome.as_ref()?.result.as_ref()? {
        Answer::Written(version) => Some(*version),
        Answer::Mismatch(mismatch) => mismatch.actual,
        _ => None,
    }
}

pub(super) fn fields(count: usize, value_bytes: usize) -> Vec<Field> {
    let field = |number: usize| Field {
        name: format!("f{number:04}").into(),
        value: bytes(value_bytes),
    };
    (0..count).map(field).collect()
}

/// Creates a case that writes all fields of a record together. If the record has more fields than a
/// merge accepts, the write is refused when it is executed.
fn put_fields(size: usize) -> Case {
    let key = |number| format!("fields-{size}-{number}");
    let ops = (0..BATCH).map(|number| Op::put_fields(key(number), fields(size, 8)));
    let ops: Vec<Op> = ops.collect();
    let case = Case::new("put_fields", size, "fields", size, size * 24).round_robin(ops.clone());
    let is_too_large = size > RECORD_FIELDS;
    let case = Case {
        merges_into: Some((size, size * 24)),
        ..case.prepared(ops)
    };
    if is_too_large {
        case.refused(ErrorCode::NotARecord)
    } else {
        case
    }
}

/// Creates a case that merges one field into a record of many fields. `size` is the number of
/// fields of the record.
fn put_field_into(size: usize) -> Case {
    let key = |number| format!("into-{size}-{number}");
    let records = (0..BATCH).map(|number| Op::put_fields(key(number), fields(size, 200)));
    let ops = (0..BATCH).map(|number| Op::put_fields(key(number), fields(1, 200)));
    let bytes = size * 210;
    let case = Case::new("put_fields-into", size, "fields of the record", 1, bytes);
    Case {
        merges_into: Some((size, bytes)),
        ..case.round_robin(ops.collect()).prepared(records.collect())
    }
}

/// Creates a case that merges one large field into a record. The record has no other field.
fn put_field_bytes(size: usize) -> Case {
    let size = size.min(VALUE_BYTES_MAX - "f0000".len());
    let key = |number| format!("field-{size}-{number}");
    let ops = (0..BATCH).map(|number| Op::put_fields(key(number), fields(1, size)));
    let ops: Vec<Op> = ops.collect();
    let case = Case::new("put_fields-bytes", size, "bytes of the value", 1, size);
    let case = Case {
        merges_into: (size < RECORD_BYTES).then_some((1, size)),
        ..case.round_robin(ops.clone()).prepared(ops)
    };
    if size >= RECORD_BYTES {
        case.refused(ErrorCode::NotARecord)
    } else {
        case
    }
}

fn multi_put(size: usize) -> Case {
    let ops = (0..BATCH).map(|number| {
        let entries = (0..size).map(|entry| KeyValue {
            key: key(number * size + entry * 7919),
            value: bytes(8),
        });
        Op::multi_put(entries.collect())
    });
    Case::new("multi_put", size, "entries", size, size * 32).round_robin(ops.collect())
}

/// Creates a case of multi-puts with at most three entries. Each entry has a value of `size` bytes.
fn multi_put_bytes(size: usize) -> Case {
    let most = COMMAND_BYTES_MAX / (size + 64);
    let count = most.clamp(1, 3);
    let ops = (0..BATCH).map(|number| {
        let entries = (0..count).map(|entry| KeyValue {
            key: format!("large-{number}-{entry}").into(),
            value: bytes(size),
        });
        Op::multi_put(entries.collect())
    });
    let bytes = size * count;
    Case::new(
        "multi_put-bytes",
        size,
        "bytes of each of three values",
        count,
        bytes,
    )
    .round_robin(ops.collect())
}

fn multi_put_long_keys(size: usize) -> Case {
    let ops = (0..2).map(|number| {
        let entries = (0..size).map(|entry| KeyValue {
            key: long_key("multi", number * size + entry, KEY_BYTES_MAX),
            value: bytes(1),
        });
        Op::multi_put(entries.collect())
    });
    Case::new(
        "multi_put-long-keys",
        size,
        "entries",
        size,
        size * KEY_BYTES_MAX,
    )
    .round_robin(ops.collect())
}
