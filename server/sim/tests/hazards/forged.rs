//! Messages with numbers far out of range, which no honest replica sends. No replica believes these
//! numbers, the cluster continues, and every replica can open its directory again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leasehold_leases::{
    Ballot, ConfigChange, Incarnation, LeaseMessage, LeaseParams, ReplicaId, ReplicaSet, Slot,
    StrategySpec,
};
use leasehold_replica::action::Record;
use leasehold_replica::codec::{decode_ballot, encode_ballot};
use leasehold_replica::message::{
    Accept, Batch, Envelope, LogId, LogNews, Message, PerLog, ReportedEntry, Value,
};
use leasehold_replica::sanity::{NUMBER_MAX, ROUNDS_AHEAD_MAX};

use super::cluster::{Cluster, Packet, between, heartbeat_of, put};

/// Returns the packet with which `from` would send `message` to `to`.
fn forged(cluster: &Cluster, from: usize, to: usize, message: Message) -> (Envelope, ReplicaId) {
    let to = ReplicaId(to as u8);
    (cluster.node(from).envelope(to, message), to)
}

fn forge(cluster: &mut Cluster, from: usize, to: usize, message: Message) {
    let packet = forged(cluster, from, to, message);
    cluster.deliver(packet);
}

/// Delivers a packet. Returns the number of messages that the addressee refused because of it.
fn refused_of(cluster: &mut Cluster, packet: Packet) -> u64 {
    let to = packet.1.index();
    let before = cluster.counter(to, "refused_messages");
    cluster.deliver(packet);
    cluster.counter(to, "refused_messages") - before
}

fn ballot(round: u64, replica: u8) -> Ballot {
    let replica = ReplicaId(replica);
    Ballot { round, replica }
}

fn newest_ballot(cluster: &Cluster) -> Ballot {
    let ballots = cluster.sent.iter().rev().find_map(heartbeat_of);
    ballots.expect("a leader sends heartbeats")
}

fn accept(ballot: Ballot, slot: Slot, log_time_ms: u64) -> Message {
    let batch = Batch {
        log_time_ms,
        ..Batch::default()
    };
    Message::Accept(Accept {
        ballot,
        log: LogId::Commands,
        slot,
        value: Value::Commands(Arc::new(batch)),
        vote: Some(ReplicaSet::EMPTY),
        news: LogNews::default(),
        last_multi: Slot::ZERO,
        infallible: Arc::from([]),
    })
}

/// Returns one message of replica 1 for each kind of message that contains a round.
fn of_round(round: u64) -> [Message; 5] {
    let ballot = ballot(round, 1);
    [
        Message::Prepare {
            ballot,
            commits: [Slot(1); 2].into(),
        },
        Message::Heartbeat {
            ballot,
            probe: 1,
            logs: Default::default(),
        },
        accept(ballot, Slot(50), 0),
        Message::Rejected { promised: ballot },
        Message::Transfer {
            ballot,
            by_operator: false,
        },
    ]
}

/// Checks that every ballot that was written to disk can be decoded again.
fn assert_readable(cluster: &Cluster) {
    for (_, record) in &cluster.written {
        if let Record::Promised(ballot) | Record::Accepted { ballot, .. } = record {
            let mut bytes = Vec::new();
            encode_ballot(*ballot, &mut bytes);
            assert_eq!(decode_ballot(Bytes::from(bytes)), Ok(*ballot));
        }
    }
}

#[test]
pub(super) fn h81_a_round_near_the_limit_wedges_nobody() {
    for round in [NUMBER_MAX - 1, NUMBER_MAX] {
        for (client, message) in (1..).zip(of_round(round)) {
            let mut cluster = Cluster::new(3, StrategySpec::All);
            let packets = [0, 2].map(|to| forged(&cluster, 1, to, message.clone()));
            let refused = packets.map(|packet| refused_of(&mut cluster, packet));
            let write = cluster.ask(2, put(client, 1, "k", "as before"));
            assert!(cluster.done(write), "the leader leads on");
            cluster.crash(0);
            let write = cluster.ask(2, put(client, 2, "k", "another leader"));
            cluster.pass_until(60_000, "another leads", |cluster| cluster.done(write));
            (1..3).for_each(|node| cluster.crash(node));
            (0..3).for_each(|node| cluster.start(node));
            let write = cluster.ask(2, put(client, 3, "k", "all anew"));
            cluster.pass_until(60_000, "all went on", |cluster| cluster.done(write));
            assert_readable(&cluster);
            assert_eq!(refused, [1, 1], "operators see it");
        }
    }
}

