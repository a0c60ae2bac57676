//! An experiment: one TOML file that says what is run, so that a result can be
//! repeated from its manifest alone.
//!
//! A field left out has the paper's value (§5.2). The file's fields can be
//! overridden by name, and what a report shows is the effective experiment, with
//! every default and override in it.

mod overrides;

use std::path::Path;

use leases::StrategySpec;
use serde::{Deserialize, Serialize};
use server::node::config::from_toml;

use crate::topology::{Topology, is_plain_name};

/// Experiments that ship with the program.
const BUILT_IN: [(&str, &str); 3] = [
    ("demo", include_str!("experiments/demo.toml")),
    ("fig6", include_str!("experiments/fig6.toml")),
    ("table2", include_str!("experiments/table2.toml")),
];

/// What is run, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Short name; results are kept under it: letters, digits, '-' and '_'.
    pub name: String,
    /// One line for lists and headings.
    pub description: String,
    /// The site whose replica leads.
    #[serde(default = "default_leader")]
    pub leader: String,
    /// Everything random follows from it.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Lease durations and policy.
    #[serde(default)]
    pub lease: Lease,
    /// What the clients do.
    pub workload: Workload,
    /// Faults of the simulated network.
    #[serde(default)]
    pub network: Network,
    /// Settings of the backend that runs real processes on this machine.
    #[serde(default)]
    pub local: Local,
    /// What is compared, in the order of the report.
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

/// Who holds keys that nobody has read yet, under `quorum`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unlisted {
    /// The leader and the N/2 replicas nearest to it.
    #[default]
    Nearest,
    /// The leader alone, as in the paper.
    Leader,
}

/// Lease durations (in ms) and policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lease {
    /// How long a promise lasts.
    pub t_lease_ms: u64,
    /// Within which time of an acknowledgement a promise must arrive.
    pub t_guard_ms: u64,
    /// How often promises are renewed.
    pub renew_ms: u64,
    /// How often holders are chosen anew.
    pub reconfigure_ms: u64,
    /// How long a replica may be silent before it is suspected.
    pub grace_ms: u64,
    /// How far clock rates may differ.
    pub rho: f64,
    /// Who holds keys that nobody has read yet.
    pub unlisted: Unlisted,
}

impl Default for Lease {
    fn default() -> Lease {
        Lease {
            t_lease_ms: 2_000,
            t_guard_ms: 2_000,
            renew_ms: 500,
            reconfigure_ms: 10_000,
            grace_ms: 5_000,
            rho: 0.001,
            unlisted: Unlisted::Nearest,
        }
    }
}

/// How keys are drawn at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Zipf, the order of popularity being another permutation at each site.
    Zipf,
    /// All keys alike.
    Uniform,
}

/// What the clients do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// How many keys there are.
    pub keys: u64,
    /// How they are drawn.
    #[serde(default = "default_distribution")]
    pub distribution: Distribution,
    /// Zipf's exponent.
    #[serde(default = "default_theta")]
    pub theta: f64,
    /// Share of operations that are reads, 0 to 1.
    pub reads: f64,
    /// Closed-loop clients at each site.
    pub clients: u32,
    /// Operations of each client, warm-up included.
    pub requests: u64,
    /// Of these, how many at the start only warm up and are not measured.
    #[serde(default)]
    pub warmup: u64,
    /// Size of a written value, in bytes.
    #[serde(default = "default_value_bytes")]
    pub value_bytes: u32,
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

/// Faults of the simulated network, as probabilities per message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// The message is lost.
    pub loss: f64,
    /// It arrives twice.
    pub duplication: f64,
    /// It is overtaken by later ones.
    pub reorder: f64,
}

/// When a replica on this machine calls a write durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// On the disk.
    #[default]
    Sync,
    /// With the operating system.
    Async,
    /// Never written.
    None,
}

/// Settings of the backend that runs real processes on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Local {
    /// When a write is durable.
    pub durability: Durability,
    /// Random delay added on each link, at most this many ms.
    pub jitter_ms: f64,
}

/// One strategy to be measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StrategyPlan {
    /// What tables, plots and files call it; unique within the experiment.
    pub label: String,
    /// The strategy's name.
    pub strategy: String,
    /// How keys are drawn for it, if not as the workload says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Distribution>,
    /// For `fixed`: who holds which part of the key space.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<RangePlan>,
}

/// A part of the key space and its holders. Parts follow each other in key order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RangePlan {
    /// Share of the key space, 0 to 1.
    pub share: f64,
    /// Names of the sites that hold it.
    pub holders: Vec<String>,
}

