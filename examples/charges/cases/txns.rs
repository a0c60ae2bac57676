//! Cases of transactions.

use bytes::Bytes;
use leasehold_wire::command::Op;
use leasehold_wire::comparison::Condition;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{
    COMMAND_PARTS_MAX, Comparison, Delete, Get, Put, PutFields, TXN_REWRITES_MAX, Txn,
    VALUE_BYTES_MAX,
};

use super::writes::{RECORD_FIELDS, fields};
use super::{BATCH, Case, bytes, key};

/// Numbers of operations of a transaction.
const COUNTS: [usize; 3] = [1, 16, COMMAND_PARTS_MAX];
/// Numbers of operations that rewrite stored values.
const REWRITES: [usize; 2] = [1, TXN_REWRITES_MAX];
/// Number of bytes of a long value to which a case appends.
const LONG_BYTES: usize = 250_000;
/// Number of bytes of a large value that a case appends.
const SUFFIX_BYTES: usize = 100_000;
/// Number of different transactions that a case sends in turn.
const TURNS: usize = BATCH;
/// Number of bytes of a field of a record, with its name.
const FIELD_BYTES: usize = 210;

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for count in COUNTS {
        all.push(listed("txn-puts", count, |it| put(it, bytes(8))));
        all.push(listed("txn-gets", count, get));
        all.push(listed("txn-adds", count, |it| {
            Listed::add(format!("sum-{it}"), 1)
        }));
        all.push(listed("txn-deletes", count, delete));
        all.push(listed("txn-mixed", count, mixed));
        all.push(comparisons(count));
        all.push(adds_to_long_value(count));
    }
    for count in REWRITES {
        all.push(appends("txn-append-one-value", count, 1));
        all.push(appends("txn-append-values", count, count));
        all.push(large_appends(count));
        all.push(merges("txn-put_fields-into", count, |key| {
            Listed::PutFields(PutFields {
                key,
                fields: fields(1, 200),
            })
        }));
        all.push(merges("txn-delete_fields", count, |key| {
            Listed::delete_fields(key, vec!["absent".into()])
        }));
        all.push(long_deletes(count));
    }
    all.push(failed("txn-failed", "".into()));
    all.push(failed("txn-failed-long", bytes(VALUE_BYTES_MAX)));
    all
}

/// Returns a key that only transactions write.
fn own_key(number: usize) -> Bytes {
    format!("txn-{number}").into()
}

fn put(number: usize, value: Bytes) -> Listed {
    let key = own_key(number);
    Listed::Put(Put { key, value })
}

fn delete(number: usize) -> Listed {
    let key = own_key(number);
    Listed::Delete(Delete { key })
}

fn get(number: usize) -> Listed {
    let key = key(number * 7919);
    Listed::Get(Get { key })
}

fn mixed(number: usize) -> Listed {
    match number % 4 {
        0 => get(number),
        1 => put(number, bytes(64)),
        2 => Listed::add(format!("sum-{number}"), 1),
        _ => delete(number - 2),
    }
}

fn txn(then: Vec<Listed>) -> Txn {
    Txn {
        then: then.into_iter().map(Into::into).collect(),
        ..Txn::default()
    }
}

/// Creates a case of transactions with `count` operations. `listed` returns the operation with this
/// number; each transaction has other numbers.
fn listed(kind: &'static str, count: usize, listed: impl Fn(usize) -> Listed) -> Case {
    let ops = (0..TURNS).map(|turn| {
        let numbers = turn * count..(turn + 1) * count;
        Op::txn(txn(numbers.map(&listed).collect()))
    });
    Case::new(kind, count, "operations", count, count * 32).round_robin(ops.collect())
}

/// Creates a case of comparisons that hold. The transaction has one operation.
fn comparisons(count: usize) -> Case {
    let count = count.min(COMMAND_PARTS_MAX - 1);
    let comparison = |number: usize| Comparison {
        key: key(number * 7919),
        condition: Some(Condition::AtLeast("".into())),
    };
    let ops = (0..TURNS).map(|turn| {
        let numbers = turn * count..(turn + 1) * count;
        Op::txn(Txn {
            comparisons: numbers.map(comparison).collect(),
            ..txn(vec![put(turn, bytes(8))])
        })
    });
    let case = Case::new("txn-comparisons", count, "comparisons", count, count * 32);
    case.round_robin(ops.collect())
}

