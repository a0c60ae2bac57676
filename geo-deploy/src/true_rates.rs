//! Mean latency that would be possible if the *true rates* were known in advance. These are the
//! rates at which each site sends requests for each key.
//!
//! The true rates are not measured. They are computed from the workload alone: from the rate of
//! each site, and from the popularity of each key at the site. For each key, all sets of holders
//! that contain the leader are compared. The *optimum* is the least mean latency that any of these
//! sets gives. Reports show the optimum next to the mean for the holders that a strategy would
//! choose from the same rates.
//!
//! The computed latencies include only distances ([`crate::run::bound`]). Disks, and writes in
//! flight for which reads must wait, add to the measured latency. In a closed loop, the rate of a
//! site depends on the latency of the answers to its clients, and cannot be known in advance. For a
//! closed loop, every site therefore has the same weight, and the results must be compared with the
//! mean of the sites' means.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use leasehold_ycsb::site_stream::SiteStream;
use serde::Serialize;

use crate::backend::RunPlan;
use crate::experiment::AcceptRepliesName;
use crate::run::bookkeeping::AT_MINIMUM_SLACK_MS;
use crate::run::bound::{Bounds, Replies, SiteSet};

/// Maximum number of sets of holders that are compared for a key.
const SETS_MAX: usize = 1 << 10;
/// Maximum number of keys that are examined.
const KEYS_MAX: u64 = 2_000_000;

/// Costs of one choice of holders: the mean latency of all operations, and the costs at each site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacementCost {
    /// Mean latency of an operation, in ms.
    pub mean_ms: f64,
    /// Costs at each site, in the topology's order.
    pub sites: Vec<SitePlacementCost>,
}

/// Costs of one choice of holders for the clients of one site. Shares are from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SitePlacementCost {
    /// Mean latency of an operation, in ms; 0 if the site sends no requests.
    pub mean_ms: f64,
    /// Share of the site's reads that its own replica would serve.
    pub local_reads: f64,
    /// Share of the site's writes that would be at their minimum latency.
    pub writes_at_minimum: f64,
}

/// Latencies of operations on one key with one set of holders. Each list contains one latency, in
/// ms, for each site.
#[derive(Clone, Debug)]
struct HolderCosts {
    holders: SiteSet,
    read_ms: Vec<f64>,
    write_ms: Vec<f64>,
    /// Mean latency of an operation, for the workload's mix of reads and writes.
    mixed_ms: Vec<f64>,
}

/// Model of a workload with known rates of requests. The model computes the latency for a choice of
/// holders.
pub struct PlacementModel<'a> {
    plan: &'a RunPlan<'a>,
    bounds: Bounds,
    /// Latency that a client adds, in ms.
    client_ms: f64,
    streams: Vec<SiteStream>,
    /// For each rank of popularity, the probability that a request is for the key with this rank.
    by_rank: Vec<f64>,
    /// For each site, the share of all operations that the site sends.
    shares: Vec<f64>,
}

