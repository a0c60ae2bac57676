//! Tests of nodes on the loopback interface: a client is served, and a misbehaving client harms
//! only itself.

use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use leasehold_client::{Client, ClientOptions};
use leasehold_transport::{FrameReader, FrameWriter};
use leasehold_wire::{
    Command, ErrorCode, Hint, LeaseRequest, MAGIC, Path as WirePath, Request, Response,
    StatusReply, StatusRequest, VALUE_BYTES_MAX, Welcome, command::Op, encode_frame, hello,
    outcome, request::Body,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::*;

mod identity;
mod limits;
mod timeouts;
mod tokens;

/// A node under test, which runs on a thread of its own.
struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), NodeError>>>,
}

impl Running {
    fn start(config: &ClusterConfig, name: &str) -> Running {
        let (stop, stopped) = oneshot::channel();
        let (config, name) = (config.clone(), name.to_owned());
        let thread = std::thread::spawn(move || {
            let shutdown = || {
                Ok(async move {
                    let _ = stopped.await;
                })
            };
            serve_until(&config, &name, &ServeOptions::default(), shutdown)
        });
        Running {
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn started(config: &ClusterConfig, name: &str) -> Running {
        let running = Running::start(config, name);
        let node = config.nodes.iter().find(|node| node.name == name);
        let address = &node.expect("a node of this configuration").client;
        while StdStream::connect(address).is_err() {
            let thread = running.thread.as_ref();
            assert!(thread.is_some_and(|it| !it.is_finished()), "it starts");
            std::thread::sleep(Duration::from_millis(1));
        }
        running
    }

    /// Waits until the node ends by itself, and returns the result.
    fn ended(mut self) -> Result<(), NodeError> {
        self.thread.take().expect("ended once").join().unwrap()
    }

    fn stop(mut self) -> Result<(), NodeError> {
        drop(self.stop.take());
        self.thread.take().expect("stopped once").join().unwrap()
    }
}

/// Returns a request for a status that includes the lease configuration in force.
fn with_leases() -> StatusRequest {
    StatusRequest {
        leases: true,
        ..StatusRequest::default()
    }
}

#[test]
fn every_node_hashes_keys_by_a_secret_of_its_own() {
    use std::hash::BuildHasher as _;
    let hash = || leasehold_leases::hashing::SeededState::default().hash_one("key");
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA", "JP"]);
    let of_node = |name: &str| {
        let config = config.clone();
        let name = name.to_owned();
        let node = std::thread::spawn(move || {
            let at_once = || Ok(std::future::ready(()));
            serve_until(&config, &name, &ServeOptions::default(), at_once).unwrap();
            hash()
        });
        node.join().unwrap()
    };
    let all = [hash(), of_node("CA"), of_node("JP")];
    assert!(all[0] != all[1] && all[1] != all[2] && all[2] != all[0]);
}

/// Returns `count` distinct ports that are free now. The kernel chooses them.
fn ports(count: usize) -> Vec<u16> {
    let listeners = (0..count).map(|_| StdListener::bind("127.0.0.1:0").unwrap());
    let listeners: Vec<StdListener> = listeners.collect();
    let port = |listener: &StdListener| listener.local_addr().unwrap().port();
    listeners.iter().map(port).collect()
}

fn config(dir: &Path, names: &[&str]) -> ClusterConfig {
    let mut text = "cluster = \"demo\"\ndata = \"data\"\n".to_owned();
    for (name, ports) in names.iter().zip(ports(2 * names.len()).chunks(2)) {
        let (client, peer) = (ports[0], ports[1]);
        text += &format!(
            "[[node]]\nname = \"{name}\"\nclient = \"127.0.0.1:{client}\"\npeer = \"127.0.0.1:{peer}\"\n"
        );
    }
    ClusterConfig::parse(&text, &dir.join("cluster.toml")).unwrap()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(60), work)
            .await
            .expect("the node answers")
    })
}

async fn connect(config: &ClusterConfig) -> Client {
    let options = ClientOptions::new(&config.nodes[0].client);
    Client::connect(options).await.unwrap()
}

