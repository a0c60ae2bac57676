//! Tests of `leasehold inspect` on the directory of a real replica.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::bad_input::alone;
use super::support::{Place, RunningCommand, ports, signal, until};

const SERVE: [&str; 5] = ["serve", "--config", "cluster.toml", "--node", "CA"];
const DATA: &str = "data/CA";

/// A replica that is a cluster by itself.
struct LoneNode<'a> {
    place: &'a Place,
    port: u16,
    replica: RunningCommand<'a>,
}

impl LoneNode<'_> {
    fn start(place: &Place) -> LoneNode<'_> {
        let port = ports(2);
        // The state is flushed soon.
        let config = alone(port) + "[timing]\ncheckpoint_ms = 100\n";
        place.write("cluster.toml", &config);
        let replica = place.start(&SERVE, Stdio::null());
        let node = LoneNode {
            place,
            port,
            replica,
        };
        until("the replica", || node.puts("greeting hello"));
        node
    }

    fn puts(&self, words: &str) -> bool {
        let line = format!("kv --address 127.0.0.1:{} put {words}", self.port);
        self.place.words(&line).status.success()
    }

    fn end(self, signal_name: &str) {
        signal(signal_name, self.replica.child.id());
        self.replica.wait();
    }
}

/// Returns a place with the directory of a node that has some data, and was killed.
fn stopped() -> Place {
    let place = Place::new();
    let node = LoneNode::start(&place);
    for number in 0..20 {
        assert!(node.puts(&format!("key{number} value{number}")));
    }
    node.end("KILL");
    place
}

