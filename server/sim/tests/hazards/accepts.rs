//! Accepts that a leader sends before its own entry is durable (hazard 113).

use std::time::Duration;

use leasehold_leases::{ReplicaId, ReplicaSet, Slot, StrategySpec};
use leasehold_replica::message::{LogId, Message};

use super::cluster::{
    Cluster, Packet, RequestToken, about_leases, accept, between, heartbeat_of, put, read, settings,
};

/// A write of the client of replica 1 reaches replica 1 and the leader, replica 0, but not replica
/// 2. The disk of the leader takes nothing yet.
fn proposed_but_not_durable(cluster: &mut Cluster) -> RequestToken {
    cluster.stall(0);
    cluster.lose(|packet| between(packet, 0, 2) && accept(packet).is_some());
    let write = cluster.ask(1, put(1, 1, "k", "new"));
    assert!(
        cluster
            .accepts(0)
            .last()
            .is_some_and(|sent| sent.vote.is_none())
    );
    write
}

#[test]
pub(super) fn h113_an_accept_is_no_vote_of_its_leader() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    let write = proposed_but_not_durable(&mut cluster);
    assert!(!cluster.answered(write), "only 1 has accepted it");
    // The leader loses the entry, and 1 is cut off: the others know nothing of the write.
    cluster.crash(0);
    cluster.start(0);
    cluster.heal();
    cluster.isolate(1);
    cluster.elect(2);
    let read = cluster.ask(2, read("k"));
    cluster.pass_until(10_000, "2 leads", |cluster| cluster.answered(read));
    assert_eq!(cluster.value(read).as_deref(), Some(""));
    assert!(!cluster.answered(write));
}

/// An Accept that is sent again is no vote either, while the entry of the leader is not durable.
#[test]
pub(super) fn h113_an_accept_that_is_sent_again_is_no_vote() {
    let mut cluster = Cluster::new(5, StrategySpec::None);
    cluster.stall(0);
    let before = cluster.sent.len();
    // The first Accept reaches 1 only. The next one reaches 2, the origin, too.
    let to_others =
        |packet: &Packet| accept(packet).is_some() && [3, 4].contains(&packet.1.index());
    cluster.lose(to_others);
    cluster.lose(|packet| between(packet, 0, 2) && accept(packet).is_some());
    let write = cluster.ask(2, put(1, 1, "k", "new"));
    cluster.heal();
    cluster.lose(to_others);
    cluster.pass(1600);
    assert!(!cluster.answered(write), "two of five have accepted it");
    let to_2 = |packet: &&Packet| between(packet, 0, 2) && accept(packet).is_some();
    assert!(cluster.sent[before..].iter().filter(to_2).count() > 1);
    cluster.unstall(0);
    cluster.pass_until(10_000, "three of five have accepted it", |cluster| {
        cluster.done(write)
    });
}

/// A leader that holds a lease sends nothing again if only its own entry is not durable.
#[test]
fn a_stalled_leader_sends_no_accept_again_that_cannot_help() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.stall(0);
    cluster.ask(1, put(1, 1, "k", "v"));
    let proposed = cluster.accepts(0).len();
    cluster.pass(1900);
    assert_eq!(cluster.accepts(0).len(), proposed);
}

/// Among three replicas, a replica that is neither leader nor origin learns of a commit from the
/// vote of the leader.
#[test]
fn a_holder_learns_of_a_commit_from_the_leaders_vote() {
    let holders = Some([ReplicaId(2)].into_iter().collect());
    let mut cluster = Cluster::new(3, StrategySpec::Fixed { holders });
    cluster.lose(|packet| heartbeat_of(packet).is_some());
    let write = cluster.ask(1, put(1, 1, "k", "v"));
    assert!(cluster.done(write));
    assert_eq!(cluster.node(2).executed(), cluster.node(1).executed());
}

