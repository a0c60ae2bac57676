//! Changes of the executed state on their way to the disk: batches, and flushes.

use bytes::Bytes;
use leasehold_leases::StrategySpec;
use leasehold_replica::action::{Record, StateChanges};
use leasehold_wire::command::Op;

use super::backlog::VALUE_BYTES;
use super::cluster::{Cluster, settings, write};

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
