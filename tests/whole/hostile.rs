//! Hostile input: a process that connects to a replica of a running cluster may send any bytes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::{Command, Request, encode_frame, hello};

use super::support::{Cluster, Place, ports, until};

/// Returns random bytes that depend only on `seed`.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut all = (payload.len() as u32).to_be_bytes().to_vec();
    all.extend_from_slice(payload);
    all
}

/// Returns messages that no replica can decode, on the client port or on the peer port.
fn garbage() -> Vec<Vec<u8>> {
    let mut all = vec![
        b"GET / HTTP/1.1\r\nHost: leasehold\r\n\r\n".to_vec(),
        vec![0xFF; 4096],
        vec![0; 4096],
        // Longer than any frame may be; whole and empty; promised and never sent.
        (4 * 1024 * 1024 + 1u32).to_be_bytes().to_vec(),
        frame(b""),
        vec![0, 0, 16, 0, 1, 2, 3],
        frame(&vec![7; 4 << 20]),
    ];
    for seed in 0..40 {
        all.push(noise(seed, 1 + seed as usize * 37));
        all.push(frame(&noise(seed, 1 + seed as usize * 11)));
    }
    all
}

/// Sends bytes, and reads the answer until the replica closes the connection or sends nothing more.
fn send(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    // The replica may have hung up before the last byte.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn greeted(then: &[u8]) -> BytesMut {
    let mut bytes = BytesMut::new();
    encode_frame(&hello(None), &mut bytes).unwrap();
    bytes.put_slice(then);
    bytes
}

fn put(id: u64, key: &str, value: &str) -> BytesMut {
    let op = Op::put(key.to_owned(), value.to_owned());
    let command = Command::session(9_000 + id, 1, 1, op);
    let mut bytes = BytesMut::new();
    let request = Request::new(id, Some(Body::Command(command)));
    encode_frame(&request, &mut bytes).unwrap();
    bytes
}

/// Returns the hello of peer `from` to the replica CA. The hello gives the name `from_name`.
fn peers_hello(from: u8, from_name: &str) -> Vec<u8> {
    let text = |field: u8, text: &str| {
        let mut all = vec![field << 3 | 2, text.len() as u8];
        all.extend_from_slice(text.as_bytes());
        all
    };
    let mut hello = vec![1 << 3 | 5];
    hello.extend(0x4C48_5008u32.to_le_bytes());
    hello.extend(text(2, "standing"));
    hello.extend([3 << 3, 3, 4 << 3, from]);
    hello.extend(text(5, from_name));
    hello.extend([6 << 3, 0]);
    hello.extend(text(7, "CA"));
    frame(&hello)
}

/// Asserts that every site still has the acknowledged values, and still accepts writes.
fn still_serves(cluster: &Cluster, round: &str) {
    for site in ["CA", "OR", "JP"] {
        assert_eq!(
            cluster.kv(&format!("--site {site} get kept")).good(),
            "safe\n"
        );
        cluster
            .kv(&format!("--site {site} put {site} {round}"))
            .good();
        assert_eq!(
            cluster.kv(&format!("--site {site} get {site}")).good(),
            format!("{round}\n")
        );
    }
}

#[test]
fn garbage_on_either_port_harms_nobody() {
    let cluster = Cluster::up();
    cluster.kv("put kept safe").good();
    let node = &cluster.config().nodes[0];
    for bytes in garbage() {
        send(&node.client, &bytes);
        send(&node.peer, &bytes);
    }
    still_serves(&cluster, "one");
    cluster.done();
}

#[test]
fn garbage_on_either_plain_port_harms_nobody() {
    let cluster = Cluster::up_plain();
    cluster.kv("put kept safe").good();
    let replicas = ["CA", "OR", "JP"].map(|node| cluster.replica(node));
    let config = cluster.config();
    let node = &config.nodes[0];
    assert_eq!(node.name, "CA");
    for bytes in garbage() {
        send(&node.client, &bytes);
        send(&node.client, &greeted(&bytes));
        send(&node.peer, &bytes);
    }
    still_serves(&cluster, "one");
    for bytes in garbage() {
        let mut introduced = peers_hello(1, "OR");
        let greeting = send(&node.peer, &introduced);
        assert_eq!(greeting, [0; 4], "an empty refusal: the hello is right");
        introduced.extend(bytes);
        send(&node.peer, &introduced);
    }
    let refusal = send(&node.peer, &peers_hello(1, "XX"));
    let refusal = String::from_utf8_lossy(&refusal).into_owned();
    assert!(
        refusal.contains("from_name is \"XX\"") && !refusal.contains("OR"),
        "{refusal}"
    );
    still_serves(&cluster, "two");
    let same = ["CA", "OR", "JP"].map(|node| cluster.replica(node));
    assert_eq!(replicas, same, "nobody was restarted");
    cluster.done();
}

#[test]
fn a_client_is_told_what_is_wrong_with_its_bytes() {
    let cluster = Cluster::up_plain();
    let address = &cluster.config().nodes[0].client;
    let answer_to = |bytes: &[u8]| String::from_utf8_lossy(&send(address, bytes)).into_owned();
    assert!(answer_to(&[0xFF; 64]).contains("the limit is 4096 bytes"));
    assert!(answer_to(&greeted(&[0xFF; 64])).contains("the limit is 4194304 bytes"));
    assert!(answer_to(&greeted(&frame(&[0xFF; 64]))).contains("malformed message"));
    let empty = answer_to(&greeted(&frame(b"")));
    assert!(empty.contains("request.body is not set"), "{empty}");
    let mut large = greeted(&[]);
    large.extend(put(1, &"k".repeat(5000), "v"));
    assert!(answer_to(&large).contains("put.key is 5000 bytes long"));
    // A request that is refused costs its client nothing but that request.
    large.extend(put(2, "small", "v"));
    send(address, &large);
    assert_eq!(cluster.kv("get small").good(), "v\n");
    let other = frame(
        &[
            &[1 << 3 | 5][..],
            &0x4C48_5301u32.to_le_bytes(),
            b"\x12\x04prod",
        ]
        .concat(),
    );
    let refusal = answer_to(&other);
    assert!(refusal.contains("hello.cluster is \"prod\""), "{refusal}");
    assert!(!refusal.contains("standing"), "{refusal}");
    cluster.done();
}