/// Returns a connection to a node on which the hellos have been exchanged.
async fn greeted(config: &ClusterConfig) -> TcpStream {
    let mut stream = TcpStream::connect(&config.nodes[0].client).await.unwrap();
    let mut buffer = BytesMut::new();
    encode_frame(&hello(Some("demo")), &mut buffer).unwrap();
    stream.write_all(&buffer).await.unwrap();
    let welcome: Option<Welcome> = FrameReader::new(&mut stream).next().await.unwrap();
    assert_eq!(welcome.unwrap().replica, "CA");
    stream
}

/// Sends `bytes` and returns the code and the text of the refusal. Then the node must end the
/// connection.
async fn refused(mut stream: TcpStream, bytes: &[u8]) -> (ErrorCode, String) {
    stream.write_all(bytes).await.unwrap();
    let mut reader = FrameReader::new(&mut stream);
    let response: Response = reader.next().await.unwrap().expect("a refusal");
    assert_eq!(response.id, 0);
    assert!(reader.next::<Response>().await.unwrap().is_none(), "closed");
    let Some(outcome::Result::Error(error)) = response.outcome.unwrap().result else {
        panic!("not an error");
    };
    (error.code(), error.message)
}

#[test]
fn a_single_node_serves_and_finds_its_data_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    block_on(async {
        let client = connect(&config).await;
        assert_eq!(client.server().incarnation, 1);
        assert_eq!(client.get("k").await.unwrap(), None);
        let puts = (0..100).map(|i| client.put("k", format!("v{i}")));
        for put in puts.collect::<Vec<_>>() {
            put.await.unwrap();
        }
        assert_eq!(client.get("k").await.unwrap().unwrap().value, "v99");
        let status = client.raw().status(Default::default()).await.unwrap();
        assert_eq!(
            (status.replica.as_str(), status.leader.as_str()),
            ("CA", "CA")
        );
        assert_eq!(status.durability, "sync");
    });
    node.stop().unwrap();

    let node = Running::started(&config, "CA");
    block_on(async {
        let client = connect(&config).await;
        assert_eq!(client.server().incarnation, 2);
        assert_eq!(client.get("k").await.unwrap().unwrap().value, "v99");
    });
    node.stop().unwrap();
}

#[test]
fn garbage_is_refused_and_the_node_lives_on() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    block_on(async {
        let address = &config.nodes[0].client;
        let fresh = || async { TcpStream::connect(address).await.unwrap() };
        let http = refused(fresh().await, b"GET / HTTP/1.1\r\n\r\n").await;
        assert!(http.1.contains("1195725856 bytes"), "{http:?}");
        let huge = refused(fresh().await, &[0xFF; 4]).await;
        assert!(huge.1.contains("4294967295 bytes"), "{huge:?}");
        let wrong = refused(greeted(&config).await, &[0xFF; 4]).await;
        assert!(wrong.1.contains("the limit is 4194304 bytes"), "{wrong:?}");
        let noise = refused(greeted(&config).await, b"\0\0\0\x03\xFF\xFF\xFF").await;
        assert_eq!(noise.0, ErrorCode::BadRequest);
        let mut magic = BytesMut::new();
        let mut odd = hello(None);
        odd.magic = MAGIC + 1;
        encode_frame(&odd, &mut magic).unwrap();
        let magic = refused(fresh().await, &magic).await;
        assert!(
            magic.1.starts_with("hello.magic is 0x4c485302"),
            "{magic:?}"
        );
        let mut other = BytesMut::new();
        encode_frame(&hello(Some("prod")), &mut other).unwrap();
        let other = refused(fresh().await, &other).await;
        assert_eq!(other.0, ErrorCode::WrongCluster);
        assert!(other.1.contains("\"prod\"") && !other.1.contains("demo"));

        connect(&config).await.put("k", "v").await.unwrap();
    });
    node.stop().unwrap();
}

