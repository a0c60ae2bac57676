//! Longest single insertion into a map that grows to 4 million keys, and cost of a lookup in such a
//! map, compared with the standard map.
//!
//! The mean time of an insertion says nothing about an insertion into a full map. So the time
//! reported for `longest insertion` is that of the slowest of the 4 million insertions. It is
//! processor time, so interruptions by other programs are not included.

#![allow(clippy::disallowed_methods)] // a program: processor time

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, SamplingMode, criterion_group, criterion_main};
use foldhash::fast::FixedState;
use leasehold_leases::growing::{GrowingIndexMap, GrowingMap};
use rustix::time::{ClockId, clock_gettime};

/// A value of about the size that a replica stores for a key.
type Value = [u64; 8];

type Standard = HashMap<Bytes, Value, FixedState>;

const LARGE: u64 = 4_000_000;
const LOOKED_UP: u64 = 1_000_000;

fn key(i: u64) -> Bytes {
    Bytes::from(format!("user{i:012}"))
}

/// Returns the processor time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the time of the slowest insertion of keys into an empty map.
fn longest(mut insert: impl FnMut(Bytes)) -> Duration {
    let timed = |i| {
        let key = key(i);
        let start = cpu();
        insert(key);
        cpu() - start
    };
    (0..LARGE).map(timed).max().unwrap_or_default()
}

fn insertions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("longest insertion of 4 million keys");
    group
        .sampling_mode(SamplingMode::Flat)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(1));
    let mut bench = |name, once: fn() -> Duration| {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| (0..times).map(|_| once()).sum())
        });
    };
    bench("HashMap", || {
        let mut map = Standard::default();
        longest(|key| assert!(map.insert(key, Value::default()).is_none()))
    });
    bench("GrowingMap", || {
        let mut map = GrowingMap::default();
        longest(|key| assert!(map.insert(key, Value::default()).is_none()))
    });
    bench("GrowingIndexMap", || {
        let mut map = GrowingIndexMap::default();
        longest(|key| assert!(map.insert_full(key, Value::default()).1.is_none()))
    });
}

fn lookups(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lookup among a million keys");
    let keys: Vec<Bytes> = (0..LOOKED_UP).map(key).collect();
    let entries = || keys.iter().map(|key| (key.clone(), Value::default()));
    // The stride has no common factor with the number of keys, so all keys are visited, and the
    // memory of a visited key is not in a cache.
    let mut at = 0;
    let mut next = || {
        at = (at + 7919) % keys.len();
        &keys[at]
    };
    let standard: Standard = entries().collect();
    group.bench_function("HashMap", |bencher| {
        bencher.iter(|| standard.get(black_box(next())))
    });
    drop(standard);
    let mut growing = GrowingMap::default();
    for (key, value) in entries() {
        growing.insert(key, value);
    }
    group.bench_function("GrowingMap", |bencher| {
        bencher.iter(|| growing.get(black_box(next())))
    });
    drop(growing);
    let mut places = GrowingIndexMap::default();
    for (key, value) in entries() {
        places.insert_full(key, value);
    }
    group.bench_function("GrowingIndexMap", |bencher| {
        bencher.iter(|| places.get(black_box(next())))
    });
}

criterion_group!(benches, lookups, insertions);
criterion_main!(benches);