impl StrategyPlan {
    /// The first key of each range and its holders, for `keys` keys in order.
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

    /// How keys are drawn for this strategy.
    pub fn distribution(&self, workload: &Workload) -> Distribution {
        self.distribution.unwrap_or(workload.distribution)
    }
}

/// Why an experiment cannot be run as asked.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// No built-in experiment of that name.
    #[error(
        "no experiment is called {name:?}; there are {known}, or give the path of a .toml file"
    )]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file cannot be read.
    #[error("experiment file {path}: {source}")]
    Unreadable {
        /// The file asked for.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not TOML, or a field that does not exist or has the wrong type.
    #[error("experiment {name}: {message}")]
    Malformed {
        /// The experiment or its file.
        name: String,
        /// Where and why.
        message: String,
    },
    /// An override that is not `key=value`.
    #[error("--set {found}: write key=value, as in --set requests=1000")]
    NotAPair {
        /// What was written.
        found: String,
    },
    /// An override of something that does not exist.
    #[error("--set {key}: there is no such setting; there are {known}")]
    UnknownKey {
        /// The key.
        key: String,
        /// Everything that can be set.
        known: String,
    },
    /// An override with a value that the field does not accept.
    #[error("--set {key}={value}: {message}")]
    BadValue {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What is accepted.
        message: String,
    },
    /// The overridden topology.
    #[error("--set topology: {0}")]
    Topology(#[from] crate::topology::TopologyError),
    /// A field whose value makes no sense, alone or beside another.
    #[error("{field} = {found}: {mend}")]
    Invalid {
        /// The field, dotted.
        field: String,
        /// Its value.
        found: String,
        /// What is accepted, or what to change.
        mend: String,
    },
}

/// The built-in experiments: name and one-line description, in order of name.
pub fn list() -> Vec<(&'static str, String)> {
    let described = |&(name, text): &(&'static str, &str)| {
        let built_in = Experiment::parse(name, text);
        let description = built_in.map(|experiment| experiment.description);
        (name, description.unwrap_or_else(|error| error.to_string()))
    };
    BUILT_IN.iter().map(described).collect()
}

impl Experiment {
    /// A built-in experiment by its name, or one from a `.toml` file.
    pub fn find(name: &str) -> Result<Experiment, ExperimentError> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Experiment::parse(name, text);
        }
        if !name.ends_with(".toml") {
            let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
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

    /// An experiment from the text of a file; `name` is for error messages.
    pub fn parse(name: &str, text: &str) -> Result<Experiment, ExperimentError> {
        let experiment: Experiment =
            from_toml(text).map_err(|error| ExperimentError::Malformed {
                name: name.to_owned(),
                message: error.to_string(),
            })?;
        experiment.validate()?;
        Ok(experiment)
    }

    /// The same with overrides, each `key=value`, later ones winning. A key is a
    /// dotted field (`lease.t_lease_ms`, `strategies.QL.distribution`), or one of
    /// `requests`, `warmup`, `keys`, `reads`, `clients`, `strategies`
    /// (`leader,all`, by label or by name) and `topology` (a file).
    pub fn with(self, sets: &[String]) -> Result<Experiment, ExperimentError> {
        let experiment = overrides::apply(self, sets)?;
        experiment.validate()?;
        Ok(experiment)
    }

    /// The effective experiment as TOML, every default spelled out.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|error| format!("# not representable: {error}\n"))
    }

    /// The leader's index in the topology.
    pub fn leader_index(&self) -> usize {
        let leader = self.topology.index(&self.leader);
        leader.expect("validate() has seen the leader among the sites")
    }

    fn validate(&self) -> Result<(), ExperimentError> {
        plain_name("name", &self.name, "of a directory")?;
        let names = self.topology.names().join(", ");
        let known = |site: &str| self.topology.index(site).is_some();
        check(known(&self.leader), "leader", &self.leader, || {
            let first = &self.topology.names()[0];
            format!(
                "no such site; the sites are {names}: say which leads, as in --set leader={first}"
            )
        })?;
        self.validate_workload()?;
        self.validate_lease()?;
        check(!self.strategies.is_empty(), "strategies", "[]", || {
            "name at least one strategy".to_owned()
        })?;
        for (i, plan) in self.strategies.iter().enumerate() {
            let fresh = self.strategies[..i].iter().all(|p| p.label != plan.label);
            check(fresh, "strategies.label", &plan.label, || {
                "used twice; give every strategy a label of its own".to_owned()
            })?;
            plan.validate(&names, known)?;
        }
        Ok(())
    }

    fn validate_workload(&self) -> Result<(), ExperimentError> {
        let w = &self.workload;
        let positive = |field: &str, value: u64| {
            check(value > 0, field, value, || "at least 1 is needed".into())
        };
        positive("workload.keys", w.keys)?;
        positive("workload.clients", w.clients.into())?;
        positive("workload.requests", w.requests)?;
        share("workload.reads", w.reads)?;
        check(w.warmup < w.requests, "workload.warmup", w.warmup, || {
            format!(
                "nothing would be measured, as each client makes {} requests in total; raise requests or lower warmup",
                w.requests
            )
        })?;
        let exponent = w.theta > 0.0 && w.theta < 10.0;
        check(exponent, "workload.theta", w.theta, || {
            "an exponent above 0 and below 10 is needed".into()
        })?;
        share("network.loss", self.network.loss)?;
        share("network.duplication", self.network.duplication)?;
        share("network.reorder", self.network.reorder)?;
        let jitter = (0.0..=10_000.0).contains(&self.local.jitter_ms);
        check(jitter, "local.jitter_ms", self.local.jitter_ms, || {
            "0 to 10000 ms are accepted".into()
        })
    }

    fn validate_lease(&self) -> Result<(), ExperimentError> {
        let l = &self.lease;
        for (field, value) in [
            ("lease.t_lease_ms", l.t_lease_ms),
            ("lease.t_guard_ms", l.t_guard_ms),
            ("lease.renew_ms", l.renew_ms),
            ("lease.reconfigure_ms", l.reconfigure_ms),
            ("lease.grace_ms", l.grace_ms),
        ] {
            check((1..=3_600_000).contains(&value), field, value, || {
                "1 ms to 3600000 ms (an hour) are accepted".into()
            })?;
        }
        check(
            l.renew_ms < l.t_lease_ms,
            "lease.renew_ms",
            l.renew_ms,
            || {
                format!(
                    "leases of {} ms would lapse before they are renewed; choose less, a quarter is usual",
                    l.t_lease_ms
                )
            },
        )?;
        check((0.0..=0.1).contains(&l.rho), "lease.rho", l.rho, || {
            "0 to 0.1 are accepted (0.001 is one part in a thousand)".into()
        })
    }
}

