//! Kinds of requests, each in several sizes. The largest size is the limit that the code sets.

mod operators;
mod reads;
mod txns;
mod writes;

use bytes::Bytes;
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::{ErrorCode, Response};

pub use self::operators::ranges;
use crate::cluster::LEADER;

/// Index of a replica that holds no lease if only the leader holds leases.
const FOLLOWER: usize = LEADER + 1;
/// Number of small requests in a batch. One system call can transfer several requests of a batch,
/// as happens under load.
const BATCH: usize = 8;
/// Maximum number of entries in a batch of larger requests.
const BATCH_ENTRIES: usize = 10_000;
/// Maximum number of bytes in a batch of larger requests.
const BATCH_BYTES: usize = 4 << 20;
/// Ratio of each size to the previous size.
const STEP: usize = 8;

/// Number of keys with tiny values that every plain cluster has.
pub const KEYS: usize = 200_000;
/// Returns the key with the index `number`. There are [`KEYS`] keys.
pub fn key(number: usize) -> Bytes {
    format!("tiny-{:06}", number % KEYS).into()
}

/// State of a cluster that a case requires before it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The leader holds leases on all keys.
    Plain,
    /// The leader holds leases on all keys, which are divided into this number of ranges.
    Ranges(usize),
    /// The strategy follows demand, and the leader knows the demand for this number of keys.
    Demand(usize),
}

/// Requests of one kind and one size.
pub struct Case {
    pub kind: &'static str,
    pub size: usize,
    /// Unit of `size`.
    pub unit: &'static str,
    pub stage: Stage,
    /// Index of the replica to which the requests are sent.
    pub replica: usize,
    pub batch: usize,
    /// Whether the requests change data. If so, a later checkpoint must write these changes.
    pub writes: bool,
    /// Data that is written before anything is measured.
    pub prepared: Vec<Op>,
    /// Error with which the measured requests must be refused; `None` if they must succeed.
    pub refused: Option<ErrorCode>,
    /// Number of fields and number of bytes of the record into which the case merges fields. `None`
    /// if the case merges no fields.
    pub merges_into: Option<(usize, usize)>,
    /// Number of merges of each request. Only transactions have several.
    pub merges: usize,
    /// Whether the requests change the leases that are in force.
    pub changes_leases: bool,
    pub ask: Box<dyn Fn(&LaneTurn<'_>) -> CaseRequest>,
}

/// A lane that is about to send its next request on a connection.
pub struct LaneTurn<'a> {
    /// Position of the lane's request in the batch.
    pub lane: usize,
    /// Number of requests that the lane has already sent.
    pub number: u64,
    pub last: Option<&'a Response>,
}

/// Request of a case, which may depend on the lane.
pub enum CaseRequest {
    Op(Op),
    Operator(Body),
}

impl Case {
    /// Creates a case with requests to the leader of a plain cluster. Each request has the given
    /// numbers of entries and of bytes.
    fn new(
        kind: &'static str,
        size: usize,
        unit: &'static str,
        entries: usize,
        bytes: usize,
    ) -> Case {
        let batch = (BATCH_ENTRIES / entries.max(1)).min(BATCH_BYTES / bytes.max(1));
        Case {
            kind,
            size,
            unit,
            stage: Stage::Plain,
            replica: LEADER,
            batch: batch.clamp(1, BATCH),
            writes: false,
            prepared: Vec::new(),
            refused: None,
            merges_into: None,
            merges: 1,
            changes_leases: false,
            ask: Box::new(|_| CaseRequest::Op(Op::get("k"))),
        }
    }

    /// Makes the case send the operations `ops` one after another. After the last operation, the
    /// case begins again with the first.
    fn round_robin(self, ops: Vec<Op>) -> Case {
        let writes = ops.iter().any(Op::is_write);
        Case {
            writes,
            ask: Box::new(move |turn| {
                let next = turn.number as usize * BATCH + turn.lane;
                CaseRequest::Op(ops[next % ops.len()].clone())
            }),
            ..self
        }
    }

    fn prepared(self, prepared: Vec<Op>) -> Case {
        Case { prepared, ..self }
    }

    fn refused(self, code: ErrorCode) -> Case {
        let refused = Some(code);
        Case { refused, ..self }
    }

    fn at(self, replica: usize) -> Case {
        Case { replica, ..self }
    }
}

/// Returns a case for each kind of requests in each size.
pub fn all() -> Vec<Case> {
    let mut all = writes::cases();
    all.extend(txns::cases());
    all.extend(reads::cases());
    all.extend(operators::cases());
    all
}

/// Returns sizes from 1 to a limit. Each size is `STEP` times the previous size.
fn sizes(limit: usize) -> Vec<usize> {
    let mut sizes = vec![1];
    // A last step of less than half of a whole one would show nothing new.
    while sizes[sizes.len() - 1] * STEP * 3 / 2 < limit {
        sizes.push(sizes[sizes.len() - 1] * STEP);
    }
    sizes.push(limit);
    sizes
}

fn bytes(length: usize) -> Bytes {
    vec![b'v'; length].into()
}

/// Returns a key of `length` bytes. If `length` is large enough, different values of `number` give
/// different keys.
fn long_key(name: &str, number: usize, length: usize) -> Bytes {
    let mut key = format!("{number:04}{name}").into_bytes();
    key.resize(length, b'.');
    key.into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn sizes_go_from_one_to_the_limit() {
        assert_eq!(sizes(10_000), [1, 8, 64, 512, 4096, 10_000]);
        assert_eq!(
            sizes(1 << 20),
            [1, 8, 64, 512, 4096, 32_768, 262_144, 1 << 20]
        );
        assert_eq!(sizes(1000), [1, 8, 64, 512, 1000]);
        assert_eq!(sizes(600), [1, 8, 64, 600]);
    }

    #[test]
    fn no_two_cases_are_the_same() {
        let all = all();
        let names: BTreeSet<_> = all.iter().map(|case| (case.kind, case.size)).collect();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn every_command_is_refused_as_its_case_says() {
        for case in all() {
            for lane in 0..case.batch {
                let turn = LaneTurn {
                    lane,
                    number: 1,
                    last: None,
                };
                let body = match (case.ask)(&turn) {
                    CaseRequest::Op(op) => {
                        Body::Command(leasehold_wire::Command::session(1, 1, 1, op))
                    }
                    CaseRequest::Operator(body) => body,
                };
                let refusal = leasehold_wire::validate_body(Some(&body)).err();
                let code = refusal.as_ref().map(|refusal| refusal.code());
                let early = [ErrorCode::BadRequest, ErrorCode::TooLarge];
                let expected = case.refused.filter(|code| early.contains(code));
                assert_eq!(code, expected, "{} {}: {refusal:?}", case.kind, case.size);
            }
        }
    }
}
