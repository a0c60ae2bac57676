//! The outages that clients saw because of faults.
//!
//! Operations are told apart by site, by reads and writes, and by whether a failed site
//! held a lease on their key when the fault began. For each such group:
//!
//! - The *window* of a fault begins with the fault. It ends with the next fault of the
//!   run that begins later, or with the run's last operation.
//! - An operation is *due* from its start (the intended one, in an open loop) to its end.
//!   It ends when it is answered, fails or is given up.
//! - The *outage* is the longest stretch within the window in which no operation of the
//!   group succeeded although one was due. It begins when the first operation becomes due,
//!   or with the previous success if another was due then. It ends with the next success.
//!   Operations that fail do not end it: it goes on until one succeeds, or until the last
//!   one of the window has ended.
//! - The *longest wait* is the longest time that one operation was due, of all that were
//!   due at some time in the window, successful or not. In a closed loop it shows a stall
//!   of one key that other keys of the group hide from the outage.
//!
//! Writes that were in flight through a failed replica are counted with those on leased
//! keys.
//!
//! - The *medians* before and after are of all reads or all writes of the site, whatever
//!   their keys. Holders follow demand, also during a fault, so the keys of one group
//!   need not have the same holders after it as before.
//!
//! A bound is kept if neither of the two exceeds it.

mod group;
mod rows;

use leasehold_ycsb::sample::{OpOutcome, Sample};

use super::digest::Class;
use crate::run::bound::SiteSet;
pub(super) use group::groups;
pub use group::{LongestOutage, OutageGroup};
pub(super) use rows::table;

use super::{ExperimentReport, FaultSpan, OutageBound, StrategyRun};

/// Effect of a fault on one group of operations.
#[derive(Clone, Debug, PartialEq)]
pub struct Outage {
    /// The number of the run, from 1, if there are several.
    pub run: Option<usize>,
    /// The fault's number in its run, from 1.
    pub fault: usize,
    /// The fault, in words.
    pub text: String,
    /// The clients' site.
    pub site: String,
    /// `reads` or `writes`.
    pub operation: &'static str,
    /// Whether a failed site held a lease on the keys; `None` if that is not known.
    pub leased: Option<bool>,
    /// Whether the fault concerns the clients' own site.
    pub at_failed_site: bool,
    /// Operations that were due at some time in the window.
    pub due: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those that were given up.
    pub timed_out: u64,
    /// The longest time without a success although an operation was due.
    pub outage_s: f64,
    /// The longest time that one operation was due.
    pub longest_s: f64,
    /// The most that either may be; `None` if nothing is promised.
    pub bound_s: Option<f64>,
    /// Median latency of the site's reads or writes, whatever their keys, that started
    /// between the previous fault, or the beginning, and this one.
    pub median_before_ms: Option<f64>,
    /// The same median of those that started in the last third of the window.
    pub median_after_ms: Option<f64>,
}

impl Outage {
    /// Whether the bound was kept; `None` without one.
    pub fn within_bound(&self) -> Option<bool> {
        Some(self.waited_s() <= self.bound_s?)
    }

    /// The longer of the outage and the longest wait, in s.
    pub(super) fn waited_s(&self) -> f64 {
        self.outage_s.max(self.longest_s)
    }

    /// The operations in words.
    pub(super) fn group(&self) -> String {
        in_words(self.operation, self.leased)
    }
}

/// A group of operations.
fn in_words(operation: &str, leased: Option<bool>) -> String {
    match leased {
        None => operation.to_owned(),
        Some(true) => format!("{operation}, leased to it"),
        Some(false) => format!("{operation}, other keys"),
    }
}

/// The outages of a run, by fault, site and group. Groups without an operation due are
/// left out.
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

/// The number of a fault's run, if there are several, and its own in that run.
fn numbered(run: &StrategyRun, index: usize) -> (Option<usize>, usize) {
    let repeat = |fault: &FaultSpan| run.repeat_at(fault.at_s);
    let of_run = repeat(&run.faults[index]);
    let before = run.faults[..index].iter();
    let same = before.filter(|fault| repeat(fault) == of_run).count();
    (of_run, same + 1)
}

/// Operations and the holders of a lease on their keys: reads of the first site, its writes, reads
/// of the second site, and so on.
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

/// Operations of a site and class apart by whether a site of the fault held a lease on
/// their keys. A write that was in flight through a replica that failed belongs to those:
/// it is sent again, and a leader that has it twice cannot tell what becomes of it before
/// the slots before it are executed, blocked ones included.
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

/// The bound of a group. Where the leases are not known, the greater one holds.
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

/// When an operation was due, in ns since the run began.
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

/// Times in ns since the run began.
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

    /// Returns the observed outage; `None` if nothing was due. The caller adds the group that saw
    /// it, and the site's medians.
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

    /// Median latencies in ms before the fault and in the last third of the window.
    fn medians(&self, ops: &[(DueOperation, Option<SiteSet>)]) -> (Option<f64>, Option<f64>) {
        let third = self.end - (self.end - self.start) / 3;
        let before = median_ms(ops, self.previous, self.start);
        (before, median_ms(ops, third, self.end))
    }

    /// Returns the duration of the outage by the module's definition, in ns.
    fn longest_without_success(&self, due: &[DueOperation]) -> u64 {
        // Ends go first where times are equal: a client that asks again at once was not waiting.
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

/// Median latency in ms of the answered operations that started at `from` or later and before `to`.
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
