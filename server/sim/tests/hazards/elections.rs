//! Phase 1, ballots, and entries that were accepted at earlier ballots and are not chosen yet.

use std::sync::Arc;

use leasehold_leases::{Ballot, ReplicaId, Slot, StrategySpec};
use leasehold_replica::action::Record;
use leasehold_replica::message::{
    Batch, LogId, Message, Proposal, ReportedEntry, RequestId, Value,
};
use leasehold_replica::{Input, OperatorRequest};
use leasehold_wire::command::Op;

use super::cluster::{Cluster, Packet, accept, between, heartbeat_of, put, votes_on};

fn prepare(packet: &Packet) -> bool {
    matches!(packet.0.message, Message::Prepare { .. })
}

fn asked(packet: &Packet) -> Option<Ballot> {
    match packet.0.message {
        Message::Prepare { ballot, .. } => Some(ballot),
        _ => None,
    }
}

fn fetch(packet: &Packet) -> bool {
    matches!(packet.0.message, Message::Fetch { .. })
}

#[test]
pub(super) fn h13_what_phase_1_finds_goes_through_phase_2() {
    let mut cluster = Cluster::new(5, StrategySpec::All);
    // 1, 2 and 3 accept, which is a majority. Holder 4 does not receive the write.
    cluster.hold(|packet| votes_on(packet, None));
    cluster.lose(|packet| between(packet, 0, 4) && accept(packet).is_some());
    let write = cluster.ask(1, put(1, 1, "k", "new"));
    let slot = cluster.accepts(0).last().expect("proposed").slot;
    cluster.isolate(0);
    cluster.forget_held();
    // The new leader learns of three acceptances, none of which carries a tag.
    cluster.hold(|packet| between(packet, 1, 4) && accept(packet).is_some());
    cluster.elect(1);
    assert!(cluster.leads(1));
    let old = cluster.read(4, "k");
    assert_eq!(
        cluster.value(old).as_deref(),
        Some(""),
        "4 reads under its leases"
    );
    assert!(cluster.node(1).executed() < slot, "4 has not been told");
    assert!(!cluster.answered(write));
    cluster.release();
    // 0 is cut off, and may read, too, while its leases last.
    cluster.pass_until(10_000, "the write commits", |cluster| cluster.done(write));
    let new = cluster.read(4, "k");
    assert_eq!(cluster.value(new).as_deref(), Some("new"));
}

#[test]
pub(super) fn h20_votes_at_another_ballot_commit_no_old_value() {
    let mut settings = super::cluster::settings(5, StrategySpec::None);
    settings.accept_replies = leasehold_replica::settings::AcceptReplies::All;
    let mut cluster = Cluster::with(settings);
    cluster.pass(100);
    // Only 1 receives a value. Then another leader's opening no-op takes the same slot. 1 receives
    // the votes on the no-op, but no messages of that leader.
    cluster.lose(|packet| accept(packet).is_some() && packet.1.index() != 1);
    cluster.ask(0, put(1, 1, "k", "old"));
    let slot = cluster.accepts(0).last().expect("proposed").slot;
    cluster.heal();
    cluster.lose(|packet| between(packet, 2, 0) && prepare(packet));
    cluster.lose(|packet| between(packet, 2, 1));
    let since = cluster.sent.len();
    cluster.elect(2);
    let voted = |packet: &&Packet| {
        votes_on(packet, Some(slot)) && packet.1.index() == 1 && packet.0.from.index() != 2
    };
    assert_eq!(cluster.sent[since..].iter().filter(voted).count(), 3);
    assert!(
        cluster.node(1).executed() < slot,
        "it has not received the no-op"
    );
    cluster.heal();
    cluster.pass(3000);
    assert!(cluster.node(1).executed() >= slot);
    cluster.assert_agreement();
}

#[test]
pub(super) fn h22_half_of_four_is_no_majority() {
    let mut cluster = Cluster::new(4, StrategySpec::None);
    for (a, b) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        cluster.lose(move |packet| between(packet, a, b) || between(packet, b, a));
    }
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    cluster.pass(3000);
    assert!(!cluster.answered(write), "2 and 3 may have another leader");
    cluster.heal();
    cluster.pass_until(8000, "it commits", |cluster| cluster.done(write));
}

