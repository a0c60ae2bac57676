//! Experiments. One TOML file describes everything that is run. So a result can be repeated from
//! the manifest that is stored with the result.
//!
//! An omitted field has the paper's value (§5.2). An override replaces the field that it names. A
//! report shows the effective experiment, which is the experiment after defaults and overrides have
//! been applied.

mod change;
mod error;
mod lease;
mod load;
mod overrides;
mod plain;
mod replies;
mod shown;
mod swap;
#[cfg(test)]
mod tests;
mod validate;

use std::path::Path;

use leasehold_node::config::{LeaseSection, from_toml};
use leasehold_node::store::Durability;
use serde::{Deserialize, Serialize};

pub use change::StrategyChange;
pub use error::ExperimentError;
pub use load::{MeasurementWindow, RequestRate};
pub use replies::AcceptRepliesName;
pub use swap::KeySwap;

use crate::fault::FaultSpec;
use crate::topology::Topology;

/// Experiments that ship with the program.
const BUILT_IN: [(&str, &str); 14] = [
    ("blackout", include_str!("experiments/blackout.toml")),
    ("demo", include_str!("experiments/demo.toml")),
    ("failover", include_str!("experiments/failover.toml")),
    ("fig6", include_str!("experiments/fig6.toml")),
    ("fig6-open", include_str!("experiments/fig6-open.toml")),
    ("fig6-reads", include_str!("experiments/fig6-reads.toml")),
    ("fig7", include_str!("experiments/fig7.toml")),
    ("fig7-fast", include_str!("experiments/fig7-fast.toml")),
    ("mixed", include_str!("experiments/mixed.toml")),
    ("moving", include_str!("experiments/moving.toml")),
    ("rolling", include_str!("experiments/rolling.toml")),
    ("roster", include_str!("experiments/roster.toml")),
    ("switch", include_str!("experiments/switch.toml")),
    ("table2", include_str!("experiments/table2.toml")),
];

/// An experiment: the cluster, its clients and the strategies to compare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Short name of letters, digits, '-' and '_'. Results are stored under this name.
    pub name: String,
    /// Description in one line, for lists and headings.
    pub description: String,
    /// Name of the leader's site.
    #[serde(default = "default_leader")]
    pub leader: String,
    /// Seed of all random choices.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Number of runs of each strategy. Successive runs have successive seeds.
    #[serde(default = "default_runs")]
    pub runs: u32,
    /// Lease durations and policy.
    #[serde(default = "lease::default", deserialize_with = "lease::deserialize")]
    pub lease: LeaseSection,
    /// Intervals and timeouts of replicas, for example the timeout after which a silent leader is
    /// replaced.
    #[serde(default, skip_serializing_if = "TimingOverrides::is_default")]
    pub timing: TimingOverrides,
    /// Replicas to which acceptors send their votes, besides the leader.
    #[serde(default)]
    pub accept_replies: AcceptRepliesName,
    /// Requests that the clients send.
    pub workload: WorkloadSpec,
    /// Faults of the simulated network.
    #[serde(default)]
    pub network: NetworkFaults,
    /// Settings of the backend that runs real processes on this machine.
    #[serde(default)]
    pub local: LocalBackend,
    /// Faults that are injected into the cluster, and their times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fault: Vec<FaultSpec>,
    /// Strategies to compare, in the order of the report.
    pub strategies: Vec<StrategyPlan>,
    /// Sites and round trips.
    #[serde(default = "Topology::paper")]
    pub topology: Topology,
}

fn default_leader() -> String {
    "CA".to_owned()
}

fn default_seed() -> u64 {
    1
}

fn default_runs() -> u32 {
    1
}

/// Intervals and timeouts of replicas, for example the timeout after which a silent leader is
/// replaced. If a field is omitted, the default value of the command `serve` is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimingOverrides {
    /// Time between two heartbeats of a leader, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat_ms: Option<u64>,
    /// Election timeout, in ms. If a replica gets no message from the leader for this time, it
    /// starts an election.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub election_timeout_ms: Option<u64>,
    /// Time, in ms, that a replica waits for another replica's answer before the replica sends its
    /// message again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmit_ms: Option<u64>,
    /// Time between two checkpoints, in ms. At a checkpoint a replica writes the changes of its
    /// state to disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_ms: Option<u64>,
}

