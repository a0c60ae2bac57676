//! Throughput experiments. They measure how many reads and writes a second one site serves, and the
//! processor time of each operation. A case is a strategy, together with the rule by which clients
//! choose a replica.
//!
//! Throughput experiments need real processes, because in virtual time nothing takes processor
//! time. They have their own fields, and no topology.

use std::collections::BTreeMap;
use std::path::Path;

use leasehold_leases::StrategySpec;
use leasehold_node::config::{ClusterConfig, ConfigError, LeaseSection, from_toml};
use leasehold_node::store::Durability;
use serde::{Deserialize, Serialize};

use crate::cluster_file::{ClusterFile, Node};
use crate::experiment::{DurabilityName, ExperimentError};
use crate::topology::is_plain_name;

/// Throughput experiments that are built into the program.
const BUILT_IN: [(&str, &str); 1] = [("fig8", include_str!("experiments/fig8.toml"))];

/// Fields that only files of throughput experiments have. A file with one of these fields describes
/// a throughput experiment.
const DISTINCTIVE_FIELDS: [&str; 2] = ["cases", "replicas"];

/// A throughput experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThroughputExperiment {
    /// Short name. Results are stored under this name.
    pub name: String,
    /// Description in one line, for lists and headings.
    pub description: String,
    /// Names of the replicas. All replicas are at one site.
    pub replicas: Vec<String>,
    /// Name of the replica that leads.
    pub leader: String,
    /// Number of times that every case is measured. The report shows the medians.
    pub runs: u32,
    /// Seed for all random choices.
    pub seed: u64,
    /// Condition under which a write is durable.
    #[serde(with = "DurabilityName")]
    pub durability: Durability,
    /// Interval at which a replica writes its state to disk, in ms.
    pub checkpoint_ms: u64,
    /// Number of keys. All keys are equally popular.
    pub keys: u64,
    /// Size of a value, in bytes.
    pub value_bytes: u32,
    /// Total number of connections from clients to replicas.
    pub connections: u32,
    /// Number of operations in flight on each connection.
    pub in_flight: u32,
    /// Number of threads of the load generator.
    pub cores: u32,
    /// Duration of the warm-up, in s. Nothing is measured in the warm-up. Clients read equally from
    /// all replicas, so that every replica gets about the same number of leases.
    pub warmup_s: f64,
    /// Duration of each of the two measurements, in s. Reads are measured first, then writes.
    /// Clients begin to send requests 3 s before each measurement, but these early requests are not
    /// measured.
    pub seconds: f64,
    /// Lease durations and policy.
    pub lease: LeaseSection,
    /// Cases to compare.
    pub cases: Vec<Case>,
}

/// A strategy, together with the routing of its clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Label in tables and plots.
    pub label: String,
    /// Name of the strategy.
    pub strategy: String,
    /// Rule by which clients choose the replica for a request.
    pub routing: CaseRouting,
}

/// Rule by which clients choose the replica for a request. The rules have the same names as in the
/// setting `leasehold.routing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CaseRouting {
    /// Each client sends all requests to the replica that it is connected to.
    Local,
    /// Clients send reads to a holder of the key, and writes to the leader.
    LeaseAware,
}

impl CaseRouting {
    /// Returns the name of the rule, as used in files.
    pub fn name(self) -> &'static str {
        match self {
            CaseRouting::Local => "local",
            CaseRouting::LeaseAware => "lease-aware",
        }
    }
}

/// Throughput of one kind of operation in one case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OperationThroughput {
    /// Number of successful operations a second.
    pub per_s: f64,
    /// Number of failed operations.
    pub failed: u64,
    /// Share of local reads, from 0 to 1. A read is local if the replica that receives the request
    /// answers it under its own lease.
    pub local_fraction: f64,
    /// Median latency, in µs.
    pub p50_us: f64,
    /// 99th percentile of the latency, in µs.
    pub p99_us: f64,
    /// Processor time (user and system) of all replicas in total, divided by the number of
    /// operations, in µs.
    pub cpu_us: f64,
    /// Processor time of the busiest replica, divided by the number of operations, in µs.
    pub busiest_us: f64,
}

impl OperationThroughput {
    /// Returns the rate, in operations a second, that the replicas could reach if each of them had
    /// its own processor. The replica that uses the most processor time limits this rate.
    pub fn at_a_processor_each(&self) -> f64 {
        if self.busiest_us > 0.0 {
            1e6 / self.busiest_us
        } else {
            0.0
        }
    }
}

/// Throughput of each kind of operation in one case.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CaseThroughput {
    /// Throughput of reads alone.
    pub reads: OperationThroughput,
    /// Throughput of writes alone.
    pub writes: OperationThroughput,
}

