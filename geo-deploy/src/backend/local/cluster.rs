//! Cluster of replica processes behind an emulated WAN. This module starts such a cluster, waits
//! until it is ready, carries out effects of faults on it, and ends it.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use leasehold_client::Client;
use leasehold_node::store::StorageError;
use leasehold_wire::{StatusReply, StatusRequest};

use super::client_access::ClientAccess;
use super::links::WanLinks;
use super::ports::{free_ports, row_of_ports};
use super::replica::{
    LaunchSpec, ProcessEvent, ProcessState, ProcessStatus, Replica, disk_full_file,
};
use super::roles::Roles;
use crate::backend::RunPlan;
use crate::cluster_file::{ClusterFile, Node};
use crate::fault::Effect;
use crate::wan::{LinkSettings, Wan};

/// Longest time that a cluster may take to elect its leader and establish its leases.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time to wait for the status of one replica while the cluster starts. The replica's
/// process may end at any time. Without this limit, the client would try to reach such a replica
/// until the client's own timeout.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings of a local cluster: program, name, directory and ports.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// Program of the replicas, which is started with the command `serve`; usually this program
    /// itself.
    pub program: PathBuf,
    /// Name of the cluster. A data directory is refused if it belongs to a cluster with another
    /// name.
    pub cluster: String,
    /// Directory for configuration, data and logs.
    pub dir: PathBuf,
    /// First port for clients. The replicas use consecutive ports. `None` if any free ports may be
    /// used.
    pub client_port: Option<u16>,
    /// Whether the cluster runs without TLS. Without TLS, no process proves its identity, and
    /// nothing is encrypted.
    pub insecure: bool,
}

/// Data that the replicas of a cluster find when they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataState {
    /// No data, or data that possibly does not fit the settings. The cluster is ready only when the
    /// requested strategy is in force.
    New,
    /// Data of a cluster that was first started with the requested settings. Operators may have
    /// changed the strategies since then.
    Existing,
}

/// Cluster of replica processes, one for each site, behind a WAN. The replica processes end when
/// this value is dropped. The replica processes also end when the program that started them dies,
/// because each replica watches its standard input. On Linux, a paused replica is resumed when that
/// program dies, so that the replica can end.
///
/// This type cannot be sent to another thread, because the kernel resumes paused replicas when the
/// thread that started them ends.
pub struct LocalCluster {
    replicas: Vec<Replica>,
    links: WanLinks,
    clients: Vec<SocketAddr>,
    dir: PathBuf,
    access: ClientAccess,
    /// Process events that [`LocalCluster::poll`] has not returned yet. Each event is paired with
    /// the index of its site.
    unreported: Vec<(usize, ProcessEvent)>,
    of_this_thread: PhantomData<Rc<()>>,
}

impl LocalCluster {
    /// Starts the links and the replicas of a plan.
    ///
    /// # Errors
    /// If a port cannot be bound, a file cannot be written, or a process cannot be started. The
    /// error names the port, file or process.
    pub fn start(plan: &RunPlan<'_>, settings: &LocalSettings) -> anyhow::Result<LocalCluster> {
        if !leasehold_node::HAS_STORE {
            return Err(StorageError::NotBuilt.into());
        }
        let topology = plan.topology();
        std::fs::create_dir_all(&settings.dir)
            .with_context(|| format!("creating {}", settings.dir.display()))?;
        let clients = match settings.client_port {
            Some(first) => row_of_ports(topology.len(), first)?,
            None => free_ports(topology.len(), &[])?,
        };
        let peers = free_ports(topology.len(), &clients)?;
        let wan = start_wan(plan, &peers)?;
        let nodes = nodes(plan, &clients, &peers, &wan);
        let access = ClientAccess::prepare(settings, &topology.names())?;
        let file = ClusterFile {
            security: access.section(),
            ..ClusterFile::new(plan, &settings.cluster, nodes)
        };
        let config = write_config(&file, &settings.dir)?;
        let mut this = LocalCluster {
            replicas: Vec::new(),
            links: WanLinks::new(wan),
            clients,
            dir: settings.dir.clone(),
            access,
            unreported: Vec::new(),
            of_this_thread: PhantomData,
        };
        for site in topology.names() {
            let launch_spec = LaunchSpec {
                program: settings.program.clone(),
                dir: this.dir.clone(),
                config: config.clone(),
                site: site.to_string(),
            };
            launch_spec.clear()?;
            let mut replica = Replica::new(launch_spec);
            replica.start()?;
            this.replicas.push(replica);
        }
        Ok(this)
    }

    /// Returns the address at which each replica accepts clients, in the topology's order.
    pub fn client_addresses(&self) -> &[SocketAddr] {
        &self.clients
    }

    /// Returns the WAN between the replicas.
    pub fn wan(&self) -> &Wan {
        self.links.wan()
    }

    /// Returns the cluster's name.
    pub fn name(&self) -> &str {
        self.access.cluster()
    }

    /// Returns the settings that the cluster's clients need besides addresses.
    pub fn client_access(&self) -> &ClientAccess {
        &self.access
    }

