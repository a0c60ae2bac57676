//! Tests of nodes at which clients or peers reach a limit.

use std::sync::{Arc, Mutex};

use leasehold_client::Watcher;

use super::*;

#[test]
fn one_address_cannot_take_the_last_places() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), &["CA"]);
    config.limits.clients_per_address = Some(3);
    let node = Running::started(&config, "CA");
    block_on(async {
        let client = connect(&config).await;
        let second = greeted(&config).await;
        let _third = greeted(&config).await;
        let fourth = TcpStream::connect(&config.nodes[0].client).await.unwrap();
        let (code, message) = refused(fourth, b"").await;
        assert_eq!(code, ErrorCode::Unavailable);
        assert!(message.contains("limits.clients_per_address"), "{message}");
        assert_eq!(counted(&client, "clients_refused_by_address").await, 1);
        assert_eq!(counted(&client, "limit_clients_per_address").await, 3);
        drop(second);
        while counted(&client, "clients").await > 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        greeted(&config).await;
    });
    node.stop().unwrap();
}

#[test]
fn an_idle_client_is_closed_and_does_not_notice() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), &["CA", "JP", "BR"]);
    config.limits.idle = Duration::from_secs(1);
    let nodes = ["CA", "JP", "BR"].map(|name| Running::started(&config, name));
    let changes = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&changes);
    block_on(async {
        put_at_each(&config).await;
        let addresses = config.nodes.iter().map(|node| &node.client);
        let mut options = ClientOptions::nearest_first(addresses);
        options.watcher = Watcher::new(move |change| told.lock().unwrap().push(change.clone()));
        let idle = Client::connect(options).await.unwrap();
        let other = connect(&config).await;
        until_counted(&other, "clients_closed_idle").await;
        while counted(&other, "clients").await > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        idle.put("k", "v").await.unwrap();
        assert_eq!(idle.health().failovers, 0);
        assert!(idle.get("k").await.unwrap().is_some());
    });
    assert_eq!(*changes.lock().unwrap(), []);
    for node in nodes {
        node.stop().unwrap();
    }
}

#[test]
fn pipelined_large_writes_take_no_more_than_their_share() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), &["CA"]);
    config.limits.connection_in_flight_bytes = 8 << 20;
    let node = Running::started(&config, "CA");
    const PUTS: u64 = 40;
    block_on(async {
        let client = connect(&config).await;
        let writers = (1..=4).map(|session| {
            let config = &config;
            async move {
                let mut stream = greeted(config).await;
                let (read, mut write) = stream.split();
                let mut reader = FrameReader::new(read);
                let send = async {
                    for id in 1..=PUTS {
                        let put = Op::put("k", vec![7; 1 << 20]);
                        let put = Command::session(session, id, 1, put);
                        let mut bytes = BytesMut::new();
                        encode_frame(&Request::new(id, Some(Body::Command(put))), &mut bytes)
                            .unwrap();
                        write.write_all(&bytes).await.unwrap();
                    }
                };
                let receive = async {
                    for _ in 1..=PUTS {
                        let _: Response = reader.next().await.unwrap().unwrap();
                    }
                };
                tokio::join!(send, receive);
            }
        });
        let writers: Vec<_> = writers.collect();
        let mut most = 0;
        let all = futures_join(writers);
        tokio::pin!(all);
        loop {
            tokio::select! {
                () = &mut all => break,
                bytes = counted(&client, "client_bytes_in_flight") => most = most.max(bytes),
            }
        }
        // Four connections are charged 8 MiB each, and the last request of each may exceed the
        // limit.
        assert!(most <= 4 * 9 * MIB + MIB, "{most} bytes");
        assert!(counted(&client, "clients_paused").await > 0);
    });
    node.stop().unwrap();
}

