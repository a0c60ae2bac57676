//! TLS handshakes, on a thread of their own.
//!
//! A handshake takes some tenths of a millisecond of processor time, and any machine may begin one.
//! On the replica's thread, a few thousand handshakes a second would leave no time for heartbeats.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold_leases::{ReplicaId, ReplicaSet};
use leasehold_transport::tls::{Channel, handshake, names};
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;
use rustls::{ClientConnection, Connection, ServerConnection};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::config::ClusterConfig;
use crate::front::admission::fd_budget::UNAUTHENTICATED_MAX;
use crate::security::cert_rotation::CertRotation;
use crate::security::{NodeCredentials, SecurityError, day, is_named};

/// Maximum number of bytes that a client may send before its handshake is complete. It is small
/// because a client sends no certificate.
const CLIENT_BYTES_MAX: usize = 4 << 10;
/// Maximum number of bytes that a peer may send before its handshake is complete. Peers may send
/// more than clients, because a peer sends a chain of certificates.
const PEER_BYTES_MAX: usize = 16 << 10;
const TOO_LONG: &str = "the handshake took too long";
/// Interval at which the node checks whether its certificate has expired or expires soon.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between reminders to the operator that a certificate is about to expire.
const REMIND_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Interval between reminders to the operator that a certificate has expired.
const REMIND_INTERVAL_EXPIRED: Duration = Duration::from_secs(3600);
/// Period before the expiry of a certificate in which the operator is reminded.
const REMIND_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Role of the machine at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The other end has connected to the clients' port.
    Client,
    /// The other end has connected to the peers' port.
    Peer,
    /// This node has dialled the other end.
    Dialled(ReplicaId),
}

/// A connection that has completed its TLS handshake, or that needs no handshake.
#[derive(Debug)]
pub(crate) struct EstablishedStream {
    pub(crate) stream: TcpStream,
    /// TLS channel; `None` if the connection is not encrypted.
    pub(crate) channel: Option<Channel>,
    /// Members of the cluster that the other end may claim to be, according to its certificate. The
    /// set has at most one member. `None` if the cluster has no certificates.
    pub(crate) verified_members: Option<ReplicaSet>,
}

/// Handle to the thread that performs TLS handshakes. There is no thread if the cluster has no
/// certificates.
#[derive(Debug)]
pub(crate) struct Handshakes {
    thread: Option<UnboundedSender<HandshakeRequest>>,
    /// Permits for connections on the peers' port. The permits limit the number of these
    /// connections in the thread. Without this limit, abandoned connections could pile up in the
    /// thread, because the thread closes them with a delay.
    unauthenticated: Arc<Semaphore>,
    done: Cell<u64>,
    failed: Cell<u64>,
}

struct HandshakeRequest {
    stream: std::net::TcpStream,
    side: Side,
    until: Instant,
    /// Channel for the result of the handshake. The handshake is abandoned if the receiver is
    /// dropped.
    answer: oneshot::Sender<Result<CompletedHandshake, String>>,
    /// Permit of the connection. It is released once the thread no longer has the connection.
    permit: Option<OwnedSemaphorePermit>,
}

struct CompletedHandshake {
    stream: std::net::TcpStream,
    connection: Connection,
    verified_members: ReplicaSet,
}

impl Handshakes {
    /// Returns the handle for a cluster without certificates. Handshakes with this handle do
    /// nothing and prove no identity.
    pub(crate) fn none() -> Handshakes {
        Handshakes {
            thread: None,
            unauthenticated: Arc::new(Semaphore::new(UNAUTHENTICATED_MAX)),
            done: Cell::new(0),
            failed: Cell::new(0),
        }
    }

