//! What a person is told at the end of a run, apart from the report: outages, dead
//! replicas, operations that are no results.

use std::time::Duration;

use crate::measurement::Gap;
use crate::runner::Outcome;

/// Shorter times without an answer are not worth a line; the report has them all.
const GAP_MIN: Duration = Duration::from_secs(1);

/// What should not be overlooked in a report. `sites` names the sites by index.
pub fn warnings(outcome: &Outcome, sites: &[String]) -> Vec<String> {
    let mut warnings = Vec::new();
    if outcome.account.intended() == 0 {
        warnings.push("nothing was measured: no operation was due after the warm-up".to_owned());
    }
    unanswered(outcome, &mut warnings);
    for (site, class, gap) in outcome.availability.gaps() {
        if gap.length >= GAP_MIN {
            let unnamed = site.to_string();
            let site = sites.get(usize::from(site)).unwrap_or(&unnamed);
            warnings.push(gap_words(site, class.name(), gap));
        }
    }
    for (name, replica) in outcome.availability.replicas() {
        if let Some(since) = replica.silent_since() {
            warnings.push(format!(
                "{name} is silent since {:.1} s: {} operations failed there or had no answer",
                since.as_secs_f64(),
                replica.unanswered
            ));
        }
    }
    warnings
}

fn unanswered(outcome: &Outcome, warnings: &mut Vec<String>) {
    let account = &outcome.account;
    if account.abandoned > 0 {
        warnings.push(format!(
            "{} operations were sent and had no answer at the end; they count as abandoned",
            account.abandoned
        ));
    }
    if account.never_sent > 0 {
        warnings.push(format!(
            "{} operations were due and never sent; their latency counts up to the end of the run",
            account.never_sent
        ));
    }
}

fn gap_words(site: &str, class: &str, gap: Gap) -> String {
    format!(
        "site {site}: no successful answer to {} for {:.1} s, from {:.1} s on",
        class.to_lowercase(),
        gap.length.as_secs_f64(),
        gap.began.as_secs_f64()
    )
}
