//! A geo cluster that stays up, for `kv` and `ycsb`: a supervisor process holds
//! the WAN and the replicas, and takes them down when asked.
//!
//! The supervisor leaves `state.json` in the cluster's directory: where clients
//! connect, and where and with which token it can be asked to stop. Asking it is
//! safer than a process id, which may be another's by now.

mod earlier;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::backend::Plan;
use crate::backend::local::{LocalCluster, LocalSettings};
use crate::experiment::Experiment;

/// What the supervisor is asked, behind the token, and what it answers.
const ARE_YOU_THERE: &[u8; 4] = b"here";
const GO_DOWN: &[u8; 4] = b"down";
/// How long a supervisor that runs may take to answer the first question. It does not
/// listen while it starts or stops replicas.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Replicas have a while to end by themselves.
const DOWN_WITHIN: Duration = Duration::from_secs(30);

/// Where the clients of a site connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientPort {
    /// The site's name, which is its replica's.
    pub site: String,
    /// Its replica's port for clients.
    pub address: SocketAddr,
}

/// What a running cluster tells about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The cluster's name.
    pub cluster: String,
    /// The strategy it was started with.
    pub strategy: String,
    /// Who should lead.
    pub leader: String,
    /// Where clients connect: the sites in the topology's order.
    pub clients: Vec<ClientPort>,
    /// Where the supervisor listens.
    pub control: SocketAddr,
    /// Whoever asks it for something must send this.
    pub token: String,
}

impl State {
    /// Of a cluster whose supervisor listens at `control`.
    fn of(cluster: &LocalCluster, plan: &Plan<'_>, control: SocketAddr) -> State {
        let names = plan.topology().names();
        let ports = names.iter().zip(cluster.client_addresses());
        let port = |(site, address): (&&str, &SocketAddr)| ClientPort {
            site: site.to_string(),
            address: *address,
        };
        let token = std::collections::hash_map::RandomState::new();
        let token = std::hash::BuildHasher::hash_one(&token, std::process::id());
        State {
            cluster: cluster.name().to_string(),
            strategy: plan.strategy.strategy.clone(),
            leader: plan.experiment.leader.clone(),
            clients: ports.map(port).collect(),
            control,
            token: format!("{token:016x}"),
        }
    }

    fn path(dir: &Path) -> PathBuf {
        dir.join("state.json")
    }

