//! Tests of small things that users of the command line meet.

use std::fs::File;
use std::process::{Command, Stdio};

use super::bad_input::alone;
use super::support::{CommandOutput, Place, RunningCommand, ports, signal, until};

const SERVE: [&str; 5] = ["serve", "--config", "cluster.toml", "--node", "CA"];

/// A replica that is a cluster by itself.
pub struct StandaloneReplica<'a> {
    pub place: &'a Place,
    port: u16,
    replica: RunningCommand<'a>,
}

impl StandaloneReplica<'_> {
    pub fn start(place: &Place) -> StandaloneReplica<'_> {
        let port = ports(2);
        place.write("cluster.toml", &alone(port));
        let replica = place.start(&SERVE, Stdio::null());
        let alone = StandaloneReplica {
            place,
            port,
            replica,
        };
        until("the replica", || {
            alone.kv("put greeting hello").status.success()
        });
        alone
    }

    pub fn words(&self, line: &str) -> Vec<String> {
        let line = format!("kv --address 127.0.0.1:{} {line}", self.port);
        line.split(' ').map(str::to_owned).collect()
    }

    pub fn kv(&self, line: &str) -> CommandOutput {
        self.place.run(&self.words(line))
    }

    /// Runs a `kv` command with a file as its standard input.
    pub fn kv_from(&self, file: &str, line: &str) -> CommandOutput {
        let input = File::open(self.place.path(file)).unwrap();
        self.place.start(&self.words(line), input.into()).wait()
    }

    /// Runs a `kv` command by a line of the shell.
    pub fn kv_in_shell(&self, shell: &str, line: &str) -> CommandOutput {
        let words = self.words(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let started = self.place.start_in_shell(shell, &words, Stdio::null());
        started.wait()
    }

    pub fn done(self) {
        signal("TERM", self.replica.child.id());
        self.replica.wait().good();
    }
}

#[test]
fn a_value_of_cas_may_come_from_standard_input() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    place.write("value", "from a file");
    alone.kv_from("value", "cas key absent -").good();
    assert_eq!(alone.kv("get key").good(), "from a file\n");
    alone.done();
}

#[test]
fn a_reader_that_stops_early_is_no_error() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    // Far more than a pipe holds.
    place.write("large", &"x".repeat(900_000));
    alone.kv_from("large", "put large -").good();
    for line in ["scan", "get large"] {
        let shell = "{ \"$0\" \"$@\"; echo $? >status; } | head -c 1";
        let ended = alone.kv_in_shell(shell, line);
        assert_eq!(ended.err, "", "{line}: {ended:#?}");
        assert_eq!(place.read("status"), "0\n", "{line}");
    }
    alone.done();
}

#[test]
fn what_a_pipe_gets_are_the_bytes_but_keys_stay_on_their_line() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    place.write("value", "\u{1b}[31m\n");
    let put = ["put", "a\tkey\u{1b}", "-"].map(str::to_owned);
    let words = [alone.words("--timeout 10"), put.to_vec()].concat();
    let input = File::open(place.path("value")).unwrap();
    place.start(&words, input.into()).wait().good();
    let scanned = alone.kv("scan a b").good();
    assert_eq!(scanned, "a\\tkey\\u{1b}\t\u{1b}[31m\n\n");
    alone.done();
}

#[test]
fn the_peers_port_is_told_from_the_clients_at_once() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    for line in ["get x", "put x y"] {
        let peers = alone.port + 1;
        let asked = place.words(&format!("kv --address 127.0.0.1:{peers} {line}"));
        assert!(!asked.err.contains("taken effect"), "{asked:#?}");
        asked.refused(&["cannot connect", "port for other replicas", "for clients"]);
    }
    alone.done();
}

