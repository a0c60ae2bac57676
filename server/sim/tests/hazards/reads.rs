//! Reads that are held, forwarded or confirmed.

use std::collections::BTreeSet;

use leasehold_leases::{Key, Slot, StrategySpec};
use leasehold_replica::message::{Accept, LogId, Message};
use leasehold_wire::command::Op;
use leasehold_wire::comparison::Condition;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{Command, Comparison, Get, KeyValue, Path, Put, Txn, TxnOp};

use super::cluster::{Cluster, Packet, accept, between, put, read, settings, votes_on, write};

fn votes_to(leader: usize) -> impl Fn(&Packet) -> bool {
    move |packet| votes_on(packet, None) && packet.1.index() == leader
}

#[test]
pub(super) fn h10_a_leader_waits_for_its_own_writes_in_flight() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    // The origin learns of the commit and answers its client. The leader does not learn of it.
    cluster.hold(votes_to(0));
    let write = cluster.ask(1, put(1, 1, "k", "new"));
    assert!(cluster.done(write));
    let read = cluster.read(0, "k");
    assert!(!cluster.answered(read), "the old value was overwritten");
    cluster.release();
    assert_eq!(cluster.value(read).as_deref(), Some("new"));
}

#[test]
pub(super) fn h18_a_read_does_not_wait_for_a_value_that_was_replaced() {
    let mut cluster = Cluster::new(5, StrategySpec::All);
    // Only holder 4 receives the write, and the leader dies.
    cluster.lose(|packet| accept(packet).is_some() && packet.1.index() != 4);
    cluster.ask(0, put(1, 1, "k", "lost"));
    let read = cluster.read(4, "k");
    assert!(!cluster.answered(read), "it waits for the write");
    cluster.heal();
    cluster.isolate(0);
    // 4 knows the lost write, and does not receive the Prepare.
    let prepare = |packet: &Packet| matches!(packet.0.message, Message::Prepare { .. });
    cluster.lose(move |packet| between(packet, 1, 4) && prepare(packet));
    cluster.elect(1);
    assert!(cluster.leads(1));
    // It has a permit; without one, it would forward the read anyway.
    assert_eq!(cluster.path(read), Some(Path::Local));
    assert_eq!(cluster.value(read).as_deref(), Some(""));
}

#[test]
pub(super) fn h26_the_index_is_what_was_proposed_not_what_the_leader_knows_committed() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.hold(votes_to(0));
    let write = cluster.ask(1, put(1, 1, "k", "new"));
    assert!(cluster.done(write), "the origin knows");
    let read = cluster.read(2, "k");
    assert!(!cluster.answered(read), "the leader does not know yet");
    cluster.release();
    cluster.pass(1);
    assert_eq!(cluster.value(read).as_deref(), Some("new"));
    assert_eq!(cluster.path(read), Some(Path::ReadIndex));
}

#[test]
pub(super) fn h26_an_old_answer_confirms_nothing() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    // Answers to the leader's heartbeats are in transit when it is cut off.
    let ack = |packet: &Packet| matches!(packet.0.message, Message::HeartbeatAck { .. });
    cluster.hold(move |packet| ack(packet) && packet.1.index() == 0);
    cluster.pass(500);
    let old = cluster.held.clone();
    assert!(!old.is_empty());
    cluster.forget_held();
    cluster.isolate(0);
    cluster.elect(1);
    let write = cluster.ask(1, put(1, 1, "k", "new"));
    assert!(cluster.done(write));
    // The old leader does not know that another one leads, and must not answer because of these
    // acks.
    let read = cluster.read(0, "k");
    old.into_iter().for_each(|packet| cluster.deliver(packet));
    assert!(!cluster.answered(read));
    cluster.heal();
    cluster.pass(3000);
    assert_eq!(cluster.value(read).as_deref(), Some("new"));
}

