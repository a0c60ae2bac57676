//! Facts that a backend reports about one run: operations, events and faults.
//!
//! All times are measured from the same moment, *the beginning of the run*. This includes the times
//! of samples, events, faults and the measured interval.

use std::collections::BTreeMap;

use leasehold_ycsb::sample::Sample;
use serde::{Deserialize, Serialize};

use super::bound::SiteSet;
use crate::wan::NetworkReport;

/// Verdict on whether a run's history was linearizable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryVerdict {
    /// The history was checked and is linearizable. The text describes the check.
    Yes(String),
    /// The history was checked and is not linearizable. The text is the counterexample.
    No(String),
    /// The history was not checked. The text is the reason.
    Unchecked(String),
}

impl HistoryVerdict {
    /// Returns the verdict as one word: `yes`, `no` or `unchecked`.
    pub fn word(&self) -> &'static str {
        match self {
            HistoryVerdict::Yes(_) => "yes",
            HistoryVerdict::No(_) => "no",
            HistoryVerdict::Unchecked(_) => "unchecked",
        }
    }

    /// Returns the text of the verdict: a description of the check, a counterexample, or the reason
    /// why the history was not checked.
    pub fn text(&self) -> &str {
        match self {
            HistoryVerdict::Yes(text)
            | HistoryVerdict::No(text)
            | HistoryVerdict::Unchecked(text) => text,
        }
    }
}

/// Event during a run, such as an election, a new configuration or the end of a lease. Events of
/// faults are made by [`StrategyRun::fault_events`] from [`StrategyRun::faults`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEvent {
    /// Label of the run in which the event occurred; `None` if the event concerns all runs.
    pub run: Option<String>,
    /// Seconds since the run began (virtual time in the simulator).
    pub at_s: f64,
    /// Kind of the event: one of the constants of this type, or another word.
    pub kind: String,
    /// Names of the sites concerned; empty if the event concerns all sites.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<String>,
    /// Description of the event.
    pub text: String,
}

impl RunEvent {
    /// A fault begins. [`StrategyRun::fault_events`] makes these events.
    pub const FAULT: &str = "fault";
    /// A fault ends. [`StrategyRun::fault_events`] makes these events.
    pub const FAULT_END: &str = "fault-end";
    /// A replica starts an election, or becomes the leader.
    pub const ELECTION: &str = "election";
    /// A new lease configuration comes into force. Events of this kind are frequent, and do not
    /// disturb clients.
    pub const CONFIGURATION: &str = "configuration";
    /// The leases of a failed replica have expired, or the replica has released them.
    pub const LEASE_END: &str = "lease-end";
    /// Two sites exchange their popular keys.
    pub const SWAP: &str = "swap";
    /// The strategy is changed.
    pub const SWITCH: &str = "switch";
    /// The cluster is ready for clients.
    pub const READY: &str = "ready";
}

/// Time interval of a run in which the operations of all sites are measured. Times are in seconds
/// since the run began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredInterval {
    /// Beginning of the interval. Operations that start earlier are warm-up.
    pub start_s: f64,
    /// End of the interval. Operations that start later are not measured.
    pub end_s: f64,
}

/// Fault of a run, and the times at which the fault really began and ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultSpan {
    /// Time at which the fault began, in seconds since the run began.
    pub at_s: f64,
    /// Time at which the fault ended, in seconds since the run began; `None` if it lasted to the
    /// end of the run.
    pub until_s: Option<f64>,
    /// Sites at which replicas or links failed, by index in the topology.
    pub sites: SiteSet,
    /// Action of the fault and its targets, for example "kill OR". Reports treat faults with the
    /// same text as repetitions of one fault.
    pub text: String,
    /// Upper bounds on the outage, one for the clients of each site. The index is the site's index
    /// in the topology. The list is empty if no bound is guaranteed.
    pub bounds: Vec<OutageBound>,
}

/// Upper bounds, in seconds, on the outage that one fault causes for clients of one site. A field
/// is `None` if no bound is guaranteed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutageBound {
    /// Bound for reads of keys on which a replica of a failed site held a lease.
    pub leased_reads_s: Option<f64>,
    /// Bound for writes of keys on which a replica of a failed site held a lease.
    pub leased_writes_s: Option<f64>,
    /// Bound for reads of all other keys.
    pub other_reads_s: Option<f64>,
    /// Bound for writes of all other keys.
    pub other_writes_s: Option<f64>,
}

