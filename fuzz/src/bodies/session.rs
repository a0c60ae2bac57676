//! A client's connection after the handshake. A request that the client's token does not allow must
//! not be executed, and its answer must not reveal anything.

use std::cell::OnceCell;
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use leasehold_leases::{ReplicaId, StrategySpec};
use leasehold_node::access::rights::{Rights, check};
use leasehold_node::access::tokens::{Digest, TokenEntry, parse};
use leasehold_replica::Input;
use leasehold_replica::action::ClientHandle;
use leasehold_replica::input::OperatorRequest;
use leasehold_replica::message::Value;
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::request::Body;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{
    Command, DecodedRequest, Hello, MAGIC, Outcome, PROBE_KEY, Txn, decode_request, split_frame,
    validate_body,
};
use prost::Message as _;

use super::cluster::{Cluster, LIAR, OTHER, VICTIM};
use crate::memory;

/// Maximum number of requests of one input.
const REQUESTS_MAX: usize = 32;
/// Maximum memory, in bytes, that three replicas may use for one request, and for the time that
/// passes after this request.
const REQUEST_BYTES: usize = 256 << 10;
/// Maximum memory for each byte of a command, in bytes. The command's frame, messages, and the logs
/// and states of three replicas contain copies of the command.
const PER_BYTE: usize = 2 * super::peer::PER_BYTE;
const CONNECTION: u64 = 77;

/// A token and its rights: the prefixes that it may read, the prefixes that it may write, and
/// whether it may see the state of the cluster. The fixture writes the token and its rights into
/// the file of tokens.
struct Grant {
    token: &'static str,
    read: &'static [&'static str],
    write: &'static [&'static str],
    admin: bool,
}

const fn grant(
    token: &'static str,
    read: &'static [&'static str],
    write: &'static [&'static str],
    admin: bool,
) -> Grant {
    Grant {
        token,
        read,
        write,
        admin,
    }
}

const GRANTS: [Grant; 7] = [
    grant("", &["open/"], &[], false),
    grant("lh_reader", &["a/"], &[], false),
    grant("lh_writer", &[], &["a/"], false),
    grant("lh_both", &["a/", "b/x"], &["a/", "b/"], false),
    grant("lh_all_read", &[""], &[], false),
    grant("lh_all", &[""], &[""], false),
    grant("lh_admin", &[], &[], true),
];

/// Keys that have values before the client connects.
const STORED: [&str; 6] = ["a/1", "a/2", "b/1", "b/x1", "c", "open/1"];

/// Replicas in which the keys of `STORED` have values, and the tokens that the replicas accept.
#[derive(Clone)]
struct SessionFixture {
    cluster: Cluster,
    tokens: Vec<TokenEntry>,
    stored: Vec<(Bytes, Bytes)>,
    /// Number of values that the replicas had accepted before the client connected.
    before: usize,
}

fn ready(leader: ReplicaId) -> SessionFixture {
    let mut cluster = Cluster::led_by(leader, StrategySpec::All);
    for (sequence, key) in (1..).zip(STORED) {
        let value = format!("the secret of {key}");
        let command = Command {
            opened_ms: cluster.replica(VICTIM).log_time_ms(),
            ..Command::session(5, sequence, sequence, Op::put(key, value))
        };
        let from = ClientHandle {
            connection: 5,
            request: sequence,
        };
        cluster.give(VICTIM, Input::Client { from, command });
        cluster.pass(Duration::from_millis(300));
    }
    let stored = cluster.read_all(VICTIM);
    assert!(stored.len() >= STORED.len());
    let tokens = parse(&token_file(), Path::new("tokens.toml"));
    let tokens = tokens.expect("the file is well-formed");
    SessionFixture {
        before: cluster.accepted.len(),
        cluster,
        tokens,
        stored,
    }
}

