//! Backends: where an experiment can run. Each sends the same requests to the same
//! replica code and returns a [`StrategyRun`], so that results can be compared.

mod changes;
mod counters;
mod faults;
mod interval;
mod load;
pub mod local;
mod node_events;
mod outage;
mod plan;
mod recorder;
mod repeat;
pub mod sim;

use bytes::Bytes;
use leasehold_histories::history::{History, ValueId};
use leasehold_leases::Key;

use interval::IntervalTracker;
pub use plan::RunPlan;
use recorder::{OperationRecord, Recorder, RunContext};
pub use repeat::EndedRuns;

use crate::run::{RunEvent, StrategyRun};

/// Called now and then with a run's label, how much of it is done, and how much there is
/// in all.
pub type ProgressFn<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// One strategy's run and what happened in it.
#[derive(Debug)]
pub struct RunResult {
    /// Measurements of the run.
    pub run: StrategyRun,
    /// Elections, configurations, faults.
    pub events: Vec<RunEvent>,
    /// Requests of the clients and the answers to them, warm-up included: the histories that were
    /// judged. There is one of each run.
    pub histories: Vec<History>,
}

/// The stored name of a key: ordered as its number is.
pub fn key_name(number: u64) -> Key {
    Key::from(format!("key{number:010}"))
}

/// A value of `bytes` bytes that no other write of the run shares.
pub fn value(id: ValueId, bytes: usize) -> Bytes {
    id.to_value(bytes)
}
