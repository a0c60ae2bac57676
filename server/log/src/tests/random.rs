//! Random writes, crashes and restarts, compared with a model.

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::*;

/// Draws records of slots above `base`. If `far` is true, some slots are far apart.
fn draw(rng: &mut Pcg64Mcg, base: Slot, far: bool) -> Vec<Record> {
    let records = rng.random_range(1..6);
    let mut out = Vec::new();
    for _ in 0..records {
        let log = LogId::ALL[rng.random_range(0..2)];
        let distance = if far && rng.random_bool(0.25) { 40 } else { 0 };
        let slot = base.0 + 1 + (rng.random_range(0..40) << distance);
        match rng.random_range(0..10) {
            0 => out.extend(facts(rng.random_range(0..20))),
            1 | 2 => out.push(Record::Erased {
                log,
                slot: Slot(slot),
            }),
            _ => {
                let bytes = rng.random_range(0..2000);
                out.push(accepted(log, slot, rng.random_range(0..9), bytes));
            }
        }
    }
    out
}

fn run(seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let segment_bytes = [4096, 16384, 65536][rng.random_range(0..3)];
    let mut written = Written::new(segment_bytes);
    let (mut whole, mut torn) = (0, 0);
    for _ in 0..60 {
        let records = draw(&mut rng, written.truncated, seed.is_multiple_of(2));
        let chance = rng.random_range(0..8);
        if chance > 0 {
            written.write(&records);
            if chance == 1 {
                written.truncate(written.truncated.0 + rng.random_range(0..40));
            }
            continue;
        }
        let write = written.log.plan(&records, Vec::new()).unwrap();
        written.disk.write(&write);
        let lost = [0.0, 0.1, 0.5, 1.0][rng.random_range(0..4)];
        written.disk.crash(|| !rng.random_bool(lost));
        let mut before = written.contents.clone();
        let mut after = before.clone();
        after.apply(&records);
        written.restart().unwrap();
        let incarnation = written.contents.facts.incarnation;
        before.facts.incarnation = incarnation;
        after.facts.incarnation = incarnation;
        assert!(
            [&before, &after].contains(&&written.contents),
            "seed {seed}"
        );
        if written.contents == after {
            whole += 1
        } else {
            torn += 1
        }
    }
    assert!(whole + torn > 0 || seed > 0);
    assert!(written.removed > 0 || seed != 1, "segments are removed");
}

#[test]
fn random_logs_are_recovered_as_they_were_written() {
    (0..400).for_each(run);
}
