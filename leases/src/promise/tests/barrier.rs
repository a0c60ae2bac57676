//! Barriers: slots that a holder must have executed before it reads (§3.6, case 2).

use super::*;
use crate::config::Key;

const A: ReplicaId = ReplicaId(0);
const B: ReplicaId = ReplicaId(2);
const C: ReplicaId = ReplicaId(3);

/// Rule H06: no single grantor knows of the write during its own promise, but the set of grantors
/// has changed.
#[test]
pub(super) fn each_grantor_that_is_counted_brings_its_own_barrier() {
    let mut w = World::held_by(5, set(&[0, 1, 2, 3, 4]));
    let ack = w.establish(A, H);
    w.deliver(&ack);
    w.pass(ms(1000));
    w.establish(B, H);
    assert!(w.permit(H, KEY).is_ok(), "A and B cover it");
    // C has made no promise, so it accepts a write without demanding notification. Then it makes a
    // promise.
    assert_eq!(w.accept(C, 7, KEY), set(&[]));
    w.establish(C, H);
    assert!(w.permit(H, KEY).is_ok(), "A and B still have no part in it");
    // A's promise lapses at both replicas. Now A accepts the write as well. With one more acceptor
    // like C the write commits, and the holder has not been notified.
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

/// While a chain is unbroken, the grantor demands for every write that this holder be notified. So
/// renewals need not raise the barrier. If they did, no holder could ever read under a steady load.
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

/// A lapse breaks the chain, because the grantor accepted writes after the lapse without demanding
/// that the holder be notified.
#[test]
pub(super) fn after_a_lapse_the_barrier_is_that_of_the_new_promise() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let ack = w.establish(G, H);
    w.deliver(&ack);
    w.pass(ms(2010));
    assert_eq!(w.accept(G, 9, KEY), set(&[]));
    // A renewal on the old ack begins a new chain, just as a new guard would.
    let promise = w.send(G, H);
    w.deliver(&promise).expect("within the window");
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Barrier(Slot(9))));
}

/// The chain of a key begins with the configuration that newly assigns the key to the holder, even
/// if the promises to the holder are unbroken. Other keys keep their chains.
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

/// Lets a renewal interval pass, delivers the promise of G to H and the ack of H, and returns the
/// promise.
fn renewed(w: &mut World) -> Promise {
    w.pass(LeaseParams::default().renew);
    let promise = w.send(G, H);
    let ack = w.deliver(&promise).expect("taken");
    w.deliver(&ack);
    promise.promise()
}

/// Returns a change that makes `ids` the holders of every key, under promises of duration
/// `t_lease`.
fn held_by(ids: &[u8], t_lease: Duration) -> ConfigChange {
    ConfigChange {
        params: Some(LeaseParams {
            t_lease,
            ..LeaseParams::default()
        }),
        ..ConfigChange::everywhere(set(ids))
    }
}

/// A key is taken away from the holder and given back before the earlier promise has ended. The
/// result must not depend on whether the holder accepted a promise under the configuration in
/// between, on whether that promise has ended, or on promises that the holder refused.
#[test]
pub(super) fn a_key_taken_away_and_given_back_begins_a_new_chain() {
    for between in [None, Some(ms(100)), Some(ms(5000))] {
        let mut w = World::new(2);
        let first = w.agree_all(held_by(&[0, 1], ms(5000)));
        let ack = w.establish(G, H);
        w.deliver(&ack);
        let second = w.agree_all(held_by(&[0], between.unwrap_or(ms(5000))));
        if let Some(t_lease) = between {
            assert_eq!(renewed(&mut w).config, first);
            w.pass(LeaseParams::default().renew);
            let overtaken = w.send(G, H);
            assert_eq!(renewed(&mut w).config, second);
            w.pass(ms(100));
            assert!(w.deliver(&overtaken).is_none());
            let ended = w.believed(G, H).len() == 1;
            assert_eq!(ended, t_lease == ms(100));
        }
        w.accept(G, 9, KEY);
        let third = w.agree_all(held_by(&[0, 1], ms(5000)));
        renewed(&mut w);
        assert_eq!(renewed(&mut w).config, third);
        assert_eq!(w.believed(G, H)[0].0, first, "it has not ended");
        assert_eq!(w.permit(H, KEY), Err(NoPermit::Barrier(Slot(9))));
    }
}

