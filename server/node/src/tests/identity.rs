//! Tests of connections to and from a node that has certificates. They try every credential that a
//! peer or client may show, on every port.

use std::cell::Cell;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use leasehold_leases::{Incarnation, ReplicaId};
use leasehold_transport::tls::{Channel, Trust, handshake, provider, roots};
use leasehold_wire::{Outcome, Version};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConnection, version};
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::*;
use crate::config::Limits;
use crate::front::admission::evicting_slots::EvictingSlots;
use crate::front::connection;
use crate::front::connection::Budget;
use crate::front::frames::Frames;
use crate::front::inbox::{Inbox, UNITS_PER_ITERATION};
use crate::front::outbox::Outbox;
use crate::peers::transport::{MAGIC as PEER_MAGIC, Member, PeerAdmission, Peers};
use crate::security::halves::{self, ByteSource as _};
use crate::security::handshakes::{EstablishedStream, Handshakes, Side};
use crate::security::{
    AUTHORITY, Authority, NodeCredentials, Validity, certificate_file, key_file, write_new,
};
use leasehold_replica::codec::{encode_envelope, proto};
use leasehold_replica::input::Input;
use leasehold_replica::message::{Envelope, Message, PerLog};

const MEMBERS: [&str; 3] = ["CA", "JP", "OR"];

/// Credential that a peer shows while it claims to be the replica JP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Right,
    /// The certificate of another member of the cluster.
    Others,
    /// The certificate of the very node to which the peer connects.
    Own,
    /// A certificate for a replica JP of another cluster, issued by the same authority.
    OtherCluster,
    /// A certificate that was issued by another authority with the same name.
    OtherAuthority,
    Expired,
    NotYet,
    Nothing,
    /// No certificate: the peer does not use TLS.
    PlainText,
}

const ALL: [Shown; 9] = [
    Shown::Right,
    Shown::Others,
    Shown::Own,
    Shown::OtherCluster,
    Shown::OtherAuthority,
    Shown::Expired,
    Shown::NotYet,
    Shown::Nothing,
    Shown::PlainText,
];

/// Certificates of a cluster, in a directory that the cluster's configuration names.
struct Pki {
    dir: TempDir,
    authority: Authority,
    config: ClusterConfig,
}

fn days(days: u64) -> Duration {
    Duration::from_secs(days * 86_400)
}

impl Pki {
    fn new() -> Pki {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new("demo").unwrap();
        let pem = authority.certificate().pem();
        write_new(&dir.path().join(AUTHORITY), &pem, 0o644).unwrap();
        for name in MEMBERS {
            let issued = authority.issue(name, Validity::days(30)).unwrap();
            let (certificate, key) = (
                certificate_file(dir.path(), name),
                key_file(dir.path(), name),
            );
            write_new(&certificate, &issued.certificate.pem(), 0o644).unwrap();
            write_new(&key, &issued.key.serialize_pem(), 0o600).unwrap();
        }
        let config = secured(dir.path(), &MEMBERS, "certificates = '.'");
        Pki {
            dir,
            authority,
            config,
        }
    }

    fn trust(&self) -> Trust {
        Trust::load(&self.dir.path().join(AUTHORITY)).unwrap()
    }

    /// Returns the credentials of the node that shows this.
    fn credentials(&self, shown: Shown) -> NodeCredentials {
        let now = SystemTime::now();
        let issued = |authority: &Authority, name: &str, validity| {
            let issued = authority.issue(name, validity).unwrap();
            // The credentials trust the right authority, because the node's side is under test.
            NodeCredentials::issued(&issued, &self.authority)
        };
        let valid = Validity::days(30);
        match shown {
            Shown::Others => issued(&self.authority, "OR", valid),
            Shown::Own => issued(&self.authority, "CA", valid),
            Shown::OtherCluster => {
                let names = leasehold_transport::tls::names::all("prod", "JP");
                let issued = self.authority.sign(names, valid).unwrap();
                NodeCredentials::issued(&issued, &self.authority)
            }
            Shown::OtherAuthority => issued(&Authority::new("demo").unwrap(), "JP", valid),
            Shown::Expired => {
                let past = Validity::between(now - days(20), now - days(10));
                issued(&self.authority, "JP", past)
            }
            Shown::NotYet => {
                let future = Validity::between(now + days(10), now + days(20));
                issued(&self.authority, "JP", future)
            }
            Shown::Right | Shown::Nothing | Shown::PlainText => {
                issued(&self.authority, "JP", valid)
            }
        }
    }
}

