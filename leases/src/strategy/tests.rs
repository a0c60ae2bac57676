//! One contract for every strategy: whatever the demand and whoever leads, it
//! names replicas, keeps the leader among the holders, moves in bounded steps
//! and comes to rest.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::{Gathered, Situation, StrategySpec, Unlisted, gather};
use crate::config::{ConfigChange, Configs, KeyRange, RangeChange};
use crate::demand::Demand;
use crate::types::{ConfigId, Key, ReplicaId, ReplicaSet};

/// More proposals than any demand in these tests can need.
const ROUNDS_MAX: usize = 64;

fn specs(n: usize) -> Vec<StrategySpec> {
    vec![
        StrategySpec::None,
        StrategySpec::Leader,
        StrategySpec::All,
        StrategySpec::Quorum {
            unlisted: Unlisted::Leader,
        },
        StrategySpec::Quorum {
            unlisted: Unlisted::Nearest,
        },
        StrategySpec::Fixed { holders: None },
        // The operator's sets are the operator's business, but the contract asks for
        // the leader, whoever leads: give the keys to all.
        StrategySpec::Fixed {
            holders: Some(ReplicaSet::all(n)),
        },
    ]
}

/// Every key, or the keys of one of two ranges.
fn ranges() -> [KeyRange; 3] {
    let range = |from: &'static str, to: &'static str| {
        KeyRange::new(Key::from(from), Some(Key::from(to))).expect("some keys")
    };
    [KeyRange::all(), range("key1", "key2"), range("f", "key15")]
}

fn situation(n: usize, leader: u8, random: &mut Pcg64) -> Situation {
    let leader = ReplicaId(leader);
    let others = ReplicaSet::all(n).minus(ReplicaSet::one(leader));
    let mut nearest: Vec<ReplicaId> = others.iter().collect();
    for i in (1..nearest.len()).rev() {
        nearest.swap(i, random.random_range(0..=i));
    }
    Situation { leader, n, nearest }
}

fn some_demand(n: usize, keys: usize, random: &mut Pcg64) -> Demand {
    let mut demand = Demand::new(n, 1000);
    for _ in 0..keys {
        let key = Key::from(format!("key{}", random.random_range(0..keys)));
        let origin = ReplicaId(random.random_range(0..n) as u8);
        demand.add(
            &key,
            origin,
            random.random_range(0..5),
            random.random_range(0..5),
        );
    }
    demand
}

/// Puts `spec` in force for `range`, and applies proposals until the strategies rest;
/// returns how many it took.
fn settle(
    (range, spec): (&KeyRange, &StrategySpec),
    situation: &Situation,
    demand: &mut Demand,
    configs: &mut Configs,
) -> usize {
    let mut wish = ConfigChange::default();
    if configs.strategy_of(range.from()) != spec {
        wish.ranges
            .push(RangeChange::strategy(range.clone(), spec.clone()));
    }
    for round in 0..ROUNDS_MAX {
        let Gathered { change, more } =
            gather(std::mem::take(&mut wish), situation, demand, configs);
        if change == ConfigChange::default() {
            assert!(!more, "{}: more, but nothing now", spec.name());
            return round;
        }
        assert!(bounded(&change), "{}: an entry of any size", spec.name());
        configs.apply(ConfigId(configs.newest().0 + 1), &change);
        configs.check();
        demand.check();
    }
    panic!("{} does not settle", spec.name());
}

fn bounded(change: &ConfigChange) -> bool {
    let keys = || change.keys.iter().flat_map(|(_, keys)| keys);
    keys().count() <= 20_000 && keys().map(|key| key.len()).sum::<usize>() <= 2 << 20
}

