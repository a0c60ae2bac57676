//! Tests of tokens at a node: the requests that tokens allow over a socket, and the handling of
//! changes to the token file.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use leasehold_client::{Error, RefusalKind};
use leasehold_transport::Secret;
use leasehold_wire::{Hello, StatusRequest};

use super::*;
use crate::front::access::tests::matrix::{
    Oracle, Role, Standing, bodies_about, keys, names_reserved_key, scans, words,
};
use crate::front::access::tokens::{TokenEntry, write};

/// A time in 2100, in seconds since 1970: later than any test.
const LATE: i64 = 4_102_444_800;
/// Number of requests that are sent before any of their answers are read.
const TOGETHER: usize = 100;

/// A directory with a token file, and a node that requires tokens from its clients.
struct Guarded {
    dir: tempfile::TempDir,
    config: ClusterConfig,
    entries: Vec<TokenEntry>,
}

impl Guarded {
    fn new(entries: Vec<TokenEntry>) -> Guarded {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path(), &["CA"]);
        config.security.tokens = Some(dir.path().join("tokens.toml"));
        let guarded = Guarded {
            dir,
            config,
            entries,
        };
        guarded.write(&guarded.entries);
        guarded
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("tokens.toml")
    }

    fn write(&self, entries: &[TokenEntry]) {
        self.write_text(&write(entries), 0o600);
    }

    /// Replaces the token file in one step, as programs do with files that other programs read.
    fn write_text(&self, text: &str, mode: u32) {
        let new = self.dir.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::set_permissions(&new, Permissions::from_mode(mode)).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    fn secret(&self, token: &str) -> Secret {
        let file = self.dir.path().join("token");
        std::fs::write(&file, token).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        Secret::load(&file).unwrap()
    }

    fn options(&self, token: &str) -> ClientOptions {
        let mut options = ClientOptions::new(&self.config.nodes[0].client);
        options.token = Some(self.secret(token));
        options
    }

    async fn raw(&self, token: &[u8]) -> Raw {
        let address = &self.config.nodes[0].client;
        Raw::connect(address, token).await
    }
}

/// A connection from which the test reads answers one by one.
struct Raw {
    reader: FrameReader<tokio::net::tcp::OwnedReadHalf>,
    writer: FrameWriter<tokio::net::tcp::OwnedWriteHalf>,
    last_id: u64,
}

impl Raw {
    async fn connect(address: &str, token: &[u8]) -> Raw {
        let (read, write) = TcpStream::connect(address).await.unwrap().into_split();
        let mut raw = Raw {
            reader: FrameReader::new(read),
            writer: FrameWriter::new(write),
            last_id: 0,
        };
        let hello = Hello {
            token: Bytes::copy_from_slice(token),
            ..hello(Some("demo"))
        };
        raw.writer.feed(&hello).unwrap();
        raw.writer.flush().await.unwrap();
        raw
    }

    /// Returns the error in the reply to the greeting; `None` if the client is welcomed.
    async fn greeting(&mut self) -> Option<ErrorCode> {
        let frame = self.reader.next_frame().await.unwrap().unwrap();
        let greeting = leasehold_wire::decode_greeting(frame).unwrap();
        greeting.err().map(|error| error.code())
    }

    /// Sends all requests together. Returns the error code of each refused request, and `None` for
    /// each request that succeeds.
    async fn ask(&mut self, bodies: &[Body]) -> Vec<Option<ErrorCode>> {
        let first = self.last_id + 1;
        for body in bodies {
            self.last_id += 1;
            let request = Request::new(self.last_id, Some(self.in_session(body)));
            self.writer.feed(&request).unwrap();
        }
        self.writer.flush().await.unwrap();
        let mut answers = BTreeMap::new();
        while answers.len() < bodies.len() {
            let response: Response = self.reader.next().await.unwrap().expect("an answer");
            let result = response.outcome.and_then(|outcome| outcome.result);
            let code = match result {
                Some(outcome::Result::Error(error)) => Some(error.code()),
                _ => None,
            };
            assert!(response.id >= first, "{code:?}");
            answers.insert(response.id, code);
        }
        answers.into_values().collect()
    }

    /// Adds a session to the request if it is a write, because a write needs one.
    fn in_session(&self, body: &Body) -> Body {
        let mut body = body.clone();
        if let Body::Command(command) = &mut body
            && command.is_write()
        {
            command.client = 1;
            command.sequence = self.last_id;
            command.acked_below = self.last_id;
        }
        body
    }

