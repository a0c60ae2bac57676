//! Tests of a standing cluster with replicas that die, are paused, and are cut off.

use std::process::Stdio;

use super::support::{Cluster, CommandOutput, Place, signal, until};

fn run(cluster: &Cluster, line: &str) -> CommandOutput {
    let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
    let (sub, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    cluster
        .place
        .words(&format!("{command} {sub} --dir c {rest}"))
}

fn status(cluster: &Cluster) -> String {
    run(cluster, "cluster status").good()
}

/// Returns the line for a site in the output of `cluster status`.
fn line_of(cluster: &Cluster, site: &str) -> String {
    let status = status(cluster);
    let line = status.lines().find(|line| line.starts_with(site));
    line.unwrap_or_else(|| panic!("{site} is not in {status}"))
        .to_owned()
}

fn until_up(cluster: &Cluster, site: &str) {
    until("the replica to serve", || {
        let line = line_of(cluster, site);
        line.contains(" up ") && line.contains("CA ")
    });
}

#[test]
fn a_supervisor_that_stands_still_is_not_taken_for_gone() {
    let cluster = Cluster::up();
    signal("STOP", cluster.supervisor());
    let still = "does not answer; it may stand still";
    run(&cluster, "cluster status").refused(&[still]);
    cluster.down().refused(&[still, "process"]);
    signal("CONT", cluster.supervisor());
    until_up(&cluster, "CA");
    cluster.done();
}

#[test]
fn many_who_say_nothing_to_the_supervisor_leave_it_descriptors() {
    let cluster = Cluster::up();
    let state: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(cluster.dir().join("state.json")).unwrap())
            .unwrap();
    let control = state["control"].as_str().unwrap();
    let connect = |_| std::net::TcpStream::connect(control).unwrap();
    let idle: Vec<_> = (0..300).map(connect).collect();
    let descriptors = format!("/proc/{}/fd", cluster.supervisor());
    std::thread::sleep(std::time::Duration::from_millis(500));
    let open = std::fs::read_dir(descriptors).unwrap().count();
    assert!(open < 250, "{open}");
    drop(idle);
    until_up(&cluster, "CA");
    cluster.done();
}

#[test]
fn a_replica_that_could_not_be_started_is_tried_again() {
    let cluster = Cluster::up();
    let log = cluster.dir().join("JP.log");
    std::fs::remove_file(&log).unwrap();
    // Nobody can open that as a log.
    std::fs::create_dir(&log).unwrap();
    signal("KILL", cluster.replica("JP"));
    until("the start that fails", || {
        cluster.logs().contains("a replica cannot be started")
    });
    let status = status(&cluster);
    assert!(status.contains("it starts again in"), "{status}");
    std::fs::remove_dir(&log).unwrap();
    until_up(&cluster, "JP");
    cluster.done();
}

#[test]
fn a_replica_that_died_starts_again_and_one_that_was_killed_does_not() {
    let cluster = Cluster::up();
    let before = cluster.replica("JP");
    signal("KILL", before);
    until("the death to be noticed", || {
        cluster.logs().contains("a replica died")
    });
    until_up(&cluster, "JP");
    assert_ne!(cluster.replica("JP"), before);

    let killed = run(&cluster, "cluster kill JP").good();
    assert!(
        killed.contains("kill: JP") && killed.contains("cluster start"),
        "{killed}"
    );
    until("the kill to be noticed", || {
        line_of(&cluster, "JP").contains("down")
    });
    let shown = status(&cluster);
    assert!(
        shown.contains("JP has been down for")
            && shown.contains("killed; `leasehold cluster start JP --dir c` starts it"),
        "{shown}"
    );
    assert!(shown.contains("unlisted keys are held by CA"), "{shown}");
    run(&cluster, "cluster pause JP").refused(&["JP is down (killed)", "start it first"]);
    run(&cluster, "cluster resume JP").refused(&["JP is down"]);
    // Longer than a replica that died would have waited.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(line_of(&cluster, "JP").contains("down"));
    run(&cluster, "cluster start JP").good();
    run(&cluster, "cluster start JP").refused(&["JP is up already"]);
    until_up(&cluster, "JP");

    let before = cluster.replica("OR");
    run(&cluster, "cluster restart OR").good();
    until_up(&cluster, "OR");
    until("the restart", || cluster.replica("OR") != before);
    run(&cluster, "cluster stop JP --for 1").good();
    until_up(&cluster, "JP");
    cluster.done();
}