/// Every set that any key can have: listed keys, and the rest of each range.
fn check_holders(situation: &Situation, configs: &Configs) {
    let named = (0..40).map(|i| format!("key{i}"));
    let others = ["", "a", "f", "g", "p", "z"].map(String::from);
    for key in named.chain(others) {
        let holders = configs.holders(key.as_bytes());
        let spec = configs.strategy_of(key.as_bytes());
        assert!(
            holders.is_subset(ReplicaSet::all(situation.n)),
            "{}: {key:?} is held by {holders:?}, who do not all exist",
            spec.name()
        );
        match spec {
            StrategySpec::None => assert!(holders.is_empty()),
            _ => assert!(
                holders.contains(situation.leader),
                "{}: the leader does not hold {key:?}",
                spec.name()
            ),
        }
        assert!(configs.universal(configs.newest()).is_subset(holders));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_strategy_keeps_the_contract(
        n in prop_oneof![1usize..=7, Just(64usize)],
        seed: u64,
        keys in 1usize..40,
    ) {
        let random = &mut Pcg64::seed_from_u64(seed);
        // One history through all strategies in turn: each begins where another
        // left off, as when an operator changes it live.
        let mut configs = Configs::new(n);
        for (spec, range) in specs(n).iter().flat_map(|spec| ranges().map(|r| (spec, r))) {
            let wish = (&range, spec);
            let leader = random.random_range(0..n) as u8;
            let first = situation(n, leader, random);
            let mut demand = some_demand(n, keys, random);
            settle(wish, &first, &mut demand, &mut configs);
            check_holders(&first, &configs);
            prop_assert_eq!(configs.strategy_of(range.from()), spec);
            prop_assert_eq!(settle(wish, &first, &mut demand, &mut configs), 0);

            // Another leads, and looks at every key again.
            let second = situation(n, (leader + 1) % n as u8, random);
            demand.touch_all();
            let before = configs.unlisted(range.from());
            settle(wish, &second, &mut demand, &mut configs);
            check_holders(&second, &configs);
            if matches!(spec, StrategySpec::Leader) && n > 1 {
                prop_assert_ne!(configs.unlisted(range.from()), before);
            }
        }
    }

    #[test]
    fn quorum_lists_majorities_around_the_busiest_readers(seed: u64, n in 1usize..=7) {
        let random = &mut Pcg64::seed_from_u64(seed);
        let situation = situation(n, 0, random);
        let spec = StrategySpec::Quorum { unlisted: Unlisted::Nearest };
        let reads: Vec<u32> = (0..n).map(|_| random.random_range(1..100)).collect();
        let mut demand = Demand::new(n, 10);
        for (origin, count) in reads.iter().enumerate() {
            demand.add(&Key::from("k"), ReplicaId(origin as u8), *count, 0);
        }
        let mut configs = Configs::new(n);
        settle((&KeyRange::all(), &spec), &situation, &mut demand, &mut configs);
        let holders = configs.holders(b"k");
        prop_assert_eq!(holders.len(), n / 2 + 1);
        let least_in = holders.iter().filter(|r| *r != situation.leader);
        let least_in = least_in.map(|r| reads[r.index()]).min().unwrap_or(u32::MAX);
        for outside in ReplicaSet::all(n).minus(holders).iter() {
            prop_assert!(reads[outside.index()] <= least_in);
        }
    }
}

#[test]
fn a_large_demand_is_spread_over_bounded_entries() {
    let random = &mut Pcg64::seed_from_u64(7);
    let situation = situation(5, 0, random);
    let far = *situation.nearest.last().expect("five replicas");
    let mut demand = Demand::new(5, 100_000);
    for i in 0..2000u32 {
        // Long keys: the count alone would not bound the entry.
        let mut key = vec![b'x'; 4096];
        key.extend(i.to_be_bytes());
        demand.add(&Key::from(key), far, 1, 0);
    }
    let mut configs = Configs::new(5);
    let spec = StrategySpec::Quorum {
        unlisted: Unlisted::Nearest,
    };
    let rounds = settle(
        (&KeyRange::all(), &spec),
        &situation,
        &mut demand,
        &mut configs,
    );
    assert!(rounds > 4, "8 MiB of keys in {rounds} entries");
    assert_eq!(configs.listed_len(), 2000, "and none was left out");
}

#[test]
fn what_one_strategy_listed_does_not_outlive_it() {
    let random = &mut Pcg64::seed_from_u64(7);
    let situation = situation(5, 0, random);
    let mut configs = Configs::new(5);
    let quorum = StrategySpec::Quorum {
        unlisted: Unlisted::Leader,
    };
    let mut demand = Demand::new(5, 10);
    demand.add(&Key::from("k"), ReplicaId(4), 1, 0);
    settle(
        (&KeyRange::all(), &quorum),
        &situation,
        &mut demand,
        &mut configs,
    );
    assert!(configs.listed(b"k").is_some());
    settle(
        (&KeyRange::all(), &StrategySpec::None),
        &situation,
        &mut demand,
        &mut configs,
    );
    assert!(configs.holders(b"k").is_empty());
}

#[test]
fn a_new_leader_joins_the_holders_of_keys_nobody_reads_now() {
    let random = &mut Pcg64::seed_from_u64(7);
    let spec = StrategySpec::Quorum {
        unlisted: Unlisted::Nearest,
    };
    let mut configs = Configs::new(5);
    let mut demand = Demand::new(5, 10);
    for origin in [1, 2] {
        demand.add(&Key::from("k"), ReplicaId(origin), 9, 0);
    }
    let first = situation(5, 0, random);
    settle((&KeyRange::all(), &spec), &first, &mut demand, &mut configs);
    let before = configs.holders(b"k");
    let second = situation(5, 4, random);
    settle(
        (&KeyRange::all(), &spec),
        &second,
        &mut Demand::new(5, 10),
        &mut configs,
    );
    let after = configs.holders(b"k");
    assert!(after.contains(ReplicaId(4)) && after.len() == 3);
    assert_eq!(after.intersection(before).len(), 2, "as few move as can be");
}