impl<'a> PlacementModel<'a> {
    /// Creates the model of a plan. Returns `None` if too many keys, or too many sets of sites,
    /// would have to be examined. `client_ms` is the time, in ms, that clients add to the latency
    /// of every operation.
    pub fn new(plan: &'a RunPlan<'a>, client_ms: f64) -> Option<PlacementModel<'a>> {
        let workload = &plan.experiment.workload;
        let topology = plan.topology();
        let few = topology.len() <= SETS_MAX.ilog2() as usize + 1;
        if !few || workload.keys > KEYS_MAX {
            return None;
        }
        let rate = |site: &&str| workload.rate.as_ref().map_or(1.0, |rate| rate.at(site));
        let rates: Vec<f64> = topology.names().iter().map(rate).collect();
        let all: f64 = rates.iter().sum();
        let streams: Vec<SiteStream> = (0..topology.len()).map(|s| plan.stream(s, 0)).collect();
        Some(PlacementModel {
            bounds: Bounds::new(topology, plan.experiment.leader_index()),
            client_ms,
            by_rank: streams[0].probabilities(),
            streams,
            shares: rates.iter().map(|rate| rate / all).collect(),
            plan,
        })
    }

    /// Returns the cost of the optimum. In the optimum, each key has the holders with the lowest
    /// mean latency for this key.
    pub fn optimum(&self) -> PlacementCost {
        let leader = SiteSet::one(self.plan.experiment.leader_index());
        let sets = (0..1 << self.streams.len()).map(SiteSet);
        let sets = sets.filter(|holders| holders.intersects(leader));
        let sets: Vec<HolderCosts> = sets.map(|holders| self.costs(holders)).collect();
        let mean = |costs: &HolderCosts, rates: &[f64]| -> f64 {
            let each = costs.mixed_ms.iter().zip(rates);
            each.map(|(ms, rate)| ms * rate).sum()
        };
        let mut sum = PlacementSum::new(self);
        for key in 0..self.plan.experiment.workload.keys {
            let rates = self.rates(key);
            let priced = sets.iter().map(|costs| (mean(costs, &rates), costs));
            let best = priced.min_by(|(a, _), (b, _)| a.total_cmp(b));
            best.into_iter()
                .for_each(|(_, costs)| sum.add(costs, &rates));
        }
        sum.expected()
    }

    /// Returns the cost of the holders that the plan's strategy would choose if it knew the true
    /// rates.
    pub fn of_strategy(&self) -> PlacementCost {
        if self.plan.strategy.strategy == "cost" {
            return self.optimum();
        }
        let mut known: HashMap<SiteSet, HolderCosts, FixedState> = HashMap::default();
        let mut sum = PlacementSum::new(self);
        let nearest = self.nearest_to_leader();
        for key in 0..self.plan.experiment.workload.keys {
            let rates = self.rates(key);
            let holders = self.chosen(key, &rates, &nearest);
            let costs = known.entry(holders).or_insert_with(|| self.costs(holders));
            sum.add(costs, &rates);
        }
        sum.expected()
    }

    fn nearest_to_leader(&self) -> Vec<usize> {
        let leader = self.plan.experiment.leader_index();
        self.plan.topology().nearest_to(leader)
    }

    /// Returns, for each site, the share of all operations that are sent by this site and have the
    /// key `key`.
    fn rates(&self, key: u64) -> Vec<f64> {
        let sites = self.streams.iter().zip(&self.shares);
        let rate = |(stream, share): (&SiteStream, &f64)| {
            share * self.by_rank[stream.rank_of_key(key) as usize]
        };
        sites.map(rate).collect()
    }

    /// Returns the holders of a key under the plan's strategy. `nearest` lists the replicas by
    /// their distance to the leader, the nearest first.
    fn chosen(&self, key: u64, rates: &[f64], nearest: &[usize]) -> SiteSet {
        let n = rates.len();
        let leader = SiteSet::one(self.plan.experiment.leader_index());
        match self.plan.strategy.strategy.as_str() {
            "none" => SiteSet::EMPTY,
            "all" => SiteSet::all(n),
            "quorum" => {
                let mut ranked = nearest.to_vec();
                ranked.sort_by(|a, b| rates[*b].total_cmp(&rates[*a]));
                let top: SiteSet = ranked.into_iter().take(n / 2).collect();
                top.union(leader)
            }
            "fixed" => self.plan.fixed_holders(key),
            _ => leader,
        }
    }

    fn costs(&self, holders: SiteSet) -> HolderCosts {
        let replies = match self.plan.accept_replies() {
            AcceptRepliesName::Leader => Replies::LeaderOnly,
            _ => Replies::LeaderAndOrigin,
        };
        let sites = 0..self.streams.len();
        let read_ms: Vec<f64> = sites
            .clone()
            .map(|site| self.bounds.any_read_ms(site, holders))
            .collect();
        let write = |site| self.bounds.write_ms(site, holders, replies);
        let write_ms: Vec<f64> = sites.map(write).collect();
        let reads = self.plan.experiment.workload.reads;
        let mixed = |(read, write): (&f64, &f64)| reads * read + (1.0 - reads) * write;
        HolderCosts {
            mixed_ms: read_ms.iter().zip(&write_ms).map(mixed).collect(),
            holders,
            read_ms,
            write_ms,
        }
    }
}

/// Sum of the costs of the keys that were added. The cost of each key is weighted by the rate of
/// requests for this key.
struct PlacementSum<'a> {
    of: &'a PlacementModel<'a>,
    minimum_ms: Vec<f64>,
    mixed_ms: Vec<f64>,
    local: Vec<f64>,
    at_minimum: Vec<f64>,
}

