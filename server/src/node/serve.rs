//! One replica as a process: opens the storage, binds the ports, runs the loop.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use leases::ReplicaId;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_local;

use super::clock;
use super::config::{ClusterConfig, NodeConfig};
use super::descriptors::{Descriptors, Seats, TooFew};
use super::driver::Driver;
use super::events::Events;
use super::inbox::Inbox;
use super::listener::Clients;
use super::storage::{Report, Stamp, Storage, StorageError, Writer};
use super::transport::{Member, Peers};
use crate::replica::{Replica, witnesses};
use crate::shell::Watches;

/// What an operator may ask for beside the configuration.
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// Append what happens to the replica to this file, one JSON object a line.
    pub events: Option<PathBuf>,
}

/// Why a node does not run, or ran no longer.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// There is no such node in the configuration.
    #[error(
        "there is no node {name:?} in {}; it has {}; give one of these names, or add a [[node]]",
        file.display(), known.join(", ")
    )]
    UnknownNode {
        /// The name asked for.
        name: String,
        /// The configuration's names.
        known: Vec<String>,
        /// The configuration.
        file: PathBuf,
    },
    /// A port cannot be had.
    #[error(
        "node {node}: cannot listen on {field} = {address:?}: {source}; give the node an address of this \
         machine and a port that is free: `{field}` of node {node} in {}", file.display()
    )]
    Bind {
        /// The node.
        node: String,
        /// `client` or `peer`.
        field: &'static str,
        /// The address in the configuration.
        address: String,
        /// The configuration.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The storage cannot be opened, or failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The events file cannot be opened.
    #[error("events file {}: {source}", path.display())]
    Events {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The process may not open as many files and connections as a node needs.
    #[error(
        "this process may have {limit} files and connections open, node {node} needs {needed}: \
         raise the hard limit (`ulimit -Hn`, or LimitNOFILE= of its service)"
    )]
    Descriptors {
        /// The node.
        node: String,
        /// The limit, raised as far as it may be.
        limit: usize,
        /// The least that is enough.
        needed: usize,
    },
    /// The operating system refuses what every process needs.
    #[error("{doing}: {source}")]
    System {
        /// What was attempted.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Runs the node called `name` until SIGINT or SIGTERM.
///
/// # Errors
/// It cannot start, or its storage failed.
pub fn serve(config: &ClusterConfig, name: &str, options: &ServeOptions) -> Result<(), NodeError> {
    serve_until(config, name, options, terminated)
}

/// As [`serve`], until the future that `shutdown` makes completes.
///
/// # Errors
/// As [`serve`].
pub fn serve_until<F: Future<Output = io::Result<()>> + 'static>(
    config: &ClusterConfig,
    name: &str,
    options: &ServeOptions,
    shutdown: impl FnOnce() -> F,
) -> Result<(), NodeError> {
    let Some(me) = config.replica(name) else {
        return Err(NodeError::UnknownNode {
            name: name.to_owned(),
            known: config.nodes.iter().map(|node| node.name.clone()).collect(),
            file: config.file.clone(),
        });
    };
    let descriptors = Descriptors::claim(config.nodes.len()).map_err(|few| {
        let (node, TooFew { limit, needed }) = (name.to_owned(), few);
        NodeError::Descriptors {
            node,
            limit,
            needed,
        }
    })?;
    let system = |doing| move |source| NodeError::System { doing, source };
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .map_err(system("starting the runtime"))?;
    runtime.block_on(async {
        let node = &config.nodes[me.index()];
        let client_port = bind(config, node, "client", &node.client).await?;
        let peer_port = bind(config, node, "peer", &node.peer).await?;
        let (driver, clients, peers) = assemble(config, me, options, descriptors)?;
        spawn_local(clients.accept(client_port));
        spawn_local(peers.clone().accept(peer_port));
        for peer in (0..config.nodes.len() as u8).map(ReplicaId) {
            if peer != me {
                spawn_local(peers.clone().dial(peer));
            }
        }
        tracing::info!(
            node = name,
            clients_max = descriptors.clients,
            client = node.client,
            peer = node.peer,
            "serving"
        );
        let shutdown = shutdown();
        let stop = async move {
            if let Err(error) = shutdown.await {
                tracing::error!(%error, "no signal can be waited for");
            }
        };
        // As a task of its own it is woken without a system call.
        match spawn_local(driver.run(stop)).await {
            Ok(result) => result.map_err(NodeError::from),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    })?;
    tracing::info!(node = name, "stopped");
    Ok(())
}

/// Completes at SIGINT or SIGTERM.
///
/// # Errors
/// If signals cannot be waited for.
pub async fn terminated() -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

async fn bind(
    config: &ClusterConfig,
    node: &NodeConfig,
    field: &'static str,
    address: &str,
) -> Result<TcpListener, NodeError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| NodeError::Bind {
            node: node.name.clone(),
            field,
            address: address.to_owned(),
            file: config.file.clone(),
            source,
        })
}

fn assemble(
    config: &ClusterConfig,
    me: ReplicaId,
    options: &ServeOptions,
    descriptors: Descriptors,
) -> Result<(Driver, Rc<Clients>, Rc<Peers>), NodeError> {
    let node = &config.nodes[me.index()];
    let stamp = Stamp {
        cluster: config.cluster.clone(),
        name: node.name.clone(),
        replica: me,
        members: config.nodes.iter().map(|node| node.name.clone()).collect(),
    };
    let directory = config.data.join(&node.name);
    let (storage, recovered) =
        Storage::open_with(&directory, &stamp, config.durability, descriptors.tables)?;
    let incarnation = recovered.incarnation;
    let needed = witnesses(config.nodes.len());
    if !recovered.joined && needed > 0 {
        let others = config.nodes.len() - 1;
        tracing::info!("new data: takes part once {needed} of the {others} others have answered");
    }
    let wanted = config.strategy.name();
    let events = Events::new(&node.name, wanted, options.events.as_deref()).map_err(|source| {
        let path = options.events.clone().unwrap_or_default();
        NodeError::Events { path, source }
    })?;
    let (report, reports) = tokio::sync::mpsc::unbounded_channel::<Report>();
    let writer = Writer::start(storage, move |news| {
        // Nobody listens any more once the replica has stopped.
        let _ = report.send(news);
    })
    .map_err(|source| NodeError::System {
        doing: "starting the storage's thread",
        source,
    })?;
    let inbox = Rc::new(Inbox::default());
    let seats = Seats::new(descriptors.clients);
    let clients = Clients::new(
        &config.cluster,
        &node.name,
        incarnation,
        inbox.clone(),
        seats,
    );
    let clients = Rc::new(clients);
    let members = members(config, node);
    let seats = Seats::new(descriptors.peers);
    let peers = Rc::new(Peers::new(
        &config.cluster,
        me,
        members,
        inbox.clone(),
        seats,
    ));
    let driver = Driver {
        replica: Replica::new(clock::now(), config.settings(me), recovered, seed()),
        me,
        names: config.nodes.iter().map(|node| node.name.clone()).collect(),
        durability: config.durability,
        directory,
        inbox,
        clients: clients.clone(),
        peers: peers.clone(),
        writer,
        reports,
        events,
        watches: Watches::default(),
        compared: Default::default(),
    };
    Ok((driver, clients, peers))
}

fn members(config: &ClusterConfig, from: &NodeConfig) -> Vec<Member> {
    let member = |node: &NodeConfig| Member {
        name: node.name.clone(),
        address: from.via.get(&node.name).unwrap_or(&node.peer).clone(),
    };
    config.nodes.iter().map(member).collect()
}

/// Different for every run: replicas that draw alike would campaign together.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
