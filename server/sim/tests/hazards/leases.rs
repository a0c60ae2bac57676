//! Promises of leases, and tags of votes, in the replica.

use std::time::Duration;

use leasehold_leases::{ReplicaId, StrategySpec};
use leasehold_replica::Input;
use leasehold_replica::message::{LogId, Message};
use leasehold_wire::Path;

use super::cluster::{Cluster, about_leases, accept, between, put, settings, votes_on};

#[test]
pub(super) fn h07_a_promise_counts_what_is_on_its_way_to_disk() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.stall(2);
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    let slot = cluster.accepts(0).last().expect("proposed").slot;
    assert!(!cluster.answered(write));
    let before = cluster.sent.len();
    cluster.pass(600);
    assert!(
        cluster.sent[before..]
            .iter()
            .any(|packet| between(packet, 2, 1) && about_leases(packet))
    );
    let promise = cluster.last_promise(2, 1).expect("renewed");
    assert!(
        promise.highest_accepted >= slot,
        "the holder must execute it first"
    );
}

#[test]
pub(super) fn h07_a_vote_carries_the_promises_of_its_sending_not_of_its_acceptance() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    // 1 promises nothing to 2 when it accepts, and makes a promise before it votes.
    cluster.lose(|packet| between(packet, 1, 2) && about_leases(packet));
    cluster.pass(9500);
    cluster.stall(1);
    cluster.ask(0, put(1, 1, "k", "v"));
    cluster.heal();
    cluster.pass(1200);
    assert!(
        cluster
            .node(1)
            .granted_to(ReplicaId(2), cluster.node(1).configuration())
            .is_some()
    );
    let before = cluster.sent.len();
    cluster.unstall(1);
    let slot = cluster.accepts(0).last().expect("proposed").slot;
    let mut tags = Vec::new();
    for (envelope, _) in &cluster.sent[before..] {
        if let Message::Accepted { log, votes, .. } = &envelope.message
            && (envelope.from.index(), *log) == (1, LogId::Commands)
        {
            tags.extend(votes.iter().filter(|(on, _)| *on == slot).map(|v| v.1));
        }
    }
    assert!(!tags.is_empty(), "it votes");
    let two = |tag: &leasehold_leases::ReplicaSet| tag.contains(ReplicaId(2));
    assert!(tags.iter().all(two), "{tags:?}");
}

#[test]
fn a_status_names_a_holder_of_an_older_configuration_while_it_is_promised_anything() {
    // The holder is excluded long before the promises to it end.
    let mut settings = settings(3, StrategySpec::All);
    settings.params.t_grace = Duration::from_secs(1);
    let mut cluster = Cluster::with(settings);
    let told = |cluster: &Cluster| {
        let mut status = cluster.node(1).status(cluster.clock(1));
        let now = cluster.clock(1);
        cluster.node(1).describe_holders(now, b"k", &mut status);
        let names = |names: &[String]| names.concat();
        (names(&status.holders), names(&status.may_hold))
    };
    assert_eq!(told(&cluster), ("012".into(), "012".into()));
    let before = cluster.node(1).configuration();
    cluster.crash(2);
    while cluster.node(1).configuration() == before {
        cluster.pass(50);
    }
    assert_eq!(told(&cluster), ("01".into(), "012".into()));
    cluster.pass(10_000);
    assert_eq!(told(&cluster), ("01".into(), "01".into()));
}

#[test]
pub(super) fn h19_a_promise_names_the_highest_slot_over_a_hole() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    // One slot reaches no replica. The next reaches 1, and nothing is committed.
    cluster.lose(|packet| accept(packet).is_some());
    cluster.ask(0, put(1, 1, "k", "lost"));
    cluster.heal();
    cluster.lose(|packet| votes_on(packet, None));
    cluster.ask(0, put(2, 1, "k", "kept"));
    let slot = cluster.accepts(0).last().expect("proposed").slot;
    cluster.lose(|packet| between(packet, 0, 1) && !about_leases(packet));
    cluster.pass(600);
    let promise = cluster.last_promise(1, 2).expect("renewed");
    assert_eq!(promise.highest_accepted, slot);
}

