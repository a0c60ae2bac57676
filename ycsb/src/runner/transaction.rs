//! One operation of the workload, carried out: what is sent, and how the answers
//! are judged. Times are taken around each request; work on the answer is not part
//! of them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use client::wire::{Path, command::Op, outcome};

use crate::measurement::Return;
use crate::sample::OpKind;
use crate::store::Store;
use crate::workload::{CoreWorkload, Operation, Verdict, Write};

/// One thing to be measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    pub kind: OpKind,
    pub path: Path,
    pub returned: Return,
    pub started: Instant,
    pub ended: Instant,
}

/// What is measured of an operation. A read-modify-write counts as a read, as an update
/// and as itself.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub steps: Vec<Step>,
    pub check: Option<(Return, Duration)>,
}

/// Carries out an operation.
pub(super) async fn perform<S: Store>(
    store: &S,
    workload: &CoreWorkload,
    operation: &Operation,
) -> Transaction {
    let mut transaction = Transaction::default();
    match operation.kind {
        OpKind::Read => read(store, workload, operation, &mut transaction).await,
        OpKind::Update | OpKind::Insert => {
            let step = write(store, operation, operation.kind).await;
            transaction.steps.push(step);
        }
        OpKind::Scan => {
            let op = Op::scan(operation.key.clone(), Bytes::new(), operation.scan_length);
            let (step, _) = request(store, OpKind::Scan, op).await;
            transaction.steps.push(step);
        }
        OpKind::ReadModifyWrite => {
            read_modify_write(store, workload, operation, &mut transaction).await;
        }
    }
    transaction
}

async fn read<S: Store>(
    store: &S,
    workload: &CoreWorkload,
    operation: &Operation,
    transaction: &mut Transaction,
) {
    let (step, value) = request(store, OpKind::Read, Op::get(operation.key.clone())).await;
    transaction.steps.push(step);
    let answered = matches!(step.returned, Return::Ok | Return::NotFound);
    if answered && workload.verifies() {
        transaction.check = Some(check(workload, &operation.key, value.as_ref()));
    } else if let (Some(field), Some(value)) = (operation.read_field, value) {
        // YCSB's bindings extract the one field, so the same work is done here.
        std::hint::black_box(workload.project(&value, field));
    }
}

async fn read_modify_write<S: Store>(
    store: &S,
    workload: &CoreWorkload,
    operation: &Operation,
    transaction: &mut Transaction,
) {
    read(store, workload, operation, transaction).await;
    let Some(first) = transaction.steps.first().copied() else {
        return;
    };
    let mut last = first;
    if first.returned == Return::Ok {
        last = write(store, operation, OpKind::Update).await;
        transaction.steps.push(last);
    }
    transaction.steps.push(Step {
        kind: OpKind::ReadModifyWrite,
        // The read's path: that of a write is always the same.
        path: first.path,
        returned: last.returned,
        started: first.started,
        ended: last.ended,
    });
}

async fn write<S: Store>(store: &S, operation: &Operation, kind: OpKind) -> Step {
    let key = operation.key.clone();
    let op = match &operation.write {
        Some(Write::Record(value)) => Op::put(key, value.clone()),
        Some(Write::Field(field)) => Op::put_fields(key, vec![field.clone()]),
        None => unreachable!("the workload gives every write something to write"),
    };
    request(store, kind, op).await.0
}

/// Sends one request; the value, if the answer is one.
async fn request<S: Store>(store: &S, kind: OpKind, op: Op) -> (Step, Option<Bytes>) {
    let started = Instant::now();
    let answer = store.execute(op).await;
    let ended = Instant::now();
    let (path, returned, value) = match answer {
        Ok(reply) => {
            let (returned, value) = judge(kind, reply.outcome.result);
            (reply.path, returned, value)
        }
        Err(failure) => {
            tracing::debug!(?kind, failure.message, "operation failed");
            (Path::Unspecified, failure.returned, None)
        }
    };
    let step = Step {
        kind,
        path,
        returned,
        started,
        ended,
    };
    (step, value)
}

fn judge(kind: OpKind, result: Option<outcome::Result>) -> (Return, Option<Bytes>) {
    use outcome::Result as Is;
    match (kind, result) {
        (OpKind::Read, Some(Is::Value(found))) => (Return::Ok, Some(found.value)),
        (OpKind::Read, Some(Is::Missing(_))) => (Return::NotFound, None),
        (OpKind::Scan, Some(Is::Entries(_))) => (Return::Ok, None),
        (OpKind::Update | OpKind::Insert, Some(Is::Written(_))) => (Return::Ok, None),
        (_, Some(Is::Error(_))) => (Return::Error, None),
        _ => (Return::UnexpectedState, None),
    }
}

fn check(workload: &CoreWorkload, key: &[u8], value: Option<&Bytes>) -> (Return, Duration) {
    let started = Instant::now();
    let returned = match workload.verify(key, value) {
        Verdict::Intact => Return::Ok,
        Verdict::Damaged => Return::UnexpectedState,
        Verdict::Empty => Return::Error,
    };
    (returned, started.elapsed())
}