impl TimingOverrides {
    /// Whether no field is set.
    pub(crate) fn is_default(&self) -> bool {
        *self == TimingOverrides::default()
    }
}

/// Probability distribution of the keys in a site's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Zipf. At each site, the order of popularity is a different permutation of the keys.
    Zipf,
    /// Uniform: all keys are equally likely.
    Uniform,
}

/// Load that the clients generate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    /// Number of keys.
    pub keys: u64,
    /// Probability distribution of the keys in requests.
    #[serde(default = "default_distribution")]
    pub distribution: Distribution,
    /// Zipf's exponent.
    #[serde(default = "default_theta")]
    pub theta: f64,
    /// Share of operations that are reads, from 0 to 1.
    pub reads: f64,
    /// Number of clients at each site. In a closed loop, each client waits for the answer to a
    /// request before it sends the next one. In an open loop, this is the number of connections.
    pub clients: u32,
    /// Number of operations of each client, including warm-up; 0 if `seconds` sets the duration.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub requests: u64,
    /// Number of warm-up requests of each client. They are the first requests of the client, and
    /// are not measured.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub warmup: u64,
    /// Rate of an open loop, in operations a second at each site. Operations are due at equal
    /// intervals, whether or not earlier operations were answered. `None` for a closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RequestRate>,
    /// Duration of the measured interval, in s. This field is given instead of `requests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Duration of the warm-up, in s, if `seconds` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_s: Option<f64>,
    /// Maximum number of operations that one site has in flight in an open loop. Further operations
    /// wait at the client. Waiting operations are measured, too, and their latency includes the
    /// wait.
    #[serde(default = "default_outstanding")]
    pub outstanding: u32,
    /// Size of a written value, in bytes.
    #[serde(default = "default_value_bytes")]
    pub value_bytes: u32,
    /// Two sites that exchange their popular keys repeatedly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<KeySwap>,
}

fn default_distribution() -> Distribution {
    Distribution::Zipf
}

fn default_theta() -> f64 {
    0.99
}

fn default_value_bytes() -> u32 {
    100
}

fn default_outstanding() -> u32 {
    10_000
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Faults of the simulated network. Each field is a probability for one message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkFaults {
    /// Probability that the message is lost.
    pub loss: f64,
    /// Probability that the message arrives twice.
    pub duplication: f64,
    /// Probability that a message is delayed, so that later messages may overtake it.
    pub reorder: f64,
}

/// Settings of the backend that runs real processes on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LocalBackend {
    /// Condition under which a write is durable.
    #[serde(with = "DurabilityName")]
    pub durability: Durability,
    /// Maximum random delay that is added to the delay of each link, in ms.
    pub jitter_ms: f64,
}

/// One strategy to be measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StrategyPlan {
    /// Label in tables, plots and files; unique within the experiment.
    pub label: String,
    /// Name of the strategy.
    pub strategy: String,
    /// Distribution of the keys under this strategy; `None` if the distribution of the workload is
    /// used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Distribution>,
    /// Replicas to which acceptors send their votes under this strategy, besides the leader. `None`
    /// if the setting of the experiment is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept_replies: Option<AcceptRepliesName>,
    /// Faults that are injected under this strategy. An empty list means that the faults of the
    /// experiment are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fault: Vec<FaultSpec>,
    /// Changes to other strategies while clients send requests, in order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub change: Vec<StrategyChange>,
    /// Holders of each part of the key space, for the strategy `fixed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<RangePlan>,
}

/// A part of the key space and its holders. Parts follow each other in key order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RangePlan {
    /// Share of the key space, from 0 to 1.
    pub share: f64,
    /// Names of the sites that hold this part.
    pub holders: Vec<String>,
}

impl StrategyPlan {
    /// Divides a key space of `keys` keys into the ranges. For each range, in key order, returns
    /// the first key and the holders.
    pub fn range_starts(&self, keys: u64) -> Vec<(u64, &[String])> {
        let mut before = 0.0;
        let start = |range: &RangePlan| {
            let first = (before * keys as f64).round() as u64;
            before += range.share;
            first
        };
        let firsts: Vec<u64> = self.ranges.iter().map(start).collect();
        let holders = self.ranges.iter().map(|range| range.holders.as_slice());
        firsts.into_iter().zip(holders).collect()
    }

