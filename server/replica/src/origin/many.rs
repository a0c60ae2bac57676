//! Reads of several keys. A read is local only if two conditions hold in the same step (hazard 43).
//! This replica has a permit for every key that the read could return, and no open slot writes any
//! of these keys. Otherwise the read goes through the log.

use leasehold_leases::Permit;
use leasehold_leases::mutants::{Rule, off};
use leasehold_wire::{Command, Outcome, Path, ReadOp};

use super::view::View;
use crate::action::Action;
use crate::handles::ClientHandle;
use crate::handles::{FencedRead, ReadFrom};
use crate::step::Step;

/// Answers a client's read of several keys, if this replica can answer it immediately. Returns
/// whether it was answered.
pub fn read_many(
    step: &mut Step<'_>,
    view: View<'_>,
    from: ClientHandle,
    command: &Command,
) -> bool {
    let Some(permit) = permit(step, view, command) else {
        return false;
    };
    let Some(outcome) = outcome(view, command) else {
        return false;
    };
    step.out.push(Action::FencedReply {
        to: ReadFrom::Client(from),
        path: Path::Local,
        outcome,
        until: permit.until,
        again: FencedRead::Command(Box::new(command.clone())),
    });
    true
}

fn permit(step: &Step<'_>, view: View<'_>, command: &Command) -> Option<Permit> {
    view.leader_ready().ok()?;
    let (leasing, executed) = (view.leasing, view.executed());
    let permit = match command.as_read()? {
        ReadOp::MultiGet(multi) => leasing.permit_each(step.now, &multi.keys, executed)?,
        ReadOp::Scan(_) => leasing.permit_all(step.now, executed).ok()?,
        ReadOp::Get(_) => return None,
    };
    (is_unmarked(view, command) || off(Rule::H43Unmarked)).then_some(permit)
}

fn is_unmarked(view: View<'_>, command: &Command) -> bool {
    let marks = view.consensus.marks();
    match command.as_read() {
        Some(ReadOp::MultiGet(multi)) => multi.keys.iter().all(|key| marks.on(key).is_empty()),
        Some(ReadOp::Scan(scan)) => !marks.any_within(&scan.from, &scan.to),
        Some(ReadOp::Get(_)) | None => false,
    }
}

fn outcome(view: View<'_>, command: &Command) -> Option<Outcome> {
    match command.as_read()? {
        ReadOp::MultiGet(multi) => Some(view.kv.read_many(&multi.keys)),
        ReadOp::Scan(scan) => {
            let limit = scan.limit as usize;
            Some(view.kv.scan(&scan.from, &scan.to, limit))
        }
        ReadOp::Get(_) => None,
    }
}