impl StrategyPlan {
    fn validate(&self, sites: &str, known: impl Fn(&str) -> bool) -> Result<(), ExperimentError> {
        let field = |name: &str| format!("strategies.{}.{name}", self.label);
        let named = StrategySpec::NAMES.contains(&self.strategy.as_str());
        check(named, &field("strategy"), &self.strategy, || {
            format!(
                "no such strategy; there are {}",
                StrategySpec::NAMES.join(", ")
            )
        })?;
        plain_name("strategies.label", &self.label, "of a file")?;
        let wants_ranges = self.strategy == "fixed";
        let found = format!("{} ranges", self.ranges.len());
        check(
            wants_ranges != self.ranges.is_empty(),
            &field("ranges"),
            found,
            || {
                "`fixed` needs ranges, as in ranges = [{ share = 1.0, holders = [\"CA\"] }]; the other strategies take none".into()
            },
        )?;
        for range in &self.ranges {
            share(&field("ranges.share"), range.share)?;
            let found = format!("{:?}", range.holders);
            let good = !range.holders.is_empty() && range.holders.iter().all(|site| known(site));
            check(good, &field("ranges.holders"), found, || {
                format!(
                    "name at least one site, of these: {sites}; or leave the strategy out, as in \
                     --set strategies=leader,quorum"
                )
            })?;
        }
        let sum: f64 = self.ranges.iter().map(|range| range.share).sum();
        let whole = self.ranges.is_empty() || (sum - 1.0).abs() < 1e-6;
        check(
            whole,
            &field("ranges"),
            format!("shares summing to {sum}"),
            || "the shares must sum to 1".into(),
        )
    }
}

fn plain_name(field: &str, name: &str, becomes: &str) -> Result<(), ExperimentError> {
    check(is_plain_name(name), field, format!("{name:?}"), || {
        format!("use letters, digits, '-' or '_': it becomes the name {becomes}")
    })
}

fn share(field: &str, value: f64) -> Result<(), ExperimentError> {
    check((0.0..=1.0).contains(&value), field, value, || {
        "a share from 0 to 1 is needed".into()
    })
}

fn check(
    good: bool,
    field: &str,
    found: impl ToString,
    mend: impl FnOnce() -> String,
) -> Result<(), ExperimentError> {
    if good {
        return Ok(());
    }
    Err(ExperimentError::Invalid {
        field: field.to_owned(),
        found: found.to_string(),
        mend: mend(),
    })
}

#[cfg(test)]
mod tests;
