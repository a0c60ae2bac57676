//! Transactions: order, notification of readers, atomicity, and repeated requests.

use leasehold_leases::{Key, Slot, StrategySpec};
use leasehold_replica::message::Message;
use leasehold_wire::comparison::Condition;
use leasehold_wire::op_result::Result as OpAnswer;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{
    Command, Comparison, Delete, ErrorCode, Get, Put, Txn, TxnOp, TxnResult, Value,
};

use super::cluster::{Cluster, Packet, RequestToken, accept, between, put, write};
use leasehold_wire::command::Op;

fn present(key: &'static str, present: bool) -> Comparison {
    Comparison {
        key: Key::from(key),
        condition: Some(Condition::Present(present)),
    }
}

fn puts(key: &'static str, value: &'static str) -> TxnOp {
    let (key, value) = (key.into(), value.into());
    Listed::Put(Put { key, value }).into()
}

fn gets(key: &'static str) -> TxnOp {
    Listed::Get(Get { key: key.into() }).into()
}

fn txn(comparisons: Vec<Comparison>, then: Vec<TxnOp>, or_else: Vec<TxnOp>) -> Txn {
    Txn {
        comparisons,
        then,
        or_else,
        keep_going: false,
    }
}

fn all(then: Vec<TxnOp>) -> Txn {
    txn(vec![], then, vec![])
}

fn ask(client: u64, sequence: u64, txn: Txn) -> Command {
    write(client, sequence, Op::txn(txn))
}

fn result(cluster: &Cluster, asked: RequestToken) -> TxnResult {
    match &cluster.answer(asked).expect("it is answered").2.result {
        Some(Answer::Txn(result)) => result.clone(),
        other => panic!("{other:?}"),
    }
}

fn counts(result: &TxnResult) -> Vec<Option<OpAnswer>> {
    result.results.iter().map(|it| it.result.clone()).collect()
}

/// Returns a cluster in which every replica is a holder, and the slot that is proposed next. The
/// Accept of this slot does not reach replica 2.
fn with_late_accept() -> (Cluster, Slot) {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    let warm = cluster.ask(0, put(9, 1, "warm", "0"));
    assert!(cluster.done(warm));
    let late = Slot(cluster.accepts(0).last().expect("it proposed").slot.0 + 1);
    let is_late = move |it: &leasehold_replica::message::Accept| it.slot == late;
    cluster.hold(move |packet| between(packet, 0, 2) && accept(packet).is_some_and(is_late));
    (cluster, late)
}

/// A transaction in slot s compares `k` and puts `j`. A blind put of `k` is in slot s + 1. If the
/// put were answered before s commits, its client could read the old value of `j` at a holder that
/// has not accepted s. Then the put is before the read, and the read before the transaction. But
/// the transaction has not found the put.
#[test]
pub(super) fn h34_a_write_does_not_overtake_a_transaction_that_compares_its_key() {
    let (mut cluster, late) = with_late_accept();
    let absent = txn(vec![present("k", false)], vec![puts("j", "new")], vec![]);
    let open = cluster.ask(1, ask(1, 1, absent));
    let later = cluster.ask(1, put(2, 1, "k", "later"));
    assert_eq!(
        cluster.accepts(0).last().map(|it| it.slot),
        Some(late.next())
    );
    assert!(!cluster.answered(later), "the transaction is open");
    let old = cluster.read(2, "j");
    assert_eq!(cluster.value(old).as_deref(), Some(""));
    cluster.release();
    assert!(cluster.done(later));
    assert!(!result(&cluster, open).or_else, "it has not found the put");
}

#[test]
fn h34_a_transaction_on_one_key_stops_no_other_write() {
    let (mut cluster, late) = with_late_accept();
    let one = txn(
        vec![present("j", false)],
        vec![puts("j", "new")],
        vec![gets("j")],
    );
    let open = cluster.ask(1, ask(1, 1, one));
    let other = cluster.ask(1, put(2, 1, "k", "other"));
    assert_eq!(
        cluster.accepts(0).last().map(|it| it.slot),
        Some(late.next())
    );
    assert!(!cluster.answered(open) && cluster.done(other));
}

#[test]
pub(super) fn h130_readers_are_notified_of_the_keys_of_both_lists() {
    let (mut cluster, _) = with_late_accept();
    let second = txn(
        vec![present("a", true)],
        vec![gets("a")],
        vec![puts("b", "new")],
    );
    let open = cluster.ask(0, ask(1, 1, second));
    let old = cluster.read(2, "b");
    assert_eq!(cluster.value(old).as_deref(), Some(""));
    assert!(!cluster.answered(open), "2 still reads the old value");
    cluster.release();
    assert!(result(&cluster, open).or_else);
    let new = cluster.read(2, "b");
    assert_eq!(cluster.value(new).as_deref(), Some("new"));
}