/// Contents, mode and time of change of everything in a directory, and of the directory itself.
fn listing(path: &Path) -> BTreeMap<PathBuf, (Option<Vec<u8>>, u32, SystemTime)> {
    let mut found = BTreeMap::new();
    let mut paths = vec![path.to_owned()];
    while let Some(path) = paths.pop() {
        let data = path.metadata().unwrap();
        let contents = data.is_file().then(|| fs::read(&path).unwrap());
        if data.is_dir() {
            paths.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
        found.insert(path, (contents, data.mode(), data.modified().unwrap()));
    }
    found
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the path of the segment that holds the entry of the highest slot, and the entry's
/// offset.
fn last_entry(place: &Place) -> (String, usize) {
    let lines = place
        .words(&format!("inspect log {DATA} --json --log commands"))
        .good();
    let last = json(lines.lines().last().unwrap());
    let number = last["segment"].as_u64().unwrap();
    (
        format!("log/{number:010}.seg"),
        last["byte"].as_u64().unwrap() as usize,
    )
}

#[test]
fn every_command_leaves_the_directory_as_it_was() {
    let place = stopped();
    let before = listing(&place.path(DATA));
    assert!(before.len() > 8, "{:?}", before.keys());
    for line in [
        "meta",
        "log",
        "verify",
        "meta --json",
        "log --json --values",
        "verify --json",
    ] {
        place.words(&format!("inspect {line} {DATA}")).good();
        assert_eq!(before, listing(&place.path(DATA)), "{line}");
    }
    let (file, byte) = last_entry(&place);
    let path = place.path(DATA).join(&file);
    let mut bytes = fs::read(&path).unwrap();
    bytes[byte + 30] ^= 1;
    fs::write(&path, bytes).unwrap();
    let before = listing(&place.path(DATA));
    for line in ["meta", "log", "verify"] {
        let damaged = place.words(&format!("inspect {line} {DATA}"));
        let text = format!("{}{}", damaged.out, damaged.err);
        assert!(text.contains(&format!("{file}, byte ")), "{line}: {text}");
        damaged.refused(&["data/CA"]);
        assert_eq!(before, listing(&place.path(DATA)), "{line}");
    }
}

#[test]
fn a_directory_in_use_is_refused_and_the_replica_goes_on() {
    let place = Place::new();
    let node = LoneNode::start(&place);
    let process = format!("process {} is using it", node.replica.child.id());
    for line in ["meta", "log", "verify"] {
        let refused = place.words(&format!("inspect {line} {DATA}"));
        assert_eq!(refused.out, "", "{line}");
        refused.refused(&["data/CA", &process, "stop that node"]);
    }
    // The lock of the replica is untouched.
    place.write("again.toml", &alone(ports(2)));
    place
        .words("serve --config again.toml --node CA")
        .refused(&["in use by another process"]);
    assert!(node.puts("greeting again"));
    node.end("TERM");
    place.words(&format!("inspect verify {DATA}")).good();
}

#[test]
fn a_summary_names_the_node_and_what_it_has_executed() {
    let place = stopped();
    let text = place.words(&format!("inspect meta {DATA}")).good();
    for part in [
        "cluster          test",
        "replica          CA, id 0",
        "joined           ",
        "0000000001",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let found = json(&place.words(&format!("inspect meta {DATA} --json")).good());
    assert_eq!(found["format"], 9);
    assert_eq!(found["replica"]["name"], "CA");
    assert_eq!(found["facts"]["incarnation"], 1);
    assert_eq!(found["facts"]["promised"]["replica"], "CA");
    assert_eq!(found["marker"]["created"], true);
    assert_eq!(found["marker"]["last_group"], found["log"]["last_group"]);
    assert_eq!(found["problems"], Value::Array(Vec::new()));
    let slots = &found["log"]["segments"][0]["commands"];
    assert!(slots[1].as_u64().unwrap() >= 21, "{slots}");
    let mut found = Value::Null;
    until("the state to be flushed", || {
        let node = LoneNode::start(&place);
        std::thread::sleep(Duration::from_millis(300));
        node.end("TERM");
        found = json(&place.words(&format!("inspect meta {DATA} --json")).good());
        found["state"]["keys"] == 21
    });
    assert_eq!(found["marker"]["flushed_slot"], found["state"]["executed"]);
    assert!(found["facts"]["incarnation"].as_u64() > Some(1));
    assert_eq!(found["facts"]["restart_wait_ms"], 0.0);
}

#[test]
fn a_log_shows_operations_facts_and_configurations() {
    let place = stopped();
    let log = |options: &str| place.words(&format!("inspect log {DATA} {options}")).good();
    let all = log("");
    for part in [
        "put \"greeting\", 5 bytes",
        "put \"key7\", 6 bytes",
        "incarnation 1",
        "promised ballot",
        "strategy leader",
        "no-op",
    ] {
        assert!(all.contains(part), "{part:?} is not in {all}");
    }
    assert!(!all.contains("value7"));
    assert!(log("--values").contains("put \"key7\", = \"value7\""));
    let configs = log("--log configs");
    assert!(
        configs.contains("strategy leader") && !configs.contains("put "),
        "{configs}"
    );
    assert!(!configs.contains("promised ballot"), "{configs}");
    assert!(log("--log configs --facts").contains("promised ballot"));
    let lines = log("--json --log commands --from 5 --to 9");
    let entries: Vec<Value> = lines.lines().map(json).collect();
    let of_kind = entries.iter().filter(|it| it["kind"] == "commands");
    let slots: Vec<u64> = of_kind.map(|it| it["slot"].as_u64().unwrap()).collect();
    assert_eq!(slots, [5, 6, 7, 8, 9]);
    let none = place.words(&format!("inspect log {DATA} --json --from 1000000"));
    assert!(none.err.contains("no record"), "{none:?}");
    place
        .words(&format!("inspect log {DATA} --log other"))
        .misused(&["--log"]);
}

/// A command ends early and without an error if the reader of its output stops reading.
#[test]
fn a_reader_of_a_log_may_stop_early() {
    let place = stopped();
    let shell = format!("{{ \"$0\" inspect log {DATA}; echo $? >status; }} | head -n 1 >first");
    let ended = place.start_in_shell(&shell, &[], Stdio::null()).wait();
    assert_eq!(ended.err, "", "{ended:#?}");
    assert_eq!(place.read("status"), "0\n");
    assert!(place.read("first").starts_with("segment"));
}

#[test]
fn a_check_names_every_problem_and_a_torn_write_is_none() {
    let place = stopped();
    let text = place.words(&format!("inspect verify {DATA}")).good();
    assert!(text.contains("a start would succeed"), "{text}");
    let (file, byte) = last_entry(&place);
    let path = place.path(DATA).join(&file);
    let whole = fs::read(&path).unwrap();

    let mut torn = whole.clone();
    let end = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let end = (end + 1).next_multiple_of(512);
    torn[end..end + 100].fill(b'x');
    fs::write(&path, torn).unwrap();
    let text = place.words(&format!("inspect verify {DATA}")).good();
    assert!(
        text.contains(&format!("torn: {file}, byte {end}: 100 bytes")),
        "{text}"
    );

    let mut damaged = whole.clone();
    damaged[byte + 20] ^= 1;
    fs::write(&path, damaged).unwrap();
    let found = place.words(&format!("inspect verify {DATA}"));
    for part in [
        &*format!("problem: {file}, byte"),
        "effect: a start refuses",
        "advice: do not start",
    ] {
        assert!(found.out.contains(part), "{part:?} is not in {found:#?}");
    }
    found.refused(&["1 problem was found", "would not succeed"]);
    let found = place.words(&format!("inspect verify {DATA} --json"));
    let verdict = json(&found.out);
    assert_eq!(verdict["ok"], false);
    assert_eq!(verdict["problems"][0]["effect"], "refused");
    place.run(&SERVE).refused_for_good(&[&*file]);
    fs::write(&path, whole).unwrap();
    place.words(&format!("inspect verify {DATA}")).good();
}

#[test]
fn other_paths_are_refused_with_advice() {
    let place = stopped();
    fs::create_dir(place.path("empty")).unwrap();
    for (path, parts) in [
        ("data", ["contains the directories of nodes", "data/CA"]),
        ("empty", ["is empty", "the name of the node"]),
        ("none", ["no such directory", "the name of the node"]),
        ("cluster.toml", ["not a directory", "the name of the node"]),
    ] {
        place
            .words(&format!("inspect verify {path}"))
            .refused(&parts);
    }
    fs::remove_file(place.path("data/CA/LEASEHOLD")).unwrap();
    place
        .words("inspect verify data/CA")
        .refused(&["LEASEHOLD is missing", "a copy made since"]);
    assert!(!place.path("none").exists());
}