#[test]
pub(super) fn h113_a_slow_leader_does_not_delay_what_the_others_accept() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.stall(0);
    let write = cluster.ask(1, put(1, 1, "k", "new"));
    assert!(cluster.done(write), "1 and 2 are a majority");
    cluster.crash(0);
    cluster.start(0);
    cluster.pass_until(10_000, "another leads", |cluster| {
        cluster.leads(1) || cluster.leads(2)
    });
    let read = cluster.ask(0, read("k"));
    cluster.pass_until(10_000, "it is read", |cluster| cluster.answered(read));
    assert_eq!(cluster.value(read).as_deref(), Some("new"));
    let caught_up = |cluster: &Cluster| cluster.node(0).executed() == cluster.node(1).executed();
    cluster.pass_until(10_000, "0 has caught up", caught_up);
    cluster.assert_agreement();
}

#[test]
pub(super) fn h113_the_leaders_vote_carries_the_promises_of_its_sending() {
    let mut settings = settings(3, StrategySpec::All);
    settings.params.t_grace = Duration::from_secs(60);
    let mut cluster = Cluster::with(settings);
    // 0 promises nothing to 2 when it proposes, and makes a promise before it votes.
    cluster.lose(|packet| between(packet, 0, 2) && about_leases(packet));
    cluster.pass(9500);
    cluster.stall(0);
    cluster.ask(1, put(1, 1, "k", "v"));
    cluster.heal();
    cluster.pass(1200);
    let config = cluster.node(0).configuration();
    assert!(cluster.node(0).granted_to(ReplicaId(2), config).is_some());
    let before = cluster.sent.len();
    cluster.unstall(0);
    let slot = cluster.accepts(0).last().expect("proposed").slot;
    let tags = tags_of_votes(&cluster, 0, before, slot);
    assert!(!tags.is_empty(), "it votes");
    assert!(
        tags.iter().all(|tag| tag.contains(ReplicaId(2))),
        "{tags:?}"
    );
}

/// A leader gives up leadership if its own vote is missing for long. It does not exclude itself.
#[test]
fn a_leader_that_blocks_its_own_slots_gives_up_leadership() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.stall(0);
    let write = cluster.ask(1, put(1, 1, "k", "v"));
    assert!(!cluster.answered(write), "0 holds a lease on the key");
    cluster.pass_until(10_000, "0 gives up", |cluster| !cluster.leads(0));
    assert!(cluster.node(0).configs().excluded().is_empty());
    cluster.unstall(0);
    cluster.pass_until(10_000, "the write commits", |cluster| cluster.done(write));
}

/// Returns the tags of the votes on a slot of the log of commands that `node` has sent since packet
/// number `since`.
fn tags_of_votes(cluster: &Cluster, node: usize, since: usize, slot: Slot) -> Vec<ReplicaSet> {
    let sent = cluster.sent[since..].iter();
    let own = sent.filter(|(envelope, _)| envelope.from.index() == node);
    own.flat_map(|(envelope, _)| match &envelope.message {
        Message::Accepted {
            log: LogId::Commands,
            votes,
            ..
        } => votes.to_vec(),
        Message::Accept(accept) if accept.log == LogId::Commands => accept
            .vote
            .map(|tag| (accept.slot, tag))
            .into_iter()
            .collect(),
        _ => Vec::new(),
    })
    .filter_map(|(on, tag)| (on == slot).then_some(tag))
    .collect()
}

/// Replica 2 has executed a slot under a later leader. An Accept of the earlier leader arrives late,
/// and carries another value for this slot.
#[test]
pub(super) fn h66_an_executed_slot_is_not_accepted_below_the_promised_ballot() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.hold(|packet| between(packet, 0, 2) && accept(packet).is_some());
    cluster.lose(|packet| between(packet, 0, 1) && accept(packet).is_some());
    let write = cluster.ask(0, put(1, 1, "k", "of the earlier leader"));
    let slot = cluster.accepts(0).last().expect("proposed").slot;
    cluster.isolate(0);
    cluster.elect(1);
    cluster.pass_until(3000, "2 has executed the slot", |cluster| {
        cluster.node(2).executed() >= slot
    });
    cluster.heal();
    cluster.release();
    assert!(!cluster.answered(write), "the slot holds another value");
    cluster.pass(5000);
    cluster.assert_agreement();
}