/// Returns the command that undoes a change. The program printed this command.
fn printed_fix(printed: &str) -> &str {
    let found = printed.split_once("mend: `leasehold ");
    let found = found.and_then(|(_, rest)| rest.split('`').next());
    found.unwrap_or_else(|| panic!("{printed} names no mend"))
}

#[test]
fn the_mends_that_are_printed_work_as_they_are() {
    let cluster = Cluster::up();
    for (done, state) in [("stop", "down"), ("pause", "paused"), ("kill", "down")] {
        let both = run(&cluster, &format!("cluster {done} OR JP")).good();
        for site in ["OR", "JP"] {
            until("it to be noticed", || {
                line_of(&cluster, site).contains(state)
            });
        }
        cluster.place.words(printed_fix(&both)).good();
        until_up(&cluster, "OR");
        until_up(&cluster, "JP");
    }
    cluster.done();
}

#[test]
fn leases_are_shown_and_changed_or_the_reason_is_told() {
    let cluster = Cluster::up();
    let shown = run(&cluster, "lease show").good();
    assert!(
        shown.contains("all") && shown.contains("t_lease"),
        "{shown}"
    );
    assert!(
        shown.contains(", as ") && shown.contains(" knows"),
        "{shown}"
    );
    let set = run(&cluster, "lease set all --range user/..user0").good();
    assert!(set.starts_with("in force, configuration"), "{set}");
    let ranges: Vec<&str> = set.lines().filter(|line| line.contains("user/")).collect();
    assert!(
        ranges.iter().any(|line| line.starts_with("user/..user0 ")),
        "{set}"
    );
    let again = run(&cluster, "lease set all --range user/..user0").good();
    assert!(again.starts_with("in force already"), "{again}");
    run(&cluster, "lease set swift").refused(&["nothing was changed", "\"swift\"", "quorum"]);
    run(&cluster, "lease set all --range b..a").refused(&["--range", "b..a"]);
    run(&cluster, "lease set --holders CA,XX").refused(&["no node \"XX\"", "CA, OR, JP"]);
    run(&cluster, "lease set --t-guard-ms 1").refused(&["t_guard_ms", "smallest that would do"]);
    run(&cluster, "lease set --grace-ms 61000").refused(&["grace_ms", "--force"]);
    let longer = run(&cluster, "lease set --t-lease-ms 1500").good();
    assert!(longer.contains("t_lease 1500 ms"), "{longer}");
    cluster.done();
}

#[test]
fn a_cluster_whose_strategies_were_changed_starts_again_as_it_was() {
    let cluster = Cluster::up();
    run(&cluster, "lease set cost").good();
    run(&cluster, "lease set all --range user/..user0").good();
    cluster.down().good();
    let up = cluster.up_again().good();
    assert!(up.contains("Strategy cost, all;"), "{up}");
    cluster.down().good();
    // What it was first started with is asked for, whatever is in force.
    cluster
        .place
        .words(&format!("{} --strategy cost", cluster.up_line()))
        .refused(&["first started with strategy 'quorum'", "lease set cost"]);
    cluster.up_again().good();
    cluster.done();
}

#[test]
fn leadership_moves_or_the_reason_is_told() {
    let cluster = Cluster::up();
    let moved = run(&cluster, "leader move OR").good();
    assert!(moved.starts_with("OR leads, round"), "{moved}");
    let again = run(&cluster, "leader move OR").good();
    assert!(again.starts_with("OR leads already"), "{again}");
    let shown = run(&cluster, "leader show").good();
    assert!(
        shown.contains("as OR knows"),
        "the leader is asked: {shown}"
    );
    run(&cluster, "leader move XX").refused(&["no node \"XX\"", "CA, OR, JP"]);
    run(&cluster, "cluster kill JP").good();
    until("the leader to know that JP is down", || {
        let refused = run(&cluster, "leader move JP");
        refused.err.contains("JP has not answered lately") && refused.err.contains("OR leads on")
    });
    cluster.done();
}

#[test]
fn a_replica_whose_data_is_lost_keeps_nobody_down() {
    let cluster = Cluster::up();
    cluster.kv("put greeting hello").good();
    cluster.down().good();
    // The leader's, so that another must lead.
    std::fs::remove_dir_all(cluster.dir().join("data/CA")).unwrap();
    let up = cluster.up_again().good();
    let named = up
        .lines()
        .find(|line| line.starts_with("CA has been down for"));
    let named = named.unwrap_or_else(|| panic!("CA is not named in {up}"));
    assert!(named.contains("run on another one before"), "{named}");
    assert!(named.contains("copy made since"), "{named}");
    assert!(named.contains("a restart cannot mend that"), "{named}");
    assert_eq!(
        cluster.logs().matches("a replica refuses to run").count(),
        1
    );
    assert!(!cluster.logs().contains("a replica died"), "it is final");
    assert_eq!(cluster.kv("--site OR get greeting").good(), "hello\n");
    cluster.down().good();
    // A majority is needed: nothing starts without.
    std::fs::remove_dir_all(cluster.dir().join("data/OR")).unwrap();
    cluster
        .up_again()
        .refused(&["replica OR", "replica CA", "run on another one before"]);
    cluster.place.assert_no_process_left();
}

