//! The replicas that a client may ask, the nearest first, and the task of each, which
//! keeps its connection.
//!
//! A replica is *dead* for a client if it cannot be connected to, ends connections without
//! an answer, or leaves an operation unanswered that another replica then answers. Nobody
//! asks a dead one, as long as others serve. Its task looks after it, with pauses that grow
//! and differ, and are short while nobody serves: it connects, and asks for a key that
//! nobody writes. That shows more than a greeting does, which comes also from a replica that
//! is cut off from the others. It asks with a multi-get, which nobody else answers for the
//! replica: one that has just started answers when it has caught up, and writes would wait
//! there until then. The first answer brings it back. If it died soon after its last return,
//! it has to answer for longer each time (see `flap`), unless nobody else serves: it may be one
//! that stands still again and again, or that answers what it is probed with and nothing else.
//!
//! New operations go to the nearest replica that serves; those under way stay where they
//! are. A connection that is no longer needed ends with its last call.

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

/// Number of measurements of the distance to a replica in short succession; later ones are
/// occasional.
const PINGS_AT_FIRST: u64 = 5;
const PING_SOON: Duration = Duration::from_millis(40);
const PING_EVERY: Duration = Duration::from_secs(5);
/// Times between two probes of a replica that must stay healthy before it is used again: the first,
/// which doubles, and the longest.
const PROBE_EVERY: Duration = Duration::from_secs(1);
const PROBE_EVERY_MAX: Duration = Duration::from_secs(30);

/// All replicas of one client.
pub(crate) struct Replicas {
    pub options: ClientOptions,
    pub notifier: Arc<ChangeNotifier>,
    /// Operations that were answered by another replica than the first that was asked.
    pub failovers: AtomicU64,
    /// Chooses the replica that is asked first, if that is not simply the nearest.
    pub router: Option<Router>,
    connections: Vec<Connection>,
    /// The cluster that the first one was of.
    cluster: OnceLock<String>,
}

impl Replicas {
    /// Connects to the first that answers.
    ///
    /// # Errors
    /// `Connect` if none does, `WrongCluster`, `Refused` if one refuses the token, `PlainToken`.
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

    /// Connects, to no other cluster than before: a write that is sent again must find the
    /// sessions of the one that it was sent to.
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

    /// Whether there are others to ask.
    pub fn are_several(&self) -> bool {
        self.connections.len() > 1
    }

    /// The nearest that is not `excluded` and may serve, or else that is about to.
    pub fn choose(&self, excluded: impl Fn(usize) -> bool) -> Option<usize> {
        let find = |accepts: fn(&Connection) -> bool| {
            let mut all = self.connections.iter().enumerate();
            let (index, _) = all.find(|(index, one)| !excluded(*index) && accepts(one))?;
            Some(index)
        };
        find(Connection::may_serve).or_else(|| find(Connection::is_greeted))
    }

    /// The one that new operations are sent to, or would be.
    pub fn nearest(&self) -> &Connection {
        &self.connections[self.choose(|_| false).unwrap_or(0)]
    }

    /// Why a replica refuses this client's token, if none is left that takes it.
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

/// The tasks of a client. They end when this is dropped.
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

/// Keeps the connection to one replica.
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

    /// For ever; a connection may have been `made` already.
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

    /// Connects when somebody needs it, until it succeeds.
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

    /// The connection that was made then has ended: says what its replica is now, and
    /// pauses.
    async fn after(&mut self, ended: ConnectionEnd, connected: Instant) {
        let was_heard = self.connection().last_heard() > connected;
        // A server that ends every connection unanswered is not called in a loop.
        if was_heard {
            self.backoff = Backoff::new();
        }
        let are_several = self.replicas.are_several();
        match ended {
            ConnectionEnd::Retired => return,
            // It serves: another is made for the next operation.
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

    /// Before the next connection: a quarter as long while nobody serves, when operations
    /// may be waiting for the first replica that comes back.
    async fn pause(&mut self) {
        let pause = self.backoff.pause();
        let least = pause / 4;
        sleep(least).await;
        self.replicas.rest(pause - least).await;
    }
}

impl Replicas {
    /// Runs a connection that has been greeted, until it ends.
    async fn serve(&self, index: usize, link: Link) -> ConnectionEnd {
        let connection = &self.connections[index];
        tokio::select! {
            ended = connection.drive(link) => ended,
            () = connection.wait_until_retired(|| self.is_needed(index)), if index > 0 => ConnectionEnd::Retired,
            reason = self.probe(connection), if connection.is_greeted() => ConnectionEnd::Broken(reason),
            never = self.ping(connection), if self.router.is_some() => match never {},
        }
    }

    /// Lets a replica alone, as long as another may serve.
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

    /// Measures, again and again, how far a replica is.
    async fn ping(&self, connection: &Connection) -> std::convert::Infallible {
        for number in 0_u64.. {
            // It does not show that one serves that was dead, so those are not asked.
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

    /// Asks a replica that was dead something that only one that serves can answer, again and
    /// again until it is asked by all; returns why it is still dead, if it does not serve. Others
    /// may ask it, too, if nobody else serves: it is not hung up on while they wait.
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
    /// Operations that were answered by another replica than the first that was asked.
    pub failovers: u64,
    /// In the order of the addresses.
    pub replicas: Vec<ReplicaHealth>,
}

/// State of one replica, as far as its client can tell.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaHealth {
    /// The address as it was given.
    pub address: String,
    /// The replica's name, if it has ever said it.
    pub replica: Option<Arc<str>>,
    /// For how long it has been dead, and what was heard of it last; `None` if it is not.
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
