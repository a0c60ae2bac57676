//! Histories of clients, and the checkers that judge them: key by key, or as transactions on
//! several keys.

pub mod history;
pub mod linearizability;
pub mod serializability;

pub use history::{History, HistoryAction, HistoryError, HistoryEvent, ValueId};
pub use linearizability::{LinearizabilityVerdict, check};
