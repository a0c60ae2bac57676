//! Clusters of replica processes on loopback, all at one site. The processes end when the cluster
//! is dropped. They also end when this program ends, because their standard input is closed at that
//! moment.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use leasehold_client::{Client, ClientOptions};
use leasehold_transport::tls::Trust;
use leasehold_wire::{StatusReply, StatusRequest};
use tempfile::TempDir;

/// Name of the cluster. It is an unusual word, so that a search for this name finds no other text.
pub const CLUSTER: &str = "quillwort";
pub const NAMES: [&str; 5] = ["alder", "birch", "cedar", "dogwood", "elm"];
/// Index of the replica that leads.
pub const LEADER: usize = 0;
/// Longest time to wait until a cluster is ready.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Range of ports that operating systems do not use for outgoing connections.
const PORTS: std::ops::Range<u16> = 12_000..20_000;
/// Numeric id of a user and of a group that have no privileges.
const NOBODY: &str = "65534";

/// Settings that differ between the clusters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Strategy that chooses the replicas that may read locally.
    pub strategy: &'static str,
    /// Maximum number of files that a replica may open.
    pub files: Option<u32>,
    /// Whether replicas run without privileges, so that the permissions of a directory also
    /// restrict the replicas.
    pub unprivileged: bool,
    /// Whether the last replica is started later, by [`Cluster::start_one`].
    pub one_late: bool,
    /// Whether replicas prove their identity with certificates. This has no effect if the program
    /// does not support certificates.
    pub certified: bool,
}

impl Setting {
    pub const USUAL: Setting = Setting {
        strategy: "leader",
        files: None,
        unprivileged: false,
        one_late: false,
        certified: false,
    };
}

/// Settings that are the same for all clusters of a run.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub binary: PathBuf,
    pub replicas: usize,
    pub durability: String,
    pub keep: Option<PathBuf>,
}

pub struct Cluster {
    recipe: Recipe,
    setting: Setting,
    dir: PathBuf,
    _temporary: Option<TempDir>,
    children: Vec<Option<Child>>,
    pub clients: Vec<String>,
    pub peers: Vec<String>,
    /// Certificate of the cluster's authority; `None` if the replicas have no certificates.
    pub authority: Option<PathBuf>,
}

/// Returns the options with which a client connects to `address`.
pub fn options(address: &str, authority: Option<&Path>) -> anyhow::Result<ClientOptions> {
    let mut options = ClientOptions::new(address);
    options.trust = authority.map(Trust::load).transpose()?;
    Ok(options)
}

impl Cluster {
    /// Starts a cluster in a new directory. If the directory is kept after the run, `name` is the
    /// name of the directory.
    pub fn start(recipe: &Recipe, setting: Setting, name: &str) -> anyhow::Result<Cluster> {
        let (temporary, dir) = directory(recipe, name)?;
        let addresses = addresses(2 * recipe.replicas)?;
        let (clients, peers) = addresses.split_at(recipe.replicas);
        let mut this = Cluster {
            recipe: recipe.clone(),
            setting,
            dir,
            _temporary: temporary,
            children: (0..recipe.replicas).map(|_| None).collect(),
            clients: clients.to_vec(),
            peers: peers.to_vec(),
            authority: None,
        };
        std::fs::write(this.config(), this.configuration()?)?;
        if setting.certified {
            this.certify()?;
        }
        if setting.unprivileged {
            this.allow_unprivileged()?;
        }
        let late = usize::from(setting.one_late);
        for replica in 0..recipe.replicas - late {
            this.start_one(replica)?;
        }
        Ok(this)
    }

    /// Returns the directory of a replica's data.
    pub fn data(&self, replica: usize) -> PathBuf {
        self.dir.join("data").join(NAMES[replica])
    }

    fn config(&self) -> PathBuf {
        self.dir.join("cluster.toml")
    }

    fn configuration(&self) -> anyhow::Result<String> {
        let Setting { strategy, .. } = self.setting;
        let mut text = format!(
            "cluster = \"{CLUSTER}\"\nleader = \"{}\"\ndurability = \"{}\"\ndata = \"data\"\n\
             [lease]\nstrategy = \"{strategy}\"\n",
            NAMES[LEADER], self.recipe.durability
        );
        for (name, (client, peer)) in NAMES.iter().zip(self.clients.iter().zip(&self.peers)) {
            writeln!(
                text,
                "[[node]]\nname = \"{name}\"\nclient = \"{client}\"\npeer = \"{peer}\""
            )?;
        }
        Ok(text)
    }

