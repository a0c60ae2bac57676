//! What seeds draw: worlds and workloads.

use std::time::Duration;

use leases::{Key, KeyRange, LeaseParams, ReplicaId, ReplicaSet, StrategySpec, Unlisted};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use server::replica::Settings;
use server::replica::settings::AcceptReplies;
use server::sim::contended::Contention;
use server::sim::network::Faults;
use server::sim::world::WorldSettings;

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Every strategy.
pub fn strategies() -> [StrategySpec; 6] {
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
pub fn draw(seed: u64, run_ns: u64) -> (WorldSettings, Contention) {
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
    let pairs = (0..n).flat_map(|a| (0..a).map(move |b| (a, b)));
    for (a, b) in pairs {
        one_way_ns[a][b] = link();
        one_way_ns[b][a] = one_way_ns[a][b];
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
        old: 0.0,
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

/// Runs `one` for every seed of the range, on all cores; in no order.
pub fn each<T: Send>(seeds: std::ops::Range<u64>, one: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut all = Vec::new();
        loop {
            let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if seed >= seeds.end {
                return all;
            }
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(seed)));
            all.push(outcome.unwrap_or_else(|_| panic!("seed {seed} fails: see above")));
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("a worker failed: its seed is above"))
            .collect()
    })
}
