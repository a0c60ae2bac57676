//! Real processes on one machine: a `serve` for every site, behind an emulated WAN.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use client::wire::StatusReply;
use client::wire::command::Op;
use client::{Client, ClientOptions};
use tokio::task::LocalSet;
use ycsb::sample::OpKind;

use super::node_events;
use super::sim::sum_counters;
use super::{ClosedLoop, Plan, Progress, Ran, Recorder, key_name, value};
use crate::experiment::{Durability, Experiment, Unlisted};
use crate::report::{Event, StrategyRun};
use crate::wan::{LinkSettings, Wan};

/// How long a cluster has to elect its leader and establish its leases.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a replica has to end by itself before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How a local cluster is set up.
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
        let jitter = Duration::from_secs_f64(plan.experiment.local.jitter_ms / 1e3);
        let link = |rtt_ms| LinkSettings {
            jitter,
            ..LinkSettings::of_round_trip_ms(rtt_ms)
        };
        let wan = Wan::start_with(topology, &peers, link).context("starting the emulated WAN")?;
        let cluster = settings.cluster.clone();
        let text = config(plan, &cluster, &clients, &peers, &wan)?;
        let path = settings.dir.join("cluster.toml");
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        let dir = settings.dir.clone();
        let mut this = LocalCluster {
            children: Vec::new(),
            wan,
            clients,
            dir,
            cluster,
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

    /// Waits until the leader asked for leads, and every replica knows the
    /// strategy asked for and is promised by enough others.
    ///
    /// # Errors
    /// If a replica ends, or it takes too long; with the end of its log.
    pub async fn ready(&mut self, plan: &Plan<'_>) -> anyhow::Result<Vec<Client>> {
        let deadline = Instant::now() + READY_TIMEOUT;
        let mut connections: Vec<Option<Client>> = vec![None; self.clients.len()];
        let mut seen = String::from("no replica answered");
        while Instant::now() < deadline {
            self.check_alive()?;
            let mut ready = true;
            for (site, slot) in connections.iter_mut().enumerate() {
                match status(slot, self.clients[site], &self.cluster).await {
                    Some(status) => {
                        self.check_strategy(plan, &status)?;
                        ready &= is_ready(plan, &status);
                        if !is_ready(plan, &status) {
                            seen = describe(&status);
                        }
                    }
                    None => ready = false,
                }
            }
            if ready {
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

    /// A strategy is part of the replicated state: data of an earlier run keeps its own.
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
pub(super) fn events_file(dir: &Path, site: &str) -> PathBuf {
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

/// Ports of these are not handed to outgoing connections on a usual system, so
/// one that is free now is still free when the replica binds it.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Free ports on loopback; where the search begins differs between processes.
fn free_ports(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let span = PORTS.len() as u32;
    let begin = std::process::id().wrapping_mul(61) % span;
    let candidates = (0..span).map(|i| PORTS.start + ((begin + i) % span) as u16);
    let bound = candidates.filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    // All are held until all are chosen.
    let held: Vec<TcpListener> = bound.take(count).collect();
    if held.len() < count {
        bail!("{count} free ports were needed on 127.0.0.1 in {PORTS:?}: end what uses them");
    }
    held.iter()
        .map(|listener| listener.local_addr().context("a bound port"))
        .collect()
}

/// A row of ports on loopback from `first` on, all of them free.
fn row_of_ports(count: usize, first: u16) -> anyhow::Result<Vec<SocketAddr>> {
    let bind = |index: usize| {
        let port = u16::try_from(usize::from(first) + index).ok();
        let port = port.with_context(|| {
            format!(
                "client port {first}: there are no {count} ports from there on; choose a lower one"
            )
        })?;
        TcpListener::bind(("127.0.0.1", port)).with_context(|| {
            format!(
                "port {port} on 127.0.0.1 is not free; choose another row of {count} with \
                 --client-port, or end what uses it"
            )
        })
    };
    let held = (0..count)
        .map(bind)
        .collect::<anyhow::Result<Vec<TcpListener>>>()?;
    held.iter()
        .map(|listener| listener.local_addr().context("a bound port"))
        .collect()
}

/// The cluster's configuration file.
fn config(
    plan: &Plan<'_>,
    cluster: &str,
    clients: &[SocketAddr],
    peers: &[SocketAddr],
    wan: &Wan,
) -> anyhow::Result<String> {
    use std::fmt::Write as _;
    let experiment = plan.experiment;
    let lease = &experiment.lease;
    let durability = match experiment.local.durability {
        Durability::Sync => "sync",
        Durability::Async => "async",
        Durability::None => "none",
    };
    let unlisted = match (plan.strategy.strategy.as_str(), experiment.lease.unlisted) {
        ("quorum", Unlisted::Nearest) => "unlisted = \"nearest\"\n",
        ("quorum", Unlisted::Leader) => "unlisted = \"leader\"\n",
        _ => "",
    };
    let mut text = format!(
        "cluster = \"{cluster}\"\nleader = \"{}\"\ndurability = \"{durability}\"\ndata = \
         \"data\"\n\n[lease]\nstrategy = \"{}\"\n{unlisted}t_lease_ms = {}\nt_guard_ms = {}\nrenew_ms = {}\nreconfigure_ms = {}\ngrace_ms = {}\nrho = {:?}\n",
        experiment.leader,
        plan.strategy.strategy,
        lease.t_lease_ms,
        lease.t_guard_ms,
        lease.renew_ms,
        lease.reconfigure_ms,
        lease.grace_ms,
        lease.rho,
    );
    for (start, holders) in plan.strategy.range_starts(experiment.workload.keys) {
        let from = String::from_utf8_lossy(&key_name(start)).into_owned();
        write!(
            text,
            "\n[[lease.range]]\nfrom = \"{from}\"\nholders = {holders:?}\n"
        )?;
    }
    let names = plan.topology().names();
    for (site, name) in names.iter().enumerate() {
        write!(
            text,
            "\n[[node]]\nname = \"{name}\"\nclient = \"{}\"\npeer = \"{}\"\n[node.via]\n",
            clients[site], peers[site]
        )?;
        for (other, peer) in names.iter().enumerate() {
            if let Some(via) = wan.via(site, other) {
                writeln!(text, "{peer} = \"{via}\"")?;
            }
        }
    }
    Ok(text)
}

/// Runs every strategy of an experiment, one after the other.
///
/// # Errors
/// If a cluster cannot be started or never gets ready.
pub async fn run(
    experiment: &Experiment,
    settings: &LocalSettings,
    progress: Progress<'_>,
) -> anyhow::Result<Vec<Ran>> {
    let mut all = Vec::new();
    for strategy in &experiment.strategies {
        let plan = Plan {
            experiment,
            strategy,
        };
        let dir = settings.dir.join(&strategy.label);
        let settings = LocalSettings {
            dir,
            ..settings.clone()
        };
        all.push(run_plan(&plan, &settings, progress).await?);
    }
    Ok(all)
}

async fn run_plan(
    plan: &Plan<'_>,
    settings: &LocalSettings,
    progress: Progress<'_>,
) -> anyhow::Result<Ran> {
    let started = Instant::now();
    let start_unix_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |t| t.as_millis());
    progress(&plan.strategy.label, 0, plan.requests());
    let mut cluster = LocalCluster::start(plan, settings)?;
    let admins = cluster.ready(plan).await?;
    let ready = ready_event(plan, started.elapsed().as_secs_f64());
    let mut recorder = drive(plan, &cluster, progress).await?;
    let mut statuses = Vec::new();
    for admin in &admins {
        statuses.extend(admin.status().await);
    }
    let measured = cluster.wan().measured_matrix_ms();
    let notes = deviations(&cluster);
    cluster.stop();
    let mut events = node_events::read(plan, &settings.dir, start_unix_ms as u64);
    let at = events.partition_point(|event| event.at_s <= ready.at_s);
    events.insert(at, ready);
    // The data of a run is of no use after it.
    let _ = std::fs::remove_dir_all(settings.dir.join("data"));
    let run = finish(plan, &mut recorder, started, statuses, measured, notes);
    let history = recorder.history;
    Ok(Ran {
        run,
        events,
        history,
    })
}

fn deviations(cluster: &LocalCluster) -> Vec<String> {
    let deviations = cluster.wan().deviations();
    let words = deviations.iter().map(|d| {
        format!(
            "the round trip {}-{} was {:.2} ms, not the {:.2} ms asked for",
            d.a, d.b, d.measured_ms, d.asked_ms
        )
    });
    words.collect()
}

/// Moves all clients to their end.
async fn drive(
    plan: &Plan<'_>,
    cluster: &LocalCluster,
    progress: Progress<'_>,
) -> anyhow::Result<Recorder> {
    let bytes = plan.experiment.workload.value_bytes as usize;
    let epoch = Instant::now();
    let ended = Rc::new(std::cell::Cell::new(0u64));
    let local = LocalSet::new();
    let mut tasks = Vec::new();
    for client in ClosedLoop::all(plan) {
        let address = cluster.client_addresses()[client.site];
        let mut options = ClientOptions::new(address.to_string());
        options.cluster = Some(cluster.name().to_string());
        options.request_timeout = Duration::from_secs(30);
        let ended = ended.clone();
        tasks.push(local.spawn_local(async move {
            let connection = Client::connect(options).await?;
            Ok::<Recorder, client::Error>(
                closed_loop(client, connection, bytes, epoch, &ended).await,
            )
        }));
    }
    let total = plan.requests();
    let label = plan.strategy.label.clone();
    local
        .run_until(async {
            let mut recorder = Recorder::new(plan);
            let show = async {
                loop {
                    progress(&label, ended.get(), total);
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            };
            let all = async {
                for task in tasks {
                    recorder.merge(task.await.context("a client failed")?.context("a client")?);
                }
                Ok::<Recorder, anyhow::Error>(recorder)
            };
            tokio::select! {
                done = all => done,
                () = show => bail!("unreachable: progress has no end"),
            }
        })
        .await
}

async fn closed_loop(
    mut client: ClosedLoop,
    connection: Client,
    bytes: usize,
    epoch: Instant,
    ended: &std::cell::Cell<u64>,
) -> Recorder {
    let mut recorder = Recorder::default();
    let now = || epoch.elapsed().as_nanos() as u64;
    while let Some(ask) = client.next() {
        let op = match ask.kind {
            OpKind::Read => Op::get(key_name(ask.key)),
            _ => Op::put(key_name(ask.key), value(ask.value, bytes)),
        };
        let began_ns = now();
        let answer = connection.execute(op).await;
        let answer = answer
            .as_ref()
            .ok()
            .map(|reply| (reply.path, &reply.outcome));
        recorder.ended(client.site, client.process, ask, began_ns, now(), answer);
        ended.set(ended.get() + 1);
    }
    recorder
}

fn ready_event(plan: &Plan<'_>, at_s: f64) -> Event {
    Event {
        run: Some(plan.strategy.label.clone()),
        at_s,
        kind: "ready".to_string(),
        site: None,
        text: "the leader leads and every replica is promised by enough others".to_string(),
    }
}

fn finish(
    plan: &Plan<'_>,
    recorder: &mut Recorder,
    started: Instant,
    statuses: Vec<StatusReply>,
    measured: Vec<Vec<f64>>,
    notes: Vec<String>,
) -> StrategyRun {
    let attainable = recorder.attainable(plan);
    StrategyRun {
        label: plan.strategy.label.clone(),
        strategy: plan.strategy.strategy.clone(),
        workload: plan.words(),
        samples: std::mem::take(&mut recorder.samples),
        wall_s: started.elapsed().as_secs_f64(),
        virtual_s: None,
        linearizable: recorder.judge(),
        attainable_local: attainable.as_ref().map(|a| a.local_reads.clone()),
        attainable_minimum: attainable.map(|a| a.writes_at_minimum),
        notes,
        counters: sum_counters(statuses.into_iter()),
        measured_rtt_ms: Some(measured),
    }
}
