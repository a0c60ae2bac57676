//! Clocks that drift, processes that stop, and how long a write may wait.

use super::*;
use crate::time::ClockBound;

/// H03: the slowest holder and the fastest grantor the bound allows, the
/// promise taken at the last moment, its ack lost.
#[test]
pub(super) fn a_grant_outlives_its_promise_at_the_bound_of_drift() {
    let rho = LeaseParams::default().clock.rho_ppm.cast_signed().into();
    let mut w = World::with_rates(&[rho, -rho]);
    w.agree_all(ConfigChange::everywhere(set(&[0, 1])));
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    // The ack ages until the cap before the promise on it leaves: the age is
    // measured by the fast clock, the window by the slow one (the 2 rho t0).
    let mut promise = w.send(G, H);
    while promise.promise().t0 < ms(3400) {
        w.pass(ms(500));
        promise = w.send(G, H);
    }
    w.wait_for_end_of_window(0, &promise);
    w.deliver(&promise).expect("the last moment");
    w.check_contained(G, H);

    // And by the ack: one stretched lease from its receipt, no less.
    w.pass(ms(10_000));
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    let promise = w.send(G, H);
    let ack = w.deliver(&promise).expect("taken");
    w.deliver(&ack);
    w.check_contained(G, H);
}

/// A grant is never shortened by promising again: the older promise, on an older
/// ack, was given longer to arrive.
#[test]
fn a_promise_on_a_fresh_ack_does_not_shorten_the_grant_of_one_on_an_old_ack() {
    let rho = LeaseParams::default().clock.rho_ppm.cast_signed().into();
    let mut w = World::with_rates(&[rho, -rho]);
    w.agree_all(ConfigChange {
        // Renewals closer together than 2 rho t0.
        params: Some(LeaseParams {
            renew: ms(1),
            ..LeaseParams::default()
        }),
        ..ConfigChange::everywhere(set(&[0, 1]))
    });
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    w.pass(ms(3900));
    let first = w.send(G, H);
    let ack = w.deliver(&first).expect("taken");
    w.pass(ms(1));
    let slow = w.send_just_before(&ack);
    w.pass(ms(1));
    let fresh = w.send(G, H);
    assert!(fresh.promise().t0 < slow.promise().t0, "lost on its way");
    w.wait_for_end_of_window(0, &slow);
    w.deliver(&slow).expect("the last moment");
    w.check_contained(G, H);
}

impl World {
    /// The grantor sends, and then hears this ack.
    fn send_just_before(&mut self, ack: &Envelope) -> Envelope {
        let sent = self.send(ack.to.0, ack.from.0);
        self.deliver(ack);
        sent
    }

    /// Waits until the last time at which the holder takes this promise. The holder
    /// acknowledged its base at the true time `opened`.
    fn wait_for_end_of_window(&mut self, opened: u64, envelope: &Envelope) {
        let (promise, holder) = (envelope.promise(), envelope.to.0);
        let clock = self.parties[holder.index()].clock;
        let closes = clock.read(opened) + promise.t0 + promise.t_guard;
        self.true_ns = clock.true_ns(closes) - 2;
    }
}

/// H04: the holder stops with a promise in its buffer, and wakes after the
/// grantor has given the grant up.
#[test]
pub(super) fn a_promise_that_lay_in_a_buffer_is_refused() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    let buffered = w.send(G, H);
    w.pass(ms(4100));
    assert!(w.poll(G).1, "the grant has lapsed");
    assert_eq!(w.accept(G, 1, KEY), set(&[]), "so a write asks nobody");
    assert!(w.deliver(&buffered).is_none(), "and nobody may read by it");
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
}

/// H04, the other way to stop: with a valid lease, between two reads.
#[test]
fn a_lease_ends_by_the_clock_without_any_event() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.establish(G, H);
    let permit = w.permit(H, KEY).expect("covered");
    w.pass(ms(1999));
    assert_eq!(w.permit(H, KEY), Ok(permit));
    assert!(w.now(H) < permit.until);
    w.pass(ms(1));
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
    assert!(
        w.now(H) >= permit.until,
        "what was read before ends with it"
    );
}

/// A permit ends when too few grantors are left, not with the last of them.
#[test]
fn a_permit_lasts_as_long_as_enough_grantors() {
    let mut w = World::held_by(5, set(&[0, 1, 2, 3, 4]));
    w.establish(ReplicaId(0), H);
    w.pass(ms(300));
    w.establish(ReplicaId(2), H);
    let two = w.permit(H, KEY).expect("two others of five");
    assert_eq!(two.until, w.now(H) + ms(1700));
    w.pass(ms(300));
    w.establish(ReplicaId(3), H);
    let three = w.permit(H, KEY).expect("one more than needed");
    assert_eq!(three.until, w.now(H) + ms(1700));
}

/// H22: N/2 others, and oneself, are a majority for even N as well.
#[test]
fn an_even_cluster_needs_half_of_the_others_too() {
    let mut w = World::held_by(4, set(&[0, 1, 2, 3]));
    w.establish(ReplicaId(0), H);
    // {0, 1} of four: a write may be accepted by {2, 3} and one of these; but
    // {1, 2, 3} would do, and of those only the holder itself knows.
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
    w.establish(ReplicaId(2), H);
    assert!(w.permit(H, KEY).is_ok());
}