#[test]
pub(super) fn h131_a_transaction_that_fails_changes_nothing() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let text = cluster.ask(0, put(1, 1, "n", "text"));
    assert!(cluster.done(text));
    let fails = all(vec![puts("a", "1"), Listed::add("n", 1).into()]);
    let fails = cluster.ask(0, ask(1, 2, fails));
    let outcome = &cluster.answer(fails).expect("it is answered").2;
    match &outcome.result {
        Some(Answer::Error(error)) => {
            assert_eq!(error.code(), ErrorCode::NotAnInteger);
            assert!(error.message.starts_with("txn.then[1]: add"), "{error:?}");
        }
        other => panic!("{other:?}"),
    }
    let read = cluster.read(0, "a");
    assert_eq!(cluster.value(read).as_deref(), Some(""));
    // The client may want the others nevertheless.
    let goes_on = Txn {
        keep_going: true,
        ..all(vec![
            puts("a", "1"),
            Listed::add("n", 1).into(),
            puts("b", "2"),
        ])
    };
    let goes_on = cluster.ask(0, ask(1, 3, goes_on));
    let results = result(&cluster, goes_on).results;
    let is_error = |at: usize| matches!(results[at].result, Some(OpAnswer::Error(_)));
    assert_eq!([0, 1, 2].map(is_error), [false, true, false]);
    for (key, value) in [("a", "1"), ("b", "2")] {
        let read = cluster.read(0, key);
        assert_eq!(cluster.value(read).as_deref(), Some(value));
    }
}

#[test]
pub(super) fn h132_an_operation_sees_those_before_it() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let delete = Listed::Delete(Delete { key: "n".into() });
    let sums = all(vec![
        puts("n", "5"),
        Listed::add("n", 2).into(),
        Listed::append("n", "0").into(),
        gets("n"),
        delete.into(),
        gets("n"),
        Listed::add("n", -1).into(),
    ]);
    let asked = cluster.ask(0, ask(1, 1, sums));
    let result = result(&cluster, asked);
    let version = result.version;
    let value = Value {
        value: "70".into(),
        version,
    };
    let expected = [
        OpAnswer::Count(1),
        OpAnswer::Number(7),
        OpAnswer::Count(2),
        OpAnswer::Value(value),
        OpAnswer::Count(1),
        OpAnswer::Missing(Default::default()),
        OpAnswer::Number(-1),
    ];
    assert_eq!(counts(&result), expected.map(Some));
    let read = cluster.read(0, "n");
    assert_eq!(cluster.value(read).as_deref(), Some("-1"));
}

#[test]
pub(super) fn h133_a_repeated_transaction_says_that_its_values_were_not_kept() {
    static LONG: [u8; 300] = [b'x'; 300];
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let long = std::str::from_utf8(&LONG).expect("it is text");
    let stored = cluster.ask(0, put(2, 1, "long", long));
    assert!(cluster.done(stored));
    let commands = [
        (1, vec![gets("long"), Listed::add("n", 1).into()]),
        (2, vec![gets("n"), Listed::add("n", 1).into()]),
    ]
    .map(|(sequence, then)| Command::session(1, sequence, 1, Op::txn(all(then))));
    let first = commands.clone().map(|command| {
        let asked = cluster.ask(0, command);
        result(&cluster, asked)
    });
    let again = commands.map(|command| {
        let asked = cluster.ask(1, command);
        cluster.pass(1000);
        result(&cluster, asked)
    });
    assert_eq!(first[1], again[1], "short values are kept");
    assert!(again[0].abridged, "the value is missing");
    assert_eq!(again[0].version, first[0].version);
    assert_eq!(counts(&again[0])[1], Some(OpAnswer::Number(1)));
    let read = cluster.read(0, "n");
    assert_eq!(
        cluster.value(read).as_deref(),
        Some("2"),
        "each was executed once"
    );
}

/// The leader answers the second copy of a forwarded transaction from its session, and the origin
/// has not executed the first copy yet. The origin's client waits for the whole answer.
#[test]
fn an_origin_waits_for_the_whole_answer_to_a_transaction() {
    static LONG: [u8; 300] = [b'x'; 300];
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let long = std::str::from_utf8(&LONG).expect("it is text");
    let stored = cluster.ask(0, put(2, 1, "long", long));
    assert!(cluster.done(stored));
    let answers = |packet: &Packet| matches!(packet.0.message, Message::Answered { .. });
    let beats = |packet: &Packet| matches!(packet.0.message, Message::Heartbeat { .. });
    cluster.hold(move |packet| packet.1.index() == 1 && !answers(packet) && !beats(packet));
    let asked = cluster.ask(1, ask(1, 1, all(vec![gets("long"), puts("a", "1")])));
    cluster.pass_until(10_000, "the leader answers", |cluster| {
        cluster.sent.iter().any(answers)
    });
    assert!(!cluster.answered(asked), "the value would be missing");
    cluster.release();
    cluster.pass(3000);
    let result = result(&cluster, asked);
    assert!(!result.abridged && result.results.len() == 2);
}
