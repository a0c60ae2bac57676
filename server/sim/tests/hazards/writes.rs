//! Commits, answers and sessions.

use std::time::Duration;

use leasehold_leases::{Key, RangeMap, ReplicaId, Slot, StrategySpec};
use leasehold_replica::message::Message;
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Command, ErrorCode, KeyValue};

use super::cluster::{Cluster, RequestToken, accept, between, put, read, votes_on, write};

fn entry(key: &'static str, value: &'static str) -> KeyValue {
    KeyValue {
        key: Key::from(key),
        value: value.as_bytes().into(),
    }
}

#[test]
pub(super) fn h09_the_leaders_own_grants_are_in_its_vote() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    // Only the leader's promises keep 2 a holder: those of 1 lapse.
    cluster.lose(|packet| between(packet, 1, 2) && super::cluster::about_leases(packet));
    cluster.pass(9500);
    // 2 does not receive the write.
    cluster.hold(|packet| between(packet, 0, 2) && accept(packet).is_some());
    let write = cluster.ask(0, put(1, 1, "k", "new"));
    // 0 and 1 are a majority, and the tag of 1 demands no replica. But 2 may read the old value.
    let old = cluster.read(2, "k");
    assert_eq!(cluster.value(old).as_deref(), Some(""));
    assert!(!cluster.answered(write), "2 still reads the old value");
    cluster.release();
    assert!(cluster.done(write));
    let new = cluster.read(2, "k");
    assert_eq!(cluster.value(new).as_deref(), Some("new"));
}

#[test]
pub(super) fn h11_no_reader_sees_a_value_that_a_later_one_does_not() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.hold(|packet| between(packet, 0, 2) && accept(packet).is_some());
    let write = cluster.ask(1, put(1, 1, "k", "new"));
    // A majority has accepted, including this holder, which is not enough.
    let early = cluster.read(1, "k");
    assert!(!cluster.answered(early), "it waits for the write");
    let late = cluster.read(2, "k");
    assert_eq!(cluster.value(late).as_deref(), Some(""));
    assert!(!cluster.answered(write));
    cluster.release();
    assert_eq!(cluster.value(early).as_deref(), Some("new"));
    assert!(cluster.done(write));
}

#[test]
fn h20_an_origin_without_the_value_answers_nothing() {
    let mut cluster = Cluster::new(5, StrategySpec::Leader);
    // Votes reach the origin before the value does.
    cluster.hold(|packet| between(packet, 0, 1) && accept(packet).is_some());
    let write = cluster.ask(1, put(1, 1, "k", "new"));
    let heard =
        |packet: &&_| votes_on(packet, None) && (between(packet, 2, 1) || between(packet, 3, 1));
    assert!(cluster.sent.iter().filter(heard).count() >= 2, "votes came");
    assert!(!cluster.answered(write));
    assert_eq!(
        cluster.node(1).entry(
            leasehold_replica::message::LogId::Commands,
            slot_of(&cluster)
        ),
        None
    );
    cluster.release();
    assert!(cluster.done(write));
}

/// Returns the slot of the newest Accept that replica 0 sent for the log of commands.
fn slot_of(cluster: &Cluster) -> Slot {
    cluster.accepts(0).last().expect("it proposed").slot
}

#[test]
pub(super) fn h21_a_retry_elsewhere_is_not_executed_again() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let first = cluster.ask(1, put(1, 1, "k", "mine"));
    assert!(cluster.done(first));
    let other = cluster.ask(1, put(2, 1, "k", "theirs"));
    assert!(cluster.done(other));
    // The client had no answer, and retries at another replica.
    let retry = cluster.ask(2, put(1, 1, "k", "mine"));
    cluster.pass(1000);
    let version = |asked| match &cluster.answer(asked).expect("answered").2.result {
        Some(Answer::Written(version)) => (version.slot, version.index),
        other => panic!("{other:?}"),
    };
    assert_eq!(version(retry), version(first), "its first result");
    let read = cluster.read(0, "k");
    assert_eq!(cluster.value(read).as_deref(), Some("theirs"));
}

