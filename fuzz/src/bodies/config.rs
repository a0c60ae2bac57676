//! Files that operators write: the configuration of a cluster, a topology, and an experiment with
//! overrides. This module also has the bodies for the files in which a standing cluster and a
//! campaign of simulated seeds store their state.

use std::path::Path;

use leasehold_geo_deploy::experiment::Experiment;
use leasehold_geo_deploy::standing::ClusterState;
use leasehold_geo_deploy::topology::Topology;
use leasehold_kernel::campaign::{CampaignState, Sums as _};
use leasehold_leases::ReplicaId;
use leasehold_node::ClusterConfig;
use leasehold_sim::scenario::Choices;
use leasehold_sim::tally::CampaignTally;

use crate::memory;

/// Maximum memory for each byte of a TOML file, in bytes. The worst case is a document of
/// one-letter keys without values: every few bytes become a table entry, and each entry contains
/// its position in the text. Errors also quote the text.
const TOML_PER_BYTE: usize = 512;
/// Maximum memory for each byte of a JSON file, in bytes. The words of the file are stored, and
/// errors quote them.
const JSON_PER_BYTE: usize = 64;

fn text(input: &[u8]) -> String {
    String::from_utf8_lossy(input).into_owned()
}

/// Decodes the configuration of a cluster, and derives the settings of each node from this
/// configuration.
pub fn cluster_config(input: &[u8]) {
    let text = text(input);
    let file = Path::new("/etc/leasehold/cluster.toml");
    let parse = || ClusterConfig::parse(&text, file);
    let config = match memory::within(text.len(), TOML_PER_BYTE, parse) {
        Ok(config) => config,
        Err(error) => return assert!(error.to_string().contains("cluster.toml")),
    };
    assert_eq!(config.params.check(), Ok(()));
    assert!(
        config
            .leader
            .is_none_or(|id| id.index() < config.nodes.len())
    );
    for (index, node) in config.nodes.iter().enumerate() {
        let me = ReplicaId(index as u8);
        assert_eq!(config.replica(&node.name), Some(me));
        assert_eq!(config.settings(me).n, config.nodes.len());
    }
}

/// Decodes a topology. Asserts that the topology is the same after it is written to a file and read
/// again.
pub fn topology(input: &[u8]) {
    let text = text(input);
    let parse = |text: &str| Topology::parse("fuzz.toml", text);
    let Ok(topology) = memory::within(text.len(), TOML_PER_BYTE, || parse(&text)) else {
        return;
    };
    let written = toml::to_string(&topology).expect("a topology can be written");
    assert_eq!(parse(&written).ok().as_ref(), Some(&topology), "{written}");
    for site in 0..topology.len() {
        assert_eq!(topology.nearest_to(site).len(), topology.len() - 1);
        assert_eq!(topology.index(topology.names()[site]), Some(site));
    }
}

/// Decodes an experiment with overrides. The input contains the experiment, a line of `---`, and
/// then one override in each line.
pub fn experiment(input: &[u8]) {
    let text = text(input);
    let (text, sets) = text.split_once("\n---\n").unwrap_or((&text, ""));
    let parse = |text: &str| Experiment::parse("fuzz.toml", text);
    let Ok(experiment) = memory::within(text.len(), TOML_PER_BYTE, || parse(text)) else {
        return;
    };
    assert_repeatable(&experiment);
    let sets: Vec<String> = sets
        .lines()
        .filter(|set| !names_a_file(set))
        .map(String::from)
        .collect();
    if let Ok(changed) = experiment.with(&sets) {
        assert_repeatable(&changed);
    }
}

fn names_a_file(set: &str) -> bool {
    let key = set.split_once('=').map_or(set, |(key, _)| key);
    key.trim() == "topology"
}

/// Asserts that an experiment can be repeated from its description in a report, and that the
/// experiment can be set up.
fn assert_repeatable(experiment: &Experiment) {
    let written = experiment.to_toml();
    let again = Experiment::parse("again.toml", &written);
    let again = again.unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(&again, experiment, "{written}");
    assert!(experiment.leader_index() < experiment.topology.len());
    for plan in &experiment.strategies {
        let starts = plan.range_starts(experiment.workload.keys);
        assert!(starts.iter().all(|(_, holders)| !holders.is_empty()));
    }
}

/// Decodes the state that a standing cluster stores about itself.
pub fn cluster_state(input: &[u8]) {
    let parse = || serde_json::from_slice::<ClusterState>(input);
    let Ok(state) = memory::within(input.len(), JSON_PER_BYTE, parse) else {
        return;
    };
    let written = serde_json::to_vec(&state).expect("a state can be written");
    let again: ClusterState = serde_json::from_slice(&written).expect("what was written is read");
    assert_eq!(serde_json::to_vec(&again).ok(), Some(written));
}

/// Decodes the state of a campaign, and then adds the results of seeds to it.
pub fn campaign_state(input: &[u8]) {
    let Ok(saved) = memory::within(input.len(), JSON_PER_BYTE, || {
        CampaignState::<CampaignTally>::read(input)
    }) else {
        return;
    };
    let again = CampaignState::<CampaignTally>::read(saved.to_json().as_bytes());
    assert_eq!(again.expect("what was written is read"), saved);
    assert!(saved.check_resume(&saved).is_ok());
    let more = CampaignTally {
        seeds: 1,
        virtual_ns: u64::MAX / 4,
        ..saved.sums.clone()
    };
    let mut tally = saved.sums;
    tally.merge(&more);
    assert_eq!(saved.next + 1 - saved.from, tally.seeds);
    let _ = (tally.missing(&Choices::default()), tally.cluster_hours());
}

