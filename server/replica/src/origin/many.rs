//! Reads of several keys: local only with a permit for every key they could return, all
//! of them unmarked, in this one step (hazard 43). Else they go through the log.

use leasehold_leases::Permit;
use leasehold_leases::mutants::{Rule, off};
use leasehold_wire::{Command, Outcome, Path, Read};

use super::super::action::Action;
use super::super::handles::ClientHandle;
use super::super::handles::{Again, ReadFrom};
use super::super::step::Step;
use super::view::View;

/// Answers a client's read of several keys, if that is possible here and now. Returns
/// whether it was.
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
        again: Again::Command(Box::new(command.clone())),
    });
    true
}

fn permit(step: &Step<'_>, view: View<'_>, command: &Command) -> Option<Permit> {
    view.leader_ready().ok()?;
    let (leasing, executed) = (view.leasing, view.executed());
    let permit = match command.as_read()? {
        Read::MultiGet(multi) => leasing.permit_each(step.now, &multi.keys, executed)?,
        Read::Scan(_) => leasing.permit_all(step.now, executed).ok()?,
        Read::Get(_) => return None,
    };
    (is_unmarked(view, command) || off(Rule::H43Unmarked)).then_some(permit)
}

fn is_unmarked(view: View<'_>, command: &Command) -> bool {
    let marks = view.consensus.marks();
    match command.as_read() {
        Some(Read::MultiGet(multi)) => multi.keys.iter().all(|key| marks.on(key).is_empty()),
        Some(Read::Scan(scan)) => !marks.any_within(&scan.from, &scan.to),
        Some(Read::Get(_)) | None => false,
    }
}

fn outcome(view: View<'_>, command: &Command) -> Option<Outcome> {
    match command.as_read()? {
        Read::MultiGet(multi) => Some(view.kv.read_many(&multi.keys)),
        Read::Scan(scan) => {
            let limit = scan.limit as usize;
            Some(view.kv.scan(&scan.from, &scan.to, limit))
        }
        Read::Get(_) => None,
    }
}
