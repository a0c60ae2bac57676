//! Tests of the client library's examples. They are run as the README of the library tells a new
//! user.

use std::path::Path;
use std::process::Command;

use super::support::Cluster;

/// Runs an example with the cluster, over TLS. Returns the text that the example printed.
fn example(cluster: &Cluster, name: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let program = program.with_file_name("examples").join(name);
    assert!(
        program.exists(),
        "{} is missing: `cargo build --release --package leasehold-client --examples` makes it",
        program.display()
    );
    let port = cluster.port;
    let output = Command::new(program)
        .arg(format!("127.0.0.1:{port},127.0.0.1:{}", port + 1))
        .arg("--ca")
        .arg(cluster.dir().join("certificates/ca.pem"))
        .env("SECONDS", "2")
        .output()
        .unwrap();
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_example_of_the_client_does_what_it_says() {
    let cluster = Cluster::up();
    for (name, expected) in [
        ("get_put", "removed"),
        ("compare_and_swap", "counted to 4"),
        ("records", "city = Paris"),
        ("several_keys", "example/list/c = 3"),
        ("transactions", "removed 5 keys"),
        ("read_paths", "answered, path"),
        ("status", "leads"),
        ("leases", "given back"),
        ("failover", "were answered by another replica"),
    ] {
        let printed = example(&cluster, name);
        assert!(printed.contains(expected), "{name}: {printed}");
    }
}
