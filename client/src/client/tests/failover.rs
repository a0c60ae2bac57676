//! Tests with several replicas, some of which die.

use super::*;
use crate::connection::ConnectionState;
use crate::options::{LivenessChange, ReplicaChange, Watcher};
use crate::replicas::ReplicaHealth;
use leasehold_wire::PROBE_KEY;

/// Timeout far beyond the duration of any test.
const LONG: Duration = Duration::from_secs(20);
/// Timeout for a silent replica, in tests where the timeout matters.
const SHORT: Duration = Duration::from_millis(40);

/// Starts two replicas; the first is nearer.
async fn two(faults: impl IntoIterator<Item = Fault>) -> [Server; 2] {
    let near = Server::start(faults).await;
    let far = near.peer("OR").await;
    [near, far]
}

fn options(servers: &[&Server]) -> ClientOptions {
    ClientOptions {
        attempt_timeout: LONG,
        request_timeout: 3 * LONG,
        ..ClientOptions::nearest_first(servers.iter().map(|server| &server.address))
    }
}

fn hasty(servers: &[&Server]) -> ClientOptions {
    ClientOptions {
        attempt_timeout: SHORT,
        ..options(servers)
    }
}

impl Server {
    async fn peer(&self, name: &'static str) -> Server {
        Server::at("127.0.0.1:0", name, Arc::clone(&self.state)).await
    }

