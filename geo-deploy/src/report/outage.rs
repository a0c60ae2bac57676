//! The outages that clients observed because of faults.
//!
//! Operations are divided into groups by site, by kind (read or write), and by whether a failed
//! site held a lease on the operation's key when the fault began. For each such group:
//!
//! - The *window* of a fault begins with the fault. The window ends when the next fault begins (at
//!   a later time), or with the run's last operation.
//! - An operation is *due* from its start (in an open loop, the intended start) to its end. It ends
//!   when it is answered, fails or times out.
//! - The *outage* is the longest time within the window in which no operation of the group
//!   succeeded although one was due. It begins when the first operation becomes due, or with the
//!   previous success if another operation was due then. It ends with the next success. A failed
//!   operation does not end the outage: it continues until an operation succeeds, or until the last
//!   operation of the window has ended.
//! - The *longest wait* is the longest time that one operation was due. All operations that were
//!   due at some time in the window are included, successful or not. In a closed loop, the longest
//!   wait shows that one key stalled. The outage does not show this if other keys of the group were
//!   served.
//!
//! Writes that were in flight when a fault began, and had been sent to the failed replica, belong
//! to the group of leased keys.
//!
//! - The *medians* before and after the fault are over all reads or all writes of the site, for all
//!   keys. Demand determines the holders even during a fault, so the keys of a group may have
//!   different holders before and after the fault.
//!
//! A bound is kept if neither the outage nor the longest wait exceeds the bound.

mod group;
mod rows;

use leasehold_ycsb::sample::{OpOutcome, Sample};

use super::digest::Class;
use crate::run::bound::SiteSet;
pub(super) use group::groups;
pub use group::{LongestOutage, OutageGroup};
pub(super) use rows::table;

use super::{ExperimentReport, FaultSpan, OutageBound, StrategyRun};

/// Effect of a fault on one group of operations. A group contains the reads or the writes of one
/// site. Operations on keys that were leased to a failed site are in a separate group.
#[derive(Clone, Debug, PartialEq)]
pub struct Outage {
    /// Sequence number of the run, from 1; `None` if there is only one run.
    pub run: Option<usize>,
    /// Sequence number of the fault in its run, from 1.
    pub fault: usize,
    /// Description of the fault.
    pub text: String,
    /// Name of the clients' site.
    pub site: String,
    /// `reads` or `writes`.
    pub operation: &'static str,
    /// Whether a failed site held a lease on the keys; `None` if that is not known.
    pub leased: Option<bool>,
    /// Whether the clients' own site is one of the failed sites.
    pub at_failed_site: bool,
    /// Number of operations of the group that were due at some time during the fault's window.
    pub due: u64,
    /// Number of due operations that failed.
    pub failed: u64,
    /// Number of due operations that timed out.
    pub timed_out: u64,
    /// Length of the outage, in s: the longest time during which no operation succeeded, while at
    /// least one operation was due.
    pub outage_s: f64,
    /// Longest wait, in s: the longest time for which a single operation was due.
    pub longest_s: f64,
    /// Upper bound on both the outage and the longest wait, in s; `None` if no bound is guaranteed.
    pub bound_s: Option<f64>,
    /// Median latency, in ms, of the site's reads or writes before the fault, over all keys.
    /// Includes operations that started after the previous fault. If there was no previous fault,
    /// includes operations from the beginning of the run.
    pub median_before_ms: Option<f64>,
    /// Median latency, in ms, of the site's reads or writes after the fault, over all keys.
    /// Includes operations that started in the last third of the fault's window.
    pub median_after_ms: Option<f64>,
}

impl Outage {
    /// Returns true if the outage and the longest wait are within the bound; `None` if no bound is
    /// guaranteed.
    pub fn within_bound(&self) -> Option<bool> {
        Some(self.waited_s() <= self.bound_s?)
    }

    /// Returns the longer of the outage and the longest wait, in s.
    pub(super) fn waited_s(&self) -> f64 {
        self.outage_s.max(self.longest_s)
    }

    /// Describes the group of operations.
    pub(super) fn group(&self) -> String {
        in_words(self.operation, self.leased)
    }
}

/// Describes a group of operations.
fn in_words(operation: &str, leased: Option<bool>) -> String {
    match leased {
        None => operation.to_owned(),
        Some(true) => format!("{operation}, leased to it"),
        Some(false) => format!("{operation}, other keys"),
    }
}