#[test]
fn h19_holes_are_filled() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let warm = cluster.ask(0, put(1, 1, "a", "0"));
    assert!(cluster.done(warm));
    // One slot reaches no replica, and the next two reach all.
    cluster.lose(|packet| accept(packet).is_some());
    let lost = cluster.ask(0, put(1, 2, "a", "1"));
    cluster.heal();
    let kept = [
        cluster.ask(0, put(2, 1, "b", "1")),
        cluster.ask(0, put(3, 1, "c", "1")),
    ];
    assert!(
        kept.iter().all(|asked| cluster.done(*asked)),
        "answered over the hole"
    );
    cluster.isolate(0);
    cluster.elect(1);
    assert!(cluster.leads(1));
    cluster.crash(0);
    for key in ["b", "c"] {
        let read = cluster.read(1, key);
        // The holder that 1 knows is dead, so 1 finally directs the read to itself.
        cluster.pass(1000);
        assert_eq!(
            cluster.value(read).as_deref(),
            Some("1"),
            "acknowledged: {key}"
        );
    }
    assert!(!cluster.answered(lost));
    cluster.heal();
    cluster.start(0);
    cluster.pass(3000);
    cluster.assert_agreement();
}

#[test]
pub(super) fn h27_a_candidate_behind_its_quorum_fetches_first() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    // 2 is cut off while 0 and 1 commit and execute writes.
    cluster.isolate(2);
    for sequence in 1..6 {
        let write = cluster.ask(0, put(1, sequence, "k", "new"));
        assert!(cluster.done(write));
    }
    cluster.pass(300);
    let committed = cluster.node(1).executed();
    cluster.heal();
    cluster.isolate(0);
    cluster.hold(fetch);
    cluster.elect(2);
    assert!(
        !cluster.leads(2),
        "it does not lead without what is committed"
    );
    cluster.release();
    assert!(cluster.leads(2));
    let first = cluster.accepts(2).iter().map(|accept| accept.slot).min();
    assert!(
        first > Some(committed),
        "nothing is proposed where all is decided"
    );
    let read = cluster.read(2, "k");
    cluster.pass(1000);
    assert_eq!(cluster.value(read).as_deref(), Some("new"));
}

/// A candidate may have to fetch entries for longer than an election timeout. It continues as long
/// as entries arrive, and a replica that has promised to it waits, too. If no entries arrive,
/// another replica campaigns.
#[test]
fn a_candidate_waits_for_as_long_as_it_hears_something_new() {
    for arrives in [true, false] {
        let mut cluster = Cluster::new(5, StrategySpec::None);
        cluster.isolate(2);
        for sequence in 1..9 {
            // Each of these writes fills a message.
            let write = Op::put("k", vec![0; 700_000]);
            let write = cluster.ask(0, super::cluster::write(1, sequence, write));
            assert!(cluster.done(write));
        }
        cluster.pass(300);
        cluster.heal();
        cluster.isolate(0);
        let since = cluster.sent.len();
        cluster.hold(|packet| matches!(packet.0.message, Message::Fetched { .. }));
        cluster.elect(2);
        for _ in 0..6 {
            cluster.pass(600);
            assert!(!cluster.leads(2), "it lacks what is committed");
            if arrives {
                let fetched = cluster.held.pop().expect("it is asked for");
                cluster.deliver(fetched);
            }
        }
        let mut rounds: Vec<Ballot> = cluster.sent[since..].iter().filter_map(asked).collect();
        rounds.sort_unstable();
        rounds.dedup();
        assert_eq!(rounds.len() == 1, arrives, "{rounds:?}");
        if arrives {
            cluster.release();
            cluster.pass_until(2000, "it leads at last", |cluster| cluster.leads(2));
        }
    }
}

#[test]
fn h27_a_replier_behind_the_candidate_catches_up() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.isolate(2);
    for sequence in 1..6 {
        let write = cluster.ask(0, put(1, sequence, "k", "new"));
        assert!(cluster.done(write));
    }
    cluster.heal();
    cluster.isolate(0);
    cluster.elect(1);
    assert!(cluster.leads(1));
    cluster.pass(1000);
    assert_eq!(cluster.node(2).executed(), cluster.node(1).executed());
    assert_eq!(cluster.node(2).digest(), cluster.node(1).digest());
}

