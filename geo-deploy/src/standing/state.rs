//! The file `state.json` of a cluster that is up, and the lock of its directory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use leasehold_client::ClientOptions;
use leasehold_transport::tls::Trust;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::control::{self, ANSWER_WITHIN, ControlRequest, ControlResponse};
use super::hints::{shell_word, with_dir};
use crate::backend::RunPlan;
use crate::backend::local::LocalCluster;

/// Maximum time from the death of a supervisor to the end of its replicas. A replica needs this
/// time for a planned end (at most 2 s) and for closing its storage.
const ORPHANS_END_WITHIN: Duration = Duration::from_secs(4);

/// Address at which the clients of a site connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientPort {
    /// Name of the site and of its replica.
    pub site: String,
    /// Address of the replica's port for clients.
    pub address: SocketAddr,
}

/// Description of a running cluster, as stored in `state.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterState {
    /// The cluster's name.
    pub cluster: String,
    /// Strategy with which the cluster was started.
    pub strategy: String,
    /// Site that is configured as the leader.
    pub leader: String,
    /// Addresses for clients, in the topology's order.
    pub clients: Vec<ClientPort>,
    /// Path of the certificate of the cluster's authority; `None` if replicas use no TLS.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Address at which the supervisor accepts requests.
    pub control: SocketAddr,
    /// Token that a client must send with each request to the supervisor.
    pub token: String,
}

impl ClusterState {
    /// Creates the description of a cluster with a supervisor that listens at `control`.
    pub(super) fn of(
        cluster: &LocalCluster,
        plan: &RunPlan<'_>,
        control: SocketAddr,
    ) -> ClusterState {
        let names = plan.topology().names();
        let ports = names.iter().zip(cluster.client_addresses());
        let port = |(site, address): (&&str, &SocketAddr)| ClientPort {
            site: site.to_string(),
            address: *address,
        };
        let token = std::collections::hash_map::RandomState::new();
        let token = std::hash::BuildHasher::hash_one(&token, std::process::id());
        ClusterState {
            cluster: cluster.name().to_string(),
            strategy: plan.strategy.strategy.clone(),
            leader: plan.experiment.leader.clone(),
            clients: ports.map(port).collect(),
            ca: cluster.client_access().ca().map(Path::to_owned),
            control,
            token: format!("{token:016x}"),
        }
    }

    /// Returns the options of a client that connects to these addresses.
    ///
    /// # Errors
    /// If the certificate of the cluster's authority cannot be read.
    pub fn options(
        &self,
        addresses: impl IntoIterator<Item = impl ToString>,
    ) -> anyhow::Result<ClientOptions> {
        let addresses = addresses.into_iter().map(|address| address.to_string());
        let mut options = ClientOptions::nearest_first(addresses);
        options.cluster = Some(self.cluster.clone());
        options.trust = self.ca.as_deref().map(Trust::load).transpose()?;
        Ok(options)
    }

