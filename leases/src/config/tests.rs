//! Tests of several configurations that are in force at the same time.

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
    assert_eq!(configs.keys[0].len(), 1);
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

/// Returns a change that makes the replicas in `bits` the holders of unlisted keys in `from..to`.
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

/// Applies changes of ranges as the next configuration.
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

/// A change that clears a range removes all listed keys of the range, regardless of their holders.
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
    configs.forget_before(ConfigId(0));
    assert_eq!(configs.listed_by_range(), [1, 0, 1]);
    configs.forget_before(third);
    assert_eq!(configs.listed_len(), 2, "the others are seen by nobody");
}

/// Neighbouring ranges become one range only if their policies are equal.
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

/// If a peer proposes more ranges than a configuration may have, no range changes.
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

/// A leader that becomes a holder of all listed keys holds every possible key.
#[test]
fn universal_is_what_the_listed_keys_have_now_not_what_they_ever_had() {
    let mut configs = Configs::new(3);
    configs.apply(ConfigId(1), &ConfigChange::everywhere(set(0b111)));
    configs.apply(ConfigId(2), &listing(0b011, "a"));
    configs.apply(ConfigId(3), &listing(0b011, "b"));
    configs.apply(ConfigId(4), &listing(0b110, "a"));
    assert_eq!(configs.universal(ConfigId(4)), set(0b010));
    configs.apply(ConfigId(5), &listing(0b110, "b"));
    assert_eq!(configs.universal(ConfigId(5)), set(0b110));
    assert_eq!(configs.universal(ConfigId(3)), set(0b011), "as it was");
}

/// Returns a change with one entry, which lists the keys that belong to the numbers in `keys`.
fn listing_many(bits: u64, keys: std::ops::Range<usize>) -> ConfigChange {
    let keys = keys.map(|i| Key::from(format!("{i:06}"))).collect();
    ConfigChange {
        keys: vec![(set(bits), keys)],
        ..Default::default()
    }
}

/// Asserts that the stored counts equal the counts that a pass over all keys finds.
fn assert_counted(configs: &Configs) {
    let mut counts = configs.policies().map(|_| 0u64);
    let mut common = configs.policies().map(|policy| policy.defaults);
    let listed = (0..configs.listed_len()).filter_map(|place| configs.listed_at(place));
    for (key, holders) in listed {
        *counts.get_mut(key) += 1;
        let common = common.get_mut(key);
        *common = common.intersection(holders);
    }
    let counts: Vec<u64> = counts.iter().map(|(_, count)| *count).collect();
    assert_eq!(configs.listed_by_range(), counts);
    let common = common.iter().map(|(_, common)| *common);
    let universal = common.reduce(ReplicaSet::intersection).expect("a range");
    let universal = universal.minus(configs.excluded());
    assert_eq!(configs.universal(configs.newest()), universal);
}

/// Cleared keys are forgotten in steps. Keys that are listed between two steps stay listed.
#[test]
fn cleared_keys_are_forgotten_in_steps() {
    let keys = 5 * sweep::KEYS_A_STEP;
    let mut configs = Configs::new(3);
    configs.apply(ConfigId(1), &listing_many(0b011, 0..keys));
    change_ranges(&mut configs, [cleared("", "", 0b111)]);
    let mut steps = 0;
    loop {
        let before = configs.listed_len();
        configs.forget_before(configs.newest());
        configs.check();
        assert!(configs.listed_len() + sweep::KEYS_A_STEP >= before);
        steps += 1;
        if !configs.is_sweeping() {
            break;
        }
        // A forgotten key, a key that is not forgotten yet, and a new key.
        let id = ConfigId(configs.newest().0 + 1);
        configs.apply(id, &listing_many(0b110, keys - steps..keys - steps + 1));
        let id = ConfigId(id.0 + 1);
        configs.apply(id, &listing_many(0b101, steps..steps + 1));
        let id = ConfigId(id.0 + 1);
        configs.apply(id, &listing_many(0b100, keys + steps..keys + steps + 1));
    }
    assert_eq!(steps, 5);
    assert_eq!(configs.listed_len(), 3 * (steps - 1));
    assert_counted(&configs);
    for key in 1..steps {
        let holders = |key: usize| configs.holders(format!("{key:06}").as_bytes());
        assert_eq!(holders(keys - key), set(0b110));
        assert_eq!(holders(key), set(0b101));
        assert_eq!(holders(keys + key), set(0b100));
    }
}

