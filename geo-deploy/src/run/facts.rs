//! Facts that a backend reports of one run: operations, events, faults.
//!
//! All times of a run count from the same moment, *the beginning of the run*: starts of
//! samples, events, faults and the measured interval.

use std::collections::BTreeMap;

use leasehold_ycsb::sample::Sample;
use serde::{Deserialize, Serialize};

use super::bound::SiteSet;
use crate::wan::NetworkReport;

/// Verdict on whether a run's history was linearizable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryVerdict {
    /// Checked, and it is; with what was checked.
    Yes(String),
    /// Checked, and it is not; with the counterexample.
    No(String),
    /// Not checked; with the reason.
    Unchecked(String),
}

impl HistoryVerdict {
    /// `yes`, `no` or `unchecked`.
    pub fn word(&self) -> &'static str {
        match self {
            HistoryVerdict::Yes(_) => "yes",
            HistoryVerdict::No(_) => "no",
            HistoryVerdict::Unchecked(_) => "unchecked",
        }
    }

    /// Returns the result of the check: its extent and its findings, or the reason why there was
    /// none.
    pub fn text(&self) -> &str {
        match self {
            HistoryVerdict::Yes(text)
            | HistoryVerdict::No(text)
            | HistoryVerdict::Unchecked(text) => text,
        }
    }
}

/// Something that happened during a run: an election, a configuration, the end of a
/// lease. Faults are in [`StrategyRun::faults`], and become events from there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEvent {
    /// The run's label; `None` if it concerns all.
    pub run: Option<String>,
    /// Seconds since the run began (virtual time in the simulator).
    pub at_s: f64,
    /// One of the constants below, or another word.
    pub kind: String,
    /// The sites concerned; none if it concerns all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<String>,
    /// In words.
    pub text: String,
}

impl RunEvent {
    /// A fault begins. Made by [`StrategyRun::fault_events`].
    pub const FAULT: &str = "fault";
    /// A fault ends. Made by [`StrategyRun::fault_events`].
    pub const FAULT_END: &str = "fault-end";
    /// A replica campaigns or leads.
    pub const ELECTION: &str = "election";
    /// A new lease configuration: frequent, and no disturbance.
    pub const CONFIGURATION: &str = "configuration";
    /// The leases of a replica that failed have run out, or it gave them up.
    pub const LEASE_END: &str = "lease-end";
    /// Two sites exchange their popular keys.
    pub const SWAP: &str = "swap";
    /// The strategy is changed.
    pub const SWITCH: &str = "switch";
    /// The cluster is ready for clients.
    pub const READY: &str = "ready";
}

/// The part of a run in which operations count, the same for all sites, in seconds since
/// the run began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredInterval {
    /// Its beginning: operations that start earlier warm up.
    pub start_s: f64,
    /// Its end: operations that start later are not counted.
    pub end_s: f64,
}

/// A fault of a run, as it came to pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultSpan {
    /// When it began, in seconds since the run began.
    pub at_s: f64,
    /// When it ended, likewise; `None` if it lasted to the end of the run.
    pub until_s: Option<f64>,
    /// The sites at which replicas or links failed, by index in the topology.
    pub sites: SiteSet,
    /// The action and its targets, as "kill OR". Faults of the same text are counted together.
    pub text: String,
    /// Bounds promised to clients at each site, by the site's index; empty if there are none.
    pub bounds: Vec<OutageBound>,
}

/// The longest outage, in seconds, that clients of one site may see because of a fault;
/// `None` where nothing is promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutageBound {
    /// Reads of keys that a replica of a failed site held a lease on.
    pub leased_reads_s: Option<f64>,
    /// Writes of such keys.
    pub leased_writes_s: Option<f64>,
    /// Reads of other keys.
    pub other_reads_s: Option<f64>,
    /// Writes of other keys.
    pub other_writes_s: Option<f64>,
}