/// Returns the name and the one-line description of each built-in throughput experiment.
pub fn list() -> Vec<(&'static str, String)> {
    let described = |&(name, text): &(&'static str, &str)| {
        let built_in = ThroughputExperiment::parse(name, text);
        let description = built_in.map(|it| it.description);
        (name, description.unwrap_or_else(|error| error.to_string()))
    };
    BUILT_IN.iter().map(described).collect()
}

impl ThroughputExperiment {
    /// Returns the throughput experiment `name`: the built-in experiment of this name, or the
    /// experiment in the TOML file `name`. Returns `None` if neither exists.
    ///
    /// # Errors
    /// Returns an error if a field or an override is invalid.
    pub fn find(
        name: &str,
        sets: &[String],
    ) -> Option<Result<ThroughputExperiment, ExperimentError>> {
        let shipped = BUILT_IN.iter().find(|(known, _)| *known == name);
        let shipped = shipped.map(|(_, text)| (*text).to_owned());
        let text = shipped.or_else(|| ThroughputExperiment::in_file(name))?;
        Some(ThroughputExperiment::parse(name, &text).and_then(|it| it.with(sets)))
    }

    /// Returns the text of the TOML file `name`. Returns `None` if the file cannot be read, is not
    /// TOML, or does not describe a throughput experiment. The caller then searches for an
    /// experiment of another kind. This search reports an error if the file cannot be read or is
    /// not TOML.
    fn in_file(name: &str) -> Option<String> {
        if !name.ends_with(".toml") {
            return None;
        }
        let text = std::fs::read_to_string(name).ok()?;
        let fields: toml::Table = from_toml(&text).ok()?;
        let told = DISTINCTIVE_FIELDS
            .iter()
            .any(|field| fields.contains_key(*field));
        told.then_some(text)
    }

    fn parse(name: &str, text: &str) -> Result<ThroughputExperiment, ExperimentError> {
        let parsed: ThroughputExperiment =
            from_toml(text).map_err(|error| ExperimentError::Malformed {
                name: format!("{name}, of throughput as it has `cases` or `replicas`"),
                message: error.to_string(),
            })?;
        parsed.checked()
    }

    /// Applies overrides of the form `key=value`, and returns the resulting experiment. A key is
    /// `strategies` or a dotted field. The value of `strategies` lists the labels or strategies of
    /// the cases to keep.
    fn with(self, sets: &[String]) -> Result<ThroughputExperiment, ExperimentError> {
        let changed = sets.iter().try_fold(self, |it, set| it.set(set));
        changed.and_then(ThroughputExperiment::checked)
    }

    fn set(mut self, set: &str) -> Result<ThroughputExperiment, ExperimentError> {
        let Some((key, value)) = set.split_once('=') else {
            return Err(ExperimentError::NotAPair {
                found: set.to_owned(),
            });
        };
        let (key, value) = (key.trim(), value.trim());
        if key == "strategies" {
            let kept = |case: &Case, name: &str| case.label == name || case.strategy == name;
            let any = |case: &Case| value.split(',').any(|name| kept(case, name.trim()));
            self.cases.retain(any);
            return Ok(self);
        }
        let (table, field) = key.split_once('.').unwrap_or(("", key));
        let mut all = toml::Table::try_from(&self).unwrap_or_default();
        let known: Vec<String> = all.keys().cloned().collect();
        let inner = match table {
            "" => Some(&mut all),
            name => all.get_mut(name).and_then(toml::Value::as_table_mut),
        };
        let place = inner.and_then(|inner| inner.get_mut(field));
        let place = place.ok_or_else(|| ExperimentError::UnknownKey {
            key: key.to_owned(),
            known: format!("{}, strategies", known.join(", ")),
        })?;
        let read: Option<toml::Table> = toml::from_str(&format!("v = {value}")).ok();
        let read = read.and_then(|mut read| read.remove("v"));
        *place = read.unwrap_or_else(|| toml::Value::String(value.to_owned()));
        all.try_into()
            .map_err(|error: toml::de::Error| ExperimentError::BadValue {
                key: key.to_owned(),
                value: value.to_owned(),
                message: error.message().to_owned(),
            })
    }

