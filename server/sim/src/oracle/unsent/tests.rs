use std::sync::Arc;

use leasehold_leases::{ReplicaId, ReplicaSet, Slot};
use leasehold_wire::Version;
use leasehold_wire::command::Op;

use super::*;
use crate::oracle::test_world::{BALLOT, ReplicaState, TestWorld, says};
use leasehold_replica::Input;
use leasehold_replica::message::{Accept, Batch, LogId, LogNews, Proposal, Value};
use leasehold_replica::unavailable::{
    client_disconnected, sent_again, too_many_merges, too_many_session_opens,
};

fn handle(connection: u64) -> ClientHandle {
    ClientHandle {
        connection,
        request: 1,
    }
}

fn merge() -> Command {
    Command::session(1, 1, 1, Op::put_fields("k", Vec::new()))
}

/// Returns an oracle for which replica 1 has received a command on connection 7.
fn unsent_with(command: &Command) -> UnsentOracle {
    let mut unsent = UnsentOracle::new(3);
    unsent.requested(50, 1, handle(7), command);
    unsent
}

fn unsent_merge() -> UnsentOracle {
    unsent_with(&merge())
}

fn again(unsent: &mut UnsentOracle) {
    unsent.requested(60, 1, handle(8), &merge());
}

fn says_so(unsent: &mut UnsentOracle, message: Message) -> bool {
    let (node, _, envelope) = says((1, 1), (0, 1), message);
    unsent.sent(node, &envelope).is_ok()
}

fn forwards_as(unsent: &mut UnsentOracle, name: u64) -> bool {
    let commands = vec![(RequestId(name), merge())];
    says_so(unsent, Message::Forward { commands })
}

fn forwards(unsent: &mut UnsentOracle) -> bool {
    forwards_as(unsent, 1)
}

/// Lets replica 1, as the leader, propose the command with this origin. Returns whether the oracle
/// accepts this.
fn proposes(unsent: &mut UnsentOracle, origin: u8) -> bool {
    let proposed = Proposal {
        origin: ReplicaId(origin),
        request: RequestId(1),
        command: merge(),
    };
    let batch = Batch {
        commands: vec![proposed],
        ..Batch::default()
    };
    let accept = Accept {
        ballot: BALLOT,
        log: LogId::Commands,
        slot: Slot(6),
        value: Value::Commands(Arc::new(batch)),
        vote: Some(ReplicaSet::EMPTY),
        news: LogNews::default(),
        last_multi: Slot(0),
        infallible: Arc::new([]),
    };
    says_so(unsent, Message::Accept(accept))
}

fn replies(unsent: &mut UnsentOracle, connection: u64, outcome: &Outcome) -> bool {
    unsent.replied(1, handle(connection), outcome).is_ok()
}

#[test]
fn what_was_sent_is_not_said_to_be_unsent() {
    for outcome in [
        too_many_merges(),
        too_many_session_opens(),
        client_disconnected(),
    ] {
        let judge = |happens: &dyn Fn(&mut UnsentOracle) -> bool| {
            let mut unsent = unsent_merge();
            unsent.hung_up(1, 7);
            assert!(happens(&mut unsent));
            replies(&mut unsent, 7, &outcome)
        };
        assert!(judge(&|_| true));
        assert!(!judge(&forwards));
        assert!(!judge(&|unsent| proposes(unsent, 1)));
        assert!(judge(&|unsent| proposes(unsent, 0)), "it came another way");
    }
}

#[test]
fn what_is_said_to_be_unsent_is_not_sent_unless_it_is_asked_for_again() {
    let returned = || {
        let mut unsent = unsent_merge();
        assert!(replies(&mut unsent, 7, &too_many_merges()));
        unsent
    };
    assert!(!forwards(&mut returned()));
    assert!(!proposes(&mut returned(), 1));
    let mut unsent = returned();
    again(&mut unsent);
    assert!(forwards(&mut unsent) && !replies(&mut unsent, 8, &too_many_merges()));
}

#[test]
fn what_is_sent_again_has_another_name() {
    let mut unsent = unsent_merge();
    assert!(forwards_as(&mut unsent, 1) && forwards_as(&mut unsent, 2));
    assert!(!forwards_as(&mut unsent, 2));
}