#[test]
fn rounds_that_are_just_too_far_ahead_come_nearer() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    let seen = newest_ballot(&cluster).round;
    cluster.isolate(2);
    for leaps in 1..=3 {
        let prepare = Message::Prepare {
            ballot: ballot(seen + leaps * ROUNDS_AHEAD_MAX, 1),
            commits: [Slot(1); 2].into(),
        };
        forge(&mut cluster, 1, 2, prepare);
    }
    cluster.heal();
    // The round that 2 has promised is further ahead than the others accept in one step.
    let write = cluster.ask(2, put(1, 1, "k", "v"));
    cluster.pass_until(60_000, "2 takes part again", |cluster| cluster.done(write));
    assert!(newest_ballot(&cluster).round > seen + 3 * ROUNDS_AHEAD_MAX);
}

#[test]
pub(super) fn h81_an_incarnation_that_leaps_does_not_silence_its_peer() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    let (mut envelope, to) = forged(
        &cluster,
        1,
        0,
        Message::Ping {
            stamp: 1,
            cost_ms: 0,
            flushed: PerLog::default(),
        },
    );
    envelope.from_incarnation = Incarnation(NUMBER_MAX);
    let refused = refused_of(&mut cluster, (envelope, to));
    let write = cluster.ask(1, put(1, 1, "k", "v"));
    assert!(cluster.done(write), "0 takes what 1 forwards");
    assert_eq!(refused, 1);
}

#[test]
pub(super) fn h81_log_time_that_leaps_is_not_accepted() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    let leads = newest_ballot(&cluster);
    let slot = cluster.node(1).highest_accepted().next();
    let leap = forged(&cluster, 0, 1, accept(leads, slot, NUMBER_MAX));
    let refused = refused_of(&mut cluster, leap);
    assert!(cluster.node(1).highest_accepted() < slot);
    let write = cluster.ask(1, put(1, 1, "k", "v"));
    assert!(cluster.done(write));
    assert_eq!(refused, 1);
}

#[test]
pub(super) fn h81_slots_that_leap_are_not_asked_for() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    let far = LogNews {
        commit_point: Slot(NUMBER_MAX),
        above: Vec::new(),
        log_start: Slot(1),
    };
    let message = Message::Heartbeat {
        ballot: newest_ballot(&cluster),
        probe: 0,
        logs: [far.clone(), far].into(),
    };
    let leap = forged(&cluster, 0, 1, message);
    let refused = refused_of(&mut cluster, leap);
    cluster.pass(20_000);
    let asks = |message: &Message| matches!(message, Message::Fetch { .. });
    assert!(!cluster.sent.iter().any(|(e, _)| asks(&e.message)));
    // 1 still makes promises, because it does not consider its configurations outdated.
    assert!(cluster.last_promise(1, 2).is_some());
    let local = cluster.read(1, "k");
    assert!(cluster.answered(local));
    assert_eq!(refused, 1);
}

