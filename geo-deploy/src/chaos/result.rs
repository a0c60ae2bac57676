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
    /// Number of the round.
    pub number: u32,
    /// Its strategy.
    pub strategy: String,
    /// Its seed.
    pub seed: u64,
    /// Time for which clients were at work, in seconds.
    pub seconds: f64,
    /// Faults that began, by what they did.
    pub faults: BTreeMap<String, u64>,
    /// Faults of the schedule that could not begin.
    pub skipped: u64,
    /// Operations by kind.
    pub operations: BTreeMap<&'static str, OutcomeCounts>,
    /// Answers by the way they were served.
    pub paths: BTreeMap<&'static str, u64>,
    /// The longest time for which the clients of a site had no answer: those that stay with
    /// its replica.
    pub outage: SiteOutage,
    /// The same for clients that roam.
    pub outage_roaming: SiteOutage,
    /// The most memory that a replica took, in bytes; 0 where this cannot be seen.
    pub memory_bytes: u64,
    /// The verdict on what clients saw.
    pub judged: Judgement,
    /// Forbidden actions of replicas.
    pub broken: Vec<String>,
    /// Where everything about a violation is kept.
    pub kept: Option<PathBuf>,
}

/// A time without an answer at one site.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SiteOutage {
    /// Where.
    pub site: String,
    /// When it began, in seconds since the round began.
    pub from_s: f64,
    /// Duration, in seconds.
    pub seconds: f64,
}

impl RoundResult {
    /// All that is wrong with it.
    pub fn violations(&self) -> impl Iterator<Item = &String> {
        self.judged.violations.iter().chain(&self.broken)
    }

    /// Whether something is.
    pub fn is_violation(&self) -> bool {
        self.violations().next().is_some()
    }
}

impl SiteOutage {
    /// The longest of a round, for clients that stay with a replica or that roam.
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
