//! Does the faults of an experiment to the replicas of a run, and changes their strategy, while
//! clients ask.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context as _, bail};
use leasehold_leases::Key;
use tokio::task::JoinSet;

use super::super::faults::{Faults, Held, Roles, Turn};
use super::super::{Plan, key_name};
use super::clients::Shared;
use super::holdings::{Holdings, Inquiry};
use super::{Happened, LocalCluster, Why, changes};
use crate::run::bound::SiteSet;

/// Time between two looks after the processes.
const TEND_EVERY: Duration = Duration::from_millis(20);
/// Lead time before a fault at which replicas are asked for possible holders: this for each key,
/// and [`LEAD`] in addition.
const LEAD_PER_KEY: Duration = Duration::from_micros(500);
const LEAD: Duration = Duration::from_millis(300);
/// Time before a fault at which replicas are asked for their roles.
const ROLES_LEAD: Duration = Duration::from_millis(50);

/// Looks after the replicas and does what the plan says, until it is dropped.
///
/// # Errors
/// If nobody has a role that a fault is aimed at, or a replica dies of itself.
pub(super) async fn disturb(
    plan: &Plan<'_>,
    cluster: &mut LocalCluster,
    shared: &Shared,
    faults: &mut Faults<'_>,
) -> anyhow::Result<Infallible> {
    let mut disturbance = Disturbance {
        plan,
        cluster,
        shared,
        faults,
        hottest: key_name(plan.hottest_key()),
        inquiries: JoinSet::new(),
        changes: JoinSet::new(),
    };
    disturbance.go_on().await
}

/// Answers of replicas before a fault, while they are asked.
type Before = tokio::task::JoinHandle<Option<Holdings>>;

struct Disturbance<'a, 'b, 'c> {
    plan: &'a Plan<'b>,
    cluster: &'a mut LocalCluster,
    shared: &'a Shared,
    faults: &'a mut Faults<'c>,
    hottest: Key,
    /// The index of the fault, and the replicas that may have held a lease on each key when it
    /// began.
    inquiries: JoinSet<(usize, Option<Vec<SiteSet>>)>,
    /// Changes of strategy that replicas were asked for.
    changes: JoinSet<anyhow::Result<()>>,
}

/// An action that is due at some time.
enum Act {
    Turn(Turn),
    /// The change of strategy of this index.
    Change(usize),
}

impl Disturbance<'_, '_, '_> {
    async fn go_on(&mut self) -> anyhow::Result<Infallible> {
        let begin_ns = loop {
            if let Some(begin_ns) = self.shared.begin_ns() {
                break begin_ns;
            }
            self.tend().await?;
        };
        for (at_ns, act) in self.acts(begin_ns) {
            match act {
                Act::Turn(Turn::Begin(index)) => self.begin(index, at_ns).await?,
                Act::Turn(Turn::End(index)) => {
                    self.until(at_ns).await?;
                    let effects = self.faults.end(index, self.shared.now_ns());
                    self.perform(effects)?;
                }
                Act::Change(index) => {
                    self.until(at_ns).await?;
                    self.change(index);
                }
            }
        }
        loop {
            self.tend().await?;
        }
    }

    /// Everything that is done, in order of time.
    fn acts(&self, begin_ns: u64) -> Vec<(u64, Act)> {
        let turns = self.faults.turns(begin_ns).into_iter();
        let turns = turns.map(|(at_ns, turn)| (at_ns, Act::Turn(turn)));
        let changes = self.plan.changes(begin_ns).enumerate();
        let changes = changes.map(|(index, (at_ns, _))| (at_ns, Act::Change(index)));
        let mut acts: Vec<(u64, Act)> = turns.chain(changes).collect();
        acts.sort_by_key(|(at_ns, _)| *at_ns);
        acts
    }

    /// Asks for a change of strategy. Whether it was refused is seen while looking after the
    /// replicas.
    fn change(&mut self, index: usize) {
        let change = &self.plan.strategy.change[index];
        let request = changes::request(self.plan, change);
        let address = self.cluster.client_addresses()[self.plan.experiment.leader_index()];
        let options = self.cluster.reach().options([address]);
        self.changes.spawn(changes::put_in_force(options, request));
    }

    /// Begins a fault, and asks which replicas may have held a lease on each key then.
    async fn begin(&mut self, index: usize, at_ns: u64) -> anyhow::Result<()> {
        let earlier = |lead: Duration| at_ns.saturating_sub(lead.as_nanos() as u64);
        let keys = self.plan.experiment.workload.keys as u32;
        self.until(earlier(LEAD + LEAD_PER_KEY * keys)).await?;
        let before = self.inquiry().map(|inquiry| tokio::spawn(inquiry.ask()));
        self.until(earlier(ROLES_LEAD)).await?;
        let roles = self.roles(before.is_some()).await;
        self.until(at_ns).await?;
        let effects = self.faults.begin(index, self.shared.now_ns(), roles)?;
        self.perform(effects)?;
        if let Some((before, after)) = before.zip(self.inquiry()) {
            self.inquiries.spawn(held(index, before, after));
        }
        Ok(())
    }

    fn inquiry(&self) -> Option<Inquiry> {
        Inquiry::new(self.plan, self.cluster)
    }

    /// Returns the roles of the replicas. The possible holders are added later, if any replica is
    /// asked.
    async fn roles(&self, asked: bool) -> Roles {
        let found = self.cluster.roles(Some(&self.hottest)).await;
        Roles {
            leader: found.leader,
            holders: found.holders,
            up: found.up,
            held: if asked { Held::Unknown } else { Held::Unasked },
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
        while self.shared.now_ns() + (TEND_EVERY.as_nanos() as u64) < at_ns {
            self.tend().await?;
        }
        let left = Duration::from_nanos(at_ns.saturating_sub(self.shared.now_ns()));
        tokio::time::sleep(left).await;
        Ok(())
    }

    async fn tend(&mut self) -> anyhow::Result<()> {
        tokio::time::sleep(TEND_EVERY).await;
        while let Some(Ok((index, held))) = self.inquiries.try_join_next() {
            self.faults
                .held(index, held.map_or(Held::Unknown, Held::By));
        }
        while let Some(changed) = self.changes.try_join_next() {
            changed.context("a change of strategy")??;
        }
        for (site, happened) in self.cluster.tend() {
            let name = self.plan.topology().names()[site];
            match happened {
                Happened::Started => self.faults.started(site, self.shared.now_ns()),
                Happened::Ended(Why::Died(how) | Why::Refused(how)) => {
                    bail!("replica {name} died: {how}")
                }
                Happened::NotStarted(how) => {
                    bail!("replica {name} could not be started again: {how}")
                }
                Happened::Ended(_) => {}
            }
        }
        Ok(())
    }
}

/// Returns the replicas that may have held a lease on each key when a fault began, if the answers
/// before and after it make that certain.
async fn held(index: usize, before: Before, after: Inquiry) -> (usize, Option<Vec<SiteSet>>) {
    let after = after.ask().await;
    let before = before.await.ok().flatten();
    let both = before.zip(after);
    (index, both.and_then(|(before, after)| before.until(&after)))
}
