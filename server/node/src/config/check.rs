//! Checks a configuration as it is written in the file, and converts it to a [`ClusterConfig`].

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use leasehold_leases::{ClockBound, LeaseParams, ParamsError, ReplicaId};
use leasehold_wire::{NAME_BYTES_MAX, NODES_MAX};

use super::{ClusterConfig, ConfigError, LeaseSection, NodeConfig, raw};
use crate::security::{AUTHORITY, AUTHORITY_KEY, key_file};
use crate::store::Durability;
use leasehold_replica::codec::BATCH_COMMANDS_MAX;
use leasehold_replica::lease_set::Durations;
use leasehold_replica::settings::{AcceptReplies, Settings, Timing};

/// Requirement: `NODES_MAX` equals the number of bits of a
/// [`ReplicaSet`](leasehold_leases::ReplicaSet), because the id of each replica stands for one bit.
const _: () = assert!(NODES_MAX == ReplicaId::COUNT_MAX);
/// Default memory for counting the demand for keys, in MiB. This memory is enough for about half a
/// million keys that five replicas read.
const DEMAND_MB_DEFAULT: u64 = 64;
const DEMAND_MB_MAX: u64 = 16 * 1024;
/// Default of the maximum traffic for choosing lease holders, in KB per second at each replica
/// (§3.4).
const HOLDERS_KB_S_DEFAULT: u64 = 100;
/// Maximum value of `holders_kb_s`. At this value, a report may have `holders_kb_s / 2` KB, and
/// still fits into a frame.
const HOLDERS_KB_S_MAX: u64 = 4000;
/// Maximum of a configured duration: one day, in ms. No useful duration is longer.
const DURATION_MS_MAX: u64 = Durations::MAX.as_millis() as u64;
pub(super) struct Checker<'a> {
    file: &'a Path,
}

pub(super) type CheckResult<T> = Result<T, ConfigError>;

pub(super) fn check(raw: raw::Cluster, file: &Path) -> CheckResult<ClusterConfig> {
    let checker = Checker { file };
    checker.name("cluster", &raw.cluster)?;
    let nodes = checker.nodes(raw.node)?;
    let names = NodeNames(&nodes);
    let leader = raw.leader.as_deref();
    let leader = leader.map(|name| checker.replica_id("leader", name, &names));
    let defaults = Settings::new(ReplicaId(0), nodes.len());
    let base = file.parent().unwrap_or(Path::new(""));
    Ok(ClusterConfig {
        leader: leader.transpose()?,
        durability: checker.durability(raw.durability.as_deref())?,
        data: checker.data(base, &raw.data)?,
        strategies: checker.strategies(&raw.lease, &names)?,
        params: checker.params(&raw.lease)?,
        timing: checker.timing(&raw.timing, &raw.lease)?,
        accept_replies: checker.accept_replies(raw.accept_replies.as_deref())?,
        batch_max: match raw.batch_max {
            None => defaults.batch_max,
            Some(found) if (1..=BATCH_COMMANDS_MAX as u64).contains(&found) => found as usize,
            Some(found) => {
                let accepted = format!("accepted are 1 to {BATCH_COMMANDS_MAX} commands");
                return Err(checker.refuse("batch_max", found, accepted));
            }
        },
        demand_mb: match raw.demand_mb {
            None => DEMAND_MB_DEFAULT,
            Some(found) if (1..=DEMAND_MB_MAX).contains(&found) => found,
            Some(found) => {
                let accepted = format!(
                    "accepted are 1 to {DEMAND_MB_MAX} MiB; the default is {DEMAND_MB_DEFAULT}"
                );
                return Err(checker.refuse("demand_mb", found, accepted));
            }
        },
        holders_kb_s: match raw.holders_kb_s {
            None => HOLDERS_KB_S_DEFAULT,
            Some(found) if (10..=HOLDERS_KB_S_MAX).contains(&found) => found,
            Some(found) => {
                let accepted = format!(
                    "accepted are 10 to {HOLDERS_KB_S_MAX} KB a second; the default is {HOLDERS_KB_S_DEFAULT}"
                );
                return Err(checker.refuse("holders_kb_s", found, accepted));
            }
        },
        limits: checker.limits(&raw.limits)?,
        security: checker.security(raw.security, base)?,
        sessions: checker.sessions(&raw.limits, nodes.len())?,
        file: file.to_owned(),
        cluster: raw.cluster,
        nodes,
    })
}

/// Mapping from the names of nodes to their ids.
pub(super) struct NodeNames<'a>(&'a [NodeConfig]);

