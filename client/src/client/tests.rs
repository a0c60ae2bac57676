//! Tests of the client with a small server that implements the protocol and keeps sessions. A test
//! gives the server a list of faults. Each arriving command is affected by the next fault of the
//! list.

mod failover;
mod routing;
mod tokens;
mod txn;

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use leasehold_transport::{FrameReader, FrameWriter};
use leasehold_wire::{
    Entry, ErrorCode, Hello, Hint, MAGIC, Outcome, Path, Request, Response, TxnResult, Version,
};

/// Fault that is injected for one command.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// The connection breaks before the command is executed.
    Cut,
    /// The connection breaks after the command is executed.
    ExecuteThenCut,
    ExecuteThenSilence,
    Unavailable,
    Expired,
    Denied,
    Silence,
    /// The length prefix of the response claims 4 GiB.
    Garbage,
    /// The response is empty.
    Empty,
    /// The response is the result of a transaction without operations.
    NoResults,
}

#[derive(Default)]
struct State {
    faults: VecDeque<Fault>,
    connections: usize,
    arrived: Vec<Command>,
    /// For each command in `arrived`, the name of the server at which it arrived.
    by: Vec<&'static str>,
    /// Servers that are paused: requests to them wait.
    frozen: HashSet<&'static str>,
    /// Servers that send a greeting, but answer no request.
    deaf: HashSet<&'static str>,
    /// Servers that do not answer writes.
    writeless: HashSet<&'static str>,
    /// Servers that are unavailable.
    unavailable: HashSet<&'static str>,
    /// Token that the servers require; `None` if they require no token.
    token: Option<Bytes>,
    /// Names of all replicas, as the servers report them.
    replicas: Vec<String>,
    /// Hint that servers send to clients that request one.
    hint: Hint,
    /// Number of requests in which clients asked for a hint.
    hinted: usize,
    /// Servers that hold every key. Other servers forward reads.
    holders: HashSet<&'static str>,
    executed: Vec<Command>,
    results: HashMap<(u64, u64), Outcome>,
    store: HashMap<Bytes, (Bytes, Version)>,
    /// Number of requests that must have arrived before responses are sent. The responses are then
    /// sent in reverse order.
    hold: usize,
}

/// A server. Several servers may share a state, as the replicas of a cluster do.
#[derive(Clone)]
struct Server {
    name: &'static str,
    address: String,
    state: Arc<Mutex<State>>,
    task: Arc<JoinHandle<()>>,
    killed: Arc<watch::Sender<bool>>,
}

impl Server {
    async fn start(faults: impl IntoIterator<Item = Fault>) -> Server {
        let state = Arc::new(Mutex::new(State {
            faults: faults.into_iter().collect(),
            ..State::default()
        }));
        Server::at("127.0.0.1:0", "CA", state).await
    }