#[test]
pub(super) fn h81_an_answer_of_phase_1_that_leaps_hides_no_other() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.lose(|packet| between(packet, 0, 1));
    let promise = |(e, _): &Packet| matches!(e.message, Message::Prepared { .. });
    cluster.hold(promise);
    cluster.elect(1);
    let held = cluster.held.iter().find(|packet| between(packet, 2, 1));
    let (mut envelope, to) = held.expect("2 promises").clone();
    let Message::Prepared {
        answer,
        parts,
        entries,
        ..
    } = &mut envelope.message
    else {
        unreachable!("it is held for that")
    };
    (*answer, *parts) = (NUMBER_MAX, 2);
    entries.push(ReportedEntry {
        log: LogId::Commands,
        slot: Slot(1),
        ballot: Ballot::ZERO,
        value: Value::Noop,
    });
    let refused = refused_of(&mut cluster, (envelope, to));
    cluster.release();
    assert!(cluster.leads(1), "the answer that 2 gave counts");
    let read = cluster.read(1, "k");
    cluster.pass_until(5000, "reads are answered", |cluster| cluster.answered(read));
    assert_eq!(refused, 1);
}

#[test]
fn entries_that_nobody_asked_for_are_not_taken() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    for node in 0..3 {
        let next = cluster.node(node).executed().next();
        let message = Message::Fetched {
            log: LogId::Commands,
            entries: vec![(next, Value::Noop)],
        };
        forge(&mut cluster, (node + 1) % 3, node, message);
        assert!(cluster.node(node).executed() < next);
    }
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    assert!(cluster.done(write));
}

#[test]
fn votes_at_a_ballot_that_nobody_proposes_at_block_no_slot() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    let newest = newest_ballot(&cluster);
    let next = cluster.node(0).highest_accepted().next();
    let ballot = Ballot {
        round: newest.round + ROUNDS_AHEAD_MAX - 5,
        replica: ReplicaId(1),
    };
    let votes = (0..100).map(|i| (Slot(next.0 + i), ReplicaSet::EMPTY));
    let message = Message::Accepted {
        ballot,
        log: LogId::Commands,
        votes: votes.collect(),
    };
    forge(&mut cluster, 1, 0, message);
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    cluster.pass_until(20_000, "it is committed", |cluster| cluster.done(write));
}

#[test]
pub(super) fn h81_a_lease_of_years_is_not_believed() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    let mut promise = cluster.last_promise(1, 2).expect("1 promises to 2");
    // 2 acknowledges promises that it takes, so the next promise may build on this one.
    promise.base = promise.sequence;
    promise.sequence += 1;
    promise.t_lease = Duration::from_nanos(NUMBER_MAX);
    let message = Message::Lease(LeaseMessage::Promise(promise));
    let leap = forged(&cluster, 1, 2, message);
    let refused = refused_of(&mut cluster, leap);
    cluster.isolate(2);
    cluster.pass(20_000);
    let read = cluster.read(2, "k");
    assert!(!cluster.answered(read), "its leases have ended");
    cluster.heal();
    cluster.pass_until(20_000, "it is served", |cluster| cluster.answered(read));
    assert_eq!(refused, 1);
}

/// A configuration with leases of years would do lasting harm: after each restart, a replica waits
/// for the longest lease duration that was ever configured.
#[test]
pub(super) fn h81_a_configuration_of_years_is_not_accepted() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    let params = LeaseParams {
        t_lease: Duration::from_nanos(NUMBER_MAX),
        ..LeaseParams::default()
    };
    let before = cluster.node(1).configuration();
    let change = ConfigChange {
        params: Some(params),
        ..ConfigChange::default()
    };
    let message = Message::Accept(Accept {
        ballot: newest_ballot(&cluster),
        log: LogId::Configs,
        slot: Slot(before.0 + 1),
        value: Value::Config(Arc::new(change)),
        vote: Some(ReplicaSet::EMPTY),
        news: LogNews::default(),
        last_multi: Slot::ZERO,
        infallible: Arc::from([]),
    });
    let mut refused = 0;
    for to in [1, 2] {
        let leap = forged(&cluster, 0, to, message.clone());
        refused += refused_of(&mut cluster, leap);
        assert_eq!(cluster.node(to).configuration(), before);
    }
    (0..3).for_each(|node| cluster.crash(node));
    (0..3).for_each(|node| cluster.start(node));
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    cluster.pass_until(60_000, "all went on", |cluster| cluster.done(write));
    assert_eq!(refused, 2);
}
