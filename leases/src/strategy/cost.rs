//! The strategy `cost`: each key is held by the set of replicas that minimizes the waiting time of
//! its operations (protocol §5). The set may have any size.

use std::sync::Arc;

use super::chooser::HolderChange;
use super::costs::{Costs, Preference};
use super::situation::Situation;
use crate::config::CostSettings;
use crate::demand::{Estimator, Rates, Row, as_counted};
use crate::types::ReplicaSet;

/// Minimum saving for a change of a key's holders, as a share of the key's cost.
const HYSTERESIS: f32 = 0.02;

/// The strategy `cost` with its settings, in one situation.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    costs: Arc<Costs>,
    estimator: Arc<Estimator>,
    settings: CostSettings,
    defaults: ReplicaSet,
}

/// State that all ranges share in one situation. The table with the costs of all sets of holders is
/// large, so ranges with the same settings share one such table.
#[derive(Debug)]
pub(super) struct Tables<'a> {
    pub(super) situation: &'a Situation,
    estimator: Arc<Estimator>,
    /// Tables by settings: (weight of reads in thousandths, number of spare replicas).
    costs: Vec<((u32, u8), Arc<Costs>)>,
}

impl Tables<'_> {
    pub(super) fn new(situation: &Situation, estimator: Estimator) -> Tables<'_> {
        Tables {
            situation,
            estimator: Arc::new(estimator),
            costs: Vec::new(),
        }
    }

    fn of(&mut self, settings: CostSettings) -> Arc<Costs> {
        let settings_key = (settings.thousandths(), settings.spare);
        if let Some((_, costs)) = self.costs.iter().find(|(known, _)| *known == settings_key) {
            return Arc::clone(costs);
        }
        let preference = Preference {
            read_weight: settings.read_weight(),
            spare: usize::from(settings.spare),
        };
        let distance = self.situation.distance();
        let costs = Arc::new(Costs::new(distance, self.situation.replies, preference));
        self.costs.push((settings_key, Arc::clone(&costs)));
        costs
    }
}

impl Cost {
    /// Creates the chooser for the strategy. `current_holders` are the present holders of unlisted
    /// keys.
    pub(super) fn new(
        settings: CostSettings,
        tables: &mut Tables<'_>,
        current_holders: ReplicaSet,
    ) -> Cost {
        let situation = tables.situation;
        let mut cost = Cost {
            costs: tables.of(settings),
            estimator: Arc::clone(&tables.estimator),
            settings,
            defaults: current_holders,
        };
        cost.defaults = cost.choose_defaults(situation, current_holders);
        cost
    }

    /// Chooses the holders of keys that are not listed. The choice is based on the expected demand
    /// for keys that no client has requested yet.
    fn choose_defaults(&self, situation: &Situation, current_holders: ReplicaSet) -> ReplicaSet {
        let unrequested = self.estimator.unrequested();
        let near = self.costs.fitting(situation.near_majority());
        if !self.settings.prior {
            return near;
        }
        if self.estimator.has_observed() {
            return self
                .better(&unrequested, current_holders)
                .map_or(current_holders, |change| change.holders);
        }
        // Too little is known: keep the current holders if they are allowed, and otherwise choose
        // holders that do not slow writes.
        if self.costs.may_hold(current_holders) {
            current_holders
        } else {
            near
        }
    }

    /// Returns the address of the strategy's table of costs.
    #[cfg(test)]
    pub(super) fn table(&self) -> *const Costs {
        Arc::as_ptr(&self.costs)
    }

    pub(super) fn defaults(&self) -> ReplicaSet {
        self.defaults
    }

    /// Returns the new holders of a key that no client requests now, with the leader among them.
    /// `current_holders` are the present holders of the key. They must not include the leader.
    pub(super) fn keep(&self, current_holders: ReplicaSet) -> ReplicaSet {
        self.costs.fitting(current_holders)
    }

    /// Returns the change of holders for a key with the counts `row`; `None` if the key should keep
    /// its `current_holders`.
    #[inline]
    pub(super) fn choose(&self, row: Row<'_>, current_holders: ReplicaSet) -> Option<HolderChange> {
        let rates = if self.settings.prior {
            self.estimator.rates(row)
        } else {
            as_counted(row)
        };
        self.better(&rates, current_holders)
    }

    fn better(&self, rates: &Rates, current_holders: ReplicaSet) -> Option<HolderChange> {
        let best = self.costs.best(rates);
        if best.holders == current_holders {
            return None;
        }
        let now = self.costs.cost(current_holders, rates);
        let gain = now - best.cost;
        // `current_holders` must change if they do not include the leader or are too many.
        let enough = gain > HYSTERESIS * now || !self.costs.may_hold(current_holders);
        enough.then_some(HolderChange {
            holders: best.holders,
            gain,
        })
    }
}
