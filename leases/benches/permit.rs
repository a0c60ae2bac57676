//! Cost of the lease engine's two operations that every request needs: the permit for a local read,
//! and the tag of an acceptance.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use leasehold_leases::{
    ConfigChange, ConfigId, Configs, Grantor, Holder, Incarnation, PollContext, ReplicaId,
    ReplicaSet, Slot, Time,
};

const REPLICAS: usize = 5;
const KEYS: usize = 100_000;
const H: ReplicaId = ReplicaId(0);

fn keys() -> Vec<Bytes> {
    (0..KEYS)
        .map(|i| Bytes::from(format!("user{i:016}")))
        .collect()
}

/// Returns configurations in which every key is listed. The holders of each key are a majority, and
/// successive keys have different majorities.
fn configs(keys: &[Bytes]) -> Configs {
    let mut change = ConfigChange::everywhere(ReplicaSet::all(3));
    for turn in 0..REPLICAS {
        let holders = [0, turn, (turn + 1) % REPLICAS, (turn + 2) % REPLICAS];
        let holders = holders.iter().map(|id| ReplicaId(*id as u8)).collect();
        let own = keys.iter().skip(turn).step_by(REPLICAS).cloned().collect();
        change.keys.push((holders, own));
    }
    let mut configs = Configs::new(REPLICAS);
    configs.apply(ConfigId(1), &change);
    configs
}

/// Exchanges guard, ack, promise and ack between every two replicas. Returns the grantors and
/// holders of all replicas.
fn granted(configs: &Configs) -> (Vec<Grantor>, Vec<Holder>) {
    let ids = || (0..REPLICAS as u8).map(ReplicaId);
    let mut grantors: Vec<Grantor> = ids()
        .map(|id| Grantor::new(id, REPLICAS, Time::ZERO, None))
        .collect();
    let mut holders: Vec<Holder> = ids().map(|id| Holder::new(id, REPLICAS)).collect();
    for me in ids() {
        for other in ids().filter(|other| *other != me) {
            grantors[me.index()].observe_incarnation(Time::ZERO, other, Incarnation(1));
            holders[me.index()].observe_incarnation(other, Incarnation(1));
        }
    }
    let context = PollContext {
        configs,
        highest_accepted: Slot::ZERO,
        may_promise: true,
        quiet_after: std::time::Duration::MAX,
    };
    for _ in 0..2 {
        for me in ids() {
            let grantor = &mut grantors[me.index()];
            grantor.wait_persisted(configs.params(ConfigId(1)).restart_wait());
            let mut out = Vec::new();
            grantor.poll(Time::ZERO, &context, &mut out);
            for (to, message) in out {
                let holder = &mut holders[to.index()];
                let ack = holder.handle(Time::ZERO, me, &message, ConfigId(1));
                grantor.handle(
                    Time::ZERO,
                    to,
                    &ack.expect("a holder acknowledges every message"),
                );
            }
        }
    }
    (grantors, holders)
}

fn permits(criterion: &mut Criterion) {
    let keys = keys();
    let configs = configs(&keys);
    let (grantors, holders) = granted(&configs);
    let (now, newest) = (Time(1_000_000), ConfigId(1));
    let holder = &holders[H.index()];
    // The stride has no common factor with the number of keys, so all keys are visited, and the
    // memory of a visited key is not in a cache.
    let mut at = 0;
    let mut next = || {
        at = (at + 61_803) % KEYS;
        &keys[at]
    };
    assert!(
        holder
            .permit(now, configs.view(&keys[0]), newest, Slot::ZERO)
            .is_ok()
    );
    // Part of the next benchmark's time: the lookup of a key with memory that was not accessed
    // recently.
    criterion.bench_function("holders, one of 100k listed keys", |bench| {
        bench.iter(|| black_box(configs.view(next()).holders(newest)));
    });
    criterion.bench_function("permit, one of 100k listed keys", |bench| {
        bench.iter(|| black_box(holder.permit(now, configs.view(next()), newest, Slot::ZERO)));
    });
    criterion.bench_function("permit, the same key again", |bench| {
        bench.iter(|| {
            let view = configs.view(black_box(&keys[0]));
            black_box(holder.permit(now, view, newest, Slot::ZERO))
        });
    });
    let live = grantors[1].live(now);
    criterion.bench_function("tag of one key", |bench| {
        bench.iter(|| black_box(live.tag([configs.view(next())].into_iter())));
    });
    criterion.bench_function("live grants", |bench| {
        bench.iter(|| black_box(grantors[1].live(black_box(now))));
    });
}

criterion_group!(benches, permits);
criterion_main!(benches);