/// One strategy, measured.
#[derive(Clone, Debug)]
pub struct StrategyRun {
    /// Label in tables and plots.
    pub label: String,
    /// The strategy's name.
    pub strategy: String,
    /// The workload in words.
    pub workload: String,
    /// Operations of the whole run, warm-up included: what `counters` are of.
    pub issued: u64,
    /// Every operation that started in the measured interval, failed ones included.
    pub samples: Vec<Sample>,
    /// For each sample, the sites that held a lease on its key when the last fault before
    /// its end began, or the first fault after. Empty if that is not known.
    pub leased_to: Vec<SiteSet>,
    /// First keys of the parts of the key space that some strategy of the experiment treats
    /// apart; fewer than two if there are none.
    pub parts: Vec<u64>,
    /// For each sample, its key's part. Empty if there is only one.
    pub part_of: Vec<u8>,
    /// Local reads that changes of strategy should not have touched, in order of time.
    pub switches: Vec<SwitchReads>,
    /// The interval in which operations are counted; `None` if the backend has none.
    pub measured: Option<MeasuredInterval>,
    /// If it was run several times: the measured interval of each run, as they follow each
    /// other. Empty if it was run once.
    pub repeats: Vec<MeasuredInterval>,
    /// Faults that were injected into the cluster, in order of time.
    pub faults: Vec<FaultSpan>,
    /// Duration of the run, in s, warm-up included.
    pub wall_s: f64,
    /// Duration of the run in virtual time, in s.
    pub virtual_s: Option<f64>,
    /// Verdict on whether its history was linearizable.
    pub linearizable: HistoryVerdict,
    /// Per site, the share of reads (0 to 1) that perfect bookkeeping would have served locally.
    pub bookkeeping_local: Option<Vec<f64>>,
    /// Per site, the share of writes (0 to 1) that the same bookkeeping leaves at their minimum.
    pub bookkeeping_minimum: Option<Vec<f64>>,
    /// Notes for the reader of this run.
    pub notes: Vec<String>,
    /// Counters of the replicas, summed.
    pub counters: BTreeMap<String, u64>,
    /// Median round trips as probes found them in the measured interval, in ms.
    pub measured_rtt_ms: Option<Vec<Vec<f64>>>,
    /// Network as probes found it, compared with the one asked for.
    pub network: Option<NetworkReport>,
}

impl StrategyRun {
    /// The number, from 1, of the run to which this time belongs, if there are several.
    pub fn repeat_at(&self, at_s: f64) -> Option<usize> {
        let begun = self.repeats.partition_point(|one| one.start_s <= at_s);
        (begun > 0).then_some(begun)
    }

    /// Returns the run with this number alone, from 1, of several runs; its times stay as they are.
    ///
    /// # Panics
    /// If there is no such run.
    pub(crate) fn only(&self, number: usize) -> StrategyRun {
        let at = |sample: &Sample| self.repeat_at(sample.start_ns as f64 / 1e9);
        let of_run = |index: &usize| at(&self.samples[*index]) == Some(number);
        let meant: Vec<usize> = (0..self.samples.len()).filter(of_run).collect();
        let known = self.leased_to.len() == self.samples.len();
        let leased_to = meant.iter().filter(|_| known);
        let faults = self.faults.iter();
        StrategyRun {
            leased_to: leased_to.map(|index| self.leased_to[*index]).collect(),
            samples: meant.iter().map(|index| self.samples[*index]).collect(),
            part_of: (meant.iter().filter_map(|index| self.part_of.get(*index)))
                .copied()
                .collect(),
            measured: Some(self.repeats[number - 1]),
            repeats: Vec::new(),
            faults: faults
                .filter(|fault| self.repeat_at(fault.at_s) == Some(number))
                .cloned()
                .collect(),
            ..self.clone()
        }
    }

    /// Beginnings and ends of faults, as events. `names` are the sites' names.
    pub fn fault_events(&self, names: &[&str]) -> Vec<RunEvent> {
        let event = |fault: &FaultSpan, kind: &str, at_s: f64, text: String| RunEvent {
            run: Some(self.label.clone()),
            at_s,
            kind: kind.to_owned(),
            sites: fault
                .sites
                .iter()
                .filter_map(|site| names.get(site))
                .map(|name| (*name).to_owned())
                .collect(),
            text,
        };
        let of = |fault: &FaultSpan| {
            let begin = event(fault, RunEvent::FAULT, fault.at_s, fault.text.clone());
            let ended = |at_s| {
                event(
                    fault,
                    RunEvent::FAULT_END,
                    at_s,
                    format!("end of {}", fault.text),
                )
            };
            [Some(begin), fault.until_s.map(ended)]
        };
        self.faults.iter().flat_map(of).flatten().collect()
    }
}

/// The one order of strategies in every table and drawing: those with fixed holders, from
/// the fewest to the most, then those that choose them. Runs of the same strategy stay in
/// order.
pub fn in_order(mut runs: Vec<StrategyRun>) -> Vec<StrategyRun> {
    let order = ["none", "leader", "all", "fixed", "quorum", "cost"];
    let place = |run: &StrategyRun| order.iter().position(|name| *name == run.strategy);
    runs.sort_by_key(|run| place(run).unwrap_or(order.len()));
    runs
}

/// Reads that a change of strategy should not have touched: of keys that the site held
/// before it and after it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SwitchReads {
    /// When it was changed, in s since the measured interval began.
    pub at_s: f64,
    /// To what.
    pub to: String,
    /// Reads of such keys in the settling time.
    pub reads: u64,
    /// Number of these reads that were not local.
    pub lost: u64,
}
