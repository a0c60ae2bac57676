//! Carries out one operation of the workload: sends requests and judges their answers. The time of
//! each request is measured, without the time for processing the answer.

use std::time::Duration;

use bytes::Bytes;
use leasehold_wire::{
    Comparison, Get, Path, Put, PutFields, Txn, TxnOp, command::Op, comparison::Condition,
    op_result, outcome, txn_op,
};
use tokio::time::Instant;

use crate::measurement::{ReplicaName, ReturnCode};
use crate::sample::OpKind;
use crate::store::KvStore;
use crate::workload::{CoreWorkload, Integrity, WorkloadOperation, WritePayload};

/// One measured step of an operation: a request, or a whole read-modify-write.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub kind: OpKind,
    pub path: Path,
    pub returned: ReturnCode,
    pub started: Instant,
    pub ended: Instant,
    pub from: Option<ReplicaName>,
    pub silent: Vec<ReplicaName>,
}

/// A step that has no answer yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PendingStep {
    pub kind: OpKind,
    pub started: Instant,
}

impl PendingStep {
    fn now(kind: OpKind) -> Option<PendingStep> {
        let started = Instant::now();
        Some(PendingStep { kind, started })
    }
}

/// Measurements of an operation. A read-modify-write is measured three times: as a read, as an
/// update, and as the complete operation. If the caller abandons the operation, these measurements
/// show which steps had ended before.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub steps: Vec<Step>,
    /// Read-modify-write that is under way.
    whole: Option<PendingStep>,
    /// Request that is under way.
    request: Option<PendingStep>,
    pub check: Option<(ReturnCode, Duration)>,
    /// Number of records that a scan found, and the duration of the scan.
    pub scanned: Option<(u32, Duration)>,
    /// Reason why the latest failed request has no result.
    pub failure: Option<String>,
}

impl Transaction {
    /// Returns the steps that have no answer yet.
    pub fn pending(&self) -> impl Iterator<Item = PendingStep> {
        [self.request, self.whole].into_iter().flatten()
    }

    /// Whether a step has no answer yet.
    pub fn is_pending(&self) -> bool {
        self.pending().next().is_some()
    }

    /// Whether the operation ended, and succeeded.
    pub fn succeeded(&self) -> bool {
        let last = self.steps.last();
        !self.is_pending() && last.is_some_and(|step| step.returned == ReturnCode::Ok)
    }
}

/// Carries out an operation.
pub(super) async fn perform<S: KvStore>(
    store: &S,
    workload: &CoreWorkload,
    operation: &WorkloadOperation,
    transaction: &mut Transaction,
) {
    match operation.kind {
        OpKind::Read => {
            let value = read(store, operation, transaction).await;
            examine(workload, operation, value, transaction);
        }
        OpKind::Update | OpKind::Insert => {
            write(store, operation, operation.kind, transaction).await;
        }
        OpKind::Scan => scan(store, operation, transaction).await,
        OpKind::ReadModifyWrite => {
            read_modify_write(store, workload, operation, transaction).await;
        }
        OpKind::Txn => transact(store, workload, operation, transaction).await,
    }
}

/// Result of a read. The outer option is `None` if there was no answer; the inner option is `None`
/// if the record does not exist.
type ReadResult = Option<Option<Bytes>>;

async fn read<S: KvStore>(
    store: &S,
    operation: &WorkloadOperation,
    transaction: &mut Transaction,
) -> ReadResult {
    let op = Op::get(operation.key.clone());
    let found = request(store, OpKind::Read, op, transaction).await;
    match found {
        Some(outcome::Result::Value(found)) => Some(Some(found.value)),
        Some(outcome::Result::Missing(_)) => Some(None),
        _ => None,
    }
}

/// Processes the result of a read as YCSB and its bindings do.
fn examine(
    workload: &CoreWorkload,
    operation: &WorkloadOperation,
    found: ReadResult,
    transaction: &mut Transaction,
) {
    let Some(value) = found else { return };
    if workload.verifies() {
        transaction.check = Some(check(workload, &operation.key, value.as_ref()));
    } else if let (Some(field), Some(value)) = (operation.read_field, value) {
        // YCSB's bindings extract the one field, so the same work is done here.
        std::hint::black_box(workload.project(&value, field));
    }
}

async fn scan<S: KvStore>(store: &S, operation: &WorkloadOperation, transaction: &mut Transaction) {
    let op = Op::scan(operation.key.clone(), Bytes::new(), operation.scan_length);
    let answer = request(store, OpKind::Scan, op, transaction).await;
    if let (Some(outcome::Result::Entries(found)), Some(step)) = (answer, transaction.steps.last())
    {
        let count = u32::try_from(found.entries.len()).unwrap_or(u32::MAX);
        transaction.scanned = Some((count, step.ended - step.started));
    }
}

