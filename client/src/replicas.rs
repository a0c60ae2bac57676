//! The replicas that a client may use, nearest first. For each replica, there is a task that keeps
//! a connection to it.
//!
//! A replica is *dead* for a client if the client cannot connect to it, if the replica ends
//! connections without an answer, or if it leaves an operation unanswered that another replica then
//! answers. While other replicas serve, no operation is sent to a dead one.
//!
//! The task of a dead replica probes it: the task connects and reads a key that no client writes.
//! The pauses between probes grow and vary. They are short while no replica serves. A probe proves
//! more than a greeting does, because a replica that is cut off from the others still greets. The
//! probe is a multi-get, because a replica cannot forward a multi-get to another replica. A replica
//! that has just started answers the probe after it has caught up. Before that, writes to it would
//! wait.
//!
//! After the first answer, the replica is used again. But if it died soon after it was last used
//! again, it must first answer for some time, which is longer after each such death (see
//! `leasehold_backoff`), unless no other replica serves. Such a replica may be one that pauses
//! again and again, or one that answers probes and nothing else.
//!
//! New operations are sent to the nearest replica that serves. Operations under way are not moved.
//! A connection that is no longer needed is closed after its last call has ended.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::Backoff;
use crate::connection::{
    ChangeNotifier, Connection, ConnectionEnd, ConnectionState, Link, LinkError, connect, serves,
};
use crate::copies::refused;
use crate::error::{Error, FailedAttempt};
use crate::options::ClientOptions;
use crate::routing::{Router, Routing};
use leasehold_transport::Secret;
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::{PROBE_KEY, StatusRequest};

/// Number of initial measurements of the distance to a replica. These measurements follow each
/// other quickly. Later measurements are less frequent.
const PINGS_AT_FIRST: u64 = 5;
const PING_SOON: Duration = Duration::from_millis(40);
const PING_EVERY: Duration = Duration::from_secs(5);
/// First interval between two probes of a replica that was dead. The interval doubles until it
/// reaches [`PROBE_EVERY_MAX`].
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Longest interval between two probes of a replica that must stay healthy before it is used again.
const PROBE_EVERY_MAX: Duration = Duration::from_secs(30);

/// All replicas of one client.
pub(crate) struct Replicas {
    pub options: ClientOptions,
    pub notifier: Arc<ChangeNotifier>,
    /// Number of operations that were first sent to one replica, but answered by another replica.
    pub failovers: AtomicU64,
    /// Chooses the first replica for a request. If this is `None`, the first replica is the nearest
    /// one.
    pub router: Option<Router>,
    connections: Vec<Connection>,
    /// Name of the only cluster to connect to. This is the name in the options. If the options
    /// contain no name, this is the name of the cluster that the first connection reached.
    cluster: OnceLock<String>,
}

impl Replicas {
    /// Connects to the first replica that answers.
    ///
    /// # Errors
    /// `Connect` if no replica answers, `WrongCluster`, `Refused` if a replica refuses the token,
    /// `PlainToken`.
    pub async fn connect(options: ClientOptions) -> Result<(Arc<Replicas>, Tasks), Error> {
        if let Some(address) = options.plain_text_to() {
            let address = address.clone();
            return Err(Error::PlainToken { address });
        }
        let replicas = Arc::new(Replicas::new(options));
        let (first, link) = replicas.first_link().await?;
        let welcome = &link.welcome;
        replicas.cluster.get_or_init(|| welcome.cluster.clone());
        replicas.connections[first].connected(welcome, false);
        if replicas.router.is_some() {
            replicas
                .connections
                .iter()
                .for_each(Connection::request_connection);
        }
        let mut link = Some(link);
        let start = |index| {
            let link = link.take_if(|_| index == first);
            tokio::spawn(Keeper::new(&replicas, index).keep(link)).abort_handle()
        };
        let tasks = Tasks((0..replicas.connections.len()).map(start).collect());
        Ok((replicas, tasks))
    }

