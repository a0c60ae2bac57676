//! Cases of requests that are meant for operators.

use leasehold_wire::request::Body;
use leasehold_wire::{LeaseRequest, MoveRequest, StatusRequest};

use super::{Case, CaseRequest, Stage, long_key};
use crate::cluster::{LEADER, NAMES};

/// Numbers of key ranges with which status requests and lease changes are measured: one, some, and
/// nearly the maximum.
const RANGES: [usize; 3] = [1, 32, 1_023];
/// Maximum length of the first key of each range if the number of ranges is nearly the maximum.
const BOUND_BYTES: usize = 500;
/// Numbers of keys for which the leader knows the demand in cases of status requests: few keys, and
/// many keys.
const DEMAND: [usize; 2] = [64, 100_000];

pub(super) fn cases() -> Vec<Case> {
    let plain = StatusRequest::default();
    let holders = StatusRequest {
        holders: true,
        ..plain.clone()
    };
    let of_key = StatusRequest {
        key: "tiny-000001".into(),
        ..holders.clone()
    };
    let leases = StatusRequest {
        leases: true,
        ..plain.clone()
    };
    let demand = StatusRequest {
        demand: true,
        ..plain.clone()
    };
    let mut all = vec![status("status", 0, Stage::Plain, plain), moved()];
    for ranges in RANGES {
        let stage = Stage::Ranges(ranges);
        all.push(status("status-leases", ranges, stage, leases.clone()));
        all.push(lease_set(ranges));
    }
    all.push(lease_change());
    for keys in DEMAND {
        let stage = Stage::Demand(keys);
        all.push(status("status-hottest", keys, stage, holders.clone()));
        all.push(status("status-key", keys, stage, of_key.clone()));
        all.push(status("status-demand", keys, stage, demand.clone()));
    }
    all
}

/// Creates a case of status requests. If `stage` is `Demand`, `size` is the number of keys with
/// known demand. Otherwise, `size` is the number of ranges.
fn status(kind: &'static str, size: usize, stage: Stage, asked: StatusRequest) -> Case {
    let unit = match stage {
        Stage::Plain => "",
        Stage::Ranges(_) => "ranges",
        Stage::Demand(_) => "keys with demand",
    };
    let bytes = match stage {
        Stage::Ranges(ranges) => ranges * 2 * BOUND_BYTES,
        Stage::Plain | Stage::Demand(_) => 1,
    };
    let mut case = Case::new(kind, size, unit, 1, bytes);
    case.stage = stage;
    case.ask = Box::new(move |_| CaseRequest::Operator(Body::Status(asked.clone())));
    case
}

/// Creates a case that moves leadership to the present leader.
fn moved() -> Case {
    let mut case = Case::new("move", 0, "", 1, 1);
    let to = NAMES[LEADER].to_owned();
    case.ask = Box::new(move |_| CaseRequest::Operator(Body::Move(MoveRequest { to: to.clone() })));
    case
}

/// Creates a case that sets the strategy that is already in force.
fn lease_set(ranges: usize) -> Case {
    let mut case = Case::new("lease_set", ranges, "ranges", 1, ranges * 2 * BOUND_BYTES);
    case.stage = Stage::Ranges(ranges);
    let asked = match ranges {
        1 => LeaseRequest {
            strategy: "leader".to_owned(),
            ..LeaseRequest::default()
        },
        _ => range(1, "all"),
    };
    case.ask = Box::new(move |_| CaseRequest::Operator(Body::Lease(asked.clone())));
    case
}

/// Creates a case that changes the strategy of one range, and then changes it back, repeatedly.
fn lease_change() -> Case {
    let mut case = Case::new("lease_set-change", 32, "ranges", 1, 1);
    case.stage = Stage::Ranges(32);
    case.batch = 1;
    case.changes_leases = true;
    case.ask = Box::new(move |turn| {
        let strategy = ["quorum", "all"][turn.number as usize % 2];
        CaseRequest::Operator(Body::Lease(range(1, strategy)))
    });
    case
}

/// Returns a change for range `number`. The change gives the range a strategy that differs from the
/// strategies of the neighbouring ranges.
fn range(number: usize, strategy: &str) -> LeaseRequest {
    LeaseRequest {
        from: long_key("range", 2 * number, BOUND_BYTES),
        to: long_key("range", 2 * number + 1, BOUND_BYTES),
        strategy: strategy.to_owned(),
        ..LeaseRequest::default()
    }
}

/// Returns the changes that divide the only range of a new cluster into `count` ranges.
pub fn ranges(count: usize) -> Vec<LeaseRequest> {
    let mut all: Vec<LeaseRequest> = (0..count / 2).map(|number| range(number, "all")).collect();
    // A change that begins at the first key adds one range and not two.
    if let Some(first) = all.first_mut().filter(|_| count.is_multiple_of(2)) {
        first.from = bytes::Bytes::new();
    }
    all
}