impl<'a> PlacementSum<'a> {
    fn new(of: &'a PlacementModel<'a>) -> PlacementSum<'a> {
        let n = of.streams.len();
        PlacementSum {
            of,
            minimum_ms: (0..n).map(|site| of.bounds.write_min_ms(site)).collect(),
            mixed_ms: vec![0.0; n],
            local: vec![0.0; n],
            at_minimum: vec![0.0; n],
        }
    }

    fn add(&mut self, costs: &HolderCosts, rates: &[f64]) {
        for (site, rate) in rates.iter().enumerate() {
            let limit_ms = self.minimum_ms[site] + AT_MINIMUM_SLACK_MS;
            self.mixed_ms[site] += rate * costs.mixed_ms[site];
            if costs.holders.contains(site) && costs.read_ms[site] == 0.0 {
                self.local[site] += rate;
            }
            if costs.write_ms[site] <= limit_ms {
                self.at_minimum[site] += rate;
            }
        }
    }

    fn expected(self) -> PlacementCost {
        let (shares, client_ms) = (&self.of.shares, self.of.client_ms);
        let per_site = |sum: f64, site: usize| {
            if shares[site] > 0.0 {
                sum / shares[site]
            } else {
                0.0
            }
        };
        // Sums of many small shares may slightly exceed 1.
        let share = |sum: f64, site: usize| per_site(sum, site).min(1.0);
        let site = |site: usize| SitePlacementCost {
            mean_ms: per_site(self.mixed_ms[site], site) + client_ms,
            local_reads: share(self.local[site], site),
            writes_at_minimum: share(self.at_minimum[site], site),
        };
        PlacementCost {
            mean_ms: self.mixed_ms.iter().sum::<f64>() + client_ms,
            sites: (0..shares.len()).map(site).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    fn fig6(sets: &[&str]) -> Experiment {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Experiment::find("fig6").unwrap().with(&sets).unwrap()
    }

    /// Returns the mean latency of each strategy, without the latency that a client adds.
    fn expected_ms(experiment: &Experiment) -> Vec<f64> {
        let plans = experiment.strategies.iter();
        plans
            .map(|strategy| {
                let plan = RunPlan::new(experiment, strategy);
                PlacementModel::new(&plan, 0.0)
                    .unwrap()
                    .of_strategy()
                    .mean_ms
            })
            .collect()
    }

    fn optimum(experiment: &Experiment) -> PlacementCost {
        let plan = RunPlan::new(experiment, &experiment.strategies[0]);
        PlacementModel::new(&plan, 0.0).unwrap().optimum()
    }

    fn near(found: f64, expected: f64, slack: f64) {
        assert!((found - expected).abs() <= slack, "{found}, {expected}");
    }

    #[test]
    fn strategies_cost_what_is_worked_out_by_hand() {
        let e = fig6(&["rate=200", "strategies=leader,all", "keys=1000"]);
        // Reads at JP, CA, OR, VA, IRL go to CA; writes are at their minimum.
        let reads = (120.0 + 0.0 + 20.0 + 85.0 + 150.0) / 5.0;
        let writes = (130.0 + 85.0 + 90.0 + 90.0 + 163.5) / 5.0;
        let all = (270.0 + 150.0 + 170.0 + 192.5 + 270.0) / 5.0;
        let found = expected_ms(&e);
        near(found[0], (reads + writes) / 2.0, 1e-9);
        near(found[1], all / 2.0, 1e-9);
    }

    #[test]
    fn fixed_holders_are_those_of_the_ranges() {
        let e = fig6(&["strategies=QL-uniform", "keys=1000", "reads=0"]);
        let write = |of: [f64; 5]| of.iter().sum::<f64>() / 5.0;
        let first = write([130.0, 120.0, 130.0, 192.5, 270.0]);
        let second = write([270.0, 150.0, 170.0, 163.5, 163.5]);
        near(expected_ms(&e)[0], (first + second) / 2.0, 1e-6);
    }

    #[test]
    fn the_optimum_of_the_papers_place() {
        let found = optimum(&fig6(&["rate=200"]));
        near(found.mean_ms, 63.7, 0.2);
        near(
            optimum(&fig6(&["rate=200", "reads=0.9"])).mean_ms,
            15.2,
            0.2,
        );
        let quorum = expected_ms(&fig6(&["rate=200", "strategies=quorum"]))[0];
        near(quorum, 84.6, 0.2);
        for site in &found.sites {
            assert!((0.78..=1.0).contains(&site.local_reads), "{site:?}");
            assert!((0.79..0.95).contains(&site.writes_at_minimum), "{site:?}");
        }
    }

    #[test]
    fn the_optimum_is_never_behind_a_strategy() {
        for sets in [
            ["theta=1.2", "leader=VA", "reads=0.2"],
            ["theta=0.8", "leader=IRL", "reads=0.95"],
        ] {
            let theta = format!("workload.{}", sets[0]);
            let names = "strategies=none,leader,all,quorum";
            let rates = "rate={JP=10,CA=200,OR=0,VA=30,IRL=50}";
            let e = fig6(&[&theta, sets[1], sets[2], names, rates, "keys=500"]);
            let best = optimum(&e).mean_ms;
            for found in expected_ms(&e) {
                assert!(best <= found + 1e-9, "{best} {found} {sets:?}");
            }
        }
    }

    #[test]
    fn too_many_keys_are_not_looked_at() {
        let e = fig6(&["keys=3000000"]);
        let plan = RunPlan::new(&e, &e.strategies[0]);
        assert!(PlacementModel::new(&plan, 0.0).is_none());
    }
}