/// Returns the outages of a run, by fault, site and group. Groups in which no operation was due are
/// omitted.
pub(super) fn outages(report: &ExperimentReport, run: &StrategyRun) -> Vec<Outage> {
    let names = report.topology.names();
    let by_site = by_site(run, names.len());
    let mut all = Vec::new();
    for (index, fault) in run.faults.iter().enumerate() {
        let window = FaultWindow::of(run, index);
        let (repeat, number) = numbered(run, index);
        for (place, ops) in by_site.iter().enumerate() {
            let (site, class) = (place / 2, Class::BOTH[place % 2]);
            let bound = fault.bounds.get(site);
            let (median_before_ms, median_after_ms) = window.medians(ops);
            for (leased, ops) in by_lease(fault, site, class, ops) {
                let found = window.judge(&ops).map(|seen| Outage {
                    run: repeat,
                    fault: number,
                    text: fault.text.clone(),
                    site: names[site].to_owned(),
                    operation: class.name(),
                    leased,
                    at_failed_site: fault.sites.contains(site),
                    bound_s: bound.and_then(|bound| promised(bound, class, leased)),
                    median_before_ms,
                    median_after_ms,
                    ..seen
                });
                all.extend(found);
            }
        }
    }
    all
}

/// Returns the sequence number of the run in which a fault began, and the sequence number of the
/// fault in that run. The number of the run is `None` if there is only one run.
fn numbered(run: &StrategyRun, index: usize) -> (Option<usize>, usize) {
    let repeat = |fault: &FaultSpan| run.repeat_at(fault.at_s);
    let of_run = repeat(&run.faults[index]);
    let before = run.faults[..index].iter();
    let same = before.filter(|fault| repeat(fault) == of_run).count();
    (of_run, same + 1)
}

/// Returns one list of operations for each site and class. The order of the lists is: reads of the
/// first site, writes of the first site, reads of the second site, and so on. Each operation is
/// paired with the holders of a lease on its key.
fn by_site(run: &StrategyRun, sites: usize) -> Vec<Vec<(DueOperation, Option<SiteSet>)>> {
    let known = run.leased_to.len() == run.samples.len();
    let mut all = vec![Vec::new(); sites * 2];
    for (index, sample) in run.samples.iter().enumerate() {
        let place =
            usize::from(sample.site) * 2 + usize::from(Class::of(sample.kind) == Class::Writes);
        if let Some(ops) = all.get_mut(place) {
            ops.push((
                DueOperation::of(sample),
                known.then(|| run.leased_to[index]),
            ));
        }
    }
    all
}

/// Splits the operations of a site and class into three groups:
/// - operations on keys that were leased to a failed site,
/// - other operations,
/// - operations for which the holders are not known.
///
/// The first group also contains writes that were in flight through a failed replica, because the
/// client sends such a write again. A leader that receives a write twice reports the result only
/// after it has executed all earlier slots. Some of these slots may be blocked.
fn by_lease(
    fault: &FaultSpan,
    site: usize,
    class: Class,
    ops: &[(DueOperation, Option<SiteSet>)],
) -> [(Option<bool>, Vec<DueOperation>); 3] {
    let at_ns = (fault.at_s * 1e9) as u64;
    let through_it = class == Class::Writes && fault.sites.contains(site);
    let sent_again = |op: &DueOperation| through_it && op.start < at_ns && op.end > at_ns;
    [Some(true), Some(false), None].map(|wanted| {
        let leased = |op: &DueOperation, held: Option<SiteSet>| {
            held.map(|held| held.intersects(fault.sites) || sent_again(op))
        };
        let meant = ops.iter().filter(|(op, held)| leased(op, *held) == wanted);
        (wanted, meant.map(|(op, _)| *op).collect())
    })
}

/// Returns the bound that is guaranteed for a group. If it is not known whether the keys were
/// leased, returns the greater of the two bounds.
fn promised(bound: &OutageBound, class: Class, leased: Option<bool>) -> Option<f64> {
    let (held, other) = match class {
        Class::Reads => (bound.leased_reads_s, bound.other_reads_s),
        Class::Writes => (bound.leased_writes_s, bound.other_writes_s),
    };
    match leased {
        Some(true) => held,
        Some(false) => other,
        None => Some(held?.max(other?)),
    }
}

/// Interval in which an operation was due, in ns since the run began.
#[derive(Clone, Copy, Debug)]
struct DueOperation {
    start: u64,
    end: u64,
    how: OpOutcome,
}

