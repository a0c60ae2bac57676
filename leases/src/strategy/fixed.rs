//! Strategies that look at nothing but who leads: `none`, `leader`, `all`, and
//! `fixed`, the operator's own choice.

use super::listing::Listing;
use super::situation::{Proposal, Question, Situation, Strategy};
use crate::demand::Demand;
use crate::types::ReplicaSet;

/// The same holders for every key.
pub(super) struct Everywhere(pub(super) fn(&Situation) -> ReplicaSet);

impl Strategy for Everywhere {
    fn propose(&self, asked: &Question<'_>, _: &mut Demand, _: &mut Listing) -> Proposal {
        restate(asked, (self.0)(asked.situation))
    }
}

/// The operator's holders; nobody's: the leader and the N/2 replicas nearest to it.
pub(super) struct Chosen(pub(super) Option<ReplicaSet>);

impl Strategy for Chosen {
    fn propose(&self, asked: &Question<'_>, _: &mut Demand, _: &mut Listing) -> Proposal {
        let members = asked.situation.members().voters();
        let chosen = self.0.map(|holders| holders.intersection(members));
        let holders = chosen.unwrap_or_else(|| asked.situation.near_majority());
        restate(asked, holders)
    }
}

/// The change after which every key of the range has these holders and none is listed:
/// keys that an earlier strategy listed would keep its holders.
fn restate(asked: &Question<'_>, defaults: ReplicaSet) -> Proposal {
    let policy = asked.policy();
    Proposal {
        defaults: (policy.defaults != defaults).then_some(defaults),
        clear: policy.any_listed(),
    }
}
