//! Outages summed up: faults of the same text, as one group of operations at one site saw
//! them.

use serde::Serialize;

use super::Outage;

/// Number of faults that are named: those that were waited for longest.
const LONGEST_NAMED: usize = 3;

/// Effect of faults of the same text on one group of operations at one site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutageGroup {
    /// The faults, in words.
    pub text: String,
    /// The clients' site.
    pub site: String,
    /// `reads` or `writes`.
    pub operation: &'static str,
    /// Whether a failed site held a lease on the keys; `None` if that is not known.
    pub leased: Option<bool>,
    /// Whether the faults concern the clients' own site.
    pub at_failed_site: bool,
    /// Number of faults.
    pub faults: usize,
    /// Operations that were due in their windows.
    pub due: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those that were given up.
    pub timed_out: u64,
    /// The outage in s that half of the faults do not exceed.
    pub outage_p50_s: f64,
    /// The outage in s that 99 of 100 faults do not exceed.
    pub outage_p99_s: f64,
    /// The longest outage in s.
    pub outage_s: f64,
    /// The longest time in s that one operation was due.
    pub longest_s: f64,
    /// The greatest bound in s; `None` if nothing is promised.
    pub bound_s: Option<f64>,
    /// For how many faults something is promised.
    pub bounded: usize,
    /// For how many of these the bound was kept.
    pub kept: usize,
    /// The median of the faults' medians of the time before.
    pub median_before_ms: Option<f64>,
    /// The median of the faults' medians of the time after.
    pub median_after_ms: Option<f64>,
    /// Those that clients waited longest for, the longest first; none if there was one
    /// fault.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub longest: Vec<LongestOutage>,
}

/// One fault of many.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LongestOutage {
    /// The number of the run, from 1, if there are several.
    pub run: Option<usize>,
    /// The fault's number in its run, from 1.
    pub fault: usize,
    /// The longer of the outage and the longest wait, in s.
    pub waited_s: f64,
}

/// The groups of a run's outages, in the order in which they are first met.
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
    /// Combines at least one outage.
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

    /// The operations in words.
    pub(super) fn operations(&self) -> String {
        super::in_words(self.operation, self.leased)
    }

    /// Returns the number of bounds that were broken, and the longest time without an answer, in s.
    pub(super) fn severity(&self) -> (usize, f64) {
        (self.bounded - self.kept, self.outage_s.max(self.longest_s))
    }
}

/// Nothing of a single fault.
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

/// The least of rising values that the share `q` of them does not exceed.
fn quantile(rising: &[f64], q: f64) -> f64 {
    let rank = (q * rising.len() as f64).ceil().max(1.0) as usize;
    rising[rank.min(rising.len()) - 1]
}

/// The median; of two in the middle the smaller one.
fn middle(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values = rising(values);
    values.get(values.len().saturating_sub(1) / 2).copied()
}