/// Returns a configuration with `security` as its `[security]` table.
fn secured(dir: &Path, names: &[&str], security: &str) -> ClusterConfig {
    let plain = config(dir, names);
    let mut text = format!("cluster = 'demo'\ndata = 'data'\n[security]\n{security}\n");
    for node in &plain.nodes {
        let (name, client, peer) = (&node.name, &node.client, &node.peer);
        text += &format!("[[node]]\nname = '{name}'\nclient = '{client}'\npeer = '{peer}'\n");
    }
    ClusterConfig::parse(&text, &dir.join("cluster.toml")).unwrap()
}

/// A test connection for exchanging frames, with a buffer for received bytes.
struct Line {
    frames: Frames,
    outbox: Outbox,
}

impl Line {
    fn new(stream: TcpStream, connection: Option<Connection>) -> Line {
        let (reader, writer) = halves::split(EstablishedStream {
            stream,
            channel: connection.map(Channel::new),
            verified_members: None,
        });
        Line {
            frames: Frames::new(reader, 1 << 10),
            outbox: Outbox::new(writer, Rc::default()),
        }
    }

    async fn send(&self, message: &impl prost::Message) {
        encode_frame(message, &mut self.outbox.buffer()).unwrap();
        self.outbox.wait_until_empty().await;
    }

    async fn greeting(&mut self) -> Option<String> {
        let frame = self.frames.wait().await.ok()??;
        let greeting: proto::Greeting = prost::Message::decode(frame).ok()?;
        Some(greeting.refusal)
    }
}

fn hello_of_jp() -> proto::Hello {
    proto::Hello {
        magic: PEER_MAGIC,
        cluster: "demo".to_owned(),
        members: 3,
        from: 1,
        from_name: "JP".to_owned(),
        to: 0,
        to_name: "CA".to_owned(),
    }
}

fn dialled(config: &Arc<ClientConfig>, name: &str) -> Connection {
    let name =
        ServerName::try_from(leasehold_transport::tls::names::of_replica("demo", name)).unwrap();
    let connection = ClientConnection::new(config.clone(), name).unwrap();
    connection.into()
}

impl Pki {
    /// Returns the TLS configuration with which a peer that shows this credential connects.
    fn dials_with(&self, shown: Shown) -> Arc<ClientConfig> {
        if shown != Shown::Nothing {
            return self.credentials(shown).dial;
        }
        let trusted = roots(self.authority.certificate().pem().as_bytes()).unwrap();
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .unwrap();
        Arc::new(config.with_root_certificates(trusted).with_no_client_auth())
    }
}

/// Connects to a peers' port as a peer that shows this credential. Returns `None` if the peer is
/// refused before it can send a frame.
async fn shown_to(address: &str, pki: &Pki, shown: Shown) -> Option<Line> {
    let stream = TcpStream::connect(address).await.unwrap();
    if shown == Shown::PlainText {
        return Some(Line::new(stream, None));
    }
    let connection = dialled(&pki.dials_with(shown), "CA");
    let shaken = handshake(&stream, connection, 1 << 16).await;
    Some(Line::new(stream, Some(shaken.ok()?)))
}

/// Connects to the peers' port with this credential and claims to be JP. Returns the node's reply;
/// `None` if the node closes the connection without a reply.
async fn introduced(pki: &Pki, shown: Shown) -> Option<String> {
    let mut line = shown_to(&pki.config.nodes[0].peer, pki, shown).await?;
    line.send(&hello_of_jp()).await;
    line.greeting().await
}

#[test]
fn on_the_peers_port_only_the_member_itself_is_let_in() {
    let pki = Pki::new();
    let node = Running::started(&pki.config, "CA");
    block_on(async {
        for shown in ALL {
            let answer = introduced(&pki, shown).await;
            let expected = match shown {
                Shown::Right => Some(""),
                Shown::Others | Shown::Own => {
                    Some("hello.from_name is \"JP\", its certificate is another's")
                }
                Shown::OtherCluster => Some("its certificate is that of no member of this cluster"),
                _ => None,
            };
            assert_eq!(answer.as_deref(), expected, "{shown:?}");
        }
    });
    node.stop().unwrap();
}

