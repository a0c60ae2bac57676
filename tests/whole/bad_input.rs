//! Tests of mistakes that operators make. Each leads to one error, which names the fault and the
//! fix.

use std::fs::File;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use super::support::{Cluster, NEAR, Place, logs, ports, signal, until};

/// Returns the configuration of a cluster of one replica, at two ports.
pub fn alone(port: u16) -> String {
    format!(
        "cluster = \"test\"\nleader = \"CA\"\ndata = \"data\"\n[lease]\nstrategy = \"leader\"\n\
         [[node]]\nname = \"CA\"\nclient = \"127.0.0.1:{port}\"\npeer = \"127.0.0.1:{}\"\n",
        port + 1
    )
}

const SERVE: [&str; 5] = ["serve", "--config", "cluster.toml", "--node", "CA"];

#[test]
fn a_wrong_configuration_is_refused_by_field() {
    let place = Place::new();
    let good = alone(ports(2));
    let cases: [(&str, &str, &[&str]); 17] = [
        ("cluster = \"test\"", "", &["missing field `cluster`"]),
        ("data = \"data\"", "", &["missing field `data`"]),
        (
            "data = \"data\"",
            "data = \"\"",
            &["data is \"\"", "a directory is required"],
        ),
        (
            "cluster = \"test\"",
            "cluster = \"a/b\"",
            &["cluster is \"a/b\"", "letters, digits"],
        ),
        (
            "leader = \"CA\"",
            "leader = \"XX\"",
            &["leader is \"XX\"", "names of nodes: CA"],
        ),
        (
            "leader = \"CA\"",
            "leeder = \"CA\"",
            &["line 2", "unknown field `leeder`", "`leader`"],
        ),
        (
            "leader = \"CA\"",
            "leader = 3",
            &["line 2", "invalid type", "string"],
        ),
        (
            "leader = \"CA\"",
            "durability = \"often\"",
            &["durability is \"often\"", "sync, async, none"],
        ),
        (
            "= \"leader\"",
            "= \"lease\"",
            &[
                "lease.strategy is \"lease\"",
                "none, leader, all, quorum, fixed",
            ],
        ),
        (
            "= \"leader\"",
            "= \"fixed\"",
            &["[[lease.range]] is not given", "`from` and `holders`"],
        ),
        (
            "[lease]",
            "[lease]\nt_lease_ms = 100",
            &["lease.t_lease_ms is 100", "above lease.renew_ms (150)"],
        ),
        (
            "[lease]",
            "[lease]\nrho = 7.0",
            &["lease.rho is 7", "0.001 if in doubt"],
        ),
        (
            "[lease]",
            "[limits]\nin_flight_mb = 0\n[lease]",
            &["limits.in_flight_mb is 0", "the default is 512"],
        ),
        ("[lease]", "[lease", &["line 4", "expected `]`"]),
        ("peer = ", "peers = ", &["unknown field `peers`", "`peer`"]),
        (
            "client = \"127.0.0.1:",
            "client = \"127.0.0.1;",
            &["client of node CA", "as in \"127.0.0.1:7001\""],
        ),
        (
            "name = \"CA\"\n",
            "name = \"CA\"\nvia = { OR = \"h:1\" }\n",
            &["via of node CA is \"OR\"", "names of nodes: CA"],
        ),
    ];
    for (from, to, parts) in cases {
        assert!(good.contains(from), "{from}");
        place.write("cluster.toml", &good.replacen(from, to, 1));
        let refused = place.run(&SERVE);
        assert!(refused.err.contains("cluster.toml"), "{refused:#?}");
        refused.refused_for_good(parts);
    }
    assert!(!place.path("data").exists(), "nothing was begun");
}

#[test]
fn a_configuration_or_node_that_is_not_there_is_named() {
    let place = Place::new();
    place
        .run(&SERVE)
        .refused_for_good(&["cluster.toml: No such file", "give the path"]);
    place.write("cluster.toml", &alone(ports(2)));
    let other = ["serve", "--config", "cluster.toml", "--node", "XX"];
    place
        .run(&other)
        .refused_for_good(&["no node \"XX\"", "cluster.toml", "it has CA"]);
}