    /// Returns the status of each replica's process, as of the last poll.
    pub fn process_statuses(&self) -> Vec<ProcessStatus> {
        self.replicas.iter().map(Replica::process_status).collect()
    }

    /// For each site, returns true if the replica's process runs and is not paused.
    pub fn up(&self) -> Vec<bool> {
        let statuses = self.process_statuses().into_iter();
        statuses
            .map(|found| found.state == ProcessState::Up)
            .collect()
    }

    /// Asks every running replica for its role, and returns the roles. The result also contains the
    /// holders of `key`. If `key` is `None`, the result contains the holders of the hottest key, as
    /// reported by the leader.
    pub async fn roles(&self, key: Option<&[u8]>) -> Roles {
        Roles::query(&self.access, &self.clients, self.up(), key).await
    }

    /// Carries out an effect, or begins to carry it out. [`LocalCluster::poll`] completes effects
    /// that take time. For example, at a restart the replica must end before it can be started.
    ///
    /// # Errors
    /// If the effect is impossible, for example the pause of a dead process. The error names
    /// the possible actions.
    pub fn perform(&mut self, effect: Effect) -> anyhow::Result<()> {
        self.poll_processes();
        match effect {
            Effect::Kill(site) => self.replicas[site].kill(),
            Effect::Stop(site) => self.replicas[site].stop(),
            Effect::Start(site) => self.replicas[site].start(),
            Effect::Restart(site) => self.replicas[site].restart(),
            Effect::Pause(site) => self.replicas[site].pause(),
            Effect::Resume(site) => self.replicas[site].resume(),
            Effect::Fail { from, to, how } => {
                self.links.fail(from, to, how);
                Ok(())
            }
            Effect::Mend { from, to, how } => self.links.heal(from, to, how),
            Effect::FillDisk(site) => fill_disk(&self.disk_full_file(site)),
            Effect::FreeDisk(site) => free_disk(&self.disk_full_file(site)),
        }
    }

    /// Polls the processes. Returns their events since the last call. Each event is paired with the
    /// index of its site. If a replica is being restarted, this function also starts the new
    /// process after the old process has ended. It also kills replicas that do not end in time.
    /// For these purposes, the caller must call this function about ten times a second.
    pub fn poll(&mut self) -> Vec<(usize, ProcessEvent)> {
        self.poll_processes();
        std::mem::take(&mut self.unreported)
    }

    fn poll_processes(&mut self) {
        for (site, replica) in self.replicas.iter_mut().enumerate() {
            let found = replica.poll().into_iter();
            self.unreported.extend(found.map(|event| (site, event)));
        }
    }

    fn disk_full_file(&self, site: usize) -> PathBuf {
        disk_full_file(&self.dir, self.replicas[site].site())
    }

    /// Waits until the configured site leads and the configured strategy is in force. Also waits
    /// until every replica has lease promises from enough other replicas. Returns a client for each
    /// replica.
    ///
    /// # Errors
    /// If a replica ends, or the cluster is not ready in time.
    pub async fn ready(&mut self, plan: &RunPlan<'_>) -> anyhow::Result<Vec<Client>> {
        self.wait_ready(plan, 0, DataState::New).await
    }

    /// Waits as [`LocalCluster::ready`] does, with three differences. A minority of the replicas
    /// may end, because the data of these replicas may be lost. Any replica may lead if the replica
    /// of the configured leader has ended. Every strategy is accepted if the cluster has existing
    /// data. [`LocalCluster::poll`] returns the replicas that ended, with the reasons.
    ///
    /// # Errors
    /// If too few replicas are left, or the cluster is not ready in time.
    pub async fn ready_with_majority(
        &mut self,
        plan: &RunPlan<'_>,
        data: DataState,
    ) -> anyhow::Result<Vec<Client>> {
        let n = self.replicas.len();
        self.wait_ready(plan, n - (n / 2 + 1), data).await
    }