/// After a range is split, the counts of each part include the keys of both parts, until a pass
/// over all keys is complete.
#[test]
fn the_keys_of_a_range_that_is_split_are_counted_anew() {
    let keys = 2 * sweep::KEYS_A_STEP;
    let mut configs = Configs::new(3);
    change_ranges(&mut configs, [held("", "", 0b111)]);
    configs.apply(ConfigId(2), &listing_many(0b011, 0..keys));
    configs.apply(ConfigId(3), &listing_many(0b111, keys..keys + 1));
    let to = Key::from(format!("{keys:06}"));
    let range = KeyRange::new(Key::new(), Some(to)).expect("some keys");
    let split = RangeChange {
        defaults: Some(set(0b011)),
        ..RangeChange::nothing(range.clone())
    };
    change_ranges(&mut configs, [split]);
    assert_eq!(configs.universal(ConfigId(4)), set(0b011));
    let most = keys as u64 + 1;
    assert_eq!(configs.listed_by_range(), [most; 2], "never too few");
    let mut steps = 0;
    while configs.is_sweeping() {
        configs.forget_before(ConfigId(0));
        steps += 1;
    }
    assert_eq!(steps, 3);
    assert_counted(&configs);
    let joined = RangeChange {
        defaults: Some(set(0b111)),
        ..RangeChange::nothing(range)
    };
    change_ranges(&mut configs, [joined]);
    assert_eq!(configs.listed_by_range(), [most], "of two, the sum");
    assert!(!configs.is_sweeping());
}

proptest::proptest! {
    /// After any sequence of listing, clearing, splitting and forgetting, the counts equal the
    /// numbers of existing keys.
    #[test]
    fn counts_follow_the_keys(
        changes in proptest::collection::vec((0u8..4, 0u64..8, 0usize..6, 0usize..6), 1..60),
    ) {
        let mut configs = Configs::new(3);
        let key = |at: usize| Key::from(vec![b'a' + at as u8]);
        for (kind, bits, from, length) in changes {
            let id = ConfigId(configs.newest().0 + 1);
            let mut change = ConfigChange::default();
            let range = KeyRange::new(key(from), Some(key(from + length + 1)));
            let defaults = Some(set(bits));
            let of_range = RangeChange { defaults, ..RangeChange::nothing(range.expect("some")) };
            match kind {
                0 => change.ranges = vec![of_range],
                1 => change.ranges = vec![RangeChange { clear: true, ..of_range }],
                2 => configs.forget_before(ConfigId(id.0.saturating_sub(1 + length as u64))),
                _ => {}
            }
            if kind != 2 || length > 3 {
                change.keys = vec![(set(bits), (from..from + length).map(key).collect())];
            }
            configs.apply(id, &change);
            configs.check();
            let newest = configs.universal(id);
            for at in 0..12 {
                proptest::prop_assert!(newest.is_subset(configs.holders(&key(at))));
            }
            if !configs.is_sweeping() {
                assert_counted(&configs);
            }
        }
        while configs.is_sweeping() {
            configs.forget_before(ConfigId(0));
        }
        assert_counted(&configs);
    }
}

#[test]
fn universal_follows_the_defaults_when_no_key_is_listed() {
    let defaults = |bits| ConfigChange::everywhere(set(bits));
    let mut configs = Configs::new(3);
    // First the leader changes, then the strategy. Neither change may leave scans without a holder
    // permanently.
    for (id, bits) in [(1, 0b001), (2, 0b010), (3, 0b111)] {
        configs.apply(ConfigId(id), &defaults(bits));
        assert_eq!(configs.universal(ConfigId(id)), set(bits));
    }
}

/// A change from a peer may be invalid. Invalid parts of the change are ignored, and cause no
/// panic.
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
