//! Replica processes, each with a disk of its own. The processes end when the fleet is dropped, and
//! also when this program ends, because their standard input is closed then.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use leasehold_client::Client;

use crate::cluster::{CLUSTER, LEADER, NAMES, addresses};
use crate::shim::Shim;
use crate::trace::{self, TraceRecord};
use crate::tree::Tree;

/// Maximum time from the start of a replica until it serves.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Timeout of one attempt of an operation.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Pause between two attempts.
pub const PAUSE: Duration = Duration::from_millis(50);

/// Settings that all clusters of a run share.
#[derive(Clone, Debug)]
pub struct Plan {
    pub binary: PathBuf,
    pub shim: Shim,
    pub nodes: usize,
    /// Temporary directory of the run.
    pub folder: PathBuf,
    /// Time for which each cluster is under load.
    pub load: Duration,
}

/// Returns the minimum number of replicas in a majority.
pub fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Returns the contents of the new disks of a cluster.
pub fn new_disks(nodes: usize) -> Vec<Tree> {
    NAMES[..nodes].iter().map(|it| Tree::new_disk(it)).collect()
}

/// A replica that does not serve after its start.
#[derive(Clone, Debug)]
pub struct FailedStart {
    /// Whether the process has ended by itself.
    pub is_refused: bool,
    pub words: String,
}

impl FailedStart {
    /// Returns an error if the cause of the failure is this machine and not the store.
    pub fn check(&self) -> anyhow::Result<()> {
        let is_taken = self.words.contains("Address already in use");
        anyhow::ensure!(
            !is_taken,
            "another program took a port meanwhile ({}); run this again",
            self.words
        );
        Ok(())
    }
}

/// Replicas of one cluster.
pub struct Fleet {
    plan: Plan,
    pub folder: PathBuf,
    durability: &'static str,
    pub clients: Vec<String>,
    peers: Vec<String>,
    replicas: Vec<Option<ReplicaProcess>>,
    /// Number of starts so far.
    pub starts: u64,
}

struct ReplicaProcess {
    child: Child,
    /// Folder with the disk, the configuration, the log and the trace of this process.
    home: PathBuf,
}

impl Fleet {
    /// Creates a fleet without processes. `name` is the name of its folder.
    pub fn new(plan: &Plan, name: &str, durability: &'static str) -> anyhow::Result<Fleet> {
        let folder = plan.folder.join(name);
        let made = std::fs::create_dir_all(&folder);
        made.with_context(|| format!("creating {}; is there space?", folder.display()))?;
        let addresses = addresses(2 * plan.nodes)?;
        let (clients, peers) = addresses.split_at(plan.nodes);
        Ok(Fleet {
            plan: plan.clone(),
            folder,
            durability,
            clients: clients.to_vec(),
            peers: peers.to_vec(),
            replicas: (0..plan.nodes).map(|_| None).collect(),
            starts: 0,
        })
    }