#[test]
fn a_port_in_use_is_named() {
    let place = Place::new();
    let port = ports(2);
    place.write("cluster.toml", &alone(port));
    for (field, port) in [("client", port), ("peer", port + 1)] {
        let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
        place.run(&SERVE).refused(&[
            &format!("{field} = \"127.0.0.1:{port}\""),
            "Address already in use",
            &format!("`{field}` of node CA in cluster.toml"),
        ]);
    }
}

#[test]
fn a_directory_of_another_is_refused_and_unharmed() {
    let place = Place::new();
    let port = ports(2);
    let good = alone(port);
    place.write("cluster.toml", &good);
    let address = format!("127.0.0.1:{port}");
    let kv = |line: &str| place.words(&format!("kv --timeout 60 --address {address} {line}"));
    let serve = [&SERVE[..], &["--until-stdin-closes"]].concat();
    let mut replica = place.start(&serve, Stdio::piped());
    until("the replica", || kv("put greeting hello").status.success());
    let elsewhere = good.replace(&format!(":{}", port + 1), &format!(":{}", ports(1)));
    let elsewhere = elsewhere.replace(&address, &format!("127.0.0.1:{}", ports(1)));
    place.write("cluster.toml", &elsewhere);
    place
        .run(&SERVE)
        .refused(&["data/CA", "in use by another process"]);
    drop(replica.child.stdin.take());
    replica.wait().good();

    place.write("cluster.toml", &good.replace("\"test\"", "\"prod\""));
    let fix = "an empty directory of its own";
    place
        .run(&SERVE)
        .refused_for_good(&["data/CA", "cluster is test", "says prod", fix]);
    place.write("cluster.toml", &good.replace("\"CA\"", "\"OR\""));
    std::fs::rename(place.path("data/CA"), place.path("data/OR")).unwrap();
    let other = ["serve", "--config", "cluster.toml", "--node", "OR"];
    place
        .run(&other)
        .refused_for_good(&["data/OR", "replica name is CA", "says OR", fix]);
    std::fs::rename(place.path("data/OR"), place.path("data/CA")).unwrap();
    let second = format!(
        "{good}[[node]]\nname = \"OR\"\nclient = \"127.0.0.1:1\"\npeer = \"127.0.0.1:2\"\n"
    );
    place.write("cluster.toml", &second);
    place
        .run(&SERVE)
        .refused_for_good(&["list of members is CA,", "says CA, OR", fix]);
    place.write("cluster.toml", &good);
    std::fs::write(place.path("file"), "").unwrap();
    place.write("cluster.toml", &good.replace("\"data\"", "\"file\""));
    let wrong_path = ["file/CA", "file is not a directory", "`data`"];
    place.run(&SERVE).refused_for_good(&wrong_path);

    place.write("cluster.toml", &good);
    let mut replica = place.start(&serve, Stdio::piped());
    until("the replica", || kv("get greeting").status.success());
    assert_eq!(kv("get greeting").good(), "hello\n");
    let output = kv("--verbose get greeting");
    assert!(output.err.contains("served: "), "{output:#?}");
    drop(replica.child.stdin.take());
    replica.wait().good();
    assert!(!logs(&place.path("")).contains("panicked"));
}

#[test]
fn a_wrong_topology_is_refused_by_its_pairs() {
    let place = Place::new();
    let cases: [(String, &[&str]); 6] = [
        (
            NEAR.replace("OR = { JP = 8 }", "OR = { JP = 8, CA = 5 }"),
            &["rtt_ms.CA.OR = 4", "rtt_ms.OR.CA = 5", "keep one"],
        ),
        (
            NEAR.replace("OR = { JP = 8 }", ""),
            &["no round trip for OR-JP", "JP = 100 to the row OR"],
        ),
        (
            NEAR.replace("JP = 8", "XX = 8"),
            &["rtt_ms.OR.XX", "the sites are CA, OR, JP"],
        ),
        (
            NEAR.replace("JP = 8", "JP = -8"),
            &["rtt_ms.OR.JP = -8", "from 0 to 60000"],
        ),
        (
            NEAR.replace("sites", "sits"),
            &["unknown field `sits`", "`sites`"],
        ),
        (
            NEAR.replace("'OR'", "'CA'"),
            &["\"CA\" stands at places 1 and 2", "rename"],
        ),
    ];
    for (text, parts) in cases {
        place.write("wrong.toml", &text);
        for line in [
            "exp run demo --set topology=wrong.toml",
            "exp run demo --on local --set topology=wrong.toml",
            "demo --set topology=wrong.toml",
            "cluster up --dir c --set topology=wrong.toml",
        ] {
            let refused = place.words(line);
            assert!(refused.err.contains("wrong.toml"), "{refused:#?}");
            refused.refused(parts);
        }
    }
    place
        .words("exp run demo --set topology=none.toml")
        .refused(&["none.toml", "No such file"]);
    place.assert_no_process_left();
}

