//! Facts of a run, which backends make and reports read, and the bounds that they are compared with.

pub mod bookkeeping;
pub mod bound;
mod facts;

pub use facts::{
    FaultSpan, HistoryVerdict, MeasuredInterval, OutageBound, RunEvent, StrategyRun, SwitchReads,
    in_order,
};
