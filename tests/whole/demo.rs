//! Tests of `leasehold demo` with small runs.

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

/// Returns the files of the demo's report except the pictures, each with its contents.
fn report(place: &Place) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(place.path("report")).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.is_file());
    let named = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read(path).unwrap())
    };
    let mut files: Vec<_> = files.map(named).collect();
    files.sort();
    files
}

#[test]
fn a_run_that_does_not_end_leaves_the_one_before_whole_and_no_run_takes_files_of_others() {
    let place = Place::new();
    let run = "exp run demo --set topology=near.toml --set warmup=5 --set keys=20 \
               --set clients=1 --out report";
    let short = format!("{run} --set requests=20");
    place.words(&short).good();
    place.write("report/history-of-rome.bin", "a book");
    let before = report(&place);
    let endless = format!("{run} --set requests=3000000");
    let words: Vec<&str> = endless.split_whitespace().collect();
    let endless = place.start(&words, Stdio::null());
    until("its begin", || endless.err().contains("LL: begun"));
    signal("INT", endless.child.id());
    endless.wait().interrupted(&["interrupted"]);
    assert_eq!(report(&place), before);
    // Too large a file, as on a full disk.
    let full = format!("ulimit -f 40; trap '' XFSZ; exec \"$0\" {short}");
    let full = place.start_in_shell(&full, &[], Stdio::null()).wait();
    assert!(
        full.out.contains("LL"),
        "what was measured is printed: {full:#?}"
    );
    full.refused(&["File too large"]);
    assert_eq!(report(&place), before);
    let entries = std::fs::read_dir(place.path("report")).unwrap();
    let hidden = entries.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with('.')
    });
    assert_eq!(hidden.count(), 0);

    std::fs::create_dir(place.path("mine")).unwrap();
    place.write("mine/report.md", "my report");
    place
        .words(&short.replace("--out report", "--out mine"))
        .refused(&["--out", "mine/report.md is not of an earlier run"]);
    assert_eq!(place.read("mine/report.md"), "my report");
}

#[test]
fn runs_that_ended_before_a_ctrl_c_are_kept() {
    let place = Place::new();
    let run = "exp run demo --on local --set topology=near.toml --set requests=20 --set warmup=5 \
               --set keys=20 --set clients=1 --set runs=50 --out report --work w";
    let words: Vec<&str> = run.split_whitespace().collect();
    let run = place.start(&words, Stdio::null());
    until("a second run", || place.path("w/LL-2").exists());
    signal("INT", run.child.id());
    let ended = run.wait();
    assert!(ended.out.contains("INCOMPLETE"), "{ended:#?}");
    ended.interrupted(&["interrupted", "no replica is left running"]);
    let kept = std::fs::read_dir(place.path("report/incomplete")).unwrap();
    let kept = kept.filter(|file| {
        let name = file.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with("history-LL")
    });
    assert!(kept.count() > 0);
    let report = place.read("report/incomplete/report.md");
    assert!(report.contains(" of 50, ML 0 of 50"), "{report}");
    assert!(!place.path("report/report.md").exists());
    place.assert_no_process_left();
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
    demo.wait()
        .interrupted(&["interrupted", "no replica is left running"]);
    assert_eq!(place.processes(), [0; 0], "no process is left");
}
