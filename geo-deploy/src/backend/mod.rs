//! The worlds an experiment can run in. Each drives the same requests against
//! the same replica code and leaves the same [`StrategyRun`], so that results
//! lay over each other.

pub mod local;
mod node_events;
mod recorder;
pub mod sim;

use std::time::Duration;

use bytes::Bytes;
use client::history::{History, ValueId};
use leases::{ClockBound, Key, LeaseParams, RangeHolders, ReplicaId, ReplicaSet, StrategySpec};
use ycsb::sample::OpKind;
use ycsb::site_stream::{Popularity, SiteStream};

pub use recorder::Recorder;

use crate::experiment::{Distribution, Experiment, StrategyPlan, Unlisted};
use crate::report::{Event, StrategyRun};
use crate::topology::Topology;

/// Told how far a run is: (label, requests answered, requests in all).
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// One strategy's run and what happened in it.
#[derive(Debug)]
pub struct Ran {
    /// What was measured.
    pub run: StrategyRun,
    /// Elections, configurations, faults.
    pub events: Vec<Event>,
    /// What clients asked and were answered, warm-up included: what was judged.
    pub history: History,
}

/// The stored name of a key: ordered as its number is.
pub fn key_name(number: u64) -> Key {
    Key::from(format!("key{number:010}"))
}

/// A value of `bytes` bytes that no other write of the run shares.
pub fn value(id: ValueId, bytes: usize) -> Bytes {
    let mut value = vec![b'.'; bytes.max(8)];
    value[..8].copy_from_slice(&id.to_bytes());
    value.into()
}

/// What an experiment and one of its strategies say, in the replicas' terms.
pub struct Plan<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// The strategy.
    pub strategy: &'a StrategyPlan,
}

impl Plan<'_> {
    /// Where it runs.
    pub fn topology(&self) -> &Topology {
        &self.experiment.topology
    }

    /// Requests of all clients, warm-up included.
    pub fn requests(&self) -> u64 {
        let workload = &self.experiment.workload;
        workload.requests * u64::from(workload.clients) * self.topology().len() as u64
    }

    /// The strategy, as replicas agree on it.
    ///
    /// # Errors
    /// If its name is none that replicas know.
    pub fn spec(&self) -> anyhow::Result<StrategySpec> {
        Ok(match self.strategy.strategy.as_str() {
            "none" => StrategySpec::None,
            "leader" => StrategySpec::Leader,
            "all" => StrategySpec::All,
            "quorum" => StrategySpec::Quorum {
                unlisted: match self.experiment.lease.unlisted {
                    Unlisted::Nearest => leases::Unlisted::Nearest,
                    Unlisted::Leader => leases::Unlisted::Leader,
                },
            },
            "fixed" => StrategySpec::Fixed {
                ranges: self.ranges(),
            },
            other => anyhow::bail!(
                "strategies.strategy: '{other}' is not one of {}",
                StrategySpec::NAMES.join(", ")
            ),
        })
    }

    fn ranges(&self) -> Vec<RangeHolders> {
        let starts = self.strategy.range_starts(self.experiment.workload.keys);
        let replica = |name: &String| self.topology().index(name).map(|i| ReplicaId(i as u8));
        starts
            .into_iter()
            .map(|(start, holders)| RangeHolders {
                from: key_name(start),
                holders: holders.iter().filter_map(replica).collect::<ReplicaSet>(),
            })
            .collect()
    }

    /// Lease durations.
    pub fn params(&self) -> LeaseParams {
        let lease = &self.experiment.lease;
        let ms = Duration::from_millis;
        LeaseParams {
            t_lease: ms(lease.t_lease_ms),
            t_guard: ms(lease.t_guard_ms),
            renew: ms(lease.renew_ms),
            t_grace: ms(lease.grace_ms),
            t0_cap: ms(lease.t_lease_ms + lease.t_guard_ms),
            clock: ClockBound {
                rho_ppm: (lease.rho * 1e6).round() as u32,
            },
        }
    }

    /// The requests of one client.
    pub fn stream(&self, site: usize, client: usize) -> SiteStream {
        let workload = &self.experiment.workload;
        let popularity = match self.strategy.distribution(workload) {
            Distribution::Uniform => Popularity::Uniform,
            Distribution::Zipf => Popularity::Zipf(workload.theta),
        };
        let (site, client) = (site as u64, client as u64);
        let seed = self.experiment.seed;
        SiteStream::new(
            workload.keys,
            popularity,
            workload.reads,
            site,
            client,
            seed,
        )
    }

    /// The workload in words.
    pub fn words(&self) -> String {
        let workload = &self.experiment.workload;
        let popularity = match self.strategy.distribution(workload) {
            Distribution::Uniform => "uniform".to_string(),
            Distribution::Zipf => format!("Zipf {}, another order at each site", workload.theta),
        };
        format!(
            "{:.0}% reads, {} keys, {popularity}; {} clients a site, {} requests each, the first \
             {} not measured",
            workload.reads * 100.0,
            workload.keys,
            workload.clients,
            workload.requests,
            workload.warmup,
        )
    }
}

/// One client of a closed loop: what it asks next, and what it has asked.
pub(crate) struct ClosedLoop {
    pub(crate) site: usize,
    pub(crate) process: u32,
    stream: SiteStream,
    warmup: u64,
    total: u64,
    issued: u64,
}

/// A request of a closed loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) kind: OpKind,
    pub(crate) key: u64,
    /// What a write would write.
    pub(crate) value: ValueId,
    pub(crate) measured: bool,
}

impl ClosedLoop {
    /// All clients of a plan, site by site.
    pub(crate) fn all(plan: &Plan<'_>) -> Vec<ClosedLoop> {
        let workload = &plan.experiment.workload;
        let clients = workload.clients as usize;
        let of = |index: usize| ClosedLoop {
            site: index / clients,
            process: index as u32,
            stream: plan.stream(index / clients, index % clients),
            warmup: workload.warmup,
            total: workload.requests,
            issued: 0,
        };
        (0..clients * plan.topology().len()).map(of).collect()
    }

    /// The next request; `None` when all have been made.
    pub(crate) fn next(&mut self) -> Option<Ask> {
        if self.issued == self.total {
            return None;
        }
        let (kind, key) = self.stream.next();
        let value = ValueId(u64::from(self.process + 1) << 32 | self.issued);
        let measured = self.issued >= self.warmup;
        self.issued += 1;
        Some(Ask {
            kind,
            key,
            value,
            measured,
        })
    }
}