/// The peer sends no further bytes after these, so nothing else makes the node write.
#[test]
fn who_says_hello_in_the_last_bytes_of_a_handshake_is_greeted() {
    use std::io::Write as _;

    let pki = Pki::new();
    let node = Running::started(&pki.config, "CA");
    let mut stream = std::net::TcpStream::connect(&pki.config.nodes[0].peer).unwrap();
    let mut dialled = dialled(&pki.dials_with(Shown::Right), "CA");
    while dialled.is_handshaking() {
        stream.write_all(&sealed(&mut dialled)).unwrap();
        dialled.read_tls(&mut stream).unwrap();
        dialled.process_new_packets().unwrap();
    }
    let mut hello = BytesMut::new();
    encode_frame(&hello_of_jp(), &mut hello).unwrap();
    dialled.writer().write_all(&hello).unwrap();
    stream.write_all(&sealed(&mut dialled)).unwrap();
    stream.set_nonblocking(true).unwrap();
    block_on(async {
        let stream = TcpStream::from_std(stream).unwrap();
        let mut line = Line::new(stream, Some(dialled));
        assert_eq!(line.greeting().await.as_deref(), Some(""));
    });
    node.stop().unwrap();
}

/// Returns hellos. Each hello is wrong in one field.
fn wrong_hellos() -> Vec<proto::Hello> {
    let changes: [fn(&mut proto::Hello); 7] = [
        |hello| hello.magic -= 1,
        |hello| hello.cluster = "prod".to_owned(),
        |hello| hello.members = 5,
        |hello| hello.to = 2,
        |hello| hello.to_name = "OR".to_owned(),
        |hello| hello.from = 2,
        |hello| hello.from_name = "OR".to_owned(),
    ];
    let wrong = changes.map(|change| {
        let mut hello = hello_of_jp();
        change(&mut hello);
        hello
    });
    wrong.into()
}

/// Returns a first message from JP. The message contains the number `stamp`.
fn ping(stamp: u64) -> Envelope {
    Envelope {
        from: ReplicaId(1),
        from_incarnation: Incarnation(1),
        to_incarnation: Incarnation(1),
        message: Message::Ping {
            stamp,
            cost_ms: 0,
            flushed: PerLog::default(),
        },
    }
}

/// A peer may send its first message in the same bytes as its hello.
#[test]
fn nothing_that_a_refused_peer_says_is_heard() {
    let pki = Pki::new();
    block_on(tokio::task::LocalSet::new().run_until(async {
        let inbox = Rc::new(Inbox::default());
        let admission = PeerAdmission {
            unauthenticated: EvictingSlots::new(9, 9),
            accepted: EvictingSlots::new(9, 9),
            handshakes: Rc::new(Handshakes::start(&pki.config, "CA").unwrap()),
            close_log: Default::default(),
        };
        let member = |name: &str| Member {
            name: name.to_owned(),
            address: "127.0.0.1:9".to_owned(),
        };
        let members = MEMBERS.map(member).into();
        let peers = Peers::new("demo", ReplicaId(0), members, inbox.clone(), admission);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepting = tokio::task::spawn_local(Rc::new(peers).accept(listener));

        let foreign = ALL.into_iter().filter(|shown| *shown != Shown::Right);
        let foreign = foreign.map(|shown| (shown, hello_of_jp()));
        let wrong = wrong_hellos().into_iter();
        let wrong = wrong.map(|hello| (Shown::Right, hello));
        let all = foreign.chain(wrong).chain([(Shown::Right, hello_of_jp())]);
        let all: Vec<_> = all.collect();
        let last = all.len() as u64 - 1;
        for (number, (shown, hello)) in (0..).zip(all) {
            let Some(mut line) = shown_to(&address, &pki, shown).await else {
                continue;
            };
            encode_frame(&hello, &mut line.outbox.buffer()).unwrap();
            encode_envelope(ping(number), &mut line.outbox.buffer()).unwrap();
            line.outbox.wait_until_empty().await;
            if number < last {
                while let Ok(Some(_)) = line.frames.wait().await {}
                continue;
            }
            let mut heard = Vec::new();
            while heard.is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
                inbox.take(&mut heard);
            }
            let stamps = heard.iter().map(|input| match input {
                Input::Peer(envelope) => match envelope.message {
                    Message::Ping { stamp, .. } => Some(stamp),
                    _ => None,
                },
                _ => None,
            });
            assert_eq!(stamps.collect::<Vec<_>>(), [Some(last)]);
        }
        accepting.abort();
    }));
}

