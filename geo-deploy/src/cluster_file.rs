//! `cluster.toml`, the configuration of the replicas that this program starts. When a standing
//! cluster is started again, the file shows the settings under which the data of the cluster was
//! created.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use leasehold_node::config::LeaseSection;
use leasehold_node::store::Durability;
use serde::{Deserialize, Serialize};

use crate::backend::RunPlan;
use crate::experiment::{AcceptRepliesName, DurabilityName, TimingOverrides};
use crate::throughput::{Case, ThroughputExperiment};

/// Contents of `cluster.toml`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ClusterFile {
    pub cluster: String,
    pub leader: String,
    #[serde(with = "DurabilityName")]
    pub durability: Durability,
    #[serde(default)]
    pub accept_replies: AcceptRepliesName,
    /// Directory of the replicas' data, relative to the directory of `cluster.toml`.
    pub data: String,
    pub lease: LeaseSection,
    #[serde(default, skip_serializing_if = "TimingOverrides::is_default")]
    pub timing: TimingOverrides,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<Security>,
    pub node: Vec<Node>,
}

/// Section about the certificates by which replicas prove their identity.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Security {
    /// Directory of the replicas' certificates, relative to the directory of `cluster.toml`.
    pub certificates: String,
}

/// A replica and its addresses.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Node {
    pub name: String,
    pub client: SocketAddr,
    pub peer: SocketAddr,
    /// Addresses to which this replica connects to reach the other replicas. The key of an entry is
    /// the name of the other replica. The addresses belong to the emulated WAN.
    #[serde(default)]
    pub via: BTreeMap<String, SocketAddr>,
}

impl ClusterFile {
    /// Creates the contents of the file for a plan. The cluster has the name `cluster` and consists
    /// of the replicas in `node`.
    pub fn new(plan: &RunPlan<'_>, cluster: &str, node: Vec<Node>) -> ClusterFile {
        ClusterFile {
            cluster: cluster.to_owned(),
            leader: plan.experiment.leader.clone(),
            durability: plan.experiment.local.durability,
            accept_replies: plan.accept_replies(),
            data: "data".to_owned(),
            lease: plan.lease(),
            timing: plan.experiment.timing.clone(),
            security: None,
            node,
        }
    }

    /// Creates the contents of the file for a case of a throughput experiment. The cluster is at
    /// one site.
    pub fn of_case(
        it: &ThroughputExperiment,
        case: &Case,
        cluster: &str,
        node: Vec<Node>,
    ) -> ClusterFile {
        let is = |name: &str| case.strategy == name;
        ClusterFile {
            cluster: cluster.to_owned(),
            leader: it.leader.clone(),
            durability: it.durability,
            accept_replies: AcceptRepliesName::default(),
            data: "data".to_owned(),
            lease: LeaseSection {
                strategy: Some(case.strategy.clone()),
                // Replicas refuse a setting that their strategy does not use.
                unlisted: it.lease.unlisted.filter(|_| is("quorum")),
                cost: it.lease.cost.filter(|_| is("cost")),
                ..it.lease.clone()
            },
            timing: TimingOverrides {
                checkpoint_ms: Some(it.checkpoint_ms),
                ..TimingOverrides::default()
            },
            security: None,
            node,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use leasehold_node::config::{ClusterConfig, from_toml};
    use leasehold_replica::settings::AcceptReplies;

    use super::*;
    use crate::experiment::Experiment;

    fn nodes(plan: &RunPlan<'_>) -> Vec<Node> {
        let names = plan.topology().names().into_iter().zip(0..);
        let node = |(name, site): (&str, u16)| Node {
            name: name.to_owned(),
            client: ([127, 0, 0, 1], 7001 + site).into(),
            peer: ([127, 0, 0, 1], 8001 + site).into(),
            via: BTreeMap::new(),
        };
        let mut nodes: Vec<Node> = names.map(node).collect();
        let address = ([127, 0, 0, 1], 9001).into();
        nodes[0].via.insert("CA".to_owned(), address);
        nodes
    }

    #[test]
    fn replicas_are_told_what_the_experiment_says() {
        let sets = [
            "lease.t_lease_ms=800",
            "lease.rho=0.002",
            "accept_replies=all",
        ];
        let sets = sets.map(String::from);
        for unlisted in ["nearest", "leader"] {
            let unlisted = format!("lease.unlisted={unlisted}");
            let experiment = Experiment::find("fig6").unwrap();
            let experiment = experiment.with(&[&sets[..], &[unlisted]].concat()).unwrap();
            for strategy in &experiment.strategies {
                let plan = RunPlan::new(&experiment, strategy);
                let file = ClusterFile::new(&plan, "demo", nodes(&plan));
                let text = toml::to_string(&file).unwrap();
                let read = ClusterConfig::parse(&text, Path::new("cluster.toml")).unwrap();
                assert_eq!(read.cluster, "demo");
                assert_eq!(read.strategies, plan.strategies().unwrap(), "{text}");
                assert_eq!(read.params, plan.params());
                assert_eq!(read.accept_replies, AcceptReplies::All);
                assert_eq!(read.leader.unwrap().index(), experiment.leader_index());
                assert_eq!(read.nodes[0].via["CA"], "127.0.0.1:9001");
                assert_eq!(read.nodes[4].peer, "127.0.0.1:8005");
            }
        }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let experiment = Experiment::find("fig6").unwrap();
        let strategy = &experiment.strategies[1];
        let plan = RunPlan::new(&experiment, strategy);
        let file = ClusterFile::new(&plan, "demo", nodes(&plan));
        let text = toml::to_string(&file).unwrap();
        let read: ClusterFile = from_toml(&text).unwrap();
        assert_eq!(read.lease, plan.lease());
        assert_eq!(read.lease.strategy.as_deref(), Some("fixed"));
        assert_eq!(read.lease.range[1].holders, ["CA", "VA", "IRL"]);
        assert_eq!(toml::to_string(&read).unwrap(), text);
        let unknown = text.replace("renew_ms", "renew_s");
        let error = from_toml::<ClusterFile>(&unknown).unwrap_err().to_string();
        assert!(error.contains("renew_s"), "{error}");
    }
}