#[test]
pub(super) fn h28_a_commit_point_commits_only_what_was_accepted_at_its_ballot() {
    let mut cluster = Cluster::new(5, StrategySpec::Leader);
    // Only 2 receives an entry.
    cluster.lose(|packet| accept(packet).is_some() && packet.1.index() != 2);
    cluster.ask(0, put(1, 1, "k", "stale"));
    let slot = cluster.accepts(0).last().expect("proposed").slot;
    cluster.heal();
    cluster.isolate(0);
    // 1 leads without 2, and its opening no-op takes the same slot. 2 learns of the commits, but
    // does not receive the values.
    cluster.lose(|packet| between(packet, 1, 2) && prepare(packet));
    cluster.hold(|packet| between(packet, 1, 2) && accept(packet).is_some());
    cluster.hold(fetch);
    cluster.elect(1);
    cluster.pass(300);
    assert!(cluster.node(1).executed() >= slot);
    assert!(
        cluster.node(2).executed() < slot,
        "2 does not know what was committed"
    );
    cluster.forget_held();
    cluster.pass(1000);
    assert_eq!(cluster.node(2).executed(), cluster.node(1).executed());
    assert_eq!(cluster.node(2).digest(), cluster.node(1).digest());
}

#[test]
pub(super) fn h29_a_ballots_start_is_its_leaders_word_not_a_no_op() {
    let mut cluster = Cluster::new(5, StrategySpec::Leader);
    // Only 2 receives the opening no-op of 1, which is not committed.
    cluster.lose(|packet| accept(packet).is_some() && packet.1.index() != 2);
    cluster.elect(1);
    let opening = cluster.accepts(1).last().expect("proposed").slot;
    cluster.heal();
    cluster.elect(2);
    let again = cluster.accepts(2);
    let start = again.iter().map(|accept| accept.slot).max();
    assert!(
        again.iter().any(|accept| accept.slot == opening),
        "re-proposed"
    );
    assert!(start > Some(opening));
    for accept in again {
        assert_eq!(Some(accept.news.log_start), start, "at {:?}", accept.slot);
    }
}

#[test]
fn a_dead_entry_stays_dead_whoever_reports_it() {
    let mut cluster = Cluster::new(5, StrategySpec::None);
    // Only 4 receives some slots, and is then cut off. Their leader dies, which is the replica that
    // would send them again.
    cluster.lose(|packet| accept(packet).is_some() && packet.1.index() != 4);
    for client in 1..5 {
        cluster.ask(0, put(client, 1, "k", "dead"));
    }
    let dead = cluster.accepts(0).last().expect("proposed").slot;
    cluster.heal();
    cluster.crash(0);
    cluster.isolate(4);
    // 1 leads without 4: its ballot begins at the first of these slots.
    cluster.elect(1);
    assert!(cluster.leads(1));
    let lives = cluster.ask(1, put(9, 1, "k", "alive"));
    assert!(cluster.done(lives));
    assert!(cluster.accepts(1).iter().all(|accept| accept.slot < dead));
    // 2 receives the later slots from 4, and the start of 1's ballot from 3.
    cluster.heal();
    cluster.isolate(1);
    cluster.elect(2);
    assert!(cluster.leads(2));
    cluster.heal();
    cluster.start(0);
    cluster.pass(3000);
    let read = cluster.read(3, "k");
    cluster.pass(1000);
    assert_eq!(cluster.value(read).as_deref(), Some("alive"));
    cluster.assert_agreement();
}

#[test]
fn where_old_ballots_began_is_forgotten_in_the_end() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    for round in 0..6 {
        cluster.elect(1 + round % 2);
        cluster.pass(700);
    }
    // Another election shows which starts of ballots each replica still reports.
    cluster.elect(1);
    let reports = cluster
        .sent
        .iter()
        .rev()
        .find_map(|(envelope, to)| match &envelope.message {
            Message::Prepared { log_starts, .. } if *to == ReplicaId(1) => Some(log_starts.clone()),
            _ => None,
        });
    let reports = reports.expect("somebody answered");
    for log in LogId::ALL {
        assert_eq!(
            reports.iter().filter(|(of, ..)| *of == log).count(),
            1,
            "{log:?}"
        );
    }
    let forgets = |(_, record): &&(usize, Record)| matches!(record, Record::ForgetLogStarts { .. });
    assert!(
        cluster.written.iter().filter(forgets).count() > 6,
        "and on disk"
    );
}