#[test]
fn clients_that_vanish_harm_nobody() {
    let cluster = Cluster::up_plain();
    cluster.kv("put kept safe").good();
    let config = cluster.config();
    let whole = put(1, "vanished", "written or not, never half");
    for node in &config.nodes {
        for cut in (0..whole.len()).step_by(5) {
            let mut stream = TcpStream::connect(&node.client).unwrap();
            stream.write_all(&greeted(&whole[..cut])).unwrap();
        }
    }
    cluster
        .kv("get vanished")
        .refused(&["there is no such key"]);
    // Whole requests of clients that disconnect before the answer.
    for (node, session) in config.nodes.iter().zip(2..) {
        let mut many = greeted(&[]);
        for number in 0..50 {
            let (id, key) = (session * 100 + number, format!("gone{session}-{number}"));
            many.extend(put(id, &key, "whole"));
        }
        let mut stream = TcpStream::connect(&node.client).unwrap();
        stream.write_all(&many).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    let scanned = cluster.kv("scan gone gonf --limit 1000").good();
    assert!(
        scanned.lines().all(|line| line.ends_with("\twhole")),
        "{scanned}"
    );
    still_serves(&cluster, "on");
    cluster.done();
}

/// Returns the number of sockets that a process has open.
fn sockets(process: u32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let is_socket = |target: &PathBuf| target.to_string_lossy().starts_with("socket:");
    targets.filter(is_socket).count()
}

/// Maximum number of unauthenticated connections on a peer port. Half of these connections have a
/// place. The handshakes of the other half are being abandoned.
const STRANGERS: usize = 2 * 48;

#[test]
fn connections_on_the_peers_port_whose_place_another_has_are_closed() {
    let cluster = Cluster::up();
    cluster.kv("put kept safe").good();
    let (node, process) = (&cluster.config().nodes[0], cluster.replica("CA"));
    let before = sockets(process);
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.extend((0..30).map(|_| TcpStream::connect(&node.peer).unwrap()));
        let more = sockets(process).saturating_sub(before);
        assert!(more <= STRANGERS, "{more} of {}", silent.len());
    }
    still_serves(&cluster, "meanwhile");
    drop(silent);
    cluster.done();
}

/// Starts the only replica of a cluster. At first, a soft limit allows the process to open only a
/// few files. The replica raises this limit itself.
fn serve_with_few_files(place: &Place, port: u16) -> std::process::Child {
    let config = format!(
        "cluster = \"test\"\ndata = \"data\"\n[[node]]\nname = \"CA\"\n\
         client = \"127.0.0.1:{port}\"\npeer = \"127.0.0.1:{}\"\n",
        port + 1
    );
    place.write("cluster.toml", &config);
    let line = format!(
        "ulimit -Sn 128; ulimit -Hn 300; exec {} serve --config cluster.toml --node CA 2> err.txt",
        env!("CARGO_BIN_EXE_leasehold")
    );
    let mut process = Process::new("sh");
    process.args(["-c", &line]).stdin(Stdio::null());
    process.current_dir(place.path("")).spawn().unwrap()
}

/// Reads the next message from a connection, and returns it without the length in front.
fn answered(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).unwrap();
    answer
}

#[test]
fn idle_connections_leave_the_storage_its_files() {
    let place = Place::new();
    let port = ports(2);
    let mut node = serve_with_few_files(&place, port);
    let address = format!("127.0.0.1:{port}");
    let kv = |line| place.words(&format!("kv --address {address} {line}"));
    until("the node to serve", || kv("put first v").status.success());
    let mut writer = TcpStream::connect(&address).unwrap();
    writer.write_all(&greeted(b"")).unwrap();
    answered(&mut writer);

    let connect = |_| TcpStream::connect(&address).unwrap();
    let mut idle: Vec<TcpStream> = (0..400).map(connect).collect();
    until("clients to be refused", || {
        place.read("err.txt").contains("clients are refused")
    });
    // More than a memtable holds, so that tables and new logs are begun.
    let value = "v".repeat(1 << 20);
    for id in 1..=40 {
        let key = format!("large{id}");
        writer.write_all(&put(id, &key, &value)).unwrap();
        answered(&mut writer);
    }
    let directory = place.path("data/CA");
    until("a table to be written", || {
        let files = std::fs::read_dir(&directory).unwrap().flatten();
        let mut names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        names.any(|name| name.ends_with(".sst"))
    });
    assert!(node.try_wait().unwrap().is_none(), "the node runs");
    // The last ones were refused: with an error reply, or by a closed connection.
    let mut remaining = Vec::new();
    let last = idle.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let _ = last.read_to_end(&mut remaining);
    let log = place.read("err.txt");
    assert_eq!(log.matches("clients are refused").count(), 1, "{log}");
    drop(idle);
    until("room for a client", || kv("get first").status.success());
    node.kill().unwrap();
    node.wait().unwrap();
}
