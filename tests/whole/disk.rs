//! Tests with a store on a real file system that accepts no more writes.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::bad_input::alone;
use super::support::{CommandOutput, Place, ports, signal, until};

const SERVE: [&str; 5] = ["serve", "--config", "cluster.toml", "--node", "CA"];

/// Line of the shell that limits the size of every file to three mebibytes. If a write exceeds this
/// limit, the kernel refuses the write, as on a failed disk. By default, the kernel also sends a
/// signal that ends the process.
const LIMITED: &str = "ulimit -f 6144; exec \"$0\" \"$@\"";

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
    let mut number = 0;
    until("the log to need a longer file", || {
        number += 1;
        let put = line(&format!("--timeout 1 put large{number} -"));
        let put: Vec<&str> = put.split(' ').collect();
        let put = place.start(&put, Stdio::from(File::open(&large).unwrap()));
        !put.wait().status.success()
    });
    let ended = replica.wait();
    ended.refused(&[
        "data directory",
        "data/CA",
        "writing the log failed",
        "File too large",
    ]);

    // The last put was not acknowledged. Everything before it is there.
    let replica = place.start(&SERVE, Stdio::null());
    until("the replica", || works("get greeting"));
    assert_eq!(place.words(&line("get greeting")).good(), "hello\n");
    for number in 1..number {
        place.words(&line(&format!("get large{number}"))).good();
    }
    let last = place.words(&line(&format!("get large{number}")));
    assert_eq!(last.status.code(), Some(1));
    signal("TERM", replica.child.id());
    replica.wait().good();
}

/// A mounted file system. It is unmounted when this value is dropped.
struct Mount(PathBuf);

