//! Expected latencies of sets of holders, summed over keys.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::{AT_MINIMUM_SLACK_MS, Conditions, Forecast, HolderPlan, KeyGroup, SiteForecast};
use crate::latency::Distance;
use crate::types::{ReplicaId, ReplicaSet};

/// Latencies with one set of holders, for every origin, in ms.
struct HolderLatencies {
    /// Latency of reads. The time that reads wait for writes is not included.
    read_ms: Vec<f64>,
    /// For each origin, the replica that serves reads under a lease; `None` if the leader confirms
    /// the reads.
    served_by: Vec<Option<ReplicaId>>,
    write_ms: Vec<f64>,
    at_minimum: Vec<bool>,
    /// Time, in ms, that a write blocks reads at a holder. There is a row for each holder, and a
    /// column for each origin of the write.
    blocked_ms: Vec<Vec<f64>>,
}

impl HolderLatencies {
    fn new(distance: &Distance, conditions: &Conditions, holders: ReplicaSet) -> HolderLatencies {
        let (replies, sync_ms) = (conditions.replies, conditions.sync_ms);
        let origins = || ReplicaSet::all(distance.rtts().n()).iter();
        let nearest = |origin| {
            let rtt = |holder| distance.rtts().get(origin, holder);
            holders.iter().min_by(|a, b| rtt(*a).total_cmp(&rtt(*b)))
        };
        let alone = ReplicaSet::one(distance.leader());
        // The leader makes its own acceptance durable. Then the acceptors for which it waits make
        // theirs durable.
        let write = |origin, holders| distance.write_ms(origin, holders, replies) + 2.0 * sync_ms;
        let minimum = |origin| write(origin, alone) + AT_MINIMUM_SLACK_MS;
        let blocked =
            |at| origins().map(move |origin| distance.blocked_ms(at, origin, holders, replies));
        HolderLatencies {
            read_ms: origins().map(|o| distance.read_ms(o, holders)).collect(),
            served_by: origins().map(nearest).collect(),
            write_ms: origins().map(|o| write(o, holders)).collect(),
            at_minimum: origins().map(|o| write(o, holders) <= minimum(o)).collect(),
            blocked_ms: origins().map(|at| blocked(at).collect()).collect(),
        }
    }

    /// Returns the mean time, in ms, that a read waits at `holder`. `writes` contains, for each
    /// origin, the rate of writes to one key, in operations a second.
    fn wait_ms(&self, holder: ReplicaId, writes: &[f32]) -> f64 {
        let rates = writes.iter().map(|rate| f64::from(*rate) / 1e3);
        let blocked = rates.zip(&self.blocked_ms[holder.index()]);
        let (rate, squares) = blocked.fold((0.0, 0.0), |(rate, squares), (each, blocked)| {
            (rate + each, squares + each * blocked * blocked)
        });
        if rate <= 0.0 {
            return 0.0;
        }
        residual(rate, (squares / rate).sqrt())
    }
}

/// Returns the mean of the remaining time of the newest open interval, over all moments. If no
/// interval is open, the remaining time is 0. All intervals have the length `length`. Intervals
/// begin at random times, at the rate `rate`.
fn residual(rate: f64, length: f64) -> f64 {
    length + (-rate * length).exp_m1() / rate
}

/// Expected latencies under one leader, summed over keys.
pub(super) struct ForecastSum<'a> {
    distance: &'a Distance,
    conditions: &'a Conditions,
    by_holders: HashMap<ReplicaSet, HolderLatencies, FixedState>,
    /// Forecast for each origin. Until the forecast is finished, latencies and shares are stored as
    /// sums.
    sites: Vec<SiteForecast>,
    /// For each replica, the rate of writes, in operations a second, to the keys that the replica
    /// holds.
    stalled: Vec<f64>,
}

impl<'a> ForecastSum<'a> {
    pub(super) fn new(distance: &'a Distance, conditions: &'a Conditions) -> ForecastSum<'a> {
        let n = conditions.rtts.n();
        ForecastSum {
            distance,
            conditions,
            by_holders: HashMap::default(),
            sites: vec![SiteForecast::default(); n],
            stalled: vec![0.0; n],
        }
    }

    /// Adds the forecast for the keys of `group` to the sums, with `holders` as the holders of
    /// these keys.
    pub(super) fn add(&mut self, group: &KeyGroup, holders: ReplicaSet) {
        let (distance, conditions) = (self.distance, self.conditions);
        let by_holders = self.by_holders.entry(holders);
        let of = by_holders.or_insert_with(|| HolderLatencies::new(distance, conditions, holders));
        let (reads, writes) = group.rates.split_at(self.sites.len());
        let n = self.sites.len();
        let waits = (0..n).map(|at| {
            if holders.contains(ReplicaId(at as u8)) {
                of.wait_ms(ReplicaId(at as u8), writes)
            } else {
                0.0
            }
        });
        let waits: Vec<f64> = waits.collect();
        for (origin, site) in self.sites.iter_mut().enumerate() {
            let reads = f64::from(reads[origin] * group.keys);
            let writes = f64::from(writes[origin] * group.keys);
            let served_by = of.served_by[origin];
            let wait = served_by.map_or(0.0, |holder| waits[holder.index()]);
            site.reads += reads;
            site.writes += writes;
            site.read_ms += reads * (of.read_ms[origin] + wait);
            site.write_ms += writes * of.write_ms[origin];
            site.local += reads * share(served_by == Some(ReplicaId(origin as u8)));
            site.at_minimum += writes * share(of.at_minimum[origin]);
        }
        let stalls = holders.minus(ReplicaSet::one(distance.leader()));
        let all = f64::from(writes.iter().sum::<f32>() * group.keys);
        stalls
            .iter()
            .for_each(|holder| self.stalled[holder.index()] += all);
    }

    pub(super) fn forecast(self, plan: HolderPlan) -> Forecast {
        let client_ms = self.conditions.client_ms;
        let total = |of: fn(&SiteForecast) -> f64| -> f64 { self.sites.iter().map(of).sum() };
        let (reads, writes) = (total(|site| site.reads), total(|site| site.writes));
        let latency = |sum: f64, count: f64| client_of(count, client_ms) + over(sum, count);
        let (read_ms, write_ms) = (total(|site| site.read_ms), total(|site| site.write_ms));
        let site = |site: &SiteForecast| SiteForecast {
            read_ms: latency(site.read_ms, site.reads),
            write_ms: latency(site.write_ms, site.writes),
            local: over(site.local, site.reads),
            at_minimum: over(site.at_minimum, site.writes),
            ..*site
        };
        let stalled = self.stalled.iter();
        Forecast {
            plan,
            leader: self.distance.leader(),
            mean_ms: latency(read_ms + write_ms, reads + writes),
            read_ms: latency(read_ms, reads),
            write_ms: latency(write_ms, writes),
            local: over(total(|site| site.local), reads),
            at_minimum: over(total(|site| site.at_minimum), writes),
            stalled: stalled.map(|rate| over(*rate, writes)).collect(),
            sites: self.sites.iter().map(site).collect(),
        }
    }
}

fn share(whether: bool) -> f64 {
    f64::from(u8::from(whether))
}

/// Returns the quotient; 0 if the divisor is 0.
fn over(sum: f64, count: f64) -> f64 {
    if count > 0.0 { sum / count } else { 0.0 }
}

fn client_of(count: f64, client_ms: f64) -> f64 {
    if count > 0.0 { client_ms } else { 0.0 }
}
