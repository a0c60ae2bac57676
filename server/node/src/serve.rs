//! One replica as a process. It binds its ports, opens the storage, listens, and runs the event loop.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use leasehold_clock::Clocks;
use leasehold_leases::{Incarnation, ReplicaId};
use rustix::process::Signal;
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::spawn_local;

use super::config::{ClusterConfig, Identity, NodeConfig};
use super::driver::{Driver, StoppedDriver};
use super::error::NodeError;
use super::events::Events;
use crate::front::access::Access;
use crate::front::admission::evicting_slots::EvictingSlots;
use crate::front::admission::fd_budget::{FdBudget, FdShortage, UNAUTHENTICATED_MAX};
use crate::front::inbox::Inbox;
use crate::front::listener::{Clients, ClusterNames};
use crate::peers::transport::{CloseLogLimiters, Member, PeerAdmission, Peers};
use crate::security::handshakes::Handshakes;
use crate::shutdown::{ShutdownSignal, ShutdownWatchdog};
use crate::store::{
    self, DirectoryStamp, Durability, RESERVE_BYTES, StorageOptions, StorageReport, Store, Writer,
};
use crate::watch::step::StepWatch;
use crate::watch::timeouts::TimeoutWatch;
use leasehold_replica::action::RecoveredState;
use leasehold_replica::shell::Watches;
use leasehold_replica::{Replica, witnesses};

/// Options of a node that are not part of the configuration.
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// File to which the replica's events are appended, as one JSON object per line.
    pub events: Option<PathBuf>,
    /// Path of a file. While this file exists, the store refuses writes as if the disk were full.
    /// This option is for experiments with failures.
    pub disk_full_while: Option<PathBuf>,
}

/// Runs the node called `name` until SIGINT or SIGTERM.
///
/// # Errors
/// Fails if the node cannot start or its storage fails.
pub fn serve(config: &ClusterConfig, name: &str, options: &ServeOptions) -> Result<(), NodeError> {
    serve_until(config, name, options, terminated)
}

/// Runs a node in the same way as [`serve`], but until the future from `shutdown` completes.
/// `shutdown` is called before any other step, so that a signal is handled from the start.
///
/// # Errors
/// Returns the same errors as [`serve`].
pub fn serve_until<F: Future<Output = ()> + Send + 'static>(
    config: &ClusterConfig,
    name: &str,
    options: &ServeOptions,
    shutdown: impl FnOnce() -> io::Result<F>,
) -> Result<(), NodeError> {
    // Dropped last.
    let (watchdog, stop_signal) =
        ShutdownWatchdog::watch(name, shutdown).map_err(system("waiting for signals"))?;
    let me = find_replica(config, name)?;
    config.check_reach()?;
    warn_of_what_is_open(config);
    let node = NodeSetup {
        config,
        me,
        options,
        fd_budget: claim_fd_budget(config, name)?,
        handshakes: Rc::new(Handshakes::start(config, name)?),
        access: load_access(config)?,
    };
    let runtime = Builder::new_current_thread()
        .enable_all()
        .event_interval(TURNS_PER_LOOK)
        .build_local(LocalOptions::default())
        .map_err(system("starting the runtime"))?;
    let stopped = runtime.block_on(node.run(stop_signal));
    // This closes all connections. A thread that looks up a name or reads a file is not awaited.
    runtime.shutdown_background();
    let stopped = stopped?;
    // A process that is killed has another exit status. It would be restarted, although that does not
    // help if the store is gone.
    if stopped.may_be_restarted() {
        watchdog.note_failure();
    }
    stopped.close()?;
    tracing::info!(node = name, "the node has stopped");
    Ok(())
}

/// Maximum number of task polls between two checks of sockets and timers. An event-loop iteration
/// with much work may follow each poll. After Tokio's default of 61 polls, peers would have waited
/// for tens of milliseconds, so the maximum is lower.
const TURNS_PER_LOOK: u32 = 16;

