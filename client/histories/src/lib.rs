//! Histories of clients, and the checkers that judge them: key by key, or transactions on several.

pub mod history;
pub mod linearizability;
pub mod serializability;

pub use history::{Action, Event, History, HistoryError, ValueId};
pub use linearizability::{Verdict, check};