/// Returns the hello that the node sends when it dials JP and the peer there shows this credential;
/// `None` if the node sends none.
async fn heard_of_dialler(pki: &Pki, shown: Shown, listener: &TcpListener) -> Option<proto::Hello> {
    let (stream, _) = listener.accept().await.unwrap();
    let mut line = match shown {
        Shown::PlainText => Line::new(stream, None),
        _ => {
            let connection = ServerConnection::new(pki.credentials(shown).peers).unwrap();
            let shaken = handshake(&stream, connection.into(), 1 << 16).await;
            Line::new(stream, Some(shaken.ok()?))
        }
    };
    let frame = line.frames.wait().await.ok()??;
    Some(prost::Message::decode(frame).unwrap())
}

#[test]
fn a_dialler_speaks_to_the_member_itself_alone() {
    let pki = Pki::new();
    let node = Running::started(&pki.config, "CA");
    block_on(async {
        let listener = TcpListener::bind(&pki.config.nodes[1].peer).await.unwrap();
        for shown in ALL {
            if shown == Shown::Nothing {
                continue; // the accepting side shows something
            }
            let hello = heard_of_dialler(&pki, shown, &listener).await;
            let expected = (shown == Shown::Right).then_some("JP");
            let to = hello.as_ref().map(|hello| hello.to_name.as_str());
            assert_eq!(to, expected, "{shown:?}");
        }
    });
    node.stop().unwrap();
}

/// Opens a port that shows this credential to clients. Returns whether a client has sent a hello to
/// it.
async fn heard_of_client(
    pki: &Pki,
    shown: Shown,
    listener: &TcpListener,
) -> Option<leasehold_wire::Hello> {
    let (stream, _) = listener.accept().await.unwrap();
    let mut line = match shown {
        Shown::PlainText => Line::new(stream, None),
        _ => {
            let connection = ServerConnection::new(pki.credentials(shown).clients).unwrap();
            let shaken = handshake(&stream, connection.into(), 1 << 16).await;
            Line::new(stream, Some(shaken.ok()?))
        }
    };
    let frame = line.frames.wait().await;
    if shown == Shown::PlainText {
        // Reply of a plain port to the first bytes of TLS.
        let refusal = leasehold_wire::Error::new(ErrorCode::BadRequest, "frame of 369295616 bytes");
        line.send(&Response::refusal(0, refusal)).await;
    }
    Some(prost::Message::decode(frame.ok()??).unwrap())
}

#[test]
fn a_client_speaks_to_replicas_of_its_cluster_alone() {
    let pki = Pki::new();
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut options = ClientOptions::new(listener.local_addr().unwrap().to_string());
        options.cluster = Some("demo".to_owned());
        options.trust = Some(pki.trust());
        for shown in ALL {
            if shown == Shown::Nothing {
                continue;
            }
            let (connected, hello) = tokio::join!(
                Client::connect(options.clone()),
                heard_of_client(&pki, shown, &listener)
            );
            // The port sends no welcome, so all connections fail, but for different reasons.
            let said = connected.unwrap_err().to_string();
            let expected = match shown {
                Shown::Right | Shown::Others | Shown::Own => "no greeting came",
                Shown::OtherCluster => "another cluster",
                Shown::OtherAuthority => "not signed by the authority that is trusted here",
                Shown::Expired => "has expired",
                Shown::NotYet => "not valid yet",
                _ => "does not speak TLS",
            };
            assert!(said.contains(expected), "{shown:?}: {said}");
            let is_replica = matches!(shown, Shown::Right | Shown::Others | Shown::Own);
            assert_eq!(hello.is_some(), is_replica, "{shown:?}");
        }
    });
}

#[test]
fn on_the_clients_port_nothing_but_tls_is_understood() {
    let pki = Pki::new();
    let node = Running::started(&pki.config, "CA");
    block_on(async {
        let address = &pki.config.nodes[0].client;
        let plain = Client::connect(ClientOptions::new(address)).await;
        let said = plain.unwrap_err().to_string();
        assert!(
            said.contains("speaks TLS") && said.contains("--ca FILE"),
            "{said}"
        );
        let other = Authority::new("demo").unwrap().certificate().pem();
        let mut options = ClientOptions::new(address);
        options.trust = Some(Trust::from_pem(other.as_bytes()).unwrap());
        let said = Client::connect(options.clone())
            .await
            .unwrap_err()
            .to_string();
        assert!(said.contains("not signed by the authority"), "{said}");
        options.trust = Some(pki.trust());
        options.cluster = Some("prod".to_owned());
        let said = Client::connect(options.clone())
            .await
            .unwrap_err()
            .to_string();
        assert!(said.contains("another cluster"), "{said}");
        options.cluster = None;
        Client::connect(options).await.unwrap();
    });
    node.stop().unwrap();
}