#[test]
fn a_wrong_experiment_is_refused_by_its_field() {
    let place = Place::new();
    place.write("broken.toml", "name = 'x'\ndescription = 'y'\nwork = 3\n");
    place.write(
        "outside.toml",
        "name = '../../esc'\ndescription = 'y'\nstrategies = []\n\
         workload = { keys = 1, reads = 1, clients = 1, requests = 1 }\n",
    );
    let cases: [(&str, &[&str]); 17] = [
        (
            "outside.toml",
            &["name = \"../../esc\"", "letters, digits, '-' or '_'"],
        ),
        (
            "demo --set strategies.LL.label=../../pwn",
            &["strategies.label = \"../../pwn\"", "letters, digits"],
        ),
        (
            "demo --set requests=99999999999999999999",
            &["--set requests=99999999999999999999: out of range"],
        ),
        (
            "nonesuch",
            &[
                "\"nonesuch\"",
                "there are blackout, demo, failover",
                ".toml file",
            ],
        ),
        ("none.toml", &["none.toml: No such file"]),
        ("broken.toml", &["broken.toml", "unknown field `work`"]),
        ("demo --set requests", &["--set requests: write key=value"]),
        (
            "demo --set requests=many",
            &[
                "--set requests=many",
                "a whole number, 0 or more is expected",
            ],
        ),
        ("demo --set requests=-1", &["--set requests=-1"]),
        (
            "demo --set requests=0",
            &["workload.requests = 0", "at least 1"],
        ),
        (
            "demo --set request=3",
            &["--set request: there is no such setting", "requests"],
        ),
        ("demo --set reads=2", &["workload.reads = 2", "from 0 to 1"]),
        (
            "demo --set leader=XX",
            &["leader = XX: no such site", "JP, CA, OR, VA, IRL"],
        ),
        (
            "demo --set strategies=lease",
            &["no such strategy", "none, leader, all, quorum, fixed"],
        ),
        ("demo --set strategies=", &["name at least one strategy"]),
        ("demo --set strategies=fixed", &["strategies.fixed.ranges"]),
        (
            "demo --set lease.t_lease_ms=100",
            &["lease.renew_ms = 150", "lapse before they are renewed"],
        ),
    ];
    for (line, parts) in cases {
        place.words(&format!("exp run {line}")).refused(parts);
    }
    assert!(!place.path("results").exists(), "nothing was begun");
}

#[test]
fn a_cluster_that_cannot_start_says_why() {
    let place = Place::new();
    let up = "cluster up --dir c --set topology=near.toml";
    let port = ports(3);
    {
        let _taken = TcpListener::bind(("127.0.0.1", port + 1)).unwrap();
        let taken = place.words(&format!("{up} --client-port {port}"));
        taken.refused(&[&format!("port {}", port + 1), "not free", "--client-port"]);
    }
    place
        .words(&format!("{up} --client-port 65534"))
        .refused(&["65534", "choose a lower one"]);
    for strategy in ["lease", "fixed", "all,none"] {
        let refused = place.words(&format!("{up} --strategy {strategy}"));
        let known = "[possible values: none, leader, all, quorum, cost]";
        assert_eq!(refused.status.code(), Some(2), "{refused:#?}");
        assert!(refused.err.contains(known), "{refused:#?}");
    }
    place
        .words(&format!("{up} --set strategies=all,none"))
        .refused(&["strategy: all, none; name one"]);
    place.words(&format!("{up} --set leader=XX")).refused(&[
        "leader = XX",
        "CA, OR, JP",
        "--set leader=CA",
    ]);
    std::fs::write(place.path("file"), "").unwrap();
    let file = "cluster up --dir file --set topology=near.toml";
    place.words(file).refused(&["file", "creating"]);
    place
        .words("cluster status --dir none")
        .refused(&["no cluster is up in none", "cluster up --dir none"]);
    place
        .words("kv --dir none get x")
        .refused(&["no cluster is up in none", "cluster up --dir none"]);
    place.words("kv get x").refused(&[
        "no cluster is up in leasehold-cluster",
        "--dir or --address",
    ]);
    place
        .words("cluster down --dir none")
        .refused(&["no cluster is up in none"]);
    place.assert_no_process_left();
}

