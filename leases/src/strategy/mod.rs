//! Who should hold what: a file for each policy, and `fixed.rs` for those that follow no
//! demand.
//!
//! A strategy decides nothing about safety. It looks at the situation and at
//! the demand that the leader has counted, and says what the next configuration
//! should change. Promises, tags and barriers are the same for all.
//!
//! A new strategy has a name in `config/spec.rs`, a file here, and a line in
//! [`StrategySpec::build`].

mod fixed;
mod gather;
mod listing;
mod quorum;
mod situation;
#[cfg(test)]
mod tests;

pub use self::gather::{Gathered, gather};
pub use self::listing::Listing;
pub use self::situation::{Proposal, Question, Situation, Strategy};
pub use crate::config::{StrategySpec, Unlisted};

use self::fixed::{Chosen, Everywhere};
use self::quorum::Quorum;
use crate::types::ReplicaSet;

impl StrategySpec {
    /// The policy itself.
    pub fn build(&self) -> Box<dyn Strategy> {
        match self {
            StrategySpec::None => Box::new(Everywhere(|_| ReplicaSet::EMPTY)),
            StrategySpec::Leader => Box::new(Everywhere(|s| ReplicaSet::one(s.leader))),
            StrategySpec::All => Box::new(Everywhere(|s| s.members().voters())),
            StrategySpec::Quorum { unlisted } => Box::new(Quorum::new(*unlisted)),
            StrategySpec::Fixed { holders } => Box::new(Chosen(*holders)),
        }
    }
}
