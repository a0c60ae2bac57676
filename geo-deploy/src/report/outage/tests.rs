use super::*;

const S: u64 = 1_000_000_000;

/// Creates an operation that is due from `start` to `end`, in seconds.
fn op(start: f64, end: f64, how: OpOutcome) -> DueOperation {
    let ns = |s: f64| (s * S as f64) as u64;
    DueOperation {
        start: ns(start),
        end: ns(end),
        how,
    }
}

fn ok(start: f64, end: f64) -> DueOperation {
    op(start, end, OpOutcome::Ok)
}

/// Returns the outage and the longest wait, in s, for a window from 10 s to 30 s.
fn seen(ops: &[DueOperation]) -> (f64, f64) {
    let window = FaultWindow {
        previous: 0,
        start: 10 * S,
        end: 30 * S,
    };
    let seen = window.judge(ops).expect("operations are due");
    (seen.outage_s, seen.longest_s)
}

#[test]
fn an_outage_lasts_from_the_first_due_operation_to_the_next_success() {
    // Nothing is due from 11 s to 12 s, so this time is no outage.
    let ops = [
        ok(10.5, 11.0),
        ok(12.0, 15.0),
        ok(13.0, 15.5),
        ok(20.0, 20.1),
    ];
    assert_eq!(seen(&ops), (3.0, 3.0));
}

#[test]
fn a_success_among_waiting_operations_ends_the_outage_but_not_their_wait() {
    // One client waits for a stalled key while another continues.
    let ops = [
        ok(10.0, 19.0),
        ok(10.0, 11.0),
        ok(11.0, 14.0),
        ok(14.0, 15.0),
    ];
    assert_eq!(seen(&ops), (4.0, 9.0));
}

#[test]
fn operations_that_fail_at_once_prolong_the_outage() {
    let refused = [10.0, 12.0, 14.0, 16.0].map(|at| op(at, at + 0.001, OpOutcome::Failed));
    let ops: Vec<DueOperation> = refused.into_iter().chain([ok(18.0, 18.5)]).collect();
    assert_eq!(seen(&ops), (8.5, 0.5));
}

#[test]
fn an_outage_without_end_lasts_until_the_last_operation_is_given_up() {
    let ops = [
        ok(10.0, 10.5),
        op(11.0, 21.0, OpOutcome::TimedOut),
        op(21.0, 26.0, OpOutcome::TimedOut),
    ];
    assert_eq!(seen(&ops), (15.0, 10.0));
    // Time after the end of the window belongs to the next fault.
    let ops = [ok(10.0, 10.5), op(11.0, 45.0, OpOutcome::TimedOut)];
    assert_eq!(seen(&ops), (19.0, 34.0));
}

#[test]
fn what_was_due_when_the_fault_began_counts_from_then_and_its_wait_from_its_start() {
    let ops = [ok(8.0, 13.0), ok(9.0, 9.9), ok(31.0, 39.0)];
    assert_eq!(seen(&ops), (3.0, 5.0));
}

#[test]
fn an_open_loop_without_outage_shows_its_longest_operation() {
    let ops: Vec<DueOperation> = (0..20)
        .map(|i| 10.0 + f64::from(i))
        .map(|at| ok(at, at + 0.25))
        .collect();
    assert_eq!(seen(&ops), (0.25, 0.25));
}

#[test]
fn nothing_due_is_no_row() {
    let window = FaultWindow {
        previous: 0,
        start: 10 * S,
        end: 30 * S,
    };
    assert_eq!(window.judge(&[ok(1.0, 2.0), ok(30.0, 31.0)]), None);
}

#[test]
fn a_bound_is_kept_only_by_both() {
    let outage = Outage {
        run: None,
        fault: 1,
        text: "kill OR".to_owned(),
        site: "CA".to_owned(),
        operation: "writes",
        leased: Some(true),
        at_failed_site: false,
        due: 1,
        failed: 0,
        timed_out: 0,
        outage_s: 1.0,
        longest_s: 9.5,
        bound_s: Some(9.0),
        median_before_ms: None,
        median_after_ms: None,
    };
    assert_eq!(outage.within_bound(), Some(false));
    let fast = |bound_s| Outage {
        longest_s: 2.0,
        bound_s,
        ..outage.clone()
    };
    assert_eq!(fast(Some(9.0)).within_bound(), Some(true));
    assert_eq!(fast(None).within_bound(), None);
    let bound = OutageBound {
        leased_writes_s: Some(9.0),
        other_writes_s: Some(0.2),
        ..OutageBound::default()
    };
    assert_eq!(promised(&bound, Class::Writes, None), Some(9.0));
    assert_eq!(promised(&bound, Class::Writes, Some(false)), Some(0.2));
    assert_eq!(promised(&bound, Class::Reads, Some(true)), None);
}

#[test]
fn a_write_in_flight_through_a_failed_replica_counts_with_those_on_leased_keys() {
    let fault = FaultSpan {
        at_s: 10.0,
        sites: SiteSet::one(3),
        ..FaultSpan::default()
    };
    let nobody = Some(SiteSet::EMPTY);
    let ops = [(ok(9.9, 12.5), nobody), (ok(10.1, 10.2), nobody)];
    let counts =
        |site: usize, class: Class| by_lease(&fault, site, class, &ops).map(|(_, ops)| ops.len());
    assert_eq!(counts(3, Class::Writes), [1, 1, 0]);
    assert_eq!(counts(3, Class::Reads), [0, 2, 0]);
    assert_eq!(counts(2, Class::Writes), [0, 2, 0]);
}

#[test]
fn many_faults_are_summed_up_and_the_longest_named_by_their_runs() {
    let outage = |run: usize, outage_s: f64, longest_s: f64| Outage {
        run: Some(run),
        fault: 1,
        text: "kill CA (leader)".to_owned(),
        site: "JP".to_owned(),
        operation: "writes",
        leased: Some(true),
        at_failed_site: false,
        due: 10,
        failed: 1,
        timed_out: 0,
        outage_s,
        longest_s,
        bound_s: Some(1.0),
        median_before_ms: Some(run as f64),
        median_after_ms: None,
    };
    // Run 7 waits longest, followed by runs 40 and 41.
    let outages: Vec<Outage> = (1..=100)
        .map(|run| match run {
            7 => outage(run, 0.5, 3.0),
            40 | 41 => outage(run, 0.9 + run as f64 / 100.0, 0.2),
            _ => outage(run, 0.5, 0.5),
        })
        .collect();
    let groups = groups(&outages);
    assert_eq!(groups.len(), 1);
    let group = &groups[0];
    assert_eq!((group.faults, group.due, group.failed), (100, 1000, 100));
    assert_eq!((group.outage_p50_s, group.outage_p99_s), (0.5, 1.3));
    assert_eq!((group.outage_s, group.longest_s), (1.31, 3.0));
    assert_eq!((group.bounded, group.kept), (100, 97));
    assert_eq!(group.median_before_ms, Some(50.0));
    let runs: Vec<Option<usize>> = group.longest.iter().map(|one| one.run).collect();
    assert_eq!(runs, [Some(7), Some(41), Some(40)]);
    let table = table("killed", &groups).expect("a row").text();
    assert!(
        table.contains("97 of 100") && table.contains("7, 41, 40"),
        "{table}"
    );
    let json = serde_json::to_string(&groups).expect("it is plain data");
    assert!(json.len() < 1000, "{json}");
}
