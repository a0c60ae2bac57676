//! Measures the cost of one random number. The simulator needs hundreds of millions of them.

use criterion::{Criterion, criterion_group, criterion_main};
use leasehold_ycsb::generator::{Permutation, Random, ScrambledZipfian, ZipfExact, Zipfian};
use leasehold_ycsb::{Popularity, Requests, SiteStream};
use std::hint::black_box;

fn draws(c: &mut Criterion) {
    let mut random = Random::new(1, &[]);
    let zipfian = Zipfian::new(0, 100_000, 0.99);
    c.bench_function("zipfian (formula)", |b| {
        b.iter(|| zipfian.draw(&mut random))
    });
    let scrambled = ScrambledZipfian::new(0, 100_000);
    c.bench_function("zipfian (scrambled)", |b| {
        b.iter(|| scrambled.draw(&mut random))
    });
    let exact = ZipfExact::new(100_000, 0.99);
    c.bench_function("zipfian_exact", |b| b.iter(|| exact.draw(&mut random)));
    let order = Permutation::new(100_000, 1);
    let mut index = 0;
    c.bench_function("permutation", |b| {
        b.iter(|| {
            index = (index + 1) % 100_000;
            order.apply(black_box(index))
        })
    });
    let requests = Requests {
        keys: 100_000,
        popularity: Popularity::Zipf(0.99),
        reads: 0.9,
        seed: 1,
    };
    let mut stream = SiteStream::new(&requests, 1, 1);
    c.bench_function("site stream", |b| b.iter(|| stream.next()));
}

fn set_up(c: &mut Criterion) {
    c.bench_function("zipfian of a billion, set-up", |b| {
        b.iter(|| Zipfian::new(0, black_box(1_000_000_000), 0.99))
    });
    c.bench_function("zipfian_exact of a billion, set-up", |b| {
        b.iter(|| ZipfExact::new(black_box(1_000_000_000), 0.99))
    });
}

criterion_group!(benches, draws, set_up);
criterion_main!(benches);