/// The replica continues to work on the writes that it has received, even if their client has
/// disconnected. Writes of that client that it has not received yet are dropped.
#[test]
fn writes_of_a_client_that_is_gone_count_until_they_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA", "JP"]);
    let alone = Running::started(&config, "CA");
    let counted = async |name| {
        let client = connect(&config).await;
        counted(&client, name).await
    };
    block_on(async {
        let mut stream = greeted(&config).await;
        for id in 1..=6 {
            let put = Command::session(1, id, 1, Op::put("k", vec![7; 1 << 20]));
            let mut bytes = BytesMut::new();
            encode_frame(&Request::new(id, Some(Body::Command(put))), &mut bytes).unwrap();
            stream.write_all(&bytes).await.unwrap();
        }
        while counted("client_bytes_in_flight").await < 6 * MIB {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // No write is answered, so a second one joins the first.
        while counted("client_bytes_large_writes").await < 2 * MIB {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(stream);
        while counted("clients").await > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let left = counted("client_bytes_in_flight").await;
        assert!((2 * MIB..4 * MIB).contains(&left), "{left} bytes");
        let given = counted("client_bytes_large_writes").await;
        assert!((2 * MIB..4 * MIB).contains(&given), "{given} bytes");
    });
    let other = Running::started(&config, "JP");
    block_on(async {
        while counted("client_bytes_in_flight").await >= MIB {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(counted("client_bytes_large_writes").await, 0);
        assert_eq!(counted("client_large_writes_delayed").await, 5);
    });
    for node in [alone, other] {
        node.stop().unwrap();
    }
}

/// Runs all futures concurrently on one task until all have completed.
async fn futures_join(all: Vec<impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if all.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

/// Returns the first message that a replica called `name` sends to another one.
fn hello_of(name: &str, number: u32) -> BytesMut {
    let hello = leasehold_replica::codec::proto::Hello {
        magic: 0x4C48_5008,
        cluster: "demo".to_owned(),
        members: 3,
        from: number,
        from_name: name.to_owned(),
        to: 0,
        to_name: "CA".to_owned(),
    };
    let mut buffer = BytesMut::new();
    encode_frame(&hello, &mut buffer).unwrap();
    buffer
}

/// Returns a connection to a peers' port on which the test was welcomed as a peer.
async fn greeted_peer(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&hello_of("JP", 1)).await.unwrap();
    let greeting: Option<leasehold_replica::codec::proto::Greeting> =
        FrameReader::new(&mut stream).next().await.unwrap();
    assert_eq!(greeting.unwrap().refusal, "", "welcome");
    stream
}

#[test]
fn strangers_on_the_peers_port_keep_no_peer_out() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA", "JP", "BR"]);
    let first = Running::started(&config, "CA");
    let address = config.nodes[0].peer.clone();
    let silent = block_on(async {
        let mut silent = Vec::new();
        for _ in 0..200 {
            silent.push(TcpStream::connect(&address).await.unwrap());
        }
        silent
    });
    // Other connections keep coming while the cluster forms.
    let stopped = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flood = {
        let stopped = Arc::clone(&stopped);
        std::thread::spawn(move || {
            let _silent = silent;
            let mut open = std::collections::VecDeque::new();
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                open.extend(std::net::TcpStream::connect(&address));
                if open.len() > 100 {
                    open.pop_front();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        })
    };
    let others = ["JP", "BR"].map(|name| Running::started(&config, name));
    block_on(async {
        put_at_each(&config).await;
        let client = connect(&config).await;
        assert!(counted(&client, "peer_strangers_closed").await > 100);
    });
    stopped.store(true, std::sync::atomic::Ordering::Relaxed);
    flood.join().unwrap();
    for node in others.into_iter().chain([first]) {
        node.stop().unwrap();
    }
}

#[test]
fn the_newest_connections_of_a_peer_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA", "JP", "BR"]);
    let node = Running::started(&config, "CA");
    block_on(async {
        let address = &config.nodes[0].peer;
        let mut oldest = greeted_peer(address).await;
        let mut second = greeted_peer(address).await;
        let mut third = greeted_peer(address).await;
        assert_eq!(oldest.read(&mut [0]).await.unwrap(), 0, "closed");
        let client = connect(&config).await;
        assert_eq!(counted(&client, "peer_connections_closed").await, 1);
        for kept in [&mut second, &mut third] {
            let more = tokio::time::timeout(Duration::from_millis(50), kept.read(&mut [0])).await;
            assert!(more.is_err(), "open");
        }
    });
    node.stop().unwrap();
}

/// The replica's name in each request has as many bytes as fit into a frame.
#[test]
fn a_name_that_fills_a_frame_is_refused_in_a_few_words() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &["CA"]);
    let node = Running::started(&config, "CA");
    let name = "n".repeat(leasehold_wire::FRAME_BYTES_MAX - 100);
    let to = leasehold_wire::MoveRequest { to: name.clone() };
    let lease = LeaseRequest {
        holders: vec![name.clone()],
        ..LeaseRequest::default()
    };
    block_on(async {
        let mut stream = greeted(&config).await;
        let (read, mut write) = stream.split();
        let mut reader = FrameReader::new(read);
        for (id, body) in [(1, Body::Move(to)), (2, Body::Lease(lease))] {
            let mut bytes = BytesMut::new();
            encode_frame(&Request::new(id, Some(body)), &mut bytes).unwrap();
            write.write_all(&bytes).await.unwrap();
            let response: Response = reader.next().await.unwrap().unwrap();
            assert_eq!(response.id, id);
            let Some(outcome::Result::Error(error)) = response.outcome.unwrap().result else {
                panic!("not refused");
            };
            assert_eq!(error.code(), ErrorCode::TooLarge);
            assert!(error.message.len() < 100, "{error:?}");
        }
        let mut bytes = BytesMut::new();
        encode_frame(&hello(Some(&name[..4000])), &mut bytes).unwrap();
        let stream = TcpStream::connect(&config.nodes[0].client).await.unwrap();
        let (code, message) = refused(stream, &bytes).await;
        assert_eq!(code, ErrorCode::WrongCluster);
        assert!(message.len() < 200, "{message}");
    });
    node.stop().unwrap();
}