fn token_file() -> String {
    let entry = |(number, grant): (usize, &Grant)| {
        let rights = |may: &str, prefixes: &[&str]| {
            let right = |prefix: &&str| format!("{{ prefix = \"{prefix}\", may = \"{may}\" }}, ");
            prefixes.iter().map(right).collect::<String>()
        };
        let digest = Digest::of(grant.token.as_bytes());
        let who = match grant.token {
            "" => "name = \"anonymous\"\n".to_owned(),
            _ => format!("name = \"app{number}\"\nsha256 = \"{digest}\"\n"),
        };
        let admin = if grant.admin { "admin = true\n" } else { "" };
        let (read, write) = (rights("read", grant.read), rights("write", grant.write));
        format!("[[token]]\n{who}rights = [{read}{write}]\n{admin}")
    };
    GRANTS.iter().enumerate().map(entry).collect()
}

/// Runs the session of a client. The first byte of the input selects the leader. The frames of the
/// client follow: one with the client's greeting, and others with requests.
pub fn session(input: &[u8]) {
    thread_local! {
        static READY: [OnceCell<SessionFixture>; 2] = const { [const { OnceCell::new() }; 2] };
    }
    let Some((&first, rest)) = input.split_first() else {
        return;
    };
    let leader = usize::from(first & 1);
    let leaders = [VICTIM, LIAR];
    let mut ready = READY.with(|known| {
        let known = known[leader].get_or_init(|| ready(leaders[leader]));
        known.clone()
    });
    let mut stream = BytesMut::from(rest);
    let requests = REQUESTS_MAX.min(1 + rest.len() / 4);
    let grant = memory::within_base(requests * REQUEST_BYTES, rest.len(), PER_BYTE, || {
        talk(&mut ready, &mut stream)
    });
    ready.judge(grant, input);
}

/// Handles the client's frames in the same way as a node does. Returns the rights of the client, or
/// `None` if the client is refused.
fn talk(ready: &mut SessionFixture, stream: &mut BytesMut) -> Option<&'static Grant> {
    let hello = Hello::decode(next(stream)?).ok()?;
    if hello.magic != MAGIC {
        return None;
    }
    let rights = ready.rights(&hello.token);
    let grant = GRANTS
        .iter()
        .find(|grant| grant.token.as_bytes() == hello.token);
    assert_eq!(
        rights.is_some(),
        grant.is_some(),
        "a client that is let in has a token"
    );
    let (rights, grant) = rights.zip(grant)?;
    let mut last = 0;
    for _ in 0..REQUESTS_MAX {
        let Some(frame) = next(stream) else { break };
        let Ok(received) = decode_request(frame) else {
            break;
        };
        let DecodedRequest::Request(request) = received else {
            continue;
        };
        let checked = validate_body(request.body.as_ref());
        // Numbers of requests on a connection must increase.
        if checked.is_err() || request.id <= last {
            continue;
        }
        let Some(body) = request.body else { continue };
        if check(&rights, &body).is_err() {
            continue;
        }
        last = request.id;
        ask(&mut ready.cluster, last, body, grant);
    }
    let connection = CONNECTION;
    ready
        .cluster
        .give(VICTIM, Input::ClientDisconnected { connection });
    ready.cluster.pass(Duration::from_millis(300));
    Some(grant)
}

fn next(stream: &mut BytesMut) -> Option<Bytes> {
    split_frame(stream).ok().flatten()
}

fn ask(cluster: &mut Cluster, request: u64, body: Body, grant: &Grant) {
    let input = match body {
        Body::Command(command) => {
            let from = ClientHandle {
                connection: CONNECTION,
                request,
            };
            if let Some(key) = command.keys().next() {
                cluster.replica(VICTIM).hint(key);
            }
            Input::Client { from, command }
        }
        Body::Move(requested) => {
            assert!(
                grant.admin,
                "only administrators move leadership, not {:?}",
                grant.token
            );
            let names = [("A", VICTIM), ("B", LIAR), ("C", OTHER)];
            let Some((_, to)) = names.into_iter().find(|(name, _)| *name == requested.to) else {
                return;
            };
            Input::Operator(OperatorRequest::Transfer(to))
        }
        Body::Lease(_) => {
            return assert!(
                grant.admin,
                "only administrators change leases, not {:?}",
                grant.token
            );
        }
        Body::Status(requested) => {
            let wide = requested.leases
                || requested.demand
                || requested.holders && requested.key.is_empty();
            let revealed = !requested.holders || grant.admin || covers(grant.read, &requested.key);
            return assert!(revealed && (grant.admin || !wide), "{requested:?}");
        }
    };
    cluster.give(VICTIM, input);
    cluster.pass(Duration::from_millis(40));
}

