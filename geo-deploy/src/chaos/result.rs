//! Result of a round.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::judge::Judgement;
use super::record::{OutcomeCounts, RoundRecord};
use crate::topology::Topology;

/// Result of a round.
#[derive(Clone, Debug, Serialize)]
pub struct RoundResult {
    /// Sequence number of the round, from 1.
    pub number: u32,
    /// Strategy of the round's cluster.
    pub strategy: String,
    /// Seed of the round.
    pub seed: u64,
    /// Time for which clients sent operations, in seconds.
    pub seconds: f64,
    /// For each kind of fault, the number of faults that began.
    pub faults: BTreeMap<String, u64>,
    /// Number of faults in the schedule that could not begin.
    pub skipped: u64,
    /// Numbers of operations, by kind and outcome.
    pub operations: BTreeMap<&'static str, OutcomeCounts>,
    /// Number of answers that were served on each path.
    pub paths: BTreeMap<&'static str, u64>,
    /// Longest outage of a single site, for clients that use only the replica of their own site.
    pub outage: SiteOutage,
    /// Longest outage of a single site, for clients that also use replicas of other sites.
    pub outage_roaming: SiteOutage,
    /// Largest memory use of a replica during the round, in bytes; 0 if the system does not report
    /// memory use.
    pub memory_bytes: u64,
    /// Verdict on the history of the clients.
    pub judged: Judgement,
    /// Violations by replicas, such as excessive memory use. Each violation is described by one
    /// message.
    pub broken: Vec<String>,
    /// Directory with the evidence of a violation; `None` if there is no violation.
    pub kept: Option<PathBuf>,
}

/// Period in which the clients of one kind (roaming or not) at a site got no answer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SiteOutage {
    /// Name of the site.
    pub site: String,
    /// Beginning of the outage, in seconds since the round began.
    pub from_s: f64,
    /// Duration of the outage, in seconds.
    pub seconds: f64,
}

impl RoundResult {
    /// Returns a message for each violation of the round.
    pub fn violations(&self) -> impl Iterator<Item = &String> {
        self.judged.violations.iter().chain(&self.broken)
    }

    /// Whether the round has a violation.
    pub fn is_violation(&self) -> bool {
        self.violations().next().is_some()
    }
}

impl SiteOutage {
    /// Returns the longest outage of a single site in a round. If `roams` is true, the outage is
    /// that of the clients that also use replicas of other sites. Otherwise, the outage is that of
    /// the clients that use only the replica of their own site.
    pub fn longest(record: &RoundRecord, roams: bool, sites: &Topology) -> SiteOutage {
        let gaps = record.gaps.iter().map(|gaps| gaps[usize::from(roams)]);
        let longest = gaps
            .zip(sites.names())
            .max_by_key(|(gap, _)| gap.longest_ns);
        let outage = longest.map(|(gap, name)| SiteOutage {
            site: name.to_owned(),
            from_s: gap.from_ns as f64 / 1e9,
            seconds: gap.longest_ns as f64 / 1e9,
        });
        outage.unwrap_or_default()
    }
}
