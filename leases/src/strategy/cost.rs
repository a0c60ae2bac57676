//! `cost`: each key is held by the set of replicas, of any size, that makes its
//! operations wait least (protocol §5).

use super::chooser::Wish;
use super::costs::{Costs, Preference};
use super::situation::Situation;
use crate::config::CostSettings;
use crate::demand::{Estimator, Rates, Row, as_counted};
use crate::types::ReplicaSet;

/// Holders change only where that saves more than this share of what the key costs.
const HYSTERESIS: f32 = 0.02;

/// See the file.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    costs: Costs,
    estimator: Estimator,
    settings: CostSettings,
    defaults: ReplicaSet,
}

impl Cost {
    /// With `held` as the present holders of keys that are not listed.
    pub(super) fn new(
        settings: CostSettings,
        situation: &Situation,
        estimator: &Estimator,
        held: ReplicaSet,
    ) -> Cost {
        let preference = Preference {
            read_weight: settings.read_weight(),
            spare: usize::from(settings.spare),
        };
        let mut cost = Cost {
            costs: Costs::new(situation.distance(), situation.replies, preference),
            estimator: estimator.clone(),
            settings,
            defaults: held,
        };
        cost.defaults = cost.choose_defaults(situation, held);
        cost
    }

    /// Keys that nobody has asked are asked like the rare ones of every origin.
    fn choose_defaults(&self, situation: &Situation, held: ReplicaSet) -> ReplicaSet {
        let unasked = self.estimator.unasked();
        let near = self.costs.fitting(situation.near_majority());
        if !self.settings.prior {
            return near;
        }
        if self.estimator.has_observed() {
            return self
                .better(&unasked, held)
                .map_or(held, |wish| wish.holders);
        }
        // Too little is known: what costs writes nothing, if there is nothing yet.
        match self.costs.may(held) {
            true => held,
            false => near,
        }
    }

    pub(super) fn defaults(&self) -> ReplicaSet {
        self.defaults
    }

    /// Who should hold a key that nobody asks now, and that `held` hold without the leader.
    pub(super) fn keep(&self, held: ReplicaSet) -> ReplicaSet {
        self.costs.fitting(held)
    }

    /// Who should hold a key with these counts, if not `held`.
    #[inline]
    pub(super) fn choose(&self, row: Row<'_>, held: ReplicaSet) -> Option<Wish> {
        let rates = match self.settings.prior {
            true => self.estimator.rates(row),
            false => as_counted(row),
        };
        self.better(&rates, held)
    }

    fn better(&self, rates: &Rates, held: ReplicaSet) -> Option<Wish> {
        let best = self.costs.best(rates);
        if best.holders == held {
            return None;
        }
        let now = self.costs.cost(held, rates);
        let gain = now - best.cost;
        // Holders without the leader, or more than may be, are no choice.
        let enough = gain > HYSTERESIS * now || !self.costs.may(held);
        enough.then_some(Wish {
            holders: best.holders,
            gain,
        })
    }
}