/// A configuration that changes other keys does not raise the barrier of this key. Nor does the end
/// of the promises under the previous configuration, because the promises that follow them belong
/// to the same chain. Otherwise, a slot that is blocked by a suspect would stop all local reads
/// when the suspect is excluded.
#[test]
fn a_barrier_outlives_the_configuration_that_it_came_with() {
    let mut w = World::held_by(3, set(&[0, 1, 2]));
    let ack = w.establish(G, H);
    w.deliver(&ack);
    assert_eq!(w.accept(G, 9, KEY), set(&[1]));
    let second = w.agree_all(ConfigChange {
        excluded: Some(set(&[2])),
        ..Default::default()
    });
    for _ in 0..12 {
        renewed(&mut w);
        let now = w.now(H);
        w.party(H).holder.forget(now, Slot(8));
    }
    let ended = |w: &World| w.believed(G, H)[0].0 == second;
    assert!(ended(&w) && w.permit(H, KEY).is_ok());
    let oldest = |w: &World| w.parties[H.index()].holder.oldest_config(w.now(H));
    assert_eq!(oldest(&w), Some(ConfigId(1)), "it is still of use");
    let now = w.now(H);
    w.party(H).executed = Slot(9);
    w.party(H).holder.forget(now, Slot(9));
    assert_eq!(oldest(&w), Some(second));
    assert!(w.permit(H, KEY).is_ok());
}

/// The number of remembered promises stays bounded even if the barrier is the slot of a dead entry,
/// which may never be reached, or if the holder executes nothing for a long time.
#[test]
fn few_promises_are_remembered_however_many_configurations_follow() {
    for dead in [true, false] {
        let mut w = World::held_by(2, set(&[0, 1]));
        let ack = w.establish(G, H);
        w.deliver(&ack);
        w.accept(G, 10, KEY);
        for id in 2..100 {
            w.agree_all(ConfigChange::default());
            renewed(&mut w);
            if dead && id == 4 {
                assert_eq!(w.believed(G, H).len(), 3, "with higher barriers");
                w.party(G).highest_accepted = Slot(5);
                w.party(H).executed = Slot(5);
            }
            let (now, executed) = (w.now(H), w.party(H).executed);
            w.party(H).holder.forget(now, executed);
        }
        let live = w.believed(G, H).len();
        let most = if dead { live } else { 32 };
        assert_eq!(w.party(H).holder.records(G), most, "dead: {dead}");
        assert_eq!(w.permit(H, KEY).is_ok(), dead);
    }
}

/// A lapse ends the chain of a key, even if another promise, under a configuration that did not
/// assign the key to the holder, has not lapsed.
#[test]
pub(super) fn a_lapse_behind_a_longer_promise_ends_the_chain() {
    let mut w = World::new(2);
    let first = w.agree_all(held_by(&[0], ms(60_000)));
    let ack = w.establish(G, H);
    w.deliver(&ack);
    let second = w.agree_all(held_by(&[0, 1], ms(600)));
    renewed(&mut w);
    assert_eq!(renewed(&mut w).config, second);
    assert!(w.permit(H, KEY).is_ok());
    w.pass(ms(2000));
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
    assert_eq!(w.accept(G, 9, KEY), set(&[]), "nobody to ask");
    assert_eq!(renewed(&mut w).config, second);
    assert_eq!(w.believed(G, H)[0].0, first, "it has not ended");
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Barrier(Slot(9))));
}

/// Rule H24: a new leader's log dropped the last accepted entry, and no entry follows. The slot of
/// the dropped entry may never be executed.
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

/// Rule H40: a holder that gave back its promises is not notified of writes until it accepts new
/// promises. So the holder's chains must not continue across this gap.
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

/// A new run of a grantor begins new chains. Promises of the new run are accepted, although the
/// sequence numbers restart.
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

/// A scan reads keys that are not named, so it needs a permit for every possible key.
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
    // The old promise covers all keys until it ends, regardless of the new one.
    assert!(all(&w).is_ok());
    w.pass(ms(4500));
    w.establish(G, H);
    assert!(w.permit(H, KEY).is_ok());
    assert_eq!(all(&w), Err(NoPermit::Uncovered));
}
