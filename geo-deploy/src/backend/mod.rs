//! Backends on which an experiment can run. Each backend sends the same requests to the same
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

/// Callback that receives the progress of a run: the label of the run, the amount of work that is
/// done, and the total amount.
pub type ProgressFn<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// Result of a run of one strategy.
#[derive(Debug)]
pub struct RunResult {
    /// Measurements of the run.
    pub run: StrategyRun,
    /// Events of the run: elections, configurations, changes of strategy.
    pub events: Vec<RunEvent>,
    /// Histories of the clients, one for each run. A history contains all requests and answers,
    /// including those of the warm-up.
    pub histories: Vec<History>,
}

/// Returns the name under which a key is stored. Names have the same order as the numbers of the
/// keys.
pub fn key_name(number: u64) -> Key {
    Key::from(format!("key{number:010}"))
}

/// Returns the value with this id, padded to `bytes` bytes. Ids are unique in a run, so no other
/// write of the run has the same value.
pub fn value(id: ValueId, bytes: usize) -> Bytes {
    id.to_value(bytes)
}
