//! One group of inputs: taken, dated, stepped through.

use leases::Time;
use leases::mutants::{Rule, off};

use super::DiskWatch;
use crate::replica::action::Action;
use crate::replica::{Input, Replica};

/// Whether what was read under a permit that lasts `until` may be answered, by a
/// clock sampled *after* it was read (protocol §3.5): a process that was stopped
/// between the two has a value that others may have replaced (hazard 4).
pub fn in_time(sampled: Time, until: Time) -> bool {
    sampled < until || off(Rule::H04Fence)
}

/// Steps `replica` through everything that `take` brings, and what is due.
///
/// Protocol §0: the clock is read *after* the inputs had arrived. A process that
/// was stopped between reading it and taking them would otherwise date a grant
/// into the past, before the ack it builds on was even sent (hazard 25).
pub fn round(
    replica: &mut Replica,
    watch: &mut DiskWatch,
    inputs: &mut Vec<Input>,
    actions: &mut Vec<Action>,
    take: impl FnOnce(&mut Vec<Input>),
    clock: impl Fn() -> Time,
) -> Time {
    let early = off(Rule::H25StaleNow).then(&clock);
    take(inputs);
    let now = early.unwrap_or_else(clock);
    for input in inputs.drain(..) {
        replica.step(now, input, actions);
    }
    if let Some(writable) = watch.news(now) {
        replica.step(now, Input::StorageWritable(writable), actions);
    }
    if now >= replica.next_deadline() {
        replica.step(now, Input::Tick, actions);
    }
    replica.flush(now, actions);
    now
}
