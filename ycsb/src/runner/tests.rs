use super::*;
use crate::measurement::{Metric, ReturnCode};
use crate::properties::Properties;
use crate::sample::OpKind;
use crate::store::{Answer, OpFailure};
use bytes::Bytes;
use leasehold_client::RawReply;
use leasehold_wire::{
    Entry, FailedComparison, Field, OpResult, Outcome as Reached, Path, Record, Txn, TxnResult,
    Version, command::Op, comparison::Condition, op_result, outcome, txn_op,
};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

mod outage;

/// Store in memory that can fail, stall, and lose records.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    records: BTreeMap<Bytes, Bytes>,
    operations: Vec<Op>,
    /// Whether every read fails.
    reads_fail: bool,
    /// One of every `fail_every` operations fails; 0 means that none fails.
    fail_every: usize,
    stalled: bool,
    in_flight: u64,
    in_flight_most: u64,
}

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl KvStore for Memory {
    async fn execute(&self, op: Op) -> Answer {
        let stalled = {
            let mut state = self.state();
            state.in_flight += 1;
            state.in_flight_most = state.in_flight_most.max(state.in_flight);
            state.stalled
        };
        if stalled {
            std::future::pending::<()>().await;
        }
        tokio::task::yield_now().await;
        let mut state = self.state();
        state.in_flight -= 1;
        state.operations.push(op.clone());
        let nth = state.fail_every > 0 && state.operations.len().is_multiple_of(state.fail_every);
        if nth || state.reads_fail && matches!(op, Op::Get(_)) {
            return unanswered(ReturnCode::Timeout);
        }
        answered(state.answer(op))
    }
}

/// Returns an answer from a replica named "here".
fn answered(reply: RawReply) -> Answer {
    Answer {
        result: Ok(reply),
        from: Some("here".into()),
        silent: Vec::new(),
    }
}

/// Returns the outcome of a request that the replica "here" did not answer.
fn unanswered(returned: ReturnCode) -> Answer {
    Answer {
        result: Err(OpFailure {
            returned,
            message: "out of patience".into(),
        }),
        from: None,
        silent: vec!["here".into()],
    }
}

impl State {
    fn answer(&mut self, op: Op) -> RawReply {
        let written = Reached::written(Version::default());
        let (outcome, path) = match op {
            Op::Get(get) => match self.records.get(&get.key) {
                Some(value) => (
                    Reached::value(value.clone(), Version::default()),
                    Path::Local,
                ),
                None => (Reached::missing(), Path::Local),
            },
            Op::Put(put) => {
                self.records.insert(put.key, put.value);
                (written, Path::Log)
            }
            Op::PutFields(put) => {
                let old = self.records.remove(&put.key).unwrap_or_default();
                let merged = merge(Record::decode(old).unwrap(), put.fields);
                self.records.insert(put.key, merged.encode_to_vec().into());
                (written, Path::Log)
            }
            Op::Scan(scan) => {
                let found = self.records.range(scan.from..).take(scan.limit as usize);
                let entries = found.map(|(key, value)| Entry {
                    key: key.clone(),
                    value: value.clone(),
                    version: None,
                });
                (Reached::entries(entries.collect()), Path::ReadIndex)
            }
            Op::Txn(txn) => (self.execute(txn), Path::Log),
            other => panic!("no workload sends {other:?}"),
        };
        RawReply {
            outcome,
            path,
            replica: "CA".into(),
        }
    }
}

