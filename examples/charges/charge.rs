//! What a request is charged.

use client::wire::command::Op;
use client::wire::outcome::Result as Answer;
use client::wire::request::Body;

use crate::load::Answered;

/// Entries that a request names or that its answer has: keys, fields, ranges.
pub fn entries(answered: &Answered) -> usize {
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
            Some(Op::Scan(_)) => found,
            _ => 1,
        },
        Some(Body::Status(_) | Body::Lease(_)) => of_status,
        Some(Body::Move(_)) | None => 0,
    }
}

/// What a request is charged, in units.
pub fn charge(answered: &Answered) -> f64 {
    let fixed = 20_000.0;
    let bytes = answered.bytes_in as f64 * 4.0 + answered.bytes_out as f64;
    fixed + entries(answered) as f64 * 500.0 + bytes
}
