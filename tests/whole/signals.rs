//! Signals to end that arrive before a replica serves.

use std::path::Path;
use std::process::{Command, Stdio};

use super::bad_input::alone;
use super::support::{CommandOutput, Place, ports, signal, until};

const SERVE: [&str; 5] = ["serve", "--config", "cluster.toml", "--node", "CA"];
const HERE: &str = "exec \"$0\" \"$@\"";
/// Shell command that starts a program as process 1, as in a container. Process 1 ignores every
/// signal that it does not handle.
const FIRST: &str = "exec unshare --pid --fork --kill-child \"$0\" \"$@\"";
/// File that a replica reads at its start, before the store is open.
const LOG: &str = "data/CA/000001.log";

/// Returns true if this user may start process 1 of a new namespace. Otherwise prints the reason.
fn may_unshare() -> bool {
    let tried = Command::new("unshare")
        .args(["--pid", "--fork", "true"])
        .output();
    let why = match tried {
        Ok(done) if done.status.success() => return true,
        Ok(refused) => String::from_utf8_lossy(&refused.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    leasehold_ycsb::note!("skipped, for no process can be the first: {}", why.trim());
    false
}

/// Returns a file that takes longer to read than any test. It has no contents, and is in memory.
fn endless() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    file.as_file().set_len(1 << 60).unwrap();
    file
}

/// Whether any replica has the file open. A child of this process that has not become another
/// program yet has it open, too, and does not count.
fn is_read(file: &Path) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let replicas = processes.filter(|process| {
        let name = std::fs::read_to_string(process.path().join("comm"));
        name.is_ok_and(|name| name.trim_end() == "leasehold")
    });
    let open = replicas.flat_map(|it| std::fs::read_dir(it.path().join("fd")));
    let mut open = open.flatten().flatten();
    open.any(|open| std::fs::read_link(open.path()).is_ok_and(|open| open == file))
}

/// Sends TERM once, while a starting replica reads a log that does not end. If `goes_on`, the log
/// ends after the replica has reported the signal.
fn terminated_while_opening(line: &str, goes_on: bool) -> CommandOutput {
    let place = Place::new();
    place.write("cluster.toml", &alone(ports(2)));
    make_store(&place);
    let log = endless();
    std::os::unix::fs::symlink(log.path(), place.path(LOG)).unwrap();

    let replica = place.start_in_shell(line, &SERVE, Stdio::null());
    until("the replica to read the log", || is_read(log.path()));
    // RocksDB, which comes later, does not find it.
    std::fs::remove_file(place.path(LOG)).unwrap();
    signal("TERM", place.replica("CA"));
    if goes_on {
        until("the replica to be told", || {
            replica.err().contains("told to end")
        });
        log.as_file().set_len(0).unwrap();
        let ended = replica.wait();
        assert!(!ended.err.contains("serving"), "{ended:#?}");
        return ended;
    }
    replica.wait()
}

/// Runs a replica in this directory, so that it has a store.
fn make_store(place: &Place) {
    let replica = place.start(&SERVE, Stdio::null());
    until("the replica", || replica.err().contains("serving"));
    signal("TERM", replica.child.id());
    replica.wait().good();
}

#[test]
fn a_replica_that_is_told_to_end_while_it_opens_its_directory_does() {
    terminated_while_opening(HERE, true).good();
}

#[test]
fn process_1_that_is_told_to_end_while_it_opens_its_directory_does() {
    if may_unshare() {
        terminated_while_opening(FIRST, true).good();
    }
}

#[test]
fn process_1_whose_directory_hangs_ends_all_the_same() {
    if may_unshare() {
        let ended = terminated_while_opening(FIRST, false);
        assert!(!ended.status.success(), "{ended:#?}");
        assert!(ended.err.contains("not ended in time"), "{ended:#?}");
    }
}