#[test]
fn a_request_that_can_never_succeed_costs_only_itself() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    block_on(async {
        let mut stream = greeted(&config).await;
        let (reader, writer) = stream.split();
        let mut writer = FrameWriter::new(writer);
        let bodies = [
            None,
            Some(Body::Command(Command::default())),
            Some(Body::Command(Op::get(Bytes::new()).into())),
            Some(Body::Command(Op::put("k", "no session").into())),
            Some(Body::Command(Op::get("k").into())),
        ];
        for (id, body) in (1..).zip(bodies) {
            writer.feed(&Request::new(id, body)).unwrap();
        }
        writer.flush().await.unwrap();
        let mut reader = FrameReader::new(reader);
        let mut answers = std::collections::BTreeMap::new();
        while answers.len() < 5 {
            let response: Response = reader.next().await.unwrap().unwrap();
            answers.insert(response.id, response.outcome.unwrap().result.unwrap());
        }
        for id in 1..=4 {
            assert!(matches!(answers[&id], outcome::Result::Error(_)), "{id}");
        }
        assert!(matches!(answers[&5], outcome::Result::Missing(_)));
    });
    node.stop().unwrap();
}

#[test]
fn clients_that_vanish_harm_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    block_on(async {
        let whole = Request::new(
            1,
            Some(Body::Command(Command::session(9, 1, 1, Op::put("k", "v")))),
        );
        let mut bytes = BytesMut::new();
        encode_frame(&whole, &mut bytes).unwrap();
        for length in 0..=bytes.len() {
            let mut stream = greeted(&config).await;
            stream.write_all(&bytes[..length]).await.unwrap();
        }
        let client = connect(&config).await;
        client.put("k", "later").await.unwrap();
        assert_eq!(client.get("k").await.unwrap().unwrap().value, "later");
    });
    node.stop().unwrap();
}

