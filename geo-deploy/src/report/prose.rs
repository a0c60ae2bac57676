//! The text of a report. All claims in the text are computed from the run itself.

use super::outage::Outage;
use super::summary::{ExperimentSummary, RunSummary};
use super::table::{bounds, grouped, ms, percent};
use super::tables::bookkeeping_minimum;
use super::{ExperimentReport, HistoryVerdict, RunEvent, StrategyRun, paper, tables};
use crate::wan::NetworkReport;

/// Maximum difference, in percentage points, by which a measured share of local reads may fall
/// below the share under perfect bookkeeping. A greater difference is reported.
const LEARNING_SLACK_POINTS: f64 = 3.0;

/// Returns one sentence with the result, for the title.
pub(super) fn finding(report: &ExperimentReport, summary: &ExperimentSummary) -> String {
    if let Some(run) = summary.runs.iter().find(|run| run.linearizable == "no") {
        return format!("{} is NOT linearizable", run.label);
    }
    let faulty: Vec<String> = summary.runs.iter().filter_map(of_outages).collect();
    if !faulty.is_empty() {
        return faulty.join("; ");
    }
    let answered = |run: &&RunSummary| run.ops > 0;
    let by_mean =
        |a: &&RunSummary, b: &&RunSummary| a.mean_by_site_ms.total_cmp(&b.mean_by_site_ms);
    let Some(best) = summary.runs.iter().filter(answered).min_by(by_mean) else {
        return "nothing was answered".to_owned();
    };
    let others = summary
        .runs
        .iter()
        .filter(|run| run.label != best.label && run.ops > 0);
    let others: Vec<String> = others
        .map(|run| format!("{} for {}", ms(run.mean_by_site_ms), run.label))
        .collect();
    let against = if others.is_empty() {
        String::new()
    } else {
        format!(", against {}", others.join(", "))
    };
    let strategy = words_of(report, best);
    format!(
        "{strategy}: {} of reads local, {} of writes at their minimum; mean latency {} ms by \
         site{against}",
        percent(best.local_fraction),
        percent(best.min_latency_fraction),
        ms(best.mean_by_site_ms),
    )
}

/// Returns the label of a strategy, followed by the strategy's full name if the two differ.
fn words_of(report: &ExperimentReport, run: &RunSummary) -> String {
    let name = match run.strategy.as_str() {
        "quorum" => "quorum leases",
        "leader" => "leader leases",
        "all" => "Megastore leases",
        "cost" => "leases by cost",
        "fixed" => "fixed holders",
        "none" => "no leases",
        other => other,
    };
    match report.runs.len() {
        1 => name.to_owned(),
        _ => format!("{name} ({})", run.label),
    }
}

/// Describes the effect of a run's faults on clients at the sites that did not fail. If every site
/// failed, describes the effect on clients at all sites. Returns `None` if there were no faults.
fn of_outages(run: &RunSummary) -> Option<String> {
    let first = run.outages.first()?;
    let everywhere = run.outages.iter().all(|o| o.at_failed_site);
    let longest = |leased: bool| {
        let waited = run
            .outages
            .iter()
            .filter(|o| everywhere || !o.at_failed_site);
        let meant = waited.filter(|o| o.leased.unwrap_or(true) == leased);
        meant
            .map(|o| o.outage_s.max(o.longest_s))
            .max_by(f64::total_cmp)
    };
    let mut texts: Vec<&str> = run.outages.iter().map(|o| o.text.as_str()).collect();
    texts.dedup();
    let what = match texts.as_slice() {
        [one] => format!("\"{one}\""),
        several => format!("{} faults such as \"{}\"", several.len(), first.text),
    };
    let said = |wait: Option<f64>, whose: &str| wait.map(|s| format!("{whose} at most {s:.2} s"));
    let known = run.outages.iter().any(|o| o.leased.is_some());
    let leased = match (everywhere, known) {
        (false, true) => "operations on keys leased to the failed replica waited",
        _ => "operations waited",
    };
    let parts = [said(longest(true), leased), said(longest(false), "others")];
    let broken = run
        .outages
        .iter()
        .filter(|o| o.within_bound() == Some(false))
        .count();
    let bounded = run
        .outages
        .iter()
        .filter(|o| o.within_bound().is_some())
        .count();
    let verdict = match (bounded, broken) {
        (0, _) => String::new(),
        (_, 0) => "; all within their bounds".to_owned(),
        (all, broken) => format!("; {broken} of {all} bounds broken"),
    };
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    Some(format!(
        "{}, {what}: {}{}{verdict}",
        run.label,
        if everywhere { "" } else { "at other sites " },
        parts.join(", ")
    ))
}