#[test]
pub(super) fn h39_a_delayed_first_attempt_after_its_retry_is_refused() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let forward = |packet: &_| -> bool {
        let (envelope, _): &super::cluster::Packet = packet;
        matches!(envelope.message, Message::Forward { .. })
    };
    cluster.hold(move |packet| between(packet, 1, 0) && forward(packet));
    cluster.ask(1, put(1, 1, "k", "first"));
    let retry = cluster.ask(2, put(1, 1, "k", "first"));
    assert!(cluster.done(retry));
    // The client has received its answer and continues.
    let next = cluster.ask(2, put(1, 2, "k", "second"));
    assert!(cluster.done(next));
    cluster.release();
    cluster.pass(2000);
    let read = cluster.read(0, "k");
    assert_eq!(cluster.value(read).as_deref(), Some("second"));
}

/// Sends two writes of a client at replica 1. The first does not reach the leader, and the client
/// abandons it. The second, which writes `v2`, reaches the leader. The low-water mark in the second
/// write is above the sequence number of the first. Replica 1 has not learned the outcome of the
/// second.
fn second_write_after_the_first_was_given_up(cluster: &mut Cluster) -> RequestToken {
    cluster.lose(|packet| between(packet, 1, 0));
    let first = cluster.ask(1, put(1, 1, "k", "v1"));
    cluster.pass(1000);
    assert!(!cluster.answered(first), "the client gives it up");
    cluster.heal();
    cluster.lose(|packet| between(packet, 0, 1));
    let second = cluster.ask(1, put(1, 2, "k", "v2"));
    assert!(!cluster.answered(second));
    second
}

/// Checks that the write of `v2` was executed exactly once, before the write of `x`. The client
/// must not be told that the write was refused, because it would then write `v2` again.
fn assert_executed_once(cluster: &Cluster, second: RequestToken) {
    assert!(cluster.done(second), "{:?}", cluster.answer(second));
    cluster.assert_agreement();
}

#[test]
pub(super) fn h77_a_late_first_write_does_not_let_a_refused_second_one_in() {
    let mut settings = super::cluster::settings(3, StrategySpec::Leader);
    // Replica 1 continues to send to the leader, which it does not hear.
    settings.timing.election_timeout = Duration::from_secs(8);
    let mut cluster = Cluster::with(settings);
    let second = second_write_after_the_first_was_given_up(&mut cluster);
    // Replica 1 forwards both writes again, and the abandoned one first.
    let forwards = cluster.forwards(1, 0);
    cluster.pass_until(4000, "both are forwarded again", |cluster| {
        cluster.forwards(1, 0) >= forwards + 2
    });
    let seen = cluster.read(0, "k");
    assert_eq!(cluster.value(seen).as_deref(), Some("v2"));
    let other = cluster.ask(0, put(2, 1, "k", "x"));
    assert!(cluster.done(other));
    cluster.heal();
    cluster.pass(2000);
    assert_executed_once(&cluster, second);
    let read = cluster.read(0, "k");
    assert_eq!(cluster.value(read).as_deref(), Some("x"));
}

#[test]
pub(super) fn h77_a_new_leader_does_not_let_a_refused_write_in() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let second = second_write_after_the_first_was_given_up(&mut cluster);
    cluster.pass(1000); // replica 2 executes the write; replica 1 does not learn of this
    cluster.isolate(0);
    // Replica 1 sends both writes to the new leader, and learns from it what the log holds.
    cluster.elect(2);
    cluster.pass(2000);
    assert!(cluster.leads(2));
    cluster.heal();
    cluster.pass(3000);
    assert_executed_once(&cluster, second);
    let read = cluster.read(2, "k");
    cluster.pass(1000);
    assert_eq!(cluster.value(read).as_deref(), Some("v2"));
}

