//! Hazard 33: a replica with a wiped disk never participates again.

use leasehold_leases::{ReplicaId, StrategySpec};
use leasehold_replica::action::Record;
use leasehold_replica::message::Message;
use leasehold_wire::Path;

use super::cluster::{Cluster, Packet, put, settings};

fn join(packet: &Packet) -> bool {
    matches!(packet.0.message, Message::Join { .. })
}

/// Whether a packet answers the Join of `node`.
fn joined_for(packet: &Packet, node: usize) -> bool {
    let (envelope, to) = packet;
    to.index() == node && matches!(envelope.message, Message::Joined { .. })
}

/// Returns the messages on which other replicas could rely, among those that `node` has sent since
/// `cluster.sent` had the length `since`.
fn counted(cluster: &Cluster, node: usize, since: usize) -> Vec<&Message> {
    let said = cluster.sent[since..].iter().map(|(envelope, _)| envelope);
    let said = said.filter(|envelope| envelope.from.index() == node);
    said.map(|envelope| &envelope.message)
        .filter(|message| {
            !matches!(
                message,
                Message::Ping { .. }
                    | Message::Pong { .. }
                    | Message::Join { .. }
                    | Message::Joined { .. }
            )
        })
        .collect()
}

#[test]
pub(super) fn h33_a_wiped_replica_does_not_vote() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    // 0 and 1 choose a value that 2 never receives.
    cluster.isolate(2);
    let write = cluster.ask(0, put(1, 1, "k", "old"));
    assert!(cluster.done(write));
    // 0 ends, and 1 loses its disk. For 2, the empty 1 would complete a majority that has accepted
    // nothing, and together they would choose another value in that slot.
    cluster.crash(0);
    cluster.wipe(1);
    cluster.heal();
    // The knowledge of 2 that 1 has joined is durable.
    cluster.crash(2);
    cluster.start(2);
    let since = cluster.sent.len();
    cluster.start(1);
    let other = cluster.ask(2, put(2, 1, "k", "other"));
    cluster.pass(20_000);
    assert!(
        !cluster.answered(other),
        "1 has forgotten what it accepted, and may not stand for it"
    );
    assert!(!cluster.leads(1) && !cluster.leads(2));
    assert!(cluster.node(1).is_wiped(), "it has found itself out");
    assert_eq!(counted(&cluster, 1, since).len(), 0);
    // A restart does not help 1: it remains excluded.
    cluster.crash(1);
    cluster.start(1);
    cluster.pass(5000);
    assert!(cluster.node(1).is_wiped());
    // The value is found on the disk of 0.
    cluster.start(0);
    cluster.pass_until(20_000, "2 is answered", |cluster| cluster.answered(other));
    assert_eq!(counted(&cluster, 1, since).len(), 0);
    let digest = cluster.node(0).digest();
    cluster.pass_until(5000, "both agree", |cluster| {
        cluster.node(2).digest() == cluster.node(0).digest()
    });
    let retry = cluster.ask(0, put(1, 1, "k", "again"));
    cluster.pass(1000);
    assert!(cluster.done(retry), "the first write was not lost");
    assert_eq!(cluster.node(0).digest(), digest, "nor done twice");
}

#[test]
fn h33_a_replica_wiped_alone_is_found_out_by_those_who_go_on() {
    let mut cluster = Cluster::new(5, StrategySpec::Leader);
    let since = cluster.sent.len();
    cluster.wipe(3);
    cluster.start(3);
    cluster.pass(1000);
    assert!(cluster.node(3).is_wiped());
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    cluster.pass_until(20_000, "four go on", |cluster| cluster.done(write));
    let read = cluster.read(0, "k");
    assert_eq!(cluster.path(read), Some(Path::Local));
    cluster.ask(3, put(2, 1, "k", "mute"));
    cluster.pass(2000);
    let after_the_end = counted(&cluster, 3, since);
    // Before its disk was wiped, it may have sent such messages, but not since.
    assert_eq!(after_the_end.len(), 0, "{after_the_end:?}");
}

#[test]
fn h33_two_wiped_of_five_cannot_vouch_for_each_other() {
    let mut cluster = Cluster::new(5, StrategySpec::Leader);
    for node in [3, 4] {
        cluster.wipe(node);
    }
    // Each needs a third witness, and all other replicas remember that it has joined.
    for node in [3, 4] {
        cluster.start(node);
    }
    cluster.pass(1000);
    assert!(cluster.node(3).is_wiped() && cluster.node(4).is_wiped());
}