/// Creates a case that adds to a value that is no number. The answer has an error for each of the
/// operations.
fn adds_to_long_value(count: usize) -> Case {
    let prepared = vec![Op::put("digits", vec![b'0'; VALUE_BYTES_MAX])];
    let op = Op::txn(Txn {
        keep_going: true,
        ..txn(vec![Listed::add("digits", 1); count])
    });
    let case = Case::new("txn-adds-refused", count, "operations", count, count * 200);
    case.round_robin(vec![op]).prepared(prepared)
}

/// Creates a case of `count` appends of an empty suffix to long values. Each append rewrites its
/// value. `keys` is the number of keys of a transaction.
fn appends(kind: &'static str, count: usize, keys: usize) -> Case {
    let key = |number: usize| Bytes::from(format!("{kind}-{count}-{number}"));
    let prepared = (0..2 * keys).map(|number| Op::put(key(number), bytes(LONG_BYTES)));
    let prepared = prepared.collect();
    let ops = (0..2).map(|turn| {
        let append = |number: usize| Listed::append(key(turn * keys + number % keys), "");
        Op::txn(txn((0..count).map(append).collect()))
    });
    let case = Case::new(kind, count, "appends to 250 kB", count, count * LONG_BYTES);
    Case {
        merges_into: Some((0, LONG_BYTES)),
        merges: count,
        ..case.round_robin(ops.collect()).prepared(prepared)
    }
}

/// Creates a case that appends large values to keys that are deleted first.
fn large_appends(count: usize) -> Case {
    let key = |number: usize| Bytes::from(format!("suffixed-{count}-{number}"));
    let operations = |number: usize| {
        let key = key(number);
        [
            Listed::Delete(Delete { key: key.clone() }),
            Listed::append(key, bytes(SUFFIX_BYTES)),
        ]
    };
    let op = Op::txn(txn((0..count).flat_map(operations).collect()));
    let case = Case::new(
        "txn-append-large",
        count,
        "appends of 100 kB",
        count,
        count * SUFFIX_BYTES,
    );
    // If several of these were sent together, most would be refused: they are long merges.
    Case {
        batch: 1,
        merges_into: Some((0, SUFFIX_BYTES)),
        merges: count,
        ..case.round_robin(vec![op])
    }
}

/// Creates a case of `count` operations on as many large records.
fn merges(kind: &'static str, count: usize, operation: impl Fn(Bytes) -> Listed) -> Case {
    let key = |number: usize| Bytes::from(format!("{kind}-{count}-{number}"));
    let record = |number: usize| Op::put_fields(key(number), fields(RECORD_FIELDS, 200));
    let prepared = (0..2 * count).map(record).collect();
    let ops = (0..2).map(|turn| {
        let numbers = turn * count..(turn + 1) * count;
        Op::txn(txn(numbers.map(|number| operation(key(number))).collect()))
    });
    let bytes = RECORD_FIELDS * FIELD_BYTES;
    let case = Case::new(kind, count, "records", count, count * bytes);
    Case {
        merges_into: Some((RECORD_FIELDS, bytes)),
        merges: count,
        ..case.round_robin(ops.collect()).prepared(prepared)
    }
}

/// Creates a case of `count` deletions that name as many fields as they may.
fn long_deletes(count: usize) -> Case {
    let names = COMMAND_PARTS_MAX / count - 1;
    let case = merges("txn-delete_fields-names", count, |key| {
        let name = |number: usize| format!("g{number:04}").into();
        Listed::delete_fields(key, (0..names).map(name).collect())
    });
    Case {
        unit: "records, with many names",
        ..case
    }
}

/// Creates a case of a comparison with a large value. The comparison fails, and the answer contains
/// the value. `other` is the operand of the comparison.
fn failed(kind: &'static str, other: Bytes) -> Case {
    let comparison = Comparison {
        key: kind.into(),
        condition: Some(Condition::Less(other.clone())),
    };
    let op = Op::txn(Txn {
        comparisons: vec![comparison],
        then: vec![put(0, bytes(8)).into()],
        or_else: vec![get(0).into()],
        keep_going: false,
    });
    let prepared = vec![Op::put(kind, bytes(VALUE_BYTES_MAX))];
    let size = other.len();
    let case = Case::new(
        kind,
        size,
        "bytes of the operand",
        1,
        size + VALUE_BYTES_MAX,
    );
    case.round_robin(vec![op]).prepared(prepared)
}