impl DueOperation {
    fn of(sample: &Sample) -> DueOperation {
        DueOperation {
            start: sample.start_ns,
            // At least 1 ns, so that no operation ends before it starts.
            end: sample.start_ns.saturating_add(sample.latency_ns.max(1)),
            how: sample.end,
        }
    }

    fn latency(&self) -> u64 {
        self.end - self.start
    }
}

/// Window of a fault. Times are in ns since the run began.
struct FaultWindow {
    previous: u64,
    start: u64,
    end: u64,
}

impl FaultWindow {
    fn of(run: &StrategyRun, index: usize) -> FaultWindow {
        let ns = |s: f64| (s * 1e9) as u64;
        let at = run.faults[index].at_s;
        let others = || run.faults.iter().map(|fault| fault.at_s);
        let previous = others().filter(|&other| other < at).fold(0.0, f64::max);
        let next = others()
            .filter(|&other| other > at)
            .fold(f64::INFINITY, f64::min);
        let last = run
            .samples
            .iter()
            .map(|sample| DueOperation::of(sample).end)
            .max();
        FaultWindow {
            previous: ns(previous),
            start: ns(at),
            end: last.unwrap_or(0).min(ns(next)).max(ns(at)),
        }
    }

    /// Returns the observed outage; `None` if no operation was due. The caller must then set the
    /// medians, and the fields that describe the group.
    fn judge(&self, ops: &[DueOperation]) -> Option<Outage> {
        let in_time = |op: &&DueOperation| op.end > self.start && op.start < self.end;
        let due: Vec<DueOperation> = ops.iter().filter(in_time).copied().collect();
        if due.is_empty() {
            return None;
        }
        let ended = |how: OpOutcome| due.iter().filter(|op| op.how == how).count() as u64;
        let seconds = |ns: u64| ns as f64 / 1e9;
        Some(Outage {
            run: None,
            fault: 0,
            text: String::new(),
            site: String::new(),
            operation: "",
            leased: None,
            at_failed_site: false,
            due: due.len() as u64,
            failed: ended(OpOutcome::Failed),
            timed_out: ended(OpOutcome::TimedOut),
            outage_s: seconds(self.longest_without_success(&due)),
            longest_s: seconds(due.iter().map(DueOperation::latency).max().unwrap_or(0)),
            bound_s: None,
            median_before_ms: None,
            median_after_ms: None,
        })
    }

    /// Returns two median latencies in ms: before the fault, and in the last third of the window.
    fn medians(&self, ops: &[(DueOperation, Option<SiteSet>)]) -> (Option<f64>, Option<f64>) {
        let third = self.end - (self.end - self.start) / 3;
        let before = median_ms(ops, self.previous, self.start);
        (before, median_ms(ops, third, self.end))
    }

    /// Returns the length of the outage, in ns: the longest time during which no operation
    /// succeeded, while at least one operation was due.
    fn longest_without_success(&self, due: &[DueOperation]) -> u64 {
        // At equal times, ends come before starts: a client that sends its next request immediately
        // was not waiting in between.
        let mut moments: Vec<(u64, bool, bool)> = Vec::with_capacity(due.len() * 2);
        for op in due {
            moments.push((op.start.max(self.start), true, false));
            moments.push((op.end, false, op.how == OpOutcome::Ok));
        }
        moments.sort_unstable();
        let (mut waiting, mut since, mut longest) = (0_u64, None, 0);
        let mut last = self.start;
        for (at, starts, success) in moments {
            let at = at.min(self.end);
            last = at;
            if starts {
                waiting += 1;
                since = since.or(Some(at));
                continue;
            }
            waiting = waiting.saturating_sub(1);
            if success {
                longest = longest.max(at - since.unwrap_or(at));
                since = (waiting > 0).then_some(at);
            }
        }
        since.map_or(longest, |since| longest.max(last - since))
    }
}

/// Returns the median latency in ms of the answered operations that started at `from` or later and
/// before `to`.
fn median_ms(ops: &[(DueOperation, Option<SiteSet>)], from: u64, to: u64) -> Option<f64> {
    let meant = ops
        .iter()
        .map(|(op, _)| op)
        .filter(|op| op.how == OpOutcome::Ok && (from..to).contains(&op.start));
    let mut latencies: Vec<u64> = meant.map(DueOperation::latency).collect();
    latencies.sort_unstable();
    let middle = latencies.len().checked_sub(1)? / 2;
    Some(latencies[middle] as f64 / 1e6)
}

#[cfg(test)]
mod tests;