#[test]
fn every_request_of_a_write_that_is_sent_again_is_answered() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.lose(|packet| between(packet, 1, 0));
    let first = cluster.ask(1, put(1, 1, "k", "v"));
    assert!(!cluster.answered(first));
    let again = cluster.ask(1, put(1, 1, "k", "v"));
    let (_, _, outcome) = cluster.answer(first).expect("its room is given back");
    assert!(
        matches!(&outcome.result, Some(Answer::Error(error)) if error.code() == ErrorCode::Unavailable),
        "{outcome:?}"
    );
    assert!(!cluster.answered(again));
    cluster.heal();
    cluster.pass(3000);
    assert!(cluster.done(again));
}

#[test]
fn what_a_slot_in_flight_would_open_is_not_counted_on() {
    let mut settings = super::cluster::settings(3, StrategySpec::None);
    settings.sessions.ttl = Duration::from_secs(4);
    settings.sessions.stay = Duration::from_secs(4);
    let mut cluster = Cluster::with(settings);
    // A session of log time 0 may be opened by a write until 4 s.
    let mut sequence = 0;
    while cluster.node(0).log_time_ms() < 3_800 {
        cluster.pass(50);
        sequence += 1;
        let other = cluster.ask(0, put(9, sequence, "other", "v"));
        assert!(cluster.done(other));
    }
    let of_client = |sequence, key| Command {
        acked_below: 1,
        ..put(1, sequence, key, "v")
    };
    let stuck = Slot(cluster.accepts(0).last().expect("proposed").slot.0 + 1);
    cluster.lose(move |packet| accept(packet).is_some_and(|accept| accept.slot == stuck));
    cluster.ask(0, of_client(1, "x"));
    cluster.pass(400);
    // The slot before may turn out empty, and this write alone cannot open the session.
    let second = cluster.ask(0, of_client(2, "y"));
    assert!(!cluster.answered(second));
    cluster.crash(0);
    cluster.heal();
    cluster.elect(1);
    cluster.pass(4000);
    let read = cluster.read(1, "y");
    cluster.pass(1000);
    assert_eq!(cluster.value(read).as_deref(), Some(""), "it was refused");
}

#[test]
pub(super) fn h31_what_execution_may_refuse_is_not_answered_at_commit() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let opened = cluster.ask(0, put(1, 1, "a", "1"));
    assert!(cluster.done(opened));
    // Sequence 5 says that all earlier sequences have been acknowledged. Its slot is stuck.
    let stuck = Slot(slot_of(&cluster).0 + 1);
    cluster.hold(move |packet| votes_on(packet, Some(stuck)));
    let high = cluster.ask(0, put(1, 5, "a", "5"));
    assert!(!cluster.answered(high));
    // Sequence 3 commits in the next slot, and will be refused when slots are executed in order.
    let low = cluster.ask(0, put(1, 3, "b", "3"));
    assert!(!cluster.answered(low), "it will not be executed");
    cluster.release();
    assert!(cluster.done(high));
    assert!(cluster.answered(low) && !cluster.done(low));
    let read = cluster.read(0, "b");
    assert_eq!(cluster.value(read).as_deref(), Some(""));
}

#[test]
pub(super) fn h34_a_single_key_write_does_not_overtake_a_multi_key_one() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let warm = cluster.ask(0, put(2, 1, "a", "0"));
    assert!(cluster.done(warm));
    let stuck = Slot(slot_of(&cluster).0 + 1);
    cluster.hold(move |packet| votes_on(packet, Some(stuck)));
    let multi = Op::multi_put(vec![entry("a", "1"), entry("b", "1")]);
    let multi = cluster.ask(0, write(1, 1, multi));
    let single = cluster.ask(0, put(2, 2, "a", "2"));
    // If it were answered now, a read of b between the two would be consistent with neither order.
    assert!(!cluster.answered(single), "the multi-key write is open");
    cluster.release();
    assert!(cluster.done(multi) && cluster.done(single));
    let read = cluster.read(0, "a");
    assert_eq!(cluster.value(read).as_deref(), Some("2"));
}