fn covers(prefixes: &[&str], key: &[u8]) -> bool {
    prefixes
        .iter()
        .any(|prefix| key.starts_with(prefix.as_bytes()))
}

impl SessionFixture {
    /// Returns the rights that the file of tokens gives to a token.
    fn rights(&self, token: &[u8]) -> Option<Rights> {
        let digest = (!token.is_empty()).then(|| Digest::of(token));
        let entry = self.tokens.iter().find(|entry| entry.digest == digest);
        entry.map(TokenEntry::rights)
    }

    /// Asserts that the session has not changed a key that the client may not write. Also asserts
    /// that the session has not revealed a key that the client may not read.
    fn judge(&mut self, grant: Option<&Grant>, input: &[u8]) {
        let (read, write) = grant.map_or((&[][..], &[][..]), |it| (it.read, it.write));
        let (before, since) = self.cluster.accepted.split_at(self.before);
        for value in since.iter().filter(|value| !before.contains(value)) {
            assert_allowed(value, read, write);
        }
        let replies = std::mem::take(&mut self.cluster.replies);
        let replies = replies
            .iter()
            .filter(|(_, to, _)| to.connection == CONNECTION);
        for (.., outcome) in replies {
            self.assert_not_leaked(outcome, read, input);
        }
        self.cluster.pass(Duration::from_secs(2));
        let untouched = |all: &[(Bytes, Bytes)]| -> Vec<(Bytes, Bytes)> {
            let kept = all.iter().filter(|(key, _)| !covers(write, key));
            kept.cloned().collect()
        };
        let now = self.cluster.read_all(VICTIM);
        assert_eq!(untouched(&now), untouched(&self.stored));
    }

    /// Asserts that the outcome reveals no value that the client may not read. Values that are in
    /// the client's own input are allowed.
    fn assert_not_leaked(&self, outcome: &Outcome, read: &[&str], input: &[u8]) {
        if let Some(Answer::Entries(found)) = &outcome.result {
            let revealed = found.entries.iter();
            revealed.for_each(|entry| assert!(covers(read, &entry.key), "{entry:?} may be read"));
        }
        let revealed = outcome.encode_to_vec();
        let has = |all: &[u8], part: &[u8]| all.windows(part.len()).any(|it| it == part);
        for key in STORED.iter().filter(|key| !covers(read, key.as_bytes())) {
            let secret = format!("the secret of {key}");
            let known = has(input, secret.as_bytes());
            assert!(known || !has(&revealed, secret.as_bytes()), "{outcome:?}");
        }
    }
}

fn assert_allowed(value: &Value, read: &[&str], write: &[&str]) {
    for proposed in value.commands() {
        let command = &proposed.command;
        if let Some(Op::Txn(txn)) = &command.op {
            assert_txn_allowed(txn, read, write);
            continue;
        }
        let prefixes = if command.is_write() { write } else { read };
        let mut keys = command.keys();
        let allowed = is_probe(command) || keys.all(|key| covers(prefixes, key));
        assert!(allowed, "{command:?} with {read:?}, {write:?}");
    }
}