#[test]
fn a_first_message_is_bounded_over_tls_too() {
    let pki = Pki::new();
    let node = Running::started(&pki.config, "CA");
    block_on(async {
        let stream = TcpStream::connect(&pki.config.nodes[0].peer).await.unwrap();
        let connection = dialled(&pki.dials_with(Shown::Right), "CA");
        let shaken = handshake(&stream, connection, 1 << 16).await.unwrap();
        let mut line = Line::new(stream, Some(shaken));
        let mut long = hello_of_jp();
        long.to_name = "x".repeat(5000);
        line.send(&long).await;
        let refusal = line.greeting().await.unwrap();
        assert!(refusal.contains("the limit is 4096 bytes"), "{refusal}");
        assert!(line.frames.wait().await.unwrap().is_none(), "closed");
    });
    node.stop().unwrap();
}

/// Returns both ends of a TLS connection: the sending end first, then the reading end.
async fn linked(pki: &Pki) -> (Connection, TcpStream, (halves::ReadHalf, halves::WriteHalf)) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stream, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (stream, accepted) = (stream.unwrap(), accepted.unwrap().0);
    let dialled = dialled(&pki.dials_with(Shown::Right), "CA");
    let config = pki.credentials(Shown::Own).peers;
    let listening = ServerConnection::new(config).unwrap().into();
    let (sender, receiver) = tokio::join!(
        handshake(&stream, dialled, 1 << 16),
        handshake(&accepted, listening, 1 << 16)
    );
    let mut sender = sender.unwrap();
    sender.set_buffer_limit(None);
    let halves = halves::split(EstablishedStream {
        stream: accepted,
        channel: Some(Channel::new(receiver.unwrap())),
        verified_members: None,
    });
    (sender, stream, halves)
}

/// The encrypted answers, which have left the buffer, have more bytes than the short answer that is
/// still in the buffer.
#[test]
fn short_answers_are_appended_while_a_client_reads_nothing() {
    let pki = Pki::new();
    block_on(async {
        let (_client, _unread, (_reader, writer)) = linked(&pki).await;
        let budget = Rc::new(Budget::new(Limits::default()));
        let outbox = Outbox::new(writer, budget.unread.clone());
        let address = "127.0.0.1:1".parse().unwrap();
        let connection = connection::Connection::new(1, address, outbox, budget);
        let answer = |id: u64, bytes: usize| {
            let outcome = Outcome::value(vec![7; bytes], Version::default());
            let appended = connection.append(&Response::answer(id, WirePath::Local, outcome));
            connection.outbox.flush();
            appended
        };
        let mut id = 0;
        while connection.outbox.pending_bytes() < 1 << 20 {
            id += 1;
            assert!(answer(id, 64 << 10) > 64 << 10);
        }
        for bytes in [0, 10, 100] {
            id += 1;
            assert!((bytes..bytes + 100).contains(&answer(id, bytes)));
        }
    });
}

/// Returns the encrypted bytes that wait in a connection.
fn sealed(sender: &mut Connection) -> Vec<u8> {
    let mut sealed = Vec::new();
    while sender.wants_write() {
        sender.write_tls(&mut sealed).unwrap();
    }
    sealed
}

/// The reader reads thousands of TLS records of one byte in a row, and other tasks still have their
/// turns.
#[test]
fn many_small_records_keep_nobody_waiting() {
    let pki = Pki::new();
    block_on(tokio::task::LocalSet::new().run_until(async {
        let (mut sender, mut stream, (mut reader, _writer)) = linked(&pki).await;
        const RECORDS: usize = 10_000;
        for _ in 0..RECORDS {
            std::io::Write::write_all(&mut sender.writer(), b"r").unwrap();
        }
        // All bytes fit into the sockets.
        stream.write_all(&sealed(&mut sender)).await.unwrap();
        let turns = Rc::new(Cell::new(0));
        let counted = turns.clone();
        let others = tokio::task::spawn_local(async move {
            loop {
                counted.set(counted.get() + 1);
                tokio::task::yield_now().await;
            }
        });
        let mut plain = BytesMut::new();
        while plain.len() < RECORDS {
            assert!(reader.fill(&mut plain, 1 << 10).await.unwrap() > 0);
        }
        assert!(turns.get() >= 2, "{} turns", turns.get());
        others.abort();
    }));
}