#[test]
fn of_two_starts_at_once_one_is_refused() {
    let cluster = Cluster::down_yet(Place::new());
    let line = cluster.up_line();
    let words: Vec<&str> = line.split_whitespace().collect();
    let both = [(); 2].map(|()| cluster.place.start(&words, Stdio::null()));
    let mut refused = 0;
    for ended in both.map(|started| started.wait()) {
        if !ended.status.success() {
            refused += 1;
            let words = ["is being started", "is up in c already"];
            assert!(
                words.iter().any(|word| ended.err.contains(word)),
                "{ended:#?}"
            );
        }
    }
    assert_eq!(refused, 1);
    cluster.done();
}

#[test]
fn links_fail_and_are_healed() {
    let cluster = Cluster::up();
    let cut = run(&cluster, "fault partition JP --direction in").good();
    assert!(
        cut.contains("fault 1: partition JP from the others (in)"),
        "{cut}"
    );
    assert!(
        cut.contains("`leasehold fault heal 1 --dir c` ends it"),
        "{cut}"
    );
    run(&cluster, "fault slow CA --to OR --delay-ms 5 --for 600").good();
    run(&cluster, "fault loss CA --to OR --loss 0.01").good();
    let list = run(&cluster, "fault list").good();
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(
        list.contains("fault 2: slow CA from OR by 5 ms, for "),
        "{list}"
    );
    assert!(list.contains("ends in"), "{list}");
    assert!(
        list.contains("until `leasehold fault heal 1 --dir c`"),
        "{list}"
    );
    assert!(
        status(&cluster).contains("fault 3: loss"),
        "status shows them, too"
    );
    run(&cluster, "fault heal 7").refused(&[
        "no fault 7",
        "1, 2, 3",
        "`leasehold fault list --dir c`",
    ]);
    let healed = run(&cluster, "fault heal 1").good();
    assert!(healed.contains("fault 1 ended"), "{healed}");
    run(&cluster, "fault heal all").good();
    run(&cluster, "fault heal all").refused(&["no fault to heal"]);
    assert!(run(&cluster, "fault list").good().contains("No link fails"));
    // The cluster ends it, not the command.
    run(&cluster, "fault partition OR --for 0.5").good();
    until("the end of the fault", || {
        !run(&cluster, "fault list").good().contains("partition")
    });
    cluster
        .kv("--timeout 60 --site OR put greeting hello")
        .good();
    cluster.done();
}

#[test]
fn roles_are_resolved_and_a_full_disk_has_room_again() {
    let place = Place::new();
    // So far away that no busy moment makes it the nearer one for long.
    place.write(
        "near.toml",
        "sites = ['CA', 'OR', 'JP']\n[rtt_ms]\nCA = { OR = 4, JP = 80 }\nOR = { JP = 80 }\n",
    );
    let cluster = Cluster::up_in(place);
    // Holders are chosen by round trips, which a busy machine measures too long at first.
    until("the nearest replica to hold what nobody asks for", || {
        status(&cluster).contains("unlisted keys are held by CA, OR")
    });
    let paused = run(&cluster, "cluster pause holder --key greeting --for 1").good();
    assert!(paused.contains("OR"), "{paused}");
    until_up(&cluster, "OR");
    let filled = run(&cluster, "fault fill-disk leader").good();
    assert!(filled.contains("fill-disk CA (leader);"), "{filled}");
    run(&cluster, "fault fill-disk CA").refused(&["full already"]);
    run(&cluster, "fault heal all").good();
    cluster.kv("--timeout 60 put greeting hello").good();
    cluster.done();
}

