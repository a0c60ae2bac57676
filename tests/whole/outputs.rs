//! Tests with outputs that fail: a closed pipe, a full disk, a terminal that has been closed.

use std::process::Stdio;

use super::support::{Cluster, CommandOutput, Place, signal, until};

/// Runs a line of the shell. In this line, `$0` is the program.
fn shell(place: &Place, line: &str) -> CommandOutput {
    let ended = place.start_in_shell(line, &[], Stdio::null()).wait();
    assert!(!ended.err.contains("panicked"), "{line}: {ended:#?}");
    ended
}

#[test]
fn nothing_panics_because_an_output_is_gone() {
    let place = Place::new();
    let cases = [
        // Standard error is full: what was asked for is done, and the status is that of it.
        ("\"$0\" kv get k --dir nowhere 2>/dev/full", 1),
        ("\"$0\" token new a --admin >a.token 2>/dev/full", 0),
        ("\"$0\" exp run no-such-experiment 2>/dev/full", 1),
        (
            "\"$0\" exp run demo --set topology=near.toml --set requests=20 --set warmup=5 \
             --set strategies=leader --out report >/dev/null 2>/dev/full",
            0,
        ),
        (
            "RUST_LOG=trace \"$0\" serve --config none --node A 2>/dev/full",
            78,
        ),
        // Standard output is full: a result is lost.
        ("\"$0\" completions bash >/dev/full", 1),
        ("\"$0\" sim --seeds 2 --threads 1 >/dev/full", 1),
        // Nobody reads any more: no error.
        (
            "{ \"$0\" completions bash; echo $? >status; } | true; exit $(cat status)",
            0,
        ),
        (
            "{ \"$0\" sim --seed 3 --trace --lines 5000; echo $? >status; } | head -n 1 >first; \
             exit $(cat status)",
            0,
        ),
    ];
    for (line, status) in cases {
        let ended = shell(&place, line);
        assert_eq!(ended.status.code(), Some(status), "{line}: {ended:#?}");
    }
    assert!(place.read("tokens.toml").contains("name = \"a\""));
    assert!(place.read("report/report.md").contains("leader"));
}

#[test]
fn a_run_keeps_its_report_whatever_output_is_gone() {
    let cluster = Cluster::up();
    let load = "load -P workloadc -p recordcount=50 -threads 8";
    cluster.ycsb(load).good();
    let place = &cluster.place;
    let run = cluster.ycsb_line("run -P workloadc -p recordcount=50 -p operationcount=60");
    let cases = [
        // The status line, the warnings and the echo of the properties have no place.
        (" -s -p status.interval=0.1 2>/dev/full", 0, ""),
        (" -p exportfile=/dev/full", 1, "exportfile"),
        (
            " -p hdrhistogram.fileoutput=true -p hdrhistogram.output.path=taken/",
            1,
            "taken/READ.hgrm",
        ),
    ];
    std::fs::create_dir_all(place.path("taken/READ.hgrm")).unwrap();
    for (more, status, words) in cases {
        let ended = shell(place, &format!("\"$0\" {run}{more}"));
        assert_eq!(ended.status.code(), Some(status), "{more}: {ended:#?}");
        assert!(ended.out.contains("[READ], Return=OK, 60"), "{ended:#?}");
        assert!(ended.err.contains(words), "{ended:#?}");
    }
    let put = shell(place, "\"$0\" kv --dir c put -v k value 2>/dev/full");
    assert!(put.status.success(), "{put:#?}");
    assert_eq!(cluster.kv("get k").good(), "value\n");
    cluster.done();
}

#[test]
fn a_run_whose_terminal_hangs_up_has_a_report_unless_it_is_to_go_on() {
    let cluster = Cluster::up();
    let load = "load -P workloadc -p recordcount=50 -threads 8";
    cluster.ycsb(load).good();
    let run = cluster.ycsb_line(
        "run -P workloadc -p recordcount=50 -p operationcount=0 -s -p status.interval=0.1",
    );
    let words: Vec<&str> = run.split_whitespace().collect();
    let hung_up = cluster.place.start(&words, Stdio::null());
    until("some reads", || hung_up.err().contains("[READ: Count="));
    signal("HUP", hung_up.child.id());
    let ended = hung_up.wait();
    assert!(ended.out.contains("[READ], Return=OK, "), "{ended:#?}");
    ended.interrupted(&["interrupted", "measured until then"]);

    // As nohup starts it.
    let line = "trap '' HUP; exec \"$0\" \"$@\"";
    let kept = cluster.place.start_in_shell(line, &words, Stdio::null());
    let lines = || kept.err().matches("[READ: Count=").count();
    until("some reads", || lines() > 0);
    signal("HUP", kept.child.id());
    let before = lines();
    until("more reads", || lines() > before + 3);
    signal("TERM", kept.child.id());
    kept.wait().interrupted(&["interrupted"]);
    cluster.done();
}