impl State {
    /// Executes a transaction as the workloads send it.
    fn execute(&mut self, txn: Txn) -> Reached {
        let [comparison] = &txn.comparisons[..] else {
            panic!("one comparison: {txn:?}");
        };
        assert_eq!(comparison.condition, Some(Condition::Present(true)));
        if !self.records.contains_key(&comparison.key) {
            let failed = Some(FailedComparison::default());
            return Reached::txn(TxnResult {
                or_else: true,
                failed,
                ..TxnResult::default()
            });
        }
        let listed = txn.then.into_iter().filter_map(|listed| listed.op);
        let results = listed.map(|operation| {
            let op = match operation {
                txn_op::Op::Get(get) => Op::Get(get),
                txn_op::Op::Put(put) => Op::Put(put),
                txn_op::Op::PutFields(put) => Op::PutFields(put),
                other => panic!("no workload sends {other:?}"),
            };
            let result = match self.answer(op).outcome.result {
                Some(outcome::Result::Value(value)) => op_result::Result::Value(value),
                _ => op_result::Result::Count(1),
            };
            OpResult {
                result: Some(result),
            }
        });
        Reached::txn(TxnResult {
            results: results.collect(),
            ..TxnResult::default()
        })
    }
}

fn merge(mut record: Record, fields: Vec<Field>) -> Record {
    for field in fields {
        record.fields.retain(|old| old.name != field.name);
        record.fields.push(field);
    }
    record
}

#[derive(Default)]
struct Seen {
    intervals: Vec<(u64, u64, u64)>,
    refreshes: usize,
}

impl Observer for Seen {
    fn interval(&mut self, tick: &Tick<'_>) {
        let measured = tick.measured.iter().map(|(_, h)| h.len()).sum();
        self.intervals
            .push((tick.done_in_interval, measured, tick.todo));
    }

    fn refresh(&mut self, progress: &RunProgress) {
        assert!(progress.done <= progress.all || progress.all == 0);
        self.refreshes += 1;
    }
}

fn options(phase: Phase) -> RunOptions {
    RunOptions {
        phase,
        threads: 4,
        target: None,
        time_max: None,
        warmup: Duration::ZERO,
        interval: Interval::Op,
        precise: true,
        interval_every: Duration::from_secs(10),
        refresh_every: None,
        insert_retries: 0,
        insert_retry_pause: Duration::ZERO,
        insert_keep_going: true,
    }
}

fn workload(text: &str) -> CoreWorkload {
    let mut properties = Properties::new();
    properties
        .load_text("base", "recordcount=50\noperationcount=400")
        .unwrap();
    properties.load_text("test", text).unwrap();
    CoreWorkload::new(&properties).unwrap()
}

async fn go(
    store: &Memory,
    workload: &CoreWorkload,
    options: &RunOptions,
) -> (BenchmarkOutcome, Seen) {
    go_until(store, workload, options, &CancellationToken::new()).await
}

async fn go_until(
    store: &Memory,
    workload: &CoreWorkload,
    options: &RunOptions,
    cancel: &CancellationToken,
) -> (BenchmarkOutcome, Seen) {
    let mut seen = Seen::default();
    let stores = [site_store(store.clone())];
    let outcome = run(workload, &stores, options, &mut seen, cancel)
        .await
        .unwrap();
    (outcome, seen)
}

fn site_store<S>(store: S) -> SiteStore<S> {
    SiteStore {
        site: 2,
        site_number: 2,
        address: "here".into(),
        routed: false,
        core: Core::default(),
        store,
    }
}

fn done(outcome: &BenchmarkOutcome, kind: OpKind) -> u64 {
    outcome
        .measurements
        .total(|key| key.metric == Metric::Done(kind))
        .len()
}

fn returned(outcome: &BenchmarkOutcome, what: Metric, returned: ReturnCode) -> u64 {
    let mut all = outcome.measurements.returns(what);
    all.find(|(of, _)| *of == returned)
        .map_or(0, |(_, count)| count)
}

