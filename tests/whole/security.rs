//! Tests of certificates, from the command that creates them to the clients that trust them.

use std::process::Stdio;

use super::support::{Place, ports, until};

/// Returns the configuration of a cluster of one node, with this text as its `security` table.
fn alone(port: u16, host: &str, security: &str) -> String {
    format!(
        "cluster = \"pantry\"\ndata = \"data\"\n{security}\n[[node]]\nname = \"A\"\n\
         client = \"127.0.0.1:{port}\"\npeer = \"{host}:{}\"\n",
        port + 1
    )
}

const SERVE: [&str; 6] = [
    "serve",
    "--config",
    "pantry.toml",
    "--node",
    "A",
    "--until-stdin-closes",
];

#[test]
fn a_stranger_secures_a_cluster_with_what_the_errors_say() {
    let place = Place::new();
    let port = ports(2);
    place.write("pantry.toml", &alone(port, "0.0.0.0", ""));
    place.run(&SERVE).refused_for_good(&[
        "peer of node A is \"0.0.0.0",
        "`leasehold cert DIR --config pantry.toml`",
        "secret = \"FILE\"",
        "insecure = true",
    ]);
    let made = place.words("cert certs --config pantry.toml").good();
    assert!(
        made.contains("a new authority") && made.contains("A: new, valid until"),
        "{made}"
    );
    assert!(made.contains("certificates = \"certs\""), "{made}");
    std::fs::create_dir(place.path("etc")).unwrap();
    place.write("etc/pantry.toml", &alone(port, "0.0.0.0", ""));
    for (directory, named) in [
        ("etc/certs", "certs".to_owned()),
        ("certs", place.path("certs").display().to_string()),
    ] {
        let made = place
            .words(&format!("cert {directory} --config etc/pantry.toml"))
            .good();
        let wanted = format!("certificates = \"{named}\"");
        assert!(made.contains(&wanted), "paths begin at the file: {made}");
    }
    let again = place.words("cert certs --config pantry.toml").good();
    assert!(
        again.contains("A: kept") && !again.contains("a new authority"),
        "{again}"
    );
    let security = "[security]\ncertificates = \"certs\"";
    place.write("pantry.toml", &alone(port, "0.0.0.0", security));
    let printed = place.words("cert --print-ca --config pantry.toml").good();
    assert_eq!(printed, place.read("certs/ca.pem"));

    let mut replica = place.start(&SERVE, Stdio::piped());
    let kv = |line: &str| place.words(&format!("kv --address 127.0.0.1:{port} {line}"));
    let put = "put greeting hello --ca certs/ca.pem";
    until("the replica", || kv(put).status.success());
    kv("get greeting").refused(&["this port speaks TLS", "--ca FILE"]);
    assert_eq!(kv("get greeting --ca certs/ca.pem").good(), "hello\n");
    kv("get greeting --ca certs/ca.key").refused(&["ca.key", "holds no certificate"]);
    kv("get greeting --ca nowhere.pem").refused(&["nowhere.pem", "ca.pem"]);
    let status = format!("cluster status --limits --address 127.0.0.1:{port}");
    let limits = place.words(&format!("{status} --ca certs/ca.pem")).good();
    for row in [
        "bytes in flight, one connection",
        "sessions opened here in a second",
    ] {
        assert!(limits.contains(row), "{limits}");
    }
    place.words(&status).refused(&["this port speaks TLS"]);
    let renewed = place
        .words("cert certs --config pantry.toml --renew")
        .good();
    assert!(renewed.contains("A: renewed, valid until"), "{renewed}");
    assert_eq!(kv("get greeting --ca certs/ca.pem").good(), "hello\n");
    let ycsb = format!(
        "ycsb load -P workloada -p recordcount=20 --ca certs/ca.pem --address 127.0.0.1:{port}"
    );
    assert!(
        place
            .words(&ycsb)
            .good()
            .contains("[INSERT], Return=OK, 20")
    );
    drop(replica.child.stdin.take());
    replica.wait().good();
}

#[test]
fn a_shared_secret_is_enough() {
    let place = Place::new();
    let port = ports(2);
    place.write("secret", "short\n");
    place.write(
        "pantry.toml",
        &alone(port, "127.0.0.1", "[security]\nsecret = \"secret\""),
    );
    place.run(&SERVE).refused_for_good(&["secret", "chmod 600"]);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(place.path("secret"), mode).unwrap();
    place
        .run(&SERVE)
        .refused_for_good(&["5 bytes are no secret", "/dev/urandom"]);
    place.write("secret", "Hn2Q0yJt1rXvB8kKxF5cV3mWz7pLd9Sg\n");
    let ca = place.words("cert --print-ca --config pantry.toml").good();
    place.write("ca.pem", &ca);
    let mut replica = place.start(&SERVE, Stdio::piped());
    let kv = |line: &str| place.words(&format!("kv --address 127.0.0.1:{port} {line}"));
    let put = "put greeting hello --ca ca.pem";
    until("the replica", || kv(put).status.success());
    drop(replica.child.stdin.take());
    replica.wait().good();
}

#[test]
fn a_data_directory_that_others_may_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    place.write("pantry.toml", &alone(ports(2), "127.0.0.1", ""));
    let warnings = || {
        let mut node = place.start(&SERVE, Stdio::piped());
        until("the node to serve", || node.err().contains("serving"));
        drop(node.child.stdin.take());
        let errors = node.wait().err;
        let fix = format!("chmod 700 {}", place.path("data/A").display());
        let relative = errors.matches("chmod 700 data/A").count();
        relative + errors.matches(&fix).count()
    };
    assert_eq!(warnings(), 0);
    let directory = place.path("data/A");
    let mode = directory.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&directory, open).unwrap();
    assert_eq!(warnings(), 1);
}

#[test]
fn a_node_that_is_open_on_purpose_says_so() {
    let place = Place::new();
    let open = alone(ports(2), "127.0.0.1", "[security]\ninsecure = true");
    place.write("pantry.toml", &open);
    let mut node = place.start(&SERVE, Stdio::piped());
    until("the node to serve", || node.err().contains("serving"));
    let errors = node.err();
    let warnings = errors.matches("insecure = true: whoever reaches").count();
    assert_eq!(warnings, 1, "{errors}");
    drop(node.child.stdin.take());
    node.wait().good();
}