/// Measurements of one strategy. They come from one run, or from several runs that were joined into
/// one result.
#[derive(Clone, Debug)]
pub struct StrategyRun {
    /// Label of the run in tables and plots.
    pub label: String,
    /// The strategy's name.
    pub strategy: String,
    /// Description of the workload.
    pub workload: String,
    /// Number of operations of the whole run, warm-up included. The values in `counters` cover the
    /// same operations.
    pub issued: u64,
    /// All operations that started in the measured interval, including failed operations.
    pub samples: Vec<Sample>,
    /// For each sample, the sites that held a lease on the sample's key when a certain fault began.
    /// This fault is the last fault that began before the operation ended. If no fault had begun by
    /// then, the first fault of the run is used. The list is empty if the holders are not known.
    pub leased_to: Vec<SiteSet>,
    /// First key of each part of the key space. The first part begins at key 0. Each change of
    /// strategy applies to a key range, and one part begins at each end of this range. If the list
    /// has fewer than two entries, the key space has no parts.
    pub parts: Vec<u64>,
    /// For each sample, the part of the key space that contains the sample's key, as an index in
    /// `parts`. The list is empty if there is only one part.
    pub part_of: Vec<u8>,
    /// For each change of strategy, in order of time, the reads that the change should not have
    /// affected.
    pub switches: Vec<SwitchReads>,
    /// Interval in which operations are measured; `None` if the backend has none.
    pub measured: Option<MeasuredInterval>,
    /// Measured intervals of the repeated runs. The repeated runs were joined, one after the other,
    /// into this result. The list is empty if the strategy was run once.
    pub repeats: Vec<MeasuredInterval>,
    /// Faults that were injected into the cluster, in order of time.
    pub faults: Vec<FaultSpan>,
    /// Duration of the run on the real clock, in s, warm-up included.
    pub wall_s: f64,
    /// Duration of the run in virtual time, in s; `None` if the backend uses the real clock.
    pub virtual_s: Option<f64>,
    /// Verdict on whether the history of the run was linearizable.
    pub linearizable: HistoryVerdict,
    /// For each site, the share of reads (0 to 1) that would have been local with perfect
    /// bookkeeping; `None` if it was not computed.
    pub bookkeeping_local: Option<Vec<f64>>,
    /// For each site, the share of writes (0 to 1) that would have had their minimum latency with
    /// perfect bookkeeping; `None` if it was not computed.
    pub bookkeeping_minimum: Option<Vec<f64>>,
    /// Notes about this run for the reader of a report.
    pub notes: Vec<String>,
    /// Counters of the replicas by name, summed over all replicas.
    pub counters: BTreeMap<String, u64>,
    /// Median round trip in ms for each pair of sites, as measured by probes in the measured
    /// interval; `None` if there were no probes.
    pub measured_rtt_ms: Option<Vec<Vec<f64>>>,
    /// Comparison of the configured network with the network that the probes measured; `None` if
    /// there were no probes.
    pub network: Option<NetworkReport>,
}

impl StrategyRun {
    /// Returns the sequence number, from 1, of the repeated run to which the time `at_s` belongs.
    /// Returns `None` if the strategy was run only once, or if the time is before the first run.
    pub fn repeat_at(&self, at_s: f64) -> Option<usize> {
        let begun = self.repeats.partition_point(|one| one.start_s <= at_s);
        (begun > 0).then_some(begun)
    }

    /// Returns the part of this result that belongs to one of the repeated runs. `number` is the
    /// sequence number of this run, from 1. The times of the joined result are kept.
    ///
    /// # Panics
    /// If there is no run with this number.
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

    /// Returns the events of all faults: one event for the beginning of a fault, and one for its
    /// end. `names` are the sites' names in the order of the topology.
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

/// Sorts runs by strategy, in the order of all tables and drawings: `none`, `leader`, `all`,
/// `fixed`, `quorum`, `cost`, others. Runs of the same strategy keep their order.
pub fn in_order(mut runs: Vec<StrategyRun>) -> Vec<StrategyRun> {
    let order = ["none", "leader", "all", "fixed", "quorum", "cost"];
    let place = |run: &StrategyRun| order.iter().position(|name| *name == run.strategy);
    runs.sort_by_key(|run| place(run).unwrap_or(order.len()));
    runs
}

/// Reads that a change of strategy should not have affected. These are reads of keys that the
/// reading site held both before and after the change.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SwitchReads {
    /// Time of the change, in s since the measured interval began.
    pub at_s: f64,
    /// Strategy after the change.
    pub to: String,
    /// Number of reads in the settling time after the change. Only reads of keys that the reading
    /// site held both before and after the change are counted.
    pub reads: u64,
    /// Number of reads in `reads` that were not local.
    pub lost: u64,
}