#[test]
pub(super) fn h37_a_forwarded_answer_of_an_earlier_life_is_no_answer() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.ask(0, put(1, 1, "k", "old"));
    let answers = |packet: &Packet| matches!(packet.0.message, Message::ReadAnswers(_));
    cluster.hold(move |packet| answers(packet) && packet.1.index() == 2);
    cluster.read(2, "k");
    let mut old = std::mem::take(&mut cluster.held);
    assert_eq!(old.len(), 1);
    cluster.forget_held();
    cluster.crash(2);
    cluster.start(2);
    cluster.pass(1000);
    cluster.ask(0, put(1, 2, "k", "new"));
    // The first read of the new run, and the answer to the first read of the old run.
    cluster.hold(move |packet| answers(packet) && packet.1.index() == 2);
    let read = cluster.read(2, "k");
    let mut packet = old.remove(0);
    cluster.deliver(packet.clone());
    assert!(!cluster.answered(read), "that answers another life's read");
    // This holds even if the answer named the present run, because each attempt has another name.
    packet.0.to_incarnation = cluster.node(2).incarnation();
    cluster.deliver(packet);
    assert!(!cluster.answered(read));
    cluster.release();
    assert_eq!(cluster.value(read).as_deref(), Some("new"));
}

#[test]
pub(super) fn h43_several_keys_are_read_under_leases_or_in_the_log() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.ask(0, put(1, 1, "a", "1"));
    let many = Op::multi_get(vec![Key::from("a"), Key::from("b")]);
    let many = cluster.ask(2, write(0, 0, many));
    assert_eq!(cluster.path(many), Some(Path::Log), "never by read-index");
    let scan = cluster.ask(2, write(0, 0, Op::scan("a", "", 10)));
    assert_eq!(cluster.path(scan), Some(Path::Log));
    // Under leases the read is local, unless a key that it could return is marked.
    let mut cluster = Cluster::new(3, StrategySpec::All);
    let scan = cluster.ask(2, write(0, 0, Op::scan("a", "c", 10)));
    assert_eq!(cluster.path(scan), Some(Path::Local));
    cluster.hold(|packet| votes_on(packet, None));
    cluster.ask(0, put(1, 1, "b", "1"));
    let scan = cluster.ask(2, write(0, 0, Op::scan("a", "c", 10)));
    assert!(
        !cluster.answered(scan),
        "a write to an absent key is in flight"
    );
    cluster.release();
    assert_eq!(cluster.path(scan), Some(Path::Log));
}

#[test]
fn a_read_refused_by_a_leader_of_the_past_is_not_asked_there_again_at_once() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    // 2 does not learn of the new leader, and the old one refuses.
    cluster.lose(|packet| between(packet, 1, 2));
    cluster.elect(1);
    assert!(cluster.leads(1));
    let asks = |packet: &&Packet| matches!(packet.0.message, Message::ForwardRead { .. });
    let before = cluster.sent.iter().filter(asks).count();
    let read = cluster.read(2, "k");
    let asked = cluster.sent.iter().filter(asks).count() - before;
    assert_eq!(asked, 1);
    assert!(!cluster.answered(read));
    cluster.heal();
    cluster.pass(2000);
    assert_eq!(cluster.path(read), Some(Path::ReadIndex));
}

#[test]
fn a_read_that_was_asked_of_a_leader_that_is_gone_asks_the_next_at_once() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.crash(0);
    let read = cluster.read(2, "k");
    assert!(!cluster.answered(read));
    cluster.elect(1);
    cluster.pass(1);
    assert_eq!(cluster.path(read), Some(Path::ReadIndex));
}

#[test]
fn reads_that_wait_for_a_leader_ask_the_next_as_soon_as_it_is_heard_of() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    // No replica confirms reads to the old leader: one of its own client, and one forwarded by 2.
    let ack = |packet: &Packet| matches!(packet.0.message, Message::HeartbeatAck { .. });
    cluster.lose(move |packet| ack(packet) && packet.1.index() == 0);
    let own = cluster.read(0, "k");
    let forwarded = cluster.read(2, "k");
    // The replica that leads next has forwarded this read to 0, too.
    let next = cluster.read(1, "k");
    for read in [own, forwarded, next] {
        assert!(!cluster.answered(read));
    }
    cluster.elect(1);
    cluster.pass(1);
    for read in [own, forwarded, next] {
        assert_eq!(cluster.path(read), Some(Path::ReadIndex));
    }
}

