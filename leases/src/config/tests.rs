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
    configs.apply(ConfigId(1), &ConfigChange::everywhere(set(0b001)));
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
    let mut clear = ConfigChange::everywhere(set(0b111));
    clear.ranges[0].clear = true;
    configs.apply(ConfigId(2), &clear);
    assert_eq!(configs.view(b"a").holders(ConfigId(1)), set(0b010));
    assert_eq!(configs.holders(b"a"), set(0b111));
    assert_eq!(configs.universal(ConfigId(2)), set(0b111));
    assert_eq!(configs.listed(b"a"), None);
    assert!(
        !configs
            .policies()
            .iter()
            .any(|(_, policy)| policy.any_listed())
    );
    configs.forget_before(ConfigId(1));
    assert_eq!(configs.view(b"a").holders(ConfigId(1)), set(0b010));
    configs.forget_before(ConfigId(2));
    assert_eq!(configs.listed_len(), 0, "nobody can see it any more");
}

/// Keys of `from..to` that are not listed are held by `bits`.
fn held(from: &'static str, to: &'static str, bits: u64) -> RangeChange {
    let to = (!to.is_empty()).then(|| Key::from(to));
    let range = KeyRange::new(Key::from(from), to).expect("some keys");
    RangeChange {
        defaults: Some(set(bits)),
        ..RangeChange::nothing(range)
    }
}

fn cleared(from: &'static str, to: &'static str, bits: u64) -> RangeChange {
    RangeChange {
        clear: true,
        ..held(from, to, bits)
    }
}

/// Takes a change of ranges as the next configuration.
fn change_ranges<const N: usize>(configs: &mut Configs, ranges: [RangeChange; N]) -> ConfigId {
    let id = ConfigId(configs.newest().0 + 1);
    let change = ConfigChange {
        ranges: ranges.to_vec(),
        ..Default::default()
    };
    configs.apply(id, &change);
    configs.check();
    id
}

#[test]
fn ranges_reach_up_to_the_next() {
    let mut configs = Configs::new(3);
    let ranges = [
        held("", "", 0b001),
        held("f", "p", 0b011),
        held("p", "", 0b101),
    ];
    change_ranges(&mut configs, ranges);
    let holders = |key: &str| configs.holders(key.as_bytes());
    assert_eq!(holders("a"), set(0b001));
    assert_eq!(holders("f"), set(0b011));
    assert_eq!(holders("oz"), set(0b011));
    assert_eq!(holders("z"), set(0b101));
    assert_eq!(configs.universal(ConfigId(1)), set(0b001));
}

/// What is cleared is cleared for the keys of the range, whoever was listed there.
#[test]
fn a_range_that_is_cleared_leaves_the_lists_of_its_neighbours() {
    let mut configs = Configs::new(3);
    change_ranges(&mut configs, [held("", "", 0b001)]);
    let mut listed = listing(0b011, "a");
    for key in ["f", "oz", "p"] {
        listed.keys[0].1.push(Key::from(key));
    }
    configs.apply(ConfigId(2), &listed);
    let third = change_ranges(&mut configs, [cleared("f", "p", 0b101)]);
    for (key, bits) in [
        ("a", 0b011),
        ("f", 0b101),
        ("oz", 0b101),
        ("p", 0b011),
        ("z", 0b001),
    ] {
        assert_eq!(configs.holders(key.as_bytes()), set(bits), "{key}");
        let listed = bits == 0b011;
        assert_eq!(configs.listed(key.as_bytes()).is_some(), listed, "{key}");
    }
    assert_eq!(configs.view(b"f").holders(ConfigId(2)), set(0b011));
    assert_eq!(configs.universal(third), set(0b001));
    let without = configs.listed_without(&KeyRange::all(), ReplicaId(2));
    let without: Vec<Key> = without.into_iter().map(|(key, _)| key).collect();
    assert_eq!(without, ["a", "p"].map(Key::from));
    configs.forget_before(third);
    assert_eq!(configs.listed_len(), 2, "the others are seen by nobody");
}