/// Maximum number of connections that wait until the node accepts them. The kernel may lower it
/// (`net.core.somaxconn`).
const BACKLOG_MAX: u32 = i32::MAX as u32;

/// Logs a warning if the configuration sets `insecure = true`. The warning names the protections
/// that are off.
fn warn_of_what_is_open(config: &ClusterConfig) {
    if config.security.insecure {
        tracing::warn!(
            peers_prove_who_they_are = config.security.identity != Identity::None,
            clients_need_tokens = config.security.tokens.is_some(),
            "insecure = true: whoever reaches this node's ports may do what nothing else forbids. \
             If peers prove no identity, anybody can pass for a node and read and change \
             everything; if clients need no tokens, so can anybody who reaches the client port"
        );
    }
}

/// Logs a warning if the node's data directory can be read by users other than its owner.
fn warn_of_open_directory(directory: &Path) {
    let Ok(found) = directory.metadata() else {
        return; // opening it says why
    };
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o055 == 0 {
        return;
    }
    tracing::warn!(
        mode = format!("{mode:04o}"),
        "other users of this machine may read what this node stores, without any token, unless a \
         directory above keeps them out: chmod 700 {}",
        directory.display()
    );
}

/// Keeps the process alive when a write exceeds the maximum file size (`ulimit -f`). The write
/// returns an error, which is logged. Without this call, a signal would end the process without a
/// message.
fn outlive_file_size_limit() -> io::Result<()> {
    // A handler stays after its listener is dropped.
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop)
}

fn find_replica(config: &ClusterConfig, name: &str) -> Result<ReplicaId, NodeError> {
    config.replica(name).ok_or_else(|| NodeError::UnknownNode {
        name: name.to_owned(),
        known: config.names(),
        file: config.file.clone(),
    })
}

fn load_access(config: &ClusterConfig) -> Result<Option<Rc<Access>>, NodeError> {
    let file = config.security.tokens.as_deref();
    let access = file.map(Access::load).transpose()?;
    Ok(access.map(Rc::new))
}

fn claim_fd_budget(config: &ClusterConfig, name: &str) -> Result<FdBudget, NodeError> {
    FdBudget::claim(config.nodes.len(), config.limits.connections_per_peer).map_err(
        |FdShortage { limit, needed }| NodeError::Descriptors {
            node: name.to_owned(),
            limit,
            needed,
        },
    )
}

fn system(doing: &'static str) -> impl Fn(io::Error) -> NodeError {
    move |source| NodeError::System { doing, source }
}

/// Handles SIGINT and SIGTERM from now on. The returned future completes when one of them has
/// arrived.
///
/// # Errors
/// Returns an error if signals cannot be handled.
pub fn terminated() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// A node about to start: its identity and its resources.
struct NodeSetup<'a> {
    config: &'a ClusterConfig,
    me: ReplicaId,
    options: &'a ServeOptions,
    fd_budget: FdBudget,
    handshakes: Rc<Handshakes>,
    /// Rights of the clients' tokens; `None` if clients need no token.
    access: Option<Rc<Access>>,
}

