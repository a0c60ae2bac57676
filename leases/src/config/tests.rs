//! What each configuration sees, of several alive at once.

use super::*;

fn set(bits: u64) -> ReplicaSet {
    ReplicaSet(bits)
}

fn listing(bits: u64, key: &'static str) -> ConfigChange {
    ConfigChange {
        keys: vec![(set(bits), vec![Key::from(key)])],
        ..Default::default()
    }
}

#[test]
fn a_configuration_sees_what_came_before_it_and_not_after() {
    let mut configs = Configs::new(3);
    configs.apply(
        ConfigId(1),
        &ConfigChange {
            defaults: Some(set(0b001)),
            ..Default::default()
        },
    );
    configs.apply(ConfigId(2), &listing(0b011, "a"));
    configs.apply(ConfigId(3), &listing(0b110, "a"));
    let view = configs.view(b"a");
    assert_eq!(view.holders(ConfigId(0)), set(0));
    assert_eq!(view.holders(ConfigId(1)), set(0b001));
    assert_eq!(view.holders(ConfigId(2)), set(0b011));
    assert_eq!(view.holders(ConfigId(3)), set(0b110));
    assert_eq!(configs.holders(b"b"), set(0b001));
}

#[test]
fn forgetting_keeps_what_the_oldest_kept_can_see() {
    let mut configs = Configs::new(3);
    configs.apply(ConfigId(1), &listing(0b001, "a"));
    configs.apply(ConfigId(2), &listing(0b010, "a"));
    configs.apply(ConfigId(3), &listing(0b100, "a"));
    configs.forget_before(ConfigId(2));
    let view = configs.view(b"a");
    assert_eq!(view.holders(ConfigId(1)), set(0), "forgotten: nobody");
    assert_eq!(view.holders(ConfigId(2)), set(0b010));
    assert_eq!(view.holders(ConfigId(3)), set(0b100));
    configs.forget_before(ConfigId(9));
    assert_eq!(configs.holders(b"a"), set(0b100));
    assert_eq!(configs.keys[b"a".as_slice()].len(), 1);
}

#[test]
fn clearing_returns_every_key_to_the_defaults() {
    let mut configs = Configs::new(3);
    configs.apply(ConfigId(1), &listing(0b010, "a"));
    let clear = ConfigChange {
        clear: true,
        defaults: Some(set(0b111)),
        ..Default::default()
    };
    configs.apply(ConfigId(2), &clear);
    assert_eq!(configs.view(b"a").holders(ConfigId(1)), set(0b010));
    assert_eq!(configs.holders(b"a"), set(0b111));
    assert_eq!(configs.universal(ConfigId(2)), set(0b111));
    assert_eq!(configs.listed(b"a"), None);
    assert!(!configs.any_listed());
    configs.forget_before(ConfigId(1));
    assert_eq!(configs.view(b"a").holders(ConfigId(1)), set(0b010));
    configs.forget_before(ConfigId(2));
    assert_eq!(configs.listed_len(), 0, "nobody can see it any more");
}

#[test]
fn ranges_reach_up_to_the_next() {
    let mut configs = Configs::new(3);
    let ranges = [("f", 0b011), ("p", 0b101)].map(|(from, bits)| RangeHolders {
        from: Key::from(from),
        holders: set(bits),
    });
    configs.apply(
        ConfigId(1),
        &ConfigChange {
            defaults: Some(set(0b001)),
            ranges: Some(ranges.to_vec()),
            ..Default::default()
        },
    );
    let holders = |key: &str| configs.holders(key.as_bytes());
    assert_eq!(holders("a"), set(0b001));
    assert_eq!(holders("f"), set(0b011));
    assert_eq!(holders("oz"), set(0b011));
    assert_eq!(holders("z"), set(0b101));
    assert_eq!(configs.universal(ConfigId(1)), set(0b001));
}

#[test]
fn an_excluded_replica_holds_nothing_and_is_promised_nothing_older() {
    let mut configs = Configs::new(3);
    configs.apply(
        ConfigId(1),
        &ConfigChange {
            defaults: Some(set(0b111)),
            ..Default::default()
        },
    );
    let exclude = ConfigChange {
        excluded: Some(set(0b100)),
        ..Default::default()
    };
    configs.apply(ConfigId(2), &exclude);
    assert_eq!(configs.holders(b"a"), set(0b011));
    assert_eq!(configs.oldest_promisable(ReplicaId(2)), ConfigId(2));
    assert_eq!(configs.oldest_promisable(ReplicaId(1)), ConfigId(0));
}

#[test]
fn universal_never_claims_a_key_somebody_lacks() {
    let mut configs = Configs::new(3);
    configs.apply(
        ConfigId(1),
        &ConfigChange {
            defaults: Some(set(0b111)),
            ..Default::default()
        },
    );
    configs.apply(ConfigId(2), &listing(0b011, "a"));
    configs.apply(ConfigId(3), &ConfigChange::default());
    assert_eq!(configs.universal(ConfigId(1)), set(0b111));
    assert_eq!(configs.universal(ConfigId(3)), set(0b011));
}

#[test]
fn universal_follows_the_defaults_when_no_key_is_listed() {
    let defaults = |bits| ConfigChange {
        defaults: Some(set(bits)),
        ..Default::default()
    };
    let mut configs = Configs::new(3);
    // A leader changes, then the strategy does: neither may leave scans
    // without a holder for good.
    for (id, bits) in [(1, 0b001), (2, 0b010), (3, 0b111)] {
        configs.apply(ConfigId(id), &defaults(bits));
        assert_eq!(configs.universal(ConfigId(id)), set(bits));
    }
}

/// A peer wrote the change: what is wrong in it is left out, and panics nobody.
#[test]
fn names_of_nobody_and_durations_that_cannot_work_change_nothing() {
    let range = |from: &'static str, bits| RangeHolders {
        from: Key::from(from),
        holders: set(bits),
    };
    let mut configs = Configs::new(3);
    let params = LeaseParams {
        t_lease: std::time::Duration::ZERO,
        ..LeaseParams::default()
    };
    let change = ConfigChange {
        defaults: Some(set(0b11_001)),
        ranges: Some(vec![range("p", 0b1_010), range("f", 0b11), range("p", 1)]),
        keys: vec![(set(u64::MAX), vec![Key::from("a")])],
        excluded: Some(set(1 << 63)),
        params: Some(params),
        ..Default::default()
    };
    configs.apply(ConfigId(1), &change);
    configs.check();
    assert_eq!(configs.defaults(), set(0b001));
    assert_eq!(configs.ranges(), [range("f", 0b11), range("p", 1)]);
    assert_eq!(configs.holders(b"a"), set(0b111));
    assert_eq!(configs.excluded(), set(0));
    assert_eq!(configs.params(ConfigId(1)), &LeaseParams::default());
}

#[test]
fn one_strategy_covers_every_key() {
    let mut configs = Configs::new(3);
    assert_eq!(configs.strategy(), &StrategySpec::None);
    let change = ConfigChange {
        strategy: Some(StrategySpec::All),
        ..Default::default()
    };
    configs.apply(ConfigId(1), &change);
    assert_eq!(configs.strategy(), &StrategySpec::All);
    let by_range: Vec<_> = configs.strategies().iter().collect();
    assert_eq!(by_range, [(KeyRange::all(), &StrategySpec::All)]);
}

#[test]
#[should_panic(expected = "no holes")]
fn a_hole_in_the_log_of_configurations_is_no_news_to_go_on_with() {
    Configs::new(3).apply(ConfigId(2), &ConfigChange::default());
}
