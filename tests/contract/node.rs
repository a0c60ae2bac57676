//! Names that a running replica shows: counters, properties of a load generator's run, events, and
//! log filters.

use std::collections::BTreeSet;
use std::process::Stdio;

use leasehold_client::{Client, ClientOptions, StatusQuery};

use super::files::keys_of_json;
use super::frozen::assert_frozen;
use super::support::{Place, RunningCommand, ports, signal, until};

/// Starts the only replica of a cluster. The replica uses the log filter `filter`.
fn start<'a>(place: &'a Place, filter: &str) -> (String, RunningCommand<'a>) {
    let port = ports(2);
    let config = format!(
        "cluster = \"test\"\ndata = \"data\"\n[[node]]\nname = \"CA\"\n\
         client = \"127.0.0.1:{port}\"\npeer = \"127.0.0.1:{}\"\n",
        port + 1
    );
    place.write("cluster.toml", &config);
    let line = format!(
        "RUST_LOG={filter} exec \"$0\" serve --config cluster.toml --node CA --events events.jsonl"
    );
    let replica = place.start_in_shell(&line, &[], Stdio::null());
    let address = format!("127.0.0.1:{port}");
    until("the replica", || {
        let put = place.words(&format!("kv --address {address} put greeting hello"));
        put.status.success()
    });
    (address, replica)
}

fn counters(address: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let options = ClientOptions::new(address);
        let client = Client::connect(options).await.unwrap();
        let status = client.status(StatusQuery::default()).await.unwrap();
        status.counters.into_iter().map(|(name, _)| name).collect()
    })
}

/// Asserts that the documentation for operators describes every metric. The metric `limit_idle_s`
/// is described with the setting `idle_s`.
fn assert_described(counters: &[String]) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operating.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
    for counter in counters {
        let name = counter.strip_prefix("limit_").unwrap_or(counter);
        let name = format!("`{name}`");
        assert!(
            rows.iter().any(|row| row.contains(&name)),
            "docs/operating.md describes no {name}"
        );
    }
}

#[test]
fn counters_events_and_properties() {
    let place = Place::new();
    let (address, replica) = start(&place, "info");
    let counters = counters(&address);
    assert_described(&counters);
    assert_frozen("counters.txt", &counters.into_iter().collect());
    let load = place.words(&format!(
        "ycsb load -P workloada -p recordcount=10 -p exportfile=report.json --address {address}"
    ));
    // Properties with their values stand before anything else.
    let printed = format!("{}{}", load.out, load.err);
    load.good();
    let is_property = |line: &&str| {
        let name = line.split_once('=').map_or("", |(name, _)| name);
        !name.is_empty() && !name.contains(' ') && !line.contains(&address)
    };
    let properties: BTreeSet<_> = printed
        .lines()
        .filter(is_property)
        .map(str::to_owned)
        .collect();
    assert!(properties.len() > 20, "{printed}");
    assert_frozen("ycsb-properties.txt", &properties);
    signal("TERM", replica.child.id());
    replica.wait().good();
    let mut names = BTreeSet::new();
    for line in place.read("events.jsonl").lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let name = event["event"].as_str().unwrap().to_owned();
        let mut keys = BTreeSet::new();
        keys_of_json("", &event, &mut keys);
        names.extend(keys.into_iter().map(|key| format!("{name} {key}")));
    }
    assert_frozen("events.txt", &names);
}

/// Scripts read the JSON of `inspect`.
#[test]
fn json_of_a_stopped_node() {
    let place = Place::new();
    let (_, replica) = start(&place, "info");
    // The first one is empty.
    until("a second configuration", || {
        place.read("events.jsonl").matches("configured").count() > 1
    });
    signal("TERM", replica.child.id());
    replica.wait().good();
    let mut names = BTreeSet::new();
    for (command, options) in [("meta", ""), ("verify", ""), ("log", "--values")] {
        let line = format!("inspect {command} data/CA --json {options}");
        let printed = place.words(&line).good();
        let objects: Vec<&str> = match command {
            "log" => printed.lines().collect(),
            _ => vec![&printed],
        };
        for object in objects {
            let mut keys = BTreeSet::new();
            keys_of_json("", &serde_json::from_str(object).unwrap(), &mut keys);
            names.extend(keys.into_iter().map(|key| format!("{command} {key}")));
        }
    }
    assert_frozen("inspect.txt", &names);
}

/// Log filters that operators use in service units and scripts must keep their effect.
#[test]
fn filters_of_the_log() {
    for filter in [
        "server=info",
        "server::node=info",
        "off,server::node::serve=info",
    ] {
        let place = Place::new();
        let (_, replica) = start(&place, filter);
        assert!(!replica.err().is_empty(), "{filter} shows nothing");
        signal("TERM", replica.child.id());
        replica.wait().good();
    }
}
