use leasehold_ycsb::sample::{OpKind, OpOutcome, Sample};

use super::*;
use crate::run::{HistoryVerdict, StrategyRun};

fn ran(name: &str, sets: &[&str]) -> Vec<RunResult> {
    all_of(&experiment(name, sets)).unwrap()
}

fn all_of(experiment: &Experiment) -> anyhow::Result<Vec<RunResult>> {
    let mut ended = EndedRuns::default();
    let stop = AtomicBool::new(false);
    run(experiment, &|_, _, _| (), &stop, &mut ended)?;
    Ok(ended.joined())
}

fn experiment(name: &str, sets: &[&str]) -> Experiment {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Experiment::find(name).unwrap().with(&sets).unwrap()
}

#[test]
fn runs_that_ended_before_a_stop_are_kept() {
    let sets = [
        "strategies=leader,all",
        "requests=20",
        "warmup=5",
        "runs=200",
    ];
    let experiment = experiment("demo", &sets);
    let mut ended = EndedRuns::default();
    let stop = AtomicBool::new(false);
    let after_three = |_: &str, done, _| {
        if done == 3 {
            stop.store(true, Ordering::Relaxed);
        }
    };
    run(&experiment, &after_three, &stop, &mut ended).unwrap();
    let words = ended.shortfall(&experiment).unwrap();
    assert!(words.contains(" of 200, ML 0 of 200"), "{words}");
    let ran = ended.joined();
    assert_eq!(ran.len(), 1);
    let histories = ran[0].histories.len();
    assert!((3..100).contains(&histories), "{histories}");
    assert_eq!(ran[0].run.repeats.len(), histories);
}

fn of_site(samples: &[Sample], site: u8) -> Vec<f64> {
    let of_site = samples.iter().filter(|sample| sample.site == site);
    of_site.map(|sample| sample.start_ns as f64 / 1e9).collect()
}

#[test]
fn all_sites_are_measured_from_one_moment_to_another() {
    // CA is three times as fast as IRL: if each site had an interval of its own, CA's would have
    // ended earlier.
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
    // The judged history contains all operations, and every write has a value of its own.
    assert!(ran[0].histories[0].len() > run.samples.len());
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
    assert!(run.samples.iter().all(|sample| sample.end == OpOutcome::Ok));
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
    let slowest = |ran: &[RunResult]| ran[0].run.samples.iter().map(|s| s.latency_ns).max();
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
    let shape = |ran: Vec<RunResult>| -> Vec<(u64, u64)> {
        let samples = ran[0].run.samples.iter();
        samples.map(|s| (s.start_ns, s.latency_ns)).collect()
    };
    assert_eq!(shape(ran("demo", &sets)), shape(ran("demo", &sets)));
}

const CA: u8 = 1;

