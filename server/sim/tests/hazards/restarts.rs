//! Crashes and restarts.

use std::time::Duration;

use leasehold_leases::{Incarnation, LeaseMessage, ReplicaId, ReplicaSet, Slot, StrategySpec};
use leasehold_replica::Input;
use leasehold_replica::action::{Record, Requester};
use leasehold_replica::message::{LogId, Message};
use leasehold_wire::Path;

use super::cluster::{Cluster, Packet, accept, between, put, settings, votes_on};

/// Returns the tags of the votes that `node` has sent in the log of commands since `cluster.sent`
/// had the length `since`.
fn tags(cluster: &Cluster, node: usize, since: usize) -> Vec<ReplicaSet> {
    let sent = cluster.sent[since..]
        .iter()
        .filter(|(envelope, _)| envelope.from.index() == node);
    sent.flat_map(|(envelope, _)| match &envelope.message {
        Message::Accepted {
            log: LogId::Commands,
            votes,
            ..
        } => votes.iter().map(|(_, tag)| *tag).collect(),
        Message::Accept(accept)
            if accept.log == LogId::Commands && !accept.value.commands().is_empty() =>
        {
            accept.vote.into_iter().collect()
        }
        _ => Vec::new(),
    })
    .collect()
}

#[test]
pub(super) fn h15_a_restarted_grantor_demands_everyone_until_its_wait_is_over() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.crash(1);
    cluster.start(1);
    cluster.pass(300);
    let since = cluster.sent.len();
    cluster.ask(0, put(1, 1, "k", "v"));
    let votes = tags(&cluster, 1, since);
    assert!(!votes.is_empty());
    let everyone = ReplicaSet::all(3);
    assert!(votes.iter().all(|tag| *tag == everyone), "{votes:?}");
    // The wait is (t_guard + t_lease + 2 rho t0_cap)(1 + rho)/(1 - rho) from its start.
    cluster.pass(4100);
    let since = cluster.sent.len();
    cluster.ask(0, put(1, 2, "k", "v"));
    let votes = tags(&cluster, 1, since);
    assert!(!votes.is_empty() && !votes.contains(&everyone), "{votes:?}");
}

#[test]
pub(super) fn h23_all_grantors_restart_while_a_holder_is_cut_off() {
    // Leases last for longer than an election.
    let mut settings = super::cluster::settings(3, StrategySpec::All);
    settings.params.t_lease = std::time::Duration::from_secs(8);
    let mut cluster = Cluster::with(settings);
    cluster.isolate(2);
    for node in [0, 1] {
        cluster.crash(node);
        cluster.start(node);
    }
    // Both have forgotten their promises, and 2 still reads under them.
    cluster.pass_until(6000, "somebody leads", |cluster| {
        cluster.leads(0) || cluster.leads(1)
    });
    cluster.pass(300);
    let write = cluster.ask(0, put(1, 1, "k", "new"));
    let mut read_old = false;
    for _ in 0..60 {
        cluster.pass(100);
        let read = cluster.read(2, "k");
        let local = cluster.path(read) == Some(Path::Local);
        assert!(!(local && cluster.done(write)), "2 reads the old value");
        read_old |= local;
    }
    assert!(read_old, "2 read under what they forgot");
    cluster.pass_until(10_000, "the write goes on", |cluster| cluster.done(write));
}

#[test]
pub(super) fn h16_a_restarted_holder_honours_no_old_promise() {
    let mut cluster = flushed_each_second();
    // The guard that opened a window of its earlier run arrives once more, and the promise that
    // named this window arrives only now.
    let lease = |(envelope, to): &Packet| match &envelope.message {
        Message::Lease(message) if *to == ReplicaId(2) => Some(message.clone()),
        _ => None,
    };
    let promise = cluster.sent.iter().find(|packet| {
        packet.0.from == ReplicaId(0) && matches!(lease(packet), Some(LeaseMessage::Promise(_)))
    });
    let promise = promise.expect("0 promised 2").clone();
    let Some(LeaseMessage::Promise(made)) = lease(&promise) else {
        unreachable!("it was found as one");
    };
    let guard = cluster.sent.iter().find(|packet| {
        let opens = LeaseMessage::Guard {
            sequence: made.base,
        };
        packet.0.from == ReplicaId(0) && lease(packet) == Some(opens)
    });
    let guard = guard.expect("a guard came before it").clone();
    cluster.crash(2);
    // No replica knows its new run yet, so no replica makes new promises to it.
    cluster.lose(|packet| packet.0.from == ReplicaId(2));
    cluster.start(2);
    cluster.deliver(guard);
    cluster.deliver(promise);
    assert_eq!(cluster.node(2).promised_by(ReplicaId(0)).count(), 0);
}