#[test]
fn a_leader_that_hears_nobody_makes_room() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    // The leader is heard, so no other replica campaigns, but it receives no votes.
    cluster.lose(|packet| packet.1.index() == 0);
    cluster.pass(12_000);
    assert!(!cluster.leads(0));
    assert!(cluster.leads(1) || cluster.leads(2));
    // Nor does it delay the new leader by campaigns that cannot succeed.
    let write = cluster.ask(1, put(1, 1, "k", "v"));
    cluster.pass_until(15_000, "a write commits", |cluster| cluster.done(write));
    let prepares = cluster.sent.len();
    cluster.pass(10_000);
    let campaigns = cluster.sent[prepares..]
        .iter()
        .filter(|packet| prepare(packet))
        .count();
    assert_eq!(campaigns, 0);
}

#[test]
fn a_transfer_that_fails_does_not_stop_writes_for_ever() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.elect(1);
    assert!(cluster.leads(1));
    // The preferred replica requests leadership, but cannot take it.
    cluster.transfers = true;
    cluster.lose(|packet| matches!(packet.0.message, Message::Transfer { .. }));
    cluster.pass(6000);
    let write = cluster.ask(1, put(1, 1, "k", "v"));
    cluster.pass(1000);
    assert!(cluster.done(write), "the leader leads on");
    cluster.heal();
    cluster.pass_until(30_000, "leadership moves in the end", |cluster| {
        cluster.leads(0)
    });
}

#[test]
fn an_entry_far_ahead_is_nobodys_honest_report() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.lose(|packet| between(packet, 2, 1) || between(packet, 0, 1));
    cluster.elect(1);
    let asked = cluster
        .sent
        .iter()
        .rev()
        .find_map(|(envelope, _)| match envelope.message {
            Message::Prepare { ballot, commits } => Some((ballot, commits)),
            _ => None,
        });
    let (ballot, commits) = asked.expect("it campaigns");
    let entry = ReportedEntry {
        log: LogId::Commands,
        // A number that is valid for a slot, but far beyond the window.
        slot: Slot(1 << 40),
        ballot: Ballot {
            round: 1,
            replica: ReplicaId(0),
        },
        value: Value::Noop,
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
    let envelope = cluster.node(2).envelope(ReplicaId(1), message);
    cluster.deliver((envelope, ReplicaId(1)));
    assert!(!cluster.leads(1), "it proposes no billion no-ops");
    cluster.heal();
    cluster.pass_until(2000, "an honest answer counts", |cluster| cluster.leads(1));
}

#[test]
fn parts_of_two_answers_make_no_promise() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    cluster.lose(|packet| between(packet, 2, 1) || between(packet, 0, 1));
    cluster.elect(1);
    let asked = cluster.sent.iter().rev().find_map(|(envelope, _)| {
        let Message::Prepare { ballot, commits } = envelope.message else {
            return None;
        };
        Some((ballot, commits))
    });
    let (ballot, commits) = asked.expect("it campaigns");
    let slot = commits.commands.next();
    let chosen = ReportedEntry {
        log: LogId::Commands,
        slot,
        ballot: Ballot {
            round: ballot.round - 1,
            replica: ReplicaId(0),
        },
        value: Value::Commands(Arc::new(Batch {
            commands: vec![Proposal {
                origin: ReplicaId(0),
                request: RequestId(1),
                command: put(1, 1, "k", "chosen"),
            }],
            ..Batch::default()
        })),
    };
    // The first part of the second answer has the content of the second part of the first answer.
    let part = |cluster: &Cluster, answer, part, entries| {
        let message = Message::Prepared {
            ballot,
            answer,
            part,
            parts: 2,
            commits,
            entries,
            log_starts: Vec::new(),
        };
        let envelope = cluster.node(2).envelope(ReplicaId(1), message);
        (envelope, ReplicaId(1))
    };
    let parts = [
        part(&cluster, 1, 0, vec![]),
        part(&cluster, 2, 1, vec![]),
        part(&cluster, 1, 1, vec![chosen.clone()]),
    ];
    for packet in parts {
        cluster.deliver(packet);
        assert!(!cluster.leads(1), "no answer is whole");
    }
    let last = part(&cluster, 2, 0, vec![chosen.clone()]);
    cluster.deliver(last);
    assert!(cluster.leads(1));
    let proposed = cluster.accepts(1);
    let again = proposed.iter().find(|accept| accept.slot == slot);
    assert_eq!(again.expect("it is proposed").value, chosen.value);
}

