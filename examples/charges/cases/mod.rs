//! Kinds of requests, each over its range of sizes. The largest are the limits that the code has.

mod operators;
mod reads;
mod writes;

use bytes::Bytes;
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::{ErrorCode, Response};

pub use self::operators::ranges;
use crate::cluster::LEADER;

/// A replica that holds nothing, if the leader alone does.
const FOLLOWER: usize = LEADER + 1;
/// Requests of a batch, if they are small: system calls are shared, as they are under load.
const BATCH: usize = 8;
/// Entries and bytes of a batch of larger ones.
const BATCH_ENTRIES: usize = 10_000;
const BATCH_BYTES: usize = 4 << 20;
/// Ratio of each size to the one before.
const STEP: usize = 8;

/// Keys of tiny values that every plain cluster has.
pub const KEYS: usize = 200_000;
/// A key of `KEYS`.
pub fn key(number: usize) -> Bytes {
    format!("tiny-{:06}", number % KEYS).into()
}

/// Clusters, by what has been done to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The leader holds all keys.
    Plain,
    /// The same, with so many ranges of keys.
    Ranges(usize),
    /// Holders follow demand, which is known for so many keys.
    Demand(usize),
}

/// One kind of request, of one size.
pub struct Case {
    pub kind: &'static str,
    pub size: usize,
    /// Unit in which `size` counts.
    pub unit: &'static str,
    pub stage: Stage,
    /// The replica that is asked.
    pub replica: usize,
    pub batch: usize,
    /// Changes what checkpoints write later.
    pub writes: bool,
    /// Written before anything is measured.
    pub prepared: Vec<Op>,
    /// The refusal that is measured.
    pub refused: Option<ErrorCode>,
    /// Fields and bytes of the record into which fields are merged.
    pub merges_into: Option<(usize, usize)>,
    /// Leases are not as they are asked for.
    pub changes_leases: bool,
    pub ask: Box<dyn Fn(&LaneTurn<'_>) -> CaseRequest>,
}

/// Turn of a lane to ask.
pub struct LaneTurn<'a> {
    /// Index of the request in the batch.
    pub lane: usize,
    /// Number of requests that the lane has made before.
    pub number: u64,
    pub last: Option<&'a Response>,
}

/// A request.
pub enum CaseRequest {
    Op(Op),
    Operator(Body),
}

impl Case {
    /// A kind that asks the leader of a plain cluster, of requests of so many entries and bytes.
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
            changes_leases: false,
            ask: Box::new(|_| CaseRequest::Op(Op::get("k"))),
        }
    }

    /// One of `ops` after the other.
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

/// All kinds and sizes.
pub fn all() -> Vec<Case> {
    let mut all = writes::cases();
    all.extend(reads::cases());
    all.extend(operators::cases());
    all
}

/// Sizes from 1 to a limit, each `STEP` times the one before.
fn sizes(limit: usize) -> Vec<usize> {
    let mut sizes = vec![1];
    // A last step of less than half of one shows nothing new.
    while sizes[sizes.len() - 1] * STEP * 3 / 2 < limit {
        sizes.push(sizes[sizes.len() - 1] * STEP);
    }
    sizes.push(limit);
    sizes
}

fn bytes(length: usize) -> Bytes {
    vec![b'v'; length].into()
}

/// A key of so many bytes, different for each number as far as that goes.
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