#[test]
fn a_committed_slot_is_read_before_those_before_it() {
    // §3.3: a slot that is blocked on one key does not delay readers of another key.
    let mut cluster = Cluster::new(3, StrategySpec::All);
    let warm = cluster.ask(0, put(1, 1, "a", "0"));
    assert!(cluster.done(warm));
    cluster.pass(300);
    let stuck = Slot(cluster.node(0).executed().0 + 1);
    cluster.hold(move |packet| votes_on(packet, Some(stuck)));
    cluster.ask(0, put(2, 1, "a", "1"));
    let other = cluster.ask(0, put(1, 2, "b", "2"));
    assert!(cluster.done(other));
    assert!(cluster.node(1).executed_of(LogId::Commands) < stuck);
    let read_b = cluster.ask(1, read("b"));
    assert_eq!(cluster.path(read_b), Some(Path::Held));
    assert_eq!(cluster.value(read_b).as_deref(), Some("2"));
    let read_a = cluster.ask(1, read("a"));
    assert!(!cluster.answered(read_a));
}

/// Returns the commands of one batch. One of them is a compare-and-swap of `a`. It is known only
/// after the commands before it are executed whether it writes anything.
fn several_writes_of_a_key() -> Vec<Command> {
    let batch = [
        Op::put("a", "hidden"),
        Op::put("b", "1"),
        Op::put("c", "hidden"),
        Op::cas("a", "2", None),
        Op::put("c", "2"),
    ];
    let writes = (1..).zip(batch);
    writes.map(|(client, op)| write(client, 1, op)).collect()
}

#[test]
fn a_read_finds_the_last_command_on_its_key_in_a_committed_slot() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    let stuck = Slot(cluster.node(0).executed().0 + 1);
    cluster.hold(move |packet| votes_on(packet, Some(stuck)));
    // So all commands that arrive now form one batch.
    cluster.ask(0, put(9, 1, "stuck", "1"));
    cluster.ask_together(0, several_writes_of_a_key());
    let reads = ["a", "b", "c"].map(|key| cluster.read(1, key));
    let values = reads.map(|read| cluster.value(read));
    let [a, b, c] = values.each_ref().map(Option::as_deref);
    assert_eq!([a, b, c], [None, Some("1"), Some("2")]);
    cluster.release();
    cluster.pass(100);
    // The compare-and-swap found another value.
    assert_eq!(cluster.value(reads[0]).as_deref(), Some("hidden"));
}

#[test]
fn reads_held_for_a_batch_are_answered_by_the_last_command_on_their_key() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    let stuck = Slot(cluster.node(0).executed().0 + 1);
    let batch_votes = Slot(stuck.0 + 1);
    cluster.hold(move |packet| votes_on(packet, Some(stuck)));
    cluster.ask(0, put(9, 1, "stuck", "1"));
    cluster.hold(move |packet| votes_on(packet, Some(batch_votes)));
    cluster.ask_together(0, several_writes_of_a_key());
    let reads = ["a", "b", "c"].map(|key| cluster.read(0, key));
    assert!(reads.iter().all(|read| !cluster.answered(*read)));
    let votes: Vec<Packet> = cluster.held.clone();
    let of_batch = |packet: &&Packet| votes_on(packet, Some(batch_votes));
    for packet in votes.iter().filter(of_batch) {
        cluster.deliver(packet.clone());
    }
    let values = reads.map(|read| cluster.value(read));
    let [a, b, c] = values.each_ref().map(Option::as_deref);
    assert_eq!([a, b, c], [None, Some("1"), Some("2")]);
    cluster.release();
    cluster.pass(100);
    assert_eq!(cluster.value(reads[0]).as_deref(), Some("hidden"));
}

/// Returns the commands of one batch: puts of `a` and `b`, and `later`.
fn puts_before(later: Vec<Op>) -> Vec<Command> {
    let batch = [Op::put("a", "first"), Op::put("b", "1")];
    let writes = (1..).zip(batch.into_iter().chain(later));
    writes.map(|(client, op)| write(client, 1, op)).collect()
}

