//! Tests of a standing cluster, from its start to its end.

use std::process::Stdio;

use super::support::{CA, Cluster, Place, signal, until};

#[test]
fn every_site_reads_what_any_wrote() {
    let cluster = Cluster::up();
    let status = cluster.place.words("cluster status --dir c").good();
    // In the topology's order, here and wherever addresses are listed.
    for (line, site) in status.lines().skip(1).zip(["CA", "OR", "JP"]) {
        let up = line.contains(" up ") && line.contains("its lists");
        assert!(line.starts_with(site) && up, "{line}");
    }
    assert!(status.contains("Strategy quorum"), "{status}");
    cluster.kv("--site JP put greeting hello").good();
    for site in ["CA", "OR", "JP"] {
        let found = cluster.kv(&format!("--site {site} get greeting")).good();
        assert_eq!(found, "hello\n", "at {site}");
    }
    let ended = cluster.kv("-v --site OR get greeting");
    let version = ended
        .err
        .lines()
        .find_map(|line| line.strip_prefix("version: "));
    let version = version.expect("-v tells the version").to_owned();
    ended.good();
    cluster
        .kv(&format!("--site OR cas greeting {version} hi"))
        .good();
    let late = cluster.kv(&format!("--site CA cas greeting {version} hey"));
    late.refused(&["not written", "its version is"]);
    cluster
        .kv("cas greeting absent hey")
        .refused(&["not written"]);
    cluster.kv("--site CA put salutation moin").good();
    let scanned = cluster.kv("--site JP scan").good();
    assert_eq!(scanned, "greeting\thi\nsalutation\tmoin\n");
    assert_eq!(cluster.kv("scan h").good(), "salutation\tmoin\n");
    assert_eq!(cluster.kv("scan --limit 1").good(), "greeting\thi\n");
    cluster.kv("--site JP del greeting").good();
    cluster
        .kv("--site OR get greeting")
        .refused(&["there is no such key"]);
    cluster.done();
}

#[test]
fn ycsbs_own_files_run() {
    let cluster = Cluster::up();
    cluster.place.write(
        "mine.properties",
        include_str!("../../ycsb/workloads/workloada"),
    );
    let empty = cluster.ycsb("run -P workloadc -p recordcount=50 -p operationcount=10");
    assert!(empty.out.contains("[READ], Return=NOT_FOUND, 10"));
    empty.refused(&["none of 10 operations succeeded"]);
    let loaded = cluster.ycsb("load -P mine.properties -p recordcount=50 -threads 8");
    assert!(loaded.good().contains("[INSERT], Return=OK, 50"));
    for workload in ["a", "b", "c", "d", "e", "f"] {
        let ran = cluster.ycsb(&format!(
            "run -P workload{workload} -p recordcount=50 -p operationcount=60 -threads 6 -s \
             -p maxscanlength=10 -p hdrhistogram.fileoutput=true -p hdrhistogram.output.path={workload}-"
        ));
        let report = ran.good();
        assert!(report.contains("[OVERALL], RunTime(ms), "), "{report}");
        assert!(!report.contains("FAILED"), "{report}");
        let counted = report.lines().filter_map(|line| {
            let (name, count) = line.split_once(", Operations, ")?;
            let whole = [
                "[READ]",
                "[UPDATE]",
                "[INSERT]",
                "[SCAN]",
                "[READ-MODIFY-WRITE]",
            ];
            (workload != "f" && whole.contains(&name)).then(|| count.parse::<u64>().unwrap())
        });
        if workload != "f" {
            assert_eq!(counted.sum::<u64>(), 60, "{report}");
        } else {
            // Each counts as a read and an update as well.
            assert!(
                report.contains("[READ-MODIFY-WRITE], Operations"),
                "{report}"
            );
        }
        check_histograms(&cluster.place, workload);
    }
    let line = "run -P workloadc -p recordcount=50 -p operationcount=0 -p maxexecutiontime=1 \
                -target 1000000";
    let hasty = cluster.ycsb(line);
    assert!(hasty.out.contains("[TARGET-MISSED], Operations, "));
    hasty.missed(&["TARGET MISSED", "of 1000000"]);
    cluster.done();
}

