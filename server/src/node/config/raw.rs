//! The configuration as it is written.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cluster {
    pub cluster: String,
    pub leader: Option<String>,
    pub durability: Option<String>,
    pub data: String,
    #[serde(default)]
    pub lease: Lease,
    #[serde(default)]
    pub timing: Timing,
    pub accept_replies: Option<String>,
    pub batch_max: Option<u64>,
    #[serde(default)]
    pub node: Vec<Node>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lease {
    pub strategy: Option<String>,
    pub unlisted: Option<String>,
    pub t_lease_ms: Option<u64>,
    pub t_guard_ms: Option<u64>,
    pub renew_ms: Option<u64>,
    pub reconfigure_ms: Option<u64>,
    pub grace_ms: Option<u64>,
    pub rho: Option<f64>,
    #[serde(default)]
    pub range: Vec<Range>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Range {
    pub from: String,
    pub holders: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Timing {
    pub heartbeat_ms: Option<u64>,
    pub election_timeout_ms: Option<u64>,
    pub retransmit_ms: Option<u64>,
    pub ping_ms: Option<u64>,
    pub checkpoint_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub name: String,
    pub client: String,
    pub peer: String,
    #[serde(default)]
    pub via: BTreeMap<String, String>,
}
