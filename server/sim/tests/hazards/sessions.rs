//! Sessions that end to make room for other sessions.

use std::time::Duration;

use leasehold_leases::{Slot, StrategySpec};
use leasehold_replica::Settings;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Command, ErrorCode, Version};

use super::cluster::{Cluster, RequestToken, accept, put, settings, votes_on};

/// Returns settings with room for `max` sessions, which are kept for at least a second.
fn narrow(max: u32) -> Settings {
    let mut settings = settings(3, StrategySpec::Leader);
    settings.sessions.max = max;
    settings.sessions.stay = Duration::from_secs(1);
    settings
}

/// Returns the first write of a client that has just begun a session.
fn first(cluster: &Cluster, client: u64, key: &'static str) -> Command {
    put(client, 1, key, "first").opened(cluster.node(0).log_time_ms())
}

fn do_write(cluster: &mut Cluster, command: Command) {
    let asked = cluster.ask(0, command);
    assert!(cluster.done(asked), "{:?}", cluster.answer(asked));
}

/// Sends a client's write and lets it be answered. Then the client stays silent until its session
/// may end to make room. Returns the command that was sent.
fn falls_silent(cluster: &mut Cluster, client: u64) -> Command {
    let command = first(cluster, client, "k");
    do_write(cluster, command.clone());
    cluster.pass(3000);
    command
}

fn code(cluster: &Cluster, asked: RequestToken) -> Option<ErrorCode> {
    match &cluster.answer(asked)?.2.result {
        Some(Answer::Error(error)) => Some(error.code()),
        _ => None,
    }
}

fn version(cluster: &Cluster, asked: RequestToken) -> Option<Version> {
    match &cluster.answer(asked)?.2.result {
        Some(Answer::Written(version)) => Some(*version),
        _ => None,
    }
}

#[test]
pub(super) fn h84_a_session_that_made_room_is_not_opened_again() {
    let mut cluster = Cluster::with(narrow(2));
    let late = falls_silent(&mut cluster, 1);
    for client in [2, 3] {
        let command = first(&cluster, client, "k");
        do_write(&mut cluster, command);
    }
    assert_eq!(cluster.counter(1, "sessions_made_room"), 1);
    cluster.pass(3000);
    // A copy arrives late through another replica, when there is room again.
    let late = cluster.ask(1, late);
    cluster.pass(1000);
    assert_eq!(code(&cluster, late), Some(ErrorCode::SessionExpired));
    cluster.assert_agreement();
}

#[test]
pub(super) fn h84_a_restart_remembers_whose_sessions_may_have_made_room() {
    let mut settings = narrow(1);
    settings.timing.checkpoint = Duration::from_secs(1);
    let mut cluster = Cluster::with(settings);
    let late = falls_silent(&mut cluster, 1);
    let other = first(&cluster, 2, "k");
    do_write(&mut cluster, other);
    cluster.pass(3000); // until the session is in a checkpoint
    for node in 0..3 {
        cluster.crash(node);
    }
    (0..3).for_each(|node| cluster.start(node));
    let somebody = |cluster: &Cluster| (0..3).any(|node| cluster.leads(node));
    cluster.pass_until(30_000, "somebody leads", somebody);
    cluster.pass(3000);
    let late = cluster.ask(0, late);
    cluster.pass(3000);
    assert_eq!(code(&cluster, late), Some(ErrorCode::SessionExpired));
}

#[test]
pub(super) fn h85_a_session_with_an_unanswered_write_does_not_make_room() {
    let mut cluster = Cluster::with(narrow(1));
    let one = first(&cluster, 1, "k");
    do_write(&mut cluster, one.clone());
    let other = first(&cluster, 2, "k");
    let refused = cluster.ask(0, other.clone());
    assert_eq!(code(&cluster, refused), Some(ErrorCode::Unavailable));
    assert_eq!(cluster.counter(0, "sessions_refused"), 1);
    // The first client had no answer, and retries: its result is still known.
    let again = cluster.ask(2, one);
    assert!(cluster.done(again), "{:?}", cluster.answer(again));
    // The second client retries, too, when the first has been silent for long enough.
    cluster.pass(3000);
    do_write(&mut cluster, other);
    cluster.assert_agreement();
}

