//! Carries out an experiment's faults and changes of strategy on the replicas of a run, while
//! clients send requests.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context as _, bail};
use leasehold_leases::Key;
use tokio::task::JoinSet;

use super::clients::SharedRunState;
use super::holder_query::{HolderAnswers, HolderQuery};
use super::{DownReason, LocalCluster, ProcessEvent, changes};
use crate::backend::faults::{ClusterSnapshot, FaultTransition, LeaseHolders, RunFaults};
use crate::backend::{RunPlan, key_name};
use crate::run::bound::SiteSet;

/// Time between two polls of the processes.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// Time that is added to [`LEAD`] for each key. The sum is the time from the start of a query to
/// the fault. This time depends on the number of keys, because the query asks about each key.
const LEAD_PER_KEY: Duration = Duration::from_micros(500);
const LEAD: Duration = Duration::from_millis(300);
/// Time from the query for the replicas' roles to the fault.
const ROLES_LEAD: Duration = Duration::from_millis(50);

/// Polls the replicas, and carries out the faults and changes of the plan. The future runs until an
/// error occurs or until it is dropped.
///
/// # Errors
/// If no replica has a role that a fault names, if a change of strategy fails, or if a replica ends
/// without a fault.
pub(super) async fn disturb(
    plan: &RunPlan<'_>,
    cluster: &mut LocalCluster,
    shared: &SharedRunState,
    faults: &mut RunFaults<'_>,
) -> anyhow::Result<Infallible> {
    let mut disturbance = Disturbance {
        plan,
        cluster,
        shared,
        faults,
        hottest: key_name(plan.hottest_key()),
        holder_queries: JoinSet::new(),
        changes: JoinSet::new(),
    };
    disturbance.run().await
}

/// Task that asks the replicas for possible holders before a fault.
type PendingAnswers = tokio::task::JoinHandle<Option<HolderAnswers>>;

struct Disturbance<'a, 'b, 'c> {
    plan: &'a RunPlan<'b>,
    cluster: &'a mut LocalCluster,
    shared: &'a SharedRunState,
    faults: &'a mut RunFaults<'c>,
    hottest: Key,
    /// Queries that were sent after a fault began. A query returns the index of the fault and, for
    /// each key, the replicas that may have held a lease on the key when the fault began. The
    /// second value is `None` if these replicas could not be determined.
    holder_queries: JoinSet<(usize, Option<Vec<SiteSet>>)>,
    /// Changes of strategy that were requested and have not come into force yet.
    changes: JoinSet<anyhow::Result<()>>,
}

/// An action that is due at some time.
enum ScheduledAction {
    Fault(FaultTransition),
    /// The change of strategy with this index.
    Change(usize),
}

