//! Tests that counts fade, that memory is bounded, and that keys are forgotten if clients no longer
//! request them.

use super::*;
use crate::demand::Delta;
use crate::types::Key;

const SECOND: Duration = Duration::from_secs(1);

fn reads(key: impl Into<Key>, reads: u32) -> TallyReport {
    let delta = Delta {
        key: key.into(),
        reads,
        writes: 0,
    };
    TallyReport {
        deltas: vec![delta],
        ..TallyReport::default()
    }
}

fn census(demand: &Demand) -> Census {
    let mut census = Census::default();
    for place in 0..demand.len() {
        census.add(demand.row(place).expect("below the length").1);
    }
    census
}

#[test]
fn counts_fade_by_half_in_a_half_life() {
    let mut demand = Demand::new(Time::ZERO, 2, 1 << 20);
    demand.report(Time::ZERO, ReplicaId(1), &reads("a", 800));
    let mut now = Time::ZERO;
    while now < Time::ZERO + HALF_LIFE {
        now = now + SECOND * 10;
        demand.age(now, &census(&demand));
    }
    let count = demand.get(b"a").expect("known").count(ReplicaId(1));
    assert!((count.reads - 400.0).abs() < 4.0, "{count:?}");
}

#[test]
fn memory_is_bounded_and_busy_keys_survive() {
    let mut demand = Demand::new(Time::ZERO, 2, 10_000);
    demand.report(Time::ZERO, ReplicaId(1), &reads("hot", 1 << 20));
    for i in 0..1000_u32 {
        let key = i.to_be_bytes().to_vec();
        demand.report(Time::ZERO, ReplicaId(0), &reads(key, 1));
        demand.check();
    }
    assert!(demand.len() > 50 && demand.bytes() <= 10_000);
    let hot = demand.get(b"hot").expect("it has most operations");
    assert_eq!(hot.count(ReplicaId(1)).reads, (1 << 20) as f32);
    assert_eq!(demand.hottest(), Some(b"hot".as_slice()));
}

/// The hottest key is the key with the most operations, as long as no clients begin to request
/// other keys. It is found without a search of all keys.
#[test]
fn the_hottest_key_is_the_one_with_most_operations() {
    let mut demand = Demand::new(Time::ZERO, 3, 4_000);
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 33) % below
    };
    for at in 0..20_000_u64 {
        let key = format!("{}", random(60).min(random(60)));
        let origin = ReplicaId(random(3) as u8);
        demand.add(key.as_bytes(), origin.index(), random(5) as u32, 1);
        if at % 1000 == 0 {
            demand.age(Time::ZERO + Duration::from_secs(at), &Census::default());
        }
        let rows = (0..demand.len()).filter_map(|place| demand.row(place));
        let most = rows.map(|(_, row)| row.operations()).fold(0.0, f32::max);
        let hottest = demand.hottest().and_then(|key| demand.get(key));
        let found = hottest.expect("it is remembered").operations();
        assert!(found >= most * 0.999, "{found} of {most} at {at}");
    }
}

#[test]
fn an_origin_outside_the_cluster_counts_nothing() {
    let mut demand = Demand::new(Time::ZERO, 2, 1 << 20);
    demand.report(Time::ZERO, ReplicaId(7), &reads("k", 1));
    assert!(demand.is_empty());
}

#[test]
fn scaling_changes_no_count() {
    let mut demand = Demand::new(Time::ZERO, 1, 1 << 20);
    demand.report(Time::ZERO, ReplicaId(0), &reads("a", 1000));
    demand.origins[0].weight *= 8.0;
    let before = demand.get(b"a").expect("known").count(ReplicaId(0));
    demand.origins[0].weight *= WEIGHT_MAX;
    demand.scale_if_heavy(0);
    assert_eq!(demand.origins[0].weight, 1.0);
    let after = demand.get(b"a").expect("known").count(ReplicaId(0));
    assert!((after.reads * WEIGHT_MAX / before.reads - 1.0).abs() < 1e-3);
}

/// Clients of one origin stop requesting one set of keys and begin to request another. The old keys
/// lose their counts as soon as this change is clear. If the clients of an origin keep their
/// habits, the keys of this origin keep their counts.
#[test]
fn when_clients_turn_to_other_keys_the_old_ones_are_forgotten() {
    let mut demand = Demand::new(Time::ZERO, 2, 1 << 20);
    let mut now = Time::ZERO;
    let mut round = |demand: &mut Demand, name: &str| {
        now = now + SECOND;
        let mut shifted = false;
        for origin in [ReplicaId(0), ReplicaId(1)] {
            let name = if origin == ReplicaId(0) { name } else { "same" };
            let delta = |i: u32| Delta {
                key: format!("{name}{i}").into(),
                reads: 10,
                writes: 0,
            };
            let deltas = (0..20).map(delta).collect();
            let report = TallyReport {
                deltas,
                ..TallyReport::default()
            };
            shifted |= demand.report(now, origin, &report);
        }
        shifted
    };
    for _ in 0..20 {
        assert!(!round(&mut demand, "old"));
    }
    assert!(round(&mut demand, "new"));
    let count = |key: &str, origin| {
        let row = demand.get(key.as_bytes()).expect("known");
        row.count(origin).reads
    };
    assert!(count("old0", ReplicaId(0)) < 1.0);
    assert_eq!(count("same0", ReplicaId(1)), 210.0);
}