    /// Starts the handshakes' thread with the certificates of this node. Starts no thread if the
    /// configuration names no certificates.
    ///
    /// # Errors
    /// Fails if the certificates cannot be used or no thread can be started.
    pub(crate) fn start(config: &ClusterConfig, name: &str) -> Result<Handshakes, SecurityError> {
        let Some((credentials, rotation)) = CertRotation::open(config, name)? else {
            return Ok(Handshakes::none());
        };
        let failed = |error: std::io::Error| SecurityError::Failed {
            doing: "starting the handshakes' thread",
            problem: error.to_string(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(failed)?;
        let worker = HandshakeWorker {
            credentials,
            config: config.clone(),
            reminded: None,
        };
        let (thread, requests) = unbounded_channel();
        std::thread::Builder::new()
            .name("handshakes".to_owned())
            .spawn(move || {
                runtime.block_on(worker.run(requests, rotation));
                // A check of files may never end.
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        Ok(Handshakes {
            thread: Some(thread),
            ..Handshakes::none()
        })
    }

    /// Returns two counters by name. They count the handshakes that have succeeded and those that
    /// have failed since the start of the process.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 2] {
        [
            ("tls_handshakes", self.done.get()),
            ("tls_handshakes_failed", self.failed.get()),
        ]
    }

    /// Performs a handshake with the other end. The handshake must be complete before `until`. If
    /// the returned future is dropped, the connection is closed.
    pub(crate) async fn perform(
        &self,
        stream: TcpStream,
        side: Side,
        until: Instant,
    ) -> Result<EstablishedStream, String> {
        let Some(thread) = &self.thread else {
            return Ok(EstablishedStream {
                stream,
                channel: None,
                verified_members: None,
            });
        };
        let performed = async {
            let permit = self.permit(side).await;
            submit(thread, stream, side, until, permit).await
        };
        let established = timeout_at(until, performed).await;
        let established = established.unwrap_or_else(|_| Err(TOO_LONG.to_owned()));
        let count = match &established {
            Ok(_) => &self.done,
            Err(_) => &self.failed,
        };
        count.set(count.get() + 1);
        established
    }

    /// Waits until the thread may receive one more connection of this kind, and returns the
    /// connection's permit. Returns `None` if connections of this kind need no permit.
    async fn permit(&self, side: Side) -> Option<OwnedSemaphorePermit> {
        if side != Side::Peer {
            return None;
        }
        let permit = self.unauthenticated.clone().acquire_owned().await;
        Some(permit.expect("the semaphore is never closed"))
    }
}

async fn submit(
    thread: &UnboundedSender<HandshakeRequest>,
    stream: TcpStream,
    side: Side,
    until: Instant,
    permit: Option<OwnedSemaphorePermit>,
) -> Result<EstablishedStream, String> {
    let (answer, answered) = oneshot::channel();
    let request = HandshakeRequest {
        // The stream moves to the runtime of the other thread.
        stream: stream.into_std().map_err(|error| error.to_string())?,
        side,
        until,
        answer,
        permit,
    };
    let sent = thread.send(request);
    assert!(
        sent.is_ok(),
        "the handshakes' thread runs as long as its handle exists"
    );
    let done = answered.await;
    let CompletedHandshake {
        stream,
        connection,
        verified_members,
    } = done.map_err(|_| "the handshake was given up".to_owned())??;
    Ok(EstablishedStream {
        stream: TcpStream::from_std(stream).map_err(|error| error.to_string())?,
        channel: Some(Channel::new(connection)),
        verified_members: Some(verified_members),
    })
}

/// State of the handshakes' thread.
struct HandshakeWorker {
    config: ClusterConfig,
    credentials: NodeCredentials,
    /// Kind and time of the last warning to the operator; `None` before the first warning. The kind
    /// is true if the certificate had expired, and false if it was about to expire.
    reminded: Option<(bool, Instant)>,
}

impl HandshakeWorker {
    async fn run(
        mut self,
        mut requests: UnboundedReceiver<HandshakeRequest>,
        rotation: CertRotation,
    ) {
        let mut remind = tokio::time::interval(CHECK_INTERVAL);
        let (taken, mut rotated) = unbounded_channel();
        tokio::spawn(rotation.follow(taken));
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => self.begin(request),
                    None => return,
                },
                Some(credentials) = rotated.recv() => self.rotate(credentials),
                _ = remind.tick() => self.remind(),
            }
        }
    }

    fn begin(&self, request: HandshakeRequest) {
        if request.answer.is_closed() {
            return;
        }
        let HandshakeRequest {
            stream,
            side,
            until,
            mut answer,
            permit,
        } = request;
        let members = match side {
            Side::Client => Vec::new(),
            Side::Peer | Side::Dialled(_) => self.config.names(),
        };
        let (cluster, connection) = (self.config.cluster.clone(), self.connection(side));
        tokio::spawn(async move {
            let done = async {
                let connection = connection?;
                let (stream, connection) =
                    complete_handshake(stream, connection, side, until).await?;
                Ok(CompletedHandshake {
                    stream,
                    verified_members: verified_members(&connection, &cluster, &members),
                    connection,
                })
            };
            let done = tokio::select! {
                biased;
                // The select drops the other branch, and so closes the connection.
                () = answer.closed() => None,
                done = done => Some(done),
            };
            if let Some(done) = done {
                // The requesting task may have ended.
                let _ = answer.send(done);
            }
            drop(permit);
        });
    }

