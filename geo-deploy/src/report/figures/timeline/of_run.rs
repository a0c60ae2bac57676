//! The time line of a run with faults, made from its samples.

use leasehold_ycsb::sample::{OpOutcome, Sample};

use super::{Band, Series, Timeline, TimelineMark, extremes, one_two_five_above};
use crate::report::digest::Class;
use crate::report::{ExperimentReport, RunEvent, StrategyRun};
use crate::run::bound::SiteSet;

/// Maximum number of operations that a panel shows as dots. If there are more, the panel shows
/// quantiles for stretches of time instead.
const DOTS_MAX: usize = 6_000;
/// Maximum number of faults for which a time line also marks other events, such as elections. If
/// there are more faults, the other events are shown only in the list of events.
const FAULTS_WITH_EVENTS_MAX: usize = 8;
/// Approximate number of stretches of time into which a panel is divided.
const STRETCHES: f64 = 150.0;

/// Returns the time line of a run. Times are measured from the beginning of the run. If the
/// strategy was run several times, the time line shows the run in which an operation waited
/// longest.
pub(in super::super::super) fn of_run(report: &ExperimentReport, run: &StrategyRun) -> Timeline {
    let Some(number) = longest(run) else {
        return of_one(report, run, &run.label);
    };
    let all = run.repeats.len();
    let name = format!("{}, run {number} of {all}", run.label);
    Timeline {
        note: format!(" Of {all} runs it is the one in which an operation waited longest."),
        ..of_one(report, &run.only(number), &name)
    }
}

/// Returns the sequence number of the run in which an operation waited longest; `None` if there is
/// only one run.
fn longest(run: &StrategyRun) -> Option<usize> {
    let waits = run.samples.iter().filter_map(|sample| {
        let number = run.repeat_at(seconds(sample.start_ns))?;
        Some((sample.latency_ns, std::cmp::Reverse(number)))
    });
    waits.max().map(|(_, std::cmp::Reverse(number))| number)
}

fn of_one(report: &ExperimentReport, run: &StrategyRun, name: &str) -> Timeline {
    let starts = || run.samples.iter().map(|sample| sample.start_ns);
    let ends = run
        .samples
        .iter()
        .map(|sample| sample.start_ns + sample.latency_ns);
    let (from_s, to_s) = match run.measured {
        Some(measured) => (measured.start_s, measured.end_s),
        None => (
            seconds(starts().min().unwrap_or(0)),
            seconds(ends.max().unwrap_or(0)),
        ),
    };
    let sites = report.topology.names().into_iter().enumerate();
    let failed = failed_sites(run);
    let fault_texts: Vec<&str> = run.faults.iter().map(|fault| fault.text.as_str()).collect();
    Timeline {
        title: title(name, &fault_texts),
        from_s,
        to_s,
        rows: sites
            .map(|(site, name)| {
                let of = |class| series(run, site, class, failed, from_s, to_s);
                (name.to_owned(), Class::BOTH.map(of))
            })
            .collect(),
        marks: marks(report, run, from_s, to_s),
        since: "the run began",
        note: String::new(),
    }
}

fn title(name: &str, faults: &[&str]) -> String {
    let what = format!("{name}: latency and throughput over time");
    match faults {
        [] => what,
        [one] => format!("{what}, with the fault \"{one}\""),
        several => format!("{what}, with {} faults", several.len()),
    }
}

/// Returns the sites that failed, if all faults concern the same sites. Otherwise, returns an empty
/// set.
fn failed_sites(run: &StrategyRun) -> SiteSet {
    let mut sites = run.faults.iter().map(|fault| fault.sites);
    let first = sites.next().unwrap_or(SiteSet::EMPTY);
    if sites.all(|other| other == first) {
        first
    } else {
        SiteSet::EMPTY
    }
}