#[test]
fn a_client_that_ends_its_requests_gets_the_answers_that_are_due() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    const PUTS: u64 = 10;
    block_on(async {
        connect(&config).await.put("k", "v").await.unwrap();
        let mut stream = greeted(&config).await;
        let mut bytes = BytesMut::new();
        for id in 1..=PUTS {
            let put = Command::session(9, id, 1, Op::put("k", format!("v{id}")));
            encode_frame(&Request::new(id, Some(Body::Command(put))), &mut bytes).unwrap();
        }
        stream.write_all(&bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut reader = FrameReader::new(&mut stream);
        let mut answered = std::collections::BTreeSet::new();
        while let Some(response) = reader.next::<Response>().await.unwrap() {
            let result = response.outcome.unwrap().result.unwrap();
            assert!(!matches!(result, outcome::Result::Error(_)), "{result:?}");
            answered.insert(response.id);
        }
        assert!(answered.into_iter().eq(1..=PUTS), "then it is closed");
        // Only the requesting connection is left.
        while counted(&connect(&config).await, "clients").await > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    node.stop().unwrap();
}

/// Returns the value of the node's counter called `name`.
async fn counted(client: &Client, name: &str) -> u64 {
    let status = client.raw().status(Default::default()).await.unwrap();
    let found = status.counters.iter().find(|counter| counter.name == name);
    found
        .unwrap_or_else(|| panic!("{name} is not counted"))
        .value
}

/// Waits until the node's counter called `name` is above 0.
async fn until_counted(client: &Client, name: &str) {
    while counted(client, name).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn requests(ids: std::ops::RangeInclusive<u64>, op: &Op) -> BytesMut {
    let mut bytes = BytesMut::new();
    for id in ids {
        let body = Some(Body::Command(op.clone().into()));
        encode_frame(&Request::new(id, body), &mut bytes).unwrap();
    }
    bytes
}

/// Puts three values of 1 MiB, so that a scan of them returns 3 MiB.
async fn put_large(client: &Client) {
    for key in ["a", "b", "c"] {
        client.put(key, vec![7; 1 << 20]).await.unwrap();
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn a_client_that_reads_nothing_takes_little_and_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    block_on(async {
        let client = connect(&config).await;
        put_large(&client).await;
        let mut lazy = greeted(&config).await;
        const SCANS: u64 = 200;
        let scans = requests(1..=SCANS, &Op::scan("", "", 3));
        lazy.write_all(&scans).await.unwrap();
        until_counted(&client, "clients_paused").await;
        client.put("k", "v").await.unwrap();
        assert!(client.get("k").await.unwrap().is_some());
        // The connection was only paused: every answer arrives when the client reads.
        let mut reader = FrameReader::new(&mut lazy);
        for id in 1..=SCANS {
            let response: Response = reader.next().await.unwrap().unwrap();
            match response.outcome.unwrap().result.unwrap() {
                outcome::Result::Entries(_) => {}
                other => panic!("{} instead of {id}: {other:?}", response.id),
            }
        }
        // The bytes include the answers within the 16 MiB charged, and those of the client that
        // wrote.
        let most = counted(&client, "client_bytes_unread_most").await;
        assert!((3 * MIB..20 * MIB).contains(&most), "{most} bytes");
        assert_eq!(counted(&client, "clients_given_up").await, 0);
    });
    node.stop().unwrap();
}

/// The requests of the client wait because it leaves answers unread. By the time it takes these
/// answers, all requests have arrived completely, so no further bytes arrive.
#[test]
fn a_client_that_reads_at_last_waits_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    block_on(async {
        let client = connect(&config).await;
        put_large(&client).await;
        for _ in 0..10 {
            let mut lazy = greeted(&config).await;
            const SCANS: u64 = 100;
            let scans = requests(1..=SCANS, &Op::scan("", "", 3));
            lazy.write_all(&scans).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            let mut reader = FrameReader::new(&mut lazy);
            for id in 1..=SCANS {
                let next = tokio::time::timeout(Duration::from_secs(20), reader.next::<Response>());
                let response = next.await.expect("an answer without a further request");
                assert_eq!(response.unwrap().unwrap().id, id);
            }
        }
    });
    node.stop().unwrap();
}

#[test]
fn a_client_whose_answers_are_far_larger_than_expected_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    block_on(async {
        let client = connect(&config).await;
        put_large(&client).await;
        let mut lazy = greeted(&config).await;
        lazy.write_all(&requests(1..=32, &Op::get("none")))
            .await
            .unwrap();
        let mut reader = FrameReader::new(&mut lazy);
        for _ in 1..=32 {
            let _: Response = reader.next().await.unwrap().unwrap();
        }
        lazy.write_all(&requests(33..=1000, &Op::get("a")))
            .await
            .unwrap();
        until_counted(&client, "clients_given_up").await;
        let most = counted(&client, "client_bytes_unread_most").await;
        assert!((32 * MIB..38 * MIB).contains(&most), "{most} bytes");
        let mut rest = vec![0; 1 << 16];
        while let Ok(1..) = lazy.read(&mut rest).await {}
        assert!(client.get("a").await.unwrap().is_some());
    });
    node.stop().unwrap();
}

#[test]
fn a_pipelining_client_gets_every_answer() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    block_on(async {
        let mut stream = greeted(&config).await;
        let mut bytes = BytesMut::new();
        const REQUESTS: u64 = 40_000;
        for id in 1..=REQUESTS {
            let body = Some(Body::Command(Op::get("k").into()));
            encode_frame(&Request::new(id, body), &mut bytes).unwrap();
        }
        let (reader, mut writer) = stream.split();
        let mut reader = FrameReader::new(reader);
        let write = async { writer.write_all(&bytes).await.unwrap() };
        let read = async {
            for id in 1..=REQUESTS {
                let response: Response = reader.next().await.unwrap().unwrap();
                assert_eq!(response.id, id);
            }
        };
        tokio::join!(write, read);
    });
    node.stop().unwrap();
}

#[test]
fn a_port_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let _taken = StdListener::bind(&config.nodes[0].peer).unwrap();
    let message = Running::start(&config, "CA")
        .stop()
        .unwrap_err()
        .to_string();
    for part in ["node CA", "peer", &config.nodes[0].peer, "cluster.toml"] {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

#[test]
fn an_unknown_node_is_told_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA", "JP"]);
    let message = Running::start(&config, "XX")
        .stop()
        .unwrap_err()
        .to_string();
    assert!(message.contains("\"XX\"") && message.contains("CA, JP"));
}

/// Writes once at every node, so that all nodes take part.
async fn put_at_each(config: &ClusterConfig) {
    for node in &config.nodes {
        let client = Client::connect(ClientOptions::new(&node.client));
        client.await.unwrap().put("first", "v").await.unwrap();
    }
}

#[test]
fn a_node_whose_directory_was_emptied_stops_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA", "JP", "BR"]);
    let start = |name| Running::started(&config, name);
    let (first, second, third) = (start("CA"), start("JP"), start("BR"));
    block_on(put_at_each(&config));
    third.stop().unwrap();
    let directory = config.data.join("BR");
    let saved = dir.path().join("saved");
    std::fs::rename(&directory, &saved).unwrap();
    let message = start("BR").ended().unwrap_err().to_string();
    for part in [directory.to_str().unwrap(), "another one before", "a copy"] {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
    // The test follows the advice of the message.
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::rename(&saved, &directory).unwrap();
    let third = start("BR");
    second.stop().unwrap();
    block_on(async {
        let client = connect(&config).await;
        client.put("k", "of CA and BR").await.unwrap();
    });
    third.stop().unwrap();
    first.stop().unwrap();
}

#[test]
fn a_majority_goes_on_when_a_node_stops_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA", "JP", "BR"]);
    let start = |name| Running::started(&config, name);
    let (first, second, third) = (start("CA"), start("JP"), start("BR"));
    block_on(async {
        put_at_each(&config).await;
        let client = connect(&config).await;
        client.put("k", "of three").await.unwrap();
        assert_eq!(client.get("k").await.unwrap().unwrap().value, "of three");
    });
    third.stop().unwrap();
    block_on(async {
        let client = connect(&config).await;
        client.put("k", "of two").await.unwrap();
    });
    let third = start("BR");
    second.stop().unwrap();
    block_on(async {
        let client = connect(&config).await;
        client.put("l", "of two others").await.unwrap();
        assert_eq!(client.get("k").await.unwrap().unwrap().value, "of two");
    });
    third.stop().unwrap();
    first.stop().unwrap();
}

