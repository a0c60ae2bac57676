//! Forecast of every strategy under every leader: expected latencies, shares, and the replicas
//! that would stall writes.
//!
//! The forecast takes distances ([`Distance`]), the expected demand by key ([`Profile`]), and
//! the holders that a strategy would choose from that. Reads that wait for a write in flight
//! are part of it. Queues, lost messages and processors are not.

mod expected;
mod holders;
mod profile;
mod profile_pass;
#[cfg(test)]
mod tests;

pub use self::holders::HolderPlan;
pub use self::profile::{KEYS_MAX, KeyGroup, Profile, ProfileBuilder, ProfileError};
pub use self::profile_pass::ProfilePass;

use self::expected::ForecastSum;
use crate::config::UnlistedHolders;
use crate::latency::{Distance, Replies, RoundTrips};
use crate::strategy::{Costs, Preference};
use crate::types::{ReplicaId, ReplicaSet};

/// Writes this much above the least that any strategy allows, in ms, still count as at
/// their minimum.
pub const AT_MINIMUM_SLACK_MS: f64 = 1.0;

/// Conditions that a forecast is made from, besides demand.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Round trips between all replicas.
    pub rtts: RoundTrips,
    /// Recipients of the acceptors' replies.
    pub replies: Replies,
    /// Time added to every operation: the way between a client and its replica, in ms.
    pub client_ms: f64,
    /// Time that a disk takes to make a write durable, in ms.
    pub sync_ms: f64,
    /// Holders of keys that nobody has read, under `quorum`.
    pub unlisted: UnlistedHolders,
    /// Preference that counts for `cost`, besides distance.
    pub preference: Preference,
}

/// Forecast for one plan under one leader. Means are over operations, in ms. Shares are from 0
/// to 1. Where nothing is asked the value is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Rule by which holders are chosen.
    pub plan: HolderPlan,
    /// The leader.
    pub leader: ReplicaId,
    /// All operations.
    pub mean_ms: f64,
    /// Reads.
    pub read_ms: f64,
    /// Writes.
    pub write_ms: f64,
    /// Share of reads that the client's own replica serves.
    pub local: f64,
    /// Share of writes at their minimum under this leader.
    pub at_minimum: f64,
    /// By replica: the share of writes that wait until its leases have run out, if it
    /// fails. That of the leader is 0: its successor is waited for under every plan.
    pub stalled: Vec<f64>,
    /// By replica: what its clients see.
    pub sites: Vec<SiteForecast>,
}

/// The same for clients of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SiteForecast {
    /// Reads a second.
    pub reads: f64,
    /// Writes a second.
    pub writes: f64,
    /// Mean latency of a read.
    pub read_ms: f64,
    /// Mean latency of a write.
    pub write_ms: f64,
    /// Share of reads that the replica serves by itself.
    pub local: f64,
    /// Share of writes at their minimum.
    pub at_minimum: f64,
}

impl Forecast {
    /// Returns the replica that stalls most writes when it fails, and their share; `None` if none
    /// stalls any.
    pub fn worst_stall(&self) -> Option<(ReplicaId, f64)> {
        let all = self.stalled.iter().enumerate();
        let worst = all.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)))?;
        (*worst.1 > 0.0).then_some((ReplicaId(worst.0 as u8), *worst.1))
    }

    /// Number of replicas besides the leader that may fail without stalling a write.
    pub fn spare(&self) -> usize {
        let unharmful = self.stalled.iter().filter(|share| **share == 0.0).count();
        unharmful.saturating_sub(1)
    }
}

impl SiteForecast {
    /// Mean latency of an operation, in ms; 0 if nothing is asked.
    pub fn mean_ms(&self) -> f64 {
        let all = self.reads + self.writes;
        if all > 0.0 {
            (self.reads * self.read_ms + self.writes * self.write_ms) / all
        } else {
            0.0
        }
    }
}

/// Forecasts every plan under every leader: `plans` in their order, of each all leaders in
/// theirs.
///
/// # Panics
/// If the profile and the round trips are of different numbers of replicas.
pub fn forecasts(
    conditions: &Conditions,
    profile: &Profile,
    plans: &[HolderPlan],
) -> Vec<Forecast> {
    let of = |plan: &HolderPlan| {
        let leaders = ReplicaSet::all(profile.n()).iter();
        let plan = *plan;
        let all = leaders.map(move |leader| forecast(conditions, profile, plan, leader));
        all.collect::<Vec<_>>()
    };
    plans.iter().flat_map(of).collect()
}

/// Forecasts one plan under one leader.
///
/// # Panics
/// As [`forecasts`].
pub fn forecast(
    conditions: &Conditions,
    profile: &Profile,
    plan: HolderPlan,
    leader: ReplicaId,
) -> Forecast {
    assert_eq!(
        conditions.rtts.n(),
        profile.n(),
        "the round trips and the profile are of the same replicas"
    );
    let distance = Distance::new(conditions.rtts.clone(), leader);
    let costs = Costs::new(distance.clone(), conditions.replies, conditions.preference);
    let mut chooser = holders::PlanChooser::new(plan, conditions, leader, costs);
    let mut sum = ForecastSum::new(&distance, conditions);
    for group in profile.keys() {
        sum.add(group, chooser.choose(group));
    }
    sum.add(
        profile.unrequested(),
        chooser.choose_unrequested(profile.unrequested()),
    );
    sum.forecast(plan)
}

/// The forecast with the least mean; of equals the first.
pub fn best(forecasts: &[Forecast]) -> Option<&Forecast> {
    let all = forecasts.iter();
    all.min_by(|a, b| a.mean_ms.total_cmp(&b.mean_ms))
}
