//! Log windows. A replica accepts only a limited number of slots, its window, above its durable
//! checkpoint. The tests reach the end of the window.

use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::{Ballot, ReplicaId, Slot, StrategySpec};
use leasehold_replica::Settings;
use leasehold_replica::message::{
    Batch, LogId, Message, PerLog, Proposal, ReportedEntry, RequestId, Value,
};

use super::cluster::{Cluster, Packet, RequestToken, accept, put};

const WINDOW: u64 = 16;

/// Returns settings with small log windows. Replicas make a checkpoint only when a window is nearly
/// full.
fn settings(n: usize) -> Settings {
    let mut settings = super::cluster::settings(n, StrategySpec::None);
    settings.log_window = WINDOW;
    settings.timing.checkpoint = Duration::from_secs(86_400);
    settings
}

/// Writes "k" once for each of `clients`, each time in a slot of its own.
fn write(cluster: &mut Cluster, clients: std::ops::Range<u64>) -> Vec<RequestToken> {
    let writes = clients.map(|client| cluster.ask(0, put(client, 1, "k", "v")));
    writes.collect()
}

fn all_done(cluster: &Cluster, writes: &[RequestToken]) -> bool {
    writes.iter().all(|asked| cluster.done(*asked))
}

/// Returns the ballot and the commit points in the newest Prepare of `node`.
fn asked(cluster: &Cluster, node: usize) -> (Ballot, PerLog<Slot>) {
    let mut sent = cluster.sent.iter().rev();
    let prepare = sent.find_map(|(envelope, _)| match envelope.message {
        Message::Prepare { ballot, commits } if envelope.from.index() == node => {
            Some((ballot, commits))
        }
        _ => None,
    });
    prepare.expect("it campaigns")
}

/// Returns the answer in which `from` reports to candidate 1 that it has accepted `value` in
/// `slot`.
fn report(cluster: &Cluster, from: usize, slot: Slot, value: Value) -> Packet {
    let (ballot, commits) = asked(cluster, 1);
    let round = ballot.round - 1;
    let replica = ReplicaId(0);
    let entry = ReportedEntry {
        log: LogId::Commands,
        slot,
        ballot: Ballot { round, replica },
        value,
    };
    let message = Message::Prepared {
        ballot,
        answer: 1,
        part: 0,
        parts: 1,
        commits,
        entries: vec![entry],
        log_starts: Vec::new(),
    };
    let envelope = cluster.node(from).envelope(ReplicaId(1), message);
    (envelope, ReplicaId(1))
}

fn commands() -> Value {
    Value::Commands(Arc::new(Batch {
        commands: vec![Proposal {
            origin: ReplicaId(0),
            request: RequestId(1),
            command: put(77, 1, "k", "far"),
        }],
        ..Batch::default()
    }))
}

/// Loses all answers to Phase 1, except those that the test delivers.
fn lose_answers(cluster: &mut Cluster) {
    cluster.lose(|packet| matches!(packet.0.message, Message::Prepared { .. }));
}

#[test]
pub(super) fn h78_a_vote_far_above_the_checkpoint_is_not_forgotten() {
    let mut cluster = Cluster::with(settings(3));
    let writes = write(&mut cluster, 1..5 * WINDOW);
    assert!(all_done(&cluster, &writes));
    let last = cluster.ask(0, put(1000, 1, "k", "last"));
    assert!(cluster.done(last));
    let executed = cluster.node(0).executed();
    (0..3).for_each(|node| cluster.crash(node));
    (0..3).for_each(|node| cluster.start(node));
    for node in 0..3 {
        let highest = cluster.node(node).highest_of(LogId::Commands);
        assert!(highest >= executed, "{node} has accepted {executed:?}");
    }
    cluster.pass(8000);
    let read = cluster.read(1, "k");
    cluster.pass(1000);
    assert_eq!(cluster.value(read).as_deref(), Some("last"));
}

#[test]
fn the_whole_window_survives_a_restart() {
    let mut cluster = Cluster::with(settings(5)); // two of five replicas commit nothing
    lose_answers(&mut cluster);
    cluster.elect(2);
    // The message that 2 would send as leader, with a checkpoint a whole window above that of 1.
    let highest = cluster.node(1).highest_of(LogId::Commands);
    let checkpoint = highest.0 - cluster.counter(1, "log_window_used");
    let accepted: Vec<Slot> = (highest.0 + 1..=checkpoint + WINDOW).map(Slot).collect();
    let beyond = Slot(checkpoint + WINDOW + 1);
    let (ballot, _) = asked(&cluster, 2);
    for slot in accepted.iter().copied().chain([beyond]) {
        let accept = leasehold_replica::message::Accept {
            ballot,
            log: LogId::Commands,
            slot,
            value: commands(),
            vote: Some(Default::default()),
            news: Default::default(),
            last_multi: Slot::ZERO,
            infallible: Arc::from([]),
        };
        let envelope = cluster
            .node(2)
            .envelope(ReplicaId(1), Message::Accept(accept));
        cluster.deliver((envelope, ReplicaId(1)));
    }
    assert_eq!(
        Some(&cluster.node(1).highest_of(LogId::Commands)),
        accepted.last()
    );
    assert_eq!(cluster.counter(1, "refused_beyond_window"), 1);
    cluster.crash(1);
    cluster.start(1);
    for slot in accepted {
        let entry = cluster.node(1).accepted(LogId::Commands, slot);
        assert_eq!(entry, Some((ballot, &commands())), "{slot:?}");
    }
}