#[test]
fn h33_a_first_start_waits_until_enough_others_know_of_it() {
    let mut cluster = Cluster::asleep(settings(3, StrategySpec::Leader));
    // If 0 had joined with only 1 as a witness, 2 could not tell later whether it had.
    cluster.isolate(2);
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    cluster.pass(5000);
    for node in 0..3 {
        assert!(!cluster.node(node).has_joined());
        assert_eq!(counted(&cluster, node, 0).len(), 0);
    }
    cluster.heal();
    cluster.pass_until(1000, "0 leads", |cluster| cluster.leads(0));
    cluster.pass_until(1000, "the client is answered", |cluster| {
        cluster.done(write)
    });
    cluster.pass(200);
    assert!((0..3).all(|node| cluster.node(node).has_joined()));
}

#[test]
fn h33_of_five_one_may_be_missing_at_the_first_start_and_joins_later() {
    let mut cluster = Cluster::asleep(settings(5, StrategySpec::Leader));
    cluster.crash(4);
    cluster.pass_until(2000, "0 leads", |cluster| cluster.leads(0));
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    assert!(cluster.done(write));
    cluster.start(4);
    cluster.pass(5000);
    assert!(cluster.node(4).has_joined());
    cluster.assert_agreement();
}

#[test]
fn h33_what_is_not_durable_vouches_for_nobody() {
    let mut cluster = Cluster::asleep(settings(3, StrategySpec::Leader));
    cluster.stall(1);
    cluster.pass(2000);
    // 1 would forget the replicas for which it vouched, and that it has joined itself.
    assert!(!cluster.sent.iter().any(|packet| {
        packet.0.from == ReplicaId(1) && matches!(packet.0.message, Message::Joined { .. })
    }));
    assert!((0..3).all(|node| !cluster.node(node).has_joined()));
    cluster.crash(1);
    cluster.start(1);
    cluster.hold(|packet| joined_for(packet, 0));
    cluster.pass(2000);
    assert!(cluster.node(1).has_joined() && cluster.node(2).has_joined());
    cluster.stall(0);
    cluster.release();
    assert!(!cluster.node(0).has_joined());
    cluster.unstall(0);
    assert!(cluster.node(0).has_joined());
}

#[test]
fn h33_who_has_joined_restarts_without_asking() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let marks = |(_, record): &&(usize, Record)| matches!(record, Record::Joined);
    assert_eq!(cluster.written.iter().filter(marks).count(), 3);
    let since = cluster.sent.len();
    (0..3).for_each(|node| cluster.crash(node));
    cluster.isolate(2);
    cluster.start(0);
    cluster.start(1);
    cluster.pass_until(8000, "two of three go on", |cluster| {
        cluster.leads(0) || cluster.leads(1)
    });
    assert!(!cluster.sent[since..].iter().any(join));
}

#[test]
fn no_time_is_lost_over_a_first_start() {
    // A preferred replica that had to wait campaigns immediately after the wait.
    let mut cluster = Cluster::asleep(settings(3, StrategySpec::Leader));
    cluster.hold(|packet| joined_for(packet, 0));
    cluster.pass(1000);
    cluster.release();
    assert!(cluster.leads(0));
    // A replica that received a request for a promise too early makes the promise as soon as it
    // may.
    let mut cluster = Cluster::asleep(settings(3, StrategySpec::Leader));
    cluster.hold(|packet| joined_for(packet, 1) || joined_for(packet, 2));
    cluster.pass(600);
    assert!(!cluster.leads(0));
    cluster.release();
    assert!(cluster.leads(0));
}

/// A replica may be wrong about its own directory before it has ever participated. Then it excludes
/// only itself.
#[test]
fn a_wrong_life_keeps_out_only_who_says_it() {
    let mut cluster = Cluster::asleep(settings(5, StrategySpec::None));
    for to in (0..4).map(ReplicaId) {
        let message = Message::Join { life: u64::MAX };
        let envelope = cluster.node(4).envelope(to, message);
        cluster.deliver((envelope, to));
    }
    cluster.pass_until(20_000, "the others begin", |cluster| cluster.leads(0));
    let write = cluster.ask(1, put(1, 1, "k", "v"));
    cluster.pass_until(20_000, "they serve", |cluster| cluster.done(write));
    assert!(cluster.node(4).is_wiped());
}