impl NodeSetup<'_> {
    /// Runs the node until `stop_signal` completes or its storage fails.
    async fn run(&self, mut stop_signal: ShutdownSignal) -> Result<StoppedDriver, NodeError> {
        outlive_file_size_limit().map_err(system("handling a signal"))?;
        // Both ports are bound first, so that a port in use is reported before the directory is opened.
        // They listen only afterwards. Until then, connections are refused, and clients turn to other
        // nodes.
        let NodeConfig { client, peer, .. } = self.configured();
        let client_port = self.bind("client", client).await?;
        let peer_port = self.bind("peer", peer).await?;
        let driver = self.assemble()?;
        if stop_signal.try_recv().is_ok() {
            // The replica has made no promise and accepted no connection yet.
            return Ok(driver.stop(Ok(())));
        }
        // Clients come last, because no request can be served without the other replicas.
        let peer_port = self.listen("peer", peer, peer_port)?;
        let client_port = self.listen("client", client, client_port)?;
        self.connect(&driver, client_port, peer_port);
        let stop = async move {
            // An error would mean that the sender of the order was dropped.
            let _ = stop_signal.await;
        };
        // A separate task is woken without a system call; the outer future is not.
        match spawn_local(driver.run(stop)).await {
            Ok(stopped) => Ok(stopped),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }

    fn configured(&self) -> &NodeConfig {
        &self.config.nodes[self.me.index()]
    }

    /// Binds the port of `address`, without listening on it. `field` is the name of the address in
    /// the configuration. If a host name has several addresses, takes the first that can be bound.
    async fn bind(&self, field: &'static str, address: &str) -> Result<TcpSocket, NodeError> {
        let failed = |source| self.port_error(field, address, source);
        let mut last = io::Error::other("the name has no address");
        for found in lookup_host(address).await.map_err(failed)? {
            match bind_socket(found) {
                Ok(socket) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }

    /// Listens on a bound port.
    fn listen(
        &self,
        field: &'static str,
        address: &str,
        socket: TcpSocket,
    ) -> Result<TcpListener, NodeError> {
        listen(socket).map_err(|source| self.port_error(field, address, source))
    }

    fn port_error(&self, field: &'static str, address: &str, source: io::Error) -> NodeError {
        NodeError::Bind {
            node: self.configured().name.clone(),
            field,
            address: address.to_owned(),
            file: self.config.file.clone(),
            source,
        }
    }

    /// Accepts connections on both ports, and dials every other replica.
    fn connect(&self, driver: &Driver, client_port: TcpListener, peer_port: TcpListener) {
        spawn_local(driver.clients.clone().accept(client_port));
        spawn_local(driver.clients.clone().enforce_timeouts());
        spawn_local(driver.clients.clone().follow_tokens());
        spawn_local(driver.peers.clone().accept(peer_port));
        for peer in (0..self.config.nodes.len() as u8).map(ReplicaId) {
            if peer != self.me {
                spawn_local(driver.peers.clone().dial(peer));
            }
        }
        let NodeConfig {
            name, client, peer, ..
        } = self.configured();
        let clients_max = self.config.limits.clients(self.fd_budget.clients);
        tracing::info!(node = name, clients_max, client, peer, "serving");
    }

    fn assemble(&self) -> Result<Driver, NodeError> {
        // The hashing of this thread is seeded before the first map is made, because clients choose
        // keys.
        leasehold_leases::hashing::seed_thread([seed(), seed()]);
        let directory = self.config.data.join(&self.configured().name);
        let (store, recovered) = self.open_store(&directory)?;
        warn_of_open_directory(&directory);
        let events = self.events()?;
        let (writer, reports) = start_writer(store, self.config.durability)?;
        let inbox = Rc::new(Inbox::new(self.config.limits.large_writes_bytes));
        let settings = self.config.settings(self.me);
        Ok(Driver {
            clients: Rc::new(self.clients(recovered.incarnation, inbox.clone())),
            peers: Rc::new(self.peers(inbox.clone())),
            replica: Replica::new(leasehold_clock::now(), settings, recovered, seed()),
            me: self.me,
            names: self.config.names(),
            durability: self.config.durability,
            directory,
            inbox,
            transfers: Default::default(),
            lease_changes: Default::default(),
            demand_passes: Default::default(),
            writer,
            reports,
            events,
            watches: Watches::default(),
            step_watch: StepWatch::new(std::time::Instant::now()),
            timeout_watch: TimeoutWatch::new(leasehold_clock::now()),
            may_end: false,
            clocks: Clocks::default(),
        })
    }

    fn open_store(&self, directory: &Path) -> Result<(Box<dyn Store>, RecoveredState), NodeError> {
        let stamp = DirectoryStamp {
            cluster: self.config.cluster.clone(),
            name: self.configured().name.clone(),
            replica: self.me,
            members: self.config.names(),
        };
        let options = StorageOptions {
            durability: self.config.durability,
            tables: self.fd_budget.tables,
            full_while: self.options.disk_full_while.clone(),
            segment_bytes: None,
            reserve_bytes: RESERVE_BYTES,
        };
        let (store, recovered) = store::open(directory, &stamp, options)?;
        let needed = witnesses(self.config.nodes.len());
        if !recovered.joined && needed > 0 {
            let others = self.config.nodes.len() - 1;
            tracing::info!(
                "the data is new: this replica takes part once {needed} of the {others} \
                 others have answered"
            );
        }
        Ok((store, recovered))
    }

    fn events(&self) -> Result<Events, NodeError> {
        let file = self.options.events.as_deref();
        let configured = self.config.strategies.names();
        Events::new(&self.configured().name, configured, file).map_err(|source| NodeError::Events {
            path: file.unwrap_or(Path::new("")).to_owned(),
            source,
        })
    }

    fn clients(&self, incarnation: Incarnation, inbox: Rc<Inbox>) -> Clients {
        let nodes = self.config.nodes.iter();
        let names = ClusterNames {
            cluster: self.config.cluster.clone(),
            replica: self.configured().name.clone(),
            replicas: nodes.map(|node| node.name.clone()).collect(),
        };
        let (limits, max) = (self.config.limits, self.fd_budget.clients);
        let clients = Clients::new(names, incarnation, inbox, limits, max);
        let clients = clients.with_handshakes(self.handshakes.clone());
        clients.with_access(self.access.clone())
    }

    fn peers(&self, inbox: Rc<Inbox>) -> Peers {
        let from = self.configured();
        let member = |node: &NodeConfig| Member {
            name: node.name.clone(),
            address: from.via.get(&node.name).unwrap_or(&node.peer).clone(),
        };
        let members = self.config.nodes.iter().map(member).collect();
        let admission = PeerAdmission {
            // Connections from one address may take half of the slots.
            unauthenticated: EvictingSlots::new(UNAUTHENTICATED_MAX, UNAUTHENTICATED_MAX / 2),
            accepted: EvictingSlots::new(usize::MAX, self.config.limits.connections_per_peer),
            handshakes: self.handshakes.clone(),
            close_log: CloseLogLimiters::default(),
        };
        Peers::new(&self.config.cluster, self.me, members, inbox, admission)
    }
}

/// Binds an address without listening on it. Succeeds even if connections of an earlier process on
/// this address are still closing.
fn bind_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    // Otherwise another process could listen on this port before this one does.
    socket.set_reuseaddr(false)?;
    Ok(socket)
}

/// Listens on a bound socket.
fn listen(socket: TcpSocket) -> io::Result<TcpListener> {
    // The listener and its connections must not prevent a later start from binding the port.
    socket.set_reuseaddr(true)?;
    socket.listen(BACKLOG_MAX)
}

fn start_writer(
    store: Box<dyn Store>,
    durability: Durability,
) -> Result<(Writer, UnboundedReceiver<StorageReport>), NodeError> {
    let (report, reports) = unbounded_channel();
    let writer = Writer::start(store, durability, move |news| {
        // The receiver is dropped once the replica has stopped.
        let _ = report.send(news);
    });
    let writer = writer.map_err(system("starting the storage's thread"))?;
    Ok((writer, reports))
}

/// Returns a seed from 128 random bits of the system. So the seed differs for every call and cannot
/// be guessed. Replicas need different seeds, because replicas with the same random timeouts would
/// start elections at the same time.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn a_bound_port_belongs_to_one_process_and_refuses_connections_until_it_listens() {
        let socket = bind_socket(([127, 0, 0, 1], 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        let early = tokio::net::TcpStream::connect(address).await;
        assert_eq!(early.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let is_taken = || {
            let others = [
                bind_socket(address).map(drop),
                std::net::TcpListener::bind(address).map(drop),
            ];
            others.map(|it| it.map_err(|error| error.kind())) == [Err(ErrorKind::AddrInUse); 2]
        };
        assert!(is_taken());
        let _listener = listen(socket).unwrap();
        assert!(is_taken());
        tokio::net::TcpStream::connect(address).await.unwrap();
    }
}