#[test]
pub(super) fn h79_a_leader_stops_at_its_window_and_goes_on_when_it_moves() {
    let mut cluster = Cluster::with(settings(3));
    let start = cluster.node(0).executed();
    cluster.lose(|packet| accept(packet).is_some());
    let writes = write(&mut cluster, 1..5 * WINDOW);
    let proposed = cluster.node(0).highest_of(LogId::Commands);
    assert!(proposed > start, "it begins");
    assert!(proposed.0 <= start.0 + WINDOW / 2, "and stops");
    cluster.heal();
    cluster.pass_until(10_000, "all are done", |cluster| all_done(cluster, &writes));
    cluster.pass(1000);
    cluster.assert_agreement();
}

#[test]
fn a_leader_waits_for_its_own_checkpoint_and_others_for_theirs() {
    let mut cluster = Cluster::with(settings(3));
    let writes = write(&mut cluster, 1..3);
    assert!(all_done(&cluster, &writes));
    // The disks of the two others make everything durable, and that of 0 makes nothing durable.
    cluster.stall(0);
    let writes = write(&mut cluster, 10..10 + 5 * WINDOW);
    cluster.pass(50);
    assert!(!all_done(&cluster, &writes));
    cluster.unstall(0);
    cluster.pass_until(10_000, "all are done", |cluster| all_done(cluster, &writes));
    // 2 accepts in memory up to the end of its window, and fetches later slots.
    cluster.stall(2);
    let writes = write(&mut cluster, 200..200 + 5 * WINDOW);
    cluster.pass(50);
    assert!(all_done(&cluster, &writes), "0 and 1 are a majority");
    assert!(cluster.node(2).executed() < cluster.node(0).executed());
    assert!(cluster.counter(2, "refused_beyond_window") > 0);
    cluster.unstall(2);
    cluster.pass_until(5000, "2 catches up", |cluster| {
        cluster.node(2).executed() == cluster.node(0).executed()
    });
    cluster.assert_agreement();
}

#[test]
fn a_laggard_fetches_window_by_window() {
    let mut cluster = Cluster::with(settings(3));
    cluster.isolate(2);
    let writes = write(&mut cluster, 1..20 * WINDOW);
    assert!(all_done(&cluster, &writes));
    cluster.heal();
    cluster.pass_until(2000, "2 catches up", |cluster| {
        cluster.node(2).executed() == cluster.node(0).executed()
    });
    cluster.assert_agreement();
}

#[test]
fn a_candidate_that_lags_by_windows_catches_up_and_leads() {
    let mut cluster = Cluster::with(settings(3));
    cluster.isolate(2);
    let writes = write(&mut cluster, 1..20 * WINDOW);
    assert!(all_done(&cluster, &writes));
    let goal = cluster.node(0).executed();
    cluster.heal();
    cluster.crash(0);
    cluster.elect(2);
    cluster.pass_until(2000, "2 leads", |cluster| cluster.leads(2));
    cluster.pass_until(2000, "2 has it all", |cluster| {
        cluster.node(2).executed() > goal
    });
}

#[test]
fn a_candidate_leads_once_its_checkpoint_leaves_room_for_what_it_recovers() {
    let mut cluster = Cluster::with(settings(3));
    // At least one slot, and fewer than force a checkpoint.
    let writes = write(&mut cluster, 1..3);
    assert!(all_done(&cluster, &writes));
    let mut used = cluster.counter(1, "log_window_used");
    if used == 0 {
        write(&mut cluster, 5..6);
        cluster.pass(10);
        used = cluster.counter(1, "log_window_used");
    }
    assert!((1..WINDOW / 4).contains(&used), "{used}");
    lose_answers(&mut cluster);
    cluster.elect(1);
    let (_, commits) = asked(&cluster, 1);
    cluster.stall(1);
    let slot = Slot(commits.commands.0 + WINDOW);
    let answer = report(&cluster, 2, slot, commands());
    cluster.deliver(answer);
    assert!(!cluster.leads(1), "it could not store what it must propose");
    cluster.unstall(1);
    assert!(cluster.leads(1));
    let proposed = cluster.accepts(1);
    assert!(proposed.iter().any(|accept| accept.slot == slot));
    let opening = proposed.iter().map(|accept| accept.slot).max();
    assert_eq!(opening, Some(slot.next()));
    cluster.heal();
    let lives = cluster.ask(1, put(9, 1, "k", "alive"));
    cluster.pass_until(5000, "it goes on", |cluster| cluster.done(lives));
    cluster.pass(1000);
    cluster.assert_agreement();
}

#[test]
fn a_row_of_leaders_without_a_commit_uses_one_slot_behind_the_window() {
    let mut settings = settings(3);
    settings.log_window = 4;
    let mut cluster = Cluster::with(settings);
    let executed = cluster.node(0).executed();
    cluster.lose(|packet| matches!(packet.0.message, Message::Accept(_)));
    let mut starts = Vec::new();
    for leader in [1, 2, 0].into_iter().cycle().take(60) {
        cluster.elect(leader);
        cluster.pass(1);
        assert!(cluster.leads(leader), "after {} leaders", starts.len());
        let news = cluster.accepts(leader);
        starts.push(news.last().expect("it proposes").news.log_start);
    }
    let highest = starts.iter().max().expect("there were leaders");
    assert_eq!(*highest, Slot(executed.0 + 5));
    cluster.heal();
    let lives = cluster.ask(0, put(9, 1, "k", "alive"));
    cluster.pass_until(10_000, "the last one goes on", |cluster| {
        cluster.done(lives)
    });
    cluster.pass(1000);
    cluster.assert_agreement();
}
