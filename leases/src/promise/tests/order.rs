//! Messages that are lost, repeated, late or out of order.

use super::*;

/// Rule H01: the ack of an older promise arrives after a newer promise was sent.
#[test]
pub(super) fn an_old_ack_does_not_shorten_a_newer_promise() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let first_ack = w.establish(G, H);
    // A second promise is sent, and is under way for a while ...
    w.pass(ms(500));
    let second = w.send(G, H);
    // ... when the ack of the first, long delayed, arrives.
    w.pass(ms(100));
    w.deliver(&first_ack);
    // The second promise is taken at the end of its window, 2 s after the ack that it names was
    // sent. If the first ack had shortened the grant, the grant would end too early.
    w.pass(ms(1800));
    w.deliver(&second).expect("still within its window");
    w.check_contained(G, H);
}

/// If acks overtake each other, the next promise builds on the newest ack, because the holder drops
/// all windows before the window that a promise named.
#[test]
fn a_late_ack_does_not_replace_a_newer_base() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let late = w.establish(G, H);
    w.pass(ms(500));
    let renewal = w.send(G, H);
    let ack = w.deliver(&renewal).expect("taken");
    w.deliver(&ack);
    w.deliver(&late);
    w.pass(ms(500));
    let next = w.send(G, H).promise();
    assert_eq!(next.base, renewal.promise().sequence);
}

/// The ack of the latest promise does shorten the grant. Otherwise a dead holder would block writes
/// for longer than §3.8 says.
#[test]
fn the_ack_of_the_latest_promise_shortens_its_grant() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let ack = w.establish(G, H);
    let before = w.kept(G, H)[0].1;
    w.deliver(&ack);
    assert!(w.kept(G, H)[0].1 < before);
    w.check_contained(G, H);
}

/// Rule H02 for guards: if a guard arrives a second time, its window must not open again.
#[test]
pub(super) fn a_repeated_guard_does_not_move_its_window() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    let promise = w.send(G, H);
    // The promise is slow. Just before its window closes, the guard arrives again.
    w.pass(ms(1900));
    assert!(w.deliver(&guard).is_none(), "a sequence is taken once");
    w.pass(ms(1900));
    assert!(w.deliver(&promise).is_none(), "its window has closed");
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
}

/// Rule H02 for promises: if a promise arrives a second time, the lease must not start again.
#[test]
pub(super) fn a_repeated_promise_does_not_extend_the_lease() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    let promise = w.send(G, H);
    let ack = w.deliver(&promise).expect("taken");
    // The ack of the promise shortens the grant to one lease from now.
    w.deliver(&ack);
    w.pass(ms(1900));
    assert!(w.deliver(&promise).is_none());
    w.check_contained(G, H);
    w.pass(ms(101));
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
}

/// Rule H02 for reordered messages: after a later promise is acknowledged, the grantor relies on
/// the holder never taking an earlier promise.
#[test]
pub(super) fn a_promise_overtaken_by_its_successor_is_refused() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.establish(G, H);
    w.pass(ms(500));
    let slow = w.send(G, H);
    w.pass(ms(500));
    let fast = w.send(G, H);
    assert!(fast.promise().sequence > slow.promise().sequence);
    let ack = w.deliver(&fast).expect("taken");
    w.deliver(&ack);
    w.pass(ms(500));
    assert!(w.deliver(&slow).is_none());
    w.check_contained(G, H);
}

/// Rule H32: a Relinquish by a running holder names a sequence number. The Relinquish says nothing
/// about promises with higher sequence numbers.
#[test]
pub(super) fn a_late_relinquish_does_not_end_a_later_grant() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.establish(G, H);
    let message = w.party(H).holder.relinquish().remove(0).1;
    let relinquish = Envelope {
        from: (H, Incarnation(1)),
        to: (G, Incarnation(1)),
        message,
    };
    // The Relinquish is slow. Meanwhile the holder recovers. It refuses the grantor's promises on
    // the erased window, until the grantor sends a new guard.
    w.party(H).holder.accept_again();
    w.pass(ms(500));
    let stale = w.send(G, H);
    assert!(w.deliver(&stale).is_none(), "its window was erased");
    w.pass(ms(4000));
    w.establish(G, H);
    w.deliver(&relinquish);
    w.check_contained(G, H);
    assert!(w.permit(H, KEY).is_ok());
    assert_eq!(w.tag(G, KEY), set(&[1]), "the later grant stands");
}

/// The purpose of Relinquish: writes continue immediately, and do not wait later for a holder that
/// accepts no promises. Renewals that name the erased window would make writes wait again.
#[test]
fn after_relinquish_nothing_is_promised_until_a_new_guard_is_answered() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let late_ack = w.establish(G, H);
    let message = w.party(H).holder.relinquish().remove(0).1;
    let now = w.now(G);
    assert!(w.party(G).grantor.handle(now, H, &message), "a grant ended");
    assert_eq!(w.tag(G, KEY), set(&[]));
    // An ack that was sent before the Relinquish and arrives after it does not restore the window.
    w.deliver(&late_ack);
    for _ in 0..4 {
        w.pass(ms(500));
        let sent = w.send(G, H);
        assert!(matches!(sent.message, LeaseMessage::Guard { .. }));
        assert!(w.deliver(&sent).is_none(), "refusing");
        assert_eq!(w.tag(G, KEY), set(&[]));
    }
    w.party(H).holder.accept_again();
    w.pass(ms(500));
    w.establish(G, H);
    assert!(w.permit(H, KEY).is_ok());
}