#[test]
pub(super) fn h31_a_write_whose_session_may_make_room_is_not_answered_at_commit() {
    let mut cluster = Cluster::with(narrow(1));
    falls_silent(&mut cluster, 1);
    // A write is stuck that opens another session and will end the first.
    let stuck = Slot(cluster.accepts(0).last().expect("it proposed").slot.0 + 1);
    cluster.hold(move |packet| votes_on(packet, Some(stuck)));
    let other = first(&cluster, 2, "a");
    let other = cluster.ask(0, other);
    assert!(!cluster.answered(other));
    let next = cluster.ask(0, put(1, 2, "b", "second"));
    assert!(!cluster.answered(next), "it will not be executed");
    cluster.release();
    assert!(cluster.done(other));
    assert_eq!(code(&cluster, next), Some(ErrorCode::SessionExpired));
}

/// The log contains three writes of one client: the first found no room for a session, the second
/// found room, and the third is a copy of the first. The new leader has executed the first two.
#[test]
pub(super) fn h31_a_later_copy_of_a_write_that_found_no_room_is_in_flight() {
    let mut settings = narrow(1);
    settings.timing.checkpoint = Duration::from_secs(60);
    let mut cluster = Cluster::with(settings);
    let newest = |cluster: &Cluster, node| cluster.accepts(node).last().expect("proposed").slot;
    let other = first(&cluster, 1, "k");
    do_write(&mut cluster, other);
    let one = first(&cluster, 2, "a");
    let refused = cluster.ask(0, one.clone());
    assert_eq!(code(&cluster, refused), Some(ErrorCode::Unavailable));
    cluster.pass(3000);
    let two = Command {
        sequence: 2,
        ..first(&cluster, 2, "b")
    };
    do_write(&mut cluster, two.clone());
    do_write(&mut cluster, one.clone());
    let copy = newest(&cluster, 0);
    (0..3).for_each(|node| cluster.crash_without_commits(node));
    cluster.hold(move |packet| accept(packet).is_some_and(|accept| accept.slot == copy));
    (0..3).for_each(|node| cluster.start(node));
    let leader = |cluster: &Cluster| (0..3).find(|node| cluster.leads(*node));
    let somebody = |cluster: &Cluster| leader(cluster).is_some();
    cluster.pass_until(30_000, "somebody leads", somebody);
    let node = leader(&cluster).expect("somebody leads");
    let before = |cluster: &Cluster| cluster.node(node).executed().0 + 1 == copy.0;
    cluster.pass_until(3000, "all before the copy is executed", before);
    let again = cluster.ask(node, one);
    cluster.pass(100);
    assert!(!cluster.answered(again), "the copy may yet be executed");
    cluster.release();
    cluster.pass(1000);
    assert_eq!(
        version(&cluster, again).map(|version| version.slot),
        Some(copy.0)
    );
    cluster.assert_agreement();
}

/// The client sends a write once more to the new leader, which knows that the write is committed,
/// but has not executed it yet.
#[test]
pub(super) fn h31_a_committed_write_is_in_flight_until_it_is_executed() {
    let mut settings = settings(3, StrategySpec::All);
    settings.executed_work_max = 1;
    let mut cluster = Cluster::with(settings);
    for client in [1, 2, 9] {
        let opens = first(&cluster, client, "k");
        do_write(&mut cluster, opens);
    }
    cluster.pass(3000);
    // A slot that is open prevents the execution of later slots, until all are committed.
    let stuck = Slot(cluster.accepts(0).last().expect("it proposed").slot.0 + 1);
    cluster.hold(move |packet| votes_on(packet, Some(stuck)));
    for sequence in 2..40 {
        cluster.ask(0, put(9, sequence, "filler", "x"));
    }
    let old = cluster.ask(0, put(1, 2, "k", "old"));
    let new = cluster.ask(0, put(2, 2, "k", "new"));
    cluster.release();
    assert!(cluster.done(old) && cluster.done(new));
    cluster.elect(1);
    assert!(cluster.leads(1), "it knows of all that is committed");
    let slot = version(&cluster, old).expect("it was written").slot;
    assert!(cluster.node(1).executed().0 < slot);
    let again = cluster.ask(1, put(1, 2, "k", "old"));
    cluster.pass(3000);
    assert_eq!(version(&cluster, again), version(&cluster, old));
    cluster.assert_agreement();
}