/// Carries out a read-modify-write. As in YCSB, the update is sent regardless of the result of the
/// read. The check of the record follows the update, so that the measured time does not include the
/// check.
async fn read_modify_write<S: KvStore>(
    store: &S,
    workload: &CoreWorkload,
    operation: &WorkloadOperation,
    transaction: &mut Transaction,
) {
    transaction.whole = PendingStep::now(OpKind::ReadModifyWrite);
    let value = read(store, operation, transaction).await;
    write(store, operation, OpKind::Update, transaction).await;
    transaction.whole = None;
    if let [.., read, update] = transaction.steps.as_slice() {
        let returned = match read.returned {
            ReturnCode::Ok => update.returned,
            failed => failed,
        };
        let whole = Step {
            kind: OpKind::ReadModifyWrite,
            // The path of the read, since the path of a write is always the same.
            path: read.path,
            returned,
            started: read.started,
            ended: update.ended,
            from: read.from.clone(),
            silent: Vec::new(),
        };
        transaction.steps.push(whole);
    }
    examine(workload, operation, value, transaction);
}

/// Carries out a transaction: if the record exists, it is read, and the other records are written.
async fn transact<S: KvStore>(
    store: &S,
    workload: &CoreWorkload,
    operation: &WorkloadOperation,
    transaction: &mut Transaction,
) {
    let key = operation.key.clone();
    let comparison = Comparison {
        key: key.clone(),
        condition: Some(Condition::Present(true)),
    };
    let writes = operation.others.iter().map(|(key, payload)| {
        let key = key.clone();
        match payload {
            WritePayload::Record(value) => {
                let value = value.clone();
                txn_op::Op::Put(Put { key, value })
            }
            WritePayload::Field(field) => {
                let fields = vec![field.clone()];
                txn_op::Op::PutFields(PutFields { key, fields })
            }
        }
    });
    let list = std::iter::once(txn_op::Op::Get(Get { key })).chain(writes);
    let op = Op::txn(Txn {
        comparisons: vec![comparison],
        then: list.map(TxnOp::from).collect(),
        ..Txn::default()
    });
    let answer = request(store, OpKind::Txn, op, transaction).await;
    // The answer to a repeated transaction may have lost the value.
    if let Some(outcome::Result::Txn(result)) = answer
        && !result.abridged
    {
        let first = result.results.into_iter().next();
        let value = match first.and_then(|first| first.result) {
            Some(op_result::Result::Value(found)) => Some(found.value),
            _ => None,
        };
        examine(workload, operation, Some(value), transaction);
    }
}

async fn write<S: KvStore>(
    store: &S,
    operation: &WorkloadOperation,
    kind: OpKind,
    transaction: &mut Transaction,
) {
    let key = operation.key.clone();
    let op = match &operation.write {
        Some(WritePayload::Record(value)) => Op::put(key, value.clone()),
        Some(WritePayload::Field(field)) => Op::put_fields(key, vec![field.clone()]),
        None => unreachable!("every write of the workload has a payload"),
    };
    request(store, kind, op, transaction).await;
}

/// Sends one request and returns its result; `None` if the request failed.
async fn request<S: KvStore>(
    store: &S,
    kind: OpKind,
    op: Op,
    transaction: &mut Transaction,
) -> Option<outcome::Result> {
    let started = Instant::now();
    transaction.request = Some(PendingStep { kind, started });
    let answer = store.execute(op).await;
    let ended = Instant::now();
    transaction.request = None;
    let (path, returned, result) = match answer.result {
        Ok(reply) => {
            let result = reply.outcome.result;
            (reply.path, judge(kind, result.as_ref()), result)
        }
        Err(failure) => {
            tracing::debug!(?kind, failure.message, "operation failed");
            transaction.failure = Some(failure.message);
            (Path::Unspecified, failure.returned, None)
        }
    };
    transaction.steps.push(Step {
        kind,
        path,
        returned,
        started,
        ended,
        from: answer.from,
        silent: answer.silent,
    });
    result
}

fn judge(kind: OpKind, result: Option<&outcome::Result>) -> ReturnCode {
    use outcome::Result as Is;
    match (kind, result) {
        (OpKind::Read, Some(Is::Value(_))) => ReturnCode::Ok,
        (OpKind::Read, Some(Is::Missing(_))) => ReturnCode::NotFound,
        (OpKind::Scan, Some(Is::Entries(_))) => ReturnCode::Ok,
        (OpKind::Update | OpKind::Insert, Some(Is::Written(_))) => ReturnCode::Ok,
        (OpKind::Txn, Some(Is::Txn(result))) if result.or_else => ReturnCode::NotFound,
        (OpKind::Txn, Some(Is::Txn(_))) => ReturnCode::Ok,
        (_, Some(Is::Error(_))) => ReturnCode::Error,
        _ => ReturnCode::UnexpectedState,
    }
}

fn check(workload: &CoreWorkload, key: &[u8], value: Option<&Bytes>) -> (ReturnCode, Duration) {
    let started = std::time::Instant::now();
    let returned = match workload.verify(key, value) {
        Integrity::Intact => ReturnCode::Ok,
        Integrity::Damaged => ReturnCode::UnexpectedState,
        Integrity::Empty => ReturnCode::Error,
    };
    (returned, started.elapsed())
}