/// Returns a cluster in which the state on the disk is at most a second old.
fn flushed_each_second() -> Cluster {
    let mut settings = settings(3, StrategySpec::All);
    settings.timing.checkpoint = Duration::from_secs(1);
    Cluster::with(settings)
}

#[test]
pub(super) fn h30_a_restart_promises_above_everything_it_has_accepted() {
    let mut cluster = flushed_each_second();
    cluster.hold(|packet| votes_on(packet, None));
    cluster.ask(0, put(1, 1, "k", "v"));
    let slot = cluster.accepts(0).last().expect("proposed").slot;
    cluster.crash(1);
    cluster.forget_held();
    // 1 receives nothing that would make it learn of the slot again.
    cluster.lose(|packet| between(packet, 0, 1) && !super::cluster::about_leases(packet));
    cluster.start(1);
    cluster.pass(800);
    let promise = cluster.last_promise(1, 2).expect("promised anew");
    assert!(promise.highest_accepted >= slot, "{promise:?}");
}

#[test]
pub(super) fn h30_a_restarted_holder_waits_for_what_it_had_accepted() {
    let mut cluster = flushed_each_second();
    // 2, which will cover the key at 1, never receives the write that 1 accepts.
    cluster.lose(|packet| between(packet, 0, 2) && !super::cluster::about_leases(packet));
    cluster.lose(|packet| votes_on(packet, None));
    cluster.ask(0, put(1, 1, "k", "new"));
    cluster.lose(|packet| between(packet, 0, 1));
    cluster.crash(1);
    cluster.start(1);
    cluster.pass_until(1000, "2 covers it", |cluster| {
        cluster.node(1).promised_by(ReplicaId(2)).count() > 0
    });
    let read = cluster.read(1, "k");
    assert!(!cluster.answered(read), "it voted for a write of the key");
}

#[test]
fn a_restart_recovers_everything_that_others_may_rely_on() {
    let mut cluster = flushed_each_second();
    for sequence in 1..20 {
        let write = cluster.ask(2, put(1, sequence, "k", "v"));
        assert!(cluster.done(write));
    }
    cluster.pass(1200);
    let (executed, digest) = (cluster.node(1).executed(), cluster.node(1).digest());
    let (config, incarnation) = (
        cluster.node(1).configuration(),
        cluster.node(1).incarnation(),
    );
    let ballot = cluster.node(1).status(cluster.clock(1)).ballot_round;
    cluster.isolate(1);
    cluster.crash(1);
    cluster.start(1);
    assert_eq!(cluster.node(1).executed(), executed);
    assert_eq!(cluster.node(1).digest(), digest);
    assert_eq!(cluster.node(1).configuration(), config);
    assert_eq!(
        cluster.node(1).incarnation(),
        Incarnation(incarnation.0 + 1)
    );
    assert_eq!(
        cluster.node(1).status(cluster.clock(1)).ballot_round,
        ballot
    );
}

#[test]
fn an_acknowledged_write_survives_the_crash_of_all() {
    let mut cluster = Cluster::new(5, StrategySpec::Leader);
    let mut acknowledged = Vec::new();
    for client in 1..30 {
        let write = cluster.ask((client % 5) as usize, put(client, 1, "k", "v"));
        acknowledged.extend(cluster.done(write).then_some(client));
    }
    assert!(acknowledged.len() > 20);
    // All replicas end immediately, before any checkpoint of these writes.
    (0..5).for_each(|node| cluster.crash(node));
    (0..5).for_each(|node| cluster.start(node));
    cluster.pass(8000);
    let read = cluster.read(3, "k");
    cluster.pass(1000);
    assert_eq!(cluster.value(read).as_deref(), Some("v"));
    // Every write is known to be executed, and a retry is not executed again.
    let before = cluster.node(0).digest();
    for client in acknowledged {
        let retry = cluster.ask(0, put(client, 1, "k", "again"));
        cluster.pass(300);
        assert!(cluster.done(retry));
    }
    assert_eq!(cluster.node(0).digest(), before);
    cluster.assert_agreement();
}