/// Returns the longest time in s that an operation of a site took, among the operations in flight
/// after a fault began. If `leased` is true, only operations on keys that were leased to a failed
/// site are considered; otherwise, only operations on other keys.
fn longest_s(run: &StrategyRun, site: u8, kind: OpKind, leased: bool) -> f64 {
    let fault = &run.faults[0];
    let after_ns = (fault.at_s * 1e9) as u64;
    let operations = run.samples.iter().zip(&run.leased_to);
    let meant = operations.filter(|(sample, held)| {
        sample.site == site
            && sample.kind == kind
            && sample.start_ns + sample.latency_ns > after_ns
            && held.intersects(fault.sites) == leased
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
        stalled > 3.0 && stalled <= bound.leased_writes_s.unwrap(),
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
    // Clients of the dead site used other replicas.
    assert!(run.samples.iter().all(|sample| sample.end == OpOutcome::Ok));
    assert_eq!(run.linearizable.word(), "yes");
    assert!(
        run.notes.iter().any(|note| note.contains("read once more")),
        "{:?}",
        run.notes
    );
}

/// Returns the median latency, in ms, of the answered writes at `site` that started in `span`. The
/// span is given in s.
fn median_write_ms(run: &StrategyRun, site: u8, span: std::ops::Range<f64>) -> f64 {
    let meant = run.samples.iter().filter(|sample| {
        sample.site == site
            && sample.kind == OpKind::Update
            && span.contains(&(sample.start_ns as f64 / 1e9))
    });
    let mut latencies: Vec<u64> = meant.map(|sample| sample.latency_ns).collect();
    latencies.sort_unstable();
    latencies[latencies.len() / 2] as f64 / 1e6
}

#[test]
fn writes_are_as_fast_as_before_when_the_dead_holder_is_back() {
    let ran = ran("fig7", &["warmup_s=30"]);
    let run = &ran[0].run;
    let (at_s, measured) = (run.faults[0].at_s, run.measured.unwrap());
    let last_third_s = measured.end_s - (measured.end_s - at_s) / 3.0;
    for site in 0..5 {
        let before = median_write_ms(run, site, measured.start_s..at_s);
        let stalled = median_write_ms(run, site, at_s..at_s + 2.0);
        let after = median_write_ms(run, site, last_third_s..measured.end_s);
        assert!(stalled > before * 1.2, "{site}: {before} {stalled}");
        assert!(after <= before * 1.05, "{site}: {before} {after}");
    }
}

const FAILOVER: [&str; 3] = ["runs=3", "keys=50", "rate=20"];

#[test]
fn repeated_runs_follow_each_other_and_each_is_judged() {
    let ran = ran("failover", &FAILOVER);
    let labels: Vec<&str> = ran.iter().map(|ran| ran.run.label.as_str()).collect();
    assert_eq!(labels, ["killed", "paused", "cut-off"]);
    for ran in &ran {
        let again = ran.run.notes.iter().filter(|n| n.contains("once more"));
        assert_eq!(again.count(), 1, "said once: {:?}", ran.run.notes);
    }
    for ran in &ran {
        let run = &ran.run;
        let measured = run.measured.unwrap();
        assert!(
            (measured.end_s - measured.start_s - 36.0).abs() < 1e-3,
            "{measured:?}"
        );
        let faults: Vec<f64> = run
            .faults
            .iter()
            .map(|f| f.at_s - measured.start_s)
            .collect();
        for (at_s, expected) in faults.iter().zip([2.0, 14.0, 26.0]) {
            assert!((at_s - expected).abs() < 1e-3, "{faults:?}");
        }
        assert_eq!(faults.len(), 3);
        let second = run.only(2);
        assert_eq!((run.repeats.len(), second.faults.len()), (3, 1));
        assert_eq!(second.faults[0], run.faults[1]);
        assert_eq!(second.samples.len(), second.leased_to.len());
        let each: usize = (1..=3).map(|number| run.only(number).samples.len()).sum();
        assert_eq!(each, run.samples.len());
        assert_eq!(ran.histories.len(), 3);
        assert!(
            ran.histories[0] != ran.histories[1],
            "each has a seed of its own"
        );
        assert_eq!(run.samples.len(), run.leased_to.len());
        assert!(run.samples.is_sorted_by_key(|sample| sample.start_ns));
        assert_eq!(
            run.linearizable,
            HistoryVerdict::Yes("each of 3 runs".to_owned())
        );
        let mut times = ran.events.iter().map(|event| event.at_s);
        assert!(times.all(|at| (measured.start_s..measured.end_s).contains(&at)));
    }
}

#[test]
fn whoever_fails_the_leader_is_replaced_within_the_bound() {
    for ran in ran("failover", &FAILOVER) {
        let run = &ran.run;
        assert!(
            run.samples.iter().all(|sample| sample.end == OpOutcome::Ok),
            "{}",
            run.label
        );
        for (number, fault) in run.faults.iter().enumerate() {
            assert!(fault.sites.contains(usize::from(CA)), "{}", fault.text);
            let after = |sample: &&Sample| {
                let at_ns = (fault.at_s * 1e9) as u64;
                let ended_ns = sample.start_ns + sample.latency_ns;
                ended_ns > at_ns && sample.start_ns < at_ns + 4_000_000_000
            };
            for site in 0..5u8 {
                let of_site = run.samples.iter().filter(|sample| sample.site == site);
                let longest_s = of_site
                    .filter(after)
                    .map(|sample| sample.latency_ns as f64 / 1e9)
                    .fold(0.0, f64::max);
                let bound_s = fault.bounds[usize::from(site)].leased_writes_s.unwrap();
                let seen = format!("{} {number} site {site}: {longest_s} s", run.label);
                assert!(longest_s <= bound_s, "{seen}, bound {bound_s}");
            }
        }
    }
}

#[test]
fn restarts_are_seen_and_the_end_of_leases_too() {
    let sets = [
        "keys=100",
        "warmup_s=10",
        "seconds=30",
        "fault.1.until_s=20",
    ];
    let ran = ran("fig7", &sets);
    let run = &ran[0].run;
    let fault = &run.faults[0];
    assert!((fault.until_s.unwrap() - fault.at_s - 10.0).abs() < 1e-9);
    let ends: Vec<f64> = (ran[0].events.iter())
        .filter(|event| event.kind == crate::run::RunEvent::LEASE_END)
        .map(|event| event.at_s - fault.at_s)
        .collect();
    assert!(ends.len() == 1 && (3.0..9.5).contains(&ends[0]), "{ends:?}");
    let without = |event: &&crate::run::RunEvent| event.text.ends_with("holds nothing");
    assert!(ran[0].events.iter().any(|event| without(&event)));
}

#[test]
fn a_fault_without_a_target_ends_the_run_with_its_name() {
    let sets = ["strategies=leader", "keys=50", "warmup_s=1", "seconds=11"];
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let experiment = Experiment::find("fig7").unwrap().with(&sets).unwrap();
    let error = all_of(&experiment).unwrap_err().to_string();
    assert!(
        error.contains("fault.1: holder: nobody but the leader"),
        "{error}"
    );
}

#[test]
fn a_fault_that_the_interval_does_not_reach_is_told() {
    let sets = [
        "fault.1.at_s=1000",
        "requests=20",
        "warmup=5",
        "clients=1",
        "keys=50",
    ];
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let mut experiment = Experiment::find("fig7").unwrap();
    experiment.workload.rate = None;
    experiment.fault[0].until_s = None;
    let experiment = experiment.with(&sets).unwrap();
    let ran = all_of(&experiment).unwrap();
    let notes = ran[0].run.notes.join("; ");
    assert!(
        notes.contains("fault.1 never began") && notes.contains("measure longer"),
        "{notes}"
    );
}

#[test]
fn holders_that_hear_every_vote_hold_reads_shorter_for_more_messages() {
    let sets = [
        "strategies=ML,ML-roster",
        "keys=50",
        "rate=40",
        "warmup_s=2",
        "seconds=10",
    ];
    let ran = ran("roster", &sets);
    let held_ns = |run: &StrategyRun| -> u64 {
        let held = run.samples.iter();
        let held = held.filter(|sample| sample.path == leasehold_wire::Path::Held);
        held.map(|sample| sample.latency_ns).sum()
    };
    let [origin, all] = [&ran[0].run, &ran[1].run];
    assert!(held_ns(all) > 0 && held_ns(all) < held_ns(origin));
    let sent = |run: &StrategyRun| run.counters["messages_sent"];
    assert!(
        sent(all) > sent(origin) * 5 / 4,
        "{} {}",
        sent(all),
        sent(origin)
    );
    assert_eq!(origin.issued, all.issued);
    assert!(
        origin.issued > origin.samples.len() as u64,
        "warm-up counts"
    );
}

#[test]
fn exchanged_keys_are_events_and_strategies_that_learn_follow() {
    let sets = [
        "keys=500",
        "rate=40",
        "warmup_s=20",
        "seconds=50",
        "lease.reconfigure_ms=2000",
        "workload.swap.every_s=25",
        "strategies=leader,quorum",
    ];
    let experiment = Experiment::find("moving").unwrap();
    let experiment = experiment.with(&sets.map(String::from)).unwrap();
    let ran = all_of(&experiment).unwrap();
    for ran in &ran {
        let start_s = ran.run.measured.unwrap().start_s;
        let swaps = ran
            .events
            .iter()
            .filter(|event| event.kind == crate::run::RunEvent::SWAP);
        let swaps: Vec<&crate::run::RunEvent> = swaps.collect();
        assert_eq!(swaps.len(), 1);
        assert!((swaps[0].at_s - start_s - 25.0).abs() < 1e-9);
        assert_eq!(swaps[0].sites, ["JP", "IRL"]);
    }
    let local = |from_s: f64, to_s: f64| -> f64 {
        let run = &ran[1].run;
        let start_s = run.measured.unwrap().start_s;
        let reads = run.samples.iter().filter(|sample| {
            let at_s = sample.start_ns as f64 / 1e9 - start_s;
            sample.site == 0 && sample.kind == OpKind::Read && (from_s..to_s).contains(&at_s)
        });
        let reads: Vec<&Sample> = reads.collect();
        let is_local = |sample: &&&Sample| {
            use leasehold_wire::Path;
            matches!(sample.path, Path::Local | Path::Held)
        };
        reads.iter().filter(is_local).count() as f64 / reads.len() as f64
    };
    let (before, at, after) = (local(15.0, 25.0), local(25.0, 27.0), local(40.0, 50.0));
    assert!(at < before - 0.15, "{before} {at}");
    assert!(after > at + 0.05, "{at} {after}");
}

#[test]
fn strategies_change_without_a_failed_operation_or_an_interrupted_read() {
    let sets = [
        "keys=100",
        "rate=60",
        "warmup_s=12",
        "seconds=48",
        "lease.reconfigure_ms=4000",
        "strategies.switch.change=[{at_s=8,strategy='quorum'},{at_s=16,strategy='all'},\
         {at_s=24,strategy='quorum'},{at_s=32,strategy='leader'},{at_s=40,strategy='none'}]",
    ];
    let experiment = Experiment::find("switch").unwrap();
    let experiment = experiment.with(&sets.map(String::from)).unwrap();
    let ran = &all_of(&experiment).unwrap()[0];
    let run = &ran.run;
    assert!(run.samples.iter().all(|sample| sample.end == OpOutcome::Ok));
    assert_eq!(run.linearizable.word(), "yes");
    let to: Vec<&str> = run.switches.iter().map(|s| s.to.as_str()).collect();
    assert_eq!(to, ["quorum", "all", "quorum", "leader", "none"]);
    assert_eq!(run.switches.iter().map(|s| s.lost).sum::<u64>(), 0);
    assert!(run.switches[..4].iter().all(|switch| switch.reads > 20));
    assert_eq!(run.switches[4].reads, 0, "nobody holds anything at the end");
    // Each strategy came into force.
    let start_s = run.measured.unwrap().start_s;
    let local = |from_s: f64, to_s: f64| {
        let reads = run.samples.iter().filter(|sample| {
            let at_s = sample.start_ns as f64 / 1e9 - start_s;
            sample.kind == OpKind::Read && (from_s..to_s).contains(&at_s)
        });
        let is_local = |sample: &&Sample| {
            use leasehold_wire::Path;
            matches!(sample.path, Path::Local | Path::Held)
        };
        let all = reads.clone().count() as f64;
        reads.filter(is_local).count() as f64 / all
    };
    assert!(
        (0.15..0.25).contains(&local(1.0, 8.0)),
        "at the leader alone"
    );
    assert_eq!(local(20.0, 24.0), 1.0);
    assert!((0.5..0.99).contains(&local(28.0, 32.0)));
    assert_eq!(local(44.0, 48.0), 0.0);
    let marks = ran
        .events
        .iter()
        .filter(|event| event.kind == crate::run::RunEvent::SWITCH);
    assert_eq!(marks.count(), 5);
}

#[test]
fn parts_of_the_key_space_have_strategies_of_their_own() {
    let sets = ["keys=200", "rate=40", "warmup_s=10", "seconds=20"];
    let change = "strategies.mixed.change.1.at_s=-8";
    let sets = [&sets[..], &[change, "strategies=mixed,ML"]].concat();
    let ran = ran("mixed", &sets);
    let [mixed, all] = [&ran[0].run, &ran[1].run];
    let local = |run: &StrategyRun, part: u8| {
        let reads = run.samples.iter().zip(&run.part_of);
        let reads = reads.filter(|(s, of)| s.kind == OpKind::Read && **of == part);
        let is_local = |(sample, _): &(&Sample, &u8)| {
            use leasehold_wire::Path;
            matches!(sample.path, Path::Local | Path::Held)
        };
        let count = reads.clone().count() as f64;
        reads.filter(is_local).count() as f64 / count
    };
    assert_eq!(
        (mixed.parts.as_slice(), all.parts.as_slice()),
        (&[0, 100][..], &[0, 100][..])
    );
    assert_eq!(local(mixed, 1), 1.0);
    assert!(local(mixed, 0) < 0.98);
    assert_eq!((local(all, 0), local(all, 1)), (1.0, 1.0));
}