#[test]
fn a_write_whose_session_stays_is_answered_at_commit() {
    let mut cluster = Cluster::with(narrow(1));
    let one = first(&cluster, 1, "k");
    do_write(&mut cluster, one);
    let stuck = Slot(cluster.accepts(0).last().expect("it proposed").slot.0 + 1);
    cluster.hold(move |packet| votes_on(packet, Some(stuck)));
    let other = first(&cluster, 2, "a");
    let other = cluster.ask(0, other);
    let next = cluster.ask(0, put(1, 2, "b", "second"));
    assert!(cluster.done(next));
    cluster.release();
    assert_eq!(code(&cluster, other), Some(ErrorCode::Unavailable));
}

/// Replicas have different configured limits on sessions, but execute commands with the same
/// results, because all use the leader's limit.
#[test]
fn the_leaders_bound_counts_on_every_replica() {
    let mut cluster = Cluster::with(narrow(2));
    for client in 1..=4 {
        falls_silent(&mut cluster, client);
    }
    for node in 0..3 {
        assert_eq!(cluster.counter(node, "sessions"), 2);
    }
    cluster.crash(1);
    cluster.start_with(1, narrow(3));
    cluster.pass(3000);
    assert_eq!(cluster.counter(1, "sessions"), 2);
    falls_silent(&mut cluster, 5);
    assert_eq!(cluster.counter(1, "sessions"), 2);
    cluster.crash(0);
    cluster.elect(1);
    cluster.pass(5000);
    let log_time_ms = cluster.node(1).log_time_ms();
    let after = cluster.ask(1, put(6, 1, "k", "v").opened(log_time_ms));
    cluster.pass(1000);
    assert!(cluster.done(after));
    for node in 1..3 {
        assert_eq!(cluster.counter(node, "sessions"), 3, "at {node}");
        assert_eq!(cluster.counter(node, "sessions_max"), 3, "at {node}");
    }
}

#[test]
fn clients_of_a_replica_open_so_many_sessions_in_a_second() {
    let mut settings = settings(3, StrategySpec::Leader);
    settings.sessions.stay = Duration::ZERO;
    settings.sessions.opened_per_s = 5;
    let mut cluster = Cluster::with(settings);
    cluster.pass(2000);
    let slot = cluster.node(1).executed();
    let asked: Vec<RequestToken> = (1..=7)
        .map(|client| cluster.ask(1, put(client, 1, "k", "v")))
        .collect();
    let refused = |asked: &&RequestToken| code(&cluster, **asked) == Some(ErrorCode::Unavailable);
    assert_eq!(asked.iter().filter(refused).count(), 2);
    assert_eq!(cluster.counter(1, "openings_refused"), 2);
    assert_eq!(
        cluster.node(1).executed().0,
        slot.0 + 5,
        "they have not left"
    );
    // A client with a session is not refused, nor is a client of another replica.
    let next = cluster.ask(1, put(1, 2, "k", "v"));
    let elsewhere = cluster.ask(2, put(7, 1, "k", "v"));
    assert!(cluster.done(next) && cluster.done(elsewhere));
    cluster.pass(1000);
    let later = cluster.ask(1, put(6, 1, "k", "v"));
    assert!(cluster.done(later));
}