#[tokio::test]
async fn load_then_run_finds_every_record() {
    let store = Memory::default();
    let text =
        "readproportion=0.5\nupdateproportion=0.5\nrequestdistribution=zipfian\ndataintegrity=true";
    let workload = workload(text);
    let (loaded, _) = go(&store, &workload, &options(Phase::Load)).await;
    assert_eq!(
        (loaded.account.ended(), done(&loaded, OpKind::Insert)),
        (50, 50)
    );
    assert_eq!(store.state().records.len(), 50);

    let (outcome, seen) = go(&store, &workload, &options(Phase::Run)).await;
    let (reads, updates) = (done(&outcome, OpKind::Read), done(&outcome, OpKind::Update));
    assert_eq!((outcome.account.ended(), reads + updates), (400, 400));
    assert_eq!(returned(&outcome, Metric::Verify, ReturnCode::Ok), reads);
    assert_eq!(store.state().records.len(), 50, "updates make no records");
    assert_eq!(
        seen.intervals,
        [(400, 400 + reads, 0)],
        "the last interval is reported"
    );
    assert_eq!(
        store.state().in_flight_most,
        4,
        "one operation for each thread"
    );
    let here = outcome.measurements.keys().all(|key| key.site == 2);
    assert!(here && !outcome.cancelled && outcome.account.abandoned == 0);
    assert_eq!(outcome.shortfall(), None);
}

#[tokio::test]
async fn paths_are_kept_apart() {
    let store = Memory::default();
    let workload = workload("readproportion=0.5\nscanproportion=0.5\nupdateproportion=0");
    go(&store, &workload, &options(Phase::Load)).await;
    let (outcome, _) = go(&store, &workload, &options(Phase::Run)).await;
    let paths: Vec<_> = outcome
        .measurements
        .keys()
        .map(|key| (key.metric, key.path))
        .collect();
    assert_eq!(
        paths,
        [
            (Metric::Done(OpKind::Read), Path::Local),
            (Metric::Done(OpKind::Scan), Path::ReadIndex),
            (Metric::PerRecord, Path::Unspecified)
        ]
    );
}

#[tokio::test]
async fn damage_is_found() {
    let store = Memory::default();
    let workload = workload("dataintegrity=true\nreadproportion=1\nupdateproportion=0");
    go(&store, &workload, &options(Phase::Load)).await;
    {
        let mut state = store.state();
        let (first, last) = (
            state.records.keys().next().cloned().unwrap(),
            state.records.keys().last().cloned().unwrap(),
        );
        let swapped = state.records[&last].clone();
        state.records.insert(first, swapped);
        state.records.remove(&last);
    }
    let (outcome, _) = go(&store, &workload, &options(Phase::Run)).await;
    let damaged = returned(&outcome, Metric::Verify, ReturnCode::UnexpectedState);
    let missing = returned(&outcome, Metric::Verify, ReturnCode::Error);
    assert!(damaged > 0 && missing > 0, "{damaged} {missing}");
    assert_eq!(
        returned(&outcome, Metric::Done(OpKind::Read), ReturnCode::NotFound),
        missing
    );
}

#[tokio::test]
async fn a_read_modify_write_counts_as_read_update_and_itself() {
    let store = Memory::default();
    let workload = workload("readproportion=0\nupdateproportion=0\nreadmodifywriteproportion=1");
    go(&store, &workload, &options(Phase::Load)).await;
    let (outcome, _) = go(&store, &workload, &options(Phase::Run)).await;
    assert_eq!(outcome.account.ended(), 400);
    for kind in [OpKind::Read, OpKind::Update, OpKind::ReadModifyWrite] {
        assert_eq!(done(&outcome, kind), 400, "{kind:?}");
    }
    let partial = |op: &&Op| matches!(op, Op::PutFields(_));
    assert_eq!(store.state().operations.iter().filter(partial).count(), 400);
}