#[test]
fn what_is_asked_for_again_before_it_is_given_up_may_be_sent() {
    let mut unsent = unsent_merge();
    unsent.hung_up(1, 7);
    again(&mut unsent);
    assert!(replies(&mut unsent, 7, &client_disconnected()));
    assert!(forwards(&mut unsent));
    assert_eq!(unsent.waiting(1), Some(50));
}

#[test]
fn only_merges_wait_and_only_of_who_has_gone_they_are_given_up() {
    let put = Command::session(1, 1, 1, Op::put("k", "v"));
    let mut unsent = unsent_with(&put);
    unsent.hung_up(1, 7);
    assert!(!replies(&mut unsent, 7, &client_disconnected()));
    assert!(!replies(&mut unsent_with(&put), 7, &too_many_merges()));
    assert!(replies(
        &mut unsent_with(&put),
        7,
        &too_many_session_opens()
    ));
    assert!(
        !replies(&mut unsent_merge(), 7, &client_disconnected()),
        "it is there"
    );
    let mut unsent = unsent_merge();
    unsent.hung_up(0, 7);
    assert!(
        !replies(&mut unsent, 7, &client_disconnected()),
        "elsewhere"
    );
}

#[test]
fn what_was_answered_or_asked_of_an_earlier_run_may_come_later() {
    let written = Outcome::written(Version { slot: 6, index: 0 });
    let mut unsent = unsent_merge();
    assert!(forwards(&mut unsent) && replies(&mut unsent, 7, &written));
    again(&mut unsent);
    assert!(replies(&mut unsent, 8, &too_many_merges()) && forwards_as(&mut unsent, 2));
    let mut unsent = unsent_merge();
    assert!(forwards(&mut unsent));
    unsent.crashed(1);
    again(&mut unsent);
    assert!(replies(&mut unsent, 8, &too_many_merges()) && forwards(&mut unsent));
}

#[test]
fn a_write_waits_until_all_who_asked_are_answered() {
    let mut unsent = unsent_merge();
    assert_eq!((unsent.waiting(0), unsent.waiting(1)), (None, Some(50)));
    again(&mut unsent);
    assert!(replies(&mut unsent, 7, &sent_again()));
    assert_eq!(unsent.waiting(1), Some(50));
    assert!(replies(&mut unsent, 8, &too_many_merges()));
    assert_eq!(unsent.waiting(1), None);
    again(&mut unsent);
    assert_eq!(unsent.waiting(1), Some(60));
    unsent.crashed(1);
    assert_eq!(unsent.waiting(1), None);
}

#[test]
fn what_becomes_of_held_merges_is_counted() {
    let mut world = TestWorld::new([
        ReplicaState::default(),
        ReplicaState::default(),
        ReplicaState::default(),
    ]);
    let heartbeat = Message::Heartbeat {
        ballot: BALLOT,
        probe: 1,
        logs: Default::default(),
    };
    let (_, _, envelope) = says((0, 1), (1, 1), heartbeat);
    let now = world.snapshot().time(1);
    let replica = world.nodes[1].process.machine_mut().expect("it runs");
    replica.step(now, Input::Peer(envelope), &mut Vec::new());
    let snapshot = world.snapshot();
    let replica = snapshot.replica(1).expect("it runs");
    assert_eq!(replica.leader(), Some(ReplicaId(0)));
    let outcome_of_queued = |outcome: &Outcome, sent: bool| {
        let mut unsent = unsent_merge();
        unsent.hung_up(1, 7);
        assert!(!sent || forwards(&mut unsent));
        unsent.step_ends(1, replica);
        assert!(replies(&mut unsent, 7, outcome));
        let fired = |fault| unsent.fired.of(fault);
        [
            FaultKind::MergeQueued,
            FaultKind::QueuedMergeAnswered,
            FaultKind::QueuedMergeDropped,
        ]
        .map(fired)
    };
    let written = Outcome::written(Version { slot: 6, index: 0 });
    assert_eq!(outcome_of_queued(&written, true), [0, 0, 0]);
    assert_eq!(outcome_of_queued(&written, false), [1, 1, 0]);
    assert_eq!(outcome_of_queued(&client_disconnected(), false), [1, 0, 1]);
}