/// Returns the events within the time range of the plot.
fn marks(
    report: &ExperimentReport,
    run: &StrategyRun,
    from_s: f64,
    to_s: f64,
) -> Vec<TimelineMark> {
    let faults = run.faults.iter().map(|fault| {
        let until = fault.until_s.unwrap_or(to_s);
        let text = if run.faults.len() > FAULTS_WITH_EVENTS_MAX {
            String::new()
        } else {
            fault.text.clone()
        };
        TimelineMark::Fault(fault.at_s, until, text)
    });
    let concerns = |event: &&RunEvent| event.run.as_ref().is_none_or(|label| *label == run.label);
    let crowded = run.faults.len() > FAULTS_WITH_EVENTS_MAX;
    let shown = |event: &&RunEvent| !crowded && (from_s..=to_s).contains(&event.at_s);
    let events = report.events.iter().filter(concerns).filter(shown);
    let marked = events.filter_map(|event| match event.kind.as_str() {
        RunEvent::ELECTION => Some(TimelineMark::Election(event.at_s)),
        RunEvent::LEASE_END => Some(TimelineMark::LeaseEnd(event.at_s)),
        RunEvent::CONFIGURATION => Some(TimelineMark::Configuration(event.at_s)),
        _ => None,
    });
    faults.chain(marked).collect()
}

fn series(
    run: &StrategyRun,
    site: usize,
    class: Class,
    failed: SiteSet,
    from_s: f64,
    to_s: f64,
) -> Series {
    let known = run.leased_to.len() == run.samples.len();
    let mut series = Series::default();
    let mut answered: Vec<&Sample> = Vec::new();
    for (index, sample) in run.samples.iter().enumerate() {
        if usize::from(sample.site) != site || Class::of(sample.kind) != class {
            continue;
        }
        let point = (seconds(sample.start_ns), sample.latency_ns as f64 / 1e6);
        if sample.end != OpOutcome::Ok {
            series.failed.push(point);
            continue;
        }
        answered.push(sample);
        if known && run.leased_to[index].intersects(failed) {
            series.leased.push(point)
        } else {
            series.dots.push(point)
        }
    }
    series.failed = extremes(series.failed, from_s, to_s);
    let stretch_s = one_two_five_above((to_s - from_s).max(0.1) / STRETCHES);
    series.throughput = throughput(&answered, stretch_s);
    if answered.len() > DOTS_MAX {
        series.dots.clear();
        series.leased.clear();
        series.bands = bands(&answered, stretch_s);
    }
    series
}

/// Returns the throughput of each stretch of time in which an operation succeeded. An operation is
/// counted in the stretch in which it was answered.
fn throughput(answered: &[&Sample], stretch_s: f64) -> Vec<(f64, f64, f64)> {
    let mut numbers: Vec<u64> = answered
        .iter()
        .map(|sample| number(sample.start_ns + sample.latency_ns, stretch_s))
        .collect();
    numbers.sort_unstable();
    let stretches = numbers.chunk_by(|a, b| a == b);
    let stretch = |same: &[u64]| {
        let from = same[0] as f64 * stretch_s;
        (from, from + stretch_s, same.len() as f64 / stretch_s)
    };
    stretches.map(stretch).collect()
}

fn bands(answered: &[&Sample], stretch_s: f64) -> Vec<Band> {
    let numbered = answered
        .iter()
        .map(|sample| (number(sample.start_ns, stretch_s), sample.latency_ns));
    let mut numbered: Vec<(u64, u64)> = numbered.collect();
    numbered.sort_unstable();
    let stretches = numbered.chunk_by(|(a, _), (b, _)| a == b);
    let band = |same: &[(u64, u64)]| {
        let quantile = |q: f64| {
            let rank = (q * same.len() as f64).ceil().max(1.0) as usize;
            same[rank.min(same.len()) - 1].1 as f64 / 1e6
        };
        let from_s = same[0].0 as f64 * stretch_s;
        Band {
            from_s,
            to_s: from_s + stretch_s,
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            max_ms: quantile(1.0),
        }
    };
    stretches.map(band).collect()
}

fn number(at_ns: u64, stretch_s: f64) -> u64 {
    (seconds(at_ns) / stretch_s) as u64
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
