//! Strategies, which decide which replicas should hold which keys.
//!
//! Safety does not depend on strategies. A strategy looks at the situation and at the demand that
//! the leader has counted, and decides what the next configuration should change. Promises, tags
//! and barriers are the same for all strategies.
//!
//! A new strategy needs a name in `config/spec.rs` and a line in `chooser.rs`. A strategy that
//! follows demand has a module here.

mod chooser;
mod cost;
mod costs;
mod gathered_changes;
mod quorum;
mod remaining;
mod situation;
mod survey;
#[cfg(test)]
mod tests;

pub use self::costs::{Choice, Costs, Preference};
pub use self::remaining::{KEYS_A_CONFIGURATION, RemainingChanges, bytes_of_keys};
pub use self::situation::Situation;
pub use self::survey::{Survey, SurveyResult};
pub use crate::config::{StrategySpec, UnlistedHolders};
