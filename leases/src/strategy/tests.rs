//! Tests of the contract that every strategy satisfies. For any demand and any leader, a strategy
//! chooses replicas that exist, keeps the leader among the holders, makes a bounded number of
//! changes in each step, and stops making changes.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::{KEYS_A_CONFIGURATION, Situation, StrategySpec, Survey, SurveyResult, UnlistedHolders};
use crate::config::{ConfigChange, Configs, CostSettings, KeyRange, RangeChange};
use crate::demand::{Delta, Demand, TallyReport};
use crate::latency::{Replies, RoundTrips};
use crate::time::Time;
use crate::types::{ConfigId, Key, ReplicaId, ReplicaSet};

/// Maximum number of proposals. It is more than any demand in these tests needs.
const ROUNDS_MAX: usize = 64;

/// Maximum size of the keys in a configuration of these tests, in bytes.
const BYTES_MAX: usize = 1 << 20;

fn specs(n: usize) -> Vec<StrategySpec> {
    vec![
        StrategySpec::None,
        StrategySpec::Leader,
        StrategySpec::All,
        StrategySpec::Quorum {
            unlisted: UnlistedHolders::Leader,
        },
        StrategySpec::Quorum {
            unlisted: UnlistedHolders::Nearest,
        },
        StrategySpec::Cost(CostSettings::default()),
        StrategySpec::Cost(CostSettings::from_thousandths(900, 1, false)),
        StrategySpec::Fixed { holders: None },
        // A set that the operator chooses may omit the leader. The contract requires the leader,
        // whichever replica leads, so choose all replicas.
        StrategySpec::Fixed {
            holders: Some(ReplicaSet::all(n)),
        },
    ]
}

/// Returns the range of all keys, and two smaller ranges.
fn ranges() -> [KeyRange; 3] {
    let range = |from: &'static str, to: &'static str| {
        KeyRange::new(Key::from(from), Some(Key::from(to))).expect("some keys")
    };
    [KeyRange::all(), range("key1", "key2"), range("f", "key15")]
}

fn situation(n: usize, leader: u8, random: &mut Pcg64) -> Situation {
    let cells: Vec<f64> = (0..n * n)
        .map(|_| random.random_range(1.0..300.0))
        .collect();
    let rtts = RoundTrips::new(n, |a, b| cells[a.min(b) * n + a.max(b)]);
    Situation::new(ReplicaId(leader), rtts, Replies::LeaderAndOrigin)
}

fn no_demand(n: usize) -> Demand {
    Demand::new(Time::ZERO, n, 64 << 20)
}

fn ask(demand: &mut Demand, key: &Key, origin: u8, reads: u32, writes: u32) {
    let delta = Delta {
        key: key.clone(),
        reads,
        writes,
    };
    let report = TallyReport {
        deltas: vec![delta],
        ..TallyReport::default()
    };
    demand.report(Time::ZERO, ReplicaId(origin), &report);
}

fn some_demand(n: usize, keys: usize, random: &mut Pcg64) -> Demand {
    let mut demand = no_demand(n);
    for _ in 0..keys {
        let key = Key::from(format!("key{}", random.random_range(0..keys)));
        let origin = random.random_range(0..n) as u8;
        let (reads, writes) = (random.random_range(0..5), random.random_range(0..5));
        ask(&mut demand, &key, origin, reads, writes);
    }
    demand
}

/// Makes a whole pass, and returns its result.
fn survey(
    change: ConfigChange,
    situation: &Situation,
    demand: &Demand,
    configs: &Configs,
) -> SurveyResult {
    let mut survey = Survey::begin(change, situation.clone(), demand, configs, None);
    while !survey.look(demand, configs, 7) {}
    survey.finish(configs, BYTES_MAX)
}