impl Mount {
    /// Mounts a file system. If that is not possible, prints the reason to standard error and
    /// returns `None`.
    fn at(path: PathBuf, options: &str) -> Option<Mount> {
        std::fs::create_dir(&path).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(&path)
            .output();
        let why = match mount {
            Ok(done) if done.status.success() => return Some(Mount(path)),
            Ok(refused) => String::from_utf8_lossy(&refused.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        leasehold_ycsb::note!("skipped, for no file system can be mounted: {}", why.trim());
        None
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a replica may still have files open there.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Writes a file until no space is left.
fn take_space(path: &Path) {
    let mut file = File::create(path).unwrap();
    let part = vec![1; 64 << 10];
    while file.write_all(&part).is_ok() {}
}

/// Returns a command that puts a value of 1,000 KiB.
fn put_large<'a>(place: &'a Place, port: u16) -> impl Fn(&str) -> CommandOutput + 'a {
    let large = place.write("large", &"x".repeat(1000 << 10));
    move |key: &str| {
        let line = format!("kv --address 127.0.0.1:{port} --timeout 2 put {key} -");
        let words: Vec<&str> = line.split(' ').collect();
        place
            .start(&words, Stdio::from(File::open(&large).unwrap()))
            .wait()
    }
}

#[test]
fn a_replica_on_a_full_disk_gives_up_its_reserve_and_goes_on_when_there_is_room() {
    let place = Place::new();
    let data = place.path("data");
    let Some(_disk) = Mount::at(data.clone(), "size=400m") else {
        return;
    };
    let port = ports(2);
    place.write("cluster.toml", &alone(port));
    let put = put_large(&place, port);
    let reserved = || data.join("CA/reserve").metadata().unwrap().len();
    let replica = place.start(&SERVE, Stdio::null());
    until("the replica", || put("first").status.success());
    assert_eq!(reserved(), 128 << 20);
    take_space(&data.join("taken"));
    let mut number = 0;
    until("the disk to be full", || {
        number += 1;
        !put(&format!("large{number}")).status.success()
    });
    assert_eq!(reserved(), 0);
    assert!(replica.err().contains("takes no writes"));
    // The reserve is not for new writes.
    assert!(!put("another").status.success());
    // A start does not take new writes either, and neither start nor end needs room.
    signal("TERM", replica.child.id());
    replica.wait().good();
    let replica = place.start(&SERVE, Stdio::null());
    until("the replica", || replica.err().contains("serving"));
    assert!(replica.err().contains("until 160 MiB are free"));
    std::fs::remove_file(data.join("taken")).unwrap();
    until("the replica to go on", || put("after").status.success());
    assert_eq!(reserved(), 128 << 20);
    for number in 1..number {
        place
            .words(&format!("kv --address 127.0.0.1:{port} get large{number}"))
            .good();
    }
    signal("TERM", replica.child.id());
    replica.wait().good();
}

/// RocksDB does not resume by itself soon, and would take more than a minute to close.
#[test]
fn a_replica_whose_store_refuses_writes_ends_in_time() {
    let place = Place::new();
    let data = place.path("data");
    let Some(_disk) = Mount::at(data.clone(), "size=120m") else {
        return;
    };
    let port = ports(2);
    place.write("cluster.toml", &alone(port));
    let put = put_large(&place, port);
    let replica = place.start(&SERVE, Stdio::null());
    until("the replica", || put("first").status.success());
    assert!(!data.join("CA/reserve").exists());
    take_space(&data.join("taken"));
    // The flush of the state needs room, and the log does not.
    until("the flush to be refused", || {
        replica.err().contains("takes no writes")
    });
    signal("TERM", replica.child.id());
    replica.wait().good();
    std::fs::remove_file(data.join("taken")).unwrap();
    let replica = place.start(&SERVE, Stdio::null());
    let get = || place.words(&format!("kv --address 127.0.0.1:{port} get first"));
    until("the replica", || get().status.success());
    signal("TERM", replica.child.id());
    replica.wait().good();
}

/// Creates files until no inode is left.
fn take_inodes(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let taken = (0..).take_while(|it: &u32| std::fs::write(dir.join(it.to_string()), "").is_ok());
    assert!(taken.count() > 0);
}

#[test]
fn a_replica_without_inodes_goes_on_when_there_are_some_again() {
    let place = Place::new();
    let data = place.path("data");
    let Some(_disk) = Mount::at(data.clone(), "size=256m,nr_inodes=200") else {
        return;
    };
    let port = ports(2);
    place.write("cluster.toml", &alone(port));
    let large = place.write("large", &"x".repeat(1000 << 10));
    let kv = |line: &str| {
        let line = format!("kv --address 127.0.0.1:{port} {line}");
        let words: Vec<&str> = line.split(' ').collect();
        let input = Stdio::from(File::open(&large).unwrap());
        place.start(&words, input).wait()
    };
    let replica = place.start(&SERVE, Stdio::null());
    until("the replica", || kv("put greeting hello").status.success());
    take_inodes(&data.join("taken"));
    // Its log takes some MiB before it needs another file.
    let mut number = 0;
    until("the store to need a file", || {
        number += 1;
        !kv(&format!("--timeout 2 put large{number} -"))
            .status
            .success()
    });
    assert!(replica.err().contains("takes no writes"));
    std::fs::remove_dir_all(data.join("taken")).unwrap();
    until("the replica to go on", || {
        kv("--timeout 2 put greeting hello").status.success()
    });
    signal("TERM", replica.child.id());
    replica.wait().good();

    let replica = place.start(&SERVE, Stdio::null());
    until("the replica", || kv("get greeting").status.success());
    assert_eq!(kv("get greeting").good(), "hello\n");
    for number in 1..number {
        kv(&format!("get large{number}")).good();
    }
    signal("TERM", replica.child.id());
    replica.wait().good();
}

/// Checks that a replica ends when its directory is taken away, and starts again when the directory
/// is back. If `writes` is true, the replica notices the loss at a write. If `writes` is false, the
/// replica notices the loss when it is told to end.
fn taken_away(take: impl Fn(&Place), put_back: impl Fn(&Place), writes: bool) {
    let place = Place::new();
    let port = ports(2);
    place.write("cluster.toml", &alone(port));
    let kv = |line: &str| place.words(&format!("kv --address 127.0.0.1:{port} {line}"));
    let replica = place.start(&SERVE, Stdio::null());
    until("the replica", || kv("put greeting hello").status.success());
    take(&place);
    if writes {
        kv("--timeout 1 put greeting again");
    } else {
        signal("TERM", replica.child.id());
    }
    replica
        .wait()
        .lost_data(&["data/CA: it was", "while this node ran"]);
    put_back(&place);
    let replica = place.start(&SERVE, Stdio::null());
    until("the replica", || kv("put greeting hello").status.success());
    signal("TERM", replica.child.id());
    replica.wait().good();
}

#[test]
fn a_replica_whose_directory_is_taken_away_ends() {
    let rename = |place: &Place, from: &str, to: &str| {
        std::fs::rename(place.path(from), place.path(to)).unwrap();
    };
    for writes in [true, false] {
        // Alone, it begins again without data.
        let delete = |place: &Place| std::fs::remove_dir_all(place.path("data/CA")).unwrap();
        taken_away(delete, |_| {}, writes);
        let moved = |place: &Place| rename(place, "data", "elsewhere");
        let back = |place: &Place| rename(place, "elsewhere", "data");
        taken_away(moved, back, writes);
        let replaced = |place: &Place| {
            rename(place, "data/CA", "before");
            let copied = Command::new("cp")
                .arg("-a")
                .args([place.path("before"), place.path("data/CA")])
                .status();
            assert!(copied.unwrap().success());
        };
        let back = |place: &Place| {
            std::fs::remove_dir_all(place.path("data/CA")).unwrap();
            rename(place, "before", "data/CA");
        };
        taken_away(replaced, back, writes);
    }
}

#[test]
fn a_replica_whose_file_system_is_unmounted_lazily_ends() {
    let place = Place::new();
    let Some(disk) = Mount::at(place.path("data"), "size=256m") else {
        return;
    };
    let port = ports(2);
    place.write("cluster.toml", &alone(port));
    let kv = |line: &str| place.words(&format!("kv --address 127.0.0.1:{port} {line}"));
    let replica = place.start(&SERVE, Stdio::null());
    until("the replica", || kv("put greeting hello").status.success());
    drop(disk);
    kv("--timeout 1 put greeting again");
    replica.wait().lost_data(&["data/CA: it was", "unmounted"]);
}