/// Each case has later writes in the same slot. It also has the values of `a` and `b` that reads
/// return before the execution, and the value of `a` afterwards. Replica 1 reads after the commit,
/// and replica 0 reads before.
#[test]
pub(super) fn h134_a_read_is_not_answered_with_a_value_that_its_slot_overwrites() {
    let entries = |first: &str, count: usize| -> Vec<KeyValue> {
        let others = (1..count).map(|number| format!("other-{number}"));
        let keys = std::iter::once(first.to_owned()).chain(others);
        let entry = |key: String| KeyValue {
            key: key.into(),
            value: "2".into(),
        };
        keys.map(entry).collect()
    };
    let puts = |first: &str| -> Vec<TxnOp> {
        let put = |KeyValue { key, value }| Listed::Put(Put { key, value }).into();
        entries(first, 2).into_iter().map(put).collect()
    };
    let then = |then: Vec<TxnOp>| Txn {
        then,
        ..Txn::default()
    };
    let or_else = Txn {
        comparisons: vec![Comparison {
            key: "other".into(),
            condition: Some(Condition::Present(true)),
        }],
        or_else: puts("a"),
        ..Txn::default()
    };
    let get_a = Listed::Get(Get { key: "a".into() }).into();
    let adds = vec![Listed::add("n", 1).into(); 70];
    let long = || Op::multi_put(entries("other", 1024));
    type Case = (Vec<Op>, [Option<&'static str>; 2], &'static str);
    let cases: [Case; 7] = [
        (vec![Op::txn(then(puts("a")))], [None, Some("1")], "2"),
        (vec![Op::txn(or_else)], [None, Some("1")], "2"),
        (
            vec![Op::multi_put(entries("a", 1024))],
            [None, Some("1")],
            "2",
        ),
        // These later writes change neither key.
        (
            vec![Op::txn(then(puts("c")))],
            [Some("first"), Some("1")],
            "first",
        ),
        (
            vec![Op::txn(then(adds))],
            [Some("first"), Some("1")],
            "first",
        ),
        // A write that only reads a key is treated as a write of this key.
        (vec![Op::txn(then(vec![get_a]))], [None, Some("1")], "first"),
        // Not all keys of very long slots are searched.
        (vec![long(), long()], [None, None], "first"),
    ];
    for (later, expected, last) in cases {
        let mut settings = settings(3, StrategySpec::All);
        settings.executed_work_max = 1; // one slot at a time
        let mut cluster = Cluster::with(settings);
        let stuck = Slot(cluster.node(0).executed().0 + 1);
        cluster.hold(|packet| votes_on(packet, None));
        cluster.ask(0, put(9, 1, "stuck", "1"));
        cluster.ask_together(0, puts_before(later));
        let early = ["a", "b"].map(|key| cluster.read(0, key));
        assert!(early.iter().all(|read| !cluster.answered(*read)));
        let votes = std::mem::take(&mut cluster.held);
        cluster.forget_held();
        let (of_stuck, of_batch): (Vec<Packet>, Vec<Packet>) = votes
            .into_iter()
            .partition(|packet| votes_on(packet, Some(stuck)));
        for packet in of_batch.into_iter().chain(of_stuck) {
            cluster.deliver(packet);
        }
        assert_eq!([0, 1].map(|node| cluster.node(node).executed()), [stuck; 2]);
        let late = ["a", "b"].map(|key| cluster.read(1, key));
        for reads in [early, late] {
            let values = reads.map(|read| cluster.value(read));
            assert_eq!(values.each_ref().map(Option::as_deref), expected);
        }
        cluster.pass(100);
        for reads in [early, late] {
            let values = reads.map(|read| cluster.value(read));
            let values = values.each_ref().map(Option::as_deref);
            assert_eq!(values, [Some(last), Some("1")]);
        }
    }
}

#[test]
fn a_read_that_waits_in_the_leaders_queue_is_not_queued_again() {
    let mut settings = settings(3, StrategySpec::None);
    (settings.in_flight_max, settings.batch_max) = (1, 1);
    let mut cluster = Cluster::with(settings);
    cluster.hold(votes_to(0));
    cluster.ask(0, put(1, 1, "k", "v"));
    let scan = cluster.ask(2, write(0, 0, Op::scan("a", "", 10)));
    cluster.pass(4000);
    let forwards = |packet: &&Packet| matches!(packet.0.message, Message::Forward { .. });
    assert!(
        cluster.sent.iter().filter(forwards).count() > 1,
        "2 asks again"
    );
    cluster.release();
    cluster.pass(500);
    assert!(cluster.answered(scan));
    let accepts = cluster.accepts(0).into_iter();
    let holds_read = |accept: &Accept| {
        accept
            .value
            .commands()
            .iter()
            .any(|p| !p.command.is_write())
    };
    let slots: BTreeSet<Slot> = accepts
        .filter(holds_read)
        .map(|accept| accept.slot)
        .collect();
    assert_eq!(slots.len(), 1);
}
