//! Facts about a run, which backends produce and reports read, and the latency bounds with which
//! the facts are compared.

pub mod bookkeeping;
pub mod bound;
mod facts;

pub use facts::{
    FaultSpan, HistoryVerdict, MeasuredInterval, OutageBound, RunEvent, StrategyRun, SwitchReads,
    in_order,
};
