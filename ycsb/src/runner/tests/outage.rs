//! Tests with a store that stops answering, in virtual time. The report of the run is compared with
//! figures that follow from the schedule alone.

use super::*;
use crate::measurement::{Basis, OpClass};
use tokio::time::Instant;

/// Store that answers each request after a fixed time, except during an outage. An answer that
/// would be due during the outage is sent when the outage ends. If the outage never ends, there is
/// no answer.
#[derive(Clone)]
struct Scripted {
    start: Instant,
    takes: Duration,
    outage: std::ops::Range<Duration>,
    /// Time after which a waiting request fails.
    timeout: Duration,
}

const NEVER: Duration = Duration::from_secs(1_000_000);

impl Scripted {
    fn new(takes_ms: u64, outage_s: std::ops::Range<u64>) -> Self {
        Scripted {
            start: Instant::now(),
            takes: Duration::from_millis(takes_ms),
            outage: Duration::from_secs(outage_s.start)..Duration::from_secs(outage_s.end),
            timeout: NEVER,
        }
    }
}

impl KvStore for Scripted {
    async fn execute(&self, op: Op) -> Answer {
        let ready = Instant::now() + self.takes;
        let outage = (self.start + self.outage.start)..(self.start + self.outage.end);
        let ready = if outage.contains(&ready) {
            outage.end
        } else {
            ready
        };
        let answer = async {
            tokio::time::sleep_until(ready).await;
            let outcome = match op {
                Op::Get(_) => Reached::value(Bytes::new(), Version::default()),
                _ => Reached::written(Version::default()),
            };
            answered(RawReply {
                outcome,
                path: Path::Local,
                replica: "CA".into(),
            })
        };
        let timely = tokio::time::timeout(self.timeout, answer).await;
        timely.unwrap_or_else(|_| unanswered(ReturnCode::Timeout))
    }
}

/// Returns options for ten seconds of reads by four threads.
fn ten_seconds(target: Option<f64>) -> RunOptions {
    RunOptions {
        target,
        precise: false,
        interval: Interval::Both,
        time_max: Some(Duration::from_secs(10)),
        ..options(Phase::Run)
    }
}

async fn reads(
    store: &Scripted,
    options: &RunOptions,
    cancel: &CancellationToken,
) -> BenchmarkOutcome {
    let workload = workload("operationcount=0\nreadproportion=1\nupdateproportion=0");
    let stores = [SiteStore {
        site: 0,
        site_number: 0,
        address: "here".into(),
        routed: false,
        core: Core::default(),
        store: store.clone(),
    }];
    let mut seen = Seen::default();
    run(&workload, &stores, options, &mut seen, cancel)
        .await
        .unwrap()
}

/// Asserts that a figure is within 5% or a millisecond of the expected one. A millisecond is the
/// resolution of the runtime's timers.
fn near(found_us: u64, expected_us: u64, what: &str) {
    let allowed = (expected_us / 20).max(1_000);
    assert!(
        found_us.abs_diff(expected_us) <= allowed,
        "{what}: {found_us} us, not {expected_us} us"
    );
}

