//! Messages with several parts fit into a frame. The harness encodes every message, and fails the
//! test if a message does not fit.

use leasehold_leases::StrategySpec;
use leasehold_replica::message::Message;
use leasehold_wire::{Command, VALUE_BYTES_MAX, command::Op};

use super::cluster::{Cluster, accept, between, read, votes_on, write};

const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Returns writes of values with the maximum length, each by a different client.
fn large() -> Vec<Command> {
    let put = |(client, key): (u64, &&'static str)| {
        write(client, 1, Op::put(*key, vec![7; VALUE_BYTES_MAX]))
    };
    (1..).zip(&KEYS).map(put).collect()
}

fn count(cluster: &Cluster, is: impl Fn(&Message) -> bool) -> usize {
    let sent = cluster.sent.iter();
    sent.filter(|(envelope, _)| is(&envelope.message)).count()
}

#[test]
pub(super) fn h82_answers_to_forwarded_reads_are_split() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    for write in large() {
        let write = cluster.ask(0, write);
        assert!(cluster.done(write));
    }
    cluster.sent.clear();
    let reads = cluster.ask_together(1, KEYS.map(read).into());
    // No time has passed, so no read was sent again.
    assert!(reads.iter().all(|read| cluster.answered(*read)));
    let questions = count(&cluster, |m| matches!(m, Message::ForwardRead { .. }));
    let answers = count(&cluster, |m| matches!(m, Message::ReadAnswers(_)));
    assert_eq!((questions, answers), (1, KEYS.len()));
}

#[test]
pub(super) fn h82_commands_and_promises_are_split() {
    let mut cluster = Cluster::new(5, StrategySpec::None);
    // No replica receives a vote, so nothing is committed.
    cluster.lose(|packet| votes_on(packet, None));
    let writes = cluster.ask_together(1, large());
    let proposed = cluster.accepts(0).into_iter();
    let proposed = proposed.filter(|accept| !accept.value.commands().is_empty());
    assert_eq!(proposed.count(), 4 * KEYS.len());
    cluster.crash(0);
    cluster.heal();
    cluster.elect(1);
    let promised =
        |m: &Message| matches!(m, Message::Prepared { entries, .. } if !entries.is_empty());
    assert!(count(&cluster, promised) >= KEYS.len());
    cluster.pass_until(20_000, "all is committed", |cluster| {
        writes.iter().all(|write| cluster.done(*write))
    });
}

#[test]
pub(super) fn h82_what_was_missed_is_fetched_in_parts() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.isolate(2);
    for sequence in 1..=24 {
        let value = vec![7; VALUE_BYTES_MAX];
        let write = cluster.ask(0, write(1, sequence, Op::put("k", value)));
        assert!(cluster.done(write));
    }
    cluster.heal();
    // The first entries are no longer in memory.
    let goal = cluster.node(0).executed();
    cluster.pass_until(60_000, "it has caught up", |cluster| {
        cluster.node(2).executed() >= goal
    });
    let late = |packet: &&super::cluster::Packet| between(packet, 0, 2) && accept(packet).is_some();
    assert!(cluster.sent.iter().filter(late).count() < 200);
}