    /// Returns the path of the file `state.json` of the cluster in `dir`.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("state.json")
    }

    /// Loads the description of the cluster in `dir`.
    ///
    /// # Errors
    /// If no cluster is up in `dir`, or the cluster belongs to another user.
    pub fn load(dir: &Path) -> anyhow::Result<ClusterState> {
        let path = ClusterState::path(dir);
        let text = std::fs::read_to_string(&path).map_err(|error| read_error(error, dir, &path))?;
        serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is damaged, so the supervisor cannot be reached: end the process `leasehold \
                 cluster run` with `--dir {}`, if it still runs (`pgrep -af 'cluster run'` lists \
                 such), and its replicas end with it; then remove that file",
                path.display(),
                dir.display()
            )
        })
    }

    /// Replaces the file `state.json` in one step, so that no process sees an incomplete file. Only
    /// the owner can read the file, because it contains the token.
    pub(super) fn save(&self, dir: &Path) -> anyhow::Result<()> {
        let (path, new) = (ClusterState::path(dir), dir.join("state.json.new"));
        let write = || {
            let _ = std::fs::remove_file(&new);
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&new)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            std::fs::rename(&new, &path)
        };
        write().with_context(|| format!("writing {}", path.display()))
    }

    /// Removes the file `state.json`. It is no error if another command has already removed the
    /// file.
    pub(super) fn remove(dir: &Path) -> io::Result<()> {
        match std::fs::remove_file(ClusterState::path(dir)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns true if the supervisor still answers. An open port is not sufficient evidence,
    /// because the port may now belong to another program.
    pub fn is_alive(&self) -> bool {
        self.request(ControlRequest::Here, ANSWER_WITHIN).is_ok()
    }

    pub(super) fn request(
        &self,
        request: ControlRequest,
        within: Duration,
    ) -> io::Result<ControlResponse> {
        control::ask(self.control, &self.token, request, within)
    }

    /// Waits until the replicas of a dead supervisor have ended, but at most for
    /// [`ORPHANS_END_WITHIN`]. Returns the ports at which replicas still run. A user has started
    /// these replicas by hand.
    pub(super) fn orphans(&self) -> Vec<ClientPort> {
        let deadline = Instant::now() + ORPHANS_END_WITHIN;
        loop {
            let open = self.still_open();
            if open.is_empty() || Instant::now() >= deadline {
                return open;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the ports for clients that a program still uses. A replica that is starting has bound
    /// its port, and does not accept connections yet.
    pub(super) fn still_open(&self) -> Vec<ClientPort> {
        let open = |port: &&ClientPort| {
            let bound = TcpListener::bind(port.address);
            bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
        };
        self.clients.iter().filter(open).cloned().collect()
    }
}

fn read_error(error: io::Error, dir: &Path, path: &Path) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!(
            "no cluster is up in {}; start one with `leasehold cluster up --dir {}`",
            dir.display(),
            shell_word(dir)
        ),
        io::ErrorKind::PermissionDenied => anyhow::anyhow!(
            "the cluster in {} is another user's, who alone may control it: connect to its \
             replicas with --address HOST:PORT, or start one of your own with --dir DIR ({}: \
             {error})",
            dir.display(),
            path.display()
        ),
        _ => anyhow::Error::new(error).context(format!("reading {}", path.display())),
    }
}

/// Lock on a directory. The process that starts or runs the cluster of this directory holds the
/// lock.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock is held while the file is open")] File);

impl Lock {
    /// Takes the lock on the directory `dir`.
    ///
    /// # Errors
    /// If another process has the lock; the error names that process.
    pub fn take(dir: &Path) -> anyhow::Result<Lock> {
        let path = dir.join("lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).with_context(|| {
            format!(
                "opening {}; is the directory another user's?",
                path.display()
            )
        })?;
        if !is_locked(&file) {
            let mut holder = String::new();
            let _ = (&file).read_to_string(&mut holder);
            bail!(
                "a cluster is being started or ended in {} (by process {}): wait until that is \
                 done, then see {}",
                dir.display(),
                holder.trim(),
                with_dir("`leasehold cluster status`", dir)
            );
        }
        let written = file
            .set_len(0)
            .and_then(|()| writeln!(&file, "{}", std::process::id()));
        written.with_context(|| format!("writing {}", path.display()))?;
        Ok(Lock(file))
    }

    /// Takes the lock that prevents other runs in `dir`. The lock applies to `dir` itself, so no
    /// lock file is created.
    ///
    /// # Errors
    /// If another run has the lock.
    pub fn take_for_run(dir: &Path) -> anyhow::Result<Lock> {
        let file = File::open(dir).with_context(|| format!("opening {}", dir.display()))?;
        if !is_locked(&file) {
            bail!(
                "another run is at work in {}: wait until it has ended, or name another directory",
                dir.display()
            );
        }
        Ok(Lock(file))
    }
}

/// Tries to lock the file, and returns true on success. Tries several times, because another
/// command may hold the lock for a moment to test it.
fn is_locked(file: &File) -> bool {
    (0..10).any(|attempt| {
        if attempt > 0 {
            std::thread::sleep(Duration::from_millis(30));
        }
        flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_supervisor() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path()).unwrap();
        let error = Lock::take(dir.path()).unwrap_err().to_string();
        let itself = format!("by process {}", std::process::id());
        assert!(error.contains(&itself), "{error}");
        drop(first);
        Lock::take(dir.path()).unwrap();
    }

    #[test]
    fn another_users_cluster_is_told_from_none() {
        let dir = Path::new("c");
        let told = |kind: io::ErrorKind| {
            read_error(kind.into(), dir, &ClusterState::path(dir)).to_string()
        };
        assert!(told(io::ErrorKind::NotFound).contains("no cluster is up in c"));
        let other = told(io::ErrorKind::PermissionDenied);
        assert!(
            other.contains("another user's") && other.contains("--address"),
            "{other}"
        );
    }

    #[test]
    fn the_token_is_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let state = ClusterState {
            cluster: "c".to_owned(),
            strategy: "quorum".to_owned(),
            leader: "CA".to_owned(),
            clients: Vec::new(),
            ca: None,
            control: ([127, 0, 0, 1], 1).into(),
            token: "secret".to_owned(),
        };
        state.save(dir.path()).unwrap();
        let mode = std::fs::metadata(ClusterState::path(dir.path()))
            .unwrap()
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        assert_eq!(ClusterState::load(dir.path()).unwrap().token, "secret");
    }
}