    fn checked(self) -> Result<ThroughputExperiment, ExperimentError> {
        let several = (1..=64).contains(&self.replicas.len());
        let rules = [
            (
                "name",
                is_plain_name(&self.name),
                "use letters, digits, '-' or '_': it becomes the name of a directory",
            ),
            ("replicas", several, "name 1 to 64 replicas"),
            (
                "leader",
                self.replicas.contains(&self.leader),
                "name one of the replicas",
            ),
            (
                "runs",
                (1..=1000).contains(&self.runs),
                "a number from 1 to 1000",
            ),
            (
                "checkpoint_ms",
                (1..=600_000).contains(&self.checkpoint_ms),
                "from 1 to 600000",
            ),
            ("keys", self.keys > 0, "a number from 1 on"),
            (
                "value_bytes",
                self.value_bytes <= 1 << 19,
                "a number up to 524288",
            ),
            (
                "connections",
                self.connections as usize >= self.replicas.len(),
                "as many as there are replicas, or more",
            ),
            ("in_flight", self.in_flight > 0, "a number from 1 on"),
            ("cores", (1..=64).contains(&self.cores), "from 1 to 64"),
            (
                "warmup_s",
                (0.0..=1e5).contains(&self.warmup_s),
                "from 0 to 100000",
            ),
            (
                "seconds",
                (3.0..=1e5).contains(&self.seconds),
                "from 3 to 100000",
            ),
            (
                "strategies",
                !self.cases.is_empty(),
                "name labels or strategies of its cases",
            ),
        ];
        match rules.into_iter().find(|(_, holds, _)| !holds) {
            None => {
                self.check_cases()?;
                Ok(self)
            }
            Some((field, _, fix)) => {
                let table = toml::Table::try_from(&self).unwrap_or_default();
                let found = table.get(field).map(ToString::to_string);
                Err(ExperimentError::Invalid {
                    field: field.to_owned(),
                    found: found.unwrap_or_else(|| "none of them".to_owned()),
                    fix: fix.to_owned(),
                })
            }
        }
    }

    /// Checks the cases. Each case must have a label of its own that is a valid name of a
    /// directory, and settings that replicas accept.
    fn check_cases(&self) -> Result<(), ExperimentError> {
        let invalid = |field: &str, found: String, fix: &str| {
            Err(ExperimentError::Invalid {
                field: field.to_owned(),
                found,
                fix: fix.to_owned(),
            })
        };
        if self.lease.strategy.is_some() || !self.lease.range.is_empty() {
            let fix = "leave `strategy` and `range` out: each of [[cases]] has a strategy";
            return invalid("lease", "with a strategy".to_owned(), fix);
        }
        for (index, case) in self.cases.iter().enumerate() {
            let found = format!("{:?}", case.label);
            if !is_plain_name(&case.label) {
                let fix = "use letters, digits, '-' or '_': it becomes the name of a directory";
                return invalid("cases.label", found, fix);
            }
            if self.cases[..index]
                .iter()
                .any(|other| other.label == case.label)
            {
                return invalid("cases.label", found, "give each case a label of its own");
            }
            let known = StrategySpec::NAMES.iter().filter(|name| **name != "fixed");
            let known: Vec<&str> = known.copied().collect();
            if !known.contains(&case.strategy.as_str()) {
                let field = format!("strategy of case {}", case.label);
                let fix = format!("accepted are {}", known.join(", "));
                return invalid(&field, format!("{:?}", case.strategy), &fix);
            }
            self.check_cluster(case)?;
        }
        Ok(())
    }

    /// Checks a case's cluster configuration by the rules of the replicas. The configuration
    /// contains made-up addresses for this check.
    fn check_cluster(&self, case: &Case) -> Result<(), ExperimentError> {
        let node = |(name, port): (&String, u16)| Node {
            name: name.clone(),
            client: ([127, 0, 0, 1], 2 * port).into(),
            peer: ([127, 0, 0, 1], 2 * port + 1).into(),
            via: BTreeMap::new(),
        };
        let nodes = self.replicas.iter().zip(1..).map(node).collect();
        let file = ClusterFile::of_case(self, case, &self.name, nodes);
        let text = toml::to_string(&file).unwrap_or_default();
        match ClusterConfig::parse(&text, Path::new("cluster.toml")) {
            Ok(_) => Ok(()),
            Err(ConfigError::Field {
                field,
                found,
                accepted,
                ..
            }) => Err(ExperimentError::Invalid {
                field,
                found,
                fix: accepted,
            }),
            Err(error) => Err(ExperimentError::Malformed {
                name: self.name.clone(),
                message: error.to_string(),
            }),
        }
    }