    fn new(options: ClientOptions) -> Replicas {
        let notifier = Arc::new(ChangeNotifier {
            watcher: options.watcher.clone(),
            ..ChangeNotifier::default()
        });
        let connection = |address: &String| Connection::new(address.clone(), Arc::clone(&notifier));
        let connections = options.addresses.iter().map(connection).collect();
        let cluster = options.cluster.clone().filter(|name| !name.is_empty());
        Replicas {
            notifier,
            failovers: AtomicU64::new(0),
            router: (options.routing == Routing::LeaseAware)
                .then(|| Router::new(options.hint_bytes_max)),
            connections,
            cluster: cluster.map_or_else(OnceLock::new, OnceLock::from),
            options,
        }
    }

    async fn first_link(&self) -> Result<(usize, Link), Error> {
        let mut tried = Vec::new();
        for (index, connection) in self.connections.iter().enumerate() {
            let address = connection.address.clone();
            match self.link(index).await {
                Ok(link) => {
                    let dead = self.connections.iter().zip(&tried);
                    dead.for_each(|(connection, FailedAttempt { reason, .. })| {
                        connection.died(reason)
                    });
                    return Ok((index, link));
                }
                Err(LinkError::WrongCluster(message)) => {
                    return Err(Error::WrongCluster { address, message });
                }
                Err(LinkError::Refused(error)) => return Err(refused(&error, false)),
                Err(LinkError::Failed(reason)) => tried.push(FailedAttempt { address, reason }),
            }
        }
        Err(Error::Connect { tried })
    }

    /// Connects to a replica, but only if the replica belongs to the cluster to which this client
    /// connected before.
    async fn link(&self, index: usize) -> Result<Link, LinkError> {
        let address = &self.connections[index].address;
        let cluster = self.cluster.get().map(String::as_str);
        let token = self.options.token.as_ref();
        let hello = leasehold_wire::Hello {
            token: token.map_or_else(Bytes::new, Secret::bytes),
            ..leasehold_wire::hello(cluster)
        };
        connect(address, hello, &self.options).await
    }

    pub fn all(&self) -> &[Connection] {
        &self.connections
    }

    /// Whether there are several replicas.
    pub fn are_several(&self) -> bool {
        self.connections.len() > 1
    }

    /// Returns the nearest replica that is not `excluded` and may serve. If there is none, returns
    /// the nearest replica that is not `excluded` and is about to serve.
    pub fn choose(&self, excluded: impl Fn(usize) -> bool) -> Option<usize> {
        let find = |accepts: fn(&Connection) -> bool| {
            let mut all = self.connections.iter().enumerate();
            let (index, _) = all.find(|(index, one)| !excluded(*index) && accepts(one))?;
            Some(index)
        };
        find(Connection::may_serve).or_else(|| find(Connection::is_greeted))
    }

    /// Returns the replica to which a new operation would be sent now.
    pub fn nearest(&self) -> &Connection {
        &self.connections[self.choose(|_| false).unwrap_or(0)]
    }

    /// Returns the refusal of this client's token. Returns `None` if any replica may serve, or if
    /// no replica has refused the token.
    pub fn refusal(&self) -> Option<leasehold_wire::Error> {
        if self.connections.iter().any(Connection::may_serve) {
            None
        } else {
            self.connections.iter().find_map(Connection::refusal)
        }
    }

    fn is_needed(&self, index: usize) -> bool {
        self.router.is_some() || !self.connections[..index].iter().any(Connection::is_up)
    }
}

/// Tasks of a client. They end when this value is dropped.
pub(crate) struct Tasks(Vec<AbortHandle>);