#[test]
fn nobody_takes_leadership_by_preference_during_its_restart_wait() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.elect(1);
    cluster.transfers = true;
    cluster.crash(0);
    cluster.start(0);
    cluster.pass(3500);
    assert!(cluster.leads(1), "0 has forgotten whom it promised");
    // It has lost leadership recently, too.
    cluster.pass(10_000);
    assert!(cluster.leads(0));
}

#[test]
fn what_was_not_durable_was_not_said() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.stall(1);
    cluster.stall(2);
    let since = cluster.sent.len();
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    cluster.pass(100);
    assert!(tags(&cluster, 1, since).is_empty() && !cluster.answered(write));
    // Both forget the votes, so no replica may have relied on them.
    cluster.crash(1);
    cluster.crash(2);
    cluster.lose(|packet| accept(packet).is_some());
    cluster.start(1);
    cluster.start(2);
    cluster.pass(100);
    assert!(!cluster.answered(write));
    cluster.heal();
    cluster.pass_until(8000, "it is proposed again", |cluster| cluster.done(write));
}

#[test]
pub(super) fn h92_what_an_earlier_run_asked_for_is_not_taken() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    // 2 learns of the next leader, but its promise does not reach its disk.
    cluster.stall(2);
    cluster.elect(1);
    assert!(cluster.leads(1));
    cluster.lose(|packet| accept(packet).is_some() && packet.1.index() == 2);
    let fetched = |packet: &Packet| matches!(packet.0.message, Message::Fetched { .. });
    cluster.hold(move |packet| fetched(packet) && packet.1.index() == 2);
    let write = cluster.ask(1, put(1, 1, "k", "v"));
    assert!(cluster.done(write));
    cluster.pass_until(3000, "2 fetches it", |cluster| !cluster.held.is_empty());
    let held = std::mem::take(&mut cluster.held);
    cluster.forget_held();
    cluster.crash(2);
    cluster.isolate(2);
    cluster.start(2);
    cluster.pass(10); // It executes again what it knew to be committed.
    // At the ballot that this run knows, the next run would consider the entry dead.
    let executed = cluster.node(2).executed();
    held.into_iter().for_each(|packet| cluster.deliver(packet));
    assert_eq!(cluster.node(2).executed(), executed);
    cluster.heal();
    cluster.pass(3000);
    cluster.assert_agreement();
}

#[test]
fn what_was_read_for_an_earlier_run_is_not_sent_to_the_next() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    for sequence in 1..5 {
        cluster.ask(0, put(9, sequence, "w", "1"));
    }
    cluster.pass(2500);
    // 2 learns of the next leader and fetches, but nothing of this reaches its disk.
    cluster.stall(2);
    for sequence in 5..9 {
        let write = cluster.ask(0, put(9, sequence, "w", "1"));
        assert!(cluster.done(write));
    }
    let fetch = |packet: &Packet| {
        let message = &packet.0.message;
        matches!(message, Message::Fetch { .. } | Message::Fetched { .. })
    };
    cluster
        .hold(move |packet| between(packet, 1, 2) && (accept(packet).is_some() || fetch(packet)));
    cluster.elect(1);
    assert!(cluster.leads(1));
    for sequence in 9..12 {
        let write = cluster.ask(1, put(9, sequence, "w", "1"));
        assert!(cluster.done(write));
    }
    cluster.pass(400);
    let fetched = cluster
        .held
        .iter()
        .find_map(|(envelope, _)| match &envelope.message {
            Message::Fetched { log, entries } if !entries.is_empty() => {
                Some((*log, entries.clone()))
            }
            _ => None,
        });
    let (log, entries) = fetched.expect("2 asked");
    let to = Requester {
        replica: ReplicaId(2),
        incarnation: cluster.node(2).incarnation(),
    };
    cluster.forget_held();
    cluster.crash(2);
    cluster.start(2);
    cluster.lose(move |packet| packet.1 == ReplicaId(2) && !fetch(packet));
    cluster.pass(1); // 1 learns of the new run
    // The disk of 1 was slow until now.
    let executed = cluster.node(2).executed();
    cluster.input(1, Input::LogRead { log, to, entries });
    cluster.pass(1);
    assert_eq!(cluster.node(2).executed(), executed);
    cluster.heal();
    cluster.pass(3000);
    cluster.assert_agreement();
}

