//! One configuration from what the strategies of all ranges propose.

use super::listing::Listing;
use super::situation::{Question, Situation};
use crate::config::{ConfigChange, Configs};
use crate::demand::Demand;

/// The next configuration, as far as strategies decide about it.
#[derive(Debug)]
pub struct Gathered {
    /// What changes.
    pub change: ConfigChange,
    /// Whether more would have changed than one entry of the log may hold: the strategies
    /// should be asked again as soon as this one is in force.
    pub more: bool,
}

/// Adds to `change`, which may bring other strategies, what the strategy of each range
/// wants: for ranges as a whole, and for single keys up to the size of one entry.
pub fn gather(
    mut change: ConfigChange,
    situation: &Situation,
    demand: &mut Demand,
    current: &Configs,
) -> Gathered {
    let mut listing = Listing::default();
    for (range, policy) in current.policies_after(&change.ranges).iter() {
        let asked = Question {
            range: &range,
            situation,
            current,
        };
        let strategy = policy.strategy.build();
        let proposal = strategy.propose(&asked, demand, &mut listing);
        if proposal.clear || proposal.defaults.is_some() {
            let of_range = change.of_range(&range);
            of_range.clear = proposal.clear;
            of_range.defaults = proposal.defaults;
        }
    }
    let more = listing.is_full();
    change.keys = listing.into_keys();
    Gathered { change, more }
}
