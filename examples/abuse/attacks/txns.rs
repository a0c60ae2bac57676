//! Transactions: many small ones, short ones with hundreds of operations, ones with as many
//! operations as are allowed, ones that rewrite large values, and ones that compare large values
//! and fail.

use std::rc::Rc;

use bytes::Bytes;
use leasehold_wire::command::Op;
use leasehold_wire::comparison::Condition;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{
    COMMAND_PARTS_MAX, Comparison, DeleteFields, Get, Put, PutFields, Request, TXN_REWRITES_MAX,
    Txn, TxnOp, VALUE_BYTES_MAX,
};

use super::Target;
use super::merges::field;
use super::pipeline::{Answers, Lane, all, pipeline, refusal};
use crate::figures::Figures;
use crate::wire::{Session, Wire, session_number, write};

/// Number of connections to each replica in attacks with small transactions.
const CONNECTIONS: u64 = 4;
/// Number of small transactions that are in flight on each connection. It is as high as the number
/// of merges in the attack `merges`.
const SMALL_IN_FLIGHT: u64 = 4_000;
/// Number of keys of a small transaction.
const SMALL_KEYS: u64 = 4;
/// Number of puts of a short transaction. Their keys have two bytes, so the transaction has less
/// than 2 KiB.
const SHORT_PUTS: u64 = 200;
/// Number of short transactions that are in flight on each connection.
const SHORT_IN_FLIGHT: u64 = 250;
/// Number of clients that send long transactions. They send as many keys as in the attack
/// `multi-puts`.
const WRITERS: u64 = 4;
/// Number of long transactions that are in flight on each connection.
const LONG_IN_FLIGHT: u64 = 8 * 10;
/// Number of large values and of large records that transactions rewrite.
const LARGE: u64 = 64;
/// Number of bytes of a large value. Appends are allowed up to 256 KiB.
const LARGE_BYTES: usize = 250_000;
/// Number and size of the fields of a large record.
const RECORD: (usize, usize) = (1_020, 240);
/// Number of transactions with rewrites that are in flight on each connection. Together they name
/// at most as many rewrites as the attack `merges` has merges.
const REWRITES_IN_FLIGHT: u64 = SMALL_IN_FLIGHT / TXN_REWRITES_MAX as u64;
/// Number of large values that a transaction may rewrite. Together they have up to 1 MiB.
const REWRITES_EXECUTED: u64 = 4;
/// Number of values that are compared.
const COMPARED: u64 = 8;
/// Number of comparisons that are in flight on each connection.
const COMPARED_IN_FLIGHT: u64 = 16;

fn request(lane: &Lane, client: u64, txn: Txn) -> Request {
    let session = Session {
        client: session_number(40 + client, lane.lane),
        sequence: lane.id,
        opened_ms: lane.opened_ms,
    };
    write(lane.id, session, Op::txn(txn))
}

fn txn(then: impl Iterator<Item = Listed>) -> Txn {
    Txn {
        then: then.map(TxnOp::from).collect(),
        ..Txn::default()
    }
}

fn put(key: String, value: Bytes) -> Listed {
    let key = key.into();
    Listed::Put(Put { key, value })
}

/// Keeps requests in flight on connections to every replica.
async fn flood(
    target: &Target,
    connections: u64,
    in_flight: u64,
    make: impl Fn(u64, Lane) -> Request + Copy + 'static,
) -> anyhow::Result<Figures> {
    let end = target.end();
    let answers = Rc::new(Answers::default());
    let one = |number: u64| {
        let address = target.clients[number as usize % target.clients.len()].clone();
        let make = move |lane: Lane| make(number, lane);
        tokio::task::spawn_local(pipeline(address, end, in_flight, answers.clone(), make))
    };
    all((0..connections).map(one).collect::<Vec<_>>()).await?;
    answers.figures()
}

/// Sends small transactions that write several keys blindly, to every replica.
pub async fn blind(target: &Target) -> anyhow::Result<Figures> {
    let connections = CONNECTIONS * target.clients.len() as u64;
    flood(target, connections, SMALL_IN_FLIGHT, |client, lane| {
        let first = (client * 31 + lane.id) * SMALL_KEYS;
        let key = |number: u64| format!("blind-{}", (first + number * 7919) % 10_000);
        let puts = (0..SMALL_KEYS).map(|number| put(key(number), "v".into()));
        request(&lane, client, txn(puts))
    })
    .await
}

/// Returns a transaction of few bytes that is much work for the replicas. It deletes a field of an
/// absent key, so it waits in the queue of merges of its origin. It rewrites nothing.
fn short(first: u64) -> Txn {
    let absent = DeleteFields {
        key: "absent".into(),
        names: vec!["f".into()],
    };
    let puts = (first..first + SHORT_PUTS).map(|number| {
        let [high, low] = (number as u16).to_be_bytes();
        let key = vec![high | 0x80, low].into();
        let value = Bytes::new();
        Listed::Put(Put { key, value })
    });
    txn([Listed::DeleteFields(absent)].into_iter().chain(puts))
}

/// Sends transactions of at most 2 KiB with hundreds of operations, to every replica.
pub async fn dense(target: &Target) -> anyhow::Result<Figures> {
    let connections = CONNECTIONS * target.clients.len() as u64;
    flood(target, connections, SHORT_IN_FLIGHT, |client, lane| {
        request(&lane, client, short((client * 31 + lane.id) * SHORT_PUTS))
    })
    .await
}

