//! Reads that a replica forwards to a peer. Only a limited number is forwarded at a time. A read is
//! not forwarded again while the peer answers other reads, and reads of disconnected clients are
//! not forwarded.

use leasehold_leases::StrategySpec;
use leasehold_replica::Input;
use leasehold_replica::action::ClientHandle;
use leasehold_replica::message::Message;
use leasehold_wire::Command;
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;

use super::cluster::{Cluster, Packet, put, read, votes_on, write};

/// Maximum number of unanswered reads that a replica has forwarded to one peer.
const AT_A_TIME: usize = 1024;

fn is_question(packet: &Packet) -> bool {
    matches!(packet.0.message, Message::ForwardRead { .. })
}

fn is_answer(packet: &Packet) -> bool {
    matches!(packet.0.message, Message::ReadAnswers(_))
}

/// Returns the number of forwarded reads in the packets.
fn asked(packets: &[Packet]) -> usize {
    let counts = packets.iter().map(|packet| match &packet.0.message {
        Message::ForwardRead { reads, .. } => reads.len(),
        _ => 0,
    });
    counts.sum()
}

/// Sends commands to replica 1 on this connection, all at the same moment.
fn ask(cluster: &mut Cluster, connection: u64, commands: Vec<Command>) {
    let before = cluster.replies_to(connection).len() as u64;
    let inputs = (before + 1..).zip(commands).map(|(request, command)| {
        let from = ClientHandle {
            connection,
            request,
        };
        Input::Client { from, command }
    });
    cluster.inputs(1, inputs.collect());
    cluster.pass(1);
}

fn gets(count: usize) -> Vec<Command> {
    vec![read("k"); count]
}

fn waiting_reads(cluster: &Cluster) -> u64 {
    let status = cluster.node(1).status(cluster.clock(1));
    let mut counters = status.counters.iter();
    let found = counters.find(|counter| counter.name == "waiting_reads");
    found.expect("it is counted").value
}

#[test]
fn a_peer_is_asked_for_some_reads_at_a_time_and_clients_have_turns() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.hold(is_question);
    let (many, one) = (7, 8);
    ask(&mut cluster, many, gets(3000));
    ask(&mut cluster, one, gets(1));
    assert_eq!(asked(&cluster.held), AT_A_TIME);
    for packet in std::mem::take(&mut cluster.held) {
        cluster.deliver(packet);
    }
    assert_eq!(cluster.replies_to(many).len(), AT_A_TIME);
    assert_eq!(asked(&cluster.held), AT_A_TIME, "as many again");
    for packet in std::mem::take(&mut cluster.held) {
        cluster.deliver(packet);
    }
    assert_eq!(cluster.replies_to(one).len(), 1, "it did not wait for all");
    assert_eq!(cluster.replies_to(many).len(), 2 * AT_A_TIME - 1);
    cluster.release();
    assert_eq!(cluster.replies_to(many).len(), 3000);
    assert_eq!(asked(&cluster.sent), 3001, "each once");
}

#[test]
fn what_clients_asked_of_peers_is_forgotten_when_they_have_gone() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.hold(is_question);
    let (gone, stays) = (7, 8);
    ask(&mut cluster, gone, gets(3000));
    ask(&mut cluster, stays, gets(5));
    cluster.input(1, Input::ClientDisconnected { connection: gone });
    cluster.pass(200);
    assert_eq!(cluster.replies_to(gone).len(), 3000, "room is given back");
    // The peer answers the reads that it received. A client that reconnects cannot exceed the
    // limit.
    assert_eq!(waiting_reads(&cluster), AT_A_TIME as u64 + 5);
    cluster.release();
    assert_eq!(cluster.replies_to(stays).len(), 5);
    assert_eq!(cluster.replies_to(gone).len(), 3000, "each once");
    assert_eq!(waiting_reads(&cluster), 0);
    assert_eq!(asked(&cluster.sent), AT_A_TIME + 5);
}

#[test]
fn reads_of_clients_that_have_gone_are_given_up_and_what_is_for_the_log_goes_on() {
    let mut cluster = Cluster::new(5, StrategySpec::All);
    cluster.hold(|packet| votes_on(packet, None));
    let gone = 7;
    ask(&mut cluster, gone, vec![put(1, 1, "k", "new")]);
    // One read is held for the write, the other is on its way through the log.
    let scan = write(0, 0, Op::scan("a", "", 10));
    let from = |request| ClientHandle {
        connection: gone,
        request,
    };
    for (request, command) in [(2, read("k")), (3, scan)] {
        let from = from(request);
        cluster.input(1, Input::Client { from, command });
        cluster.pass(1);
    }
    assert!(cluster.replies_to(gone).is_empty());
    cluster.input(1, Input::ClientDisconnected { connection: gone });
    cluster.pass(200);
    let told = |cluster: &Cluster| -> Vec<(u64, bool)> {
        let replies = cluster.replies_to(gone).into_iter();
        let shown = replies.map(|(to, _, outcome)| {
            let done = matches!(outcome.result, Some(Answer::Written(_)));
            (to.request, done)
        });
        shown.collect()
    };
    assert_eq!(told(&cluster), [(2, false)]);
    assert_eq!(waiting_reads(&cluster), 0);
    cluster.release();
    cluster.pass(200);
    assert_eq!(told(&cluster), [(2, false), (1, true), (3, false)]);
    // Every further read has a number of its own.
    let reads: Vec<_> = (0..4).map(|_| cluster.read(2, "k")).collect();
    cluster.pass(500);
    assert_eq!(cluster.value(reads[3]).as_deref(), Some("new"));
}

#[test]
fn a_peer_that_answers_one_after_the_other_is_not_asked_again_meanwhile() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.hold(is_answer);
    for connection in 0..20 {
        ask(&mut cluster, 100 + connection, gets(50));
    }
    for _ in 0..9 {
        cluster.pass(300);
        let next = cluster.held.remove(0);
        cluster.deliver(next);
    }
    assert_eq!(asked(&cluster.sent), 1000, "nothing was asked again");
    cluster.pass(1500);
    assert!(asked(&cluster.sent) > 1000, "it says nothing any more");
}

#[test]
fn what_a_peer_leaves_out_while_it_answers_others_is_asked_again_in_the_end() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.hold(is_answer);
    for connection in 0..100 {
        ask(&mut cluster, 100 + connection, gets(10));
    }
    // More than half of the permitted reads are in transit at any time.
    let mut answer_some = |ms: u64| {
        for _ in 0..ms / 250 {
            cluster.pass(250);
            let next = cluster.held.remove(0);
            cluster.deliver(next);
        }
        asked(&cluster.sent)
    };
    assert_eq!(answer_some(5000), 1000, "nothing was asked again");
    assert!(answer_some(1500) > 1000, "some may be lost");
}

#[test]
fn a_peer_that_is_silent_is_asked_less_and_less_often() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.hold(is_question);
    ask(&mut cluster, 7, gets(1));
    // The intervals are 0.7 s, 1.4 s, 2.1 s and so on.
    cluster.pass(20_000);
    let times = asked(&cluster.sent);
    assert!((5..=8).contains(&times), "{times} times");
}