    /// Of the cluster in `dir`.
    ///
    /// # Errors
    /// If none is up there.
    pub fn load(dir: &Path) -> anyhow::Result<State> {
        let path = State::path(dir);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
                "no cluster is up in {0}; start one with `leasehold cluster up --dir {0}`",
                dir.display()
            ),
            read => read.with_context(|| format!("reading {}", path.display()))?,
        };
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

    /// Replaces the file at once: a reader finds all of it, the old one, or none.
    fn save(&self, dir: &Path) -> anyhow::Result<()> {
        let (path, new) = (State::path(dir), dir.join("state.json.new"));
        std::fs::write(&new, serde_json::to_vec_pretty(self)?)
            .and_then(|()| std::fs::rename(&new, &path))
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Whether its supervisor still answers. An open port alone would prove nothing:
    /// another program may have it by now.
    pub fn alive(&self) -> bool {
        self.ask(ARE_YOU_THERE, ANSWER_WITHIN).is_ok()
    }

    fn ask(&self, what: &[u8; 4], within: Duration) -> io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&self.control, ANSWER_WITHIN)?;
        stream.set_read_timeout(Some(within))?;
        stream.write_all(self.token.as_bytes())?;
        stream.write_all(what)?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        match answer == *what {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The settings of a standing cluster, before the operator changes any.
///
/// # Errors
/// Never, as long as the file it is built from is valid.
pub fn experiment() -> anyhow::Result<Experiment> {
    Ok(Experiment::parse(
        "cluster",
        include_str!("experiments/cluster.toml"),
    )?)
}

/// Refuses a directory in which a cluster is up.
///
/// # Errors
/// If one is, or its `state.json` is damaged, so that nobody knows.
pub fn not_up(dir: &Path) -> anyhow::Result<()> {
    if State::path(dir).exists() && State::load(dir)?.alive() {
        bail!(
            "a cluster is up in {} already; `leasehold cluster down` ends it",
            dir.display()
        );
    }
    Ok(())
}

/// Starts the cluster of an experiment's first strategy and holds it until it is
/// asked to stop, or `interrupted` completes.
///
/// # Errors
/// If one is up in the directory already, its data is of another cluster than
/// asked for, or it cannot be started.
pub async fn supervise(
    experiment: &Experiment,
    program: PathBuf,
    dir: &Path,
    client_port: Option<u16>,
    interrupted: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    not_up(dir)?;
    let [strategy] = experiment.strategies.as_slice() else {
        let labels: Vec<&str> = experiment.strategies.iter().map(|s| &*s.label).collect();
        bail!("strategy: {}; name one", labels.join(", "));
    };
    let plan = Plan {
        experiment,
        strategy,
    };
    earlier::check(&plan, dir)?;
    let dir = std::path::absolute(dir).context("the cluster's directory")?;
    // A supervisor that was killed has left its file behind.
    let _ = std::fs::remove_file(State::path(&dir));
    let settings = LocalSettings {
        program,
        cluster: "standing".to_string(),
        dir,
        client_port,
    };
    let mut cluster = LocalCluster::start(&plan, &settings)?;
    cluster.ready(&plan).await?;
    hold(cluster, &plan, &settings.dir, interrupted).await
}

/// Keeps a cluster that is ready until its end is asked for, and ends it.
async fn hold(
    mut cluster: LocalCluster,
    plan: &Plan<'_>,
    dir: &Path,
    interrupted: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let control = TcpListener::bind("127.0.0.1:0");
    let control = control.await.context("binding the control port")?;
    let address = control.local_addr().context("the control port")?;
    let state = State::of(&cluster, plan, address);
    state.save(dir)?;
    let reply = tokio::select! {
        asked = wait_for_stop(&control, &state.token) => Some(asked),
        () = interrupted => None,
    };
    cluster.stop();
    let _ = std::fs::remove_file(State::path(dir));
    if let Some(mut stream) = reply {
        let _ = stream.write_all(GO_DOWN).await;
    }
    Ok(())
}

/// Waits until somebody who knows the token asks for the end; returns the
/// connection to answer on.
async fn wait_for_stop(control: &TcpListener, token: &str) -> tokio::net::TcpStream {
    loop {
        let heard = async {
            let (mut stream, _) = control.accept().await?;
            let asked = tokio::time::timeout(ANSWER_WITHIN, hear(&mut stream, token));
            io::Result::Ok((asked.await??, stream))
        };
        match heard.await {
            Ok((GO_DOWN, stream)) => return stream,
            Ok((asked, mut stream)) => {
                let _ = stream.write_all(asked).await;
            }
            // Who does not know the token gets no answer. The pause keeps this loop slow when
            // no connection can be accepted.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn hear(stream: &mut tokio::net::TcpStream, token: &str) -> io::Result<&'static [u8; 4]> {
    let mut told = vec![0; token.len() + ARE_YOU_THERE.len()];
    stream.read_exact(&mut told).await?;
    let known = [ARE_YOU_THERE, GO_DOWN].into_iter();
    let mut asked = known.filter(|word| told == [token.as_bytes(), &word[..]].concat());
    asked.next().ok_or(io::ErrorKind::InvalidData.into())
}

/// Ends the cluster in `dir` and waits until it has ended.
///
/// # Errors
/// If none is up there, or its supervisor does not answer.
pub fn stop(dir: &Path) -> anyhow::Result<()> {
    let state = State::load(dir)?;
    if !state.alive() {
        std::fs::remove_file(State::path(dir)).context("removing a stale state.json")?;
        bail!(
            "the cluster in {} was down already: its supervisor is gone, and its replicas with it",
            dir.display()
        );
    }
    let asked = state.ask(GO_DOWN, DOWN_WITHIN);
    asked.with_context(|| {
        format!(
            "the supervisor did not confirm within {} s; its log is {}",
            DOWN_WITHIN.as_secs(),
            dir.join("supervisor.log").display()
        )
    })
}