/// H08, §3.8: a dead holder blocks a write for at most
/// t_grace + t_guard + t_lease and the drift, and the grantor says when it ends.
#[test]
pub(super) fn a_dead_holder_is_suspected_and_its_grant_lapses_in_bounded_time() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let ack = w.establish(G, H);
    w.deliver(&ack);
    let params = LeaseParams::default();
    let bound = params.t_grace + params.restart_wait() + ms(1);
    let died = w.true_ns;
    assert_eq!(w.accept(G, 1, KEY), set(&[1]));
    let mut told = 0;
    while w.tag(G, KEY) != set(&[]) {
        let next = w.party(G).grantor.next_deadline();
        let span = next.since(w.now(G));
        w.pass(span.max(Duration::from_nanos(1)));
        told += u32::from(w.poll(G).1);
        assert!(Duration::from_nanos(w.true_ns - died) <= bound);
    }
    assert_eq!(told, 1, "the acceptance is sent again, once");
    assert_eq!(w.party(G).grantor.suspects(), set(&[1]));
    // A sign of life ends the suspicion.
    let guard = w.send_when_due(G, H);
    let ack = w.deliver(&guard).expect("alive");
    w.deliver(&ack);
    assert_eq!(w.party(G).grantor.suspects(), set(&[]));
}

impl World {
    /// Returns the message that the grantor sends at its next deadline that sends anything.
    fn send_when_due(&mut self, from: ReplicaId, to: ReplicaId) -> Envelope {
        loop {
            let next = self.party(from).grantor.next_deadline();
            let span = next.since(self.now(from));
            self.pass(span);
            if let Some(sent) = self.poll(from).0.into_iter().find(|e| e.to.0 == to) {
                return sent;
            }
        }
    }
}

/// Past the cap on its age an ack bears no promise: the restart wait has counted
/// no older one.
#[test]
fn past_the_cap_a_grantor_establishes_anew() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    // The grantor's process stops here for longer than the cap; on waking it
    // finds the promise that the ack had made due.
    w.pass(ms(4001));
    let sent = w.send(G, H);
    assert!(matches!(sent.message, LeaseMessage::Guard { .. }));
}

/// The cap is that of the parameters promised under: the durable restart wait
/// may have counted no more.
#[test]
fn the_cap_is_that_of_the_configuration_promised_under() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    // A newer configuration, which the holder does not know, allows older acks.
    let longer = w.agree(ConfigChange {
        params: Some(LeaseParams {
            t0_cap: ms(60_000),
            t_grace: ms(60_000),
            ..LeaseParams::default()
        }),
        ..Default::default()
    });
    w.learn(G, longer);
    w.pass(ms(4001));
    let sent = w.send(G, H);
    assert!(matches!(sent.message, LeaseMessage::Guard { .. }));
}

/// Longer leases wait until the restart wait they demand is durable.
#[test]
fn nothing_is_promised_before_its_restart_wait_is_durable() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let params = LeaseParams::default();
    let (now, wait) = (w.now(G), params.restart_wait());
    let party = w.party(G);
    // Polled directly: the world's own poll has the fastest of disks.
    let context = PollContext {
        configs: &party.configs,
        highest_accepted: Slot::ZERO,
        may_promise: true,
        quiet_after: Duration::MAX,
    };
    let ack = LeaseMessage::GuardAck {
        sequence: 1,
        known: ConfigId(1),
    };
    let mut out = Vec::new();
    party.grantor.poll(now, &context, &mut out);
    party.grantor.handle(now, H, &ack);
    out.clear();
    party.grantor.poll(now, &context, &mut out);
    assert_eq!(out, [], "not before the disk has it");
    assert_eq!(party.grantor.wait_to_persist(&params), Some(wait));
    party.grantor.wait_persisted(wait);
    assert_eq!(party.grantor.wait_to_persist(&params), None);
    party.grantor.handle(now, H, &ack);
    party.grantor.poll(now, &context, &mut out);
    assert!(matches!(out[..], [(H, LeaseMessage::Promise(_))]));
}

/// No drift, no stretch: the bound is an argument, not a constant.
#[test]
fn perfect_clocks_keep_a_grant_no_longer_than_the_paper_says() {
    let mut w = World::new(2);
    w.agree_all(ConfigChange {
        params: Some(LeaseParams {
            clock: ClockBound { rho_ppm: 0 },
            ..LeaseParams::default()
        }),
        ..ConfigChange::everywhere(set(&[0, 1]))
    });
    let ack = w.establish(G, H);
    assert_eq!(w.kept(G, H), [(ConfigId(1), w.true_ns + 4_000_000_000)]);
    w.deliver(&ack);
    assert_eq!(w.kept(G, H), [(ConfigId(1), w.true_ns + 2_000_000_000)]);
}

/// An ack that came while the grantor's clock was not to be believed says nothing about
/// how old it is.
#[test]
fn no_promise_builds_on_an_ack_from_before_the_clock_is_trusted_again() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.establish(G, H);
    w.party(G).grantor.distrust();
    w.party(G).may_promise = false;
    w.pass(ms(600));
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("the guard is taken");
    w.deliver(&ack);
    // This is why it is not to be believed: it runs ahead.
    w.party(G).clock.epoch_ns += 3_000_000_000;
    let now = w.now(G);
    w.party(G).grantor.trust(now);
    w.party(G).may_promise = true;
    let first = w.send(G, H);
    assert!(matches!(first.message, LeaseMessage::Guard { .. }));
}
