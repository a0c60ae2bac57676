//! Transfer of leadership, agreement of replicas with candidates, and actions that must not happen
//! in the meantime.

use std::collections::BTreeSet;

use leasehold_leases::{Ballot, KeyRange, LeaseParams, ReplicaId, StrategySpec};
use leasehold_replica::lease_set::LeaseSet;
use leasehold_replica::message::{LogId, Message, PerLog};
use leasehold_replica::{Input, OperatorRequest};

use super::cluster::{Cluster, Packet, heartbeat_of, put, votes_on};

/// Whether a packet belongs to a campaign or pre-vote of replica `of`.
fn campaigns(packet: &Packet, of: u8) -> bool {
    let message = &packet.0.message;
    let asks = matches!(message, Message::Prepare { .. } | Message::PreVote { .. });
    packet.0.from == ReplicaId(of) && asks
}

fn transfer(packet: &Packet) -> bool {
    matches!(packet.0.message, Message::Transfer { .. })
}

fn asking(n: usize) -> Cluster {
    let mut settings = super::cluster::settings(n, StrategySpec::None);
    settings.elections.pre_vote = true;
    Cluster::with(settings)
}

/// If a candidate gave way to another, it would abandon its own campaign before the promises
/// arrive.
#[test]
fn a_candidate_that_agrees_with_another_waits_on_for_its_own_promises() {
    let mut cluster = Cluster::new(5, StrategySpec::None);
    let before = cluster.sent.len();
    cluster.pass_until(1000, "the leader is heard", |cluster| {
        cluster.sent[before..]
            .iter()
            .any(|p| heartbeat_of(p).is_some())
    });
    cluster.isolate(0);
    // This is long enough to agree with another candidate, and too short to campaign.
    cluster.pass(1400);
    cluster.hold(|packet| matches!(packet.0.message, Message::Prepared { .. }));
    let since = cluster.sent.len();
    cluster.elect(1);
    let other = ReplicaId(3);
    let ballot = Ballot {
        round: 1 << 10,
        replica: other,
    };
    let asked = Message::PreVote { ballot, ask: 1 };
    let from_3 = cluster.node(3).envelope(ReplicaId(1), asked);
    cluster.deliver((from_3, ReplicaId(1)));
    let agrees = |packet: &Packet| matches!(packet.0.message, Message::PreVoted { .. });
    assert!(cluster.sent[since..].iter().any(agrees), "it would promise");
    cluster.pass(1200);
    let ballots = cluster.sent[since..].iter().filter_map(|packet| {
        let Message::Prepare { ballot, .. } = packet.0.message else {
            return None;
        };
        Some(ballot)
    });
    let ballots: BTreeSet<Ballot> = ballots.collect();
    assert_eq!(ballots.len(), 1, "it campaigned anew: {ballots:?}");
    cluster.release();
    assert!(cluster.leads(1));
}

/// A replica that takes over refuses the old leader's heartbeats already before its own promise is
/// durable and other replicas learn of the new ballot. The old leader must not conclude from a
/// refusal that it should campaign to lead on.
#[test]
fn a_leader_that_hands_over_does_not_ask_to_lead_on() {
    let mut cluster = asking(3);
    cluster.stall(1);
    let since = cluster.sent.len();
    cluster.input(0, Input::Operator(OperatorRequest::Transfer(ReplicaId(1))));
    cluster.pass(400);
    let refused = |packet: &Packet| matches!(packet.0.message, Message::Rejected { .. });
    assert!(cluster.sent[since..].iter().any(refused));
    cluster.unstall(1);
    assert!(cluster.leads(1));
    assert!(
        !cluster.sent[since..]
            .iter()
            .any(|packet| campaigns(packet, 0))
    );

    // If its successor fails, another replica is elected nevertheless.
    cluster.stall(2);
    cluster.input(1, Input::Operator(OperatorRequest::Transfer(ReplicaId(2))));
    cluster.pass(400);
    cluster.crash(2);
    cluster.pass_until(10_000, "somebody leads", |cluster| {
        cluster.leads(0) || cluster.leads(1)
    });
}