/// Neighbours are one range only where nothing tells them apart.
#[test]
fn equal_neighbours_are_one_range() {
    let mut configs = Configs::new(3);
    let ranges = |configs: &Configs| configs.policies().iter().count();
    change_ranges(&mut configs, [held("", "", 0b001), held("f", "p", 0b011)]);
    assert_eq!(ranges(&configs), 3);
    change_ranges(&mut configs, [held("f", "p", 0b001)]);
    assert_eq!(ranges(&configs), 1);
    change_ranges(&mut configs, [cleared("f", "p", 0b001)]);
    assert_eq!(ranges(&configs), 3, "others were cleared earlier");
    change_ranges(&mut configs, [cleared("", "", 0b001)]);
    assert_eq!(ranges(&configs), 1);
}

/// A peer may ask for more ranges than there may be: nothing changes then.
#[test]
fn there_are_only_so_many_ranges() {
    let numbered = |count: usize| ConfigChange {
        ranges: (0..count)
            .map(|i| {
                let from = Key::from(format!("{i:05}"));
                RangeChange {
                    defaults: Some(set(1 + i as u64 % 3)),
                    ..RangeChange::nothing(KeyRange::new(from, None).expect("some keys"))
                }
            })
            .collect(),
        ..Default::default()
    };
    let mut configs = Configs::new(3);
    configs.apply(ConfigId(1), &numbered(RANGES_MAX - 1));
    assert_eq!(configs.policies().iter().count(), RANGES_MAX);
    assert!(!configs.policies_after(&numbered(RANGES_MAX).ranges).fits());
    configs.apply(ConfigId(2), &numbered(RANGES_MAX));
    configs.check();
    assert_eq!(configs.policies().iter().count(), RANGES_MAX);
}

#[test]
fn an_excluded_replica_holds_nothing_and_is_promised_nothing_older() {
    let mut configs = Configs::new(3);
    configs.apply(ConfigId(1), &ConfigChange::everywhere(set(0b111)));
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
    configs.apply(ConfigId(1), &ConfigChange::everywhere(set(0b111)));
    configs.apply(ConfigId(2), &listing(0b011, "a"));
    configs.apply(ConfigId(3), &ConfigChange::default());
    assert_eq!(configs.universal(ConfigId(1)), set(0b111));
    assert_eq!(configs.universal(ConfigId(3)), set(0b011));
}

#[test]
fn universal_follows_the_defaults_when_no_key_is_listed() {
    let defaults = |bits| ConfigChange::everywhere(set(bits));
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
    let mut configs = Configs::new(3);
    let params = LeaseParams {
        t_lease: std::time::Duration::ZERO,
        ..LeaseParams::default()
    };
    let change = ConfigChange {
        ranges: vec![held("", "", 0b11_001), held("p", "", 0b1_010)],
        keys: vec![(set(u64::MAX), vec![Key::from("a")])],
        excluded: Some(set(1 << 63)),
        params: Some(params),
    };
    configs.apply(ConfigId(1), &change);
    configs.check();
    assert_eq!(configs.unlisted(b""), set(0b001));
    assert_eq!(configs.unlisted(b"q"), set(0b010));
    assert_eq!(configs.holders(b"a"), set(0b111));
    assert_eq!(configs.excluded(), set(0));
    assert_eq!(configs.params(ConfigId(1)), &LeaseParams::default());
}

#[test]
fn each_range_has_the_strategy_that_was_last_put_in_force_there() {
    let mut configs = Configs::new(3);
    assert_eq!(configs.strategy_of(b"k"), &StrategySpec::None);
    let range = held("f", "p", 0).range;
    let ranges = [
        RangeChange::strategy(KeyRange::all(), StrategySpec::All),
        RangeChange::strategy(range.clone(), StrategySpec::Leader),
    ];
    change_ranges(&mut configs, ranges);
    assert_eq!(configs.strategy_of(b"k"), &StrategySpec::Leader);
    assert_eq!(configs.strategy_of(b"p"), &StrategySpec::All);
    assert_eq!(configs.policies().strategies().names(), "all, leader");
    change_ranges(
        &mut configs,
        [RangeChange::strategy(range, StrategySpec::All)],
    );
    let strategies = configs.policies().strategies();
    let by_range: Vec<_> = strategies.iter().collect();
    assert_eq!(by_range, [(KeyRange::all(), &StrategySpec::All)]);
}

#[test]
#[should_panic(expected = "no holes")]
fn a_hole_in_the_log_of_configurations_is_no_news_to_go_on_with() {
    Configs::new(3).apply(ConfigId(2), &ConfigChange::default());
}