#[tokio::test]
async fn a_read_modify_write_updates_whatever_the_read_returned() {
    let store = Memory::default();
    let text = "readproportion=0\nupdateproportion=0\nreadmodifywriteproportion=1\n\
                dataintegrity=true";
    let workload = workload(text);
    go(&store, &workload, &options(Phase::Load)).await;
    store.state().reads_fail = true;
    let (outcome, _) = go(&store, &workload, &options(Phase::Run)).await;
    let failed = |kind| returned(&outcome, Metric::Done(kind), ReturnCode::Timeout);
    assert_eq!(
        (failed(OpKind::Read), done(&outcome, OpKind::Read)),
        (400, 0)
    );
    assert_eq!(done(&outcome, OpKind::Update), 400);
    let partial = |op: &&Op| matches!(op, Op::PutFields(_));
    assert_eq!(store.state().operations.iter().filter(partial).count(), 400);
    // The read-modify-write failed as a whole, because its read failed.
    assert_eq!(failed(OpKind::ReadModifyWrite), 400);
    assert_eq!(
        (outcome.account.succeeded, outcome.account.failed),
        (0, 400)
    );
}

#[tokio::test]
async fn a_transaction_reads_one_record_and_writes_others() {
    let store = Memory::default();
    let text = "readproportion=0\nupdateproportion=0\ntxnproportion=1\ntxnkeys=4\n\
                dataintegrity=true";
    let workload = workload(text);
    go(&store, &workload, &options(Phase::Load)).await;
    let loaded = store.state().operations.len();
    let (outcome, _) = go(&store, &workload, &options(Phase::Run)).await;
    assert_eq!(
        (outcome.account.succeeded, done(&outcome, OpKind::Txn)),
        (400, 400)
    );
    assert_eq!(returned(&outcome, Metric::Verify, ReturnCode::Ok), 400);
    for op in &store.state().operations[loaded..] {
        let Op::Txn(txn) = op else { panic!("{op:?}") };
        assert_eq!(leasehold_wire::validate_op(op), Ok(()));
        assert!(matches!(txn.then[0].op, Some(txn_op::Op::Get(_))));
        let writes = &txn.then[1..];
        assert_eq!(writes.len(), 3);
        let merges =
            |listed: &leasehold_wire::TxnOp| matches!(listed.op, Some(txn_op::Op::PutFields(_)));
        assert!(writes.iter().all(merges), "{writes:?}");
    }
}

#[tokio::test]
async fn a_transaction_with_a_record_that_does_not_exist_is_reported_so() {
    let store = Memory::default();
    let workload = workload("readproportion=0\nupdateproportion=0\ntxnproportion=1");
    go(&store, &workload, &options(Phase::Load)).await;
    store.state().records.pop_last();
    let before = store.state().records.clone();
    let (outcome, _) = go(&store, &workload, &options(Phase::Run)).await;
    let missing = returned(&outcome, Metric::Done(OpKind::Txn), ReturnCode::NotFound);
    assert!((1..400).contains(&missing), "{missing}");
    assert_eq!(outcome.account.failed, missing);
    assert_eq!(outcome.account.succeeded, 400 - missing);
    assert_ne!(store.state().records, before, "others were written");
}

#[tokio::test]
async fn scans_are_also_reported_by_the_record() {
    let store = Memory::default();
    let text = "scanproportion=1\nreadproportion=0\nupdateproportion=0\nmaxscanlength=10\n\
                insertorder=ordered";
    let workload = workload(text);
    go(&store, &workload, &options(Phase::Load)).await;
    let (outcome, _) = go(&store, &workload, &options(Phase::Run)).await;
    let by_record = outcome
        .measurements
        .total(|key| key.metric == Metric::PerRecord);
    assert_eq!(by_record.len(), done(&outcome, OpKind::Scan));
    assert_eq!(by_record.len(), 400);
}

#[tokio::test]
async fn a_load_ends_at_an_insertion_that_fails_unless_it_is_to_keep_going() {
    let load = async |insert_keep_going| {
        let store = Memory::default();
        store.state().fail_every = 20;
        let options = RunOptions {
            insert_keep_going,
            threads: 1,
            ..options(Phase::Load)
        };
        go(&store, &workload(""), &options).await.0
    };
    let stopped = load(false).await;
    assert_eq!((stopped.account.succeeded, stopped.account.failed), (19, 1));
    let inserted = Shortfall::LoadFailed { inserted: 19 };
    assert_eq!(stopped.shortfall(), Some(inserted));
    let went_on = load(true).await;
    assert_eq!((went_on.account.succeeded, went_on.account.failed), (48, 2));
    assert_eq!(went_on.shortfall(), None);
}