/// Reads until the reader has to wait for an event-loop iteration, although no request has arrived.
async fn until_a_round_is_due(mut reader: halves::ReadHalf, inbox: &Inbox) {
    let read = async {
        let mut plain = BytesMut::new();
        while reader.fill(&mut plain, 1 << 10).await.unwrap() > 0 {}
    };
    tokio::select! {
        () = inbox.arrival() => assert!(!inbox.has_others()),
        () = read => panic!("the connection ended"),
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("it does not count"),
    }
}

#[test]
fn records_of_one_byte_count_by_the_work_that_they_are() {
    let pki = Pki::new();
    block_on(tokio::task::LocalSet::new().run_until(async {
        let (mut sender, mut stream, (reader, _writer)) = linked(&pki).await;
        let inbox = Rc::new(Inbox::default());
        for _ in 0..7_000 {
            std::io::Write::write_all(&mut sender.writer(), b"r").unwrap();
        }
        // 160 KB.
        stream.write_all(&sealed(&mut sender)).await.unwrap();
        until_a_round_is_due(reader.round_robin(inbox.clone()), &inbox).await;
    }));
}

#[test]
fn what_holds_no_plaintext_counts_too() {
    let pki = Pki::new();
    block_on(tokio::task::LocalSet::new().run_until(async {
        let (mut sender, mut stream, (reader, _writer)) = linked(&pki).await;
        let inbox = Rc::new(Inbox::default());
        // Others have read nearly as much as a round takes.
        inbox
            .acquire_read_units(UNITS_PER_ITERATION - (100 << 10))
            .await;
        std::io::Write::write_all(&mut sender.writer(), &[7; 16 << 10]).unwrap();
        let record = sealed(&mut sender);
        // The record lacks its last byte.
        stream.write_all(&record[..record.len() - 1]).await.unwrap();
        until_a_round_is_due(reader.round_robin(inbox.clone()), &inbox).await;
    }));
}

#[test]
fn whoever_does_not_finish_a_handshake_is_given_up() {
    let pki = Pki::new();
    let node = Running::started(&pki.config, "CA");
    block_on(async {
        let ports = &pki.config.nodes[0];
        let begun = async |address: &String| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // A record of a handshake that never arrives whole.
            stream.write_all(&[22, 3, 1, 0, 200, 1]).await.unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        };
        tokio::join!(begun(&ports.client), begun(&ports.peer));
    });
    node.stop().unwrap();
}

/// There are more handshakes than the thread accepts at a time. So the test passes only if
/// abandoned handshakes also release their slots.
#[test]
fn a_handshake_that_nobody_waits_for_closes_its_connection() {
    let pki = Pki::new();
    block_on(async {
        let handshakes = Handshakes::start(&pki.config, "CA").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let until = tokio::time::Instant::now() + Duration::from_secs(3600);
        for _ in 0..100 {
            let stream = TcpStream::connect(listener.local_addr().unwrap());
            let (silent, accepted) = tokio::join!(stream, listener.accept());
            let shaking = handshakes.perform(accepted.unwrap().0, Side::Peer, until);
            let given_up = tokio::time::timeout(Duration::from_millis(5), shaking).await;
            assert!(given_up.is_err(), "nobody answers");
            let mut rest = Vec::new();
            let mut silent = silent.unwrap();
            let closed =
                tokio::time::timeout(Duration::from_secs(60), silent.read_to_end(&mut rest));
            let _ = closed
                .await
                .expect("it is closed long before the hour is over");
        }
    });
}

/// Runs two nodes with these configurations, and checks the answers that a client with these
/// options receives.
fn served(configs: [&ClusterConfig; 2], options: &ClientOptions) {
    let nodes = [("CA", configs[0]), ("JP", configs[1])];
    let nodes = nodes.map(|(name, config)| Running::started(config, name));
    block_on(async {
        let client = Client::connect(options.clone()).await.unwrap();
        let value = |n: u8| vec![n; VALUE_BYTES_MAX];
        let puts = (0..16).map(|n| client.put(format!("k{n}"), value(n)));
        let puts: Vec<_> = puts.collect();
        for put in puts {
            put.await.unwrap();
        }
        // These are far more answers than a socket holds.
        let gets: Vec<_> = (0..64)
            .map(|n: u8| {
                let client = client.clone();
                tokio::spawn(async move { client.get(format!("k{}", n % 16)).await })
            })
            .collect();
        for (n, get) in (0..).zip(gets) {
            let found = get.await.unwrap().unwrap().unwrap();
            assert!(found.value == value(n % 16), "{n}");
        }
        let status = client.raw().status(Default::default()).await.unwrap();
        let failed = status
            .counters
            .iter()
            .find(|one| one.name == "tls_handshakes");
        assert!(failed.is_some_and(|counter| counter.value > 0));
    });
    for node in nodes {
        node.stop().unwrap();
    }
}

