//! A geo cluster that stays up, for `kv` and `ycsb`: a supervisor process holds
//! the WAN and the replicas, and takes them down when asked.
//!
//! The supervisor leaves `state.json` in the cluster's directory: where clients
//! connect, and where and with which token it can be asked to stop. Asking it is
//! safer than a process id, which may be another's by now.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::backend::Plan;
use crate::backend::local::{LocalCluster, LocalSettings};
use crate::experiment::Experiment;

/// What a running cluster tells about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The cluster's name.
    pub cluster: String,
    /// The strategy it was started with.
    pub strategy: String,
    /// Who should lead.
    pub leader: String,
    /// Where clients of each site connect.
    pub clients: BTreeMap<String, SocketAddr>,
    /// Where the supervisor listens.
    pub control: SocketAddr,
    /// What it must be told to stop.
    pub token: String,
}

impl State {
    fn path(dir: &Path) -> PathBuf {
        dir.join("state.json")
    }

    /// Of the cluster in `dir`.
    ///
    /// # Errors
    /// If none is up there.
    pub fn load(dir: &Path) -> anyhow::Result<State> {
        let path = State::path(dir);
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!(
                "no cluster is up in {} ({} cannot be read); start one with `leasehold cluster up`",
                dir.display(),
                path.display()
            )
        })?;
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    /// Whether its supervisor still answers.
    pub fn alive(&self) -> bool {
        TcpStream::connect_timeout(&self.control, Duration::from_secs(2)).is_ok()
    }
}

/// What a standing cluster is set up as, before any change of the operator's.
///
/// # Errors
/// Never, as long as the file it is built from is valid.
pub fn experiment() -> anyhow::Result<Experiment> {
    Ok(Experiment::parse(
        "cluster",
        include_str!("experiments/cluster.toml"),
    )?)
}

/// Starts the cluster of an experiment's first strategy and holds it until it is
/// asked to stop, or `interrupted` completes.
///
/// # Errors
/// If one is up in the directory already, or it cannot be started.
pub async fn supervise(
    experiment: &Experiment,
    program: PathBuf,
    dir: &Path,
    client_port: Option<u16>,
    interrupted: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    if State::load(dir).is_ok_and(|state| state.alive()) {
        bail!(
            "a cluster is up in {} already; `leasehold cluster down` ends it",
            dir.display()
        );
    }
    let strategy = experiment
        .strategies
        .first()
        .context("the experiment has no strategy")?;
    let plan = Plan {
        experiment,
        strategy,
    };
    let dir = std::path::absolute(dir).context("the cluster's directory")?;
    let settings = LocalSettings {
        program,
        cluster: "standing".to_string(),
        dir: dir.clone(),
        client_port,
    };
    let mut cluster = LocalCluster::start(&plan, &settings)?;
    let control = TcpListener::bind("127.0.0.1:0").context("binding the control port")?;
    cluster.ready(&plan).await?;
    let names = plan.topology().names();
    let clients = names.iter().zip(cluster.client_addresses());
    let token = std::collections::hash_map::RandomState::new();
    let token = std::hash::BuildHasher::hash_one(&token, std::process::id());
    let state = State {
        cluster: settings.cluster,
        strategy: strategy.strategy.clone(),
        leader: experiment.leader.clone(),
        clients: clients
            .map(|(name, address)| (name.to_string(), *address))
            .collect(),
        control: control.local_addr().context("the control port")?,
        token: format!("{token:016x}"),
    };
    let path = State::path(&dir);
    std::fs::write(&path, serde_json::to_vec_pretty(&state)?)
        .with_context(|| format!("writing {}", path.display()))?;
    let asked = tokio::task::spawn_blocking(move || wait_for_stop(&control, &state.token));
    let reply = tokio::select! {
        asked = asked => asked.ok().flatten(),
        () = interrupted => None,
    };
    cluster.stop();
    let _ = std::fs::remove_file(&path);
    if let Some(mut stream) = reply {
        let _ = stream.write_all(b"down");
    }
    Ok(())
}

/// Waits for somebody who knows the token; returns the connection to answer on.
fn wait_for_stop(control: &TcpListener, token: &str) -> Option<TcpStream> {
    loop {
        let (mut stream, _) = control.accept().ok()?;
        let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
        let mut told = vec![0; token.len()];
        if stream.read_exact(&mut told).is_ok() && told == token.as_bytes() {
            return Some(stream);
        }
    }
}

/// Ends the cluster in `dir` and waits until it has ended.
///
/// # Errors
/// If none is up there, or its supervisor does not answer.
pub fn stop(dir: &Path) -> anyhow::Result<()> {
    let state = State::load(dir)?;
    let connect = TcpStream::connect_timeout(&state.control, Duration::from_secs(2));
    let Ok(mut stream) = connect else {
        std::fs::remove_file(State::path(dir)).context("removing a stale state.json")?;
        bail!(
            "the cluster in {} was down already (its supervisor is gone)",
            dir.display()
        );
    };
    stream
        .write_all(state.token.as_bytes())
        .context("asking the supervisor to stop")?;
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .context("a timeout")?;
    let mut answer = [0; 4];
    stream
        .read_exact(&mut answer)
        .context("the supervisor did not confirm within 30 s")
}