impl Tasks {
    pub fn abort(&self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Task that keeps the connection to one replica.
struct Keeper {
    replicas: Arc<Replicas>,
    index: usize,
    backoff: Backoff,
}

impl Keeper {
    fn new(replicas: &Arc<Replicas>, index: usize) -> Keeper {
        Keeper {
            replicas: Arc::clone(replicas),
            index,
            backoff: Backoff::new(),
        }
    }

    fn connection(&self) -> &Connection {
        &self.replicas.connections[self.index]
    }

    /// Keeps a connection to the replica until the task is ended. `made` is the first connection,
    /// if one exists already.
    async fn keep(mut self, made: Option<Link>) {
        let mut made = made;
        loop {
            let link = match made.take() {
                Some(link) => link,
                None => self.link().await,
            };
            let connected = Instant::now();
            let ended = self.replicas.serve(self.index, link).await;
            self.after(ended, connected).await;
        }
    }

    /// Waits until a connection is needed, then tries to connect until it succeeds.
    async fn link(&mut self) -> Link {
        loop {
            self.connection().wait_until_needed().await;
            match self.replicas.link(self.index).await {
                Ok(link) => {
                    let must_prove = self.replicas.are_several();
                    self.connection().connected(&link.welcome, must_prove);
                    return link;
                }
                Err(LinkError::Refused(error)) => self.connection().refused(error),
                Err(error) => self.connection().died(&error.reason()),
            }
            self.pause().await;
        }
    }

    /// Handles the end of a connection that was made at `connected`: updates the state of the
    /// replica, and pauses.
    async fn after(&mut self, ended: ConnectionEnd, connected: Instant) {
        let was_heard = self.connection().last_heard() > connected;
        // A server that ends every connection without an answer must not be called in a loop.
        if was_heard {
            self.backoff = Backoff::new();
        }
        let are_several = self.replicas.are_several();
        match ended {
            ConnectionEnd::Retired => return,
            // The replica serves: the next operation gets a new connection.
            ConnectionEnd::Idle if self.connection().retire() => return,
            // An operation has just been sent.
            ConnectionEnd::Idle => self
                .connection()
                .broken("closed by the server, for it was idle"),
            ConnectionEnd::Broken(reason) | ConnectionEnd::Suspected(reason) if !are_several => {
                self.connection().broken(&reason)
            }
            ConnectionEnd::Broken(reason) if was_heard && !self.connection().is_greeted() => {
                self.connection().broken(&reason)
            }
            ConnectionEnd::Broken(reason) | ConnectionEnd::Suspected(reason) => {
                self.connection().died(&reason)
            }
        }
        self.pause().await;
    }

    /// Pauses before the next attempt to connect. While no replica serves, the pause lasts only a
    /// quarter of the usual time.
    async fn pause(&mut self) {
        let pause = self.backoff.pause();
        let least = pause / 4;
        sleep(least).await;
        self.replicas.rest(pause - least).await;
    }
}

impl Replicas {
    /// Runs a connection until it ends. `link` is a connection on which the replica's greeting has
    /// already arrived.
    async fn serve(&self, index: usize, link: Link) -> ConnectionEnd {
        let connection = &self.connections[index];
        tokio::select! {
            ended = connection.drive(link) => ended,
            () = connection.wait_until_retired(|| self.is_needed(index)), if index > 0 => ConnectionEnd::Retired,
            reason = self.probe(connection), if connection.is_greeted() => ConnectionEnd::Broken(reason),
            never = self.ping(connection), if self.router.is_some() => match never {},
        }
    }

    /// Waits for the duration `pause`. Returns earlier if no replica may serve.
    async fn rest(&self, pause: Duration) {
        let over = sleep(pause);
        tokio::pin!(over);
        loop {
            let changed = self.notifier.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.connections.iter().any(Connection::may_serve) {
                return;
            }
            tokio::select! {
                () = &mut over => return,
                () = changed => {}
            }
        }
    }

    /// Measures the distance to a replica repeatedly.
    async fn ping(&self, connection: &Connection) -> std::convert::Infallible {
        for number in 0_u64.. {
            // A ping does not show that a replica that was dead serves again, so dead replicas get
            // none.
            if connection.is_up() {
                let sent = AtomicBool::new(false);
                let body = Body::Status(StatusRequest::default());
                if let Ok(call) = connection.enqueue(body, false, &sent) {
                    let requested_at = call.requested_at;
                    if call.await.is_ok() {
                        connection.record_round_trip(requested_at.elapsed());
                    }
                }
            }
            let few = number < PINGS_AT_FIRST;
            sleep(if few { PING_SOON } else { PING_EVERY }).await;
        }
        std::future::pending().await
    }

    /// Probes a replica that was dead, until the replica has been healthy long enough to be used
    /// again. If the replica does not serve, returns the reason. While no other replica serves,
    /// operations may already use the probed replica. While such operations wait, the connection is
    /// kept even if a probe is not answered in time.
    async fn probe(&self, connection: &Connection) -> String {
        let sent = AtomicBool::new(false);
        let silence_timeout = self.options.silence_timeout();
        let mut pause = PROBE_EVERY;
        while connection.is_greeted() {
            let requested_at = Instant::now();
            let probe = Op::multi_get(vec![Bytes::from_static(PROBE_KEY.as_bytes())]);
            let body = Body::Command(probe.into());
            let Ok(mut call) = connection.enqueue(body, false, &sent) else {
                break;
            };
            let answer = loop {
                match timeout(silence_timeout, &mut call).await {
                    Ok(answer) => break answer,
                    Err(_) if connection.calls() > 1 => {}
                    Err(_) => {
                        let waited = requested_at.elapsed();
                        return format!("greets, but answers no read within {waited:.1?}");
                    }
                }
            };
            if !answer.is_ok_and(|response| serves(&response)) {
                sleep(silence_timeout).await;
                if connection.is_greeted() {
                    return "unavailable".to_owned();
                } else {
                    break;
                }
            }
            self.rest(pause).await;
            pause = (pause * 2).min(PROBE_EVERY_MAX);
            if !self.connections.iter().any(Connection::may_serve) {
                connection.return_early();
            }
        }
        std::future::pending().await
    }
}

/// State of a client's replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct Health {
    /// Number of operations that were first sent to one replica, but answered by another replica.
    pub failovers: u64,
    /// State of each replica, in the order of the addresses.
    pub replicas: Vec<ReplicaHealth>,
}

/// State of one replica, as far as the client knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaHealth {
    /// Address of the replica as the options give it.
    pub address: String,
    /// Name of the replica; `None` if no greeting has arrived yet.
    pub replica: Option<Arc<str>>,
    /// Time for which the replica has been dead, and the reason; `None` if the replica is not dead.
    pub dead: Option<(Duration, String)>,
}

