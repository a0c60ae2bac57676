//! Does the faults of an experiment to the replicas of a run, while clients ask.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context as _, bail};
use client::{Client, ClientOptions};

use super::super::faults::{Faults, Roles, Turn};
use super::super::{Plan, key_name};
use super::clients::Shared;
use super::{Happened, LocalCluster, Why};
use crate::bound::SiteSet;
use crate::topology::Topology;

/// How often processes are looked after.
const TEND_EVERY: Duration = Duration::from_millis(20);
/// With more keys than this, nobody is asked who holds each.
const KEYS_MAX: u64 = 10_000;
/// How long before a fault replicas are asked who holds what: for each key, and besides.
const LEAD_PER_KEY: Duration = Duration::from_micros(500);
const LEAD: Duration = Duration::from_millis(300);
/// How long a replica may take to say who holds a key.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

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
    let begin_ns = loop {
        if let Some(begin_ns) = shared.begin_ns() {
            break begin_ns;
        }
        tend(plan, cluster, shared, faults).await?;
    };
    let keys = plan.experiment.workload.keys;
    let lead = LEAD + LEAD_PER_KEY * keys.min(KEYS_MAX) as u32;
    let params = plan.params();
    let promise_ns = (params.t_lease + params.t_guard).as_nanos() as u64;
    for (at_ns, turn) in faults.turns(begin_ns) {
        let ask_ns = at_ns.saturating_sub(lead.as_nanos() as u64);
        let effects = match turn {
            Turn::Begin(index) => {
                until(
                    ask_ns.saturating_sub(promise_ns),
                    plan,
                    cluster,
                    shared,
                    faults,
                )
                .await?;
                let earlier = roles(plan, cluster).await.leases;
                until(ask_ns, plan, cluster, shared, faults).await?;
                let mut roles = roles(plan, cluster).await;
                // Under an older configuration promises may still last.
                for (now, before) in roles.leases.iter_mut().zip(earlier) {
                    *now = now.iter().chain(before.iter()).collect();
                }
                until(at_ns, plan, cluster, shared, faults).await?;
                faults.begin(index, shared.now_ns(), roles)?
            }
            Turn::End(index) => {
                until(at_ns, plan, cluster, shared, faults).await?;
                faults.end(index, shared.now_ns())
            }
        };
        for effect in effects {
            cluster
                .perform(effect)
                .with_context(|| format!("doing {effect:?}"))?;
        }
    }
    loop {
        tend(plan, cluster, shared, faults).await?;
    }
}

async fn until(
    at_ns: u64,
    plan: &Plan<'_>,
    cluster: &mut LocalCluster,
    shared: &Shared,
    faults: &mut Faults<'_>,
) -> anyhow::Result<()> {
    while shared.now_ns() + (TEND_EVERY.as_nanos() as u64) < at_ns {
        tend(plan, cluster, shared, faults).await?;
    }
    let left = Duration::from_nanos(at_ns.saturating_sub(shared.now_ns()));
    tokio::time::sleep(left).await;
    Ok(())
}

async fn tend(
    plan: &Plan<'_>,
    cluster: &mut LocalCluster,
    shared: &Shared,
    faults: &mut Faults<'_>,
) -> anyhow::Result<()> {
    tokio::time::sleep(TEND_EVERY).await;
    for (site, happened) in cluster.tend() {
        let name = plan.topology().names()[site];
        match happened {
            Happened::Started => faults.started(site, shared.now_ns()),
            Happened::Ended(Why::Died(how)) => bail!("replica {name} died: {how}"),
            Happened::NotStarted(how) => bail!("replica {name} could not be started again: {how}"),
            Happened::Ended(_) => {}
        }
    }
    Ok(())
}

/// Who has which role, and who holds what.
async fn roles(plan: &Plan<'_>, cluster: &LocalCluster) -> Roles {
    let hottest = key_name(plan.hottest_key());
    let found = cluster.roles(Some(&hottest)).await;
    let teller = found.leader.or_else(|| found.up.iter().position(|up| *up));
    let leases = match teller {
        Some(site) => leases(plan, cluster, site).await.unwrap_or_default(),
        None => Vec::new(),
    };
    Roles {
        leader: found.leader,
        holders: found.holders,
        up: found.up,
        leases,
    }
}

/// The holders of each key, as the replica at `site` knows them; `None` if it does not say.
async fn leases(plan: &Plan<'_>, cluster: &LocalCluster, site: usize) -> Option<Vec<SiteSet>> {
    let keys = plan.experiment.workload.keys;
    if keys > KEYS_MAX {
        return None;
    }
    let mut options = ClientOptions::new(cluster.client_addresses()[site].to_string());
    options.cluster = Some(cluster.name().to_string());
    options.connect_timeout = ANSWER_WITHIN;
    options.request_timeout = ANSWER_WITHIN;
    let client = Client::connect(options).await.ok()?;
    let mut all = Vec::with_capacity(keys as usize);
    for key in 0..keys {
        let status = client.status_and_holders(Some(&key_name(key))).await.ok()?;
        all.push(sites(plan.topology(), &status.holders));
    }
    Some(all)
}

fn sites(topology: &Topology, names: &[String]) -> SiteSet {
    names
        .iter()
        .filter_map(|name| topology.index(name))
        .collect()
}
