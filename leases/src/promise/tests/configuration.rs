//! Tests with several configurations in force at the same time, some of which a replica does not
//! know.

use super::*;
use crate::config::{Key, KeyRange, RangeChange, StrategySpec};

fn defaults(ids: &[u8]) -> ConfigChange {
    ConfigChange::everywhere(set(ids))
}

/// Rule H12: a configuration names the old leader as a holder, so the old leader's lease does not
/// end when a new leader gets a lease.
#[test]
pub(super) fn the_old_leader_is_still_notified_under_a_new_leaders_configuration() {
    let (old, new, acceptor) = (ReplicaId(0), ReplicaId(1), ReplicaId(2));
    let mut w = World::held_by(3, set(&[0]));
    w.establish(acceptor, old);
    // The old leader is disconnected and does not learn of the new leader.
    let id = w.agree(defaults(&[1]));
    w.learn(new, id);
    w.learn(acceptor, id);
    w.pass(ms(500));
    w.establish(acceptor, new);
    assert!(w.permit(old, KEY).is_ok(), "it reads on");
    assert_eq!(w.accept(acceptor, 1, KEY), set(&[0, 1]));
}

/// Rule H14 at the holder: if a configuration is not known, its assignment of keys is not known
/// either.
#[test]
pub(super) fn a_promise_under_an_unknown_configuration_is_refused() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    let mut promise = w.send(G, H);
    if let LeaseMessage::Promise(promise) = &mut promise.message {
        promise.config = ConfigId(2);
    }
    assert!(w.deliver(&promise).is_none());
}

/// If the log of a replica lags, the replica loses freshness, but not its leases.
#[test]
fn a_promise_is_under_the_newest_configuration_both_know() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let second = w.agree(defaults(&[0]));
    w.learn(G, second);
    let ack = w.establish(G, H);
    assert_eq!(w.believed(G, H)[0].0, ConfigId(1));
    w.deliver(&ack);
    // The holder executes the second configuration and reports it in its next ack.
    w.learn(H, second);
    w.pass(ms(500));
    let promise = w.send(G, H);
    let ack = w.deliver(&promise).expect("taken");
    w.deliver(&ack);
    w.pass(ms(500));
    assert_eq!(w.send(G, H).promise().config, ConfigId(2));
    // Conversely, the grantor's log lags.
    let third = w.agree(defaults(&[0, 1]));
    w.learn(H, third);
    w.pass(ms(500));
    let promise = w.send(G, H);
    let ack = w.deliver(&promise).expect("taken");
    w.deliver(&ack);
    w.pass(ms(500));
    assert_eq!(w.send(G, H).promise().config, ConfigId(2));
}

/// Rule H14 at the grantor: under a configuration with forgotten contents, the grantor could not
/// compute the tags that a promise requires.
#[test]
fn nothing_is_promised_under_a_forgotten_configuration() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let second = w.agree(defaults(&[0]));
    w.learn(G, second);
    w.party(G).configs.forget_before(second);
    let guard = w.send(G, H);
    let ack = w.deliver(&guard).expect("taken");
    w.deliver(&ack);
    assert_eq!(w.poll(G).0.len(), 0, "the holder knows only the first");
    w.pass(ms(500));
    assert!(matches!(w.send(G, H).message, LeaseMessage::Guard { .. }));
}

/// If a grantor forgets the contents of a configuration too early, tags contain too many replicas,
/// but never too few.
#[test]
fn a_grant_under_a_forgotten_configuration_covers_every_key() {
    let mut w = World::held_by(3, set(&[0, 1]));
    w.establish(G, H);
    let second = w.agree_all(defaults(&[0]));
    w.party(G).configs.forget_before(second);
    assert!(w.permit(H, KEY).is_ok(), "the holder still knows the first");
    assert_eq!(w.tag(G, KEY), set(&[1]));
}

