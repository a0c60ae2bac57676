//! What waits for a disk that takes nothing is bounded, and nothing of it is lost.

use bytes::Bytes;
use client::wire::Field;
use client::wire::command::Op;
use leases::{Slot, StrategySpec};
use server::replica::BACKLOG_BYTES_MAX;
use server::replica::action::Record;
use server::replica::message::Value;

use super::cluster::{Asked, Cluster, settings, votes_on, write};

const VALUE_BYTES: usize = 1 << 20;
/// More than may wait.
const WRITES: u64 = (BACKLOG_BYTES_MAX / VALUE_BYTES) as u64 + 20;

/// Writes of a mebibyte, each to a key of its own.
fn write_much(cluster: &mut Cluster) -> Vec<Asked> {
    let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
    let put = |client: u64| Op::put(format!("k{client}"), value.clone());
    let writes = (1..=WRITES).map(|client| cluster.ask(0, write(client, 1, put(client))));
    writes.collect()
}

fn all_done(cluster: &Cluster, writes: &[Asked]) -> bool {
    writes.iter().all(|asked| cluster.done(*asked))
}

/// Values that `node` has handed to its disk since `cluster.written` was this long.
fn handed_to_disk(cluster: &Cluster, node: usize, since: usize) -> usize {
    let records = cluster.written[since..].iter();
    let of_node = records.filter(|(at, _)| *at == node);
    let large = |record: &Record| match record {
        Record::Accepted { value, .. } => {
            matches!(value, Value::Commands(it) if !it.commands.is_empty())
        }
        _ => false,
    };
    of_node.filter(|(_, record)| large(record)).count()
}

fn refused(cluster: &Cluster, node: usize) -> u64 {
    let status = cluster.node(node).status(cluster.clock(node));
    let mut counters = status.counters.iter();
    let found = counters.find(|counter| counter.name == "refused_backlog");
    found.expect("there is such a counter").value
}

/// As many values as a replica takes while its disk takes none: as many as fit, and the one
/// that fills it.
fn assert_bounded(values: usize) {
    let fit = BACKLOG_BYTES_MAX / VALUE_BYTES;
    assert!((fit - 1..=fit + 1).contains(&values), "{values} of {fit}");
}

#[test]
fn a_follower_whose_disk_takes_nothing_keeps_a_bounded_backlog_and_fetches_the_rest() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.stall(2);
    let since = cluster.written.len();
    let writes = write_much(&mut cluster);
    cluster.pass_until(20_000, "others commit", |cluster| {
        all_done(cluster, &writes)
    });
    cluster.pass(5000);
    assert_bounded(handed_to_disk(&cluster, 2, since));
    assert!(refused(&cluster, 2) > 0);
    assert!(cluster.node(2).executed() < cluster.node(0).executed());
    let while_full = cluster.sent.len();
    cluster.pass(5000);
    let fetches = cluster.sent[while_full..].iter();
    let fetches = fetches.filter(|(envelope, _)| envelope.message.name() == "Fetch");
    assert_eq!(fetches.count(), 0, "nothing is fetched to be refused");

    cluster.unstall(2);
    let caught_up = |cluster: &Cluster| cluster.node(2).executed() == cluster.node(0).executed();
    cluster.pass_until(20_000, "it has caught up", caught_up);
    cluster.assert_agreement();
    let last = cluster.ask(2, write(WRITES + 1, 1, Op::put("last", "v")));
    cluster.pass_until(20_000, "it takes part", |cluster| cluster.done(last));
}

#[test]
fn a_leader_whose_disk_takes_nothing_proposes_a_bounded_backlog_and_goes_on() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.stall(0);
    let since = cluster.written.len();
    let writes = write_much(&mut cluster);
    cluster.pass(500);
    assert_bounded(handed_to_disk(&cluster, 0, since));
    assert!(!writes.iter().any(|asked| cluster.done(*asked)));
    cluster.unstall(0);
    cluster.pass_until(20_000, "all are written", |cluster| {
        all_done(cluster, &writes)
    });
}

/// Entries that are sent again and again wait for the disk only as often as may be.
#[test]
fn a_majority_whose_disks_take_nothing_keeps_a_bounded_backlog() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    (1..3).for_each(|node| cluster.stall(node));
    let since = cluster.written.len();
    let writes = write_much(&mut cluster);
    cluster.pass(20_000);
    (1..3).for_each(|node| assert_bounded(handed_to_disk(&cluster, node, since)));
    (1..3).for_each(|node| cluster.unstall(node));
    cluster.pass_until(20_000, "all are written", |cluster| {
        all_done(cluster, &writes)
    });
    cluster.pass(3000);
    cluster.assert_agreement();
}

/// How many of so many merges, all committed in one group of inputs, their leader executes in
/// that group. It executes all of them soon.
fn merged_at_once(merges: u64, executed_work_max: Option<usize>) -> u64 {
    let mut settings = settings(3, StrategySpec::None);
    settings.executed_work_max = executed_work_max.unwrap_or(settings.executed_work_max);
    let mut cluster = Cluster::with(settings);
    let stuck = Slot(cluster.node(0).executed().0 + 1);
    cluster.hold(move |packet| votes_on(packet, Some(stuck)));
    let field = |client: u64| Field {
        name: "f".into(),
        value: client.to_string().into(),
    };
    let merge = |client: u64| write(client, 1, Op::put_fields("k", vec![field(client)]));
    let asked: Vec<Asked> = (1..=merges)
        .map(|client| cluster.ask(0, merge(client)))
        .collect();
    let executed = |cluster: &Cluster| cluster.node(0).executed().0 + 1 - stuck.0;
    assert_eq!(executed(&cluster), 0);
    let votes = std::mem::take(&mut cluster.held);
    cluster.forget_held();
    cluster.deliver(votes[0].clone());
    let at_once = executed(&cluster);
    cluster.pass(100);
    assert_eq!(executed(&cluster), merges);
    assert!(all_done(&cluster, &asked));
    cluster.assert_agreement();
    at_once
}

#[test]
fn a_group_of_inputs_executes_only_so_much_and_the_next_goes_on() {
    // A merge counts as some 4 KiB, and there is time for 2 MiB.
    let at_once = merged_at_once(700, None);
    assert!((400..600).contains(&at_once), "{at_once} slots at once");
}

/// So what is committed and not executed is bounded, however fast commits come.
#[test]
fn a_group_of_inputs_executes_a_share_of_what_is_left() {
    assert_eq!(merged_at_once(720, Some(1)), 80);
}