    /// Waits until all remaining replicas are ready. At most `lost` replicas may have ended.
    async fn wait_ready(
        &mut self,
        plan: &RunPlan<'_>,
        lost: usize,
        data: DataState,
    ) -> anyhow::Result<Vec<Client>> {
        let deadline = Instant::now() + READY_TIMEOUT;
        let mut connections: Vec<Option<Client>> = vec![None; self.clients.len()];
        let mut seen = String::from("no replica answered");
        while Instant::now() < deadline {
            self.check_alive(lost)?;
            let up = self.up();
            let preferred = up[plan.experiment.leader_index()];
            let mut waiting = 0;
            for (site, slot) in connections
                .iter_mut()
                .enumerate()
                .filter(|(site, _)| up[*site])
            {
                let status = status(slot, self.clients[site], &self.access).await;
                if let (Some(status), DataState::New) = (&status, data) {
                    self.check_strategy(plan, status)?;
                }
                let ready = |status| is_ready(plan, status, preferred, data);
                if status.as_ref().is_some_and(ready) {
                    continue;
                }
                waiting += 1;
                seen = status.as_ref().map_or(seen, describe);
            }
            if waiting == 0 {
                return Ok(connections.into_iter().flatten().collect());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!(
            "the cluster was not ready within {} s ({seen}); its logs are in {}",
            READY_TIMEOUT.as_secs(),
            self.dir.display()
        )
    }

    /// Returns an error if the strategy in the cluster's data differs from the strategy of the
    /// plan. The cluster keeps the strategy in its data, regardless of the plan.
    fn check_strategy(&self, plan: &RunPlan<'_>, status: &StatusReply) -> anyhow::Result<()> {
        let requested = &plan.strategy.strategy;
        let settled = status.configuration > 2 && !status.strategy.is_empty();
        if settled && status.strategy != *requested {
            bail!(
                "the data in {} is of a cluster with strategy '{}', and '{requested}' was asked for: \
                 give another directory, or the strategy it has",
                self.dir.display(),
                status.strategy
            );
        }
        Ok(())
    }

    /// Fails if more than `lost` replicas have ended.
    fn check_alive(&mut self, lost: usize) -> anyhow::Result<()> {
        self.poll_processes();
        let words = self.replicas.iter().filter_map(|replica| {
            let ProcessState::Down(why) = replica.process_status().state else {
                return None;
            };
            Some(format!("replica {}: {why}", replica.site()))
        });
        let words: Vec<String> = words.collect();
        if words.len() > lost {
            bail!("{}", words.join("\n"))
        } else {
            Ok(())
        }
    }

    /// Ends the replicas and waits until they have ended.
    pub fn stop(&mut self) {
        for replica in &mut self.replicas {
            replica.begin_shutdown();
        }
        for replica in &mut self.replicas {
            replica.finish_shutdown();
        }
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        self.stop();
    }
}

fn fill_disk(file: &Path) -> anyhow::Result<()> {
    if file.exists() {
        bail!("the disk is full already: {} exists", file.display());
    }
    std::fs::write(file, []).with_context(|| format!("writing {}", file.display()))
}

fn free_disk(file: &Path) -> anyhow::Result<()> {
    std::fs::remove_file(file).with_context(|| format!("removing {}", file.display()))
}

/// Starts the emulated WAN between all sites. `targets` contains the address of each site. The
/// links to a site end at this address.
pub(super) fn start_wan(plan: &RunPlan<'_>, targets: &[SocketAddr]) -> anyhow::Result<Wan> {
    let jitter = Duration::from_secs_f64(plan.experiment.local.jitter_ms / 1e3);
    let link = |rtt_ms| LinkSettings {
        jitter,
        ..LinkSettings::of_round_trip_ms(rtt_ms)
    };
    Wan::start_with(plan.topology(), targets, link).context("starting the emulated WAN")
}

/// Returns the configuration of each replica. Each configuration contains the addresses through
/// which its replica reaches the others over the WAN.
fn nodes(plan: &RunPlan<'_>, clients: &[SocketAddr], peers: &[SocketAddr], wan: &Wan) -> Vec<Node> {
    let names = plan.topology().names();
    let via = |site: usize| {
        let ends = names.iter().enumerate();
        ends.filter_map(move |(other, name)| Some((name.to_string(), wan.via(site, other)?)))
    };
    let node = |(site, name): (usize, &&str)| Node {
        name: name.to_string(),
        client: clients[site],
        peer: peers[site],
        via: via(site).collect(),
    };
    names.iter().enumerate().map(node).collect()
}

fn write_config(file: &ClusterFile, dir: &Path) -> anyhow::Result<PathBuf> {
    let path = dir.join("cluster.toml");
    let text = toml::to_string(file).context("the configuration of the replicas")?;
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

async fn status(
    connection: &mut Option<Client>,
    address: SocketAddr,
    access: &ClientAccess,
) -> Option<StatusReply> {
    if connection.is_none() {
        let mut options = access.options([address]);
        options.request_timeout = Duration::from_secs(30);
        *connection = Client::connect(options).await.ok();
    }
    let raw = connection.as_ref()?.raw();
    let status = raw.status(StatusRequest::default());
    let answered = tokio::time::timeout(STATUS_TIMEOUT, status).await;
    answered.ok()?.ok()
}

/// Whether the replica with this status is ready. If `preferred` is true, the configured site must
/// lead; otherwise any site may lead.
fn is_ready(plan: &RunPlan<'_>, status: &StatusReply, preferred: bool, data: DataState) -> bool {
    let granted = status.peers.iter().filter(|peer| peer.granted_by).count();
    let led = if preferred {
        status.leader == plan.experiment.leader
    } else {
        !status.leader.is_empty()
    };
    let governed = match data {
        DataState::New => status.strategy == plan.strategy.strategy,
        // Every replica has the first configuration from the start. It gives no leases, so it is
        // not enough.
        DataState::Existing => status.configuration > 1,
    };
    led && governed && granted >= plan.topology().len() / 2
}

fn describe(status: &StatusReply) -> String {
    let granted = status.peers.iter().filter(|peer| peer.granted_by).count();
    format!(
        "{}: leader '{}', strategy '{}', promised by {granted} others",
        status.replica, status.leader, status.strategy
    )
}