#[test]
fn what_the_disk_does_not_have_yet_is_not_read_from_it() {
    let mut cluster = Cluster::new(5, StrategySpec::None);
    let write = cluster.ask(0, put(1, 1, "k", "a"));
    assert!(cluster.done(write));
    cluster.pass(2000);
    // The entries that 1 executed before this run are no longer in its memory.
    cluster.crash(1);
    cluster.start(1);
    cluster.pass(1000);
    // Only 0 and 1 receive a write, and the next leader does not learn of it.
    cluster.lose(|packet| accept(packet).is_some() && packet.1.index() != 1);
    cluster.ask(0, put(1, 2, "k", "lost"));
    let slot = cluster.accepts(0).last().expect("proposed").slot;
    cluster.heal();
    cluster.isolate(0);
    let prepare = |packet: &Packet| matches!(packet.0.message, Message::Prepare { .. });
    cluster.lose(move |packet| prepare(packet) && packet.1.index() == 1);
    // Entries that 1 learns from now on do not reach its disk.
    cluster.stall(1);
    cluster.elect(2);
    assert!(cluster.leads(2));
    let write = cluster.ask(2, put(2, 1, "k", "new"));
    assert!(cluster.done(write));
    cluster.pass(2000);
    assert!(cluster.node(1).executed() > slot);
    let fetch = Message::Fetch {
        log: LogId::Commands,
        from: Slot(1),
        to: Slot(slot.0 + 1),
    };
    let envelope = cluster.node(3).envelope(ReplicaId(1), fetch);
    let since = cluster.sent.len();
    cluster.deliver((envelope, ReplicaId(1)));
    let mut told = 0;
    for (envelope, _) in &cluster.sent[since..] {
        let Message::Fetched { log, entries } = &envelope.message else {
            continue;
        };
        for (slot, value) in entries {
            told += 1;
            assert_eq!(cluster.node(2).entry(*log, *slot), Some(value), "{slot:?}");
        }
    }
    assert!(told > 0);
}

/// Whether `node` has recorded that its next run need not wait before it votes.
fn needs_no_wait(cluster: &Cluster, node: usize) -> bool {
    let zero = Record::RestartWait(std::time::Duration::ZERO);
    let of_it = cluster.written.iter().filter(|(by, _)| *by == node);
    of_it
        .map(|(_, record)| format!("{record:?}"))
        .any(|record| record == format!("{zero:?}"))
}

#[test]
pub(super) fn h83_who_ends_while_it_may_be_believed_waits_at_its_next_start() {
    let mut settings = super::cluster::settings(3, StrategySpec::All);
    settings.params.t_lease = std::time::Duration::from_secs(8);
    let mut cluster = Cluster::with(settings);
    // 2 hears no replica. It reads under promises of 0 and 1, and does not release them.
    cluster.isolate(2);
    for node in [0, 1] {
        cluster.input(node, Input::Stop);
        cluster.pass(100);
        cluster.crash(node);
    }
    (0..2).for_each(|node| cluster.start(node));
    cluster.pass_until(6000, "somebody leads", |cluster| {
        cluster.leads(0) || cluster.leads(1)
    });
    cluster.pass(300);
    let write = cluster.ask(0, put(1, 1, "k", "new"));
    let mut read_old = false;
    for _ in 0..60 {
        cluster.pass(100);
        let read = cluster.read(2, "k");
        let local = cluster.path(read) == Some(Path::Local);
        assert!(!(local && cluster.done(write)), "2 reads the old value");
        read_old |= local;
    }
    assert!(read_old, "2 read under what they promised");
}

