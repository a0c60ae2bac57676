use std::sync::atomic::AtomicBool;

use leasehold_leases::advice::best;
use tempfile::TempDir;

use super::*;
use crate::backend::{EndedRuns, sim};
use crate::report::{ExperimentReport, Manifest};

/// Overrides for a run that is short enough for a test, and long enough to distinguish strategies.
const SMALL: [&str; 5] = [
    "keys=2000",
    "rate=40",
    "warmup_s=100",
    "seconds=100",
    "strategies=leader,all,quorum,cost",
];

/// Writes the files of a run in virtual time.
fn finished(sets: &[&str]) -> TempDir {
    let sets: Vec<String> = SMALL.iter().chain(sets).map(|set| (*set).into()).collect();
    let experiment = Experiment::find("fig6").unwrap().with(&sets).unwrap();
    let mut ended = EndedRuns::default();
    sim::run(
        &experiment,
        &|_, _, _| (),
        &AtomicBool::new(false),
        &mut ended,
    )
    .unwrap();
    let mut ran = ended.joined();
    let dir = TempDir::new().unwrap();
    for ran in &mut ran {
        let name = format!("history-{}.bin", ran.run.label);
        ran.histories[0].save(&dir.path().join(name)).unwrap();
    }
    let report = ExperimentReport {
        topology: experiment.topology.clone(),
        backend: "sim".to_owned(),
        seed: experiment.seed,
        manifest: Manifest::capture(Vec::new()),
        runs: ran.into_iter().map(|ran| ran.run).collect(),
        events: Vec::new(),
        incomplete: None,
        experiment,
    };
    report.digested().write(dir.path()).unwrap();
    dir
}

#[test]
fn forecasts_are_near_what_is_measured_and_know_who_should_lead() {
    let by_leader = ["IRL", "VA"].map(|leader| finished(&[&format!("leader={leader}")]));
    let found = by_leader.map(|dir| of_directory(dir.path()).unwrap());
    for finished in &found {
        assert_eq!(finished.runs.len(), 4);
        for run in &finished.runs {
            let error = run.error().unwrap();
            assert!(error.abs() < 0.05, "{}: {error}", run.label);
            let own = run.own().unwrap();
            assert!((own.local - run.measured.local).abs() < 0.05, "{run:?}");
        }
    }
    let [irl, va] = &found;
    for (far, near) in irl.runs.iter().zip(&va.runs) {
        // The forecast for Virginia as leader, made while Ireland leads, equals the measurement
        // while Virginia leads.
        let mut all = far.forecasts.iter();
        let moved = all.find(|one| Some(one.plan) == far.plan && one.leader == near.leader);
        let error = moved.unwrap().mean_ms / near.measured.mean_ms - 1.0;
        assert!(error.abs() < 0.05, "{} at VA: {error}", near.label);
        assert!(near.measured.mean_ms < far.measured.mean_ms);
    }
    let best = best(&irl.runs[0].forecasts).unwrap();
    assert!(![0, 4].contains(&best.leader.0), "in the middle: {best:?}");
}

#[test]
fn what_is_no_run_is_told_from_what_is_damaged() {
    let told = |dir: &TempDir, part: &str| {
        let error = format!("{:#}", of_directory(dir.path()).unwrap_err());
        assert!(error.contains(part), "{part:?} is not in {error}");
    };
    told(&TempDir::new().unwrap(), "is it the --out of `exp run`?");
    let dir = finished(&["strategies=leader,all", "seconds=20", "warmup_s=20"]);
    let histories = ["history-LL.bin", "history-ML.bin"].map(|name| dir.path().join(name));
    let history = History::load(&histories[0]).unwrap();
    let half = history
        .events()
        .iter()
        .copied()
        .filter(|event| event.process % 5 != 2);
    half.collect::<History>().save(&histories[0]).unwrap();
    told(&dir, "0 operations of OR");
    std::fs::remove_file(&histories[0]).unwrap();
    told(&dir, "history-LL.bin");
    std::fs::write(dir.path().join("manifest.json"), "{}").unwrap();
    told(&dir, "is not what `exp run` writes");
}