    fn connection(&self, side: Side) -> Result<Connection, String> {
        let credentials = &self.credentials;
        let accepting = |config: &Arc<rustls::ServerConfig>| {
            let connection = ServerConnection::new(config.clone());
            connection.map(Connection::from)
        };
        let connection = match side {
            Side::Client => accepting(&credentials.clients),
            Side::Peer => accepting(&credentials.peers),
            Side::Dialled(peer) => {
                let name = &self.config.nodes[peer.index()].name;
                let name = ServerName::try_from(names::of_replica(&self.config.cluster, name));
                let name = name.map_err(|error| error.to_string())?;
                ClientConnection::new(credentials.dial.clone(), name).map(Connection::from)
            }
        };
        connection.map_err(|error| error.to_string())
    }

    fn rotate(&mut self, credentials: NodeCredentials) {
        self.credentials = credentials;
        self.reminded = None;
        tracing::info!("the certificates were read again");
        self.remind();
    }

    fn remind(&mut self) {
        let now = SystemTime::now();
        let Some(expires) = self.credentials.expires else {
            return;
        };
        if expires >= now + REMIND_BEFORE || !self.is_reminder_due(expires <= now) {
            return;
        }
        let on = day(expires);
        if expires <= now {
            tracing::error!(
                on,
                "the certificate of this node has expired: new connections to it and from it fail; \
                 `leasehold cert --renew` makes new certificates"
            );
        } else {
            tracing::warn!(
                on,
                "the certificate of this node is about to expire: new connections to it and \
                 from it will then fail; `leasehold cert --renew` makes new certificates"
            );
        }
    }

    fn is_reminder_due(&mut self, expired: bool) -> bool {
        let every = if expired {
            REMIND_INTERVAL_EXPIRED
        } else {
            REMIND_INTERVAL
        };
        let now = Instant::now();
        let told = self.reminded;
        let due = told.is_none_or(|(told, at)| told != expired || now - at >= every);
        if due {
            self.reminded = Some((expired, now));
        }
        due
    }
}

async fn complete_handshake(
    stream: std::net::TcpStream,
    connection: Connection,
    side: Side,
    until: Instant,
) -> Result<(std::net::TcpStream, Connection), String> {
    let stream = TcpStream::from_std(stream).map_err(|error| error.to_string())?;
    let bytes_max = match side {
        Side::Client => CLIENT_BYTES_MAX,
        Side::Peer | Side::Dialled(_) => PEER_BYTES_MAX,
    };
    let finished = timeout_at(until, handshake(&stream, connection, bytes_max)).await;
    let connection = match finished {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(TOO_LONG.to_owned()),
    };
    let stream = stream.into_std().map_err(|error| error.to_string())?;
    Ok((stream, connection))
}

/// Returns the members that the other end may claim to be, according to its certificate.
fn verified_members(connection: &Connection, cluster: &str, members: &[String]) -> ReplicaSet {
    let shown = connection.peer_certificates().and_then(|all| all.first());
    let Some(certificate) = shown.and_then(|shown| ParsedCertificate::try_from(shown).ok()) else {
        return ReplicaSet::default();
    };
    let is_proved = |(index, name): (u8, &String)| {
        let name = names::of_replica(cluster, name);
        is_named(&certificate, &name).then_some(ReplicaId(index))
    };
    (0..).zip(members).filter_map(is_proved).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_does_not_answer_is_waited_for_until_the_deadline() {
        let (thread, _never_read) = unbounded_channel();
        let handshakes = Handshakes {
            thread: Some(thread),
            ..Handshakes::none()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        for side in [Side::Client, Side::Peer] {
            let stream = TcpStream::connect(listener.local_addr().unwrap());
            let until = Instant::now() + Duration::from_millis(50);
            let shaking = handshakes.perform(stream.await.unwrap(), side, until);
            let ended = tokio::time::timeout(Duration::from_secs(60), shaking).await;
            let said = ended.expect("it is given up").unwrap_err();
            assert_eq!(said, TOO_LONG, "{side:?}");
        }
        assert_eq!(handshakes.counters()[1], ("tls_handshakes_failed", 2));
    }
}