/// Rule H17: the ack of a shorter lease under a newer configuration says nothing about the longer
/// lease under the older configuration.
#[test]
pub(super) fn a_shorter_lease_in_a_newer_configuration_shortens_only_its_own_grant() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.establish(G, H);
    let short = ConfigChange {
        params: Some(short_lease()),
        ..defaults(&[0])
    };
    let id = w.agree_all(short);
    w.pass(ms(500));
    let renewal = w.send(G, H);
    assert_eq!(renewal.promise().config, ConfigId(1), "not yet heard of");
    let ack = w.deliver(&renewal).expect("taken");
    w.deliver(&ack);
    w.pass(ms(100));
    let shorter = w.send(G, H);
    assert_eq!(shorter.promise().config, id);
    let ack = w.deliver(&shorter).expect("taken");
    w.deliver(&ack);
    w.check_contained(G, H);
    // The new lease has ended. The old one covers the key until 2.5 s.
    w.pass(ms(1800));
    assert!(w.permit(H, KEY).is_ok());
    assert_eq!(w.tag(G, KEY), set(&[1]));
    w.check_contained(G, H);
    w.pass(ms(200));
    assert_eq!(w.permit(H, KEY), Err(NoPermit::NotHolder));
}

/// Rule H17 at the holder: under the new configuration another replica holds the key. The old
/// promise stays valid until it ends, but is not extended.
#[test]
pub(super) fn renewing_under_a_new_configuration_does_not_extend_the_old_promise() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let ack = w.establish(G, H);
    w.deliver(&ack);
    let second = w.agree_all(defaults(&[0]));
    // One more promise is made under the first configuration. Its ack reports that the second is
    // known.
    w.pass(ms(500));
    let promise = w.send(G, H);
    let ack = w.deliver(&promise).expect("taken");
    w.deliver(&ack);
    let until = w.permit(H, KEY).expect("covered").until;
    for _ in 0..3 {
        w.pass(ms(500));
        let promise = w.send(G, H);
        assert_eq!(promise.promise().config, second);
        let ack = w.deliver(&promise).expect("taken");
        w.deliver(&ack);
        assert_eq!(w.permit(H, KEY).expect("still covered").until, until);
        w.check_contained(G, H);
    }
    w.pass(ms(500));
    assert_eq!(w.permit(H, KEY), Err(NoPermit::NotHolder));
    w.pass(ms(10));
    assert_eq!(w.tag(G, KEY), set(&[]), "and the grantor knows it ended");
}

fn of(from: &'static str, to: &'static str) -> RangeChange {
    let range = KeyRange::new(Key::from(from), Some(Key::from(to)));
    RangeChange::nothing(range.expect("some keys"))
}

/// Rule H69: a key was listed, and the key's range was cleared, but the neighbouring ranges were
/// not. If the ranges became one, the key would be listed again on replicas that remember the list,
/// but not on replicas that have forgotten the list. Nothing shows which replicas have forgotten
/// the list. A holder would read the key, and its grantor would not know of this holder.
#[test]
pub(super) fn what_a_range_forgot_does_not_come_back_with_its_neighbours() {
    let mut w = World::held_by(2, set(&[0]));
    let strategy = |strategy| ConfigChange {
        ranges: vec![RangeChange {
            strategy: Some(strategy),
            ..of("k", "l")
        }],
        ..Default::default()
    };
    w.agree_all(strategy(StrategySpec::All));
    w.agree_all(ConfigChange {
        keys: vec![(set(&[0, 1]), vec![Key::from(KEY)])],
        ..Default::default()
    });
    let cleared = w.agree_all(ConfigChange {
        ranges: vec![RangeChange {
            clear: true,
            ..of("k", "l")
        }],
        ..Default::default()
    });
    w.party(G).configs.forget_before(cleared);
    // From now on the range differs from its neighbours only in when it was cleared.
    w.agree_all(strategy(StrategySpec::None));
    w.establish(G, H);
    assert_eq!(w.tag(G, KEY), set(&[]), "it promised this to nobody");
    assert_eq!(w.permit(H, KEY), Err(NoPermit::NotHolder));
}