pub mod seeds {
    use leasehold_geo_deploy::experiment::{self, Experiment};
    use leasehold_geo_deploy::topology::Topology;
    use leasehold_kernel::campaign::CampaignState;
    use leasehold_sim::tally::CampaignTally;

    const CLUSTER: &str = r#"
cluster = "demo"
data = "data"
leader = "CA"
durability = "async"
accept_replies = "all"
batch_max = 100
[lease]
strategy = "STRATEGY"
t_lease_ms = 2000
t_guard_ms = 2000
renew_ms = 500
reconfigure_ms = 10000
grace_ms = 5000
rho = 0.001
[timing]
heartbeat_ms = 50
election_timeout_ms = 500
retransmit_ms = 250
ping_ms = 1000
checkpoint_ms = 10000
[[node]]
name = "CA"
client = "127.0.0.1:7001"
peer = "[::1]:7101"
via = { JP = "127.0.0.1:9001" }
[[node]]
name = "JP"
client = "localhost:7002"
peer = "127.0.0.1:7102"
"#;

    pub fn cluster_config() -> Vec<Vec<u8>> {
        let fixed = r#"fixed"
range = [{ from = "", holders = ["CA"] }, { from = "m", holders = ["CA", "JP"] }]
unused = ""#;
        let split = r#"leader"
range = [{ from = "a", to = "c", strategy = "all" }, { from = "m", cost = { spare = 1 } }]
unused = ""#;
        let strategies = ["none", "leader", "all", "quorum\"\nunlisted = \"nearest"];
        let least = "cluster='c'\ndata='d'\n[security]\ninsecure=true\n[[node]]\nname='A'\nclient='a:1'\npeer='a:2'\n";
        let with = |strategy| CLUSTER.replace("STRATEGY", strategy);
        let ranges = [fixed, split].map(|range| with(range).replace("unused = \"\"\n", ""));
        let mut texts: Vec<String> = strategies.map(with).into();
        texts.extend(ranges);
        texts.push(least.to_owned());
        texts.into_iter().map(String::into_bytes).collect()
    }

    pub fn topology() -> Vec<Vec<u8>> {
        let paper = toml::to_string(&Topology::paper()).expect("a topology can be written");
        let texts = [
            paper.as_str(),
            "sites=['A']",
            "sites=['A','B']\nlocal_rtt_ms=0.5\n[rtt_ms]\nB={A=7}",
            "sites=['A','B']\n[rtt_ms]\nA={B=7,A=0.4}\nB={A=8}",
            "sites=['A','B','A']\n[rtt_ms]\nA={B=nan,C=-1}",
            "sites=['A','B','C']\n[rtt_ms]\nA={B=1e9}",
        ];
        texts.map(Vec::from).into()
    }

    pub fn experiment() -> Vec<Vec<u8>> {
        let built_in = experiment::list().into_iter();
        let built_in = built_in.filter_map(|(name, _)| Experiment::find(name).ok());
        let mut texts: Vec<String> = built_in.map(|experiment| experiment.to_toml()).collect();
        let least = "name='n'\ndescription='d'\n[workload]\nkeys=10\nreads=0.5\nclients=1\n\
                     requests=2\n[[strategies]]\nlabel='L'\nstrategy='leader'\n";
        texts.push(least.to_owned());
        let sets = "keys=5\nreads=1\nlease.t_lease_ms=900\nstrategies=leader,all,none\n\
                    strategies.all.distribution=uniform\ntopology.rtt_ms.JP.CA=7\nleader=\"JP\"\n\
                    network.loss=0.1\nlocal.durability=none\nseed=9";
        texts.push(format!("{least}\n---\n{sets}"));
        texts.into_iter().map(String::into_bytes).collect()
    }

    pub fn cluster_state() -> Vec<Vec<u8>> {
        let state = r#"{"cluster": "demo", "strategy": "quorum", "leader": "CA",
            "clients": {"CA": "127.0.0.1:7001", "JP": "[::1]:7002"},
            "control": "127.0.0.1:9000", "token": "0123456789abcdef"}"#;
        vec![state.into()]
    }

    pub fn campaign_state() -> Vec<Vec<u8>> {
        let choices = [("--rate", "200"), ("--strategy", "all of them")];
        let choices = choices.map(|(flag, value)| (flag.to_owned(), value.to_owned()));
        let begun = CampaignState::<CampaignTally>::begin("0123456789abcdef", choices.into(), 7);
        let count = |name: &str| [(name.to_owned(), 12)].into();
        let tally = CampaignTally {
            seeds: 2,
            virtual_ns: 120_000_000_000,
            operations: 20_000,
            paths: count("LOCAL"),
            faults: count("crash of all"),
            oracles: count("agreement"),
            strategies: count("quorum"),
            digest: u64::MAX,
            ..CampaignTally::default()
        };
        let mut grown = begun.clone();
        (grown.next, grown.sums, grown.cpu_ms) = (9, tally, 1 << 40);
        let older = b"{\"version\": 1, \"next\": 7}".to_vec();
        vec![
            begun.to_json().into_bytes(),
            grown.to_json().into_bytes(),
            older,
        ]
    }
}
