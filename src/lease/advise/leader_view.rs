//! Demand and distances in a cluster, as the leader reported them.

use anyhow::{Context as _, ensure};
use leasehold_leases::advice::{Conditions, HolderPlan, KeyGroup, Profile};
use leasehold_leases::latency::{Replies, RoundTrips};
use leasehold_leases::strategy::Preference;
use leasehold_leases::{ReplicaId, ReplicaSet, UnlistedHolders};
use leasehold_wire::{Demand, StatusReply};

/// Demand and distances in one cluster, as its leader knows them.
pub struct LeaderView {
    pub names: Vec<String>,
    pub leader: ReplicaId,
    /// Description of the strategies that are in force.
    pub strategy: String,
    /// Plan that corresponds to the strategies in force.
    pub now: HolderPlan,
    /// Number of key ranges.
    pub ranges: usize,
    pub conditions: Conditions,
    pub profile: Profile,
    /// Longest time, in seconds, for which a write waits if a holder has failed.
    pub stall_s: f64,
}

const OLDER: &str = "the leader says nothing of demand: it is older than this program";

impl LeaderView {
    pub fn of(status: &StatusReply) -> anyhow::Result<LeaderView> {
        let demand = status.demand.as_ref().context(OLDER)?;
        let names = demand.replicas.clone();
        let n = names.len();
        ensure!(
            (1..=ReplicaId::COUNT_MAX).contains(&n),
            "the leader names {n} replicas"
        );
        let leader = names.iter().position(|name| *name == status.leader);
        let leader = leader.context("the leader does not name itself")?;
        let now = match demand.strategies.as_slice() {
            [one] => HolderPlan::of_strategy(one).unwrap_or(HolderPlan::AsNow),
            _ => HolderPlan::AsNow,
        };
        Ok(LeaderView {
            conditions: conditions(demand, n)?,
            profile: profile(demand, n)?,
            leader: ReplicaId(leader as u8),
            strategy: demand.strategies.join(", "),
            now,
            ranges: demand.strategies.len(),
            stall_s: demand.stall_ms as f64 / 1e3,
            names,
        })
    }
}

fn conditions(demand: &Demand, n: usize) -> anyhow::Result<Conditions> {
    ensure!(
        demand.rtt_us.len() == n * n,
        "the leader's round trips are not those of {n} replicas"
    );
    let read_weight = f64::from(demand.read_weight) / 1e3;
    ensure!(
        read_weight <= 1.0,
        "the leader weighs reads by {read_weight}, more than 1"
    );
    Ok(Conditions {
        rtts: RoundTrips::new(n, |a, b| f64::from(demand.rtt_us[a * n + b]) / 1e3),
        replies: if demand.replies_to_leader {
            Replies::LeaderOnly
        } else {
            Replies::LeaderAndOrigin
        },
        client_ms: 0.0,
        sync_ms: 0.0,
        unlisted: if demand.unlisted_leader {
            UnlistedHolders::Leader
        } else {
            UnlistedHolders::Nearest
        },
        preference: Preference {
            read_weight,
            spare: demand.spare as usize,
        },
    })
}

fn profile(demand: &Demand, n: usize) -> anyhow::Result<Profile> {
    let keys = demand.holders.len();
    let whole = keys > 0
        && demand.keys.len() == keys
        && demand.rates.len() == keys * 2 * n
        && demand.reads.len() == keys * n;
    ensure!(whole, "the leader's demand is cut or malformed");
    let thousandths = |number: &u64| *number as f32 / 1e3;
    let rates = |key: usize| demand.rates[key * 2 * n..][..2 * n].iter();
    let reads = |key: usize| demand.reads[key * n..][..n].iter();
    let demand_of_key = |key: usize| KeyGroup {
        keys: thousandths(&demand.keys[key]),
        rates: rates(key).map(|rate| *rate as f32 / 1e9).collect(),
        reads: reads(key).map(thousandths).collect(),
        holders: ReplicaSet(demand.holders[key]).intersection(ReplicaSet::all(n)),
    };
    let all = (0..keys - 1).map(demand_of_key).collect();
    let remaining = demand_of_key(keys - 1);
    Ok(Profile::new(n, all, remaining, demand.operations as f64)?)
}
