//! Changes of strategy in the simulated world.

use anyhow::{Context as _, bail};
use leasehold_replica::OperatorRequest;
use leasehold_replica::action::Event;
use leasehold_replica::lease_set::LeaseSet;

use super::clients::{ClientAlarm, Clients};

impl Clients<'_> {
    /// Sets an alarm for each change of strategy. The measured interval begins at `begin_ns`.
    pub(super) fn schedule_changes(&mut self, begin_ns: u64) {
        let times = self.plan.changes(begin_ns).map(|(at_ns, _)| at_ns);
        for (index, at_ns) in times.collect::<Vec<_>>().into_iter().enumerate() {
            self.alarm(at_ns, ClientAlarm::Change(index));
        }
    }

    /// Requests a change of strategy from the leader.
    ///
    /// # Errors
    /// If no replica leads, or replicas do not know the strategy.
    pub(super) fn change(&mut self, index: usize) -> anyhow::Result<()> {
        let change = &self.plan.strategy.change[index];
        let spec = self.plan.changed_to(change)?;
        let leads = |node: &usize| {
            let replica = self.world.replica(*node);
            let leader = replica.and_then(|replica| replica.leader());
            leader.is_some_and(|leader| leader.index() == *node) && self.world.is_up(*node)
        };
        let leader = (0..self.world.n()).find(leads);
        let leader = leader.with_context(|| {
            let to = change.words();
            format!("nobody leads when the strategy is to change to {to}")
        })?;
        let set = LeaseSet {
            strategies: vec![(self.plan.range(change), spec)],
            ..LeaseSet::default()
        };
        let ask = index as u64;
        self.world
            .operate(leader, OperatorRequest::Lease { ask, set });
        Ok(())
    }

    /// Checks that every change of strategy came into force.
    ///
    /// # Errors
    /// If a change did not come into force. The error names the change and the reason.
    pub(super) fn check_changes(&self) -> anyhow::Result<()> {
        for (index, change) in self.plan.strategy.change.iter().enumerate() {
            let answer = self.world.notes.iter().find_map(|(_, _, note)| match note {
                Event::LeaseAnswered { ask, answer } if *ask == index as u64 => Some(answer),
                _ => None,
            });
            let to = change.words();
            match answer {
                Some(Ok(_)) => {}
                Some(Err(refusal)) => {
                    bail!("the strategy did not change to {to}: {}", refusal.reason())
                }
                None => bail!("the strategy did not change to {to}: nobody answered"),
            }
        }
        Ok(())
    }
}