#[test]
fn a_planned_restart_keeps_nobody_waiting() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.input(1, Input::Stop);
    cluster.pass(50);
    assert!(needs_no_wait(&cluster, 1));
    let read = cluster.read(1, "k");
    assert_ne!(
        cluster.path(read),
        Some(Path::Local),
        "it has given its leases back"
    );
    cluster.crash(1);
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    cluster.pass(5);
    assert!(cluster.done(write), "nobody waits for who has left");
    cluster.start(1);
    cluster.pass(300);
    let since = cluster.sent.len();
    // Of three, 1 and 0 are a majority. The votes of 1 name no replica without need.
    cluster.isolate(2);
    cluster.ask(0, put(1, 2, "k", "w"));
    let everyone = ReplicaSet::all(3);
    let votes = tags(&cluster, 1, since);
    assert!(!votes.is_empty() && !votes.contains(&everyone), "{votes:?}");
    cluster.heal();
    cluster.pass_until(15_000, "it holds again", |cluster| {
        cluster.node(1).promised_by(ReplicaId(0)).next().is_some()
    });
}

#[test]
fn who_leaves_with_a_clock_that_was_wrong_waits_at_its_next_start() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.input(1, Input::Stop);
    cluster.pass(50);
    assert!(needs_no_wait(&cluster, 1));
    // The clock that measured the wait may have run too fast, so others may still believe the
    // promises.
    cluster.input(1, Input::ClockTrusted(false));
    cluster.pass(50);
    cluster.crash(1);
    cluster.start(1);
    let until = cluster.node(1).outwaits_until();
    assert!(until > cluster.clock(1), "{until:?}");
}

#[test]
fn a_leader_that_ends_hands_over_first() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.input(0, Input::Stop);
    cluster.pass(50);
    assert!(cluster.leads(1) || cluster.leads(2));
    assert!(needs_no_wait(&cluster, 0));
    cluster.crash(0);
    let write = cluster.ask(1, put(1, 1, "k", "v"));
    cluster.pass(5);
    assert!(cluster.done(write), "nobody waits for who has left");
}

/// A promise that was in transit when the grantor shut down is refused, however late it arrives.
#[test]
fn a_promise_on_its_way_is_refused_after_its_grantor_left() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.hold(|packet| {
        let promise = matches!(&packet.0.message, Message::Lease(LeaseMessage::Promise(_)));
        promise && between(packet, 0, 2)
    });
    cluster.pass(600);
    cluster.input(0, Input::Stop);
    cluster.pass(50);
    assert!(needs_no_wait(&cluster, 0));
    cluster.release();
    let now = cluster.clock(2);
    let mut promises = cluster.node(2).promised_by(ReplicaId(0));
    assert!(promises.all(|(_, until)| until <= now));
}

#[test]
fn a_wiped_replica_that_ends_writes_down_no_wait() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.isolate(1);
    cluster.wipe(1);
    let since = cluster.written.len();
    cluster.start(1);
    cluster.input(1, Input::Stop);
    cluster.pass(3000);
    let records = &cluster.written[since..];
    let waits =
        |(by, record): &&(usize, Record)| *by == 1 && matches!(record, Record::RestartWait(_));
    assert_eq!(records.iter().filter(waits).count(), 0);
}

/// Checks the claims of docs/operating.md about durability `async`, which gives up the usual
/// guarantees: a write is confirmed as soon as a majority has handed it to the operating system.
#[test]
fn without_syncs_one_loss_of_power_loses_a_confirmed_write_and_replicas_differ_for_good() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    let synced = cluster.disk(1);
    cluster.crash(2);
    let lost = cluster.ask(0, put(1, 1, "k", "confirmed"));
    assert!(cluster.done(lost), "0 and 1 are a majority");
    cluster.lose_power(1, synced);
    cluster.isolate(0);
    for node in [1, 2] {
        cluster.start(node);
    }
    // Neither of them has received the write, and they are a majority, too.
    cluster.pass_until(20_000, "1 or 2 leads", |cluster| {
        cluster.leads(1) || cluster.leads(2)
    });
    let read = cluster.read(1, "k");
    cluster.pass_until(20_000, "the read", |cluster| cluster.answered(read));
    assert_eq!(cluster.value(read).as_deref(), Some(""), "it is lost");
    let write = cluster.ask(1, put(2, 1, "other", "value"));
    cluster.pass_until(20_000, "the write", |cluster| cluster.done(write));

    cluster.heal();
    cluster.pass(10_000);
    let executed = [0, 1, 2].map(|node| cluster.node(node).executed());
    assert_eq!(executed, [executed[0]; 3]);
    let states = [0, 1, 2].map(|node| cluster.node(node).digest());
    assert_eq!(states[1], states[2]);
    assert_ne!(states[0], states[1], "0 keeps what it has executed");
}
