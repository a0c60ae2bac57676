//! Small runs of `leasehold chaos` with three sites a few ms apart.

use std::process::Stdio;

use super::support::{Place, signal, until};

const SMALL: &str = "chaos --strategy quorum --set topology=near.toml --set clients=4 --rate 300 \
                     --every 0.7 --dir c";

#[test]
fn a_short_chaos_is_linearizable_and_leaves_only_its_summary() {
    let place = Place::new();
    let out = place
        .words(&format!("{SMALL} --minutes 0.35 --seed 3"))
        .good();
    assert!(out.contains("verdict: linearizable"), "{out}");
    let summary: serde_json::Value = serde_json::from_str(&place.read("c/summary.json")).unwrap();
    let count = |field: &str| summary[field].as_u64().unwrap();
    assert!(count("faults_total") >= 5, "{summary:#}");
    assert!(count("operations_total") >= 500, "{summary:#}");
    for kind in [
        "get",
        "put",
        "delete",
        "cas",
        "scan",
        "multi-get",
        "multi-put",
        "txn",
        "append",
        "add",
    ] {
        let answered = summary["operations"][kind]["answered"].as_u64();
        assert!(
            answered.is_some_and(|count| count > 0),
            "{kind}: {summary:#}"
        );
    }
    let left = std::fs::read_dir(place.path("c")).unwrap().count();
    assert_eq!(left, 1, "summary.json alone is left");
    place.assert_no_process_left();
}

#[test]
fn a_falsified_history_is_noticed() {
    let place = Place::new();
    for (control, kind) in [("stale-read", "key"), ("repeated-append", "list")] {
        let line = format!("{SMALL} --minutes 0.2 --control {control}");
        let out = place.words(&line).good();
        let noticed = format!("The control was noticed: {kind} ");
        assert!(out.contains(&noticed), "{out}");
    }
    place.assert_no_process_left();
}

/// Checks that a loss of data is found. The replicas write their logs only at checkpoints, and no
/// checkpoint happens during the test. So all data is lost when all replicas are killed.
#[test]
fn acknowledged_writes_that_are_lost_are_noticed_and_all_about_it_is_kept() {
    let place = Place::new();
    let line = format!(
        "{SMALL} --minutes 0.2 --set local.durability=none \
         --set timing.checkpoint_ms=60000"
    );
    let ended = place.words(&line);
    assert!(
        ended.out.contains("VIOLATION in 1 of 1 rounds"),
        "{ended:#?}"
    );
    assert!(
        ended.out.contains("--round 1 --strategy quorum"),
        "{ended:#?}"
    );
    ended.refused(&["round 1 violates what is promised"]);
    for file in [
        "schedule.toml",
        "faults.log",
        "violation.txt",
        "history.bin",
        "groups.bin",
        "ledger.txt",
        "CA.log",
    ] {
        assert!(
            !place.read(&format!("c/round-1/{file}")).is_empty(),
            "{file}"
        );
    }
    place.assert_no_process_left();
}

#[test]
fn an_interrupted_chaos_leaves_no_process_running_or_paused() {
    let place = Place::new();
    let line = format!("{SMALL} --minutes 60 --seed 5");
    let words: Vec<&str> = line.split_whitespace().collect();
    let chaos = place.start(&words, Stdio::null());
    until("a paused replica", || {
        place.processes().into_iter().any(is_stopped)
    });
    place
        .words(&format!("{SMALL} --minutes 0.2"))
        .refused(&["--dir", "another run is at work"]);
    signal("INT", chaos.child.id());
    chaos
        .wait()
        .interrupted(&["interrupted", "no replica is left running"]);
    place.assert_no_process_left();
}

fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|rest| rest.starts_with('T'))
}

#[test]
fn what_cannot_be_run_is_refused_with_what_can() {
    let place = Place::new();
    place
        .words("chaos --strategy luck")
        .refused(&["luck", "quorum"]);
    place
        .words("chaos --minutes 10 --round 6")
        .refused(&["--round 6", "5 rounds"]);
    place
        .words("chaos --minutes 0")
        .misused(&["--minutes", "0.2"]);
    place.words("chaos --every 0").misused(&["--every", "0.1"]);
    place.write("file", "");
    place
        .words("chaos --dir file")
        .refused(&["--dir", "cannot be made a directory"]);
}
