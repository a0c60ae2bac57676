//! Runs every body with its seeds, and with inputs that are made from the seeds. These inputs are
//! the same in every run. cargo-fuzz searches endlessly; this test takes a short time, and runs
//! with the other tests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use leasehold_fuzz::mutate::Mutator;
use leasehold_fuzz::{TARGETS, Target, memory};

/// Number of inputs that are made for each body.
const INPUTS: usize = 20_000;
const SEED: u64 = 0x1EA5_E401;

/// Runs a body with an input. If the body fails, the input is stored.
fn run(target: Target, number: usize, input: &[u8]) {
    let body = AssertUnwindSafe(|| (target.body)(input));
    let Err(panic) = catch_unwind(body) else {
        return;
    };
    let file = format!("{}-{number}", target.name);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    std::fs::write(&file, input).unwrap();
    leasehold_ycsb::note!("input {number} of {} is in {}", target.name, file.display());
    std::panic::resume_unwind(panic);
}

fn bounded(name: &str) {
    let target = leasehold_fuzz::target(name);
    let mut seeds = (target.seeds)();
    assert!(!seeds.is_empty());
    seeds.extend(leasehold_fuzz::regressions(name).unwrap());
    for (number, seed) in seeds.iter().enumerate() {
        run(target, number, seed);
    }
    let known = seeds.len();
    let mut inputs = Mutator::new(seeds, SEED);
    for number in 0..INPUTS {
        run(target, known + number, &inputs.input());
    }
}

macro_rules! bodies {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            bounded(stringify!($name));
        })*

        #[test]
        fn every_body_is_run_here() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

bodies! {
    frames,
    client_to_server,
    server_to_client,
    peer,
    member,
    disk_values,
    disk_rows,
    log_segments,
    cluster_config,
    tokens,
    rights,
    session,
    topology,
    experiment,
    cluster_state,
    campaign_state,
    properties,
    length_histogram,
    interval_log,
    history,
    lock_packet,
}

#[test]
fn every_body_is_a_target_of_cargo_fuzz() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    for Target { name, .. } in TARGETS {
        let file = format!("fuzz_targets/{name}.rs");
        assert!(manifest.contains(&format!("path = \"{file}\"")), "{name}");
        assert!(folder.join(file).exists(), "{name}");
    }
}

/// Each list has as many elements as fit, and each element is as short as possible. Such messages
/// take the most memory for their number of bytes. Every field that could be a list is tried, two
/// levels deep.
#[test]
fn messages_full_of_empty_elements() {
    for name in [
        "client_to_server",
        "server_to_client",
        "peer",
        "disk_values",
    ] {
        let target = leasehold_fuzz::target(name);
        for (inner, element) in (1..=13).flat_map(|n| (1..=11).map(move |m| (n, m))) {
            let list = field(element, &[]).repeat(100_000);
            let message = field(inner, &list);
            run(target, 0, &message);
            for outer in [2, 3, 13, 14, 20, 21, 22, 24, 26] {
                run(target, 0, &field(outer, &message));
            }
        }
    }
}

/// Returns the encoded form of a field, including the length of `contents`.
fn field(number: u32, contents: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    prost::encoding::bytes::encode(number, &contents.to_vec(), &mut encoded);
    encoded
}

#[test]
fn a_decoder_that_believes_a_length_is_caught() {
    let believing = || memory::within(4, 8, || Vec::<u8>::with_capacity(4 << 20));
    assert!(catch_unwind(believing).is_err());
    let honest = memory::within(4, 8, || Vec::<u8>::with_capacity(1 << 10));
    assert!(honest.is_empty());
}

#[test]
fn inputs_are_the_same_in_every_run() {
    let seeds = || (leasehold_fuzz::target("peer").seeds)();
    let inputs = |seed| {
        let mut mutator = Mutator::new(seeds(), seed);
        (0..100).map(|_| mutator.input()).collect::<Vec<_>>()
    };
    assert_eq!(inputs(1), inputs(1));
    assert_ne!(inputs(1), inputs(2));
}
