//! Strategies that look at nothing but who leads: `none`, `leader`, `all`, and
//! `fixed`, the operator's own ranges.

use super::{Situation, Strategy};
use crate::config::{ConfigChange, Configs, KeyRange};
use crate::demand::Demand;
use crate::types::ReplicaSet;

/// The same holders for every key.
pub(super) struct Defaults(pub(super) fn(&Situation) -> ReplicaSet);

impl Strategy for Defaults {
    fn propose(
        &mut self,
        situation: &Situation,
        _: &mut Demand,
        current: &Configs,
    ) -> Option<ConfigChange> {
        let wanted = (self.0)(situation);
        let settled =
            current.defaults() == wanted && current.ranges().is_empty() && !current.any_listed();
        (!settled).then(|| ConfigChange {
            // Keys that an earlier strategy listed would keep its holders.
            clear: current.any_listed(),
            defaults: Some(wanted),
            ranges: Some(Vec::new()),
            ..Default::default()
        })
    }
}

/// The operator's ranges, in rising order.
pub(super) struct Ranges(Vec<KeyRange>);

impl Ranges {
    /// Ranges in any order, as an operator writes them.
    pub(super) fn new(mut ranges: Vec<KeyRange>) -> Ranges {
        ranges.sort_by(|a, b| a.from.cmp(&b.from));
        Ranges(ranges)
    }
}

impl Strategy for Ranges {
    fn propose(
        &mut self,
        situation: &Situation,
        _: &mut Demand,
        current: &Configs,
    ) -> Option<ConfigChange> {
        let wanted = situation.near_majority();
        let settled =
            current.defaults() == wanted && current.ranges() == self.0 && !current.any_listed();
        (!settled).then(|| ConfigChange {
            clear: current.any_listed(),
            defaults: Some(wanted),
            ranges: Some(self.0.clone()),
            ..Default::default()
        })
    }
}
