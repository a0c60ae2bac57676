//! Simulated seeds: a contended workload over a bad network, under every
//! strategy. `LEASEHOLD_SEEDS` says how many (default 300), `LEASEHOLD_SEED_FROM`
//! where to start, `LEASEHOLD_SECONDS` how much virtual time each takes.

use std::time::Duration;

use leases::{Key, KeyRange, LeaseParams, ReplicaId, ReplicaSet, StrategySpec, Unlisted};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use server::replica::Settings;
use server::replica::settings::AcceptReplies;
use server::sim::contended::{Contention, Outcomes, run};
use server::sim::network::Faults;
use server::sim::world::WorldSettings;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn strategies() -> [StrategySpec; 6] {
    let set = |ids: &[u8]| ids.iter().copied().map(ReplicaId).collect::<ReplicaSet>();
    let range = |from: &str, ids: &[u8]| KeyRange {
        from: Key::copy_from_slice(from.as_bytes()),
        holders: set(ids),
    };
    [
        StrategySpec::None,
        StrategySpec::Leader,
        StrategySpec::All,
        StrategySpec::Quorum {
            unlisted: Unlisted::Nearest,
        },
        StrategySpec::Quorum {
            unlisted: Unlisted::Leader,
        },
        StrategySpec::Fixed {
            ranges: vec![range("", &[0, 1]), range("key0004", &[0, 1, 2])],
        },
    ]
}

/// Everything about a run, drawn from its seed (swarm: each draws its own faults).
fn draw(seed: u64, run_ns: u64) -> (WorldSettings, Contention) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let n = [3, 5, 5, 5, 4][rng.random_range(0..5)];
    let ms = Duration::from_millis;
    let mut replica = Settings::new(ReplicaId(0), n);
    replica.strategy = strategies()[(seed % 6) as usize].clone();
    let lease = rng.random_range(300..2500);
    replica.params = LeaseParams {
        t_lease: ms(lease),
        t_guard: ms(rng.random_range(400..2000)),
        renew: ms(rng.random_range(50..lease / 2)),
        t_grace: ms(rng.random_range(1500..5000)),
        ..LeaseParams::default()
    };
    replica.timing.reconfigure = ms(rng.random_range(500..5000));
    replica.timing.report = ms(rng.random_range(100..800));
    replica.preferred_leader = (rng.random::<f64>() < 0.5).then_some(ReplicaId(1));
    replica.accept_replies = [
        AcceptReplies::Origin,
        AcceptReplies::Leader,
        AcceptReplies::All,
    ][rng.random_range(0..3)];
    let mut link = || rng.random_range(200_000..120_000_000u64);
    let mut one_way_ns = vec![vec![50_000; n]; n];
    for a in 0..n {
        for b in 0..a {
            one_way_ns[a][b] = link();
            one_way_ns[b][a] = one_way_ns[a][b];
        }
    }
    let mut some = |most: f64| {
        if rng.random::<bool>() {
            rng.random::<f64>() * most
        } else {
            0.0
        }
    };
    let faults = Faults {
        loss: some(0.1),
        duplication: some(0.1),
        reordering: some(0.3),
        delay_max_ns: 1_500_000_000,
    };
    let world = WorldSettings {
        replica,
        one_way_ns,
        client_one_way_ns: 200_000,
        sync_ns: 150_000,
        faults,
        drift_ppm: 400,
        disks_remember: true,
        watched: true,
    };
    let contention = Contention {
        clients: rng.random_range(1..4),
        keys: rng.random_range(1..9),
        reads: rng.random_range(0.2..0.9),
        rare: [0.0, 0.1, 0.3][rng.random_range(0..3)],
        run_ns,
        think_ns: 50_000_000,
        patience_ns: 4_000_000_000,
    };
    (world, contention)
}

fn one(seed: u64, run_ns: u64) -> Outcomes {
    let (world, contention) = draw(seed, run_ns);
    run(world, contention, seed)
}

#[test]
fn no_seed_violates_safety_or_gets_stuck() {
    let from = number("LEASEHOLD_SEED_FROM", 0);
    let seeds = number("LEASEHOLD_SEEDS", 300);
    let run_ns = number("LEASEHOLD_SECONDS", 30) * 1_000_000_000;
    let next = std::sync::atomic::AtomicU64::new(from);
    let (mut paths, mut answered) = (std::collections::BTreeMap::new(), 0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let results = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut all = Vec::new();
                    loop {
                        let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        if seed >= from + seeds {
                            return all;
                        }
                        let outcomes = std::panic::catch_unwind(|| one(seed, run_ns))
                            .unwrap_or_else(|_| panic!("seed {seed} violates safety: see above"));
                        assert!(
                            outcomes.verdict.is_linearizable(),
                            "seed {seed}: {:?}",
                            outcomes.verdict
                        );
                        assert_eq!(
                            outcomes.stuck, 0,
                            "seed {seed}: {} requests are stuck",
                            outcomes.stuck
                        );
                        all.push(outcomes);
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|w| w.join().expect("a worker failed: its seed is above"))
            .collect::<Vec<_>>()
    });
    for outcomes in &results {
        answered += outcomes.answered;
        for (path, count) in &outcomes.paths {
            *paths.entry(*path).or_insert(0) += count;
        }
        for (oracle, checks) in outcomes.checks {
            *paths.entry(oracle).or_insert(0) += checks;
        }
    }
    println!("{seeds} seeds from {from}, {answered} operations: {paths:?}");
    for served in [
        "LOCAL",
        "HELD",
        "FORWARDED",
        "READ_INDEX",
        "LOG",
        "agreement",
        "containment",
        "freshness",
    ] {
        assert!(
            paths.get(served).copied().unwrap_or(0) > 0,
            "nothing was {served}"
        );
    }
}

#[test]
fn a_seed_is_a_run() {
    for seed in 0..6 {
        assert_eq!(
            one(seed, 5_000_000_000).trace,
            one(seed, 5_000_000_000).trace
        );
    }
}
