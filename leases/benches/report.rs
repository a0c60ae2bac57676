//! Time that a replica's report of demand takes, with the maximum number of counted keys. A report
//! is one step.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use leasehold_leases::demand::Tally;

/// Number of keys. This is more than a tally can count.
const KEYS: u64 = 200_000;

/// Returns a tally after every key was read. Some keys were read often.
fn tally() -> Tally {
    let mut tally = Tally::new(16 << 20);
    for key in 0..KEYS {
        let name = format!("user{key:012}");
        let reads = KEYS / (1 + key.wrapping_mul(7919) % KEYS);
        (0..=reads.min(50)).for_each(|_| tally.read(name.as_bytes()));
    }
    tally
}

fn report(c: &mut Criterion) {
    let tally = tally();
    let mut group = c.benchmark_group("a report of 50 KB");
    group.sample_size(20);
    group.bench_function("of a full tally", |b| {
        let report = |mut tally: Tally| {
            let report = tally.report(50_000);
            (tally, report)
        };
        b.iter_batched(|| tally.clone(), report, BatchSize::PerIteration);
    });
}

criterion_group!(benches, report);
criterion_main!(benches);
