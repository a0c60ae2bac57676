//! Facts about a run, and the latency bounds with which the facts are compared. Backends produce
//! the facts, and reports read them.

pub mod bookkeeping;
pub mod bound;
mod facts;

pub use facts::{
    FaultSpan, HistoryVerdict, MeasuredInterval, OutageBound, RunEvent, StrategyRun, SwitchReads,
    in_order,
};
