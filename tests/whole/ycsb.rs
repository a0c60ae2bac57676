//! Tests that `leasehold ycsb` ends when it is told to, and says what it could not measure.

use std::process::Stdio;

use super::support::{Cluster, Place, signal, until};

/// Command line of a run with more insertions than it can ever carry out.
const ENDLESS: &str = "run -P workloade -p recordcount=50 -p operationcount=9000000000000 \
                       -p maxscanlength=10 -threads 4 -s -p status.interval=0.1";

#[test]
fn a_run_of_any_length_is_ended_by_time_and_by_signals() {
    let cluster = Cluster::up();
    let load = "load -P workloade -p recordcount=50 -threads 8";
    cluster.ycsb(load).good();
    let report = cluster.ycsb(&format!("{ENDLESS} -p maxexecutiontime=1"));
    assert!(report.good().contains("[SCAN], Return=OK, "));
    for name in ["INT", "TERM"] {
        let line = cluster.ycsb_line(ENDLESS);
        let words: Vec<&str> = line.split_whitespace().collect();
        let run = cluster.place.start(&words, Stdio::null());
        until("some scans", || run.err().contains("[SCAN: Count="));
        signal(name, run.child.id());
        let ended = run.wait();
        assert!(ended.out.contains("[SCAN], Return=OK, "), "{ended:#?}");
        ended.interrupted(&["interrupted", "measured until then"]);
    }
    cluster.done();
}

#[test]
fn a_run_that_measures_nothing_fails() {
    let cluster = Cluster::up();
    let load = "load -P workloadc -p recordcount=50 -threads 8";
    cluster.ycsb(load).good();
    let run = "run -P workloadc -p recordcount=50 -p operationcount=20 -p warmuptime=600";
    let ended = cluster.ycsb(run);
    assert!(ended.out.contains("[OVERALL], Operations, 0"), "{ended:#?}");
    ended.refused(&["nothing was measured", "warmuptime"]);
    cluster.done();
}

#[test]
fn a_workload_is_not_taken_for_another() {
    let place = Place::new();
    let here = "--address 127.0.0.1:1";
    place
        .words(&format!("ycsb run -P wrongdir/workloadc {here}"))
        .refused(&["no property file wrongdir/workloadc", "-P workloadc is"]);
    let warned = place.words(&format!("ycsb run -P workloads/workloadc {here}"));
    assert!(
        warned
            .err
            .contains("warning: there is no file workloads/workloadc"),
        "{warned:#?}"
    );
    std::fs::write(
        place.path("marked"),
        "\u{feff}fieldcount=3\nrecordcount=5\n",
    )
    .unwrap();
    let marked = place.words(&format!("ycsb run -P marked {here}"));
    assert!(marked.err.contains("\nfieldcount=3\n"), "{marked:#?}");
    for (property, part) in [
        ("insertorder=sorted", "one of hashed, ordered"),
        ("site=rack:1", "site: found \"rack:1\""),
    ] {
        let line = format!("ycsb run -P workloadc {here} -p {property}");
        place.words(&line).refused(&[part]);
    }
}
