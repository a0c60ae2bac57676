//! The configuration as it is written in the file, before any check.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::lease::LeaseSection;
use super::limits::LimitsSection;
use super::security::SecuritySection;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cluster {
    pub cluster: String,
    pub leader: Option<String>,
    pub durability: Option<String>,
    pub data: String,
    #[serde(default)]
    pub lease: LeaseSection,
    #[serde(default)]
    pub timing: Timing,
    pub accept_replies: Option<String>,
    pub batch_max: Option<u64>,
    pub demand_mb: Option<u64>,
    pub holders_kb_s: Option<u64>,
    #[serde(default)]
    pub limits: LimitsSection,
    #[serde(default)]
    pub security: SecuritySection,
    #[serde(default)]
    pub node: Vec<Node>,
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