    /// Returns the faults that are injected under this strategy.
    pub fn faults<'a>(&'a self, experiment: &'a Experiment) -> &'a [FaultSpec] {
        if self.fault.is_empty() {
            &experiment.fault
        } else {
            &self.fault
        }
    }

    /// Returns the replicas to which acceptors send their votes under this strategy, besides the
    /// leader.
    pub fn accept_replies(&self, experiment: &Experiment) -> AcceptRepliesName {
        self.accept_replies.unwrap_or(experiment.accept_replies)
    }

    /// Returns the distribution of the keys for this strategy.
    pub fn distribution(&self, workload: &WorkloadSpec) -> Distribution {
        self.distribution.unwrap_or(workload.distribution)
    }
}

/// The values of [`Durability`], under the names that files and overrides use.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Durability", rename_all = "lowercase")]
pub(crate) enum DurabilityName {
    Sync,
    Async,
    None,
}

/// Returns the name and the one-line description of each built-in experiment, in order of name.
pub fn list() -> Vec<(&'static str, String)> {
    let described = |&(name, text): &(&'static str, &str)| {
        let built_in = Experiment::parse(name, text);
        let description = built_in.map(|experiment| experiment.description);
        (name, description.unwrap_or_else(|error| error.to_string()))
    };
    BUILT_IN.iter().map(described).collect()
}

impl Experiment {
    /// Returns the built-in experiment of this name, or the experiment in this `.toml` file.
    pub fn find(name: &str) -> Result<Experiment, ExperimentError> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Experiment::parse(name, text);
        }
        if !name.ends_with(".toml") {
            let others = crate::throughput::list();
            let others = others.iter().map(|(name, _)| *name);
            let known: Vec<&str> = BUILT_IN
                .iter()
                .map(|(name, _)| *name)
                .chain(others)
                .collect();
            return Err(ExperimentError::Unknown {
                name: name.to_owned(),
                known: known.join(", "),
            });
        }
        let text = std::fs::read_to_string(Path::new(name)).map_err(|source| {
            ExperimentError::Unreadable {
                path: name.to_owned(),
                source,
            }
        })?;
        Experiment::parse(name, &text)
    }

    /// Parses an experiment from the text of a file. Error messages call the experiment `name`.
    pub fn parse(name: &str, text: &str) -> Result<Experiment, ExperimentError> {
        let experiment: Experiment =
            from_toml(text).map_err(|error| ExperimentError::Malformed {
                name: name.to_owned(),
                message: error.to_string(),
            })?;
        experiment.validate()?;
        Ok(experiment)
    }

    /// Applies overrides to the experiment. Each override has the form `key=value`. If two
    /// overrides have the same key, the later one is used. A key is a dotted field
    /// (`lease.t_lease_ms`, `strategies.QL.distribution`, `fault.1.at_s`), or one of `requests`,
    /// `warmup`, `rate`, `seconds`, `warmup_s`, `keys`, `reads`, `clients`, `strategies` and
    /// `topology`. The value of `strategies` is a list of labels or names, for example
    /// `leader,all`. The value of `topology` is the name of a file.
    pub fn with(self, sets: &[String]) -> Result<Experiment, ExperimentError> {
        let experiment = overrides::apply(self, sets)?;
        experiment.validate()?;
        Ok(experiment)
    }

    /// Returns the effective experiment as TOML, with every default written out.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|error| format!("# not representable: {error}\n"))
    }

    /// Returns the complete timing of a replica, with defaults for omitted fields.
    pub(crate) fn timing_of_replicas(&self) -> leasehold_replica::settings::Timing {
        let default = leasehold_replica::settings::Timing::default();
        let or = |ms: Option<u64>, default| ms.map_or(default, std::time::Duration::from_millis);
        leasehold_replica::settings::Timing {
            heartbeat: or(self.timing.heartbeat_ms, default.heartbeat),
            election_timeout: or(self.timing.election_timeout_ms, default.election_timeout),
            retransmit: or(self.timing.retransmit_ms, default.retransmit),
            checkpoint: or(self.timing.checkpoint_ms, default.checkpoint),
            reconfigure: self.lease.reconfigure(),
            ..default
        }
    }

    /// Returns the index of the leader's site in the topology.
    pub fn leader_index(&self) -> usize {
        let leader = self.topology.index(&self.leader);
        leader.expect("the leader of a validated experiment is one of its sites")
    }
}
