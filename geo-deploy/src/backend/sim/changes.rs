//! Changes of strategy in the simulated world.

use server::replica::Operator;
use server::replica::lease_set::LeaseSet;

use super::clients::{Alarm, Clients};

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
        let strategy = (self.plan.range(change), self.plan.changed_to(change)?);
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
        let set = LeaseSet {
            strategies: vec![strategy],
            ..LeaseSet::default()
        };
        let ask = index as u64 + 1;
        self.world.operate(leader, Operator::Lease { ask, set });
        Ok(())
    }
}