#[test]
fn h34_without_a_multi_key_write_a_blocked_slot_stops_nobody() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let warm = cluster.ask(0, put(2, 1, "a", "0"));
    assert!(cluster.done(warm));
    let stuck = Slot(slot_of(&cluster).0 + 1);
    cluster.hold(move |packet| votes_on(packet, Some(stuck)));
    let blocked = cluster.ask(0, put(1, 1, "a", "1"));
    let single = cluster.ask(0, put(2, 2, "b", "2"));
    assert!(!cluster.answered(blocked));
    assert!(cluster.done(single), "no slot that matters to it is open");
    // An operation that needs execution still waits, and the counter shows it.
    let swap = cluster.ask(0, write(3, 1, Op::cas("c", "3", None)));
    assert!(!cluster.answered(swap));
    let status = cluster.node(0).status(cluster.clock(0));
    let counter = status
        .counters
        .iter()
        .find(|counter| counter.name == "blocked_prefix");
    assert_eq!(counter.map(|counter| counter.value), Some(1));
    cluster.release();
    assert!(cluster.done(blocked) && cluster.done(swap));
}

#[test]
pub(super) fn h38_the_last_multi_key_write_of_an_earlier_leader_counts_too() {
    let mut cluster = Cluster::new(5, StrategySpec::None);
    // All replicas accept the multi-key write, but no vote arrives anywhere.
    cluster.hold(|packet| votes_on(packet, None));
    let multi = Op::multi_put(vec![entry("a", "1"), entry("b", "1")]);
    cluster.ask(0, write(1, 1, multi));
    let slot = slot_of(&cluster);
    cluster.isolate(0);
    cluster.forget_held();
    cluster.hold(move |packet| votes_on(packet, Some(slot)));
    cluster.elect(1);
    assert!(cluster.leads(1));
    let single = cluster.ask(1, put(2, 1, "a", "2"));
    // No multi-key command was first proposed at the new leader's ballot.
    assert!(
        cluster
            .accepts(1)
            .iter()
            .any(|accept| accept.slot > slot.next())
    );
    assert!(!cluster.answered(single), "the earlier leader's is open");
    cluster.release();
    cluster.pass(1000);
    assert!(cluster.done(single));
    let read = cluster.read(1, "b");
    cluster.pass(1000);
    assert_eq!(cluster.value(read).as_deref(), Some("1"));
}

#[test]
pub(super) fn h42_two_writes_of_one_batch_have_two_versions() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let both = cluster.ask_together(0, vec![put(1, 1, "k", "one"), put(2, 1, "k", "two")]);
    let version = |asked| match cluster.answer(asked).expect("answered").2.result {
        Some(Answer::Written(version)) => version,
        ref other => panic!("{other:?}"),
    };
    let (first, second) = (version(both[0]), version(both[1]));
    assert_eq!(first.slot, second.slot, "one batch");
    assert_ne!(first.index, second.index);
    // A client that has seen the first value may not swap over the second.
    let swap = cluster.ask(0, write(3, 1, Op::cas("k", "three", Some(first))));
    assert!(cluster.answered(swap) && !cluster.done(swap));
    let found = cluster.ask(0, read("k"));
    assert_eq!(cluster.value(found).as_deref(), Some("two"));
}