/// Asserts that the client may compare and read every key that the transaction compares or reads,
/// and write every key that it writes. Only a put tells nothing about the stored value.
fn assert_txn_allowed(txn: &Txn, read: &[&str], write: &[&str]) {
    for comparison in &txn.comparisons {
        let key = &comparison.key;
        assert!(
            covers(read, key) && *key != PROBE_KEY,
            "{txn:?} with {read:?}"
        );
    }
    for operation in txn.operations() {
        let key = operation.key();
        let reads = !matches!(operation, Listed::Put(_));
        let writes = !matches!(operation, Listed::Get(_));
        let may_read = !reads || covers(read, key);
        let may_write = !writes || covers(write, key) && *key != PROBE_KEY;
        assert!(
            may_read && may_write,
            "{operation:?} with {read:?}, {write:?}"
        );
    }
}

/// Returns true if clients send this command to check that a replica responds.
fn is_probe(command: &Command) -> bool {
    !command.is_write() && command.keys().eq([PROBE_KEY.as_bytes()])
}

pub mod seeds {
    use leasehold_wire::command::Op;
    use leasehold_wire::request::Body;
    use leasehold_wire::{
        Command, Field, Hello, KeyValue, LeaseRequest, MoveRequest, Request, StatusRequest, hello,
    };
    use prost::Message;

    use super::GRANTS;
    use crate::bodies::samples;

    /// Returns sessions for each token. They contain requests of all kinds, both for keys to which
    /// the token has rights and for other keys.
    pub fn session() -> Vec<Vec<u8>> {
        let tokens = GRANTS.iter().map(|grant| grant.token).chain(["lh_nobody"]);
        let each = tokens.flat_map(|token| {
            ["a/1", "b/1", "b/x1", "c", "new", "a/new"].map(|key| conversation(token, key))
        });
        let each: Vec<Vec<u8>> = each.collect();
        [0, 1]
            .iter()
            .flat_map(|first| each.iter().map(|frames| [&[*first], &frames[..]].concat()))
            .collect()
    }

    fn conversation(token: &'static str, key: &'static str) -> Vec<u8> {
        let greeting = Hello {
            token: token.into(),
            ..hello(Some("cluster"))
        };
        let mut frames = Vec::new();
        push(&mut frames, &greeting);
        for (id, body) in (1..).zip(bodies(key)) {
            push(&mut frames, &Request::new(id, Some(body)));
        }
        frames
    }

    fn push(frames: &mut Vec<u8>, message: &impl Message) {
        let encoded = message.encode_to_vec();
        frames.extend((encoded.len() as u32).to_be_bytes());
        frames.extend(encoded);
    }

    fn bodies(key: &'static str) -> Vec<Body> {
        let pair = |key: &'static str| KeyValue {
            key: key.into(),
            value: "new".into(),
        };
        let field = Field {
            name: "name".into(),
            value: "new".into(),
        };
        let end = match key.split_once('/') {
            Some(("a", _)) => "a0",
            _ => "b0",
        };
        let ops = [
            Op::get(key),
            Op::put(key, "new"),
            Op::cas(key, "newer", None),
            Op::put_fields(key, vec![field]),
            Op::multi_get(vec!["a/1".into(), key.into()]),
            Op::multi_put(vec![pair("a/2"), pair(key)]),
            Op::scan(key, end, 10),
            Op::scan("a/", "a0", 10),
            Op::scan("", "", 10),
            Op::get("open/1"),
            Op::delete(key),
        ];
        let txns = samples::txns(key, "a/1").into_iter().map(Op::txn);
        let ops = ops.into_iter().chain(txns);
        let commands = (1..).zip(ops).map(|(sequence, op)| {
            let command = if op.is_write() {
                Command::session(9, sequence, sequence, op)
            } else {
                Command::from(op)
            };
            Body::Command(command)
        });
        let others = [
            Body::Status(StatusRequest {
                holders: true,
                key: key.into(),
                ..StatusRequest::default()
            }),
            Body::Status(StatusRequest {
                leases: true,
                ..StatusRequest::default()
            }),
            Body::Lease(LeaseRequest {
                strategy: "all".into(),
                ..LeaseRequest::default()
            }),
            Body::Move(MoveRequest { to: "B".into() }),
        ];
        commands.chain(others).collect()
    }
}