/// Returns a cluster of replicas that do a pre-vote before they campaign. Most tests run without
/// the pre-vote, but real clusters use it.
fn asking(n: usize) -> Cluster {
    let mut settings = super::cluster::settings(n, StrategySpec::Leader);
    settings.elections.pre_vote = true;
    Cluster::with(settings)
}

fn campaigns_since(cluster: &Cluster, since: usize) -> usize {
    let packets = &cluster.sent[since..];
    packets.iter().filter(|packet| prepare(packet)).count()
}

#[test]
fn who_was_cut_off_raises_no_round_over_a_healthy_leader() {
    let mut cluster = asking(5);
    let since = cluster.sent.len();
    cluster.isolate(4);
    cluster.pass(20_000);
    cluster.heal();
    cluster.pass(5000);
    assert!(cluster.leads(0));
    assert_eq!(campaigns_since(&cluster, since), 0);
    assert_eq!(cluster.node(4).leader(), Some(ReplicaId(0)));
}

#[test]
fn who_hears_nothing_raises_no_round_over_a_healthy_leader() {
    let mut cluster = asking(5);
    let since = cluster.sent.len();
    cluster.lose(|packet| packet.1.index() == 4);
    cluster.pass(20_000);
    cluster.heal();
    cluster.pass(5000);
    assert_eq!(campaigns_since(&cluster, since), 0);
}

#[test]
fn two_that_restart_while_their_leader_is_silent_to_one_of_them_wait() {
    let mut cluster = asking(3);
    let since = cluster.sent.len();
    // 1 does not hear the leader. 2 does, but has just started and does not know the leader yet.
    cluster.lose(|packet| between(packet, 0, 1));
    cluster.pass(1400);
    cluster.crash(2);
    cluster.start(2);
    cluster.pass(10_000);
    assert!(cluster.leads(0));
    assert_eq!(campaigns_since(&cluster, since), 0);
}

#[test]
fn a_lost_election_leaves_nobody_behind() {
    let mut cluster = asking(5);
    // 3 promises a ballot of 4, which then ends. So 3 accepts nothing from the leader any more.
    cluster.lose(|packet| prepare(packet) && packet.1.index() != 3);
    cluster.elect(4);
    cluster.crash(4);
    cluster.heal();
    let since = cluster.sent.len();
    cluster.pass(1000);
    assert!(
        cluster.leads(0),
        "the same replica leads, at a higher ballot"
    );
    assert_eq!(campaigns_since(&cluster, since), 4, "one campaign");
    let write = cluster.ask(3, put(1, 1, "k", "v"));
    cluster.pass(300);
    assert!(cluster.done(write), "3 follows again");
}

#[test]
fn an_operator_moves_leadership_through_any_replica() {
    let mut cluster = asking(3);
    let to = |id| Input::Operator(OperatorRequest::Transfer(ReplicaId(id)));
    for (asked, leads) in [(1, 2), (1, 0), (0, 1), (1, 2)] {
        cluster.input(asked, to(leads));
        cluster.pass(50);
        assert!(
            cluster.leads(leads.into()),
            "r{asked} is asked for r{leads}"
        );
    }
    // 0 is preferred, but the operator has moved leadership to 2.
    cluster.transfers = true;
    cluster.pass(10_000);
    assert!(cluster.leads(2));
    // Once 2 has ended, the operator's choice no longer applies.
    cluster.crash(2);
    cluster.pass_until(30_000, "preference counts again", |cluster| {
        cluster.leads(0)
    });
}

/// A replica that lost leadership soon after it had begun to lead must be healthy for a while
/// before it leads again. An operator's transfer does not wait for that.
#[test]
fn an_operator_does_not_wait_for_a_preferred_leader_to_be_healthy() {
    let mut cluster = asking(3);
    cluster.transfers = true;
    cluster.crash(0);
    cluster.pass_until(30_000, "another leads", |cluster| {
        cluster.leads(1) || cluster.leads(2)
    });
    cluster.start(0);
    cluster.pass(9000);
    assert!(
        !cluster.leads(0),
        "it asks, and is not healthy for ten seconds"
    );
    let leader = cluster.node(0).leader().expect("somebody leads");
    cluster.input(
        leader.index(),
        Input::Operator(OperatorRequest::Transfer(ReplicaId(0))),
    );
    cluster.pass(50);
    assert!(cluster.leads(0));
}

