//! Time of a leader's pass over a demand of a million keys. The pass takes less than 200 ms for
//! each strategy, in 245 steps.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use leasehold_leases::demand::{Delta, Demand, TallyReport};
use leasehold_leases::latency::{Replies, RoundTrips};
use leasehold_leases::{
    ConfigChange, ConfigId, Configs, CostSettings, Key, KeyRange, RangeChange, ReplicaId,
    Situation, StrategySpec, Survey, Time, UnlistedHolders,
};

const KEYS: u32 = 1_000_000;
const SITES: u8 = 5;

/// Returns a demand in which one site requests every key, and all sites request every hundredth
/// key.
fn demand() -> Demand {
    let mut demand = Demand::new(Time::ZERO, usize::from(SITES), 1 << 30);
    for site in 0..SITES {
        let of_site =
            |key: &u32| key % u32::from(SITES) == u32::from(site) || key.is_multiple_of(100);
        let delta = |key: u32| Delta {
            key: Key::from(format!("user{key:010}")),
            reads: 1 + key % 3,
            writes: key % 2,
        };
        let report = TallyReport {
            deltas: (0..KEYS).filter(of_site).map(delta).collect(),
            ..TallyReport::default()
        };
        demand.report(Time::ZERO, ReplicaId(site), &report);
    }
    demand
}

fn situation() -> Situation {
    Situation::new(ReplicaId(1), RoundTrips::paper(), Replies::LeaderAndOrigin)
}

fn pass(c: &mut Criterion) {
    let demand = demand();
    let mut group = c.benchmark_group("a pass over a million keys");
    group.sample_size(10);
    let unlisted = UnlistedHolders::Nearest;
    for spec in [
        StrategySpec::Leader,
        StrategySpec::Quorum { unlisted },
        StrategySpec::Cost(CostSettings::default()),
    ] {
        let mut configs = Configs::new(usize::from(SITES));
        let strategy = ConfigChange {
            ranges: vec![RangeChange::strategy(KeyRange::all(), spec.clone())],
            ..ConfigChange::default()
        };
        configs.apply(ConfigId(1), &strategy);
        group.bench_function(BenchmarkId::from_parameter(spec.name()), |b| {
            b.iter(|| {
                let nothing = ConfigChange::default();
                let mut survey = Survey::begin(nothing, situation(), &demand, &configs, None);
                while !survey.look(&demand, &configs, 4096) {}
                survey.finish(&configs, 50_000)
            });
        });
    }
}

criterion_group!(benches, pass);
criterion_main!(benches);
