//! Replicas that stop and start, and that have forgotten their promises.

use super::*;

/// Rules H15 and H23: all grantors restart together. Without the restart wait, a majority of them
/// could immediately commit a write while the holder is disconnected and continues to read.
#[test]
pub(super) fn grantors_that_restart_together_ask_everyone_until_all_promises_have_ended() {
    let mut w = World::held_by(3, set(&[0, 1, 2]));
    w.establish(G, H);
    w.establish(ReplicaId(2), H);
    w.restart(G);
    w.restart(ReplicaId(2));
    assert!(w.permit(H, KEY).is_ok());
    assert_eq!(w.accept(G, 1, KEY), set(&[0, 1, 2]));
    assert_eq!(w.accept(ReplicaId(2), 1, KEY), set(&[0, 1, 2]));
    w.check_contained(G, H);
    w.check_contained(ReplicaId(2), H);
    let wait = LeaseParams::default().restart_wait();
    w.pass(wait);
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
    assert_eq!(w.tag(G, KEY), set(&[]));
    assert!(w.poll(G).1, "what waits for everyone is sent again");
    assert!(!w.poll(G).1, "once");
}

/// Rule H68: the restart wait follows from the longest lease that was ever promised, not from the
/// newest lease.
#[test]
pub(super) fn the_restart_wait_is_that_of_the_longest_lease() {
    let mut w = World::new(2);
    w.agree_all(ConfigChange {
        params: Some(LeaseParams {
            t_lease: ms(9000),
            ..LeaseParams::default()
        }),
        ..ConfigChange::everywhere(set(&[0, 1]))
    });
    w.establish(G, H);
    w.agree_all(ConfigChange {
        params: Some(short_lease()),
        ..Default::default()
    });
    w.pass(ms(500));
    w.poll(G);
    w.restart(G);
    w.check_contained(G, H);
    w.pass(ms(7000));
    assert!(w.permit(H, KEY).is_ok());
    assert_eq!(w.tag(G, KEY), set(&[0, 1]));
    // A second restart begins a new wait of at least the same duration.
    w.restart(G);
    w.check_contained(G, H);
    assert_eq!(w.tag(G, KEY), set(&[0, 1]));
}

/// Disk writes may be confirmed in any order. The durable wait never becomes shorter.
#[test]
fn a_longer_wait_stays_durable_when_a_shorter_one_is_confirmed_late() {
    let mut w = World::new(2);
    let params = LeaseParams::default();
    let grantor = &mut w.party(G).grantor;
    grantor.wait_persisted(params.restart_wait());
    grantor.wait_persisted(short_lease().restart_wait());
    assert_eq!(grantor.wait_to_persist(&params), None);
}

/// A replica in its first run has no restart wait.
#[test]
fn a_first_run_waits_for_nothing() {
    let w = World::held_by(2, set(&[0, 1]));
    assert_eq!(w.tag(G, KEY), set(&[]));
}

/// No-ops and configurations always have an empty tag. Otherwise, a new leader could not begin its
/// term while a replica is down.
#[test]
fn what_writes_no_key_asks_for_nobody_in_the_restart_wait() {
    let mut w = World::held_by(3, set(&[0, 1, 2]));
    w.establish(G, H);
    w.restart(G);
    assert_eq!(w.tag(G, KEY), set(&[0, 1, 2]));
    let live = w.parties[0].grantor.live(w.now(G));
    assert_eq!(live.tag(std::iter::empty()), set(&[]));
}

/// Rule H16: promises to an earlier run of a holder are void, including promises that are under
/// way.
#[test]
fn a_restarted_holder_does_not_read_on_old_promises() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.establish(G, H);
    w.pass(ms(500));
    let under_way = w.send(G, H);
    w.restart(H);
    w.meet(G, H, Incarnation(2));
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
    // The grantor has dropped its grants and accepts writes without demanding notification ...
    assert_eq!(w.accept(G, 1, KEY), set(&[]));
    assert!(w.poll(G).1, "and lets writes go that waited");
    // ... so the promise that it sent to the earlier run must not be taken.
    assert!(w.deliver(&under_way).is_none());
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
    w.meet_all();
    w.pass(ms(500));
    w.establish(G, H);
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Barrier(Slot(1))));
}

/// When a holder restarts, its grants end. The grantor reports this even if no message is due.
#[test]
fn grants_ended_by_a_holders_restart_are_reported_at_once() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.establish(G, H);
    w.meet(G, H, Incarnation(2));
    let now = w.now(G);
    assert!(w.party(G).grantor.next_deadline() <= now);
    assert!(w.poll(G).1);
    assert!(!w.poll(G).1, "once");
}

/// Rule H32 at a restart: a message from an earlier run of a holder does not end the grants to a
/// later run.
#[test]
fn late_news_of_an_earlier_run_drops_nothing() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.restart(G);
    w.restart(H);
    w.meet_all();
    w.pass(LeaseParams::default().restart_wait());
    w.establish(G, H);
    let now = w.now(G);
    w.party(G)
        .grantor
        .observe_incarnation(now, H, Incarnation(1));
    w.party(G)
        .grantor
        .observe_incarnation(now, H, Incarnation(2));
    assert_eq!(w.tag(G, KEY), set(&[1]));
    w.check_contained(G, H);
    w.party(H).holder.observe_incarnation(G, Incarnation(1));
    assert!(w.permit(H, KEY).is_ok());
}