/// Describes the bounds on outages that a run exceeded: their number, and the case with the largest
/// excess.
fn broken_bounds(run: &RunSummary) -> Option<String> {
    let excess = |o: &Outage| {
        o.bound_s
            .map_or(0.0, |bound| o.outage_s.max(o.longest_s) - bound)
    };
    let broken = || {
        run.outages
            .iter()
            .filter(|o| o.within_bound() == Some(false))
    };
    let worst = broken().max_by(|a, b| excess(a).total_cmp(&excess(b)))?;
    Some(format!(
        "{}: {} of {} bounds were broken; the worst: after \"{}\", {} at {} waited {:.3} s, the \
         bound being {:.3} s.",
        run.label,
        broken().count(),
        run.outages
            .iter()
            .filter(|o| o.within_bound().is_some())
            .count(),
        worst.text,
        worst.group(),
        worst.site,
        worst.outage_s.max(worst.longest_s),
        worst.bound_s.unwrap_or_default()
    ))
}

/// Returns the paragraphs that explain the measurements of the network.
pub(super) fn network(report: &ExperimentReport) -> Vec<String> {
    if tables::has_measured(report) {
        vec![
            "Round trips of probes through the emulated network while operations were measured. \
             What was asked for includes the jitter."
                .to_owned(),
        ]
    } else {
        Vec::new()
    }
}

/// Describes the experiment in one paragraph.
pub(super) fn setting(report: &ExperimentReport) -> String {
    let e = &report.experiment;
    let w = &e.workload;
    format!(
        "{} sites ({}), the leader in {}. {}. {} keys, {} of the requests are reads. Leases of {} ms, renewed every {} ms, holders chosen anew every {} ms.",
        report.topology.len(),
        report.topology.names().join(", "),
        e.leader,
        w.load_in_words(),
        grouped(w.keys),
        percent(w.reads),
        grouped(e.lease.t_lease_ms),
        grouped(e.lease.renew_ms),
        grouped(e.lease.reconfigure_ms),
    )
}

/// Returns the results of the checks, and the notes of the runs.
pub(super) fn notes(report: &ExperimentReport) -> Vec<String> {
    let mut notes = Vec::new();
    for run in &report.runs {
        let text = run.linearizable.text();
        // A violation is already shown as a warning.
        if !text.is_empty() && !matches!(run.linearizable, HistoryVerdict::No(_)) {
            let word = run.linearizable.word();
            notes.push(format!("{}, linearizable: {word} ({text}).", run.label));
        }
        notes.extend(
            run.notes
                .iter()
                .map(|note| format!("{}: {note}", run.label)),
        );
    }
    notes
}

/// Returns findings that must not be overlooked: an incomplete experiment, a history that is not
/// linearizable, failed operations, exceeded bounds on outages, and deviations of the network.
pub(super) fn warnings(report: &ExperimentReport, summary: &ExperimentSummary) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(ended) = &report.incomplete {
        warnings.push(format!(
            "INCOMPLETE: the experiment did not reach its end; {ended}."
        ));
    }
    for (run, figures) in report.runs.iter().zip(&summary.runs) {
        if let HistoryVerdict::No(text) = &run.linearizable {
            warnings.push(format!("{}: NOT LINEARIZABLE. {text}", run.label));
        }
        if figures.failed + figures.timed_out > 0 {
            warnings.push(format!(
                "{}: {} operations failed and {} timed out. Latencies are of the answered ones only.",
                run.label, figures.failed, figures.timed_out
            ));
        }
        let network = run.network.as_ref().and_then(NetworkReport::warning);
        warnings.extend(network.map(|words| format!("{}: {words}", run.label)));
        warnings.extend(broken_bounds(figures));
        warnings.extend(off_links(report, run));
    }
    warnings
}

