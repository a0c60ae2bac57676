//! One iteration of the event loop: a batch of inputs is taken, the clock is read, and the inputs
//! are passed to the replica.

use leasehold_leases::Time;
use leasehold_leases::clock_watch::{ClockReading, ClockWatch};
use leasehold_leases::mutants::{Rule, off};

use super::DiskWatch;
use crate::action::Action;
use crate::{DueTimers, Input, Replica};

/// The two watches of a replica: one over its storage and one over its clock.
#[derive(Debug, Default)]
pub struct Watches {
    /// Watch over the storage.
    pub disk: DiskWatch,
    /// Watch over the clock.
    pub clock: ClockWatch,
}

/// Vectors for a batch of inputs. They belong to the caller, and keep their capacity from one batch
/// to the next.
#[derive(Debug)]
pub struct IterationBuffers<'a> {
    /// Inputs of the batch. The vector is empty before and after the iteration.
    pub inputs: &'a mut Vec<Input>,
    /// Actions. The iteration appends the actions that result from the batch.
    pub actions: &'a mut Vec<Action>,
}

/// Part of an event-loop iteration. [`run_iteration`] names each part before the part begins.
#[derive(Debug)]
pub enum IterationPart<'a> {
    /// Start of the iteration, with the timers that are due.
    Begin(DueTimers),
    /// One input of the batch.
    Input(&'a Input),
    /// Timers that are still due after all inputs.
    Timers,
    /// End of the batch of inputs: the replica sends the proposals, forwarded requests and votes
    /// that result from the batch.
    Proposals,
}

/// Passes inputs and due timers to `replica`, and appends the resulting actions to `buffers`.
/// `take` appends the inputs to its argument. `begins` is called before each part, so that a caller
/// can measure the time of the parts. Returns the time of the iteration.
///
/// The clock is read *after* the inputs have arrived (protocol §0). With the opposite order, the
/// process could be stopped after it has read the clock and before it takes the inputs. It could
/// then date a grant to a time before the holder sent the ack for this grant (hazard 25). The
/// reading is compared with other clocks before it is used (hazard 80).
pub fn run_iteration(
    replica: &mut Replica,
    watches: &mut Watches,
    buffers: IterationBuffers<'_>,
    take: impl FnOnce(&mut Vec<Input>),
    clock: impl Fn() -> ClockReading,
    mut begins: impl FnMut(&IterationPart<'_>),
) -> Time {
    let IterationBuffers { inputs, actions } = buffers;
    let early = off(Rule::H25StaleNow).then(&clock);
    take(inputs);
    let reading = early.unwrap_or_else(clock);
    let now = reading.now;
    begins(&IterationPart::Begin(replica.due(now)));
    let configs = replica.configs();
    let rho_ppm = configs.params(configs.newest()).clock.rho_ppm;
    if let Some(trusted) = watches.clock.news(reading, rho_ppm) {
        replica.step(now, Input::ClockTrusted(trusted), actions);
    }
    for input in inputs.drain(..) {
        begins(&IterationPart::Input(&input));
        replica.step(now, input, actions);
    }
    if let Some(writable) = watches.disk.news(now) {
        replica.step(now, Input::StorageWritable(writable), actions);
    }
    if now >= replica.next_deadline() {
        begins(&IterationPart::Timers);
        replica.step(now, Input::Tick, actions);
    }
    begins(&IterationPart::Proposals);
    replica.flush(now, actions);
    now
}