#[test]
fn a_cluster_is_not_started_twice_nor_over_others_data() {
    let cluster = Cluster::up();
    cluster.kv("put greeting hello").good();
    cluster.up_again().refused(&[
        "up in c already",
        "`leasehold cluster down --dir c` ends it",
    ]);
    assert_eq!(
        cluster.kv("get greeting").good(),
        "hello\n",
        "and the first goes on"
    );
    cluster
        .kv("--site XX get greeting")
        .refused(&["no site 'XX'", "CA, OR, JP"]);
    cluster.down().good();
    let other = NEAR.replace("JP", "BR");
    cluster.place.write("near.toml", &other);
    let fix = "--set topology=FILE";
    cluster
        .up_again()
        .refused(&["with the sites CA, OR, JP", "CA, OR, BR were", fix]);
    cluster.place.write("near.toml", NEAR);
    let up = format!("cluster up --dir c --client-port {}", cluster.port);
    cluster
        .place
        .words(&up)
        .refused(&["with the sites CA, OR, JP", "JP, CA, OR, VA, IRL", fix]);
    let up = format!("{up} --set topology=near.toml");
    cluster.place.words(&up).refused(&[
        "data in c is",
        "--set lease.t_guard_ms=500",
        "--set lease.t_guard_ms=750",
    ]);
    cluster
        .place
        .words(&format!("{up} --strategy all"))
        .refused(&["with strategy 'quorum'", "'all' was asked for"]);
    cluster.up_again().good();
    assert_eq!(cluster.kv("get greeting").good(), "hello\n");
    cluster.done();
}

#[test]
fn a_damaged_state_says_how_to_end_the_cluster() {
    let cluster = Cluster::up();
    let state = cluster.place.read("c/state.json");
    cluster.place.write("c/state.json", &state[..20]);
    for line in [
        "cluster status --dir c",
        "cluster down --dir c",
        "kv --dir c get x",
        "cluster up --dir c",
    ] {
        cluster.place.words(line).refused(&[
            "c/state.json is damaged",
            "`leasehold cluster run` with `--dir c`",
            "remove that file",
        ]);
    }
    signal("TERM", cluster.supervisor());
    cluster.place.assert_no_process_left();
    cluster.up_again().good();
    cluster.done();
}

#[test]
fn what_is_too_large_is_refused_with_its_limit() {
    let cluster = Cluster::up();
    cluster.kv("put greeting hello").good();
    let key = "k".repeat(4097);
    let limit = "the limit is 4096 bytes";
    cluster
        .kv(&format!("put {key} v"))
        .refused(&["put.key is 4097 bytes", limit]);
    cluster
        .kv(&format!("get {key}"))
        .refused(&["4097 bytes", limit]);
    let value = cluster.place.write("value", &"v".repeat((1 << 20) + 1));
    let put = ["kv", "--dir", "c", "put", "large", "-"];
    let input = std::fs::File::open(value).unwrap();
    let limit = "the limit is 1048576 bytes";
    let refused = cluster.place.start(&put, input.into()).wait();
    refused.refused(&["put.value is 1048577 bytes", limit]);
    cluster.kv("get large").refused(&["there is no such key"]);
    let empty = cluster.place.run(&["kv", "--dir", "c", "put", "", "v"]);
    empty.refused(&["put.key is empty", "1 to 4096"]);
    cluster
        .kv("scan --limit 0")
        .refused(&["--limit: 0", "give 1 or more"]);
    cluster
        .kv("cas greeting soon x")
        .refused(&["'soon' is no version", "slot.index"]);
    cluster
        .kv("--timeout 0 get greeting")
        .refused(&["--timeout", "above 0 and below 1000000"]);
    cluster
        .kv("--timeout 100000000 get greeting")
        .refused(&["--timeout: 100000000 is not", "below 1000000"]);

    let most = cluster.place.write("value", &"v".repeat(1 << 20));
    let input = std::fs::File::open(most).unwrap();
    cluster.place.start(&put, input.into()).wait().good();
    assert_eq!(
        cluster.kv("--site JP get large").good().len(),
        (1 << 20) + 1
    );
    assert_eq!(cluster.kv("get greeting").good(), "hello\n");
    cluster.done();
}

