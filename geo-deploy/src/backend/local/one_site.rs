//! Measurement of throughput on one site: replica processes without a WAN between them, under load
//! from `ycsb` in a process of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use leasehold_client::Client;
use leasehold_wire::{StatusReply, StatusRequest};
use tokio::process::Command;

use super::LocalSettings;
use super::client_access::ClientAccess;
use super::ports::free_ports;
use super::replica::{LaunchSpec, Replica};
use crate::backend::ProgressFn;
use crate::cluster_file::{ClusterFile, Node};
use crate::throughput::{
    Case, CaseRouting, CaseThroughput, OperationThroughput, ThroughputExperiment,
};

/// Longest time that a cluster may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Time for which clients send requests before the measurement. In this time they learn the holders
/// of the keys.
const WARM_UP: Duration = Duration::from_secs(3);
/// Margin at the beginning and at the end of the measured interval. Processor time is measured only
/// between the two margins, because the load generator and this process do not begin at exactly the
/// same time.
const MARGIN: Duration = Duration::from_secs(1);
/// Number of steps of a case in the progress display.
const STEPS: u64 = 5;

/// Each case, with the throughput that was measured in each run of the case.
pub type Results = Vec<(Case, Vec<CaseThroughput>)>;

/// Measures every case the requested number of times. The first case is measured again only after
/// all cases have been measured once.
///
/// # Errors
/// If a cluster cannot be started, does not become ready, or cannot be loaded.
pub async fn run(
    experiment: &ThroughputExperiment,
    settings: &LocalSettings,
    progress: ProgressFn<'_>,
) -> anyhow::Result<Results> {
    let with_none = |case: &Case| (case.clone(), Vec::new());
    let mut results: Results = experiment.cases.iter().map(with_none).collect();
    for run in 0..experiment.runs {
        for (case, measured) in &mut results {
            let case_run = CaseRun {
                experiment,
                case,
                settings: LocalSettings {
                    dir: settings.dir.join(format!("{}-{}", case.label, run + 1)),
                    ..settings.clone()
                },
            };
            let step = |done: u64| {
                let before = u64::from(run) * STEPS;
                let all = u64::from(experiment.runs) * STEPS;
                progress(&case.label, before + done, all);
            };
            let one = case_run.measure(&step).await;
            measured.push(one.with_context(|| case.label.clone())?);
        }
    }
    Ok(results)
}

/// One run of a case.
struct CaseRun<'a> {
    experiment: &'a ThroughputExperiment,
    case: &'a Case,
    settings: LocalSettings,
}

/// Kind of the requested operations.
#[derive(Clone, Copy)]
enum LoadKind {
    Reads,
    Writes,
}