#[test]
fn an_interrupted_ycsb_reports_what_it_measured() {
    let cluster = Cluster::up();
    cluster
        .ycsb("load -P workloadc -p recordcount=50 -threads 8")
        .good();
    let line = "run -P workloadc -p recordcount=50 -p operationcount=0 -s -p status.interval=0.1";
    let line = cluster.ycsb_line(line);
    let words: Vec<&str> = line.split_whitespace().collect();
    let run = cluster.place.start(&words, Stdio::null());
    until("some reads", || run.err().contains("[READ: Count="));
    signal("INT", run.child.id());
    let ended = run.wait();
    assert!(ended.out.contains("[READ], Return=OK, "), "{ended:#?}");
    ended.interrupted(&["interrupted", "measured until then"]);
    cluster.done();
}

fn check_histograms(place: &Place, prefix: &str) {
    let log = place.read(&format!("{prefix}-latency.hlog"));
    assert!(
        log.contains("#[Histogram log format version 1.3]\n"),
        "{log}"
    );
    assert!(
        log.contains("\n\"StartTimestamp\",\"Interval_Length\","),
        "{log}"
    );
    let tagged = log.lines().filter(|line| line.starts_with("Tag="));
    let mut lines = 0;
    for line in tagged {
        let fields: Vec<&str> = line.split(',').collect();
        // "HIST" is how an encoded histogram begins in base 64.
        assert!(fields.len() == 5 && fields[4].starts_with("HIST"), "{line}");
        lines += 1;
    }
    assert!(lines > 0, "{log}");
}

#[test]
fn data_outlives_the_cluster() {
    let cluster = Cluster::up();
    for number in 0..5 {
        cluster
            .kv(&format!("--site OR put key{number} value{number}"))
            .good();
    }
    cluster.kv("del key3").good();
    cluster.down().good();
    cluster.place.assert_no_process_left();
    cluster
        .down()
        .refused(&["no cluster is up in c", "cluster up"]);
    cluster.up_again().good();
    let found = cluster.kv("--site JP scan").good();
    assert_eq!(
        found,
        "key0\tvalue0\nkey1\tvalue1\nkey2\tvalue2\nkey4\tvalue4\n"
    );
    cluster.done();
}

#[test]
fn replicas_end_with_their_supervisor_and_lose_nothing() {
    let cluster = Cluster::up();
    cluster.kv("put greeting hello").good();
    signal("KILL", cluster.supervisor());
    cluster.place.assert_no_process_left();
    let refusal = "its supervisor is gone";
    cluster
        .place
        .words("cluster status --dir c")
        .refused(&[refusal, "cluster up --dir c"]);
    cluster
        .kv("get greeting")
        .refused(&["cannot connect", "cluster status"]);
    cluster.down().refused(&[refusal]);
    cluster.down().refused(&["no cluster is up"]);
    cluster.up_again().good();
    assert_eq!(cluster.kv("get greeting").good(), "hello\n");
    cluster.done();
}

#[test]
fn a_cluster_starts_again_right_after_its_supervisor_was_killed() {
    let cluster = Cluster::up();
    cluster.kv("put greeting hello").good();
    signal("KILL", cluster.supervisor());
    // Its replicas have ports and data yet, and are about to end.
    cluster.up_again().good();
    assert_eq!(cluster.kv("get greeting").good(), "hello\n");
    signal("KILL", cluster.supervisor());
    let ended = cluster.down();
    assert!(!ended.err.contains("started by hand"), "{ended:#?}");
    ended.refused(&["its supervisor is gone"]);
    cluster.place.assert_no_process_left();
}