#[test]
fn leadership_moves_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA", "JP", "BR"]);
    let nodes = ["CA", "JP", "BR"].map(|name| Running::started(&config, name));
    block_on(async {
        put_at_each(&config).await;
        let client = connect(&config).await;
        for name in ["CA", "JP", "BR", "CA", "BR", "JP"] {
            let status = client.raw().move_leadership(name).await.unwrap();
            assert_eq!(status.leader, name);
        }
        client.put("k", "v").await.unwrap();
    });
    for node in nodes {
        node.stop().unwrap();
    }
}

#[test]
fn ranges_of_the_file_are_in_force_from_the_first_configuration_on() {
    let dir = tempfile::tempdir().unwrap();
    let port = ports(2);
    let text = format!(
        "cluster = 'demo'\ndata = 'data'\n[lease]\nstrategy = 'all'\n\
         [[lease.range]]\nfrom = 'b'\nto = 'c'\nstrategy = 'none'\n\
         [[lease.range]]\nfrom = 'm'\ncost = {{ read_weight = 0.25 }}\n\
         [[node]]\nname = 'CA'\nclient = '127.0.0.1:{}'\npeer = '127.0.0.1:{}'\n",
        port[0], port[1]
    );
    let config = ClusterConfig::parse(&text, &dir.path().join("cluster.toml")).unwrap();
    let node = Running::started(&config, "CA");
    let ranges = block_on(async {
        let client = connect(&config).await;
        loop {
            let status = client.raw().status(with_leases()).await.unwrap();
            let ranges = status.leases.expect("it was asked for").ranges;
            if ranges.len() > 1 {
                return ranges;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let shown = ranges.iter().map(|range| {
        let from = String::from_utf8_lossy(&range.from);
        (from.into_owned(), range.strategy.as_str())
    });
    let expected = [("", "all"), ("b", "none"), ("c", "all"), ("m", "cost")];
    let expected = expected.map(|(from, strategy)| (from.to_owned(), strategy));
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    assert!(ranges[3].settings.contains("0.25"), "{ranges:?}");
    node.stop().unwrap();
}

#[test]
fn leases_change_while_the_cluster_runs() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA", "JP", "BR"]);
    let nodes = ["CA", "JP", "BR"].map(|name| Running::started(&config, name));
    let set = |strategy: &str| LeaseRequest {
        strategy: strategy.to_owned(),
        ..LeaseRequest::default()
    };
    let user = |wanted: LeaseRequest| LeaseRequest {
        from: "user/".into(),
        to: "user0".into(),
        ..wanted
    };
    block_on(async {
        put_at_each(&config).await;
        let client = connect(&config).await;
        let leases = |status: StatusReply| status.leases.expect("it was asked for");
        let holders = || LeaseRequest {
            holders: vec!["JP".to_owned(), "CA".to_owned()],
            ..LeaseRequest::default()
        };
        let weighed = |strategy: &str, read_weight, spare| LeaseRequest {
            read_weight,
            spare,
            ..set(strategy)
        };
        let cost = weighed("", Some(0.8), None);
        let cost = leases(client.raw().set_leases(cost).await.unwrap());
        assert_eq!(cost.ranges[0].settings, "read weight 0.8");
        let cost = leases(
            client
                .raw()
                .set_leases(weighed("", None, Some(1)))
                .await
                .unwrap(),
        );
        assert_eq!(
            cost.ranges[0].settings, "read weight 0.8, spare 1",
            "the other stays"
        );
        client.raw().set_leases(set("leader")).await.unwrap();
        let changed = leases(client.raw().set_leases(user(holders())).await.unwrap());
        assert!(!changed.already);
        let ranges = changed.ranges.iter();
        let ranges: Vec<_> = ranges.map(|it| (&it.from[..], &it.strategy[..])).collect();
        assert_eq!(changed.ranges[1].defaults, ["CA", "JP"]);
        let expected: [(&[u8], &str); 3] =
            [(b"", "leader"), (b"user/", "fixed"), (b"user0", "leader")];
        assert_eq!(ranges, expected);
        let again = leases(client.raw().set_leases(user(holders())).await.unwrap());
        assert!(again.already, "to repeat it does no harm");
        for (wanted, parts) in [
            (set("fast"), ["\"fast\"", "none, leader, all, quorum"]),
            (
                weighed("cost", Some(1.5), None),
                ["read_weight: 1.5", "0 (only writes count) to 1"],
            ),
            (
                weighed("cost", Some(f64::NAN), None),
                ["read_weight", "0 (only writes count) to 1"],
            ),
            (weighed("cost", None, Some(3)), ["spare: 3", "0 to 2"]),
            (
                weighed("leader", Some(0.5), None),
                ["read_weight", "only the strategy cost"],
            ),
            (set("fixed"), ["holders", "at least one node"]),
            (set(""), ["nothing to change", "strategy"]),
            (
                LeaseRequest {
                    holders: vec!["XX".to_owned()],
                    ..set("")
                },
                ["no node \"XX\"", "CA, JP, BR"],
            ),
            (
                LeaseRequest {
                    from: "b".into(),
                    to: "a".into(),
                    ..set("all")
                },
                ["range", "not after its start"],
            ),
            (
                user(LeaseRequest {
                    t_lease_ms: Some(2000),
                    ..LeaseRequest::default()
                }),
                ["durations", "without a range"],
            ),
            (
                LeaseRequest {
                    t_lease_ms: Some(1),
                    ..LeaseRequest::default()
                },
                ["t_lease_ms: 1 ms", "the smallest that would do"],
            ),
            (
                LeaseRequest {
                    unlisted: "leader".to_owned(),
                    ..set("all")
                },
                ["unlisted", "quorum"],
            ),
        ] {
            let asked = format!("{wanted:?}");
            let error = client
                .raw()
                .set_leases(wanted)
                .await
                .unwrap_err()
                .to_string();
            for part in parts {
                assert!(
                    error.contains(part),
                    "{part:?} is not in {error:?}: {asked}"
                );
            }
        }
        let shown = leases(client.raw().status(with_leases()).await.unwrap());
        assert_eq!(shown.ranges, again.ranges, "nothing was changed by them");
        let all = leases(client.raw().set_leases(set("all")).await.unwrap());
        assert_eq!(all.ranges.len(), 1);
        assert_eq!(all.ranges[0].defaults, ["CA", "JP", "BR"]);
        client.put("k", "v").await.unwrap();
    });
    for node in nodes {
        node.stop().unwrap();
    }
}

#[test]
fn a_status_tells_all_that_was_asked_for_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    let status = block_on(async {
        put_at_each(&config).await;
        let mut stream = greeted(&config).await;
        let asked = leasehold_wire::StatusRequest {
            holders: true,
            key: "k".into(),
            leases: true,
            demand: true,
        };
        let mut bytes = BytesMut::new();
        encode_frame(&Request::new(1, Some(Body::Status(asked))), &mut bytes).unwrap();
        stream.write_all(&bytes).await.unwrap();
        let response: Option<Response> = FrameReader::new(stream).next().await.unwrap();
        response.unwrap().status.unwrap()
    });
    assert!(status.demand.is_some(), "{status:?}");
    assert_eq!(status.holders_of, "k");
    let leases = status.leases.expect("it was asked for");
    assert_eq!(leases.ranges[0].defaults, status.unlisted);
    node.stop().unwrap();
}

/// Sends reads of these keys together. The request numbers begin with `first`. Returns the path by
/// which each read was served.
async fn get_together(stream: &mut TcpStream, first: u64, keys: &[String]) -> Vec<WirePath> {
    let mut bytes = BytesMut::new();
    for (id, key) in (first..).zip(keys) {
        let body = Some(Body::Command(Op::get(key.clone()).into()));
        encode_frame(&Request::new(id, body), &mut bytes).unwrap();
    }
    stream.write_all(&bytes).await.unwrap();
    let mut reader = FrameReader::new(stream);
    let mut paths = Vec::new();
    while paths.len() < keys.len() {
        let response: Response = reader.next().await.unwrap().unwrap();
        let Some(outcome::Result::Value(value)) = &response.outcome.as_ref().unwrap().result else {
            panic!("{response:?}");
        };
        assert_eq!(value.value.len(), VALUE_BYTES_MAX);
        paths.push(response.path());
    }
    paths
}

/// Sends these requests together. Returns the hint in each answer, ordered by the ids of the
/// requests.
async fn hints(config: &ClusterConfig, requests: Vec<Request>) -> Vec<Option<Hint>> {
    let mut stream = greeted(config).await;
    let mut bytes = BytesMut::new();
    for request in &requests {
        encode_frame(request, &mut bytes).unwrap();
    }
    stream.write_all(&bytes).await.unwrap();
    let mut reader = FrameReader::new(stream);
    let mut hints = vec![None; requests.len()];
    for _ in &requests {
        let response: Response = reader.next().await.unwrap().unwrap();
        hints[response.id as usize - 1] = response.hint;
    }
    hints
}

#[test]
fn who_holds_a_key_and_who_leads_is_told_to_whoever_asks() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    let request = |id, op: Op, hint| Request {
        hint,
        ..Request::new(id, Some(Body::Command(op.into())))
    };
    let put = Command::session(9, 1, 1, Op::put("k", "v"));
    let put = Request {
        hint: true,
        ..Request::new(4, Some(Body::Command(put)))
    };
    let asked = vec![
        request(1, Op::get("k"), true),
        request(2, Op::get("k"), false),
        request(3, Op::scan("", "", 1), true),
        put,
    ];
    let hints = block_on(async {
        connect(&config).await.put("k", "v").await.unwrap();
        // Until the first configuration is known, no replica holds a lease.
        while hints(&config, vec![asked[0].clone()]).await[0].is_none_or(|it| it.holders == 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        hints(&config, asked).await
    });
    let told = Some(Hint {
        holders: 0b1,
        leader: 1,
        listed: false,
    });
    assert_eq!(hints, [told, None, None, told]);
    node.stop().unwrap();
}

#[test]
fn processor_time_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    let cpu_us = block_on(async { counted(&connect(&config).await, "cpu_us").await });
    assert!(cpu_us > 0);
    node.stop().unwrap();
}

/// Returns the number of messages that a node could not encode.
async fn unsendable(client: &Client) -> u64 {
    let counters = client
        .raw()
        .status(Default::default())
        .await
        .unwrap()
        .counters;
    let mut counters = counters.into_iter();
    let found = counters.find(|counter| counter.name == "unsendable_messages");
    found.expect("it is counted").value
}

#[test]
fn answers_to_reads_that_a_follower_forwards_together_are_split() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), &["CA", "JP", "BR"]);
    config.leader = config.replica("JP");
    config.strategies = leasehold_leases::StrategySpec::Leader.into();
    let nodes = ["CA", "JP", "BR"].map(|name| Running::started(&config, name));
    block_on(async {
        put_at_each(&config).await;
        let leader = ClientOptions::new(&config.nodes[1].client);
        let leader = Client::connect(leader).await.unwrap();
        let keys: Vec<String> = (0..5).map(|key| format!("large{key}")).collect();
        for key in &keys {
            leader
                .put(key.clone(), vec![7; VALUE_BYTES_MAX])
                .await
                .unwrap();
        }
        let mut follower = greeted(&config).await;
        // A repeated read is confirmed by a majority instead. The leader's lease may not exist yet,
        // or may end on a slow machine.
        for round in 0.. {
            let first = 1 + round * keys.len() as u64;
            let paths = get_together(&mut follower, first, &keys).await;
            assert_eq!(unsendable(&leader).await, 0);
            if paths.iter().all(|path| *path == WirePath::Forwarded) {
                break;
            }
        }
    });
    for node in nodes {
        node.stop().unwrap();
    }
}

