//! Changes of the executed state on their way to the disk: batches, and flushes.

use bytes::Bytes;
use leasehold_leases::{ConfigId, KeyRange, Slot, StrategySpec, UnlistedHolders};
use leasehold_replica::action::{Record, StateChanges};
use leasehold_replica::lease_set::LeaseSet;
use leasehold_replica::message::LogId;
use leasehold_replica::{Input, OperatorRequest};
use leasehold_wire::command::Op;

use super::backlog::VALUE_BYTES;
use super::cluster::{Cluster, put, settings, write};

/// Returns the batches that `node` has handed to its disk since `cluster.written` had the length
/// `since`.
fn handed_over(cluster: &Cluster, node: usize, since: usize) -> Vec<StateChanges> {
    let of_node = cluster.written[since..]
        .iter()
        .filter(|(at, _)| *at == node);
    let changes = of_node.filter_map(|(_, record)| match record {
        Record::Changes(changes) => Some(StateChanges::clone(changes)),
        _ => None,
    });
    changes.collect()
}

/// Writes 20 MiB within 20 ms.
fn write_large(cluster: &mut Cluster, key: impl Fn(u64) -> String) {
    for client in 1..=20 {
        let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
        cluster.ask(0, write(client, 1, Op::put(key(client), value)));
        cluster.pass(1);
    }
}

/// A batch that collects changes for a long time would keep the storage busy for a long time.
#[test]
fn large_values_are_handed_over_at_once() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.pass(1000);
    let since = cluster.written.len();
    write_large(&mut cluster, |client| format!("k{client}"));
    for node in 0..3 {
        let batches = handed_over(&cluster, node, since);
        let newest = batches.last().expect("one is handed over").executed;
        let above = cluster.node(node).executed().0 - newest.0;
        assert!(above <= 2, "{above} MiB at replica {node}");
    }
}

/// Small values that are replaced within a second are mostly written only once.
#[test]
fn a_small_value_that_is_soon_replaced_is_in_no_batch() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.pass(3000);
    let since = cluster.written.len();
    for sequence in 1..=20 {
        cluster.ask(0, write(1, sequence, Op::put("k", sequence.to_string())));
        cluster.pass(1);
    }
    cluster.pass(2000);
    for node in 0..3 {
        let batches = handed_over(&cluster, node, since);
        let values = batches.iter().flat_map(|batch| &batch.entries).count();
        assert!((1..=3).contains(&values), "{values} at replica {node}");
    }
}

/// A crash loses the batches that were not flushed. The log still has their commands.
#[test]
fn a_crash_loses_what_was_not_flushed_and_the_log_has_it() {
    let mut settings = settings(3, StrategySpec::None);
    settings.timing.checkpoint = std::time::Duration::from_secs(3600);
    let mut cluster = Cluster::with(settings);
    let since = cluster.written.len();
    // Enough for a batch, and too little for a flush.
    for client in 1..=4 {
        let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
        cluster.ask(0, write(client, 1, Op::put(format!("k{client}"), value)));
        cluster.pass(1);
    }
    cluster.pass(1000);
    assert!(!handed_over(&cluster, 2, since).is_empty());
    let executed = cluster.node(2).executed();
    cluster.crash(2);
    cluster.start(2);
    assert!(cluster.node(2).executed() < executed);
    cluster.pass(5000);
    assert!(cluster.node(2).executed() >= executed);
    cluster.assert_agreement();
}

/// The log above a flushed position lacks the commands that wrote the rows below it.
#[test]
pub(super) fn h88_a_flushed_position_comes_with_its_rows() {
    let mut cluster = flushed_often(StrategySpec::None);
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    assert!(cluster.done(write));
    cluster.pass(5000);
    (0..3).for_each(|node| cluster.crash(node));
    (0..3).for_each(|node| cluster.start(node));
    let read = cluster.read(0, "k");
    cluster.pass_until(9000, "it is read", |cluster| cluster.answered(read));
    assert_eq!(cluster.value(read).as_deref(), Some("v"));
}

