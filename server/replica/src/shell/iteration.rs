//! One batch of inputs: taken, dated, stepped through.

use leasehold_leases::Time;
use leasehold_leases::clock_watch::{ClockReading, ClockWatch};
use leasehold_leases::mutants::{Rule, off};

use super::DiskWatch;
use crate::action::Action;
use crate::{DueTimers, Input, Replica};

/// Watches over what a replica counts on: its storage and its clock.
#[derive(Debug, Default)]
pub struct Watches {
    /// Its storage.
    pub disk: DiskWatch,
    /// Its clock.
    pub clock: ClockWatch,
}

/// Vectors of a batch of inputs. They belong to the caller, and keep their capacity from one batch
/// to the next.
#[derive(Debug)]
pub struct IterationBuffers<'a> {
    /// Inputs of the batch: empty before and after it.
    pub inputs: &'a mut Vec<Input>,
    /// Actions of the batch: those that it brings are added.
    pub actions: &'a mut Vec<Action>,
}

/// Part of an event-loop iteration that is about to begin.
#[derive(Debug)]
pub enum IterationPart<'a> {
    /// The iteration itself; these timers are due.
    Begin(DueTimers),
    /// An input.
    Input(&'a Input),
    /// Timers, if no input has seen to them.
    Timers,
    /// The end of the batch of inputs: what it has brought is proposed, forwarded and voted for.
    Proposals,
}

/// Steps `replica` through everything that `take` brings, and what is due. `buffers` gets what is
/// to be done. `begins` is notified of each part, so that a caller can measure how long the parts
/// take.
///
/// Protocol §0: the clock is read *after* the inputs had arrived. A process that
/// was stopped between reading it and taking them would otherwise date a grant
/// into the past, before the ack it builds on was even sent (hazard 25). And what the
/// clock says is compared with other clocks before anything is decided by it (hazard 80).
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