#[test]
fn a_peer_of_another_cluster_is_refused_and_told_why() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA", "JP"]);
    let node = Running::started(&config, "CA");
    block_on(async {
        let mut stream = TcpStream::connect(&config.nodes[0].peer).await.unwrap();
        let hello = leasehold_replica::codec::proto::Hello {
            magic: 0x4C48_5008,
            cluster: "prod".to_owned(),
            ..Default::default()
        };
        let mut buffer = BytesMut::new();
        encode_frame(&hello, &mut buffer).unwrap();
        stream.write_all(&buffer).await.unwrap();
        let mut reader = FrameReader::new(&mut stream);
        let greeting: Option<leasehold_replica::codec::proto::Greeting> =
            reader.next().await.unwrap();
        let refusal = greeting.unwrap().refusal;
        assert!(
            refusal.contains("\"prod\"") && !refusal.contains("demo"),
            "{refusal}"
        );
        assert!(reader.next_frame().await.unwrap().is_none(), "closed");
    });
    node.stop().unwrap();
}

#[test]
fn garbage_on_the_peers_port_harms_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    block_on(async {
        for garbage in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0xFF; 64],
            b"\0\0\0\x02\xFF\xFF",
        ] {
            let mut stream = TcpStream::connect(&config.nodes[0].peer).await.unwrap();
            stream.write_all(garbage).await.unwrap();
            let mut answer = Vec::new();
            // The connection is closed, with or without a message.
            let _ = stream.read_to_end(&mut answer).await;
        }
        connect(&config).await.put("k", "v").await.unwrap();
    });
    node.stop().unwrap();
}

