//! What a holder must have executed before it reads (§3.6, case 2).

use super::*;
use crate::config::Key;

const A: ReplicaId = ReplicaId(0);
const B: ReplicaId = ReplicaId(2);
const C: ReplicaId = ReplicaId(3);

/// Hazard 6: no single grantor knows of the write, but the set has changed.
#[test]
pub(super) fn each_grantor_that_is_counted_brings_its_own_barrier() {
    let mut w = World::held_by(5, set(&[0, 1, 2, 3, 4]));
    let ack = w.establish(A, H);
    w.deliver(&ack);
    w.pass(ms(1000));
    w.establish(B, H);
    assert!(w.permit(H, KEY).is_ok(), "A and B cover it");
    // C has promised nothing: it accepts a write, and asks nobody. Then it promises.
    assert_eq!(w.accept(C, 7, KEY), set(&[]));
    w.establish(C, H);
    assert!(w.permit(H, KEY).is_ok(), "A and B still have no part in it");
    // A's promise lapses at both ends; now it accepts the write as well. With one
    // more like C it commits, and the holder has heard nothing.
    w.pass(ms(1100));
    assert_eq!(w.accept(A, 7, KEY), set(&[]));
    assert_eq!(
        w.permit(H, KEY),
        Err(NoPermit::Barrier(Slot(7))),
        "B and C count, and C's promise says what it had accepted"
    );
    w.party(H).executed = Slot(7);
    assert!(w.permit(H, KEY).is_ok());
}

/// While a chain is unbroken every later write asked for this holder: renewals do
/// not raise the barrier, or no holder could ever read under a steady load.
#[test]
fn renewals_do_not_raise_the_barrier() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.accept(G, 3, KEY);
    w.party(H).executed = Slot(3);
    let ack = w.establish(G, H);
    w.deliver(&ack);
    for slot in 4..9 {
        assert_eq!(w.accept(G, slot, KEY), set(&[1]), "asked for");
        w.pass(ms(500));
        let promise = w.send(G, H);
        assert_eq!(promise.promise().highest_accepted, Slot(slot));
        let ack = w.deliver(&promise).expect("taken");
        w.deliver(&ack);
    }
    assert!(w.permit(H, KEY).is_ok());
}

/// A lapse breaks the chain: in the gap the grantor accepted without asking.
#[test]
pub(super) fn after_a_lapse_the_barrier_is_that_of_the_new_promise() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let ack = w.establish(G, H);
    w.deliver(&ack);
    w.pass(ms(2010));
    assert_eq!(w.accept(G, 9, KEY), set(&[]));
    // Not a new guard: a renewal, on the old ack, is a new chain all the same.
    let promise = w.send(G, H);
    w.deliver(&promise).expect("within the window");
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Barrier(Slot(9))));
}

/// A configuration that newly gives the key begins its chain, though the promises
/// that carry it are unbroken; other keys keep theirs.
#[test]
pub(super) fn a_key_newly_given_has_the_barrier_of_the_promise_that_gave_it() {
    let mut w = World::held_by(2, set(&[0]));
    let old_key = ConfigChange {
        keys: vec![(set(&[0, 1]), vec![Key::from("old")])],
        ..Default::default()
    };
    let new_key = ConfigChange {
        keys: vec![(set(&[0, 1]), vec![Key::from("new")])],
        ..Default::default()
    };
    w.agree_all(old_key);
    w.establish(G, H);
    assert_eq!(w.accept(G, 5, b"new"), set(&[]), "nobody to ask");
    w.agree_all(new_key);
    for _ in 0..2 {
        w.pass(ms(500));
        let promise = w.send(G, H);
        let ack = w.deliver(&promise).expect("taken");
        w.deliver(&ack);
    }
    assert_eq!(w.permit(H, b"new"), Err(NoPermit::Barrier(Slot(5))));
    assert!(w.permit(H, b"old").is_ok());
    w.party(H).executed = Slot(5);
    assert!(w.permit(H, b"new").is_ok());
}