/// The rows of an executed write are flushed. Its session must be flushed with them, or a copy of
/// the write is executed again.
#[test]
pub(super) fn h121_sessions_are_flushed_with_the_rest() {
    let mut cluster = flushed_often(StrategySpec::None);
    let first = cluster.ask(0, put(1, 1, "k", "first"));
    let second = cluster.ask(0, put(2, 1, "k", "second"));
    assert!(cluster.done(first) && cluster.done(second));
    cluster.pass(5000);
    (0..3).for_each(|node| cluster.crash(node));
    (0..3).for_each(|node| cluster.start(node));
    let copy = cluster.ask(0, put(1, 1, "k", "first"));
    cluster.pass_until(9000, "it is answered", |cluster| cluster.answered(copy));
    assert!(cluster.done(copy), "the session has the result");
    let read = cluster.read(0, "k");
    cluster.pass_until(9000, "it is read", |cluster| cluster.answered(read));
    assert_eq!(cluster.value(read).as_deref(), Some("second"));
}

/// Returns a cluster that flushes its states each second.
fn flushed_often(strategy: StrategySpec) -> Cluster {
    let mut settings = settings(3, strategy);
    settings.timing.checkpoint = std::time::Duration::from_secs(1);
    Cluster::with(settings)
}

/// The configuration file of each replica still names the strategy of the first start.
#[test]
pub(super) fn h71_a_restart_does_not_replace_the_choice_of_an_operator() {
    let mut cluster = flushed_often(StrategySpec::Leader);
    let set = LeaseSet {
        strategies: vec![(KeyRange::all(), StrategySpec::All)],
        ..LeaseSet::default()
    };
    let request = OperatorRequest::Lease { ask: 1, set };
    cluster.input(0, Input::Operator(request));
    cluster.pass_until(5000, "it is in force", |cluster| {
        !cluster.lease_answers.is_empty()
    });
    cluster.pass(5000);
    (0..3).for_each(|node| cluster.crash(node));
    (0..3).for_each(|node| cluster.start(node));
    cluster.pass_until(9000, "a leader", |cluster| {
        (0..3).any(|node| cluster.leads(node))
    });
    cluster.pass(5000);
    for node in 0..3 {
        let strategy = cluster.node(node).configs().strategy_of(b"k");
        assert_eq!(*strategy, StrategySpec::All, "at replica {node}");
    }
}

/// The log no longer has the entries of the configurations, because all members have flushed them.
#[test]
fn a_restart_restores_the_configurations_from_the_state() {
    let unlisted = UnlistedHolders::Nearest;
    let mut cluster = flushed_often(StrategySpec::Quorum { unlisted });
    for key in ["a", "b", "c", "d"] {
        for _ in 0..8 {
            cluster.read(2, key);
            cluster.pass(100);
        }
        cluster.pass(3000);
    }
    cluster.pass(6000);
    let configs = cluster.node(2).configs().clone();
    let (newest, listed) = (configs.newest(), configs.listed_len());
    assert!(newest.0 > 3 && listed > 1, "{newest:?}, {listed} listed");
    let first = Slot(newest.0);
    let entries = cluster.disk(2).read_log(LogId::Configs, Slot(1), first);
    assert!(entries.is_empty(), "{entries:?}");
    cluster.crash(2);
    cluster.isolate(2);
    cluster.start(2);
    let restored = cluster.node(2).configs();
    assert_eq!(restored.newest(), newest);
    assert_eq!(restored.oldest_kept().0 + 2, newest.0);
    assert_eq!(restored.listed_by_range(), configs.listed_by_range());
    for key in ["a", "b", "c", "d", "e"] {
        let key = key.as_bytes();
        for id in (restored.oldest_kept().0..=newest.0).map(ConfigId) {
            let holders = restored.view(key).holders(id);
            assert_eq!(holders, configs.view(key).holders(id));
        }
    }
}