    async fn at(address: &str, name: &'static str, state: Arc<Mutex<State>>) -> Server {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::clone(&state);
        let (killed, dies) = watch::channel(false);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.lock().unwrap().connections += 1;
                let state = Arc::clone(&shared);
                let mut dies = dies.clone();
                tokio::spawn(async move {
                    // After any end of a connection, the next one is accepted.
                    tokio::select! {
                        _ = serve(stream, name, &state) => {}
                        _ = dies.wait_for(|dies| *dies) => {}
                    }
                });
            }
        });
        Server {
            name,
            address,
            state,
            task: Arc::new(task),
            killed: Arc::new(killed),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn options(&self) -> ClientOptions {
        ClientOptions::new(&self.address)
    }

    async fn client(&self) -> Client {
        Client::connect(self.options()).await.unwrap()
    }

    async fn hasty_client(&self) -> Client {
        let mut options = self.options();
        options.request_timeout = Duration::from_millis(100);
        Client::connect(options).await.unwrap()
    }

    async fn arrived(&self, count: usize) {
        while self.state().arrived.len() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn thawed(name: &'static str, state: &Mutex<State>) {
    while state.lock().unwrap().frozen.contains(name) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn serve(
    stream: TcpStream,
    name: &'static str,
    state: &Mutex<State>,
) -> Result<(), leasehold_wire::FrameError> {
    thawed(name, state).await;
    let (read, write) = stream.into_split();
    let (mut reader, mut writer) = (FrameReader::new(read), FrameWriter::new(write));
    let Some(hello) = reader.next::<Hello>().await? else {
        return Ok(());
    };
    assert_eq!(hello.magic, MAGIC);
    if !["", "test", "claimed"].contains(&hello.cluster.as_str()) {
        let refusal = leasehold_wire::Error::new(ErrorCode::WrongCluster, "this is test");
        writer.feed(&Response::refusal(0, refusal))?;
        return writer.flush().await;
    }
    let wanted = state.lock().unwrap().token.clone();
    if wanted.is_some_and(|wanted| wanted != hello.token) {
        let refusal = leasehold_wire::Error::new(ErrorCode::Unauthenticated, "unknown token");
        writer.feed(&Response::refusal(0, refusal))?;
        return writer.flush().await;
    }
    let cluster = if name == "XX" { "another" } else { "test" };
    writer.feed(&Welcome {
        cluster: cluster.into(),
        replica: name.into(),
        replicas: state.lock().unwrap().replicas.clone(),
        ..Welcome::default()
    })?;
    writer.flush().await?;
    let mut held = Vec::new();
    while let Some(request) = reader.next::<Request>().await? {
        thawed(name, state).await;
        let response = match request.body {
            Some(Body::Command(command)) => {
                let fault = arrive(&mut state.lock().unwrap(), name, &command);
                let outcome = match fault {
                    Some(Fault::Cut) => return Ok(()),
                    Some(Fault::Silence) => continue,
                    Some(Fault::Garbage) => {
                        let mut write = writer.into_inner();
                        write.write_all(&[0xFF; 4]).await?;
                        return Ok(());
                    }
                    Some(Fault::Empty) => Outcome::default(),
                    Some(Fault::NoResults) => Outcome::txn(TxnResult::default()),
                    Some(Fault::Unavailable) => Outcome::error(ErrorCode::Unavailable, "election"),
                    Some(Fault::Denied) => Outcome::error(ErrorCode::PermissionDenied, "not yours"),
                    Some(Fault::Expired) => Outcome::error(ErrorCode::SessionExpired, "too old"),
                    Some(Fault::ExecuteThenCut) => {
                        execute(&mut state.lock().unwrap(), command);
                        return Ok(());
                    }
                    Some(Fault::ExecuteThenSilence) => {
                        execute(&mut state.lock().unwrap(), command);
                        continue;
                    }
                    None => execute(&mut state.lock().unwrap(), command),
                };
                let mut state = state.lock().unwrap();
                let path = if state.holders.contains(name) {
                    Path::Local
                } else if state.holders.is_empty() {
                    Path::Log
                } else {
                    Path::Forwarded
                };
                state.hinted += usize::from(request.hint);
                Response {
                    hint: request.hint.then_some(state.hint),
                    ..Response::answer(request.id, path, outcome)
                }
            }
            Some(Body::Status(_)) => Response::status(
                request.id,
                StatusReply {
                    replica: name.into(),
                    ..StatusReply::default()
                },
            ),
            Some(Body::Move(_) | Body::Lease(_)) | None => panic!("a command or a status"),
        };
        held.push(response);
        if held.len() >= state.lock().unwrap().hold {
            while let Some(response) = held.pop() {
                writer.feed(&response)?;
            }
            writer.flush().await?;
        }
    }
    Ok(())
}

fn arrive(state: &mut State, name: &'static str, command: &Command) -> Option<Fault> {
    assert_eq!(leasehold_wire::validate(command), Ok(()));
    state.arrived.push(command.clone());
    state.by.push(name);
    let ignores_writes = state.writeless.contains(name);
    if state.deaf.contains(name) || ignores_writes && command.is_write() {
        return Some(Fault::Silence);
    }
    if state.unavailable.contains(name) {
        return Some(Fault::Unavailable);
    }
    state.faults.pop_front()
}

/// Returns the number of calls that wait for an answer, summed over all replicas.
fn waiting(client: &Client) -> usize {
    client
        .inner
        .replicas
        .all()
        .iter()
        .map(Connection::calls)
        .sum()
}

/// Executes a command on a store with sessions. The store implements only what the tests need.
fn execute(state: &mut State, command: Command) -> Outcome {
    let identity = (command.client, command.sequence);
    if let Some(outcome) = state.results.get(&identity) {
        return txn::kept(outcome.clone());
    }
    state.executed.push(command.clone());
    let slot = state.executed.len() as u64;
    let version = Version { slot, index: 0 };
    let outcome = match command.op.unwrap() {
        Op::Get(get) => match state.store.get(&get.key) {
            Some((value, version)) => Outcome::value(value.clone(), *version),
            None => Outcome::missing(),
        },
        Op::Put(put) => {
            state.store.insert(put.key, (put.value, version));
            Outcome::written(version)
        }
        Op::Delete(delete) => {
            state.store.remove(&delete.key);
            Outcome::written(version)
        }
        Op::Cas(cas) => match state.store.get(&cas.key).map(|(_, version)| *version) {
            actual if actual == cas.expected => {
                state.store.insert(cas.key, (cas.value, version));
                Outcome::written(version)
            }
            actual => Outcome::mismatch(actual),
        },
        Op::PutFields(_) => Outcome::error(ErrorCode::NotARecord, "not a record"),
        Op::MultiPut(put) => {
            for entry in put.entries {
                state.store.insert(entry.key, (entry.value, version));
            }
            Outcome::written(version)
        }
        Op::MultiGet(_) | Op::Scan(_) => {
            let entries = state.store.iter().map(|(key, (value, version))| Entry {
                key: key.clone(),
                value: value.clone(),
                version: Some(*version),
            });
            let mut entries: Vec<Entry> = entries.collect();
            entries.sort_by(|a, b| a.key.cmp(&b.key));
            Outcome::entries(entries)
        }
        Op::Txn(txn) => txn::execute(&mut state.store, &txn, version),
    };
    if command.client != 0 {
        state.results.insert(identity, outcome.clone());
    }
    outcome
}

fn identities(commands: &[Command]) -> Vec<(u64, u64)> {
    commands.iter().map(|c| (c.client, c.sequence)).collect()
}

#[tokio::test]
async fn every_operation_gets_the_answer_to_itself() {
    let server = Server::start([]).await;
    let client = server.client().await;
    assert_eq!(client.server().replica, "CA");
    assert_eq!(client.get("a").await.unwrap(), None);
    let version = client.put("a", "1").await.unwrap();
    let value = client.get("a").await.unwrap().unwrap();
    assert_eq!((&value.value[..], value.version), (&b"1"[..], version));

    let swap = client.compare_and_swap("a", "2", None).await.unwrap();
    assert_eq!(swap, CasOutcome::Mismatch(Some(version)));
    let swap = client
        .compare_and_swap("a", "2", Some(version))
        .await
        .unwrap();
    assert!(matches!(swap, CasOutcome::Written(_)));

    let key = Bytes::from("b");
    let value = Bytes::from("3");
    client.multi_put([(key, value)]).await.unwrap();
    let entries = client.scan("", "", 10).await.unwrap();
    let keys: Vec<&[u8]> = entries.iter().map(|e| &e.key[..]).collect();
    assert_eq!(keys, [b"a", b"b"]);
    client.delete("a").await.unwrap();
    assert_eq!(client.multi_get(["b"]).await.unwrap().len(), 1);
    assert_eq!(
        client.status(StatusQuery::default()).await.unwrap().replica,
        "CA"
    );
    let reply = client.execute_op(Op::get("b")).await.0.unwrap();
    assert_eq!((reply.path, &*reply.replica), (Path::Log, "CA"));

    let error = client.put_fields("b", [("", "")]).await.unwrap_err();
    assert!(error.to_string().contains("fields[].name"), "{error}");
    let error = client.put_fields("b", [("f", "")]).await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains("NOT_A_RECORD"), "{error}");
    assert_eq!(waiting(&client), 0);
}

#[tokio::test]
async fn operations_are_pipelined_and_answered_in_any_order() {
    const CALLERS: usize = 500;
    let server = Server::start([]).await;
    server.state().hold = CALLERS;
    let client = server.client().await;
    let callers: Vec<_> = (0..CALLERS)
        .map(|i| {
            let client = client.clone();
            tokio::spawn(async move { client.put(format!("k{i}"), format!("v{i}")).await })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    server.state().hold = 0;
    for i in [0, 1, CALLERS - 1] {
        let value = client.get(format!("k{i}")).await.unwrap().unwrap();
        assert_eq!(value.value, format!("v{i}"));
    }
    assert_eq!(server.state().connections, 1);
}

#[tokio::test]
async fn a_write_sent_again_keeps_its_identity_and_is_executed_once() {
    let faults = [
        Fault::Unavailable,
        Fault::Cut,
        Fault::ExecuteThenCut,
        Fault::Unavailable,
    ];
    let server = Server::start(faults).await;
    let client = server.client().await;
    let version = client.put("a", "1").await.unwrap();
    assert_eq!(version.to_string(), "1.0");
    let state = server.state();
    assert_eq!(state.executed.len(), 1);
    assert_eq!(state.arrived.len(), 5);
    assert!(state.arrived.iter().all(|c| *c == state.arrived[0]));
    assert_eq!(state.connections, 3);
}

#[tokio::test]
async fn concurrent_writes_over_a_breaking_connection_are_each_executed_once() {
    let faults = (0..12).map(|i| match i % 3 {
        0 => Fault::Cut,
        1 => Fault::ExecuteThenCut,
        _ => Fault::Unavailable,
    });
    let server = Server::start(faults).await;
    let mut options = server.options();
    options.request_timeout = Duration::from_secs(60);
    let client = Client::connect(options).await.unwrap();
    let writes: Vec<_> = (0..20)
        .map(|i| {
            let client = client.clone();
            tokio::spawn(async move { client.put(format!("k{i}"), "v").await })
        })
        .collect();
    for write in writes {
        write.await.unwrap().unwrap();
    }
    let mut executed = identities(&server.state().executed);
    executed.sort_unstable();
    executed.dedup();
    assert_eq!(executed.len(), 20);
    assert_eq!(server.state().executed.len(), 20);
}

#[tokio::test]
async fn the_low_water_mark_follows_what_is_settled() {
    let server = Server::start([]).await;
    let client = server.client().await;
    for _ in 0..3 {
        client.put("a", "v").await.unwrap();
    }
    let marks: Vec<_> = server
        .state()
        .arrived
        .iter()
        .map(|c| c.acked_below)
        .collect();
    assert_eq!(marks, [1, 2, 3]);
    client.get("a").await.unwrap();
    assert_eq!(server.state().arrived[3].client, 0, "a read has no session");
}

#[tokio::test]
async fn an_expired_session_is_renewed_unless_the_write_may_be_done() {
    let server = Server::start([Fault::Expired]).await;
    let client = server.client().await;
    client.put("a", "1").await.unwrap();
    client.put("a", "2").await.unwrap();
    let arrived = identities(&server.state().arrived);
    assert_ne!(arrived[0].0, arrived[1].0);
    assert_eq!(arrived[1].0, arrived[2].0, "the new session stays");
    assert_eq!((arrived[1].1, arrived[2].1), (1, 2));

    let server = Server::start([Fault::ExecuteThenCut, Fault::Expired]).await;
    let client = server.client().await;
    let error = client.put("a", "1").await.unwrap_err();
    assert!(error.may_have_taken_effect(), "{error}");
    assert_eq!(server.state().executed.len(), 1);
    client.put("a", "2").await.unwrap();
    let arrived = identities(&server.state().arrived);
    assert_ne!(arrived[1].0, arrived[2].0);
}

#[tokio::test]
async fn a_server_that_always_says_expired_is_believed_at_last() {
    let server = Server::start([Fault::Expired; 9]).await;
    let client = server.client().await;
    let error = client.put("a", "1").await.unwrap_err();
    assert!(!error.may_have_taken_effect(), "{error}");
    assert_eq!(server.state().arrived.len(), 2);
}

#[tokio::test]
async fn a_write_without_an_answer_times_out_and_leaves_no_trace() {
    let server = Server::start([Fault::Silence]).await;
    let client = server.hasty_client().await;
    let error = client.put("a", "1").await.unwrap_err();
    assert!(
        matches!(error, Error::Timeout { sent: true, .. }),
        "{error}"
    );
    assert!(error.may_have_taken_effect());
    assert_eq!(waiting(&client), 0);
    client.put("a", "2").await.unwrap();
    let next = server.state().arrived[1].clone();
    assert_eq!((next.sequence, next.acked_below), (2, 2), "it was given up");
}

#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let server = Server::start([Fault::Silence]).await;
    let client = server.hasty_client().await;
    client.get("a").await.unwrap_err();
    client.get("a").await.unwrap();
    assert_eq!(server.state().connections, 2);
}

#[tokio::test]
async fn a_dropped_operation_leaves_no_trace() {
    let server = Server::start([Fault::Silence]).await;
    let client = server.client().await;
    {
        let mut put = pin!(client.put("a", "1"));
        tokio::select! {
            biased;
            _ = &mut put => panic!("there is no answer"),
            () = server.arrived(1) => {}
        }
        assert_eq!(waiting(&client), 1);
    }
    assert_eq!(waiting(&client), 0);
    client.put("a", "2").await.unwrap();
    let second = server.state().arrived[1].clone();
    assert_eq!((second.sequence, second.acked_below), (2, 2));
}

#[tokio::test]
async fn what_was_never_sent_cannot_have_taken_effect() {
    let server = Server::start([Fault::Cut]).await;
    let mut options = server.options();
    options.retries = 0;
    options.request_timeout = Duration::from_millis(200);
    let client = Client::connect(options).await.unwrap();
    // The listener ends first, so that the client cannot connect again.
    server.task.abort();
    let error = client.put("a", "1").await.unwrap_err();
    assert!(matches!(error, Error::Lost { attempts: 1, .. }), "{error}");
    assert!(error.may_have_taken_effect());

    let error = client.put("a", "2").await.unwrap_err();
    assert!(
        matches!(error, Error::Timeout { sent: false, .. }),
        "{error}"
    );
    assert!(!error.may_have_taken_effect());
}

#[tokio::test]
async fn a_malformed_response_ends_the_connection_not_the_client() {
    let server = Server::start([Fault::Garbage]).await;
    let mut options = server.options();
    options.retries = 0;
    let client = Client::connect(options).await.unwrap();
    let error = client.get("a").await.unwrap_err();
    assert!(error.to_string().contains("4294967295"), "{error}");
    assert_eq!(client.get("a").await.unwrap(), None);
}

#[tokio::test]
async fn an_empty_response_is_a_violation() {
    let server = Server::start([Fault::Empty]).await;
    let client = server.client().await;
    let error = client.get("a").await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

#[tokio::test]
async fn an_impossible_command_is_refused_before_it_is_sent() {
    let server = Server::start([]).await;
    let client = server.client().await;
    let error = client.put("", "v").await.unwrap_err();
    assert!(error.to_string().contains("put.key is empty"), "{error}");
    assert!(!error.may_have_taken_effect());
    let entry = ("k", vec![0; 1 << 20]);
    let error = client.multi_put(vec![entry; 4]).await.unwrap_err();
    assert!(error.to_string().contains("TOO_LARGE"), "{error}");
    assert_eq!(server.state().arrived.len(), 0);
}

#[tokio::test]
async fn another_cluster_is_refused_by_either_side() {
    let server = Server::start([]).await;
    for (cluster, said) in [("other", "this is test"), ("claimed", "\"test\"")] {
        let mut options = server.options();
        options.cluster = Some(cluster.into());
        let error = Client::connect(options).await.unwrap_err();
        assert!(matches!(error, Error::WrongCluster { .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    let mut options = server.options();
    options.cluster = Some("test".into());
    Client::connect(options).await.unwrap();
}

#[tokio::test]
async fn nobody_at_the_address_is_an_error_that_names_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = Client::connect(ClientOptions::new(&address))
        .await
        .unwrap_err();
    assert!(error.to_string().contains(&address), "{error}");
    let Error::Connect { tried } = error else {
        panic!("{error}");
    };
    assert!(tried[0].reason.contains("refused"), "{tried:?}");
}

#[tokio::test]
async fn a_closed_client_ends_what_is_in_flight() {
    let server = Server::start([Fault::Silence]).await;
    let client = server.client().await;
    let other = client.clone();
    let get = tokio::spawn(async move { other.get("a").await });
    server.arrived(1).await;
    client.close();
    assert!(matches!(get.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(client.get("a").await, Err(Error::Closed)));
}

#[tokio::test]
async fn operations_larger_than_one_write_all_arrive() {
    let server = Server::start([]).await;
    let client = server.client().await;
    let writes: Vec<_> = (0..8)
        .map(|i| {
            let client = client.clone();
            let value = vec![i; 1 << 20];
            tokio::spawn(async move { client.put(vec![b'k', i], value).await })
        })
        .collect();
    for write in writes {
        write.await.unwrap().unwrap();
    }
    for i in 0..8 {
        let value = client.get(vec![b'k', i]).await.unwrap().unwrap();
        assert_eq!(value.value, vec![i; 1 << 20]);
    }
}
