use std::sync::Arc;

use leasehold_leases::{ReplicaId, ReplicaSet, Slot};
use leasehold_wire::Version;
use leasehold_wire::command::Op;

use super::super::bench::{BALLOT, Has, World, says};
use super::*;
use leasehold_replica::Input;
use leasehold_replica::message::{Accept, Batch, LogId, LogNews, Proposed, Value};
use leasehold_replica::unavailable::{
    asked_again, client_gone, too_many_merges, too_many_openings,
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

/// Replica 1 is asked for something on connection 7.
fn asked_for(command: &Command) -> Unsent {
    let mut unsent = Unsent::new(3);
    unsent.asked(50, 1, handle(7), command);
    unsent
}

fn asked() -> Unsent {
    asked_for(&merge())
}

fn again(unsent: &mut Unsent) {
    unsent.asked(60, 1, handle(8), &merge());
}

fn says_so(unsent: &mut Unsent, message: Message) -> bool {
    let (node, _, envelope) = says((1, 1), (0, 1), message);
    unsent.sent(node, &envelope).is_ok()
}

fn forwards_as(unsent: &mut Unsent, name: u64) -> bool {
    let commands = vec![(RequestId(name), merge())];
    says_so(unsent, Message::Forward { commands })
}

fn forwards(unsent: &mut Unsent) -> bool {
    forwards_as(unsent, 1)
}

/// Replica 1 leads, and proposes what came to this replica.
fn proposes(unsent: &mut Unsent, origin: u8) -> bool {
    let proposed = Proposed {
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
        tag: ReplicaSet::EMPTY,
        news: LogNews::default(),
        last_multi: Slot(0),
        sure: Arc::new([]),
    };
    says_so(unsent, Message::Accept(accept))
}

fn replies(unsent: &mut Unsent, connection: u64, outcome: &Outcome) -> bool {
    unsent.replied(1, handle(connection), outcome).is_ok()
}

#[test]
fn what_was_sent_is_not_said_to_be_unsent() {
    for outcome in [too_many_merges(), too_many_openings(), client_gone()] {
        let judge = |happens: &dyn Fn(&mut Unsent) -> bool| {
            let mut unsent = asked();
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
    let given_back = || {
        let mut unsent = asked();
        assert!(replies(&mut unsent, 7, &too_many_merges()));
        unsent
    };
    assert!(!forwards(&mut given_back()));
    assert!(!proposes(&mut given_back(), 1));
    let mut unsent = given_back();
    again(&mut unsent);
    assert!(forwards(&mut unsent) && !replies(&mut unsent, 8, &too_many_merges()));
}

#[test]
fn what_is_sent_again_has_another_name() {
    let mut unsent = asked();
    assert!(forwards_as(&mut unsent, 1) && forwards_as(&mut unsent, 2));
    assert!(!forwards_as(&mut unsent, 2));
}

#[test]
fn what_is_asked_for_again_before_it_is_given_up_may_be_sent() {
    let mut unsent = asked();
    unsent.hung_up(1, 7);
    again(&mut unsent);
    assert!(replies(&mut unsent, 7, &client_gone()));
    assert!(forwards(&mut unsent));
    assert_eq!(unsent.waiting(1), Some(50));
}

#[test]
fn only_merges_wait_and_only_of_who_has_gone_they_are_given_up() {
    let put = Command::session(1, 1, 1, Op::put("k", "v"));
    let mut unsent = asked_for(&put);
    unsent.hung_up(1, 7);
    assert!(!replies(&mut unsent, 7, &client_gone()));
    assert!(!replies(&mut asked_for(&put), 7, &too_many_merges()));
    assert!(replies(&mut asked_for(&put), 7, &too_many_openings()));
    assert!(!replies(&mut asked(), 7, &client_gone()), "it is there");
    let mut unsent = asked();
    unsent.hung_up(0, 7);
    assert!(!replies(&mut unsent, 7, &client_gone()), "elsewhere");
}

#[test]
fn what_was_answered_or_asked_of_an_earlier_run_may_come_later() {
    let written = Outcome::written(Version { slot: 6, index: 0 });
    let mut unsent = asked();
    assert!(forwards(&mut unsent) && replies(&mut unsent, 7, &written));
    again(&mut unsent);
    assert!(replies(&mut unsent, 8, &too_many_merges()) && forwards_as(&mut unsent, 2));
    let mut unsent = asked();
    assert!(forwards(&mut unsent));
    unsent.crashed(1);
    again(&mut unsent);
    assert!(replies(&mut unsent, 8, &too_many_merges()) && forwards(&mut unsent));
}

#[test]
fn a_write_waits_until_all_who_asked_are_answered() {
    let mut unsent = asked();
    assert_eq!((unsent.waiting(0), unsent.waiting(1)), (None, Some(50)));
    again(&mut unsent);
    assert!(replies(&mut unsent, 7, &asked_again()));
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
    let mut world = World::new([Has::default(), Has::default(), Has::default()]);
    let heartbeat = Message::Heartbeat {
        ballot: BALLOT,
        probe: 1,
        logs: Default::default(),
    };
    let (_, _, envelope) = says((0, 1), (1, 1), heartbeat);
    let now = world.sight().time(1);
    let replica = world.nodes[1].replica.as_mut().expect("it runs");
    replica.step(now, Input::Peer(envelope), &mut Vec::new());
    let sight = world.sight();
    let replica = sight.replica(1).expect("it runs");
    assert_eq!(replica.leader(), Some(ReplicaId(0)));
    let held = |outcome: &Outcome, sent: bool| {
        let mut unsent = asked();
        unsent.hung_up(1, 7);
        assert!(!sent || forwards(&mut unsent));
        unsent.step_ends(1, replica);
        assert!(replies(&mut unsent, 7, outcome));
        let fired = |fault| unsent.fired.of(fault);
        [Fault::Held, Fault::HeldAnswered, Fault::HeldGone].map(fired)
    };
    let written = Outcome::written(Version { slot: 6, index: 0 });
    assert_eq!(held(&written, true), [0, 0, 0]);
    assert_eq!(held(&written, false), [1, 1, 0]);
    assert_eq!(held(&client_gone(), false), [1, 0, 1]);
}