#[test]
fn what_makes_no_sense_is_refused_and_a_lost_majority_is_said() {
    let cluster = Cluster::up();
    for (line, parts) in [
        (
            "cluster kill LON",
            ["no site \"LON\"", "CA, OR, JP", "leader"],
        ),
        (
            "fault partition JP --to XX",
            ["no site \"XX\"", "CA, OR, JP", "leader"],
        ),
        (
            "fault partition JP --to JP",
            ["nobody is left on the other side", "other sites", ""],
        ),
        (
            "fault slow JP --delay-ms 0",
            ["--delay-ms 0", "more than 0", ""],
        ),
        ("fault loss JP --loss 1.5", ["--loss 1.5", "at most 1", ""]),
        ("cluster pause JP --for 0", ["--for 0", "", ""]),
        ("cluster pause JP --for 1e30", ["--for 1000", "a year", ""]),
        ("fault heal x", ["heal x", "fault list --dir c", "all"]),
        ("cluster resume JP", ["not paused", "", ""]),
    ] {
        run(&cluster, line).refused(&parts);
    }
    run(&cluster, "fault slow JP").misused(&["--delay-ms"]);
    run(&cluster, "fault slow JP --delay-ms inf").misused(&["--delay-ms", "finite"]);
    run(&cluster, "fault partition JP --for nan").misused(&["--for", "finite"]);
    run(&cluster, "cluster kill").misused(&["NODE"]);
    let first = run(&cluster, "cluster pause JP").good();
    assert!(!first.contains("majority"), "{first}");
    run(&cluster, "cluster pause JP").refused(&["paused already"]);
    run(&cluster, "cluster stop JP").refused(&["resume it first"]);
    let second = run(&cluster, "cluster kill OR").good();
    assert!(
        second.contains("2 of 3")
            && second.contains("Without a majority")
            && second.contains("`leasehold cluster start NODE --dir c`"),
        "{second}"
    );
    until("the status to say so", || {
        let status = status(&cluster);
        status.contains("2 of 3 replicas do not run")
            && status.contains("`leasehold cluster start NODE --dir c`")
            && status.contains("paused")
    });
    run(&cluster, "cluster start all").good();
    run(&cluster, "cluster resume all").good();
    cluster.kv("--timeout 60 put greeting hello").good();
    // They come back without help, so nobody is asked to start them.
    let again = run(&cluster, "cluster restart all").good();
    assert!(!again.contains("majority"), "{again}");
    cluster.done();
    let place = Place::new();
    place
        .words("cluster kill JP --dir none")
        .refused(&["no cluster is up in none", "cluster up"]);
    place
        .words("fault list --dir none")
        .refused(&["no cluster is up in none", "cluster up"]);
}

#[test]
fn nothing_that_stands_still_or_is_cut_off_outlives_its_cluster() {
    for end in ["down", "TERM", "KILL"] {
        let cluster = Cluster::up();
        run(&cluster, "cluster pause JP").good();
        run(&cluster, "fault partition CA").good();
        match end {
            "down" => drop(cluster.down().good()),
            // No process is left that could wake the replica: the kernel does.
            name => signal(name, cluster.supervisor()),
        }
        cluster.place.assert_no_process_left();
    }
}

#[test]
fn a_replica_started_by_hand_is_not_taken_for_the_clusters() {
    let cluster = Cluster::up();
    run(&cluster, "cluster stop JP").good();
    until("the stop", || line_of(&cluster, "JP").contains("down"));
    let args = ["serve", "--config", "c/cluster.toml", "--node", "JP"];
    let by_hand = cluster.place.start(&args, Stdio::null());
    until("the replica to listen", || {
        by_hand.err().contains("serving")
    });
    let down = cluster.down().good();
    assert!(
        down.contains("JP at 127.0.0.1") && down.contains("started by hand"),
        "{down}"
    );
    cluster.up_again().refused(&["is not free"]);
    signal("TERM", by_hand.child.id());
    by_hand.wait().good();
    cluster.place.assert_no_process_left();
}

#[test]
fn the_control_port_answers_nobody_who_does_not_know_the_token() {
    use std::io::{Read as _, Write as _};
    let cluster = Cluster::up();
    let state: serde_json::Value =
        serde_json::from_str(&cluster.place.read("c/state.json")).unwrap();
    let ask = |line: &str| {
        let control = state["control"].as_str().unwrap();
        let mut stream = std::net::TcpStream::connect(control).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let token = state["token"].as_str().unwrap();
    let request = |token: &str, version: &str, request: &str| {
        format!("{{\"token\":\"{token}\",\"version\":\"{version}\",\"request\":{request}}}\n")
    };
    let here = env!("CARGO_PKG_VERSION");
    assert_eq!(ask(&request("guessed", here, "\"down\"")), "");
    assert_eq!(ask("GET / HTTP/1.1\n\n"), "");
    assert!(ask(&request(token, "0.0.0", "\"here\"")).contains("this is 0.0.0"));
    assert!(ask(&request(token, here, "\"dance\"")).contains("does not understand"));
    assert!(ask(&request(token, here, "\"here\"")).contains("done"));
    cluster.done();
}