/// Whether the node's kernel probes the client's end of this connection. The kernel's table of
/// connections shows this: the node's end of the connection then has a timer of kind 2.
#[cfg(target_os = "linux")]
fn is_asked_for_life(stream: &TcpStream) -> bool {
    let hex = |address: std::net::SocketAddr| format!(":{:04X}", address.port());
    let (node, here) = (stream.peer_addr().unwrap(), stream.local_addr().unwrap());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let fields = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut own =
        fields.filter(|found| found[1].ends_with(&hex(node)) && found[2].ends_with(&hex(here)));
    own.any(|found| found[5].starts_with("02:"))
}

/// A machine that loses power closes no connection. Without probes, its connections would remain,
/// and each network partition would permanently take a slot on the peers' port.
#[cfg(target_os = "linux")]
#[test]
fn machines_that_fall_silent_are_asked_whether_they_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA", "JP"]);
    let node = Running::started(&config, "CA");
    block_on(async {
        let client = greeted(&config).await;
        let mut peer = TcpStream::connect(&config.nodes[0].peer).await.unwrap();
        let hello = leasehold_replica::codec::proto::Hello {
            magic: 0x4C48_5008,
            cluster: "demo".to_owned(),
            members: 2,
            from: 1,
            from_name: "JP".to_owned(),
            to: 0,
            to_name: "CA".to_owned(),
        };
        let mut buffer = BytesMut::new();
        encode_frame(&hello, &mut buffer).unwrap();
        peer.write_all(&buffer).await.unwrap();
        let greeting: Option<leasehold_replica::codec::proto::Greeting> =
            FrameReader::new(&mut peer).next().await.unwrap();
        assert_eq!(greeting.unwrap().refusal, "", "welcome");
        for stream in [client, peer] {
            // The timer is of this kind only after the bytes that the node has sent are
            // acknowledged.
            while !is_asked_for_life(&stream) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    node.stop().unwrap();
}
