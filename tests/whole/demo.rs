//! `leasehold demo`, small.

use std::process::Stdio;

use super::support::{Place, signal, until};

const SMALL: [&str; 7] = [
    "demo",
    "--set",
    "topology=near.toml",
    "--set",
    "clients=2",
    "--set",
    "keys=50",
];

#[test]
fn a_small_demo_reports_and_leaves_nothing_behind() {
    let place = Place::new();
    let sets = [
        "--set",
        "requests=40",
        "--set",
        "warmup=10",
        "--out",
        "report",
    ];
    let out = place.run(&[&SMALL[..], &sets].concat()).good();
    for label in ["LL", "ML", "QL"] {
        let section = out
            .lines()
            .find(|line| line.starts_with(label) && line.contains("linearizable"));
        let section = section.unwrap_or_else(|| panic!("{label} is not in {out}"));
        assert!(section.contains("linearizable: yes"), "{section}");
    }
    for site in ["CA", "OR", "JP"] {
        assert_eq!(
            out.lines().filter(|line| line.starts_with(site)).count(),
            3,
            "{out}"
        );
    }
    for file in [
        "report.html",
        "report.md",
        "summary.json",
        "manifest.json",
        "cdf.csv",
    ] {
        assert!(!place.read(&format!("report/{file}")).is_empty(), "{file}");
    }
    let log = place.read("report/latency.hlog");
    assert!(log.contains("#[Histogram log format version 1.3]"), "{log}");
    let plots = std::fs::read_dir(place.path("report/plots"))
        .unwrap()
        .count();
    assert!(plots > 0, "there are plots");
    let summary = place.read("report/summary.json");
    assert_eq!(
        summary.matches("\"linearizable\": \"yes\"").count(),
        3,
        "{summary}"
    );
    assert_eq!(place.processes(), [0; 0], "no process is left");
}

#[test]
fn a_run_leaves_no_history_of_an_earlier_one() {
    let place = Place::new();
    let run = "exp run demo --set topology=near.toml --set requests=20 --set warmup=5 \
               --set keys=20 --set clients=1 --out report";
    place.words(run).good();
    place.write("report/history.txt", "mine");
    let histories = |names: &[&str]| {
        let there = |label: &str| place.path(&format!("report/history-{label}.bin")).exists();
        names.iter().all(|label| there(label))
    };
    assert!(histories(&["LL", "ML", "QL"]), "each has one");
    place.words(&format!("{run} --set strategies=LL")).good();
    assert!(histories(&["LL"]) && !histories(&["ML"]) && !histories(&["QL"]));
    assert_eq!(place.read("report/history.txt"), "mine");
}

#[test]
fn where_no_report_can_be_written_nothing_is_run() {
    // A directory in which nobody can make a file.
    Place::new()
        .words("exp run demo --out /proc")
        .refused(&["--out", "into /proc"]);
}

#[test]
fn an_interrupted_demo_says_so_and_leaves_nothing_behind() {
    let place = Place::new();
    let endless = ["--set", "requests=100000000"];
    let demo = place.start(&[&SMALL[..], &endless].concat(), Stdio::null());
    let itself = demo.child.id();
    until("three replicas", || {
        let others = place.processes();
        others.iter().filter(|id| **id != itself).count() == 3
    });
    signal("INT", itself);
    demo.ended()
        .interrupted(&["interrupted", "no replica is left running"]);
    assert_eq!(place.processes(), [0; 0], "no process is left");
}