impl CaseRun<'_> {
    async fn measure(&self, step: &dyn Fn(u64)) -> anyhow::Result<CaseThroughput> {
        step(0);
        let cluster = self.start()?;
        let clients = self.ready(&cluster).await?;
        step(1);
        self.ycsb(&cluster, &["load"], &[]).await?;
        step(2);
        self.warm_up(&cluster).await?;
        step(3);
        let reads = self.rate(&cluster, &clients, LoadKind::Reads).await?;
        step(4);
        let writes = self.rate(&cluster, &clients, LoadKind::Writes).await?;
        step(5);
        drop(cluster);
        // The data is not needed any more.
        let _ = std::fs::remove_dir_all(self.settings.dir.join("data"));
        Ok(CaseThroughput { reads, writes })
    }

    fn start(&self) -> anyhow::Result<Cluster> {
        if !leasehold_node::HAS_STORE {
            return Err(leasehold_node::store::StorageError::NotBuilt.into());
        }
        let dir = &self.settings.dir;
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let names = &self.experiment.replicas;
        let clients = free_ports(names.len(), &[])?;
        let peers = free_ports(names.len(), &clients)?;
        let sites: Vec<&str> = names.iter().map(String::as_str).collect();
        let access = ClientAccess::prepare(&self.settings, &sites)?;
        let config = self.write_config(&access, &clients, &peers)?;
        let mut replicas = Vec::new();
        for site in names {
            let launch_spec = LaunchSpec {
                program: self.settings.program.clone(),
                dir: dir.clone(),
                config: config.clone(),
                site: site.clone(),
            };
            launch_spec.clear()?;
            let mut replica = Replica::new(launch_spec);
            replica.start()?;
            replicas.push(replica);
        }
        Ok(Cluster {
            replicas,
            addresses: clients,
            access,
        })
    }

    fn write_config(
        &self,
        access: &ClientAccess,
        clients: &[SocketAddr],
        peers: &[SocketAddr],
    ) -> anyhow::Result<PathBuf> {
        let experiment = self.experiment;
        let names = experiment.replicas.iter();
        let node = |(name, (client, peer)): (&String, (&SocketAddr, &SocketAddr))| Node {
            name: name.clone(),
            client: *client,
            peer: *peer,
            via: std::collections::BTreeMap::new(),
        };
        let nodes = names.zip(clients.iter().zip(peers)).map(node).collect();
        let file = ClusterFile {
            security: access.section(),
            ..ClusterFile::of_case(experiment, self.case, &self.settings.cluster, nodes)
        };
        let path = self.settings.dir.join("cluster.toml");
        let text = toml::to_string(&file).context("writing a configuration")?;
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Waits until the configured leader leads, the strategy is in force, and every replica has
    /// promises from enough other replicas. Returns a client for each replica.
    async fn ready(&self, cluster: &Cluster) -> anyhow::Result<Vec<Client>> {
        let deadline = Instant::now() + READY_WITHIN;
        let mut clients = Vec::new();
        for (name, address) in self.experiment.replicas.iter().zip(&cluster.addresses) {
            let mut client = None;
            loop {
                if client.is_none() {
                    let options = cluster.access.options([address]);
                    client = Client::connect(options).await.ok();
                }
                let status = match &client {
                    Some(client) => client.raw().status(StatusRequest::default()).await.ok(),
                    None => None,
                };
                if status.is_some_and(|status| self.is_ready(&status)) {
                    break;
                }
                if Instant::now() >= deadline {
                    let dir = self.settings.dir.display();
                    bail!(
                        "{name} was not ready within {READY_WITHIN:?}; its log is {dir}/{name}.log"
                    );
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            clients.extend(client);
        }
        Ok(clients)
    }

    fn is_ready(&self, status: &StatusReply) -> bool {
        let promised = status.peers.iter().filter(|peer| peer.granted_by).count();
        status.leader == self.experiment.leader
            && status.strategy == self.case.strategy
            && promised >= self.experiment.replicas.len() / 2
    }

    /// Lets clients read from all replicas equally, so that every replica becomes the holder of
    /// about the same number of keys.
    async fn warm_up(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let seconds = self.experiment.warmup_s;
        if seconds > 0.0 {
            let properties = [
                format!("maxexecutiontime={seconds}"),
                "leasehold.routing=local".to_owned(),
                "readproportion=1".to_owned(),
                "updateproportion=0".to_owned(),
            ];
            self.ycsb(cluster, &["run"], &properties).await?;
        }
        Ok(())
    }

    async fn rate(
        &self,
        cluster: &Cluster,
        clients: &[Client],
        kind: LoadKind,
    ) -> anyhow::Result<OperationThroughput> {
        let (kind, reads) = match kind {
            LoadKind::Reads => ("READ", 1),
            LoadKind::Writes => ("UPDATE", 0),
        };
        let warm_up_s = WARM_UP.as_secs_f64();
        let properties = [
            format!("warmuptime={warm_up_s}"),
            format!("maxexecutiontime={}", warm_up_s + self.experiment.seconds),
            format!("leasehold.routing={}", self.case.routing.name()),
            format!("readproportion={reads}"),
            format!("updateproportion={}", 1 - reads),
            "writeallfields=true".to_owned(),
        ];
        let load = self.ycsb(cluster, &["run"], &properties);
        let (report, used) = tokio::try_join!(load, self.processor_share(clients))?;
        Ok(rate_of(&report, kind, &used))
    }

    /// Measures the processor use of each replica under a load that begins at the time of the call.
    /// Returns the mean number of processors that each replica uses in the measured interval.
    async fn processor_share(&self, clients: &[Client]) -> anyhow::Result<Vec<f64>> {
        tokio::time::sleep(WARM_UP + MARGIN).await;
        let (began, before) = (Instant::now(), processor_us(clients).await?);
        let seconds = Duration::from_secs_f64(self.experiment.seconds);
        tokio::time::sleep(seconds.saturating_sub(2 * MARGIN)).await;
        let (ended, after) = (Instant::now(), processor_us(clients).await?);
        let us = (ended - began).as_secs_f64() * 1e6;
        let shares = after.iter().zip(&before).map(|(a, b)| (a - b) / us);
        Ok(shares.collect())
    }

    /// Runs the load generator, and returns its report.
    async fn ycsb(
        &self,
        cluster: &Cluster,
        phase: &[&str],
        properties: &[String],
    ) -> anyhow::Result<String> {
        let experiment = self.experiment;
        let addresses = cluster.addresses.iter();
        let addresses: Vec<String> = addresses.map(ToString::to_string).collect();
        let aware = properties
            .iter()
            .any(|p| p == "leasehold.routing=lease-aware");
        // A lease-aware client is connected to every replica.
        let clients = if aware {
            experiment.connections / experiment.replicas.len() as u32
        } else {
            experiment.connections
        };
        let common = [
            format!("recordcount={}", experiment.keys),
            "operationcount=1000000000000".to_owned(),
            "fieldcount=1".to_owned(),
            format!("fieldlength={}", experiment.value_bytes),
            format!("leasehold.connections={clients}"),
            format!("leasehold.cores={}", experiment.cores),
            format!("seed={}", experiment.seed),
            "site=here".to_owned(),
        ];
        let threads = experiment.connections * experiment.in_flight;
        let mut command = Command::new(&self.settings.program);
        command.arg("ycsb").args(phase);
        command.args(["--address", &addresses.join(",")]);
        // The variable may name the certificate of another cluster, so it is removed.
        command.env_remove("LEASEHOLD_CA");
        if let Some(ca) = cluster.access.ca() {
            command.arg("--ca").arg(ca);
        }
        command.args(["-threads", &threads.to_string()]);
        for property in common.iter().chain(properties) {
            command.args(["-p", property]);
        }
        let output = command
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .context("starting the load generator")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().unwrap_or_default();
            bail!("the load generator ended with {}: {last}", output.status);
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Replica processes of a cluster. The processes end when this value is dropped, and also when the
/// program that started them dies.
struct Cluster {
    #[expect(dead_code, reason = "kept for their end")]
    replicas: Vec<Replica>,
    addresses: Vec<SocketAddr>,
    access: ClientAccess,
}

/// Returns the processor time, in µs, that each replica has used so far.
async fn processor_us(clients: &[Client]) -> anyhow::Result<Vec<f64>> {
    let mut all = Vec::new();
    for client in clients {
        let status = client
            .raw()
            .status(StatusRequest::default())
            .await
            .context("asking a replica")?;
        let mut counters = status.counters.iter();
        let counter = counters.find(|counter| counter.name == "cpu_us");
        let counter = counter.context("a replica does not count its processor time")?;
        all.push(counter.value as f64);
    }
    Ok(all)
}

/// Reads the throughput of one kind of operations from a report. `shares` contains the processor
/// use of each replica, in processors.
fn rate_of(report: &str, kind: &str, shares: &[f64]) -> OperationThroughput {
    let figure = |name: &str, what: &str| figure(report, &format!("[{name}], {what}"));
    let done = figure(kind, "Return=OK");
    let local = figure("READ@local", "Operations") + figure("READ@held", "Operations");
    let all = figure("OVERALL", "Operations");
    let seconds = figure("OVERALL", "RunTime(ms)") / 1000.0;
    let over = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let per_s = over(done, seconds);
    OperationThroughput {
        per_s,
        failed: (all - done).max(0.0) as u64,
        local_fraction: over(local, done),
        p50_us: figure(kind, "50thPercentileLatency(us)"),
        p99_us: figure(kind, "99thPercentileLatency(us)"),
        cpu_us: over(shares.iter().sum::<f64>() * 1e6, per_s),
        busiest_us: over(shares.iter().copied().fold(0.0, f64::max) * 1e6, per_s),
    }
}

/// Finds the first line of a `ycsb` report that consists of `line`, a comma and a number, and
/// returns the number; 0 if there is no such line.
fn figure(report: &str, line: &str) -> f64 {
    let of_line = |found: &str| found.strip_prefix(line)?.strip_prefix(", ")?.parse().ok();
    report.lines().find_map(of_line).unwrap_or(0.0)
}

impl Case {
    /// Whether the clients of this case send each read to a holder of the key.
    pub fn is_aware(&self) -> bool {
        self.routing == CaseRouting::LeaseAware
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_the_load_generator_is_read() {
        let report = "[OVERALL], RunTime(ms), 2000\n[OVERALL], Operations, 1010\n\
                      [READ], Operations, 1000\n[READ], Return=OK, 1000\n\
                      [READ], Return=ERROR, 10\n[READ], 50thPercentileLatency(us), 120\n\
                      [READ], 99thPercentileLatency(us), 900\n[READ@local], Operations, 600\n\
                      [READ@held], Operations, 150\n[READ@forwarded], Operations, 250\n";
        let rate = rate_of(report, "READ", &[0.0005, 0.0015]);
        let expected = OperationThroughput {
            per_s: 500.0,
            failed: 10,
            local_fraction: 0.75,
            p50_us: 120.0,
            p99_us: 900.0,
            cpu_us: 4.0,
            busiest_us: 3.0,
        };
        assert_eq!(rate, expected);
        assert_eq!(rate_of("", "READ", &[0.5]), OperationThroughput::default());
    }
}