/// Returns a map of ranges. Each range begins at one of these keys and has the holders that are
/// listed with the key.
fn fixed<const N: usize>(ranges: [(&'static str, &[u8]); N]) -> RangeMap<StrategySpec> {
    let fixed = |(from, ids): (&'static str, &[u8])| {
        let holders = Some(ids.iter().copied().map(ReplicaId).collect());
        (Key::from(from), StrategySpec::Fixed { holders })
    };
    RangeMap::from_starts(ranges.map(fixed).to_vec()).expect("in order")
}

#[test]
fn a_class_that_is_blocked_leaves_room_for_the_others() {
    let ranges = fixed([("", &[0, 2]), ("m", &[0, 1])]);
    let mut settings = super::cluster::settings(3, ranges);
    settings.in_flight_max = 8;
    let mut cluster = Cluster::with(settings);
    // Holder 2 has died. Writes of its keys wait for its leases to end. Writes of other keys wait
    // only if they arrive in the same batch.
    cluster.crash(2);
    cluster.pass(25);
    let blocked: Vec<_> = (1..40)
        .map(|client| cluster.ask(0, put(client, 1, "a", "1")))
        .collect();
    assert!(!blocked.iter().any(|asked| cluster.answered(*asked)));
    let other = cluster.ask(0, put(100, 1, "m", "1"));
    assert!(cluster.done(other), "no holder of this key is dead");
    let both = cluster.ask_together(0, vec![put(101, 1, "a", "2"), put(102, 1, "m", "2")]);
    assert_eq!([0, 1].map(|i| cluster.done(both[i])), [false, true]);
    cluster.pass_until(15_000, "the leases of the dead end", |cluster| {
        blocked.iter().all(|asked| cluster.done(*asked))
    });
}

/// §3.9: holders that are at hand answer as soon as any majority does. So writes of the keys that
/// they hold delay no other write in the batch.
#[test]
fn writes_share_a_batch_if_all_their_holders_answer_at_hand() {
    let ranges = fixed([("", &[0, 2]), ("m", &[0, 1])]);
    let mut cluster = Cluster::with(super::cluster::settings(3, ranges));
    let slots = |cluster: &mut Cluster, client| {
        let writes = vec![put(client, 1, "a", "1"), put(client + 1, 1, "m", "1")];
        let both = cluster.ask_together(0, writes);
        let version = |asked| match cluster.answer(asked).expect("answered").2.result {
            Some(Answer::Written(version)) => version.slot,
            ref other => panic!("{other:?}"),
        };
        [version(both[0]), version(both[1])]
    };
    cluster.ask(0, put(1, 1, "a", "0"));
    let [one, other] = slots(&mut cluster, 2);
    assert_eq!(one, other, "everybody has just answered");
}

/// §3.7: the disk of a holder hangs. The holder still answers probes, so it seems to be at hand.
#[test]
fn a_holder_at_hand_whose_disk_hangs_holds_up_no_other_key() {
    let ranges = fixed([("", &[0, 2]), ("m", &[0, 1])]);
    let mut cluster = Cluster::with(super::cluster::settings(3, ranges));
    cluster.stall(2);
    let first = cluster.ask(0, put(1, 1, "a", "0"));
    cluster.pass(25);
    for client in (2..100).step_by(2) {
        let writes = vec![put(client, 1, "a", "1"), put(client + 1, 1, "m", "1")];
        let both = cluster.ask_together(0, writes);
        let done = [first, both[0], both[1]].map(|asked| cluster.done(asked));
        assert_eq!(done, [false, false, true], "client {client}");
        cluster.pass(10);
    }
    cluster.unstall(2);
    cluster.pass(500);
    assert!(cluster.done(first));
}

/// §3.9: all holders of one key are also holders of the other key. The other key has one more
/// holder, which is dead.
#[test]
fn a_dead_holder_of_one_key_holds_up_no_key_with_fewer_holders() {
    let ranges = fixed([("", &[0, 1, 2]), ("m", &[0, 1])]);
    let mut cluster = Cluster::with(super::cluster::settings(3, ranges));
    cluster.crash(2);
    cluster.pass(25);
    for client in (1..9).step_by(2) {
        let writes = vec![put(client, 1, "a", "1"), put(client + 1, 1, "m", "1")];
        let both = cluster.ask_together(0, writes);
        let done = [0, 1].map(|i| cluster.done(both[i]));
        assert_eq!(done, [false, true], "client {client}");
        // The next class of writes in turn is that of the other key.
        let other = cluster.ask(0, put(100 + client, 1, "m", "2"));
        assert!(cluster.done(other), "client {client}");
    }
}

/// A new leader has never received a message from replicas that died before it began to lead.
#[test]
fn a_dead_leader_holds_up_no_key_that_it_does_not_hold() {
    let ranges = fixed([("", &[0, 1, 2]), ("m", &[1, 2])]);
    let mut cluster = Cluster::with(super::cluster::settings(3, ranges));
    cluster.crash(0);
    cluster.pass(1000);
    let pending =
        [(1, "a"), (2, "m")].map(|(client, key)| cluster.ask(1, put(client, 1, key, "0")));
    assert!(!pending.iter().any(|asked| cluster.answered(*asked)));
    cluster.elect(1);
    assert!(cluster.leads(1));
    let both = cluster.ask_together(1, vec![put(3, 1, "a", "1"), put(4, 1, "m", "1")]);
    let done = [pending[0], pending[1], both[0], both[1]].map(|asked| cluster.done(asked));
    assert_eq!(done, [false, true, false, true]);
}

/// Replica 4 has died, and many writes wait until the leases of replica 4 end. The disk of replica
/// 3 stalls.
#[test]
fn a_holder_whose_disk_hangs_holds_up_no_other_key_while_many_wait_for_a_dead_one() {
    let ranges = fixed([("", &[0, 1, 4]), ("h", &[0, 1, 3]), ("m", &[0, 1, 2])]);
    let mut cluster = Cluster::with(super::cluster::settings(5, ranges));
    cluster.crash(4);
    cluster.pass(25);
    let many = (1..=70).map(|client| cluster.ask(0, put(client, 1, "a", "1")));
    let many: Vec<_> = many.collect();
    assert!(!many.iter().any(|asked| cluster.done(*asked)));
    cluster.stall(3);
    cluster.ask(0, put(100, 1, "h", "0"));
    cluster.pass(25);
    for client in (200..300).step_by(2) {
        let writes = vec![put(client, 1, "h", "1"), put(client + 1, 1, "m", "1")];
        let both = cluster.ask_together(0, writes);
        let done = [0, 1].map(|i| cluster.done(both[i]));
        assert_eq!(done, [false, true], "client {client}");
        cluster.pass(10);
    }
}

/// Writes were queued while all replicas were at hand. Only long afterwards, one of the replicas
/// died.
#[test]
fn who_dies_holds_up_no_other_key_that_was_queued_before() {
    let ranges = fixed([("", &[0, 2]), ("m", &[0, 1])]);
    let mut settings = super::cluster::settings(3, ranges);
    settings.in_flight_max = 1;
    let mut cluster = Cluster::with(settings);
    cluster.ask(0, put(1, 1, "a", "0"));
    cluster.hold(|packet| votes_on(packet, None));
    let first = cluster.ask(0, put(2, 1, "m", "0"));
    let both = cluster.ask_together(0, vec![put(3, 1, "a", "1"), put(4, 1, "m", "1")]);
    cluster.pass(1000);
    cluster.crash(2);
    cluster.pass(25);
    cluster.release();
    let done = [first, both[0], both[1]].map(|asked| cluster.done(asked));
    assert_eq!(done, [true, false, true]);
}

#[test]
fn a_key_that_a_dead_replica_held_before_holds_up_no_other() {
    let ranges = fixed([("", &[0, 1, 2]), ("m", &[0, 1])]);
    let mut settings = super::cluster::settings(3, ranges);
    // The holder is excluded long before the promises to it end.
    settings.params.t_grace = Duration::from_secs(1);
    let mut cluster = Cluster::with(settings);
    let before = cluster.node(0).configuration();
    cluster.crash(2);
    cluster.pass_until(5_000, "it is excluded", |cluster| {
        cluster.node(0).configuration() > before
    });
    let holders = |key: &[u8]| cluster.node(0).configs().holders(key);
    assert_eq!(holders(b"a"), holders(b"m"));
    let together = vec![put(1, 1, "a", "1"), put(2, 1, "m", "1")];
    let [a, m] = cluster.ask_together(0, together)[..] else {
        panic!("two were asked");
    };
    assert!(!cluster.answered(a), "2 may read the old value still");
    assert!(cluster.done(m));
    cluster.pass_until(15_000, "its leases end", |cluster| cluster.done(a));
}

#[test]
fn a_vote_that_said_less_and_was_lost_is_asked_for_again() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.crash(2);
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    assert!(!cluster.answered(write), "2 may still read the old value");
    // 1 sends only one vote that demands no other replica, when its grant to 2 lapses, and this
    // vote is lost.
    cluster.lose(|packet| votes_on(packet, None));
    cluster.pass(9000);
    assert!(!cluster.answered(write));
    cluster.heal();
    cluster.pass_until(2000, "the write commits", |cluster| cluster.done(write));
}
