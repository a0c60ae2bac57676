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
        (current.defaults() != wanted || !current.ranges().is_empty()).then(|| ConfigChange {
            defaults: Some(wanted),
            ranges: Some(Vec::new()),
            ..Default::default()
        })
    }
}

/// The operator's ranges.
pub(super) struct Ranges(pub(super) Vec<KeyRange>);

impl Strategy for Ranges {
    fn propose(
        &mut self,
        situation: &Situation,
        _: &mut Demand,
        current: &Configs,
    ) -> Option<ConfigChange> {
        let wanted = situation.near_majority();
        (current.defaults() != wanted || current.ranges() != self.0).then(|| ConfigChange {
            defaults: Some(wanted),
            ranges: Some(self.0.clone()),
            ..Default::default()
        })
    }
}