#[test]
fn an_address_that_is_no_replicas_is_told() {
    let place = Place::new();
    place
        .words("kv --address here get x")
        .refused(&["'here' is no HOST:PORT"]);
    let port = ports(1);
    // At once: the timeout is longer than this test waits.
    let nobody = format!("kv --timeout 600 --address 127.0.0.1:{port} get x");
    place
        .words(&nobody)
        .refused(&[&format!("cannot connect to 127.0.0.1:{port}")]);
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let answers = std::thread::spawn(move || {
        use std::io::Write as _;
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        // The client hangs up.
        let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
    });
    place
        .words(&nobody)
        .refused(&["not a replica's client port"]);
    answers.join().unwrap();
}

#[test]
fn a_number_that_a_flag_does_not_take_is_refused_by_the_flags_name() {
    let place = Place::new();
    for (line, flag) in [
        ("sim --hours -1", "--hours"),
        ("sim --seeds -1", "--seeds"),
        ("sim --seed -1", "--seed"),
        ("sim --drift-ppm -1", "--drift-ppm"),
        ("kv scan --limit -1", "--limit"),
    ] {
        place.words(line).misused(&["'-1'", flag]);
    }
    place
        .words("kv get x --timeout -1")
        .refused(&["--timeout: -1"]);
    place
        .words("kv --address 127.0.0.1:1 get x --site JP")
        .refused(&["--address and --site"]);
}

/// Standard output may go to a file on a full disk, or to a pipe that its reader has closed.
#[test]
fn what_cannot_be_printed_ends_a_command_without_a_panic() {
    for line in ["completions bash", "exp show fig6", "exp list"] {
        let print = |to: Stdio| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
            command.args(line.split_whitespace()).stdout(to);
            command.output().unwrap()
        };
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = print(full.into());
        assert_eq!(ended.status.code(), Some(1), "{line}: {ended:?}");
        let output = String::from_utf8_lossy(&ended.stderr);
        assert!(
            output.contains("standard output: No space left"),
            "{output}"
        );
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = print(writer.into());
        assert_eq!(ended.status.code(), Some(0), "{line}: {ended:?}");
        assert!(ended.stderr.is_empty(), "{line}: {ended:?}");
    }
}

#[test]
fn wrong_properties_are_refused_by_name() {
    let place = Place::new();
    let port = ports(1);
    let cases: [(&str, &[&str]); 11] = [
        ("jump", &["\"jump\"", "load or run", "--help"]),
        (
            "run -P none.properties",
            &["none.properties", "No such file"],
        ),
        (
            "run -P workloada",
            &["leasehold.address is not set", "--address"],
        ),
        (
            "run --address here",
            &["leasehold.address", "\"here\"", "HOST:PORT"],
        ),
        (
            "run --address HERE -P workloada -p recordcount=many",
            &["recordcount", "\"many\""],
        ),
        (
            "run --address HERE -P workloada -p readproportion=-1",
            &["readproportion", "-1"],
        ),
        (
            "run --address HERE -P workloada -p requestdistribution=normal",
            &["requestdistribution", "\"normal\"", "zipfian"],
        ),
        (
            "run --address HERE -P workloada -p threadcount=0",
            &["threadcount", "0"],
        ),
        (
            "run --address HERE -P workloada -p workload=org.example.Mine",
            &["workload", "org.example.Mine", "CoreWorkload"],
        ),
        (
            "run --address HERE -P workloada -p exportfile=/no/such/folder/report",
            &["cannot write /no/such/folder/report"],
        ),
        (
            "run --address HERE --speed 3",
            &["unknown option --speed", "--help"],
        ),
    ];
    let here = format!("127.0.0.1:{port}");
    for (line, parts) in cases {
        let line = line.replace("HERE", &here);
        let refused = place.words(&format!("ycsb {line}"));
        refused.refused(parts);
    }
    place
        .words(&format!("ycsb run --address {here} -P workloada"))
        .refused(&[&format!("cannot connect to {here}")]);
}
