use ycsb::sample::{End, OpKind, Sample};

use super::*;
use crate::report::StrategyRun;

fn ran(name: &str, sets: &[&str]) -> Vec<Ran> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let experiment = Experiment::find(name).unwrap().with(&sets).unwrap();
    run(&experiment, &|_, _, _| ()).unwrap()
}

fn of_site(samples: &[Sample], site: u8) -> Vec<f64> {
    let of_site = samples.iter().filter(|sample| sample.site == site);
    of_site.map(|sample| sample.start_ns as f64 / 1e9).collect()
}

#[test]
fn all_sites_are_measured_from_one_moment_to_another() {
    // CA is three times as fast as IRL: with counts of its own it would have ended early.
    let sets = ["strategies=leader", "requests=60", "warmup=20", "clients=4"];
    let ran = ran("demo", &sets);
    let run = &ran[0].run;
    let measured = run.measured.unwrap();
    let slowest = of_site(&run.samples, 4);
    assert_eq!(slowest.first(), Some(&measured.start_s), "IRL begins it");
    for site in 0..5 {
        let starts = of_site(&run.samples, site);
        let (first, last) = (starts[0], starts[starts.len() - 1]);
        assert!(
            first - measured.start_s < 0.3,
            "{site}: {first} {measured:?}"
        );
        assert!(measured.end_s - last < 0.4, "{site}: {last} {measured:?}");
        assert!(
            starts
                .iter()
                .all(|at| (measured.start_s..measured.end_s).contains(at))
        );
    }
    let fast = of_site(&run.samples, 1).len();
    assert!(
        fast > 2 * slowest.len(),
        "{fast} at CA, {} at IRL",
        slowest.len()
    );
    // What was judged is all of it, and every write has a value of its own.
    assert!(ran[0].history.len() > run.samples.len());
    assert_eq!(run.linearizable.word(), "yes");
}

#[test]
fn an_open_loop_asks_equally_often_everywhere() {
    let sets = ["strategies=leader", "rate=40", "warmup_s=2", "seconds=5"];
    let ran = ran("demo", &sets);
    let run = &ran[0].run;
    let measured = run.measured.unwrap();
    assert!((measured.end_s - measured.start_s - 5.0).abs() < 1e-6);
    for site in 0..5 {
        assert_eq!(
            of_site(&run.samples, site).len(),
            200,
            "40 a second for 5 s"
        );
    }
    assert!(run.samples.iter().all(|sample| sample.end == End::Ok));
    assert_eq!(run.linearizable.word(), "yes");
}

#[test]
fn a_cap_on_operations_in_flight_is_counted_and_latency_includes_the_wait() {
    let sets = ["strategies=leader", "rate=100", "warmup_s=1", "seconds=2"];
    let free = ran("demo", &sets);
    let capped: Vec<&str> = sets
        .iter()
        .copied()
        .chain(["workload.outstanding=5"])
        .collect();
    let capped = ran("demo", &capped);
    assert_eq!(free[0].run.notes, [] as [String; 0]);
    let notes = capped[0].run.notes.join("; ");
    assert!(
        notes.contains("sent later than due") && notes.contains("IRL"),
        "{notes}"
    );
    assert_eq!(
        capped[0].run.samples.len(),
        free[0].run.samples.len(),
        "none is dropped"
    );
    let slowest = |ran: &[Ran]| ran[0].run.samples.iter().map(|s| s.latency_ns).max();
    assert!(slowest(&capped) > slowest(&free));
}

#[test]
fn the_same_seed_is_the_same_run() {
    let sets = [
        "strategies=quorum",
        "rate=20",
        "seconds=2",
        "network.loss=0.05",
    ];
    let shape = |ran: Vec<Ran>| -> Vec<(u64, u64)> {
        let samples = ran[0].run.samples.iter();
        samples.map(|s| (s.start_ns, s.latency_ns)).collect()
    };
    assert_eq!(shape(ran("demo", &sets)), shape(ran("demo", &sets)));
}

const CA: u8 = 1;

/// Longest time in s that an operation of a site took, of those that were in flight after a
/// fault began, whose key was leased to a failed site or was not.
fn longest_s(run: &StrategyRun, site: u8, kind: OpKind, leased: bool) -> f64 {
    let fault = &run.faults[0];
    let after_ns = (fault.at_s * 1e9) as u64;
    let operations = run.samples.iter().zip(&run.leased_to);
    let meant = operations.filter(|(sample, held)| {
        sample.site == site
            && sample.kind == kind
            && sample.start_ns + sample.latency_ns > after_ns
            && held.meets(fault.sites) == leased
    });
    meant
        .map(|(sample, _)| sample.latency_ns as f64 / 1e9)
        .fold(0.0, f64::max)
}

#[test]
fn a_dead_holder_stalls_its_keys_within_the_bound_and_no_others() {
    let ran = ran(
        "fig7",
        &["keys=200", "warmup_s=12", "lease.reconfigure_ms=4000"],
    );
    let run = &ran[0].run;
    let fault = &run.faults[0];
    let measured = run.measured.unwrap();
    assert!((fault.at_s - measured.start_s - 10.0).abs() < 1e-9);
    assert!(
        fault.text.starts_with("kill ") && fault.text.ends_with("(holder)"),
        "{}",
        fault.text
    );
    assert!(!fault.sites.contains(usize::from(CA)), "the leader lives");
    let bound = fault.bounds[usize::from(CA)];
    let stalled = longest_s(run, CA, OpKind::Update, true);
    assert!(
        stalled > 5.0 && stalled <= bound.leased_writes_s.unwrap(),
        "{stalled} {bound:?}"
    );
    for (site, bound) in (0..).zip(&fault.bounds) {
        if !fault.sites.contains(usize::from(site)) {
            let others = longest_s(run, site, OpKind::Update, false);
            assert!(
                others <= bound.other_writes_s.unwrap(),
                "{site}: {others} {bound:?}"
            );
            let others = longest_s(run, site, OpKind::Read, false);
            assert!(
                others <= bound.other_reads_s.unwrap(),
                "{site}: {others} {bound:?}"
            );
        }
    }
    // Clients of the dead site went elsewhere.
    assert!(run.samples.iter().all(|sample| sample.end == End::Ok));
    assert_eq!(run.linearizable.word(), "yes");
    assert!(
        run.notes.iter().any(|note| note.contains("read once more")),
        "{:?}",
        run.notes
    );
}