/// Compares the percentiles of reads, from their intended starts, with those of a list of expected
/// latencies.
fn compare(outcome: &BenchmarkOutcome, mut expected_us: Vec<u64>) {
    expected_us.sort_unstable();
    for what in [Metric::Done(OpKind::Read), Metric::All] {
        let intended = |key: &SeriesKey| key.basis == Basis::Intended && key.counts_as(what);
        let found = outcome.measurements.total(intended);
        assert_eq!(found.len(), expected_us.len() as u64, "{what:?}");
        for percentile in [1, 10, 25, 49, 51, 75, 90, 95, 99] {
            let rank = expected_us.len() * percentile / 100;
            let value = found.value_at_quantile(percentile as f64 / 100.0);
            near(value, expected_us[rank], &format!("{what:?} p{percentile}"));
        }
        near(found.max(), *expected_us.last().unwrap(), "max");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_to_the_end_is_in_every_figure_of_an_open_loop() {
    // 500 operations a second, each answered after 5 ms until the store stops at 5 s.
    let store = Scripted::new(5, 5..1_000_000);
    let outcome = reads(&store, &ten_seconds(Some(500.0)), &CancellationToken::new()).await;
    // The operation that each thread has in flight at 5 s is never answered. It waits until the
    // end, and so does every operation that is due later.
    let due_us = (0..5_000u64).map(|n| n * 2_000);
    let waits = |due: u64| {
        if due + 5_000 < 5_000_000 {
            5_000
        } else {
            10_000_000 - due
        }
    };
    compare(&outcome, due_us.map(waits).collect());
    let account = outcome.account;
    assert_eq!(account.runtime, Duration::from_secs(10));
    assert_eq!((account.intended(), account.failed), (5_000, 0));
    assert!(account.succeeded.abs_diff(2_498) <= 25, "{account:?}");
    assert_eq!(account.abandoned, 4);
    assert!(account.never_sent.abs_diff(2_498) <= 25, "{account:?}");
    assert!((245.0..255.0).contains(&account.throughput()));
    assert!(matches!(
        outcome.shortfall(),
        Some(Shortfall::TargetMissed(_))
    ));
    assert_outage_seen(&outcome, 5_000, 5_000);
}

/// Asserts that the report has the longest gap of the site and the longest silence of the replica.
fn assert_outage_seen(outcome: &BenchmarkOutcome, began_ms: u64, length_ms: u64) {
    let (_, class, gap) = outcome.availability.gaps().next().unwrap();
    assert_eq!(class, OpClass::Reads);
    near(gap.began.as_micros() as u64, began_ms * 1_000, "gap began");
    near(gap.length.as_micros() as u64, length_ms * 1_000, "gap");
    let (name, replica) = outcome.availability.replicas().next().unwrap();
    assert_eq!((&**name, replica.unanswered), ("here", 4));
    let since = replica.silent_since().unwrap();
    near(since.as_micros() as u64, began_ms * 1_000, "silence");
}

#[tokio::test(start_paused = true)]
async fn an_outage_to_the_end_is_in_every_figure_of_a_closed_loop() {
    let store = Scripted::new(10, 5..1_000_000);
    let outcome = reads(&store, &ten_seconds(None), &CancellationToken::new()).await;
    // Each of four threads gets an answer every 10 ms, 499 times before 5 s.
    let mut expected = vec![10_000; 4 * 499];
    expected.extend([5_010_000; 4]);
    compare(&outcome, expected);
    let account = outcome.account;
    assert_eq!(account.runtime, Duration::from_secs(10));
    assert_eq!((account.intended(), account.abandoned), (2_000, 4));
    assert!((199.0..201.0).contains(&account.throughput()));
    assert_eq!(outcome.shortfall(), None, "there is no target");
    let abandoned = |key: &SeriesKey| key.metric == Metric::Abandoned(OpKind::Read);
    let abandoned = outcome.measurements.total(abandoned);
    assert_eq!(abandoned.len(), 8, "in both bases");
    near(abandoned.min(), 5_010_000, "abandoned");
    assert_outage_seen(&outcome, 4_990, 5_010);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_ends_when_it_was_stopped() {
    let store = Scripted::new(10, 5..1_000_000);
    let cancel = CancellationToken::new();
    let stop = async {
        tokio::time::sleep(Duration::from_secs(8)).await;
        cancel.cancel();
    };
    let options = ten_seconds(Some(500.0));
    let (outcome, ()) = tokio::join!(reads(&store, &options, &cancel), stop);
    assert!(outcome.cancelled);
    let account = outcome.account;
    near(account.runtime.as_micros() as u64, 8_000_000, "run time");
    assert!(account.intended().abs_diff(4_000) <= 4, "{account:?}");
    assert_eq!(account.abandoned, 4);
}

#[tokio::test(start_paused = true)]
async fn what_is_answered_soon_after_the_end_has_its_own_latency() {
    // The outage ends a second after the run; four answers arrive then.
    let store = Scripted::new(10, 5..11);
    let outcome = reads(&store, &ten_seconds(None), &CancellationToken::new()).await;
    let account = outcome.account;
    assert_eq!(account.runtime, Duration::from_secs(10));
    assert_eq!((account.succeeded, account.abandoned), (2_000, 0));
    let reads = |key: &SeriesKey| key.metric == Metric::Done(OpKind::Read);
    near(outcome.measurements.total(reads).max(), 6_010_000, "max");
    outcome.availability.gaps().for_each(|(.., gap)| {
        near(
            gap.length.as_micros() as u64,
            5_010_000,
            "the gap ends with the run",
        );
    });
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_is_caught_up_with_misses_no_target() {
    let store = Scripted::new(1, 3..4);
    let outcome = reads(&store, &ten_seconds(Some(500.0)), &CancellationToken::new()).await;
    assert_eq!(outcome.shortfall(), None, "{:?}", outcome.account);
    let intended = |key: &SeriesKey| key.metric == Metric::All;
    let max = outcome.measurements.total(intended).max();
    near(
        max,
        1_000_000,
        "the outage is seen from the intended starts",
    );
    let (_, _, gap) = outcome.availability.gaps().next().unwrap();
    near(gap.length.as_micros() as u64, 1_000_000, "gap");
    let (_, replica) = outcome.availability.replicas().next().unwrap();
    assert_eq!(replica.silent_since(), None, "it is back");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_too_slow_misses_the_target_also_if_the_run_has_no_end() {
    // The target is 1,000 operations at 500 a second, of which four threads reach 400.
    let store = Scripted::new(10, 500..501);
    let workload = workload("operationcount=1000\nreadproportion=1\nupdateproportion=0");
    let paced = RunOptions {
        time_max: None,
        ..ten_seconds(Some(500.0))
    };
    let stores = [SiteStore {
        site: 0,
        site_number: 0,
        address: "here".into(),
        routed: false,
        core: Core::default(),
        store,
    }];
    let (mut seen, cancel) = (Seen::default(), CancellationToken::new());
    let outcome = run(&workload, &stores, &paced, &mut seen, &cancel).await;
    let outcome = outcome.unwrap();
    let account = outcome.account;
    assert_eq!((account.succeeded, account.never_sent), (1_000, 0));
    // The schedule has two seconds, in which 800 operations were sent.
    assert!(account.late.abs_diff(200) <= 20, "{account:?}");
    assert!(matches!(
        outcome.shortfall(),
        Some(Shortfall::TargetMissed(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn timeouts_are_failures_of_the_replica_and_not_abandoned() {
    let store = Scripted {
        timeout: Duration::from_secs(1),
        ..Scripted::new(10, 5..1_000_000)
    };
    let outcome = reads(&store, &ten_seconds(None), &CancellationToken::new()).await;
    let account = outcome.account;
    // From 4.99 s on, each of four threads fails every second. The last operations are in flight at
    // the end and fail within the grace time.
    assert_eq!((account.failed, account.abandoned), (24, 0));
    let (_, replica) = outcome.availability.replicas().next().unwrap();
    assert_eq!((replica.answered, replica.unanswered), (4 * 499, 24));
    let (_, _, gap) = outcome.availability.gaps().next().unwrap();
    near(gap.length.as_micros() as u64, 5_010_000, "gap");
}

#[tokio::test(start_paused = true)]
async fn so_many_that_were_never_sent_are_counted_by_the_batch() {
    let store = Scripted::new(10, 0..1_000_000);
    let outcome = reads(&store, &ten_seconds(Some(1e8)), &CancellationToken::new()).await;
    let account = outcome.account;
    assert_eq!((account.intended(), account.abandoned), (1_000_000_000, 4));
    let all = outcome.measurements.total(|key| key.metric == Metric::All);
    assert_eq!(all.len(), 1_000_000_000);
    near(all.value_at_quantile(0.5), 5_000_000, "median");
}

#[tokio::test(start_paused = true)]
async fn only_what_is_due_after_the_warm_up_counts() {
    // The store stops in the warm-up of two seconds, with four operations in flight.
    let store = Scripted::new(5, 1..1_000_000);
    let options = RunOptions {
        warmup: Duration::from_secs(2),
        ..ten_seconds(Some(500.0))
    };
    let outcome = reads(&store, &options, &CancellationToken::new()).await;
    let account = outcome.account;
    assert_eq!(account.runtime, Duration::from_secs(8));
    assert_eq!((account.intended(), account.never_sent), (4_000, 4_000));
    let due_us = (1_000..5_000u64).map(|n| n * 2_000);
    compare(&outcome, due_us.map(|due| 10_000_000 - due).collect());
    let shortfall = outcome.shortfall();
    assert_eq!(
        shortfall,
        Some(Shortfall::NothingSucceeded { intended: 4_000 })
    );
    let (_, _, gap) = outcome.availability.gaps().next().unwrap();
    near(gap.began.as_micros() as u64, 2_000_000, "gap began");
    near(gap.length.as_micros() as u64, 8_000_000, "gap");
}