/// Promises that were under way when the holder gave back its promises are refused permanently.
#[test]
fn a_promise_under_way_at_relinquish_is_refused_afterwards() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.establish(G, H);
    w.pass(ms(500));
    let under_way = w.send(G, H);
    w.party(H).holder.relinquish();
    w.party(H).holder.accept_again();
    assert!(w.deliver(&under_way).is_none());
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
}

/// Rule H35: the window of a promise is measured from the ack that the promise names, not from the
/// newest ack.
#[test]
pub(super) fn a_promise_is_measured_against_the_ack_it_names() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let first = w.send(G, H);
    let ack = w.deliver(&first).expect("taken");
    w.pass(ms(1500));
    // The ack took 1.5 s. A second guard was sent before the ack arrived, so the promise that
    // builds on the first guard has a higher sequence.
    let second = w.send(G, H);
    w.deliver(&ack);
    let promise = w.send(G, H);
    assert_eq!(promise.promise().base, 1);
    // Both messages are slow. The promise arrives within 2 s of the second guard, but long after
    // the window that the grantor assumes.
    w.pass(ms(1900));
    w.deliver(&second).expect("taken");
    w.pass(ms(1900));
    assert!(w.deliver(&promise).is_none());
    w.check_contained(G, H);
    assert_eq!(w.permit(H, KEY), Err(NoPermit::Uncovered));
}

/// Acks of sequence numbers that were never sent change nothing.
#[test]
fn an_ack_of_what_was_never_sent_is_ignored() {
    let mut w = World::held_by(2, set(&[0, 1]));
    for message in [
        LeaseMessage::GuardAck {
            sequence: 99,
            known: ConfigId(1),
        },
        LeaseMessage::PromiseAck {
            sequence: 99,
            known: ConfigId(1),
        },
        LeaseMessage::Relinquish { up_to: 99 },
    ] {
        let now = w.now(G);
        assert!(!w.party(G).grantor.handle(now, H, &message));
    }
    let sent = w.send(G, H);
    assert!(matches!(sent.message, LeaseMessage::Guard { sequence: 1 }));
    w.establish_from(&sent);
    assert!(w.permit(H, KEY).is_ok());
}

/// Regardless of how fast a grantor renews, the holder remembers the windows of about one round
/// trip, and no others.
#[test]
fn fast_renewals_over_a_slow_link_keep_the_lease() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let fast = LeaseParams {
        renew: ms(1),
        ..LeaseParams::default()
    };
    w.agree_all(ConfigChange {
        params: Some(fast),
        ..Default::default()
    });
    let one_way = 150;
    let mut to_holder = std::collections::VecDeque::new();
    let mut to_grantor = std::collections::VecDeque::new();
    let mut taken = 0;
    for tick in 0..3000u64 {
        let (sent, _) = w.poll(G);
        to_holder.extend(sent.into_iter().map(|e| (tick + one_way, e)));
        while to_holder.front().is_some_and(|(due, _)| *due <= tick) {
            let (_, envelope) = to_holder.pop_front().expect("looked");
            let ack = w.deliver(&envelope);
            taken += u64::from(ack.is_some());
            to_grantor.extend(ack.map(|ack| (tick + one_way, ack)));
        }
        while to_grantor.front().is_some_and(|(due, _)| *due <= tick) {
            let (_, ack) = to_grantor.pop_front().expect("looked");
            w.deliver(&ack);
        }
        w.pass(ms(1));
    }
    assert!(taken > 2500, "took {taken} of 3000, one each millisecond");
    assert!(w.permit(H, KEY).is_ok());
    assert!(w.parties[1].holder.windows(G) <= 2 * one_way as usize + 2);
}

/// If a promise under a newer configuration was already accepted, a promise under an older one
/// cannot come from a correct grantor. Records stay in order regardless of the messages that
/// arrive.
#[test]
fn a_promise_that_goes_back_to_an_older_configuration_is_refused() {
    let mut w = World::held_by(2, set(&[0]));
    w.agree_all(ConfigChange::everywhere(set(&[0, 1])));
    w.establish(G, H);
    w.pass(ms(500));
    let mut older = w.send(G, H);
    if let LeaseMessage::Promise(promise) = &mut older.message {
        promise.config = ConfigId(1);
    }
    assert!(w.deliver(&older).is_none());
    assert_eq!(w.believed(G, H).len(), 1);
}

impl World {
    /// Does the rest of [`establish`](World::establish) after the guard was sent.
    fn establish_from(&mut self, guard: &Envelope) {
        let ack = self.deliver(guard).expect("the guard is taken");
        self.deliver(&ack);
        let promise = self.send(guard.from.0, guard.to.0);
        self.deliver(&promise).expect("the promise is taken");
    }
}