/// Sends transactions with as many operations as are allowed: puts of tiny values, and additions.
pub async fn long(target: &Target) -> anyhow::Result<Figures> {
    flood(target, WRITERS, LONG_IN_FLIGHT, |client, lane| {
        let first = lane.lane * COMMAND_PARTS_MAX as u64;
        let operations = (first..first + COMMAND_PARTS_MAX as u64).map(|number| {
            let key = format!("long-{client}-{number:x}");
            match number % 2 {
                0 => put(key, "v".into()),
                _ => Listed::add(key, 1),
            }
        });
        request(&lane, client, txn(operations))
    })
    .await
}

fn value_key(number: u64) -> String {
    format!("large-{}", number % LARGE)
}

fn record_key(number: u64) -> String {
    format!("large-record-{}", number % LARGE)
}

/// Writes the values and records that [`rewrites`] rewrites.
pub async fn prepare_rewrites(target: &Target) -> anyhow::Result<Figures> {
    let (count, bytes) = RECORD;
    let value = Bytes::from(vec![b'r'; bytes]);
    let fields: Vec<_> = (0..count)
        .map(|number| field(format!("f{number:04}"), value.clone()))
        .collect();
    let values = (0..LARGE).map(|it| Op::put(value_key(it), vec![b'v'; LARGE_BYTES]));
    let records = (0..LARGE).map(|it| Op::put_fields(record_key(it), fields.clone()));
    write_all(target, values.chain(records)).await
}

async fn write_all(target: &Target, ops: impl Iterator<Item = Op>) -> anyhow::Result<Figures> {
    let mut wire = Wire::connect(&target.clients[0]).await?;
    for (id, op) in (1..).zip(ops) {
        let session = Session {
            client: session_number(6, 0),
            sequence: id,
            opened_ms: wire.welcome.log_time_ms,
        };
        let answer = wire.ask(&write(id, session, op)).await?;
        if let Some(refusal) = refusal(&answer) {
            anyhow::bail!("a value was refused: {refusal}");
        }
    }
    Ok(Figures::new())
}

/// Rewrites a large value or a large record.
fn rewrite(number: u64) -> Listed {
    if number.is_multiple_of(2) {
        return Listed::append(value_key(number / 2), "");
    }
    let fields = vec![field("merged".to_owned(), "m".into())];
    let key = record_key(number / 2).into();
    Listed::PutFields(PutFields { key, fields })
}

/// Returns a transaction that rewrites large values. Half of the values are appended to, and fields
/// are merged into the others, which are records. There are three kinds of transactions. One
/// rewrites as many bytes as are allowed. Another has as many rewrites as are allowed, so a replica
/// refuses it during its execution. The third also gets each value after the rewrite.
fn rewriting(number: u64) -> Txn {
    let first = number * REWRITES_EXECUTED;
    let rewrites = |count| (first..first + count).map(rewrite);
    match number % 3 {
        0 => txn(rewrites(REWRITES_EXECUTED)),
        1 => txn(rewrites(TXN_REWRITES_MAX as u64)),
        _ => txn(rewrites(REWRITES_EXECUTED).flat_map(|rewrite| {
            let key = rewrite.key().clone();
            [rewrite, Listed::Get(Get { key })]
        })),
    }
}

/// Sends transactions that rewrite large values.
pub async fn rewrites(target: &Target) -> anyhow::Result<Figures> {
    let connections = CONNECTIONS * target.clients.len() as u64;
    flood(target, connections, REWRITES_IN_FLIGHT, |client, lane| {
        request(&lane, client, rewriting(client + lane.id))
    })
    .await
}

fn compared_key(number: u64) -> String {
    format!("compared-{}", number % COMPARED)
}

/// Writes the values that [`comparisons`] compares.
pub async fn prepare_comparisons(target: &Target) -> anyhow::Result<Figures> {
    let value = vec![b'c'; VALUE_BYTES_MAX];
    let ops = (0..COMPARED).map(|it| Op::put(compared_key(it), value.clone()));
    write_all(target, ops).await
}

/// Sends transactions to every replica, each of which compares a large value with a short one. The
/// comparison fails, so the answer contains the large value.
pub async fn comparisons(target: &Target) -> anyhow::Result<Figures> {
    let connections = CONNECTIONS * target.clients.len() as u64;
    flood(target, connections, COMPARED_IN_FLIGHT, |client, lane| {
        let comparison = Comparison {
            key: compared_key(client + lane.id).into(),
            condition: Some(Condition::Less("c".into())),
        };
        let txn = Txn {
            comparisons: vec![comparison],
            ..txn([put("never".to_owned(), "v".into())].into_iter())
        };
        request(&lane, client, txn)
    })
    .await
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use leasehold_wire::{Command, encode_frame, validate_op};

    use super::*;

    #[test]
    fn a_short_transaction_has_less_than_2_kib() {
        let command = Command::session(1, 1, 1, Op::txn(short(0)));
        let mut frame = BytesMut::new();
        encode_frame(&command, &mut frame).unwrap();
        assert!(frame.len() < 2 << 10);
    }

    /// A transaction that every replica refuses would be no attack.
    #[test]
    fn the_longest_transactions_are_allowed() {
        let adds = (0..COMMAND_PARTS_MAX).map(|number| Listed::add(number.to_string(), 1));
        let rewrites = (0..3).map(rewriting);
        for txn in [txn(adds), short(0)].into_iter().chain(rewrites) {
            assert_eq!(validate_op(&Op::txn(txn)), Ok(()));
        }
    }
}