#[test]
pub(super) fn h24_a_barrier_on_a_dead_entry_falls() {
    let mut cluster = Cluster::new(5, StrategySpec::All);
    // 3 relies only on 1 and 4. The chain of 4's promises begins while 4 has accepted entries that
    // no other replica ever receives.
    let leases_to_3 =
        |from: usize| move |packet: &_| between(packet, from, 3) && about_leases(packet);
    cluster.lose(leases_to_3(0));
    cluster.lose(leases_to_3(2));
    cluster.lose(leases_to_3(4));
    cluster.pass(2500);
    cluster.heal();
    cluster.lose(leases_to_3(0));
    cluster.lose(leases_to_3(2));
    cluster.lose(|packet| accept(packet).is_some() && packet.1.index() != 4);
    for sequence in 1..5 {
        cluster.ask(0, put(1, sequence, "x", "dead"));
    }
    let dead = cluster.accepts(0).last().expect("proposed").slot;
    cluster.pass(1200);
    assert_eq!(
        cluster
            .last_promise(4, 3)
            .expect("promised")
            .highest_accepted,
        dead
    );
    // The leader dies, another replica takes over, and no client writes any more.
    cluster.heal();
    cluster.crash(0);
    cluster.lose(leases_to_3(2));
    let prepare =
        |packet: &super::cluster::Packet| matches!(packet.0.message, Message::Prepare { .. });
    cluster.lose(move |packet| between(packet, 1, 4) && prepare(packet));
    cluster.elect(1);
    assert!(cluster.leads(1));
    cluster.pass(1500);
    assert!(
        cluster.node(3).executed() < dead,
        "it will never be executed"
    );
    let read = cluster.read(3, "k");
    assert_eq!(cluster.path(read), Some(Path::Local));
}

#[test]
pub(super) fn h36_a_holder_that_answers_but_cannot_persist_is_excluded() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.stall(2);
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    cluster.pass(1000);
    assert!(!cluster.answered(write), "holder 2 has not accepted");
    // The time is t_grace + t_guard + t_lease, plus drift and a commit.
    cluster.pass_until(5000 + 2000 + 2000 + 1000, "the write goes on", |c| {
        c.done(write)
    });
    assert!(cluster.node(0).configs().excluded().contains(ReplicaId(2)));
    let refused = cluster.read(2, "k");
    assert_ne!(cluster.path(refused), Some(Path::Local));
}

/// Promises under the configuration that excludes the suspect have the blocked slot as barrier, but
/// they continue the earlier chains of promises.
#[test]
fn other_keys_are_read_locally_while_a_slot_waits_for_a_suspect() {
    let mut settings = super::cluster::settings(3, StrategySpec::All);
    // The suspect is excluded long before its last promise has ended.
    settings.params.t_grace = std::time::Duration::from_millis(1200);
    let mut cluster = Cluster::with(settings);
    cluster.crash(2);
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    let mut excluded = 0;
    while !cluster.done(write) {
        cluster.pass(20);
        let read = cluster.read(1, "other");
        assert_eq!(cluster.path(read), Some(Path::Local));
        let suspects = cluster.node(1).configs().excluded();
        excluded += u32::from(suspects.contains(ReplicaId(2)));
    }
    // This is after the end of all promises from before the exclusion, and after t_guard.
    assert!(excluded >= 2000 / 20 + 50, "{excluded}");
}

#[test]
pub(super) fn h36_a_replica_whose_storage_is_full_gives_back_and_refuses() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.stall(2);
    cluster.input(2, Input::StorageWritable(false));
    cluster.pass(1);
    let read = cluster.read(2, "k");
    assert_ne!(cluster.path(read), Some(Path::Local));
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    assert!(cluster.done(write), "nobody waits for it");
    cluster.unstall(2);
    cluster.input(2, Input::StorageWritable(true));
    cluster.pass_until(3000, "it holds again", |cluster| {
        cluster.node(2).executed() > leasehold_leases::Slot(1)
    });
    cluster.pass(3000);
    let read = cluster.read(2, "k");
    assert_eq!(cluster.path(read), Some(Path::Local));
    assert_eq!(cluster.value(read).as_deref(), Some("v"));
}

