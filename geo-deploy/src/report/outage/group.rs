//! Summaries of outages. For each group of operations at a site, all faults with the same
//! description are combined.

use serde::Serialize;

use super::Outage;

/// Maximum number of faults that a summary lists one by one. The faults with the longest waits are
/// listed.
const LONGEST_NAMED: usize = 3;

/// Effect of all faults with the same description on one group of operations at one site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutageGroup {
    /// Description of the faults.
    pub text: String,
    /// Name of the clients' site.
    pub site: String,
    /// `reads` or `writes`.
    pub operation: &'static str,
    /// Whether a failed site held a lease on the keys; `None` if that is not known.
    pub leased: Option<bool>,
    /// Whether the clients' own site is one of the failed sites.
    pub at_failed_site: bool,
    /// Number of faults.
    pub faults: usize,
    /// Number of operations that were due in the windows of the faults.
    pub due: u64,
    /// Number of due operations that failed.
    pub failed: u64,
    /// Number of due operations that timed out.
    pub timed_out: u64,
    /// Median of the faults' outages, in s.
    pub outage_p50_s: f64,
    /// 99th percentile of the faults' outages, in s.
    pub outage_p99_s: f64,
    /// Longest of the faults' outages, in s.
    pub outage_s: f64,
    /// Longest time that one operation was due, in s.
    pub longest_s: f64,
    /// Greatest of the faults' bounds, in s; `None` if no bound is guaranteed.
    pub bound_s: Option<f64>,
    /// Number of faults for which a bound is guaranteed.
    pub bounded: usize,
    /// Number of faults with a guaranteed bound that was kept.
    pub kept: usize,
    /// Median of `median_before_ms` over the faults, in ms.
    pub median_before_ms: Option<f64>,
    /// Median of `median_after_ms` over the faults, in ms.
    pub median_after_ms: Option<f64>,
    /// Faults with the longest waits, the longest first; empty if there was only one fault.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub longest: Vec<LongestOutage>,
}

/// One of the faults with the longest waits in a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LongestOutage {
    /// Sequence number of the run, from 1; `None` if there is only one run.
    pub run: Option<usize>,
    /// Sequence number of the fault in its run, from 1.
    pub fault: usize,
    /// The longer of the outage and the longest wait, in s.
    pub waited_s: f64,
}

/// Combines the outages of a run into groups, in order of first occurrence.
pub(in super::super) fn groups(outages: &[Outage]) -> Vec<OutageGroup> {
    let mut apart: Vec<Vec<&Outage>> = Vec::new();
    for outage in outages {
        let same = |all: &&mut Vec<&Outage>| {
            let first = all[0];
            (&first.text, &first.site, first.operation, first.leased)
                == (&outage.text, &outage.site, outage.operation, outage.leased)
        };
        match apart.iter_mut().find(same) {
            Some(all) => all.push(outage),
            None => apart.push(vec![outage]),
        }
    }
    apart.iter().map(|all| OutageGroup::of(all)).collect()
}

impl OutageGroup {
    /// Combines outages into one group. There must be at least one outage.
    fn of(all: &[&Outage]) -> OutageGroup {
        let first = all[0];
        let sum = |count: fn(&Outage) -> u64| all.iter().map(|outage| count(outage)).sum();
        let outages_s = rising(all.iter().map(|outage| outage.outage_s));
        let longest_s = rising(all.iter().map(|outage| outage.longest_s));
        let kept: Vec<bool> = all
            .iter()
            .filter_map(|outage| outage.within_bound())
            .collect();
        let bounds = all.iter().filter_map(|outage| outage.bound_s);
        OutageGroup {
            text: first.text.clone(),
            site: first.site.clone(),
            operation: first.operation,
            leased: first.leased,
            at_failed_site: first.at_failed_site,
            faults: all.len(),
            due: sum(|outage| outage.due),
            failed: sum(|outage| outage.failed),
            timed_out: sum(|outage| outage.timed_out),
            outage_p50_s: quantile(&outages_s, 0.5),
            outage_p99_s: quantile(&outages_s, 0.99),
            outage_s: quantile(&outages_s, 1.0),
            longest_s: quantile(&longest_s, 1.0),
            bound_s: bounds.max_by(f64::total_cmp),
            bounded: kept.len(),
            kept: kept.iter().filter(|kept| **kept).count(),
            median_before_ms: middle(all.iter().filter_map(|outage| outage.median_before_ms)),
            median_after_ms: middle(all.iter().filter_map(|outage| outage.median_after_ms)),
            longest: longest(all),
        }
    }

    /// Describes the group of operations.
    pub(super) fn operations(&self) -> String {
        super::in_words(self.operation, self.leased)
    }

    /// Returns the number of exceeded bounds, and the longest time without an answer, in s.
    pub(super) fn severity(&self) -> (usize, f64) {
        (self.bounded - self.kept, self.outage_s.max(self.longest_s))
    }
}

/// Returns the faults with the longest waits; empty if there was only one fault.
fn longest(all: &[&Outage]) -> Vec<LongestOutage> {
    let mut all: Vec<LongestOutage> = match all {
        [_] => return Vec::new(),
        several => several
            .iter()
            .map(|outage| LongestOutage::of(outage))
            .collect(),
    };
    all.sort_by(|a, b| b.waited_s.total_cmp(&a.waited_s));
    all.truncate(LONGEST_NAMED);
    all
}

impl LongestOutage {
    fn of(outage: &Outage) -> LongestOutage {
        LongestOutage {
            run: outage.run,
            fault: outage.fault,
            waited_s: outage.waited_s(),
        }
    }
}

fn rising(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the quantile `q` of values that are in ascending order.
fn quantile(rising: &[f64], q: f64) -> f64 {
    let rank = (q * rising.len() as f64).ceil().max(1.0) as usize;
    rising[rank.min(rising.len()) - 1]
}

/// Returns the median of the values. If there are two values in the middle, returns the smaller
/// one.
fn middle(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values = rising(values);
    values.get(values.len().saturating_sub(1) / 2).copied()
}