#[test]
fn the_others_go_on_without_a_replica() {
    let cluster = Cluster::up();
    cluster.kv("put greeting hello").good();
    cluster.place.words("cluster kill --dir c JP").good();
    cluster
        .kv("--timeout 60 --site OR put greeting servus")
        .good();
    assert_eq!(
        cluster.kv("--timeout 60 --site CA get greeting").good(),
        "servus\n"
    );
    let elsewhere = cluster.kv("--timeout 60 --site JP get greeting");
    assert!(
        elsewhere.err.contains("(JP) does not answer"),
        "{elsewhere:#?}"
    );
    assert!(
        elsewhere.err.contains("was asked instead"),
        "{elsewhere:#?}"
    );
    assert_eq!(elsewhere.good(), "servus\n");
    let jp = cluster.port + 2;
    cluster
        .place
        .words(&format!("kv {CA} --address 127.0.0.1:{jp} get greeting"))
        .refused(&["cannot connect to 127.0.0.1", "refused"]);
    let both = format!("{CA} --address 127.0.0.1:{jp},127.0.0.1:{}", cluster.port);
    let found = cluster.place.words(&format!("kv {both} get greeting"));
    assert_eq!(found.good(), "servus\n");
    let ran = cluster
        .ycsb("load -P workloada -p recordcount=50 -p leasehold.timeout_ms=60000 -threads 6");
    assert!(ran.err.contains("(site JP) does not answer"), "{ran:#?}");
    assert!(ran.good().contains("[INSERT], Return=OK, 50"));
    cluster
        .ycsb("run -P workloada -p site=CA,JP,OR")
        .refused(&["site:", "is replica OR, not JP"]);
    let status = cluster.place.words("cluster status --dir c").good();
    assert!(status.contains("JP has been down"), "{status}");
    cluster.done();
}

#[test]
fn the_others_elect_another_leader() {
    let cluster = Cluster::up();
    cluster.kv("put greeting hello").good();
    cluster.place.words("cluster kill --dir c CA").good();
    cluster
        .kv("--timeout 80 --site OR put greeting servus")
        .good();
    // Without a site the replica that leads is asked, not the one that should lead.
    let ended = cluster.kv("--timeout 80 -v get greeting");
    assert!(ended.err.contains("does not answer"), "{ended:#?}");
    let show = cluster.place.words("leader show --dir c").good();
    let (leader, _) = show.split_once(" leads").expect("somebody leads");
    assert!(["OR", "JP"].contains(&leader), "{show}");
    let at = format!(", at {leader}");
    assert!(ended.err.contains(&at), "{ended:#?} {show}");
    assert_eq!(
        cluster.kv("--timeout 80 --site JP get greeting").good(),
        "servus\n"
    );
    cluster.done();
}

#[test]
fn a_signal_ends_a_cluster_held_in_the_foreground() {
    let place = Place::new();
    let port = super::support::ports(3).to_string();
    let args = [
        "cluster",
        "run",
        "--dir",
        "c",
        "--set",
        "topology=near.toml",
        "--client-port",
        &port,
    ];
    for name in ["INT", "TERM"] {
        let supervisor = place.start(&args, std::process::Stdio::null());
        until("the cluster to be up", || {
            place.path("c/state.json").exists()
        });
        signal(name, supervisor.child.id());
        supervisor.wait().good();
        place.assert_no_process_left();
    }
}

#[test]
fn an_interrupted_start_leaves_nothing_behind() {
    let cluster = Cluster::down_yet(Place::new());
    let line = cluster.up_line();
    let words: Vec<&str> = line.split_whitespace().collect();
    let up = cluster.place.start(&words, Stdio::null());
    let itself = up.child.id();
    until("the supervisor", || {
        let others = cluster.place.processes();
        others.iter().any(|id| *id != itself)
    });
    signal("INT", itself);
    up.wait().interrupted(&["interrupted", "c is down"]);
    until("the processes' end", || {
        cluster.place.processes().is_empty()
    });
    cluster.up_again().good();
    cluster.done();
}