/// Describes the links on which the measured round trip differs from the requested one by more than
/// 1 ms and more than 1%.
fn off_links(report: &ExperimentReport, run: &StrategyRun) -> Option<String> {
    let measured = run.measured_rtt_ms.as_ref()?;
    let names = report.topology.names();
    // The requested delay includes jitter: each direction takes up to this time longer, uniformly
    // distributed, so a round trip takes this time longer on average.
    let jitter = run
        .network
        .as_ref()
        .map(|_| report.experiment.local.jitter_ms);
    let mut off = Vec::new();
    for a in 0..names.len() {
        for b in a + 1..names.len() {
            let asked = report.topology.rtt_ms(a, b) + jitter.unwrap_or(0.0);
            let found = measured.get(a).and_then(|row| row.get(b)).copied();
            let Some(found) = found.filter(|found| *found > 0.0) else {
                continue;
            };
            if (found - asked).abs() > f64::max(1.0, asked / 100.0) {
                off.push(format!(
                    "{}-{} {} instead of {asked}",
                    names[a],
                    names[b],
                    ms(found)
                ));
            }
        }
    }
    (!off.is_empty()).then(|| {
        format!(
            "{}: the network was not as asked; median round trips in ms: {}.",
            run.label,
            off.join(", ")
        )
    })
}

/// Returns one text for each run in which the holders changed: the number of configuration changes.
pub(super) fn configurations(report: &ExperimentReport) -> Vec<String> {
    let of_run = |run: &StrategyRun| {
        let changes = report.events.iter().filter(|event| {
            event.kind == RunEvent::CONFIGURATION && event.run.as_ref() == Some(&run.label)
        });
        let count = changes.count() as u64;
        (count > 0).then(|| format!("{}: {} lease configurations.", run.label, grouped(count)))
    };
    report.runs.iter().filter_map(of_run).collect()
}

/// Returns the paragraphs that explain the plots of latency distributions.
pub(super) fn reading_the_curves(report: &ExperimentReport) -> Vec<String> {
    vec![
        "Each panel is one site. A curve shows which share of the operations (up) was answered \
         within a time (across, on a logarithmic scale): where it rises at the left, operations \
         stayed within the site; a step further right is a trip to another one. The higher of two \
         curves is the better strategy for that share of operations."
            .to_owned(),
        format!(
            "Dashed vertical lines are lower bounds: half round trips added up along the fastest \
             way the protocol allows, with nothing for disks, processors or queues. {} No \
             implementation of the strategy can be left of its line.",
            match report.backend.as_str() {
                "local" => "Clients are at their replica's side, at no distance.".to_owned(),
                _ => format!(
                    "A client adds the {} ms within its site.",
                    report.topology.local_rtt_ms()
                ),
            }
        ),
    ]
}

/// Returns the definitions of an outage and of the groups of operations.
pub(super) fn reading_the_outages() -> Vec<String> {
    vec![
        "An outage is the longest time, from a fault to the next one or to the end of the run, in \
         which no operation of a kind succeeded at a site although one was due: from its intended \
         start until it was answered, failed or was given up. Operations that fail do not end it. \
         The longest wait is that of a single operation; in a closed loop it also shows a stall of \
         one key that other keys hide. A bound is kept if neither exceeds it."
            .to_owned(),
        "\"Leased to it\" are keys that a failed site held a lease on when the fault began, or may \
         have held one on. Writes that were in flight through a failed replica are counted there: \
         sent twice, they are answered after all before them. \
         Median before is of the operations since the previous fault, after of those that started \
         in the last third of the time that the fault is given."
            .to_owned(),
    ]
}

/// Compares the share of local reads with the share under perfect bookkeeping, and with the paper.
pub(super) fn learning(report: &ExperimentReport, summary: &ExperimentSummary) -> Vec<String> {
    let mut paragraphs = vec![
        "What learning allows: a key that a site has not read yet cannot be known to be its own. \
         \"Perfect bookkeeping\" is what the policy of quorum leases would have reached on exactly \
         these requests with holders chosen from all earlier reads, without any delay. It is no \
         ceiling: holders chosen earlier, or by another policy, may suit a site better. It grows with the \
         number of requests, because more of them fall on keys that were read before. A site that \
         is filled in as a holder of unread keys (the ones nearest to the leader) starts from a \
         higher share."
            .to_owned(),
    ];
    for (run, figures) in report.runs.iter().zip(&summary.runs) {
        if run.bookkeeping_local.is_none() {
            continue;
        }
        paragraphs.push(against_bookkeeping(figures));
        paragraphs.extend(against_paper(report, run, figures));
    }
    paragraphs
}