    /// Returns the experiment as TOML, with all fields.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|error| format!("# not representable: {error}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fig8(sets: &[&str]) -> Result<ThroughputExperiment, String> {
        let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
        let found = ThroughputExperiment::find("fig8", &sets).unwrap();
        found.map_err(|error| error.to_string())
    }

    #[test]
    fn the_shipped_one_is_what_its_file_says_and_comes_back_from_what_is_shown() {
        let it = fig8(&[]).unwrap();
        assert_eq!((it.replicas.len(), it.cases.len()), (5, 5));
        assert_eq!(
            ThroughputExperiment::parse("shown", &it.to_toml()).unwrap(),
            it
        );
        assert!(ThroughputExperiment::find("fig6", &[]).is_none());
    }

    #[test]
    fn fields_can_be_set_and_cases_chosen() {
        let sets = ["seconds=3", "lease.t_lease_ms=900", "strategies=all,QL"];
        let it = fig8(&sets).unwrap();
        assert_eq!((it.seconds, it.lease.t_lease_ms), (3.0, 900));
        let labels: Vec<_> = it.cases.iter().map(|case| case.label.as_str()).collect();
        assert_eq!(labels, ["ML", "QL"]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_field() {
        let cases = [
            ("seconds=0", "seconds"),
            ("leader=Z", "leader"),
            ("strategies=none", "strategies"),
            ("connections=2", "connections"),
            ("wait=3", "wait"),
            ("lease.wait=3", "lease.wait"),
            ("keys=many", "keys"),
            ("keys", "keys"),
        ];
        for (set, field) in cases {
            let message = fig8(&[set]).unwrap_err();
            assert!(message.contains(field), "{set}: {message}");
        }
    }

    /// Parses the text of a file. Returns `None` if the file does not describe a throughput
    /// experiment.
    fn in_file(text: &str) -> Option<Result<ThroughputExperiment, String>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        std::fs::write(&path, text).unwrap();
        let found = ThroughputExperiment::find(path.to_str().unwrap(), &[]);
        found.map(|found| found.map_err(|error| error.to_string()))
    }

    #[test]
    fn what_is_shown_can_be_edited_and_is_told_from_other_experiments() {
        let shown = fig8(&[]).unwrap().to_toml();
        let edited = shown.replace("name = \"fig8\"", "name = \"mine\"");
        let edited = edited.replace("keys = 10000", "keys = 77");
        let mine = in_file(&edited).unwrap().unwrap();
        assert_eq!((mine.name.as_str(), mine.keys), ("mine", 77));
        let other = crate::experiment::Experiment::find("fig6").unwrap();
        assert!(in_file(&other.to_toml()).is_none());
        assert!(in_file("[[cases").is_none());
        assert!(ThroughputExperiment::find("/nowhere/mine.toml", &[]).is_none());
    }

    #[test]
    fn what_is_wrong_in_a_file_is_said_with_the_field() {
        let shown = fig8(&[]).unwrap().to_toml();
        for (from, to, part) in [
            ("keys = 10000", "kees = 10000", "unknown field `kees`"),
            ("keys = 10000", "", "missing field `keys`"),
            ("name = \"fig8\"", "name = \"a/b\"", "name"),
            ("\"QL-oblivious\"", "\"QL\"", "a label of its own"),
            ("\"QL-oblivious\"", "\"../x\"", "cases.label"),
            ("\"quorum\"", "\"best\"", "strategy of case QL"),
            ("[lease]", "[lease]\nstrategy = \"all\"", "[[cases]]"),
            ("t_lease_ms = 2000", "t_lease_ms = 100", "lease.t_lease_ms"),
            ("\"B\"", "\"A\"", "node[1].name"),
        ] {
            assert!(shown.contains(from), "{from:?} is not in {shown}");
            let error = in_file(&shown.replacen(from, to, 1)).unwrap().unwrap_err();
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }

    #[test]
    fn settings_of_one_strategy_are_told_to_its_cases_alone() {
        let shown = fig8(&[]).unwrap().to_toml();
        let weighed = shown.replace("[lease]", "[lease]\ncost = { read_weight = 0.7 }");
        let it = in_file(&weighed).unwrap().unwrap();
        let weight = |case: &Case| {
            let file = ClusterFile::of_case(&it, case, "demo", Vec::new());
            file.lease.cost.map(|cost| cost.read_weight)
        };
        let weights: Vec<_> = it.cases.iter().map(weight).collect();
        assert_eq!(weights, [None, None, None, None, Some(0.7)]);
    }

    #[test]
    fn the_busiest_replica_limits_a_cluster_with_a_processor_each() {
        let rate = OperationThroughput {
            busiest_us: 0.5,
            ..OperationThroughput::default()
        };
        assert_eq!(rate.at_a_processor_each(), 2e6);
        assert_eq!(OperationThroughput::default().at_a_processor_each(), 0.0);
    }
}