#[tokio::test]
async fn a_run_in_which_everything_fails_falls_short() {
    let store = Memory::default();
    store.state().reads_fail = true;
    let workload = workload("readproportion=1\nupdateproportion=0");
    let (outcome, _) = go(&store, &workload, &options(Phase::Run)).await;
    let shortfall = outcome.shortfall();
    assert_eq!(
        shortfall,
        Some(Shortfall::NothingSucceeded { intended: 400 })
    );
}

#[tokio::test]
async fn failures_are_counted_with_their_latency_and_never_dropped() {
    let store = Memory::default();
    let workload = workload("");
    go(&store, &workload, &options(Phase::Load)).await;
    store.state().fail_every = 10;
    let (outcome, _) = go(&store, &workload, &options(Phase::Run)).await;
    let failed = |key: &SeriesKey| matches!(key.metric, Metric::Failed(_));
    assert_eq!(outcome.account.ended(), 400);
    assert_eq!(outcome.measurements.total(failed).len(), 40);
    let timeouts = [OpKind::Read, OpKind::Update]
        .map(|kind| returned(&outcome, Metric::Done(kind), ReturnCode::Timeout));
    assert_eq!(timeouts.iter().sum::<u64>(), 40);
}

#[tokio::test]
async fn failed_insertions_are_tried_again_if_asked() {
    let store = Memory::default();
    store.state().fail_every = 3;
    let (outcome, _) = go(&store, &workload(""), &options(Phase::Load)).await;
    assert_eq!(
        (outcome.account.ended(), store.state().records.len()),
        (50, 34)
    );

    let store = Memory::default();
    store.state().fail_every = 3;
    let patient = RunOptions {
        insert_retries: 20,
        ..options(Phase::Load)
    };
    let (outcome, _) = go(&store, &workload(""), &patient).await;
    assert_eq!(
        (outcome.account.ended(), store.state().records.len()),
        (50, 50)
    );
    assert_eq!(
        returned(&outcome, Metric::Done(OpKind::Insert), ReturnCode::Timeout),
        24
    );
}

#[tokio::test]
async fn a_target_rate_is_kept_and_measured_from_the_intended_start() {
    let store = Memory::default();
    let workload = workload("readproportion=1\nupdateproportion=0\noperationcount=100");
    go(&store, &workload, &options(Phase::Load)).await;
    let paced = RunOptions {
        target: Some(1_000.0),
        interval: Interval::Both,
        ..options(Phase::Run)
    };
    let (outcome, _) = go(&store, &workload, &paced).await;
    // The hundredth operation is due 99 ms after the start, never earlier.
    assert!(
        outcome.account.runtime >= Duration::from_millis(99),
        "{:?}",
        outcome.account.runtime
    );
    let of = |basis| {
        let reads =
            |key: &SeriesKey| key.basis == basis && key.metric == Metric::Done(OpKind::Read);
        outcome.measurements.total(reads)
    };
    let (service, intended) = (
        of(crate::measurement::Basis::Service),
        of(crate::measurement::Basis::Intended),
    );
    assert_eq!((service.len(), intended.len()), (100, 100));
    assert!(intended.mean() >= service.mean());
}

