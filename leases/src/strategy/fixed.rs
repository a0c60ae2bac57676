//! Strategies that look at nothing but who leads: `none`, `leader`, `all`, and
//! `fixed`, the operator's own ranges.

use super::situation::{Situation, Strategy, assert_whole};
use crate::config::{ConfigChange, Configs, KeyRange, RangeHolders};
use crate::demand::Demand;
use crate::types::ReplicaSet;

/// The same holders for every key.
pub(super) struct Everywhere(pub(super) fn(&Situation) -> ReplicaSet);

impl Strategy for Everywhere {
    fn propose(
        &self,
        range: &KeyRange,
        situation: &Situation,
        _: &mut Demand,
        current: &Configs,
    ) -> Option<ConfigChange> {
        assert_whole(range);
        restate(current, (self.0)(situation), Vec::new())
    }
}

/// The operator's ranges, in any order.
pub(super) struct Ranges(pub(super) Vec<RangeHolders>);

impl Strategy for Ranges {
    fn propose(
        &self,
        range: &KeyRange,
        situation: &Situation,
        _: &mut Demand,
        current: &Configs,
    ) -> Option<ConfigChange> {
        assert_whole(range);
        let ranges = RangeHolders::in_order(&self.0, situation.members().voters());
        restate(current, situation.near_majority(), ranges)
    }
}

/// The change after which every key has these holders and none is listed.
fn restate(
    current: &Configs,
    defaults: ReplicaSet,
    ranges: Vec<RangeHolders>,
) -> Option<ConfigChange> {
    // Keys that an earlier strategy listed would keep its holders.
    let clear = current.any_listed();
    let settled = current.defaults() == defaults && current.ranges() == ranges && !clear;
    (!settled).then(|| ConfigChange {
        clear,
        defaults: Some(defaults),
        ranges: Some(ranges),
        ..Default::default()
    })
}