fn against_bookkeeping(run: &RunSummary) -> String {
    let gaps = run.sites.iter().filter_map(|site| {
        let books = site.reads.bookkeeping_fraction?;
        Some((site, (books - site.reads.local_fraction) * 100.0))
    });
    let Some((site, gap)) = gaps.max_by(|(_, a), (_, b)| a.total_cmp(b)) else {
        return format!("{}: nothing was measured.", run.label);
    };
    let off = if gap > 0.0 {
        format!("{gap:.1} points below")
    } else {
        format!("{:.1} points above", gap.abs())
    };
    if gap <= LEARNING_SLACK_POINTS {
        format!(
            "{}: every site is within {LEARNING_SLACK_POINTS} points of perfect bookkeeping, or \
             above it (lowest: {}, {off}).",
            run.label, site.site
        )
    } else {
        format!(
            "{}: {} is {off} perfect bookkeeping, more than the {LEARNING_SLACK_POINTS} points \
             that delays in choosing holders explain.",
            run.label, site.site
        )
    }
}

fn against_paper(
    report: &ExperimentReport,
    run: &StrategyRun,
    figures: &RunSummary,
) -> Option<String> {
    let mut above = Vec::new();
    let mut below = Vec::new();
    for site in &figures.sites {
        let reported = paper::local_reads(report, run, &site.site)?;
        let found = site.reads.local_fraction * 100.0;
        let books = site.reads.bookkeeping_fraction.unwrap_or(1.0) * 100.0;
        let text = format!("{} {found:.1}% (paper {reported:.0}%)", site.site);
        if found >= reported {
            above.push(text);
        } else if books < reported {
            below.push(format!(
                "{text}, where perfect bookkeeping gets {books:.1}%"
            ));
        } else {
            below.push(format!(
                "{text}, although perfect bookkeeping gets {books:.1}%"
            ));
        }
    }
    let listed = |list: Vec<String>| {
        if list.is_empty() {
            "none".to_owned()
        } else {
            list.join("; ")
        }
    };
    Some(format!(
        "{} against the paper. At or above it: {}. Below it: {}. Where even perfect bookkeeping \
         stays below the paper's figure, that figure cannot come from choosing holders by past \
         reads on this workload at this number of requests; more requests raise it.",
        run.label,
        listed(above),
        listed(below)
    ))
}

/// Compares the share of writes at their minimum latency with the share in the paper.
pub(super) fn minimum(report: &ExperimentReport, summary: &ExperimentSummary) -> Vec<String> {
    let mut paragraphs = vec![
        "The least time any strategy allows a write is its leader-lease bound: nobody but the \
         nearest majority has to be waited for. A holder outside that majority makes every write \
         of its keys wait for it. That is the price of its local reads."
            .to_owned(),
    ];
    if report.backend == "local" {
        paragraphs.push(
            "These are real processes that share one machine. Its disk, timers and scheduler add \
             their own time to the distances. So a write counts as at its minimum within more of it \
             than in virtual time."
                .to_owned(),
        );
    }
    for (run, figures) in report.runs.iter().zip(&summary.runs) {
        let Some(reported) = paper::writes_at_minimum(report, run) else {
            continue;
        };
        let books = bookkeeping_minimum(figures).map_or(String::new(), |share| {
            format!(
                " Perfect bookkeeping of the same requests leaves {} there.",
                percent(share)
            )
        });
        paragraphs.push(format!(
            "{}: {} of writes were at the minimum; the paper reports over {reported:.0}%.{books} \
             The share falls as more keys are learned, because the sites that read a key most are \
             rarely those that leave its writes alone.",
            figures.label,
            percent(figures.min_latency_fraction)
        ));
    }
    paragraphs
}

/// Returns the note that explains the columns of the tables: the bound of a strategy with fixed
/// holders, and the minimum over all strategies.
pub(super) fn tables_note(summary: &ExperimentSummary) -> String {
    let several = summary.runs.iter().flat_map(|run| &run.sites);
    let example = several
        .map(|site| &site.writes.bounds_ms)
        .find(|bounds| bounds.len() > 1);
    let note = "Times in ms. \"bound\" is what distance alone costs this strategy, \"minimum\" the \
                least any strategy can give a write at that site; \"–\" where holders are learned \
                key by key.";
    match example {
        None => note.to_owned(),
        Some(values) => format!(
            "{note} Two values, as {}, are for keys with different holders.",
            bounds(values)
        ),
    }
}