/// If a replica that is about to end were elected, it would lead for only a moment, and then the
/// cluster would be without a leader again.
#[test]
fn who_is_to_end_campaigns_no_more() {
    // The time for its pre-vote comes.
    let mut cluster = asking(3);
    for leaving in [1, 2] {
        cluster.input(leaving, Input::Stop);
    }
    cluster.crash(0);
    let since = cluster.sent.len();
    cluster.pass(10_000);
    let asked = |packet: &Packet| campaigns(packet, 1) || campaigns(packet, 2);
    assert!(!cluster.sent[since..].iter().any(asked));

    // The others agree with its earlier pre-vote.
    let mut cluster = asking(3);
    cluster.crash(0);
    cluster.hold(|packet| matches!(packet.0.message, Message::PreVoted { .. }));
    cluster.pass_until(10_000, "somebody asks", |cluster| !cluster.held.is_empty());
    let asker = cluster.held[0].1;
    cluster.input(asker.index(), Input::Stop);
    let since = cluster.sent.len();
    cluster.release();
    let prepare = |packet: &Packet| matches!(packet.0.message, Message::Prepare { .. });
    assert!(
        !cluster.sent[since..]
            .iter()
            .any(|p| prepare(p) && p.0.from == asker)
    );

    // The leader transfers leadership to it.
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.input(1, Input::Stop);
    let since = cluster.sent.len();
    cluster.elect(1);
    assert!(
        !cluster.sent[since..]
            .iter()
            .any(|packet| campaigns(packet, 1))
    );
    assert!(cluster.leads(0));
}

#[test]
fn a_candidate_that_is_to_end_hands_over_once_it_leads() {
    let mut cluster = asking(3);
    cluster.hold(|packet| matches!(packet.0.message, Message::Prepared { .. }));
    cluster.elect(1);
    cluster.input(1, Input::Stop);
    let since = cluster.sent.len();
    cluster.release();
    let led = |packet: &Packet| heartbeat_of(packet).is_some() && packet.0.from == ReplicaId(1);
    assert!(
        cluster.sent[since..].iter().any(led),
        "what was promised counts"
    );
    cluster.pass_until(1000, "another takes over", |cluster| {
        cluster.leads(0) || cluster.leads(2)
    });
}

/// A repeated request for a transfer gets no more time than the first. Otherwise an operator that
/// repeats an impossible request would delay every write.
#[test]
fn a_move_that_is_asked_for_again_gets_no_more_time() {
    let mut cluster = asking(3);
    cluster.lose(transfer);
    let grace_ms = LeaseParams::default().t_grace.as_millis() as u64;
    let to_2 = || Input::Operator(OperatorRequest::Transfer(ReplicaId(2)));
    cluster.input(0, to_2());
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    for _ in 0..(grace_ms + 500) / 50 {
        assert!(cluster.leads(0));
        cluster.input(0, to_2());
        cluster.pass(50);
    }
    assert!(cluster.done(write), "the leader gave the move up in time");
}

/// A configuration that is proposed during a transfer would have to commit before the transfer, and
/// the successor would then propose another one.
#[test]
fn nothing_is_configured_while_leadership_is_handed_over() {
    let mut cluster = asking(3);
    cluster.lose(transfer);
    cluster.input(0, Input::Operator(OperatorRequest::Transfer(ReplicaId(2))));
    let set = LeaseSet {
        strategies: vec![(KeyRange::all(), StrategySpec::All)],
        ..LeaseSet::default()
    };
    cluster.input(0, Input::Operator(OperatorRequest::Lease { ask: 1, set }));
    let configures = |cluster: &Cluster, since: usize| {
        let config = |(envelope, _): &Packet| match &envelope.message {
            Message::Accept(accept) => accept.log == LogId::Configs,
            _ => false,
        };
        cluster.sent[since..].iter().any(config)
    };
    let since = cluster.sent.len();
    cluster.pass(LeaseParams::default().t_grace.as_millis() as u64 - 500);
    assert!(!configures(&cluster, since), "the transfer is under way");
    cluster.pass(2000);
    assert!(configures(&cluster, since), "it was given up");
}

/// Returns the target of the first transfer of leadership among the packets that were sent since
/// `cluster.sent` had the length `since`.
fn handed_to(cluster: &Cluster, since: usize) -> Option<ReplicaId> {
    let mut sent = cluster.sent[since..].iter();
    sent.find(|packet| transfer(packet)).map(|packet| packet.1)
}