impl Replicas {
    pub fn health(&self) -> Health {
        let health = |connection: &Connection| ReplicaHealth {
            address: connection.address.clone(),
            replica: connection.replica(),
            dead: match connection.state() {
                ConnectionState::Dead(dead) => Some((dead.since.elapsed(), dead.reason)),
                _ => None,
            },
        };
        Health {
            failovers: self.failovers.load(Ordering::Relaxed),
            replicas: self.connections.iter().map(health).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_is_dead_is_left_alone_for_less_while_nobody_serves() {
        let options = ClientOptions::nearest_first(["a:1", "b:1"]);
        let replicas = Arc::new(Replicas::new(options));
        let mut keeper = Keeper::new(&replicas, 0);
        for _ in 0..10 {
            let _ = keeper.backoff.pause();
        }
        let ms = Duration::from_millis;
        replicas.connections[0].died("killed");
        let began = Instant::now();
        keeper.pause().await;
        assert!(began.elapsed() >= ms(500), "{:?}", began.elapsed());

        let began = Instant::now();
        let the_other_dies = async {
            sleep(ms(300)).await;
            replicas.connections[1].died("killed");
        };
        tokio::join!(keeper.pause(), the_other_dies);
        assert_eq!(began.elapsed().as_millis(), 300);

        let began = Instant::now();
        keeper.pause().await;
        let paused = began.elapsed();
        assert!(paused >= ms(125) && paused <= ms(251), "{paused:?}");
    }
}
