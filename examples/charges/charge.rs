//! The charge of a measured request, as [`leasehold_replica::cost`] computes it, and the number of
//! entries of the request.

use leasehold_replica::cost::{self, Request, Sizes};
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::request::Body;
use leasehold_wire::{ErrorCode, Response};

use crate::cases::Case;
use crate::load::AnsweredRequests;

/// Returns the number of entries of a request. Entries are the keys, fields or ranges that the
/// request names, or that its answer contains.
pub fn entries(answered: &AnsweredRequests) -> usize {
    let status = answered.answer.status.as_ref();
    let leases = status.and_then(|status| status.leases.as_ref());
    let demand = status.and_then(|status| status.demand.as_ref());
    let of_status = leases.map_or(0, |it| it.ranges.len()) + demand.map_or(0, |it| it.keys.len());
    let result = answered
        .answer
        .outcome
        .as_ref()
        .and_then(|it| it.result.as_ref());
    let found = match result {
        Some(Answer::Entries(entries)) => entries.entries.len(),
        _ => 0,
    };
    match &answered.request.body {
        Some(Body::Command(command)) => match &command.op {
            Some(Op::MultiGet(op)) => op.keys.len(),
            Some(Op::MultiPut(op)) => op.entries.len(),
            Some(Op::PutFields(op)) => op.fields.len(),
            Some(Op::Txn(op)) => {
                let operations = op.operations().map(|it| it.parts());
                op.comparisons.len() + operations.sum::<usize>()
            }
            Some(Op::Scan(_)) => found,
            Some(Op::Get(_) | Op::Put(_) | Op::Delete(_) | Op::Cas(_)) | None => 1,
        },
        Some(Body::Status(_) | Body::Lease(_)) => of_status,
        Some(Body::Move(_)) | None => 0,
    }
}

/// Returns the charge for a request of this case, in units.
pub fn charge(case: &Case, answered: &AnsweredRequests) -> f64 {
    let AnsweredRequests {
        bytes_in,
        bytes_out,
        request,
        answer,
        ..
    } = answered;
    let sizes = sizes(answer);
    let refused = Request::Refused(*bytes_in);
    let request = match &request.body {
        _ if is_refused_early(answer) => refused,
        Some(Body::Command(command)) => match command.as_read() {
            Some(_) => Request::Read(command, answer.path()),
            None => Request::Command(command),
        },
        Some(Body::Status(request)) => Request::Status(request, sizes),
        Some(Body::Move(_)) => Request::Move,
        Some(Body::Lease(request)) => Request::Lease {
            request,
            sizes,
            changes: case.changes_leases,
        },
        None => refused,
    };
    let cost = match request {
        Request::Refused(_) => cost::of(request),
        _ => cost::of(request).and_passing(*bytes_in),
    };
    let merging = case.merges_into.map_or(0, |(fields, bytes)| {
        case.merges * cost::merging(fields, bytes)
    });
    (cost.and_answering(*bytes_out, entries(answered)).units() + merging * cost::MERGING) as f64
}

/// Returns the sizes of the replica's state that an answer reports.
fn sizes(answer: &Response) -> Sizes {
    let status = answer.status.as_ref();
    let leases = status.and_then(|status| status.leases.as_ref());
    let ranges = leases.map_or(&[][..], |leases| &leases.ranges);
    let counters = status.iter().flat_map(|status| &status.counters);
    let in_demand = counters
        .into_iter()
        .find(|counter| counter.name == "demand_keys");
    Sizes {
        ranges: ranges.len(),
        starts_bytes: ranges.iter().map(|range| range.from.len()).sum(),
        demand_keys: in_demand.map_or(0, |counter| counter.value as usize),
    }
}

/// Returns true if the node refused a request before it passed the request to the replica.
fn is_refused_early(answer: &Response) -> bool {
    let outcome = answer.outcome.as_ref();
    match outcome.and_then(|outcome| outcome.result.as_ref()) {
        Some(Answer::Error(error)) => {
            [ErrorCode::BadRequest, ErrorCode::TooLarge].contains(&error.code())
        }
        _ => false,
    }
}