    /// Ends all connections of the server, and stops listening.
    pub(super) async fn kill(&self) {
        self.task.abort();
        self.killed.send_replace(true);
        while TcpStream::connect(&self.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) async fn restart(&self) -> Server {
        Server::at(&self.address, self.name, Arc::clone(&self.state)).await
    }

    pub(super) fn freeze(&self) {
        self.state().frozen.insert(self.name);
    }

    pub(super) fn thaw(&self) {
        self.state().frozen.remove(self.name);
    }
}

async fn until(mut come: impl FnMut() -> bool) {
    let come = async {
        while !come() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, come)
        .await
        .expect("waited in vain");
}

fn near(client: &Client) -> ReplicaHealth {
    client.health().replicas[0].clone()
}

async fn answered_by(client: &Client, op: Op) -> String {
    client.execute_op(op).await.0.unwrap().replica.to_string()
}

async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Returns the number of requests that arrived at the server, not counting probes.
fn asked(server: &Server) -> usize {
    let state = server.state();
    let all = state.by.iter().zip(&state.arrived);
    all.filter(|(by, command)| **by == server.name && command.is_write())
        .count()
}

#[tokio::test]
async fn the_first_that_answers_is_asked_and_the_others_are_known_to_be_dead() {
    let server = Server::start([]).await;
    let refuses = nobody().await;
    // Connections are made, but never greeted.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_address = silent.local_addr().unwrap().to_string();
    let mut options = hasty(&[&server]);
    options.addresses = vec![refuses.clone(), silent_address, server.address.clone()];
    let changes: Arc<Mutex<Vec<ReplicaChange>>> = Arc::default();
    let told = Arc::clone(&changes);
    options.watcher = Watcher::new(move |change| told.lock().unwrap().push(change.clone()));
    let client = Client::connect(options).await.unwrap();
    assert_eq!(answered_by(&client, Op::put("a", "1")).await, "CA");

    let health = client.health();
    let dead: Vec<bool> = health.replicas.iter().map(|it| it.dead.is_some()).collect();
    assert_eq!((dead, health.failovers), (vec![true, true, false], 0));
    let changes = changes.lock().unwrap();
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert_eq!(changes[0].address, refuses);
    let said = |change: &ReplicaChange| match &change.liveness {
        LivenessChange::Dead { reason } => reason.clone(),
        back => panic!("{back:?}"),
    };
    assert!(said(&changes[0]).contains("refused"), "{changes:?}");
    assert!(said(&changes[1]).contains("no greeting"), "{changes:?}");
}

#[tokio::test]
async fn a_write_in_flight_goes_on_unchanged_at_the_next_when_its_replica_dies() {
    for executed in [false, true] {
        let fault = if executed {
            Fault::ExecuteThenSilence
        } else {
            Fault::Silence
        };
        let [near, far] = two([fault]).await;
        let client = Client::connect(options(&[&near, &far])).await.unwrap();
        let writer = client.clone();
        let write = tokio::spawn(async move { writer.execute_op(Op::put("a", "1")).await.0 });
        near.arrived(1).await;
        near.kill().await;
        let reply = write.await.unwrap().unwrap();
        assert_eq!(&*reply.replica, "OR");
        let state = near.state();
        assert_eq!(state.by, ["CA", "OR"]);
        assert_eq!(state.arrived[0], state.arrived[1]);
        assert_eq!(state.executed.len(), 1);
    }
}

#[tokio::test]
async fn operations_return_to_the_nearest_when_it_answers_again() {
    let [near_server, far] = two([]).await;
    let changes: Arc<Mutex<Vec<ReplicaChange>>> = Arc::default();
    let told = Arc::clone(&changes);
    let mut options = options(&[&near_server, &far]);
    options.watcher = Watcher::new(move |change| told.lock().unwrap().push(change.clone()));
    let client = Client::connect(options).await.unwrap();
    near_server.kill().await;
    assert_eq!(answered_by(&client, Op::put("a", "1")).await, "OR");
    // One write stays under way at the farther replica.
    far.freeze();
    let writer = client.clone();
    let write = tokio::spawn(async move { writer.execute_op(Op::put("a", "2")).await.0 });
    until(|| waiting(&client) == 1).await;

    let near_server = near_server.restart().await;
    until(|| near(&client).dead.is_none()).await;
    assert_eq!(answered_by(&client, Op::put("b", "1")).await, "CA");
    far.thaw();
    assert_eq!(&*write.await.unwrap().unwrap().replica, "OR");
    assert_eq!(
        asked(&near_server),
        1,
        "what was under way stayed where it was"
    );
    // The farther connection is no longer needed.
    let is_idle = || {
        matches!(
            client.inner.replicas.all()[1].state(),
            ConnectionState::Idle
        )
    };
    until(is_idle).await;
    let changes = changes.lock().unwrap();
    let [dead, back] = &changes[..] else {
        panic!("{changes:?}");
    };
    assert!(
        matches!(dead.liveness, LivenessChange::Dead { .. }),
        "{dead:?}"
    );
    assert!(
        matches!(back.liveness, LivenessChange::Back { .. }),
        "{back:?}"
    );
    assert_eq!(back.replica.as_deref(), Some("CA"));
}

#[tokio::test]
async fn a_replica_that_stands_still_is_left_after_a_while_and_found_again() {
    let [near_server, far] = two([]).await;
    let client = Client::connect(hasty(&[&near_server, &far])).await.unwrap();
    near_server.freeze();
    let (reply, trace) = client.execute_op(Op::put("a", "1")).await;
    assert_eq!(&*reply.unwrap().replica, "OR");
    assert_eq!((trace.answered, trace.silent), (Some(1), vec![0]));
    until(|| near(&client).dead.is_some()).await;
    let (_, said) = near(&client).dead.unwrap();
    assert!(
        said.contains("no answer") || said.contains("no greeting"),
        "{said}"
    );
    assert_eq!(client.health().failovers, 1);
    assert_eq!(answered_by(&client, Op::put("a", "2")).await, "OR");
    assert_eq!(client.health().failovers, 1, "nobody waits for it any more");

    near_server.thaw();
    until(|| near(&client).dead.is_none()).await;
    assert_eq!(answered_by(&client, Op::put("a", "3")).await, "CA");
    let mut executed = identities(&near_server.state().executed);
    executed.retain(|(client, _)| *client != 0);
    assert_eq!(executed.len(), 3, "each once: {executed:?}");
}

/// Counts how often any replica is used again after it was dead.
fn count_returns(options: &mut ClientOptions) -> Arc<Mutex<usize>> {
    let returns: Arc<Mutex<usize>> = Arc::default();
    let told = Arc::clone(&returns);
    options.watcher = Watcher::new(move |change| {
        *told.lock().unwrap() +=
            usize::from(matches!(change.liveness, LivenessChange::Back { .. }));
    });
    returns
}

/// The nearest replica is paused again and again. Each time the client uses it again, requests are
/// delayed by the next pause.
#[tokio::test]
async fn a_replica_that_stands_still_again_and_again_is_returned_to_once() {
    let [near_server, far] = two([]).await;
    let mut options = hasty(&[&near_server, &far]);
    let returns = count_returns(&mut options);
    let client = Client::connect(options).await.unwrap();
    for number in 0..20 {
        near_server.freeze();
        let asked = answered_by(&client, Op::put("a", "1")).await;
        assert_eq!(asked, "OR", "flap {number}");
        near_server.thaw();
        for _ in 0..10 {
            tokio::time::sleep(SHORT / 2).await;
            answered_by(&client, Op::put("a", "2")).await;
        }
    }
    assert_eq!(*returns.lock().unwrap(), 1);
    assert!(near(&client).dead.is_some());

    // The replica answers probes, so it is used once no other replica serves.
    far.kill().await;
    assert_eq!(answered_by(&client, Op::put("a", "3")).await, "CA");
    until(|| near(&client).dead.is_none()).await;
}

#[tokio::test]
async fn a_replica_that_only_greets_stays_dead() {
    let [near_server, far] = two([]).await;
    let client = Client::connect(hasty(&[&near_server, &far])).await.unwrap();
    near_server.state().deaf.insert("CA");
    assert_eq!(answered_by(&client, Op::put("a", "1")).await, "OR");
    // The replica greets, and then receives a probe.
    let probes = || {
        let state = near_server.state();
        let asked = state.by.iter().zip(&state.arrived);
        asked
            .filter(|(by, it)| **by == "CA" && !it.is_write())
            .count()
    };
    until(|| probes() >= 2).await;
    assert!(near(&client).dead.is_some());
    // Another replica would answer a get on its behalf, even while it has not caught up.
    let probe = Op::multi_get(vec![PROBE_KEY.into()]);
    let state = near_server.state().arrived.clone();
    let reads = state.into_iter().filter(|it| !it.is_write());
    reads.for_each(|read| assert_eq!(read.op, Some(probe.clone())));
    assert_eq!(answered_by(&client, Op::put("a", "2")).await, "OR");
    near_server.state().deaf.clear();
    until(|| near(&client).dead.is_none()).await;
}

#[tokio::test]
async fn a_replica_that_answers_reads_and_no_writes_is_left_after_a_few() {
    let [near_server, far] = two([]).await;
    let deaths = Arc::new(Mutex::new(0));
    let told = Arc::clone(&deaths);
    let mut options = options(&[&near_server, &far]);
    options.attempt_timeout = 5 * SHORT;
    options.watcher = Watcher::new(move |change| {
        if let LivenessChange::Dead { .. } = change.liveness {
            *told.lock().unwrap() += 1;
        }
    });
    let client = Client::connect(options).await.unwrap();
    near_server.state().writeless.insert("CA");
    for number in 1..=3 {
        assert_eq!(*deaths.lock().unwrap(), 0, "before write {number}");
        let reader = client.clone();
        let reads = tokio::spawn(async move {
            loop {
                reader.get("b").await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        assert_eq!(answered_by(&client, Op::put("a", "1")).await, "OR");
        reads.abort();
    }
    until(|| *deaths.lock().unwrap() == 1).await;
}

#[tokio::test]
async fn who_is_unavailable_for_long_is_left() {
    let [near_server, far] = two([]).await;
    let client = Client::connect(hasty(&[&near_server, &far])).await.unwrap();
    near_server.state().unavailable.insert("CA");
    assert_eq!(answered_by(&client, Op::put("a", "1")).await, "OR");
    assert!(asked(&near_server) > 1, "it was given a chance");
    until(|| near(&client).dead.is_some()).await;
    let asked_before = asked(&near_server);
    assert_eq!(answered_by(&client, Op::put("a", "2")).await, "OR");
    assert_eq!(asked(&near_server), asked_before);
}

#[tokio::test]
async fn a_slow_operation_is_answered_by_whoever_is_first() {
    let [near_server, far] = two([]).await;
    let client = Client::connect(hasty(&[&near_server, &far])).await.unwrap();
    near_server.freeze();
    far.freeze();
    let writer = client.clone();
    let write = tokio::spawn(async move { writer.execute_op(Op::put("a", "1")).await.0 });
    until(|| waiting(&client) == 2 || client.inner.replicas.all()[1].calls() == 1).await;
    near_server.thaw();
    assert_eq!(&*write.await.unwrap().unwrap().replica, "CA");
    assert!(near(&client).dead.is_none(), "it had answered");
    assert_eq!(client.health().failovers, 0);
}

/// Request timeout of a client with replicas that never answer.
const IN_VAIN: Duration = Duration::from_millis(400);

#[tokio::test]
async fn nobody_left_is_one_error_that_names_all() {
    let [near, far] = two([]).await;
    let mut impatient = hasty(&[&near, &far]);
    impatient.request_timeout = IN_VAIN;
    let client = Client::connect(impatient).await.unwrap();
    near.kill().await;
    far.kill().await;
    let (result, trace) = client.execute_op(Op::put("a", "1")).await;
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert_eq!(trace.answered, None);
    assert!(!error.may_have_taken_effect(), "{error}");
    let text = error.to_string();
    for server in [&near, &far] {
        assert_eq!(text.matches(&server.address).count(), 1, "{text}");
    }
    assert_eq!(text.matches("refused").count(), 2, "{text}");
    // The connection fails early although the request timeout is long.
    let error = Client::connect(hasty(&[&near, &far])).await.unwrap_err();
    let Error::Connect { tried } = error else {
        panic!("{error}");
    };
    for (server, tried) in [&near, &far].into_iter().zip(tried) {
        assert_eq!(tried.address, server.address);
        assert!(tried.reason.contains("refused"), "{tried}");
    }
}

#[tokio::test]
async fn operations_live_through_a_time_when_nobody_can_be_connected_to() {
    for fault in [Fault::Silence, Fault::ExecuteThenSilence] {
        for known in [1, 2] {
            let [near, far] = two([fault]).await;
            let client = Client::connect(hasty(&[&near, &far][..known])).await;
            let client = client.unwrap();
            far.kill().await;
            let under_way = write_of(&client, "a");
            near.arrived(1).await;
            near.kill().await;
            until(|| client.health().replicas.iter().all(|it| it.dead.is_some())).await;
            let begun_then = write_of(&client, "b");
            tokio::time::sleep(3 * SHORT).await;
            assert!(!under_way.is_finished() && !begun_then.is_finished());
            let last = [&near, &far][known - 1];
            let _back = last.restart().await;
            under_way.await.unwrap().unwrap();
            begun_then.await.unwrap().unwrap();
            let state = near.state();
            let writes = state.executed.iter().filter(|it| it.is_write());
            assert_eq!(writes.count(), 2, "each once");
        }
    }
}

fn write_of(client: &Client, key: &'static str) -> JoinHandle<Result<crate::Version, Error>> {
    let client = client.clone();
    tokio::spawn(async move { client.put(key, "1").await })
}

#[tokio::test]
async fn a_write_that_had_left_before_all_died_is_in_doubt() {
    let [near, far] = two([Fault::Silence]).await;
    let mut impatient = hasty(&[&near, &far]);
    impatient.request_timeout = IN_VAIN;
    let client = Client::connect(impatient).await.unwrap();
    far.kill().await;
    let writer = client.clone();
    let write = tokio::spawn(async move { writer.put("a", "1").await });
    near.arrived(1).await;
    near.kill().await;
    let error = write.await.unwrap().unwrap_err();
    assert!(
        matches!(error, Error::Timeout { sent: true, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(error.may_have_taken_effect(), "{error}");
}

#[tokio::test]
async fn a_refusal_elsewhere_does_not_settle_what_the_first_may_have_executed() {
    let [near, far] = two([Fault::ExecuteThenSilence, Fault::Expired]).await;
    let client = Client::connect(hasty(&[&near, &far])).await.unwrap();
    let error = client.put("a", "1").await.unwrap_err();
    assert!(
        matches!(error, Error::Refused { resent: true, .. }),
        "{error}"
    );
    assert!(error.may_have_taken_effect(), "{error}");
    let state = near.state();
    assert_eq!(state.by, ["CA", "OR"]);
    assert_eq!(
        state.executed.len(),
        1,
        "not once more under another identity"
    );
}

#[tokio::test]
async fn a_copy_that_never_left_does_not_keep_a_refused_write_in_doubt() {
    let [near, far] = two([]).await;
    let client = Client::connect(options(&[&near, &far])).await.unwrap();
    client.get("a").await.unwrap();
    near.kill().await;
    // A request that is sent now waits for the next connection, and there is none.
    until(|| !client.inner.replicas.all()[0].is_up()).await;
    near.state().faults.push_back(Fault::Expired);
    client.put("a", "1").await.unwrap();
    let state = near.state();
    assert_eq!(state.by, ["CA", "OR", "OR"]);
    let arrived = identities(&state.arrived[1..]);
    assert_ne!(arrived[0].0, arrived[1].0, "under a new session");
    assert_eq!(state.executed.len(), 2, "the read, and the write once");
}

#[tokio::test]
async fn a_write_is_never_sent_to_another_cluster() {
    let near = Server::start([Fault::Silence]).await;
    let stranger = near.peer("XX").await;
    let mut impatient = hasty(&[&near, &stranger]);
    impatient.request_timeout = IN_VAIN;
    let client = Client::connect(impatient).await.unwrap();
    let writer = client.clone();
    let write = tokio::spawn(async move { writer.put("a", "1").await });
    near.arrived(1).await;
    near.kill().await;
    let error = write.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("not of the cluster"), "{error}");
    assert_eq!(near.state().by, ["CA"]);
}