    /// Whether the other side has ended the connection without sending any further bytes.
    async fn is_over(&mut self) -> bool {
        !matches!(self.reader.next::<Response>().await, Ok(Some(_)))
    }
}

/// Returns requests of every kind, about every key and every range of the test.
fn everything() -> Vec<Body> {
    let about = keys(2).into_iter().filter(|key| !key.is_empty());
    let about = about.flat_map(|key| bodies_about(&key));
    about.chain(scans(2)).collect()
}

fn roles() -> Vec<Role> {
    Role::all_over(&"a".into())
}

#[test]
fn a_node_allows_what_the_brute_force_says_to_every_role() {
    let entries = roles().into_iter();
    let entries = entries.map(|role| role.entry(role.name.as_bytes(), LATE));
    let guarded = Guarded::new(entries.collect());
    let node = Running::started(&guarded.config, "CA");
    for role in roles() {
        block_on(async {
            let oracle = Oracle::new(&role);
            let mut raw = guarded.raw(role.name.as_bytes()).await;
            assert_eq!(raw.greeting().await, None);
            for bodies in everything().chunks(TOGETHER) {
                for (body, code) in bodies.iter().zip(raw.ask(bodies).await) {
                    let shown = || format!("{}: {} {code:?}", role.name, words(body));
                    if names_reserved_key(body) {
                        assert_eq!(code, Some(ErrorCode::BadRequest), "{}", shown());
                        continue;
                    }
                    let denied = code == Some(ErrorCode::PermissionDenied);
                    assert_eq!(denied, !oracle.allows(body), "{}", shown());
                    assert_ne!(code, Some(ErrorCode::Unauthenticated));
                }
            }
        });
    }
    node.stop().unwrap();
}

#[test]
fn who_has_no_token_that_counts_is_told_nothing_else() {
    let role = |standing| Role {
        standing,
        ..roles().pop().unwrap()
    };
    let entries = vec![
        role(Standing::Counts).entry(b"good", LATE),
        TokenEntry {
            name: "old".to_owned(),
            ..role(Standing::ExpiredBefore).entry(b"old", 1_600_000_000)
        },
    ];
    let guarded = Guarded::new(entries);
    let node = Running::started(&guarded.config, "CA");
    block_on(async {
        let long = [b'x'; 257];
        for token in [&b""[..], b"old", b"unknown", b"goo", b"goodd", &long] {
            let mut raw = guarded.raw(token).await;
            // Requests that follow a refused greeting are not read.
            let asked = Request::new(1, Some(Body::Status(StatusRequest::default())));
            let _ = raw.writer.feed(&asked);
            let _ = raw.writer.flush().await;
            let frame = raw.reader.next_frame().await.unwrap().unwrap();
            let refusal = leasehold_wire::decode_greeting(frame.clone()).unwrap();
            let refusal = refusal.unwrap_err();
            assert_eq!(refusal.code(), ErrorCode::Unauthenticated);
            assert!(!refusal.message.contains("demo"), "{}", refusal.message);
            assert!(raw.is_over().await, "nothing follows");
        }
        assert_eq!(guarded.raw(b"good").await.greeting().await, None);
        let without = Client::connect(ClientOptions::new(&guarded.config.nodes[0].client)).await;
        let Err(Error::Refused { kind, message, .. }) = without else {
            panic!("refused");
        };
        assert_eq!(kind, RefusalKind::Unauthenticated);
        assert!(message.contains("--token-file"), "{message}");

        let client = Client::connect(guarded.options("good")).await.unwrap();
        client.put("a", "v").await.unwrap();
        assert_eq!(client.get("a").await.unwrap().unwrap().value, "v");
        let denied = client.get("b").await.unwrap_err().to_string();
        assert!(denied.contains("get of \"b\""), "{denied}");
        let counter = |status: &StatusReply, name: &str| {
            let found = status.counters.iter().find(|it| it.name == name);
            found.map(|it| it.value)
        };
        let status = client.raw().status(Default::default()).await.unwrap();
        assert_eq!(counter(&status, "tokens"), Some(1));
        assert_eq!(counter(&status, "tokens_outdated"), Some(0));
        assert_eq!(counter(&status, "clients_unauthenticated"), Some(7));
        assert_eq!(counter(&status, "requests_denied"), Some(1));
    });
    node.stop().unwrap();
}