impl Disturbance<'_, '_, '_> {
    async fn run(&mut self) -> anyhow::Result<Infallible> {
        let begin_ns = loop {
            if let Some(begin_ns) = self.shared.begin_ns() {
                break begin_ns;
            }
            self.poll().await?;
        };
        for (at_ns, action) in self.actions(begin_ns) {
            match action {
                ScheduledAction::Fault(FaultTransition::Begin(index)) => {
                    self.begin(index, at_ns).await?
                }
                ScheduledAction::Fault(FaultTransition::End(index)) => {
                    self.until(at_ns).await?;
                    let effects = self.faults.end(index, self.shared.now_ns());
                    self.perform(effects)?;
                }
                ScheduledAction::Change(index) => {
                    self.until(at_ns).await?;
                    self.change(index);
                }
            }
        }
        loop {
            self.poll().await?;
        }
    }

    /// Returns all actions with their times in ns, in order of time.
    fn actions(&self, begin_ns: u64) -> Vec<(u64, ScheduledAction)> {
        let transitions = self.faults.transitions(begin_ns).into_iter();
        let transitions =
            transitions.map(|(at_ns, transition)| (at_ns, ScheduledAction::Fault(transition)));
        let changes = self.plan.changes(begin_ns).enumerate();
        let changes = changes.map(|(index, (at_ns, _))| (at_ns, ScheduledAction::Change(index)));
        let mut actions: Vec<(u64, ScheduledAction)> = transitions.chain(changes).collect();
        actions.sort_by_key(|(at_ns, _)| *at_ns);
        actions
    }

    /// Requests a change of strategy. A refusal is reported by a later poll.
    fn change(&mut self, index: usize) {
        let change = &self.plan.strategy.change[index];
        let request = changes::request(self.plan, change);
        let address = self.cluster.client_addresses()[self.plan.experiment.leader_index()];
        let options = self.cluster.client_access().options([address]);
        self.changes.spawn(changes::put_in_force(options, request));
    }

    /// Begins a fault. Also starts the query that finds, for each key, the replicas that may have
    /// held a lease on the key when the fault began.
    async fn begin(&mut self, index: usize, at_ns: u64) -> anyhow::Result<()> {
        let earlier = |lead: Duration| at_ns.saturating_sub(lead.as_nanos() as u64);
        let keys = self.plan.experiment.workload.keys as u32;
        self.until(earlier(LEAD + LEAD_PER_KEY * keys)).await?;
        let before = self
            .holder_query()
            .map(|holder_query| tokio::spawn(holder_query.run()));
        self.until(earlier(ROLES_LEAD)).await?;
        let snapshot = self.snapshot(before.is_some()).await;
        self.until(at_ns).await?;
        let effects = self.faults.begin(index, self.shared.now_ns(), snapshot)?;
        self.perform(effects)?;
        if let Some((before, after)) = before.zip(self.holder_query()) {
            self.holder_queries
                .spawn(query_lease_holders(index, before, after));
        }
        Ok(())
    }

    fn holder_query(&self) -> Option<HolderQuery> {
        HolderQuery::new(self.plan, self.cluster)
    }

    /// Returns the roles of the replicas. If `queried` is true, the snapshot omits the possible
    /// lease holders. A separate query finds these holders later.
    async fn snapshot(&self, queried: bool) -> ClusterSnapshot {
        let found = self.cluster.roles(Some(&self.hottest)).await;
        ClusterSnapshot {
            leader: found.leader,
            holders: found.holders,
            up: found.up,
            lease_holders: if queried {
                LeaseHolders::Unknown
            } else {
                LeaseHolders::NotRequested
            },
        }
    }

    fn perform(&mut self, effects: Vec<crate::fault::Effect>) -> anyhow::Result<()> {
        for effect in effects {
            let done = self.cluster.perform(effect);
            done.with_context(|| format!("doing {effect:?}"))?;
        }
        Ok(())
    }

    async fn until(&mut self, at_ns: u64) -> anyhow::Result<()> {
        while self.shared.now_ns() + (POLL_EVERY.as_nanos() as u64) < at_ns {
            self.poll().await?;
        }
        let left = Duration::from_nanos(at_ns.saturating_sub(self.shared.now_ns()));
        tokio::time::sleep(left).await;
        Ok(())
    }

    async fn poll(&mut self) -> anyhow::Result<()> {
        tokio::time::sleep(POLL_EVERY).await;
        while let Some(Ok((index, lease_holders))) = self.holder_queries.try_join_next() {
            self.faults.set_lease_holders(
                index,
                lease_holders.map_or(LeaseHolders::Unknown, LeaseHolders::Known),
            );
        }
        while let Some(changed) = self.changes.try_join_next() {
            changed.context("a change of strategy")??;
        }
        for (site, happened) in self.cluster.poll() {
            let name = self.plan.topology().names()[site];
            match happened {
                ProcessEvent::Started => self.faults.replica_restarted(site, self.shared.now_ns()),
                ProcessEvent::Ended(DownReason::Died(how) | DownReason::Refused(how)) => {
                    bail!("replica {name} died: {how}")
                }
                ProcessEvent::NotStarted(how) => {
                    bail!("replica {name} could not be started again: {how}")
                }
                ProcessEvent::Ended(_) => {}
            }
        }
        Ok(())
    }
}

/// Returns the index of a fault, and the replicas that may have held a lease on each key when the
/// fault began. The second value is `None` if the answers before and after the fault do not
/// determine these replicas.
async fn query_lease_holders(
    index: usize,
    before: PendingAnswers,
    after: HolderQuery,
) -> (usize, Option<Vec<SiteSet>>) {
    let after = after.run().await;
    let before = before.await.ok().flatten();
    let both = before.zip(after);
    (index, both.and_then(|(before, after)| before.until(&after)))
}
