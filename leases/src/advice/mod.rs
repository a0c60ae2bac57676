//! Forecast for every strategy under every leader: expected latencies, shares of operations, and
//! the replicas that would make writes wait if they failed.
//!
//! A forecast is made from distances ([`Distance`]), the expected demand by key ([`Profile`]), and
//! the holders that a strategy would choose for this demand. It includes the time that reads wait
//! for writes in progress. It does not include queues, lost messages and processor time.

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

/// Tolerance of the minimum latency, in ms. A write counts as a write with the minimum latency if
/// its latency exceeds the lowest latency of all strategies by at most this value.
pub const AT_MINIMUM_SLACK_MS: f64 = 1.0;

/// Conditions for a forecast, in addition to the demand.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Round trips between all replicas.
    pub rtts: RoundTrips,
    /// Replicas to which acceptors send their replies.
    pub replies: Replies,
    /// Time, in ms, that is added to the latency of every operation: the round trip between a
    /// client and the client's own replica.
    pub client_ms: f64,
    /// Time that a disk needs to make a write durable, in ms.
    pub sync_ms: f64,
    /// Holders of keys that no client has read, under the strategy `quorum`.
    pub unlisted: UnlistedHolders,
    /// Weights and limits with which the strategy `cost` chooses holders.
    pub preference: Preference,
}

/// Forecast for one plan under one leader. Latencies are means over operations, in ms. Shares are
/// from 0 to 1. Means and shares are 0 if there are no operations.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Rule by which holders are chosen.
    pub plan: HolderPlan,
    /// The leader.
    pub leader: ReplicaId,
    /// Mean latency of all operations, in ms.
    pub mean_ms: f64,
    /// Mean latency of reads, in ms.
    pub read_ms: f64,
    /// Mean latency of writes, in ms.
    pub write_ms: f64,
    /// Share of reads that the client's own replica serves without asking another replica.
    pub local: f64,
    /// Share of writes with the minimum latency that is possible under this leader.
    pub at_minimum: f64,
    /// For each replica, the share of writes that would be delayed if this replica failed. A
    /// delayed write waits until the leases of the failed replica end. The leader's share is stated
    /// as 0. If the leader fails, all writes wait for a new leader under every plan, and this delay
    /// is not included.
    pub stalled: Vec<f64>,
    /// For each replica, the forecast for its clients.
    pub sites: Vec<SiteForecast>,
}

/// Forecast for the clients of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SiteForecast {
    /// Rate of reads, in operations a second.
    pub reads: f64,
    /// Rate of writes, in operations a second.
    pub writes: f64,
    /// Mean latency of a read, in ms.
    pub read_ms: f64,
    /// Mean latency of a write, in ms.
    pub write_ms: f64,
    /// Share of reads that the replica serves without asking another replica.
    pub local: f64,
    /// Share of writes with the minimum latency that is possible.
    pub at_minimum: f64,
}

impl Forecast {
    /// Returns the replica with the largest share in [`stalled`](Self::stalled), together with this
    /// share. Returns `None` if all shares are 0.
    pub fn worst_stall(&self) -> Option<(ReplicaId, f64)> {
        let all = self.stalled.iter().enumerate();
        let worst = all.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)))?;
        (*worst.1 > 0.0).then_some((ReplicaId(worst.0 as u8), *worst.1))
    }

    /// Returns the number of replicas, without the leader, that have a share of 0 in
    /// [`stalled`](Self::stalled). If only one of these replicas fails, no write is delayed.
    pub fn spare(&self) -> usize {
        let unharmful = self.stalled.iter().filter(|share| **share == 0.0).count();
        unharmful.saturating_sub(1)
    }
}

impl SiteForecast {
    /// Returns the mean latency of an operation, in ms; 0 if there are no operations.
    pub fn mean_ms(&self) -> f64 {
        let all = self.reads + self.writes;
        if all > 0.0 {
            (self.reads * self.read_ms + self.writes * self.write_ms) / all
        } else {
            0.0
        }
    }
}

/// Returns a forecast for every plan under every leader. The forecasts are sorted by plan, in the
/// order of `plans`, and then by leader.
///
/// # Panics
/// If the profile and the round trips belong to different numbers of replicas.
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

/// Returns the forecast for one plan under one leader.
///
/// # Panics
/// If the profile and the round trips belong to different numbers of replicas.
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

/// Returns the forecast with the lowest mean latency. If several forecasts have this latency,
/// returns the first of them.
pub fn best(forecasts: &[Forecast]) -> Option<&Forecast> {
    let all = forecasts.iter();
    all.min_by(|a, b| a.mean_ms.total_cmp(&b.mean_ms))
}