#[test]
pub(super) fn h80_a_replica_whose_clock_is_not_trusted_gives_back_and_promises_nothing() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    let read = cluster.read(2, "k");
    assert_eq!(cluster.path(read), Some(Path::Local));
    cluster.input(2, Input::ClockTrusted(false));
    cluster.pass(1);
    let read = cluster.read(2, "k");
    assert_ne!(cluster.path(read), Some(Path::Local));
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    assert!(cluster.done(write), "it still accepts");
    let before = cluster.last_promise(2, 1).expect("promised once").sequence;
    cluster.pass(3000);
    let after = cluster.last_promise(2, 1).expect("promised once").sequence;
    assert_eq!(before, after, "it promises nothing");
    // Room on a full disk alone is not enough, because the clock is still not trusted.
    cluster.input(2, Input::StorageWritable(false));
    cluster.input(2, Input::StorageWritable(true));
    cluster.pass(1000);
    let read = cluster.read(2, "k");
    assert_ne!(cluster.path(read), Some(Path::Local));
    cluster.input(2, Input::ClockTrusted(true));
    cluster.pass(3000);
    let read = cluster.read(2, "k");
    assert_eq!(cluster.path(read), Some(Path::Local));
    assert_eq!(cluster.value(read).as_deref(), Some("v"));
}

/// A clock that is not trusted may run fast. If replica 1 let its promise to replica 2 lapse by
/// such a clock, replica 2 could still read at that time.
#[test]
pub(super) fn h80_what_was_promised_by_a_clock_that_is_not_trusted_does_not_lapse() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.input(1, Input::ClockTrusted(false));
    cluster.isolate(2);
    cluster.pass(10_000);
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    cluster.pass(20_000);
    assert!(!cluster.done(write), "2 may still read");
    cluster.input(1, Input::ClockTrusted(true));
    cluster.pass(3000);
    assert!(
        !cluster.done(write),
        "nothing is known of what lapsed before"
    );
    cluster.pass_until(2000, "the longest promise is outwaited", |cluster| {
        cluster.done(write)
    });
}

#[test]
fn h41_a_grantor_whose_configurations_lag_stops_promising() {
    let mut cluster = Cluster::new(5, StrategySpec::All);
    let known = cluster.node(1).configuration();
    // 1 hears the leader, but receives no configuration any more.
    let configs = |packet: &super::cluster::Packet| match &packet.0.message {
        Message::Accept(accept) => accept.log == LogId::Configs,
        Message::Fetched { log, .. } => *log == LogId::Configs,
        _ => false,
    };
    cluster.lose(move |packet| configs(packet) && packet.1.index() == 1);
    // 2 is silent towards 0 until it is excluded.
    cluster.lose(|packet| between(packet, 2, 0));
    cluster.pass_until(12_000, "2 is excluded", |cluster| {
        cluster.node(0).configs().excluded().contains(ReplicaId(2))
    });
    assert_eq!(cluster.node(1).configuration(), known, "1 does not know");
    cluster.pass(5600);
    let before = cluster.last_promise(1, 2).expect("promised once").sequence;
    cluster.pass(2000);
    let after = cluster.last_promise(1, 2).expect("promised once").sequence;
    assert_eq!(before, after, "1 keeps no suspect alive");
}

#[test]
fn what_the_log_says_is_in_force_not_what_a_node_is_told() {
    let mut settings = super::cluster::settings(3, StrategySpec::None);
    settings.params.t_lease = std::time::Duration::from_millis(1500);
    let mut cluster = Cluster::with(settings);
    let first = cluster.node(0).configuration();
    assert_eq!(
        cluster.node(0).configs().params(first).t_lease.as_millis(),
        1500
    );
    // Nothing is proposed repeatedly, and a restart changes nothing.
    cluster.pass(10_000);
    assert_eq!(cluster.node(0).configuration(), first);
}