/// The token file is read again without a restart. A file that cannot be used removes no rights,
/// and the log reports it.
#[test]
fn a_token_that_is_taken_out_of_the_file_ends_its_connections() {
    let all = || roles().pop().unwrap();
    let entry = |name: &str| TokenEntry {
        name: name.to_owned(),
        ..all().entry(name.as_bytes(), LATE)
    };
    let guarded = Guarded::new(vec![entry("first"), entry("second")]);
    let node = Running::started(&guarded.config, "CA");
    block_on(async {
        let mut first = guarded.raw(b"first").await;
        assert_eq!(first.greeting().await, None);
        let second = Client::connect(guarded.options("second")).await.unwrap();
        second.put("a", "v").await.unwrap();
        let outdated = async |expected: u64| {
            loop {
                let status = second.raw().status(Default::default()).await.unwrap();
                let mut counters = status.counters.iter();
                let found = counters.find(|counter| counter.name == "tokens_outdated");
                if found.unwrap().value == expected {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let good = write(&[entry("second")]);
        guarded.write_text("[[token]", 0o600);
        outdated(1).await;
        guarded.write(&guarded.entries);
        outdated(0).await;
        guarded.write_text(&good, 0o644);
        outdated(1).await;
        guarded.write(&guarded.entries);
        outdated(0).await;
        // The file is in this state while a program writes a new one in its place.
        guarded.write_text("# Tokens of clients\n", 0o600);
        outdated(1).await;
        std::fs::remove_file(guarded.file()).unwrap();
        let bare = Body::Status(StatusRequest::default());
        assert_eq!(
            first.ask(&[bare]).await,
            [None],
            "nothing is revoked so far"
        );
        guarded.write_text(&good, 0o600);
        assert!(first.is_over().await, "its token is not in the file");
        let again = guarded.raw(b"first").await.greeting().await;
        assert_eq!(again, Some(ErrorCode::Unauthenticated));
        second.put("a", "w").await.unwrap();
        outdated(0).await;

        guarded.write(&[]);
        let lost = async {
            while second.get("a").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            second.get("a").await.unwrap_err()
        };
        let Error::Refused { kind, .. } = lost.await else {
            panic!("it is not told why");
        };
        assert_eq!(kind, RefusalKind::Unauthenticated);
        guarded.write(&[entry("second")]);
        while second.get("a").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    node.stop().unwrap();
}

#[test]
fn rights_that_are_taken_away_or_expire_count_no_more() {
    let wide = roles().pop().unwrap();
    let narrow = Role {
        write: Vec::new(),
        ..wide.clone()
    };
    let guarded = Guarded::new(vec![wide.entry(b"it", LATE)]);
    let node = Running::started(&guarded.config, "CA");
    block_on(async {
        let mut raw = guarded.raw(b"it").await;
        assert_eq!(raw.greeting().await, None);
        let put = Body::Command(Op::put("a", "v").into());
        let get = Body::Command(Op::get("a").into());
        let both = [put, get];
        assert_eq!(raw.ask(&both).await, [None, None]);
        guarded.write(&[narrow.entry(b"it", LATE)]);
        let denied = Some(ErrorCode::PermissionDenied);
        while raw.ask(&both).await != [denied, None] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let text = write(&[narrow.entry(b"it", LATE)]);
        assert!(text.contains("expires = 2100-"), "{text}");
        guarded.write_text(&text.replace("expires = 2100-", "expires = 2020-"), 0o600);
        assert!(raw.is_over().await);
    });
    node.stop().unwrap();
}

#[test]
fn a_node_does_not_start_with_a_file_of_tokens_that_it_cannot_use() {
    let guarded = Guarded::new(Vec::new());
    let ends = |config: &ClusterConfig| {
        let ended = Running::start(config, "CA").ended();
        ended.unwrap_err().to_string()
    };
    let file = guarded.file().display().to_string();
    guarded.write_text("", 0o640);
    let open = ends(&guarded.config);
    let fix = format!("`chmod 600 {file}`");
    assert!(open.contains("mode 0640") && open.contains(&fix), "{open}");
    guarded.write_text("[[token]]\nname = \"a\"\n", 0o600);
    let wrong = ends(&guarded.config);
    assert!(
        wrong.starts_with(&file) && wrong.contains("sha256 is missing"),
        "{wrong}"
    );
    guarded.write_text("", 0o600);
    let empty = ends(&guarded.config);
    assert!(
        empty.starts_with(&file) && empty.contains("to revoke all, write `token = []`"),
        "{empty}"
    );
    std::fs::remove_file(guarded.file()).unwrap();
    let gone = ends(&guarded.config);
    assert!(
        gone.contains("[security] tokens") && gone.contains(&file),
        "{gone}"
    );
}