    /// Creates certificates if the program supports them. Without certificates, any process can
    /// claim to be a replica. Returns an error if the program supports certificates but cannot
    /// create them.
    fn certify(&mut self) -> anyhow::Result<()> {
        if !self.makes_certificates()? {
            return Ok(());
        }
        let directory = self.dir.join("certificates");
        let mut cert = Command::new(&self.recipe.binary);
        let made = cert.arg("cert").arg(&directory).arg("--config");
        let made = made.arg(self.config()).stdin(Stdio::null()).output()?;
        anyhow::ensure!(
            made.status.success(),
            "leasehold cert: {}",
            String::from_utf8_lossy(&made.stderr).trim()
        );
        let mut config = File::options().append(true).open(self.config())?;
        config.write_all(b"[security]\ncertificates = \"certificates\"\n")?;
        self.authority = Some(directory.join("ca.pem"));
        Ok(())
    }

    /// Returns true if the help text of the program lists the command that creates certificates.
    fn makes_certificates(&self) -> anyhow::Result<bool> {
        let help = Command::new(&self.recipe.binary).arg("--help").output()?;
        anyhow::ensure!(help.status.success(), "leasehold --help fails");
        let help = String::from_utf8_lossy(&help.stdout);
        Ok(names_command(&help, "cert"))
    }

    /// Gives an unprivileged user access to the program and to the directory of the cluster.
    fn allow_unprivileged(&self) -> anyhow::Result<()> {
        std::fs::copy(&self.recipe.binary, self.program()).context("copying the program")?;
        std::fs::create_dir_all(self.dir.join("data"))?;
        if !is_root() {
            return Ok(());
        }
        let owner = format!("{NOBODY}:{NOBODY}");
        let status = Command::new("chown")
            .args(["-R", &owner])
            .arg(&self.dir)
            .status();
        match status {
            Ok(status) if status.success() => Ok(()),
            ended => bail!("chown to {owner}: {ended:?}"),
        }
    }

    fn program(&self) -> PathBuf {
        if self.setting.unprivileged {
            self.dir.join("leasehold")
        } else {
            self.recipe.binary.clone()
        }
    }

