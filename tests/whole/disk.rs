//! A store that cannot be written to any more, on a real file system.

use std::fs::File;
use std::process::Stdio;

use super::bad_input::alone;
use super::support::{Place, ports, signal, until};

const SERVE: [&str; 5] = ["serve", "--config", "cluster.toml", "--node", "CA"];

/// No file may grow beyond half a mebibyte: the kernel refuses the write that would make one,
/// as it does on a disk that has failed. By default it also sends a signal that ends the process.
const LIMITED: &str = "ulimit -f 512; exec \"$0\" \"$@\"";

#[test]
fn a_store_that_fails_ends_its_replica_with_an_error_and_no_signal() {
    let place = Place::new();
    let port = ports(2);
    place.write("cluster.toml", &alone(port));
    let line = |line: &str| format!("kv --address 127.0.0.1:{port} {line}");
    let works = |command: &str| place.words(&line(command)).status.success();
    let replica = place.start_in_shell(LIMITED, &SERVE, Stdio::null());
    until("the replica", || works("put greeting hello"));
    let large = place.write("large", &"x".repeat(1000 << 10));
    let put = line("--timeout 1 put large -");
    let put: Vec<&str> = put.split(' ').collect();
    let put = place.start(&put, Stdio::from(File::open(large).unwrap()));
    put.ended().refused(&[]);
    let ended = replica.ended();
    ended.refused(&[
        "data directory",
        "data/CA",
        "writing failed",
        "File too large",
    ]);

    // Nothing of it was acknowledged; all before it is there.
    let replica = place.start(&SERVE, Stdio::null());
    until("the replica", || works("get greeting"));
    assert_eq!(place.words(&line("get greeting")).good(), "hello\n");
    assert_eq!(place.words(&line("get large")).status.code(), Some(1));
    signal("TERM", replica.child.id());
    replica.ended().good();
}
