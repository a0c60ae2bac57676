//! The summary that is shown at the end of a run, separately from the report. It mentions outages,
//! dead replicas, and operations without results.

use std::time::Duration;

use crate::measurement::{AvailabilityGap, ReplicaAvailability};
use crate::runner::BenchmarkOutcome;

/// Minimum duration of the times without answers that the summary mentions. The report contains
/// shorter times, too.
const GAP_MIN: Duration = Duration::from_secs(1);

/// Returns warnings that a reader of the report should not overlook. `sites` has the names of the
/// sites in the order of their indexes. `sites` is empty if there is only one site and this site
/// has no name.
pub fn warnings(outcome: &BenchmarkOutcome, sites: &[String]) -> Vec<String> {
    let mut warnings = Vec::new();
    if outcome.account.intended() == 0 {
        warnings.push("nothing was measured: no operation was due after the warm-up".to_owned());
    }
    if let Some(why) = &outcome.failure {
        let failed = outcome.account.failed;
        warnings.push(format!(
            "{failed} operations failed; one of the first: {why}"
        ));
    }
    let account = &outcome.account;
    if account.overwrote > 0 {
        warnings.push(format!(
            "before {} of {} insertions the record was there already, so they are no new records: \
             another load generator inserts the same ones, or an earlier run did. Give each of N \
             generators a part of its own, -p insertpart=1/N, and load the records anew",
            account.overwrote, account.probed
        ));
    }
    unanswered(outcome, &mut warnings);
    for (site, class, gap) in outcome.availability.gaps() {
        if gap.length >= GAP_MIN {
            let site = sites.get(usize::from(site));
            warnings.push(describe_gap(site, class.name(), gap));
        }
    }
    for (address, replica) in outcome.availability.replicas() {
        let site = replica.site.and_then(|site| sites.get(usize::from(site)));
        let site = site.map(|name| format!(" (site {name})"));
        let name = format!("{address}{}", site.unwrap_or_default());
        silence(&name, replica, &mut warnings);
    }
    warnings
}

fn silence(name: &str, replica: &ReplicaAvailability, warnings: &mut Vec<String>) {
    if let Some(gap) = replica.longest_silence()
        && gap.length >= GAP_MIN
    {
        warnings.push(format!(
            "{name} gave no answer for {:.1} s, from {:.1} s on",
            gap.length.as_secs_f64(),
            gap.began.as_secs_f64()
        ));
    }
    if let Some(since) = replica.silent_since() {
        warnings.push(format!(
            "{name} is silent since {:.1} s: {} operations failed there or had no answer",
            since.as_secs_f64(),
            replica.unanswered
        ));
    }
}

fn unanswered(outcome: &BenchmarkOutcome, warnings: &mut Vec<String>) {
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

fn describe_gap(site: Option<&String>, class: &str, gap: AvailabilityGap) -> String {
    let site = site.map(|name| format!("site {name}: "));
    format!(
        "{}no successful answer to {} for {:.1} s, from {:.1} s on",
        site.unwrap_or_default(),
        class.to_lowercase(),
        gap.length.as_secs_f64(),
        gap.began.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::{Account, Availability, Interval, Measurements};
    use crate::sample::OpKind;

    fn seconds(time: u64) -> Duration {
        Duration::from_secs(time)
    }

    fn outcome(account: Account, availability: Availability) -> BenchmarkOutcome {
        BenchmarkOutcome {
            measurements: Measurements::new(Interval::Op),
            account,
            availability,
            cancelled: false,
            load_failed: false,
            failure: None,
        }
    }

    #[test]
    fn why_operations_failed_is_told() {
        let mut refused = outcome(Account::default(), Availability::new(seconds(0)));
        refused.account.failed = 3;
        refused.failure = Some("the token may not write b".to_owned());
        let all = warnings(&refused, &[]);
        assert!(
            all.iter()
                .any(|it| it.contains("3 operations failed")
                    && it.contains("the token may not write b")),
            "{all:?}"
        );
    }

    #[test]
    fn an_outage_is_told_with_its_site_its_replica_and_its_time() {
        let mut availability = Availability::new(seconds(0));
        availability.used(&"a:1".into(), 1);
        for time in 0..6 {
            availability.succeeded(1, OpKind::Read, seconds(time));
            availability.answered(&"a:1".into(), seconds(time));
            availability.unanswered(&"b:2".into(), seconds(0));
        }
        availability.answered(&"b:2".into(), seconds(5));
        availability.unanswered(&"a:1".into(), seconds(6));
        availability.left(1, seconds(10));
        let account = Account {
            succeeded: 6,
            abandoned: 1,
            never_sent: 40,
            ..Account::default()
        };
        let reported = warnings(&outcome(account, availability), &["JP".into(), "CA".into()]);
        let expected = [
            "1 operations were sent and had no answer at the end; they count as abandoned",
            "40 operations were due and never sent; their latency counts up to the end of the run",
            "site CA: no successful answer to reads for 5.0 s, from 5.0 s on",
            "a:1 (site CA) is silent since 5.0 s: 1 operations failed there or had no answer",
            "b:2 gave no answer for 5.0 s, from 0.0 s on",
        ];
        assert_eq!(reported, expected);
    }

    #[test]
    fn there_is_nothing_to_tell_of_a_good_run_and_something_of_an_empty_one() {
        let mut availability = Availability::new(seconds(0));
        for tenth in 0..20 {
            let at = Duration::from_millis(100 * tenth);
            availability.succeeded(0, OpKind::Update, at);
            availability.left(0, at);
        }
        let account = Account {
            succeeded: 20,
            ..Account::default()
        };
        let good = outcome(account, availability);
        assert!(warnings(&good, &[]).is_empty());
        let empty = outcome(Account::default(), Availability::default());
        assert!(warnings(&empty, &[])[0].starts_with("nothing was measured"));
    }
}