/// Makes `spec` the strategy of `range`, and applies proposals until the strategies make no more
/// changes. Returns the number of proposals.
fn settle(
    range: &KeyRange,
    spec: &StrategySpec,
    situation: &Situation,
    demand: &Demand,
    configs: &mut Configs,
) -> usize {
    let mut change = ConfigChange::default();
    if configs.strategy_of(range.from()) != spec {
        change
            .ranges
            .push(RangeChange::strategy(range.clone(), spec.clone()));
    }
    for round in 0..ROUNDS_MAX {
        let SurveyResult {
            change, remaining, ..
        } = survey(std::mem::take(&mut change), situation, demand, configs);
        if change == ConfigChange::default() {
            assert!(
                remaining.is_none(),
                "{}: more, but nothing now",
                spec.name()
            );
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
    keys().count() <= KEYS_A_CONFIGURATION
        && keys().map(|key| key.len()).sum::<usize>() <= BYTES_MAX
}

/// Checks all sets of holders: those of listed keys, and those of unlisted keys in each range.
fn check_holders(situation: &Situation, configs: &Configs) {
    let named = (0..40).map(|i| format!("key{i}"));
    let others = ["", "a", "f", "g", "p", "z"].map(String::from);
    for key in named.chain(others) {
        let holders = configs.holders(key.as_bytes());
        let spec = configs.strategy_of(key.as_bytes());
        assert!(
            holders.is_subset(situation.members().voters()),
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
        // Apply all strategies in turn to one history, so that each begins with the result of
        // another, as when an operator changes the strategy of a running cluster.
        let mut configs = Configs::new(n);
        for (spec, range) in specs(n).iter().flat_map(|spec| ranges().map(|r| (spec, r))) {
            let leader = random.random_range(0..n) as u8;
            let first = situation(n, leader, random);
            let demand = some_demand(n, keys, random);
            settle(&range, spec, &first, &demand, &mut configs);
            check_holders(&first, &configs);
            prop_assert_eq!(configs.strategy_of(range.from()), spec);
            prop_assert_eq!(settle(&range, spec, &first, &demand, &mut configs), 0);

            // Another replica leads, and the strategy chooses again.
            let second = situation(n, (leader + 1) % n as u8, random);
            let before = configs.unlisted(range.from());
            settle(&range, spec, &second, &demand, &mut configs);
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
        let spec = StrategySpec::Quorum { unlisted: UnlistedHolders::Nearest };
        let reads: Vec<u32> = (0..n).map(|_| random.random_range(1..100)).collect();
        let mut demand = no_demand(n);
        for (origin, count) in reads.iter().enumerate() {
            ask(&mut demand, &Key::from("k"), origin as u8, *count, 0);
        }
        let mut configs = Configs::new(n);
        settle(&KeyRange::all(), &spec, &situation, &demand, &mut configs);
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
    let mut demand = no_demand(5);
    for i in 0..2000u32 {
        // With long keys, a limit on their number would not limit the size of the entry.
        let mut key = vec![b'x'; 4096];
        key.extend(i.to_be_bytes());
        ask(&mut demand, &Key::from(key), far.0, 1, 0);
    }
    let mut configs = Configs::new(5);
    let spec = StrategySpec::Quorum {
        unlisted: UnlistedHolders::Nearest,
    };
    let rounds = settle(&KeyRange::all(), &spec, &situation, &demand, &mut configs);
    assert!(rounds > 4, "8 MiB of keys in {rounds} entries");
    assert_eq!(configs.listed_len(), 2000, "and none was left out");
}

#[test]
fn what_one_strategy_listed_does_not_outlive_it() {
    let random = &mut Pcg64::seed_from_u64(7);
    let situation = situation(5, 0, random);
    let mut configs = Configs::new(5);
    let quorum = StrategySpec::Quorum {
        unlisted: UnlistedHolders::Leader,
    };
    let mut demand = no_demand(5);
    ask(&mut demand, &Key::from("k"), 4, 1, 0);
    settle(&KeyRange::all(), &quorum, &situation, &demand, &mut configs);
    assert!(configs.listed(b"k").is_some());
    settle(
        &KeyRange::all(),
        &StrategySpec::None,
        &situation,
        &demand,
        &mut configs,
    );
    assert!(configs.holders(b"k").is_empty());
}

#[test]
fn a_new_leader_joins_the_holders_of_keys_nobody_reads_now() {
    let random = &mut Pcg64::seed_from_u64(7);
    let spec = StrategySpec::Quorum {
        unlisted: UnlistedHolders::Nearest,
    };
    let mut configs = Configs::new(5);
    let mut demand = no_demand(5);
    for origin in [1, 2] {
        ask(&mut demand, &Key::from("k"), origin, 9, 0);
    }
    let first = situation(5, 0, random);
    settle(&KeyRange::all(), &spec, &first, &demand, &mut configs);
    let before = configs.holders(b"k");
    let second = situation(5, 4, random);
    settle(
        &KeyRange::all(),
        &spec,
        &second,
        &no_demand(5),
        &mut configs,
    );
    let after = configs.holders(b"k");
    assert!(after.contains(ReplicaId(4)) && after.len() == 3);
    assert_eq!(after.intersection(before).len(), 2, "as few move as can be");
}

/// Regardless of the number of ranges, a step looks at no more keys than its limit.
#[test]
fn a_new_leader_looks_at_listed_keys_once_and_in_steps() {
    const KEYS: usize = 4000;
    const A_STEP: usize = 100;
    let spec = StrategySpec::Quorum {
        unlisted: UnlistedHolders::Nearest,
    };
    let key = |i: usize| Key::from(format!("{i:06}"));
    let range = |i: usize| KeyRange::new(key(i * 50), None).expect("some keys");
    let mut configs = Configs::new(5);
    let mut listing = everywhere(&spec);
    // Neighbouring ranges differ, because equal ones would become one range.
    listing.ranges.extend((0..100).map(|i| RangeChange {
        defaults: Some(set(&[1, 2, 3 + (i % 2) as u8])),
        ..RangeChange::nothing(range(i))
    }));
    listing.keys = vec![(set(&[0, 1, 4]), (0..KEYS).map(key).collect())];
    configs.apply(ConfigId(1), &listing);
    let demand = no_demand(5);
    let mut pass = Survey::begin(ConfigChange::default(), paper(2), &demand, &configs, None);
    let mut steps = 1;
    while !pass.look(&demand, &configs, A_STEP) {
        steps += 1;
    }
    assert_eq!(steps, KEYS / A_STEP);
    let change = pass.finish(&configs, BYTES_MAX).change;
    let enlisted = change.keys.iter().map(|(_, keys)| keys.len());
    assert_eq!(enlisted.sum::<usize>(), KEYS);
    configs.apply(ConfigId(2), &change);
    assert!(configs.universal(ConfigId(2)).contains(ReplicaId(2)));

    let mut again = Survey::begin(ConfigChange::default(), paper(2), &demand, &configs, None);
    assert!(again.look(&demand, &configs, A_STEP), "all have the leader");
    let found = again.finish(&configs, BYTES_MAX);
    assert_eq!(found.change, ConfigChange::default());
}

fn paper(leader: u8) -> Situation {
    let rtts = RoundTrips::paper();
    Situation::new(ReplicaId(leader), rtts, Replies::LeaderAndOrigin)
}

fn set(ids: &[u8]) -> ReplicaSet {
    ids.iter().copied().map(ReplicaId).collect()
}

fn everywhere(spec: &StrategySpec) -> ConfigChange {
    ConfigChange {
        ranges: vec![RangeChange::strategy(KeyRange::all(), spec.clone())],
        ..ConfigChange::default()
    }
}

/// The replicas are JP 0, CA 1 (leader), OR 2, VA 3 and IRL 4.
#[test]
fn quorum_gives_a_key_to_its_readers_and_fills_in_the_nearest() {
    let mut demand = no_demand(5);
    ask(&mut demand, &Key::from("k"), 4, 3, 0);
    ask(&mut demand, &Key::from("k"), 1, 9, 0);
    ask(&mut demand, &Key::from("near"), 2, 3, 0);
    ask(&mut demand, &Key::from("written"), 4, 0, 3);
    for (unlisted, others) in [
        (UnlistedHolders::Nearest, set(&[1, 2, 3])),
        (UnlistedHolders::Leader, set(&[1])),
    ] {
        let mut configs = Configs::new(5);
        let spec = StrategySpec::Quorum { unlisted };
        let result = survey(everywhere(&spec), &paper(1), &demand, &configs);
        configs.apply(ConfigId(1), &result.change);
        assert_eq!(configs.holders(b"k"), set(&[1, 2, 4]), "OR fills in");
        assert_eq!(configs.holders(b"near"), set(&[1, 2, 3]));
        assert_eq!(configs.holders(b"written"), others);
        assert_eq!(configs.holders(b"unread"), others);
        let listed = result.change.keys.iter().map(|(_, keys)| keys.len());
        let expected = if unlisted == UnlistedHolders::Nearest {
            1
        } else {
            2
        };
        assert_eq!(
            listed.sum::<usize>(),
            expected,
            "only what changes is listed"
        );
    }
}

#[test]
fn cost_gives_a_key_to_those_for_whom_it_pays() {
    let mut demand = no_demand(5);
    ask(&mut demand, &Key::from("japan"), 0, 50, 50);
    ask(&mut demand, &Key::from("read"), 0, 50, 0);
    ask(&mut demand, &Key::from("read"), 4, 50, 0);
    ask(&mut demand, &Key::from("written"), 0, 5, 0);
    ask(&mut demand, &Key::from("written"), 3, 0, 50);
    let mut configs = Configs::new(5);
    let spec = StrategySpec::Cost(CostSettings::from_thousandths(500, 0, false));
    settle(&KeyRange::all(), &spec, &paper(1), &demand, &mut configs);
    // Writes need OR's vote with any set of holders.
    assert_eq!(configs.holders(b"japan"), set(&[0, 1, 2]));
    assert!(set(&[0, 1, 4]).is_subset(configs.holders(b"read")));
    assert!(!configs.holders(b"written").contains(ReplicaId(0)));
}

/// If more keys must be listed than fit in one entry, no replica temporarily loses a key, because
/// replicas are removed from the defaults last.
#[test]
fn who_holds_a_key_before_and_after_a_switch_holds_it_all_the_time() {
    let mut demand = no_demand(5);
    let key = |i: u32| Key::from(format!("{i:08}"));
    for i in 0..50_000 {
        ask(&mut demand, &key(i), 4, 5, 0);
    }
    for spec in [
        StrategySpec::Quorum {
            unlisted: UnlistedHolders::Nearest,
        },
        StrategySpec::Cost(CostSettings::from_thousandths(500, 0, false)),
    ] {
        let mut configs = Configs::new(5);
        settle(
            &KeyRange::all(),
            &StrategySpec::All,
            &paper(1),
            &demand,
            &mut configs,
        );
        let mut change = everywhere(&spec);
        let mut entries = 0;
        loop {
            let result = survey(std::mem::take(&mut change), &paper(1), &demand, &configs);
            if result.change == ConfigChange::default() {
                break;
            }
            configs.apply(ConfigId(configs.newest().0 + 1), &result.change);
            for i in 0..50_000 {
                assert!(configs.holders(&key(i)).contains(ReplicaId(4)), "{i}");
            }
            entries += 1;
        }
        assert!(entries >= 3, "{entries} entries");
        assert_eq!(configs.unlisted(b""), set(&[1, 2, 3]));
    }
}

/// A set with more than the allowed number of holders is never chosen, regardless of its cost.
#[test]
fn spare_replicas_hold_nothing_whoever_held_before() {
    let mut demand = no_demand(5);
    for site in 0..5 {
        ask(&mut demand, &Key::from("read everywhere"), site, 50, 0);
    }
    for prior in [false, true] {
        let mut configs = Configs::new(5);
        let mut put = |spec: &StrategySpec| {
            settle(&KeyRange::all(), spec, &paper(1), &demand, &mut configs);
            let keys = [b"read everywhere".as_slice(), b"unread"];
            keys.map(|key| configs.holders(key).len())
        };
        assert_eq!(put(&StrategySpec::All), [5, 5]);
        for spare in 0..5 {
            let settings = CostSettings::from_thousandths(500, spare, prior);
            let most = 5 - usize::from(spare);
            let found = put(&StrategySpec::Cost(settings));
            assert!(
                found.iter().all(|holders| *holders <= most),
                "{spare}: {found:?}"
            );
        }
    }
}

/// If a silent replica became the holder of a key, reads of the key would be sent to it and might
/// wait for a dead replica.
#[test]
fn who_is_silent_is_given_no_further_keys() {
    let mut demand = no_demand(5);
    for key in ["held", "new"] {
        ask(&mut demand, &Key::from(key), 4, 50, 0);
    }
    let spec = StrategySpec::Quorum {
        unlisted: UnlistedHolders::Nearest,
    };
    let mut configs = Configs::new(5);
    let listing = ConfigChange {
        keys: vec![(set(&[1, 2, 4]), vec![Key::from("held")])],
        ..everywhere(&spec)
    };
    configs.apply(ConfigId(1), &listing);
    let mut situation = paper(1);
    situation.silent = set(&[4]);
    settle(&KeyRange::all(), &spec, &situation, &demand, &mut configs);
    assert_eq!(
        configs.holders(b"held"),
        set(&[1, 2, 4]),
        "it may come back"
    );
    assert!(!configs.holders(b"new").contains(ReplicaId(4)));
    settle(&KeyRange::all(), &spec, &paper(1), &demand, &mut configs);
    assert_eq!(configs.holders(b"new"), set(&[1, 2, 4]));
}
