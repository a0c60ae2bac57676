//! `leasehold ycsb`: ends when it is to, and says what it could not measure.

use std::process::Stdio;

use super::support::{Cluster, signal, until};

/// More insertions than will ever be made.
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
        let ended = run.ended();
        assert!(ended.out.contains("[SCAN], Return=OK, "), "{ended:#?}");
        ended.interrupted(&["interrupted", "measured until then"]);
    }
    cluster.done();
}