impl NodeNames<'_> {
    fn find(&self, name: &str) -> Option<ReplicaId> {
        let found = self.0.iter().position(|node| node.name == name)?;
        Some(ReplicaId(found as u8))
    }

    fn all(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|node| node.name.as_str()).collect();
        names.join(", ")
    }

    /// Returns the number of nodes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Checker<'_> {
    pub(super) fn refuse(
        &self,
        field: impl Into<String>,
        found: impl ToString,
        accepted: impl Into<String>,
    ) -> ConfigError {
        ConfigError::Field {
            file: self.file.to_owned(),
            field: field.into(),
            found: found.to_string(),
            accepted: accepted.into(),
        }
    }

    pub(super) fn quoted(
        &self,
        field: &str,
        found: &str,
        accepted: impl Into<String>,
    ) -> ConfigError {
        self.refuse(field, format!("{found:?}"), accepted)
    }

    fn name(&self, field: &str, name: &str) -> CheckResult<()> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
        if fits && name.bytes().all(plain) && !name.starts_with('.') {
            return Ok(());
        }
        let accepted = format!(
            "accepted are 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.', not beginning with '.': \
             it becomes the name of a directory"
        );
        Err(self.quoted(field, name, accepted))
    }

    fn not_of_the_authority(&self, field: &str, name: &str) -> CheckResult<()> {
        if key_file(Path::new(""), name) != Path::new(AUTHORITY_KEY) {
            return Ok(());
        }
        let accepted = format!(
            "its certificate and key would be {AUTHORITY} and {AUTHORITY_KEY}, the files of the cluster's \
             authority; give the node another name"
        );
        Err(self.quoted(field, name, accepted))
    }

    pub(super) fn replica_id(
        &self,
        field: &str,
        name: &str,
        names: &NodeNames,
    ) -> CheckResult<ReplicaId> {
        names.find(name).ok_or_else(|| {
            let accepted = format!("accepted are the names of nodes: {}", names.all());
            self.quoted(field, name, accepted)
        })
    }

    fn one_of<T: Copy>(&self, field: &str, found: &str, among: &[(&str, T)]) -> CheckResult<T> {
        let matching = among.iter().find(|(name, _)| *name == found);
        matching.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<&str> = among.iter().map(|(name, _)| *name).collect();
            self.quoted(field, found, format!("accepted are {}", names.join(", ")))
        })
    }

    fn data(&self, base: &Path, data: &str) -> CheckResult<std::path::PathBuf> {
        if data.is_empty() {
            let accepted = "a directory is required, relative to this file or absolute";
            return Err(self.quoted("data", data, accepted));
        }
        Ok(base.join(data))
    }

    fn durability(&self, found: Option<&str>) -> CheckResult<Durability> {
        let all = [Durability::Sync, Durability::Async, Durability::None];
        let among = all.map(|durability| (durability.name(), durability));
        found.map_or(Ok(Durability::default()), |found| {
            self.one_of("durability", found, &among)
        })
    }

    fn accept_replies(&self, found: Option<&str>) -> CheckResult<AcceptReplies> {
        let among = [
            ("leader", AcceptReplies::Leader),
            ("origin", AcceptReplies::Origin),
            ("all", AcceptReplies::All),
        ];
        found.map_or(Ok(AcceptReplies::default()), |found| {
            self.one_of("accept_replies", found, &among)
        })
    }

    fn nodes(&self, nodes: Vec<raw::Node>) -> CheckResult<Vec<NodeConfig>> {
        if nodes.is_empty() || nodes.len() > NODES_MAX {
            let accepted =
                format!("1 to {NODES_MAX} of them are required, in the same order everywhere");
            let found = format!("given {} times", nodes.len());
            return Err(self.refuse("[[node]]", found, accepted));
        }
        self.distinct_names(&nodes)?;
        self.distinct_addresses(&nodes)?;
        let nodes = nodes.into_iter().map(|node| NodeConfig {
            name: node.name,
            client: node.client,
            peer: node.peer,
            via: node.via,
        });
        let nodes: Vec<NodeConfig> = nodes.collect();
        nodes.iter().try_for_each(|node| self.via(node, &nodes))?;
        Ok(nodes)
    }

    fn distinct_names(&self, nodes: &[raw::Node]) -> CheckResult<()> {
        let mut names = BTreeMap::new();
        for (index, node) in nodes.iter().enumerate() {
            let field = format!("node[{index}].name");
            self.name(&field, &node.name)?;
            self.not_of_the_authority(&field, &node.name)?;
            if let Some(first) = names.insert(&node.name, index) {
                let accepted = format!("node[{first}] has this name already; give another");
                return Err(self.quoted(&field, &node.name, accepted));
            }
        }
        Ok(())
    }

    fn distinct_addresses(&self, nodes: &[raw::Node]) -> CheckResult<()> {
        let mut addresses = BTreeMap::new();
        for node in nodes {
            for (part, address) in [("client", &node.client), ("peer", &node.peer)] {
                let field = format!("{part} of node {}", node.name);
                self.address(&field, address)?;
                if let Some(first) = addresses.insert(address, field.clone()) {
                    let accepted =
                        format!("the {first} has this address already; give another port");
                    return Err(self.quoted(&field, address, accepted));
                }
            }
        }
        Ok(())
    }

    fn via(&self, node: &NodeConfig, nodes: &[NodeConfig]) -> CheckResult<()> {
        for (peer, address) in &node.via {
            let field = format!("via of node {}", node.name);
            self.replica_id(&field, peer, &NodeNames(nodes))?;
            if *peer == node.name {
                return Err(self.quoted(&field, peer, "a node does not dial itself; leave it out"));
            }
            self.address(&format!("{field} to {peer}"), address)?;
        }
        Ok(())
    }

    fn address(&self, field: &str, address: &str) -> CheckResult<()> {
        let parts = address.rsplit_once(':');
        let port = parts.and_then(|(_, port)| port.parse::<u16>().ok());
        let host = parts.is_some_and(|(host, _)| !host.is_empty());
        if host && port.is_some_and(|port| port > 0) {
            return Ok(());
        }
        let accepted = "a host and a port from 1 to 65535 are required, as in \"127.0.0.1:7001\"";
        Err(self.quoted(field, address, accepted))
    }

    fn duration(
        &self,
        field: &str,
        found: Option<u64>,
        default: Duration,
    ) -> CheckResult<Duration> {
        let ms = found.map_or(Ok(default.as_millis() as u64), |ms| {
            self.ms(field, ms, default)
        });
        Ok(Duration::from_millis(ms?))
    }

    fn ms(&self, field: &str, ms: u64, default: Duration) -> CheckResult<u64> {
        if (1..=DURATION_MS_MAX).contains(&ms) {
            return Ok(ms);
        }
        let default = default.as_millis();
        let accepted =
            format!("accepted are 1 to {DURATION_MS_MAX} milliseconds; the default is {default}");
        Err(self.refuse(field, ms, accepted))
    }

    fn params(&self, lease: &LeaseSection) -> CheckResult<LeaseParams> {
        let default = LeaseParams::for_sites();
        for (field, found, default) in [
            ("lease.renew_ms", lease.renew_ms, default.renew),
            ("lease.t_lease_ms", lease.t_lease_ms, default.t_lease),
            ("lease.t_guard_ms", lease.t_guard_ms, default.t_guard),
            ("lease.grace_ms", lease.grace_ms, default.t_grace),
        ] {
            self.ms(field, found, default)?;
        }
        self.rho(lease.rho)?;
        let params = lease.params();
        params
            .check()
            .map_err(|error| self.inconsistent(lease, error))?;
        Ok(params)
    }

    /// Returns the error for lease durations that contradict each other.
    fn inconsistent(&self, lease: &LeaseSection, error: ParamsError) -> ConfigError {
        let renew = format!("it must be above lease.renew_ms ({}), or", lease.renew_ms);
        match error {
            ParamsError::GraceBelowRenewal => self.refuse(
                "lease.grace_ms",
                lease.grace_ms,
                format!("{renew} replicas that live are suspected"),
            ),
            ParamsError::LapsesBetweenRenewals => self.refuse(
                "lease.t_lease_ms",
                lease.t_lease_ms,
                format!(
                    "{renew} every lease lapses before it is renewed; four times as long is usual"
                ),
            ),
            other => self.refuse("[lease]", "inconsistent", other.to_string()),
        }
    }

    fn rho(&self, rho: f64) -> CheckResult<()> {
        let max = f64::from(ClockBound::RHO_PPM_MAX) / 1e6;
        if (0.0..=max).contains(&rho) {
            return Ok(());
        }
        let accepted = format!(
            "accepted are 0 to {max}: by how much clock rates may differ, 0.001 if in doubt"
        );
        Err(self.refuse("lease.rho", rho, accepted))
    }

    fn timing(&self, timing: &raw::Timing, lease: &LeaseSection) -> CheckResult<Timing> {
        let default = Timing::default();
        let field =
            |name: &str, found, default| self.duration(&format!("timing.{name}"), found, default);
        let (election_ms, retransmit_ms) = (timing.election_timeout_ms, timing.retransmit_ms);
        self.ms(
            "lease.reconfigure_ms",
            lease.reconfigure_ms,
            default.reconfigure,
        )?;
        let checked = Timing {
            heartbeat: field("heartbeat_ms", timing.heartbeat_ms, default.heartbeat)?,
            election_timeout: field("election_timeout_ms", election_ms, default.election_timeout)?,
            retransmit: field("retransmit_ms", retransmit_ms, default.retransmit)?,
            ping: field("ping_ms", timing.ping_ms, default.ping)?,
            checkpoint: field("checkpoint_ms", timing.checkpoint_ms, default.checkpoint)?,
            reconfigure: lease.reconfigure(),
            ..default
        };
        if checked.election_timeout < checked.heartbeat * 2 {
            let accepted = format!(
                "it must be at least twice timing.heartbeat_ms ({}), or one lost heartbeat deposes a leader",
                checked.heartbeat.as_millis()
            );
            let found = checked.election_timeout.as_millis();
            return Err(self.refuse("timing.election_timeout_ms", found, accepted));
        }
        Ok(checked)
    }
}