#[test]
fn a_cluster_with_certificates_serves() {
    let pki = Pki::new();
    let config = secured(pki.dir.path(), &["CA", "JP"], "certificates = '.'");
    let mut options = ClientOptions::new(&config.nodes[0].client);
    options.trust = Some(pki.trust());
    served([&config, &config], &options);
}

#[test]
fn a_cluster_with_a_shared_secret_serves_and_another_secret_is_foreign() {
    let dir = tempfile::tempdir().unwrap();
    let secret = |file: &str, text: &str| {
        write_new(&dir.path().join(file), text, 0o600).unwrap();
    };
    // The secret on two hosts, written with two editors.
    secret("secret", "Hn2Q0yJt1rXvB8kKxF5cV3mWz7pLd9Sg");
    secret("copy", "Hn2Q0yJt1rXvB8kKxF5cV3mWz7pLd9Sg\n");
    secret("other", "an0ther_an0ther_an0ther_an0ther_");
    let config = secured(dir.path(), &["CA", "JP"], "secret = 'secret'");
    let with = |file: &str| {
        let mut other = config.clone();
        other.security.identity = crate::config::Identity::Secret(dir.path().join(file));
        other
    };
    let mut options = ClientOptions::new(&config.nodes[0].client);
    options.trust = crate::security::trust(&with("copy")).unwrap();
    served([&config, &with("copy")], &options);

    let node = Running::started(&config, "CA");
    block_on(async {
        options.trust = crate::security::trust(&with("other")).unwrap();
        let said = Client::connect(options).await.unwrap_err().to_string();
        assert!(said.contains("not signed by the authority"), "{said}");
        let stream = TcpStream::connect(&config.nodes[0].peer).await.unwrap();
        let foreign = NodeCredentials::open(&with("other"), "JP")
            .unwrap()
            .unwrap();
        let shaken = handshake(&stream, dialled(&foreign.dial, "CA"), 1 << 16).await;
        assert!(shaken.is_err(), "neither trusts the other");
    });
    node.stop().unwrap();
}