#[tokio::test]
async fn warm_up_is_not_measured() {
    let store = Memory::default();
    let workload = workload("");
    go(&store, &workload, &options(Phase::Load)).await;
    let cold = RunOptions {
        warmup: Duration::from_secs(3600),
        ..options(Phase::Run)
    };
    let (outcome, seen) = go(&store, &workload, &cold).await;
    let account = outcome.account;
    assert_eq!((account.intended(), account.runtime), (0, Duration::ZERO));
    assert_eq!(outcome.shortfall(), Some(Shortfall::NothingMeasured));
    assert_eq!(outcome.measurements.keys().count(), 0);
    assert_eq!(seen.intervals, [(400, 0, 0)], "but it was done");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_run_reports_what_it_has() {
    let store = Memory::default();
    let workload = workload("operationcount=0");
    go(&store, &workload, &options(Phase::Load)).await;
    store.state().stalled = true;
    let cancel = CancellationToken::new();
    cancel.cancel();
    let (outcome, _) = go_until(&store, &workload, &options(Phase::Run), &cancel).await;
    assert!(outcome.cancelled);
    assert_eq!(outcome.account.ended(), 0);
    assert_eq!(outcome.account.intended(), outcome.account.abandoned);
}

/// Store that answers without any delay, and stops the run after a given number of operations.
#[derive(Clone, Default)]
struct Immediate {
    executed: Arc<AtomicU64>,
    cancel: CancellationToken,
}

impl KvStore for Immediate {
    async fn execute(&self, _: Op) -> Answer {
        let executed = self.executed.fetch_add(1, Ordering::Relaxed);
        assert!(executed < 1_000_000, "the run does not end");
        if executed == 100 {
            self.cancel.cancel();
        }
        unanswered(ReturnCode::ServiceUnavailable)
    }
}

#[tokio::test]
async fn a_run_without_an_end_is_stopped_although_nothing_waits() {
    let store = Immediate::default();
    let workload = workload(
        "operationcount=9000000000000\nrequestdistribution=zipfian\ninsertproportion=0.05",
    );
    let stores = [site_store(store.clone())];
    let options = options(Phase::Run);
    let mut seen = Seen::default();
    let outcome = run(&workload, &stores, &options, &mut seen, &store.cancel);
    assert!(outcome.await.unwrap().cancelled);
}

#[tokio::test(start_paused = true)]
async fn time_over_gives_up_on_what_does_not_answer() {
    let store = Memory::default();
    store.state().stalled = true;
    let short = RunOptions {
        time_max: Some(Duration::from_secs(30)),
        interval_every: Duration::from_secs(10),
        refresh_every: Some(Duration::from_secs(1)),
        ..options(Phase::Run)
    };
    let (outcome, seen) = go(&store, &workload(""), &short).await;
    assert_eq!((outcome.account.abandoned, outcome.cancelled), (4, false));
    assert_eq!(outcome.account.runtime, Duration::from_secs(30));
    assert_eq!(
        outcome.shortfall(),
        Some(Shortfall::NothingSucceeded { intended: 4 })
    );
    assert_eq!(seen.intervals.len(), 3, "the last ends with the run");
    assert!(seen.refreshes >= 29, "{}", seen.refreshes);
}

#[tokio::test]
async fn stores_are_used_in_turn() {
    let stores: Vec<_> = (0..2)
        .map(|site| SiteStore {
            site,
            site_number: u64::from(site),
            address: "here".into(),
            routed: false,
            core: Core::default(),
            store: Memory::default(),
        })
        .collect();
    let mut seen = Seen::default();
    let (workload, options) = (workload(""), options(Phase::Load));
    let cancel = CancellationToken::new();
    let outcome = run(&workload, &stores, &options, &mut seen, &cancel)
        .await
        .unwrap();
    let at = |site| outcome.measurements.total(|key| key.site == site).len();
    assert_eq!(at(0) + at(1), 50);
    assert!(at(0) >= 20 && at(1) >= 20);
}

#[test]
fn operations_are_split_without_remainder() {
    let shares: Vec<_> = (0..4).map(|thread| share(10, 4, thread).unwrap()).collect();
    assert_eq!(shares, [3, 3, 2, 2]);
    assert_eq!(share(0, 4, 0), None);
    assert_eq!(
        [thread_count(8, 3), thread_count(8, 0), thread_count(0, 0)],
        [3, 8, 1]
    );
}