#[test]
fn an_empty_variable_of_the_environment_counts_as_none() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    let empty = "LEASEHOLD_CA= LEASEHOLD_TOKEN_FILE= exec \"$0\" \"$@\"";
    assert_eq!(alone.kv_in_shell(empty, "get greeting").good(), "hello\n");
    let load = format!(
        "ycsb load -P workloada -p recordcount=1 --address 127.0.0.1:{}",
        alone.port
    );
    let load: Vec<&str> = load.split(' ').collect();
    let loaded = place.start_in_shell(empty, &load, Stdio::null());
    loaded.wait().good();
    for (variable, parts) in [
        ("LEASEHOLD_CA", ["LEASEHOLD_CA: none.pem", "No such file"]),
        (
            "LEASEHOLD_TOKEN_FILE",
            ["LEASEHOLD_TOKEN_FILE, the file", "none.pem"],
        ),
    ] {
        let shell = format!("{variable}=none.pem exec \"$0\" \"$@\"");
        alone.kv_in_shell(&shell, "get greeting").refused(&parts);
    }
    alone.done();
    let shell = "RUST_LOG= exec \"$0\" \"$@\"";
    let replica = place.start_in_shell(shell, &SERVE, Stdio::null());
    until("the log", || replica.err().contains("serving"));
    signal("TERM", replica.child.id());
    replica.wait().good();
}

#[test]
fn errors_of_certificates_name_the_field_and_show_no_numbers() {
    let place = Place::new();
    let config = alone(ports(2));
    place.write("cluster.toml", &config);
    place.words("cert certs --config cluster.toml").good();
    let secure = format!("{config}[security]\ncertificates = \"certs\"\n");
    place.write("cluster.toml", &secure);
    let field = "cluster.toml: security.certificates: ";
    let cut = "it was cut off";
    for (file, parts) in [
        ("certs/CA.pem", [field, "certs/CA.pem", cut]),
        ("certs/CA.key", [field, "certs/CA.key", cut]),
        ("certs/ca.pem", [field, "certs/ca.pem", cut]),
    ] {
        let whole = place.read(file);
        let half = &whole[..whole.len() / 2];
        std::fs::write(place.path(file), half).unwrap();
        let refused = place.run(&SERVE);
        assert!(!refused.err.contains(", 73, "), "{refused:#?}");
        refused.refused_for_good(&parts);
        if file == "certs/ca.pem" {
            let asked = place.words("kv --address 127.0.0.1:1 --ca certs/ca.pem get x");
            assert!(!asked.err.contains(", 73, "), "{asked:#?}");
            asked.refused(&["--ca: certs/ca.pem", cut]);
        }
        std::fs::write(place.path(file), whole).unwrap();
    }
    std::fs::remove_file(place.path("certs/CA.pem")).unwrap();
    place.run(&SERVE).refused_for_good(&[field, "certs/CA.pem"]);
    place.write("secret", "short");
    let secret = config + "[security]\nsecret = \"secret\"\n";
    place.write("cluster.toml", &secret);
    let field = "cluster.toml: security.secret: ";
    place.run(&SERVE).refused_for_good(&[field, "chmod 600"]);
    place
        .words("cert --print-ca --config cluster.toml")
        .refused(&[field, "chmod 600"]);
    place.write("certs/ca.key", "cut");
    place
        .words("cert certs --config cluster.toml")
        .refused(&["certs/ca.key"]);
}

#[test]
fn events_that_nobody_reads_hang_no_start() {
    let place = Place::new();
    place.write("cluster.toml", &alone(ports(2)));
    let made = Command::new("mkfifo").arg(place.path("pipe")).status();
    assert!(made.unwrap().success());
    let serve = [&SERVE[..], &["--events", "pipe"]].concat();
    place
        .run(&serve)
        .refused(&["--events pipe", "nobody reads this pipe"]);
    // One that is read gets them. Opened so, it waits for nobody.
    let read_up = "exec 3<>pipe; \"$0\" \"$@\" & head -n 1 <&3 >first; kill $!; wait $!";
    let replica = place.start_in_shell(read_up, &serve, Stdio::null());
    replica.wait().good();
    assert!(place.read("first").contains("\"event\""));
}

#[test]
fn the_help_of_data_commands_shows_the_format_and_warns_scripts() {
    let place = Place::new();
    let txn = place.words("kv txn --help").good();
    assert!(txn.contains("so 10 is below 9"), "{txn}");
    assert!(
        txn.contains("script should give --json or --escapes"),
        "{txn}"
    );
    let import = place.words("kv import --help").good();
    assert!(
        import.contains("{\"key\":\"k\",\"value\":\"v\"}"),
        "{import}"
    );
}
