//! Replica processes behind an emulated WAN: start, wait until they are ready, end.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use client::wire::StatusReply;
use client::{Client, ClientOptions};

use super::super::Plan;
use super::ports::{free_ports, row_of_ports};
use crate::cluster_file::{ClusterFile, Node};
use crate::wan::{LinkSettings, Wan};

/// How long a cluster has to elect its leader and establish its leases.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a replica has to end by itself before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The program, name, directory and ports of a local cluster.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// The program to start as `serve`; usually this one.
    pub program: PathBuf,
    /// The cluster's name: a data directory of another is refused.
    pub cluster: String,
    /// Where configuration, data and logs go.
    pub dir: PathBuf,
    /// First of a row of free ports for the clients; `None`: any.
    pub client_port: Option<u16>,
}

/// Five (or any number of) replica processes behind a WAN. They end when this
/// is dropped, and also when this process dies: each watches its standard input.
pub struct LocalCluster {
    children: Vec<(String, Child)>,
    wan: Wan,
    clients: Vec<SocketAddr>,
    dir: PathBuf,
    cluster: String,
}

impl LocalCluster {
    /// Starts the replicas of a plan and the links between them.
    ///
    /// # Errors
    /// If a port, a file or a process cannot be had; the error names it.
    pub fn start(plan: &Plan<'_>, settings: &LocalSettings) -> anyhow::Result<LocalCluster> {
        let topology = plan.topology();
        std::fs::create_dir_all(&settings.dir)
            .with_context(|| format!("creating {}", settings.dir.display()))?;
        let mut peers = free_ports(topology.len() * 2)?;
        let any = peers.split_off(topology.len());
        let clients = match settings.client_port {
            Some(first) => row_of_ports(topology.len(), first)?,
            None => any,
        };
        let wan = start_wan(plan, &peers)?;
        let nodes = nodes(plan, &clients, &peers, &wan);
        let path = write_config(
            &ClusterFile::new(plan, &settings.cluster, nodes),
            &settings.dir,
        )?;
        let mut this = LocalCluster {
            children: Vec::new(),
            wan,
            clients,
            dir: settings.dir.clone(),
            cluster: settings.cluster.clone(),
        };
        for site in topology.names() {
            let child = serve(&settings.program, &this.dir, &path, site)?;
            this.children.push((site.to_string(), child));
        }
        Ok(this)
    }

    /// Where clients of each site connect.
    pub fn client_addresses(&self) -> &[SocketAddr] {
        &self.clients
    }

    /// The WAN between the replicas.
    pub fn wan(&self) -> &Wan {
        &self.wan
    }

    /// The cluster's name, as its replicas know it.
    pub fn name(&self) -> &str {
        &self.cluster
    }

    /// Waits until the site asked for leads, and every replica knows the strategy asked
    /// for and has promises from enough others.
    ///
    /// # Errors
    /// If a replica ends, or it takes too long; with the end of its log.
    pub async fn ready(&mut self, plan: &Plan<'_>) -> anyhow::Result<Vec<Client>> {
        let deadline = Instant::now() + READY_TIMEOUT;
        let mut connections: Vec<Option<Client>> = vec![None; self.clients.len()];
        let mut seen = String::from("no replica answered");
        while Instant::now() < deadline {
            self.check_alive()?;
            let mut waiting = 0;
            for (slot, address) in connections.iter_mut().zip(&self.clients) {
                let status = status(slot, *address, &self.cluster).await;
                if let Some(status) = &status {
                    self.check_strategy(plan, status)?;
                }
                if status.as_ref().is_some_and(|status| is_ready(plan, status)) {
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

    /// Refuses data of another strategy: the strategy is part of the replicated state.
    fn check_strategy(&self, plan: &Plan<'_>, status: &StatusReply) -> anyhow::Result<()> {
        let asked = &plan.strategy.strategy;
        let settled = status.configuration > 2 && !status.strategy.is_empty();
        if settled && status.strategy != *asked {
            bail!(
                "the data in {} is of a cluster with strategy '{}', and '{asked}' was asked for: \
                 give another directory, or the strategy it has",
                self.dir.display(),
                status.strategy
            );
        }
        Ok(())
    }

    fn check_alive(&mut self) -> anyhow::Result<()> {
        for (site, child) in &mut self.children {
            if let Some(status) = child.try_wait().context("looking after a replica")? {
                let log = self.dir.join(format!("{site}.log"));
                bail!("replica {site} ended ({status}):\n{}", tail(&log));
            }
        }
        Ok(())
    }

    /// Ends the replicas and waits for them.
    pub fn stop(&mut self) {
        for (_, child) in &mut self.children {
            drop(child.stdin.take());
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        for (_, child) in &mut self.children {
            while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(10));
            }
            if matches!(child.try_wait(), Ok(None)) {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
        self.children.clear();
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start_wan(plan: &Plan<'_>, peers: &[SocketAddr]) -> anyhow::Result<Wan> {
    let jitter = Duration::from_secs_f64(plan.experiment.local.jitter_ms / 1e3);
    let link = |rtt_ms| LinkSettings {
        jitter,
        ..LinkSettings::of_round_trip_ms(rtt_ms)
    };
    Wan::start_with(plan.topology(), peers, link).context("starting the emulated WAN")
}

/// The replicas of a plan, each with the ends of the WAN that lead to the others.
fn nodes(plan: &Plan<'_>, clients: &[SocketAddr], peers: &[SocketAddr], wan: &Wan) -> Vec<Node> {
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
    cluster: &str,
) -> Option<StatusReply> {
    if connection.is_none() {
        let mut options = ClientOptions::new(address.to_string());
        options.cluster = Some(cluster.to_string());
        options.request_timeout = Duration::from_secs(30);
        *connection = Client::connect(options).await.ok();
    }
    connection.as_ref()?.status().await.ok()
}

fn is_ready(plan: &Plan<'_>, status: &StatusReply) -> bool {
    let granted = status.peers.iter().filter(|peer| peer.granted_by).count();
    status.leader == plan.experiment.leader
        && status.strategy == plan.strategy.strategy
        && granted >= plan.topology().len() / 2
}

fn describe(status: &StatusReply) -> String {
    let granted = status.peers.iter().filter(|peer| peer.granted_by).count();
    format!(
        "{}: leader '{}', strategy '{}', promised by {granted} others",
        status.replica, status.leader, status.strategy
    )
}

fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines();
    let lines: Vec<&str> = lines
        .map(|line| line.strip_prefix("leasehold: ").unwrap_or(line))
        .collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// Where the replica of a site writes down what happens to it.
pub(in super::super) fn events_file(dir: &Path, site: &str) -> PathBuf {
    dir.join(format!("{site}.events.jsonl"))
}

fn serve(program: &Path, dir: &Path, config: &Path, site: &str) -> anyhow::Result<Child> {
    let log = dir.join(format!("{site}.log"));
    let log = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    Command::new(program)
        .arg("serve")
        .arg("--config")
        .arg(config)
        .args(["--node", site, "--until-stdin-closes", "--events"])
        .arg(events_file(dir, site))
        .stdin(Stdio::piped())
        .stdout(log.try_clone().context("sharing a log file")?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("starting {} serve --node {site}", program.display()))
}