    /// Starts a replica. The replica must not be running: either it has not been started before, or
    /// it has ended.
    pub fn start_one(&mut self, replica: usize) -> anyhow::Result<()> {
        let log = self.dir.join(format!("{}.log", NAMES[replica]));
        let log = File::options().create(true).append(true).open(log)?;
        let mut words: Vec<String> = Vec::new();
        if self.setting.unprivileged && is_root() {
            let ids = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];
            words.push("setpriv".to_owned());
            words.extend(ids.map(str::to_owned));
        }
        if let Some(files) = self.setting.files {
            let line = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
            words.extend(["sh".to_owned(), "-c".to_owned(), line]);
        }
        words.push(self.program().display().to_string());
        words.extend(["serve", "--until-stdin-closes", "--config"].map(str::to_owned));
        words.push(self.config().display().to_string());
        words.extend(["--node", NAMES[replica]].map(str::to_owned));
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", words.join(" ")))?;
        self.children[replica] = Some(child);
        Ok(())
    }

    /// Kills all replicas and starts them again.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        (0..self.children.len()).try_for_each(|replica| self.start_one(replica))
    }

    /// Returns the id of each replica's process; `None` for a replica that is not running.
    pub fn processes(&self) -> Vec<Option<u32>> {
        self.children
            .iter()
            .map(|child| child.as_ref().map(Child::id))
            .collect()
    }

    /// Returns the exit status of a replica's process; `None` if the process is still running.
    pub fn ended(&mut self, replica: usize) -> Option<ExitStatus> {
        let child = self.children[replica].as_mut()?;
        child.try_wait().ok().flatten()
    }

    /// Returns the last log lines of the replicas that have ended.
    pub fn last_log_lines(&mut self) -> String {
        let mut words = String::new();
        for (replica, name) in NAMES.iter().enumerate().take(self.children.len()) {
            let Some(status) = self.ended(replica) else {
                continue;
            };
            let log = std::fs::read_to_string(self.dir.join(format!("{name}.log")));
            let log = log.unwrap_or_default();
            let last = log.lines().last().unwrap_or_default();
            let last: String = last.chars().take(300).collect();
            let _ = write!(words, "{name} ended ({status}): {last}. ");
        }
        words
    }

    /// Waits until each started replica executes a write and names the expected leader. Skips
    /// replicas that were killed or not started yet.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        for (replica, name) in NAMES.iter().enumerate().take(self.clients.len()) {
            if self.children[replica].is_none() {
                continue;
            }
            while !self.is_ready(replica).await {
                if Instant::now() > deadline || self.ended(replica).is_some() {
                    let words = self.last_log_lines();
                    bail!("{name} does not serve. {words}");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Ok(())
    }

    async fn is_ready(&self, replica: usize) -> bool {
        let Ok(client) = self.client(replica).await else {
            return false;
        };
        let written = client.put(format!("ready-{replica}"), "yes").await.is_ok();
        let status = client.raw().status(StatusRequest::default()).await;
        client.close();
        written && status.is_ok_and(|status| leads(&status))
    }

    /// Returns a client that connects to this replica and to no other.
    pub async fn client(&self, replica: usize) -> anyhow::Result<Client> {
        let mut options = options(&self.clients[replica], self.authority.as_deref())?;
        options.request_timeout = Duration::from_secs(3);
        options.connect_timeout = Duration::from_secs(3);
        Ok(Client::connect(options).await?)
    }

    /// Kills all replicas.
    pub fn kill(&mut self) {
        for mut child in self.children.iter_mut().filter_map(Option::take) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn leads(status: &StatusReply) -> bool {
    status.leader == NAMES[LEADER]
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
        if self.setting.unprivileged && self.recipe.keep.is_none() {
            // A process without the permission to write in the directory cannot empty it either.
            for replica in 0..self.children.len() {
                let _ = set_mode(&self.data(replica), 0o755);
            }
        }
    }
}

/// Changes the permissions of a directory.
pub fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn directory(recipe: &Recipe, name: &str) -> anyhow::Result<(Option<TempDir>, PathBuf)> {
    if let Some(keep) = &recipe.keep {
        let dir = std::path::absolute(keep.join(name))?;
        if dir.exists() {
            std::fs::remove_dir_all(&dir).context("emptying a directory of --keep")?;
        }
        std::fs::create_dir_all(&dir).context("--keep")?;
        return Ok((None, dir));
    }
    let temporary = tempfile::tempdir().context("making a temporary directory")?;
    let dir = temporary.path().to_owned();
    set_mode(&dir, 0o755)?;
    Ok((Some(temporary), dir))
}

/// Returns true if a help text lists a command, that is, if a line begins with the command.
fn names_command(help: &str, command: &str) -> bool {
    let mut first = help.lines().map(|line| line.split_whitespace().next());
    first.any(|word| word == Some(command))
}

/// Returns free ports on loopback, as addresses.
pub fn addresses(count: usize) -> anyhow::Result<Vec<String>> {
    let port_count = PORTS.len() as u32;
    let begin = std::process::id().wrapping_mul(61) % port_count;
    let ports = (0..port_count).map(|i| PORTS.start + ((begin + i) % port_count) as u16);
    // The ports stay bound until all are chosen, so that none is chosen twice.
    let bound: Vec<TcpListener> = ports
        .filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok())
        .take(count)
        .collect();
    if bound.len() < count {
        bail!("{count} free ports were needed on 127.0.0.1 in {PORTS:?}: end what uses them");
    }
    bound
        .iter()
        .map(|listener| Ok(listener.local_addr()?.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_known_by_its_line() {
        let help =
            "Runs things\n\nCommands:\n  serve  Runs a replica\n  cert   Makes certificates\n";
        assert!(names_command(help, "cert"));
        assert!(!names_command(help, "certificates"));
        assert!(!names_command("  serve  Runs without cert\n", "cert"));
    }
}