/// A replica resumes after a pause. In its inbox, it finds an old transfer of leadership, followed
/// by a heartbeat of the present leader.
#[test]
fn an_old_hand_over_deposes_nobody() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let newest = |cluster: &Cluster, from: u8| {
        let of = |packet: &&Packet| packet.0.from == ReplicaId(from) && packet.1 == ReplicaId(2);
        let mut sent = cluster.sent.iter().rev().filter(of);
        let found = sent.find(|packet| heartbeat_of(packet).is_some());
        found.expect("a heartbeat").clone()
    };
    let ballot = heartbeat_of(&newest(&cluster, 0)).expect("a heartbeat");
    let hand_over = Message::Transfer {
        ballot,
        by_operator: false,
    };
    let old = cluster.node(0).envelope(ReplicaId(2), hand_over);
    cluster.isolate(2);
    cluster.elect(1);
    let (heartbeat, _) = newest(&cluster, 1);
    let since = cluster.sent.len();
    cluster.inputs(2, vec![Input::Peer(old), Input::Peer(heartbeat)]);
    assert_eq!(cluster.node(2).leader(), Some(ReplicaId(1)));
    assert!(!cluster.sent[since..].iter().any(prepare));
}

/// A replica that knows of committed entries that it lacks does not campaign, because it would
/// spend the campaign on fetching these entries.
#[test]
fn who_lags_takes_nothing_over() {
    for lags in [false, true] {
        let mut cluster = Cluster::new(3, StrategySpec::None);
        if lags {
            cluster.isolate(2);
        }
        let written = cluster.ask(0, put(1, 1, "k", "v"));
        cluster.pass(2000);
        assert!(cluster.done(written));
        let to_2 = |packet: &&Packet| packet.0.from == ReplicaId(0) && packet.1 == ReplicaId(2);
        let mut sent = cluster.sent.iter().rev().filter(to_2);
        let heartbeat = sent.find(|packet| heartbeat_of(packet).is_some());
        let heartbeat = heartbeat.expect("a heartbeat").clone();
        let hand_over = Message::Transfer {
            ballot: heartbeat_of(&heartbeat).expect("a heartbeat"),
            by_operator: false,
        };
        let hand_over = cluster.node(0).envelope(ReplicaId(2), hand_over);
        cluster.heal();
        let since = cluster.sent.len();
        cluster.inputs(2, vec![Input::Peer(heartbeat.0), Input::Peer(hand_over)]);
        cluster.pass(5);
        assert_eq!(!lags, cluster.sent[since..].iter().any(prepare), "{lags}");
    }
}

/// A transfer to a replica that does not answer would delay every write, and would not succeed.
#[test]
fn nothing_is_handed_over_to_who_does_not_answer() {
    let mut cluster = asking(3);
    let leader = (0..3)
        .find(|id| cluster.leads(*id))
        .expect("somebody leads");
    let gone = (leader + 1) % 3;
    cluster.isolate(gone);
    cluster.pass(10_000);
    cluster.input(
        leader,
        Input::Operator(OperatorRequest::Transfer(ReplicaId(gone as u8))),
    );
    let written = cluster.ask(leader, put(1, 1, "k", "v"));
    cluster.pass(200);
    assert!(cluster.done(written));
}

#[test]
fn a_hand_over_to_an_earlier_run_is_not_taken() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let mut sent = cluster.sent.iter().rev();
    let ballot = sent.find_map(heartbeat_of).expect("a heartbeat");
    let hand_over = Message::Transfer {
        ballot,
        by_operator: true,
    };
    let old = cluster.node(0).envelope(ReplicaId(2), hand_over);
    cluster.crash(2);
    cluster.start(2);
    // Its restart wait is over, and it follows the leader.
    cluster.pass(20_000);
    assert_eq!(cluster.node(2).leader(), Some(ReplicaId(0)));
    let since = cluster.sent.len();
    cluster.input(2, Input::Peer(old));
    assert!(!cluster.sent[since..].iter().any(prepare));
    assert!(cluster.leads(0));
}