    /// Starts a replica on a disk with these contents. If `is_recorded`, the shim records the file
    /// operations of the replica.
    pub fn start(&mut self, replica: usize, disk: &Tree, is_recorded: bool) -> anyhow::Result<()> {
        self.starts += 1;
        let home = self
            .folder
            .join(format!("{}-{}", NAMES[replica], self.starts));
        let made = std::fs::create_dir(&home);
        made.with_context(|| format!("creating {}; is there space?", home.display()))?;
        disk.write(&home.join("disk"))?;
        let config = home.join("cluster.toml");
        let written = std::fs::write(&config, self.configuration(&home)?);
        written.with_context(|| format!("writing {}; is there space?", config.display()))?;
        let log = File::create(home.join("log")).context("creating a log; is there space?")?;
        let mut serve = Command::new(&self.plan.binary);
        serve.args(["serve", "--until-stdin-closes", "--config"]);
        serve.arg(config).args(["--node", NAMES[replica]]);
        serve
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log);
        if is_recorded {
            let (disk, trace) = (home.join("disk"), home.join("trace"));
            self.plan.shim.record(&mut serve, &disk, &trace);
        }
        let child = serve.spawn();
        let child = child.with_context(|| format!("starting {}", self.plan.binary.display()))?;
        self.replicas[replica] = Some(ReplicaProcess { child, home });
        Ok(())
    }

    /// Returns the configuration of a replica. Its durations are short, so that replicas start fast
    /// and flush their state often.
    fn configuration(&self, home: &Path) -> anyhow::Result<String> {
        let mut text = format!(
            "cluster = \"{CLUSTER}\"\nleader = \"{}\"\ndurability = \"{}\"\ndata = \"{}\"\n\
             [timing]\ncheckpoint_ms = 300\nelection_timeout_ms = 400\n\
             [lease]\nt_lease_ms = 400\nt_guard_ms = 300\nrenew_ms = 100\ngrace_ms = 800\n",
            NAMES[LEADER],
            self.durability,
            home.join("disk/data").display()
        );
        let addresses = self.clients.iter().zip(&self.peers);
        for (name, (client, peer)) in NAMES.iter().zip(addresses) {
            writeln!(
                text,
                "[[node]]\nname = \"{name}\"\nclient = \"{client}\"\npeer = \"{peer}\""
            )?;
        }
        Ok(text)
    }

    /// Returns the path of the disk of a replica's last process.
    pub fn disk(&self, replica: usize) -> PathBuf {
        self.home(replica).join("disk")
    }

    fn home(&self, replica: usize) -> PathBuf {
        let process = self.replicas[replica].as_ref();
        process.map(|it| it.home.clone()).unwrap_or_default()
    }

    /// Kills a replica, and waits until it has ended.
    pub fn kill(&mut self, replica: usize) {
        if let Some(process) = &mut self.replicas[replica] {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }

    /// Kills all replicas. Sends all signals first, and then waits for the processes.
    pub fn kill_all(&mut self) {
        for process in self.replicas.iter_mut().flatten() {
            let _ = process.child.kill();
        }
        (0..self.replicas.len()).for_each(|replica| self.kill(replica));
    }

    /// Returns the recorded operations of a replica's last process. The process must have ended.
    pub fn trace(&self, replica: usize) -> anyhow::Result<Vec<TraceRecord>> {
        let path = self.home(replica).join("trace");
        let bytes = std::fs::read(&path);
        let bytes = bytes.with_context(|| {
            let path = path.display();
            format!("{path}: the replica recorded nothing; is LD_PRELOAD allowed for the program?")
        })?;
        trace::parse(Bytes::from(bytes))
    }

    /// Returns an error if a replica has ended by itself.
    pub fn all_run(&mut self) -> Result<(), FailedStart> {
        let mut ended = (0..self.replicas.len()).filter_map(|replica| self.ended(replica));
        ended.next().map_or(Ok(()), Err)
    }

    /// Returns the failure of a replica that has ended by itself.
    fn ended(&mut self, replica: usize) -> Option<FailedStart> {
        let process = self.replicas[replica].as_mut()?;
        let status = process.child.try_wait().ok().flatten()?;
        let log = std::fs::read_to_string(process.home.join("log")).unwrap_or_default();
        let last = log.lines().rfind(|line| !line.trim().is_empty());
        let name = NAMES[replica];
        Some(FailedStart {
            is_refused: true,
            words: format!("{name} ended ({status}): {}", last.unwrap_or_default()),
        })
    }

    /// Waits until each of these replicas has served a write.
    pub async fn ready(&mut self, replicas: &[usize]) -> Result<(), FailedStart> {
        let deadline = Instant::now() + READY_WITHIN;
        for &replica in replicas {
            while let Err(problem) = self.probe(replica).await {
                for &other in replicas {
                    if let Some(ended) = self.ended(other) {
                        return Err(ended);
                    }
                }
                if Instant::now() > deadline {
                    let within = READY_WITHIN.as_secs();
                    let name = NAMES[replica];
                    return Err(FailedStart {
                        is_refused: false,
                        words: format!("{name} does not serve within {within} s: {problem}"),
                    });
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    async fn probe(&self, replica: usize) -> Result<(), leasehold_client::Error> {
        let client = self.client(replica).await?;
        let written = client.put(format!("ready/{replica}"), "yes").await;
        client.close();
        written.map(drop)
    }

    /// Returns a client that uses this replica and no other.
    pub async fn client(&self, replica: usize) -> Result<Client, leasehold_client::Error> {
        let mut options = leasehold_client::ClientOptions::new(&self.clients[replica]);
        options.request_timeout = ATTEMPT;
        options.connect_timeout = ATTEMPT;
        Client::connect(options).await
    }

    /// Copies the logs and traces of the last processes into a folder.
    pub fn keep_records(&self, folder: &Path) -> anyhow::Result<()> {
        let made = std::fs::create_dir_all(folder);
        made.with_context(|| format!("creating {}; is there space?", folder.display()))?;
        for (process, name) in self.replicas.iter().zip(NAMES) {
            let Some(process) = process else { continue };
            for kind in ["log", "trace"] {
                let (from, to) = (
                    process.home.join(kind),
                    folder.join(format!("{name}.{kind}")),
                );
                if from.exists() {
                    let copied = std::fs::copy(&from, &to);
                    copied.with_context(|| format!("writing {}; is there space?", to.display()))?;
                }
            }
        }
        Ok(())
    }

    /// Removes the files of the fleet.
    pub fn remove(mut self) {
        self.kill_all();
        // The folder of the run is removed at the end in any case.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.kill_all();
    }
}