/// A chain continues across configurations that all assign the key to the holder. It does not
/// matter how a configuration assigns the key: by defaults, by a list, by a range that was split
/// off with another strategy, or by a range that was cleared. Longer or shorter leases do not
/// matter either.
#[test]
fn a_chain_goes_on_whatever_gives_the_key() {
    let mut w = World::held_by(2, set(&[0, 1]));
    let ack = w.establish(G, H);
    w.deliver(&ack);
    // The acceptance in this slot demands notification of H. The slot is the barrier of any chain
    // that begins afterwards.
    assert_eq!(w.accept(G, 5, KEY), set(&[1]));
    let renewals = |w: &mut World| {
        for _ in 0..12 {
            w.pass(ms(200));
            let (messages, _) = w.poll(G);
            for envelope in messages {
                if let Some(ack) = w.deliver(&envelope) {
                    w.deliver(&ack);
                }
            }
            assert!(w.permit(H, KEY).is_ok(), "at {} ns", w.true_ns);
            assert_eq!(w.tag(G, KEY), set(&[1]));
            w.check_contained(G, H);
        }
    };
    renewals(&mut w);
    let ranges = |range: RangeChange| ConfigChange {
        ranges: vec![range],
        ..Default::default()
    };
    for change in [
        ConfigChange {
            keys: vec![(set(&[0, 1]), vec![Key::from(KEY)])],
            ..defaults(&[0])
        },
        ranges(RangeChange {
            strategy: Some(StrategySpec::All),
            defaults: Some(set(&[0, 1])),
            clear: true,
            ..of("k", "l")
        }),
        ConfigChange {
            params: Some(short_lease()),
            ..Default::default()
        },
        ranges(RangeChange {
            strategy: Some(StrategySpec::All),
            defaults: Some(set(&[0, 1])),
            clear: true,
            ..RangeChange::nothing(KeyRange::all())
        }),
        ConfigChange {
            params: Some(LeaseParams::default()),
            ..Default::default()
        },
    ] {
        w.agree_all(change);
        renewals(&mut w);
    }
}

/// Returns a change that excludes suspects, under all configurations and for every key (§3.7).
fn exclude(ids: &[u8]) -> ConfigChange {
    ConfigChange {
        excluded: Some(set(ids)),
        ..Default::default()
    }
}

/// Rule H41: if the log of a suspect lags, promises to the suspect are not renewed under the old
/// configuration that it still knows.
#[test]
pub(super) fn a_suspect_is_not_renewed_below_its_exclusion() {
    let mut w = World::held_by(3, set(&[0, 1, 2]));
    w.establish(G, H);
    let id = w.agree(exclude(&[1]));
    w.learn(G, id);
    w.pass(ms(500));
    let sent = w.send(G, H);
    assert!(
        matches!(sent.message, LeaseMessage::Guard { .. }),
        "it answers, but knows only the configuration that gave it keys"
    );
    let ack = w.deliver(&sent).expect("taken");
    w.deliver(&ack);
    assert!(w.poll(G).0.iter().all(|e| e.to.0 != H));
    // While the old grant is in force it is respected. Afterwards writes do not depend on the
    // suspect.
    assert_eq!(w.tag(G, KEY), set(&[1]));
    w.pass(ms(4100));
    assert_eq!(w.tag(G, KEY), set(&[]));
    // Other holders receive promises as before.
    w.establish(G, ReplicaId(2));
    assert_eq!(w.tag(G, KEY), set(&[2]));
}

/// If the configuration log of a grantor lags, the grantor may not know for which holders it must
/// stop renewals.
#[test]
fn a_grantor_that_must_not_promise_still_listens() {
    let mut w = World::held_by(2, set(&[0, 1]));
    w.establish(G, H);
    w.party(G).may_promise = false;
    w.pass(ms(500));
    let sent = w.send(G, H);
    assert!(matches!(sent.message, LeaseMessage::Guard { .. }));
    let ack = w.deliver(&sent).expect("taken");
    w.deliver(&ack);
    assert_eq!(w.poll(G).0.len(), 0);
    w.party(G).may_promise = true;
    w.pass(ms(500));
    assert!(matches!(w.send(G, H).message, LeaseMessage::Promise(_)));
}

/// Under one configuration, a tag contains only holders of keys that the batch writes.
#[test]
fn a_tag_names_holders_of_the_keys_that_are_written() {
    let mut w = World::held_by(3, set(&[0]));
    w.agree_all(ConfigChange {
        keys: vec![
            (set(&[0, 1]), vec![Key::from("one")]),
            (set(&[0, 2]), vec![Key::from("two")]),
        ],
        ..Default::default()
    });
    w.establish(G, H);
    w.pass(ms(500));
    w.establish(G, ReplicaId(2));
    assert_eq!(w.tag(G, b"one"), set(&[1]));
    assert_eq!(w.tag(G, b"two"), set(&[2]));
    assert_eq!(w.tag(G, b"other"), set(&[]));
    let now = w.now(G);
    let party = w.party(G);
    let keys: [&[u8]; 3] = [b"other", b"two", b"one"];
    let views = keys.map(|key| party.configs.view(key));
    let live = party.grantor.live(now);
    assert_eq!(live.tag(views.into_iter()), set(&[1, 2]));
}