/// A key is taken away and given back, and the promise from before has not ended
/// when it is. Whether one was taken under the configuration between the two, and
/// whether it is remembered, makes no difference.
#[test]
pub(super) fn a_key_taken_away_and_given_back_begins_a_new_chain() {
    let renew = |w: &mut World| {
        let promise = w.send(G, H);
        let ack = w.deliver(&promise).expect("taken");
        w.deliver(&ack);
        promise.promise().config
    };
    for promised_between in [false, true] {
        let mut w = World::new(2);
        let params = LeaseParams::default();
        let held_by = |ids: &[u8], t_lease| ConfigChange {
            defaults: Some(set(ids)),
            params: Some(LeaseParams { t_lease, ..params }),
            ..Default::default()
        };
        let first = w.agree_all(held_by(&[0, 1], ms(5000)));
        let ack = w.establish(G, H);
        w.deliver(&ack);
        let second = w.agree_all(held_by(&[0], ms(100)));
        if promised_between {
            w.pass(params.renew);
            assert_eq!(renew(&mut w), first);
            w.pass(params.renew);
            let overtaken = w.send(G, H);
            w.pass(params.renew);
            assert_eq!(renew(&mut w), second);
            w.pass(ms(100));
            assert!(w.deliver(&overtaken).is_none());
            assert_eq!(w.believed(G, H).len(), 1, "it has ended before the first");
        }
        w.accept(G, 9, KEY);
        let third = w.agree_all(held_by(&[0, 1], ms(5000)));
        w.pass(params.renew);
        renew(&mut w);
        w.pass(params.renew);
        assert_eq!(renew(&mut w), third);
        assert_eq!(w.believed(G, H)[0].0, first, "it has not ended");
        assert_eq!(w.permit(H, KEY), Err(NoPermit::Barrier(Slot(9))));
    }
}

/// Hazard 24: the last accepted entry was dropped by a new leader's log and
/// nothing follows it. Its slot may never be executed.
#[test]
pub(super) fn a_barrier_falls_with_the_dead_entry_it_stood_on() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.accept(G, 10, KEY);
    w.party(H).executed = Slot(5);
    let ack = w.establish(G, H);
    w.deliver(&ack);
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Barrier(Slot(10))));
    w.party(G).highest_accepted = Slot(5);
    w.pass(ms(500));
    let renewal = w.send(G, H);
    w.deliver(&renewal).expect("taken");
    assert!(w.permit(H, KEY).is_ok());
}

/// Hazard 40: a holder that gave its promises up is asked for nothing until it
/// takes new ones, so its chains must not reach across the gap.
#[test]
pub(super) fn a_chain_does_not_survive_relinquish() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.establish(G, H);
    assert!(w.permit(H, KEY).is_ok());
    let message = w.party(H).holder.relinquish().remove(0).1;
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
    let now = w.now(G);
    w.party(G).grantor.handle(now, H, &message);
    assert_eq!(w.accept(G, 4, KEY), set(&[]));
    w.party(H).holder.accept_again();
    w.pass(ms(500));
    w.establish(G, H);
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Barrier(Slot(4))));
}

/// A grantor's new run begins new chains, and is heard at all: its sequences
/// begin anew.
#[test]
fn a_chain_does_not_survive_its_grantors_restart() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.establish(G, H);
    w.restart(G);
    w.meet_all();
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
    w.accept(G, 4, KEY);
    w.establish(G, H);
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Barrier(Slot(4))));
}

/// A scan reads keys that nobody has named: it asks for all there could be.
#[test]
fn a_scan_needs_every_key_there_could_be() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.establish(G, H);
    let all = |w: &World| {
        let party = &w.parties[1];
        party.holder.permit_all(w.now(H), &party.configs, Slot(0))
    };
    assert!(all(&w).is_ok());
    w.agree_all(ConfigChange {
        keys: vec![(set(&[0]), vec![Key::from("not mine")])],
        ..Default::default()
    });
    // The old promise covers all keys until it ends, whatever the new one says.
    assert!(all(&w).is_ok());
    w.pass(ms(4500));
    w.establish(G, H);
    assert!(w.permit(H, KEY).is_ok());
    assert_eq!(all(&w), Err(NoPermit::Uncovered));
}
