//! Commit points that a restart relies on, and the truncation of logs.

use std::time::Duration;

use leasehold_leases::{LeaseMessage, ReplicaId, Slot, StrategySpec};
use leasehold_replica::Settings;
use leasehold_replica::message::{LogId, Message};
use leasehold_wire::command::Op;

use super::cluster::{Cluster, Packet, accept, between, put, settings, write};

/// Returns settings under which states are flushed at this interval.
fn flushed_every(interval: Duration, n: usize) -> Settings {
    let mut settings = settings(n, StrategySpec::None);
    settings.timing.checkpoint = interval;
    settings
}

/// Writes `writes` values, and asserts that each is answered.
fn write_values(cluster: &mut Cluster, writes: std::ops::RangeInclusive<u64>) {
    for sequence in writes {
        let command = write(1, sequence, Op::put("k", sequence.to_string()));
        let write = cluster.ask(0, command);
        cluster.pass_until(1000, "it is answered", |cluster| cluster.done(write));
    }
}

/// Whether a replica finds an entry of the log of commands in this slot on its disk.
fn has_entry(cluster: &Cluster, node: usize, slot: Slot) -> bool {
    let entries = cluster.disk(node).read_log(LogId::Commands, slot, slot);
    !entries.is_empty()
}

#[test]
pub(super) fn h107_a_restart_executes_what_was_committed_and_nothing_else() {
    let mut cluster = Cluster::with(flushed_every(Duration::from_secs(3600), 5));
    write_values(&mut cluster, 1..=3);
    cluster.pass(1000);
    let executed = cluster.node(4).executed();
    // Replica 4 accepts the next write, and no majority does.
    let to_others = |packet: &Packet| accept(packet).is_some() && packet.1 != ReplicaId(4);
    cluster.lose(to_others);
    cluster.ask(0, put(1, 4, "k", "not chosen"));
    cluster.pass(10);
    assert!(has_entry(&cluster, 4, executed.next()));
    cluster.crash(4);
    cluster.heal();
    cluster.isolate(4);
    cluster.isolate(0);
    cluster.start(4);
    cluster.pass(50);
    assert_eq!(cluster.node(4).executed(), executed, "without a leader");
    // The others choose another value in that slot.
    cluster.elect(1);
    let write = cluster.ask(1, put(2, 1, "k", "chosen"));
    cluster.pass_until(3000, "it is answered", |cluster| cluster.done(write));
    cluster.heal();
    cluster.pass(3000);
    cluster.assert_agreement();
}

#[test]
pub(super) fn h125_entries_stay_until_every_member_has_flushed_them() {
    let mut cluster = Cluster::with(flushed_every(Duration::from_secs(1), 3));
    let first = cluster.node(0).executed().next();
    cluster.isolate(2);
    write_values(&mut cluster, 1..=20);
    cluster.pass(3000);
    // After a restart the entries are only on the disks.
    for node in [0, 1] {
        cluster.crash(node);
        cluster.start(node);
    }
    cluster.heal();
    let newest = cluster.node(0).executed();
    cluster.pass_until(9000, "replica 2 has caught up", |cluster| {
        cluster.node(2).executed() >= newest
    });
    cluster.pass(3000);
    cluster.assert_agreement();
    for node in 0..3 {
        assert!(!has_entry(&cluster, node, first), "at replica {node}");
    }
}

/// A replica that starts with a truncated log knows the highest slot that it has accepted.
#[test]
fn a_restart_after_truncation_leads_above_everything() {
    let mut cluster = Cluster::with(flushed_every(Duration::from_secs(1), 3));
    write_values(&mut cluster, 1..=20);
    cluster.pass(5000);
    let executed = cluster.node(0).executed();
    assert!(!has_entry(&cluster, 0, executed));
    (0..3).for_each(|node| cluster.crash(node));
    (0..3).for_each(|node| cluster.start(node));
    cluster.pass_until(9000, "a leader", |cluster| {
        (0..3).any(|node| cluster.leads(node))
    });
    write_values(&mut cluster, 21..=22);
    assert!(cluster.node(0).executed() > executed);
    cluster.pass(3000);
    cluster.assert_agreement();
}

/// The log of a grantor holds nothing any more. Its promises still count everything that it has
/// accepted.
#[test]
pub(super) fn h44_a_promise_counts_what_was_truncated() {
    let mut settings = settings(3, StrategySpec::All);
    settings.timing.checkpoint = Duration::from_secs(1);
    let mut cluster = Cluster::with(settings);
    write_values(&mut cluster, 1..=20);
    cluster.pass(5000);
    let executed = cluster.node(1).executed();
    assert!(!has_entry(&cluster, 1, executed));
    cluster.crash(1);
    let before = cluster.sent.len();
    cluster.start(1);
    let promise = |packet: &Packet| {
        let is_promise = matches!(packet.0.message, Message::Lease(LeaseMessage::Promise(_)));
        is_promise && between(packet, 1, 2)
    };
    cluster.pass_until(9000, "1 promises to 2 again", |cluster| {
        cluster.sent[before..].iter().any(promise)
    });
    let promise = cluster.last_promise(1, 2).expect("promised anew");
    assert!(promise.highest_accepted >= executed, "{promise:?}");
}