#[test]
fn new_certificates_are_used_without_a_restart() {
    let pki = Pki::new();
    let node = Running::started(&pki.config, "CA");
    block_on(async {
        let mut options = ClientOptions::new(&pki.config.nodes[0].client);
        options.trust = Some(pki.trust());
        let client = Client::connect(options.clone()).await.unwrap();
        let next = Authority::new("demo").unwrap();
        let issued = next.issue("CA", Validity::days(30)).unwrap();
        let write = |file: &Path, text: String| std::fs::write(file, text).unwrap();
        write(&pki.dir.path().join(AUTHORITY), next.certificate().pem());
        write(
            &certificate_file(pki.dir.path(), "CA"),
            issued.certificate.pem(),
        );
        write(&key_file(pki.dir.path(), "CA"), issued.key.serialize_pem());
        options.trust = Some(pki.trust());
        while Client::connect(options.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        client.raw().status(Default::default()).await.unwrap();
    });
    node.stop().unwrap();
}

/// Only the permissions of the files change between the refusal and the success, so the
/// modification time is the same.
#[test]
fn new_certificates_that_were_refused_are_tried_again() {
    let pki = Pki::new();
    let node = Running::started(&pki.config, "CA");
    block_on(async {
        let next = Authority::new("demo").unwrap();
        let issued = next.issue("CA", Validity::days(30)).unwrap();
        let key = key_file(pki.dir.path(), "CA");
        let mode = |mode| std::fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        std::fs::write(&key, issued.key.serialize_pem()).unwrap();
        std::fs::write(pki.dir.path().join(AUTHORITY), next.certificate().pem()).unwrap();
        let certificate = certificate_file(pki.dir.path(), "CA");
        std::fs::write(certificate, issued.certificate.pem()).unwrap();
        let with = |trust| {
            let mut options = ClientOptions::new(&pki.config.nodes[0].client);
            options.trust = Some(trust);
            options
        };
        let old = with(Trust::from_pem(pki.authority.certificate().pem().as_bytes()).unwrap());
        let new = with(pki.trust());
        // This is enough time for some attempts to read the files.
        let refused_until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < refused_until {
            Client::connect(old.clone()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        mode(0o600);
        while Client::connect(new.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    node.stop().unwrap();
}

#[test]
fn a_pipe_in_place_of_a_certificate_does_not_stop_handshakes() {
    let pki = Pki::new();
    let node = Running::started(&pki.config, "CA");
    for file in [
        key_file(pki.dir.path(), "CA"),
        certificate_file(pki.dir.path(), "CA"),
    ] {
        std::fs::remove_file(&file).unwrap();
        let made = std::process::Command::new("mkfifo")
            .args(["-m", "600"])
            .arg(&file)
            .status();
        assert!(made.unwrap().success());
    }
    block_on(async {
        let mut options = ClientOptions::new(&pki.config.nodes[0].client);
        options.trust = Some(pki.trust());
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            Client::connect(options.clone()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let refused = NodeCredentials::open(&pki.config, "CA").unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("CA.pem: is no regular file"), "{said}");
    node.stop().unwrap();
}

#[test]
fn a_node_that_others_may_reach_must_say_how_it_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), &["CA"]);
    config.nodes[0].peer = config.nodes[0].peer.replace("127.0.0.1", "0.0.0.0");
    let refused = Running::start(&config, "CA").ended().unwrap_err();
    assert!(
        refused.status() == NodeError::FINAL_STATUS
            && refused.to_string().contains("insecure = true"),
        "{refused}"
    );
    config.security.insecure = true;
    Running::started(&config, "CA").stop().unwrap();
}

#[test]
fn a_stranger_cannot_make_a_handshake_long() {
    let pki = Pki::new();
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let dialled = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let connection = dialled(&pki.dials_with(Shown::Right), "CA");
            let _ = handshake(&stream, connection, 1 << 16).await;
        };
        let accepted = async {
            let (stream, _) = listener.accept().await.unwrap();
            let connection = ServerConnection::new(pki.credentials(Shown::Own).peers).unwrap();
            handshake(&stream, connection.into(), 100).await
        };
        let ((), shaken) = tokio::join!(dialled, accepted);
        let said = shaken.unwrap_err().to_string();
        assert_eq!(said, "a handshake of more than 100 bytes");
    });
}

/// Returns the first `bytes` bytes of a TLS client hello, which is longer.
fn part_of_a_hello(bytes: usize) -> Vec<u8> {
    const RECORD: usize = 1000;
    let mut said = Vec::new();
    while said.len() < bytes {
        said.extend([22, 3, 1, (RECORD >> 8) as u8, RECORD as u8]);
        let mut record = vec![0; RECORD];
        if said.len() == 5 {
            // A ClientHello of 60 KiB.
            record[..4].copy_from_slice(&[1, 0, 0xf0, 0]);
        }
        said.extend(record);
    }
    said.truncate(bytes);
    said
}

/// Returns true if the client that sends more bytes of a handshake is closed before the client that
/// connected earlier and sends fewer bytes. In the end both clients are closed, because neither
/// completes its handshake in time.
async fn longer_is_closed_first(address: &str, shorter: usize, longer: usize) -> bool {
    let say = async |bytes: usize| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(&part_of_a_hello(bytes)).await;
        stream
    };
    let (mut early, mut late) = (say(shorter).await, say(longer).await);
    let (mut told_early, mut told_late) = (Vec::new(), Vec::new());
    tokio::select! {
        biased;
        _ = early.read_to_end(&mut told_early) => false,
        _ = late.read_to_end(&mut told_late) => true,
    }
}

#[test]
fn a_node_bounds_the_handshakes_of_strangers() {
    let pki = Pki::new();
    let node = Running::started(&pki.config, "CA");
    block_on(async {
        let ports = &pki.config.nodes[0];
        let bounds = [(&ports.client, 4 << 10), (&ports.peer, 16 << 10)];
        for (address, bound) in bounds {
            // If the machine pauses for long, the early client may be closed for its time limit.
            while !longer_is_closed_first(address, bound, bound + 1).await {}
        }
    });
    node.stop().unwrap();
}
