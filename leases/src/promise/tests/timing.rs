//! Clocks that drift, processes that stop, and the maximum time for which a write waits.

use super::*;
use crate::time::ClockBound;

/// Rule H03: the holder's clock is the slowest and the grantor's clock the fastest that the bound
/// allows. The promise is accepted at the end of its window, and the ack of the promise is lost.
#[test]
pub(super) fn a_grant_outlives_its_promise_at_the_bound_of_drift() {
    let rho = LeaseParams::default().clock.rho_ppm.cast_signed().into();
    let mut w = World::with_rates(&[rho, -rho]);
    w.agree_all(ConfigChange::everywhere(set(&[0, 1])));
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    // The ack ages until the cap before the promise that builds on it is sent. The fast clock
    // measures the age, and the slow clock measures the window (hence the term 2 rho t0).
    let mut promise = w.send(G, H);
    while promise.promise().t0 < ms(3400) {
        w.pass(ms(500));
        promise = w.send(G, H);
    }
    w.wait_for_end_of_window(0, &promise);
    w.deliver(&promise).expect("the last moment");
    w.check_contained(G, H);

    // The same after an ack: the grant lasts one stretched lease from its receipt, and no less.
    w.pass(ms(10_000));
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    let promise = w.send(G, H);
    let ack = w.deliver(&promise).expect("taken");
    w.deliver(&ack);
    w.check_contained(G, H);
}

/// A further promise never shortens a grant. The earlier promise, which builds on an older ack, has
/// more time to arrive.
#[test]
fn a_promise_on_a_fresh_ack_does_not_shorten_the_grant_of_one_on_an_old_ack() {
    let rho = LeaseParams::default().clock.rho_ppm.cast_signed().into();
    let mut w = World::with_rates(&[rho, -rho]);
    w.agree_all(ConfigChange {
        // The interval between renewals is shorter than 2 rho t0.
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
    /// Returns the grantor's next message, and then delivers `ack` to the grantor.
    fn send_just_before(&mut self, ack: &Envelope) -> Envelope {
        let sent = self.send(ack.to.0, ack.from.0);
        self.deliver(ack);
        sent
    }

    /// Waits until the last time at which the holder accepts this promise. The holder acknowledged
    /// the promise's base at the true time `opened`, in ns.
    fn wait_for_end_of_window(&mut self, opened: u64, envelope: &Envelope) {
        let (promise, holder) = (envelope.promise(), envelope.to.0);
        let clock = self.parties[holder.index()].clock;
        let closes = clock.read(opened) + promise.t0 + promise.t_guard;
        self.true_ns = clock.true_ns(closes) - 2;
    }
}

/// Rule H04: the holder stops with a promise in its buffer. The holder resumes after the grantor's
/// grant has ended.
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

/// Rule H04 for a pause of the holder between two reads. The lease is valid when the pause begins.
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

/// A permit ends when too few grantors remain, not when the last promise ends.
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

/// Rule H22: N/2 other replicas and the holder are a majority, also if N is even.
#[test]
fn an_even_cluster_needs_half_of_the_others_too() {
    let mut w = World::held_by(4, set(&[0, 1, 2, 3]));
    w.establish(ReplicaId(0), H);
    // Of the four replicas, only {0, 1} know of the promise. A majority that accepts a write
    // contains 2 or 3 and one of these. It may be {1, 2, 3}, of which only the holder itself knows
    // of the promise.
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
    w.establish(ReplicaId(2), H);
    assert!(w.permit(H, KEY).is_ok());
}

/// Rule H08, §3.8: a dead holder blocks a write for at most t_grace + t_guard + t_lease and the
/// drift. The grantor reports when this time ends.
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
    // Any answer ends the suspicion.
    let guard = w.send_when_due(G, H);
    let ack = w.deliver(&guard).expect("alive");
    w.deliver(&ack);
    assert_eq!(w.party(G).grantor.suspects(), set(&[]));
}

impl World {
    /// Lets time pass until the grantor `from` sends a message to `to`, and returns this message.
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

/// No promise may build on an ack that is older than the cap, because the restart wait covers no
/// older acks.
#[test]
fn past_the_cap_a_grantor_establishes_anew() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    // The grantor's process is paused for longer than the cap. When it resumes, the promise that
    // builds on the ack is due.
    w.pass(ms(4001));
    let sent = w.send(G, H);
    assert!(matches!(sent.message, LeaseMessage::Guard { .. }));
}

/// The cap on the age of an ack is the cap of the configuration under which the promise is made,
/// because the durable restart wait may not cover a higher cap.
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

/// No promises of longer leases are made until the restart wait that they require is durable.
#[test]
fn nothing_is_promised_before_its_restart_wait_is_durable() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let params = LeaseParams::default();
    let (now, wait) = (w.now(G), params.restart_wait());
    let party = w.party(G);
    // The grantor is polled directly, because the world's own poll makes the restart wait durable
    // immediately.
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

/// If the bound on drift is 0, grants are kept no longer than the paper says. The bound is an
/// argument, not a constant.
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

/// If an ack arrived while the grantor's clock was not trusted, its age is not known.
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
    // The clock runs ahead, so it is not trusted.
    w.party(G).clock.epoch_ns += 3_000_000_000;
    let now = w.now(G);
    w.party(G).grantor.trust(now);
    w.party(G).may_promise = true;
    let first = w.send(G, H);
    assert!(matches!(first.message, LeaseMessage::Guard { .. }));
}