/// Messages from replica 1 arrive at others, but none arrive at replica 1, so it could not take
/// over.
#[test]
fn a_leader_that_ends_hands_over_to_who_answers() {
    let mut cluster = asking(3);
    cluster.lose(|(envelope, to)| envelope.from == ReplicaId(0) && *to == ReplicaId(1));
    cluster.pass(3000);
    let since = cluster.sent.len();
    cluster.input(0, Input::Stop);
    cluster.pass(100);
    assert_eq!(handed_to(&cluster, since), Some(ReplicaId(2)));
    assert!(cluster.leads(2));
}

/// A proposal of the leader never commits. A leader that waited for it would never end.
#[test]
fn a_leader_that_ends_does_not_wait_for_what_is_blocked() {
    let mut cluster = asking(3);
    cluster.lose(|packet| votes_on(packet, None) && packet.1 == ReplicaId(0));
    let write = cluster.ask(0, put(1, 1, "k", "v"));
    assert!(!cluster.answered(write));
    cluster.input(0, Input::Stop);
    cluster.pass_until(1200, "another takes over", |cluster| {
        cluster.leads(1) || cluster.leads(2)
    });
}

/// The preferred replica requests leadership, but no messages arrive at it, so it would not receive
/// the transfer.
#[test]
fn a_leader_hands_over_by_preference_only_to_who_answers() {
    let mut cluster = asking(3);
    cluster.elect(1);
    cluster.lose(|(envelope, to)| envelope.from == ReplicaId(1) && *to == ReplicaId(0));
    cluster.pass(1000);
    let request = cluster
        .node(0)
        .envelope(ReplicaId(1), Message::TransferRequest);
    cluster.deliver((request, ReplicaId(1)));
    let write = cluster.ask(1, put(1, 1, "k", "v"));
    cluster.pass(100);
    assert!(cluster.done(write), "the leader leads on");
}

/// A candidate does not immediately repeat a campaign that took long and failed. The replicas that
/// promised to it have waited, too, and one of them may succeed.
#[test]
fn who_gave_up_after_a_long_wait_leaves_the_next_turn_to_others() {
    let mut cluster = asking(5);
    cluster.crash(0);
    // Some parts of a promise arrive, but never all of them.
    cluster.hold(|packet| matches!(packet.0.message, Message::Prepared { .. }));
    cluster.pass_until(20_000, "somebody campaigns", |cluster| {
        !cluster.held.is_empty()
    });
    let (promise, candidate) = cluster.held[0].clone();
    let ballot = asked_for(&promise.message).expect("a promise");
    let anew = |packet: &&Packet| asked_for(&packet.0.message) > Some(ballot);
    let mut parts = 0..1000;
    while cluster.sent.iter().find(anew).is_none() {
        let message = Message::Prepared {
            ballot,
            answer: 1 << 20,
            part: parts.next().expect("it gives up"),
            parts: 1000,
            commits: PerLog::default(),
            entries: Vec::new(),
            log_starts: Vec::new(),
        };
        let replier = cluster.node(promise.from.index());
        let envelope = replier.envelope(candidate, message);
        cluster.deliver((envelope, candidate));
        cluster.pass(250);
    }
    assert!(parts.start > 100, "it waited for {} parts", parts.start);
    let first = cluster.sent.iter().find(anew).expect("somebody asks");
    assert_ne!(first.0.from, candidate);
}

/// Returns the ballot that a message of Phase 1 requests or promises; `None` for other messages.
fn asked_for(message: &Message) -> Option<Ballot> {
    match message {
        Message::PreVote { ballot, .. } | Message::Prepared { ballot, .. } => Some(*ballot),
        _ => None,
    }
}

/// A replica that is about to end does not campaign, even if a follower has promised a higher
/// ballot than its own.
#[test]
fn who_is_to_end_does_not_ask_for_a_higher_ballot() {
    let mut cluster = asking(3);
    cluster.input(0, Input::Stop);
    let since = cluster.sent.len();
    let promised = Ballot {
        round: 1 << 10,
        replica: ReplicaId(2),
    };
    let refused = cluster
        .node(2)
        .envelope(ReplicaId(0), Message::Rejected { promised });
    cluster.deliver((refused, ReplicaId(0)));
    assert!(!cluster.leads(0));
    assert!(!cluster.sent[since..].iter().any(|p| campaigns(p, 0)));
}
