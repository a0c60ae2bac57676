//! Changes of strategy in the simulated world.

use leases::{RangeMap, StrategySpec};
use server::replica::Operator;

use super::super::Plan;
use super::clients::{Alarm, Clients};

/// What has been put in force so far, and what is still to be.
pub(super) struct Changes {
    strategies: anyhow::Result<RangeMap<StrategySpec>>,
}

impl Changes {
    pub(super) fn new(plan: &Plan<'_>) -> Changes {
        Changes {
            strategies: plan.strategies(),
        }
    }
}

impl Clients<'_> {
    /// Sets an alarm for each change; the measured interval begins at `begin_ns`.
    pub(super) fn schedule_changes(&mut self, begin_ns: u64) {
        let times = self.plan.changes(begin_ns).map(|(at_ns, _)| at_ns);
        for (index, at_ns) in times.collect::<Vec<_>>().into_iter().enumerate() {
            self.alarm(at_ns, Alarm::Change(index));
        }
    }

    /// Asks the leader for a change.
    ///
    /// # Errors
    /// If nobody leads, or the strategy is none that replicas know.
    pub(super) fn change(&mut self, index: usize) -> anyhow::Result<()> {
        let change = &self.plan.strategy.change[index];
        let spec = self.plan.changed_to(change)?;
        let range = self.plan.range(change);
        let mut strategies = match &self.changes.strategies {
            Ok(strategies) => strategies.clone(),
            Err(error) => anyhow::bail!("{error:#}"),
        };
        strategies.update(&range, |value| *value = spec.clone());
        let leads = |node: &usize| {
            let replica = self.world.replica(*node);
            let leader = replica.and_then(|replica| replica.leader());
            leader.is_some_and(|leader| leader.index() == *node) && self.world.is_up(*node)
        };
        let leader = (0..self.world.n()).find(leads).ok_or_else(|| {
            anyhow::anyhow!(
                "nobody leads when the strategy is to change to {}",
                change.words()
            )
        })?;
        let wanted = Operator::Switch(strategies.clone(), self.plan.params());
        self.world.operate(leader, wanted);
        self.changes.strategies = Ok(strategies);
        Ok(())
    }
}
