//! One strategy of an experiment, translated into settings of replicas and requests of clients.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use leasehold_leases::{Key, LeaseParams, RangeMap, ReplicaId, ReplicaSet, StrategySpec};
use leasehold_node::config::{LeaseSection, RangeSection};
use leasehold_ycsb::site_stream::{Popularity, Requests, SiteStream};

use super::key_name;
use crate::experiment::{
    AcceptRepliesName, Distribution, Experiment, MeasurementWindow, StrategyPlan,
};
use crate::fault::FaultSpec;
use crate::run::bound::SiteSet;
use crate::topology::Topology;

/// Number of candidates of each site in the search for the most popular key of all sites. The
/// candidates of a site are its most popular keys.
const CANDIDATES: u64 = 100;

/// Plan by which a backend executes one run of one strategy.
pub struct RunPlan<'a> {
    /// Experiment to which the run belongs.
    pub experiment: &'a Experiment,
    /// Strategy of the run.
    pub strategy: &'a StrategyPlan,
    /// Index of this run among the runs of the strategy, from 0.
    pub run: u32,
}

impl<'a> RunPlan<'a> {
    /// Creates the plan of the first run of a strategy.
    pub fn new(experiment: &'a Experiment, strategy: &'a StrategyPlan) -> RunPlan<'a> {
        RunPlan {
            experiment,
            strategy,
            run: 0,
        }
    }

    /// Returns the seed of all random choices in this run.
    pub fn seed(&self) -> u64 {
        self.experiment.seed.wrapping_add(self.run.into())
    }

    /// Returns the topology on which the strategy runs.
    pub fn topology(&self) -> &Topology {
        &self.experiment.topology
    }

    /// Returns the approximate number of requests of all clients, warm-up included; 0 if there is
    /// no estimate.
    pub fn requests(&self) -> u64 {
        let workload = &self.experiment.workload;
        let names = self.topology().names();
        let sites = names.len() as u64;
        match (workload.window(), &workload.rate) {
            (MeasurementWindow::Counts { requests, .. }, _) => {
                requests.saturating_mul(u64::from(workload.clients) * sites)
            }
            (MeasurementWindow::Seconds { warmup_s, seconds }, Some(rate)) => {
                let rate: f64 = names.iter().map(|site| rate.at(site)).sum();
                (rate * (warmup_s + seconds)) as u64
            }
            (MeasurementWindow::Seconds { .. }, None) => 0,
        }
    }

    /// Returns the faults that are injected into the cluster.
    pub fn faults(&self) -> &[FaultSpec] {
        self.strategy.faults(self.experiment)
    }

    /// Returns true if it is possible that some requests are never answered.
    pub(crate) fn is_doubtful(&self) -> bool {
        let changes = !self.strategy.change.is_empty();
        self.experiment.network.loss > 0.0 || !self.faults().is_empty() || changes
    }

    /// Returns the election timeout: if a replica gets no message from the leader for this time, it
    /// starts an election.
    pub(crate) fn election_timeout(&self) -> Duration {
        self.experiment.timing_of_replicas().election_timeout
    }

    /// Returns the key with the most requests, over all sites.
    pub(crate) fn hottest_key(&self) -> u64 {
        let keys = self.experiment.workload.keys;
        let sites: Vec<SiteStream> = (0..self.topology().len())
            .map(|site| self.stream(site, 0))
            .collect();
        let heat = |key: u64| -> f64 {
            let each = sites
                .iter()
                .map(|site| site.probability(site.rank_of_key(key)));
            each.sum()
        };
        // The most popular key of all is among the most popular keys of some site.
        let candidates = sites
            .iter()
            .flat_map(|site| (0..keys.min(CANDIDATES)).map(|rank| site.key_of_rank(rank)));
        candidates
            .max_by(|a, b| heat(*a).total_cmp(&heat(*b)))
            .unwrap_or(0)
    }

    /// Returns the strategy of each key range, in the form that replicas store.
    ///
    /// # Errors
    /// If replicas do not know the name of a strategy.
    pub fn strategies(&self) -> anyhow::Result<RangeMap<StrategySpec>> {
        match self.strategy.strategy.as_str() {
            "fixed" => self.fixed(),
            name => Ok(self.spec_named(name)?.into()),
        }
    }

    /// Returns the strategy with this name, without explicit holders.
    pub(crate) fn spec_named(&self, name: &str) -> anyhow::Result<StrategySpec> {
        Ok(match name {
            "none" => StrategySpec::None,
            "leader" => StrategySpec::Leader,
            "all" => StrategySpec::All,
            "quorum" => {
                let unlisted = self.experiment.lease.unlisted.unwrap_or_default().into();
                StrategySpec::Quorum { unlisted }
            }
            "cost" => {
                let settings = self.experiment.lease.cost.unwrap_or_default().settings();
                let settings = settings.context("lease.cost.read_weight is not in 0 to 1")?;
                StrategySpec::Cost(settings)
            }
            other => anyhow::bail!(
                "strategies.strategy: '{other}' is not one of {}",
                StrategySpec::NAMES.join(", ")
            ),
        })
    }

    fn fixed(&self) -> anyhow::Result<RangeMap<StrategySpec>> {
        let fixed = |holders| StrategySpec::Fixed { holders };
        let mut starts = BTreeMap::from([(Key::new(), fixed(None))]);
        let replica = |name: &String| self.topology().index(name).map(|i| ReplicaId(i as u8));
        for (start, holders) in self.strategy.range_starts(self.experiment.workload.keys) {
            let holders: ReplicaSet = holders.iter().filter_map(replica).collect();
            starts.insert(key_name(start), fixed(Some(holders)));
        }
        Ok(RangeMap::from_starts(starts.into_iter().collect())?)
    }

    /// Returns the holders of a key under the strategy `fixed`.
    pub(crate) fn fixed_holders(&self, key: u64) -> SiteSet {
        let starts = self.strategy.range_starts(self.experiment.workload.keys);
        let range = starts.iter().rev().find(|(start, _)| *start <= key);
        let names = range.into_iter().flat_map(|(_, holders)| holders.iter());
        names
            .filter_map(|name| self.topology().index(name))
            .collect()
    }

    /// Returns the section `[lease]` of the cluster's configuration.
    pub fn lease(&self) -> LeaseSection {
        let starts = self.strategy.range_starts(self.experiment.workload.keys);
        let range = |(start, holders): (u64, &[String])| RangeSection {
            from: String::from_utf8_lossy(&key_name(start)).into_owned(),
            holders: holders.to_vec(),
            ..RangeSection::default()
        };
        let lease = &self.experiment.lease;
        let is = |name: &str| self.strategy.strategy == name;
        LeaseSection {
            strategy: Some(self.strategy.strategy.clone()),
            range: starts.into_iter().map(range).collect(),
            // Replicas refuse a setting that their strategy does not use.
            unlisted: lease.unlisted.filter(|_| is("quorum")),
            cost: lease.cost.filter(|_| is("cost")),
            ..lease.clone()
        }
    }

    /// Returns the replicas that receive acceptors' votes.
    pub fn accept_replies(&self) -> AcceptRepliesName {
        self.strategy.accept_replies(self.experiment)
    }

    /// Returns the lease durations.
    pub fn params(&self) -> LeaseParams {
        self.experiment.lease.params()
    }

    /// Returns the request stream of one client.
    pub fn stream(&self, site: usize, client: usize) -> SiteStream {
        let workload = &self.experiment.workload;
        let popularity = match self.strategy.distribution(workload) {
            Distribution::Uniform => Popularity::Uniform,
            Distribution::Zipf => Popularity::Zipf(workload.theta),
        };
        let requests = Requests {
            keys: workload.keys,
            popularity,
            reads: workload.reads,
            seed: self.seed(),
        };
        SiteStream::new(&requests, site as u64, client as u64)
    }

    /// Describes the workload.
    pub fn words(&self) -> String {
        let workload = &self.experiment.workload;
        let popularity = match self.strategy.distribution(workload) {
            Distribution::Uniform => "uniform".to_string(),
            Distribution::Zipf => format!("Zipf {}, another order at each site", workload.theta),
        };
        format!(
            "{:.0}% reads, {} keys, {popularity}; {}",
            workload.reads * 100.0,
            workload.keys,
            workload.load_in_words(),
        )
    }
}
