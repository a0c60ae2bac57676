//! Standing cluster: a cluster of all sites that stays up, so that `kv` and `ycsb` can use it. A
//! supervisor process runs the WAN and the replicas. It restarts replicas that died, carries out
//! requests such as faults, and finally ends the replicas.
//!
//! The supervisor writes `state.json` into the cluster's directory. This file contains the
//! addresses for clients, and also the address and the token for requests to the supervisor.
//! Commands send requests and not signals, because after the supervisor's death another process may
//! have the same process ID. A plain `serve` has no port for such requests.

mod control;
mod data_check;
mod hints;
mod restarts;
mod state;
mod supervisor;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::backend::RunPlan;
use crate::backend::local::{LocalCluster, LocalSettings};
use crate::experiment::Experiment;

pub use control::{ControlRequest, ControlResponse, FaultReport, NodeReport, Overview};
pub use hints::{DEFAULT_DIR, shell_word, with_dir};
pub use state::{ClientPort, ClusterState, Lock};

use supervisor::Supervisor;

/// Timeout for a request to end a cluster. The replicas have this time to end by themselves.
const DOWN_WITHIN: Duration = Duration::from_secs(30);
/// Timeout for a request to the supervisor. Replicas may need a part of this time to report their
/// roles.
const DONE_WITHIN: Duration = Duration::from_secs(20);

/// Returns the default settings of a standing cluster.
///
/// # Errors
/// If the file that is built into this program is invalid.
pub fn experiment() -> anyhow::Result<Experiment> {
    Ok(Experiment::parse(
        "cluster",
        include_str!("experiments/cluster.toml"),
    )?)
}

/// Checks that no cluster is up in a directory.
///
/// # Errors
/// If a cluster is up, or if a damaged `state.json` does not show whether a cluster is up.
pub fn ensure_down(dir: &Path) -> anyhow::Result<()> {
    if ClusterState::path(dir).exists() && ClusterState::load(dir)?.is_alive() {
        let hint = with_dir("`leasehold cluster down` ends it", dir);
        bail!("a cluster is up in {} already; {hint}", dir.display());
    }
    Ok(())
}

/// Settings of a supervisor. The experiment, which describes the cluster, is separate.
#[derive(Clone, Debug)]
pub struct SupervisorSettings {
    /// Path of the program for replicas. The program is started with `serve`.
    pub program: PathBuf,
    /// The cluster's directory.
    pub dir: PathBuf,
    /// First of the consecutive ports at which replicas accept clients; `None` if any free ports
    /// may be used.
    pub client_port: Option<u16>,
    /// Whether a replica is started again after its death.
    pub restart: bool,
    /// Whether the cluster works without TLS. If true, no process proves its identity, and nothing
    /// is encrypted.
    pub insecure: bool,
}

/// Starts a cluster and runs it. Ends the cluster when a request asks for it, or when `interrupted`
/// completes. The experiment must have exactly one strategy, which becomes the strategy of the
/// cluster.
///
/// # Errors
/// If a cluster is up in the directory already, if the data belongs to a cluster with other
/// settings, or if no majority of the replicas can be started.
pub async fn supervise(
    experiment: &Experiment,
    options: &SupervisorSettings,
    interrupted: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let dir = &options.dir;
    ensure_down(dir)?;
    let [strategy] = experiment.strategies.as_slice() else {
        let labels: Vec<&str> = experiment.strategies.iter().map(|s| &*s.label).collect();
        bail!("strategy: {}; name one", labels.join(", "));
    };
    let plan = RunPlan::new(experiment, strategy);
    let data = data_check::check(&plan, dir)?;
    let dir = std::path::absolute(dir).context("the cluster's directory")?;
    std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let _lock = Lock::take(&dir)?;
    // The state file of a supervisor that was killed may still exist. Its replicas end by
    // themselves, and are waited for here.
    if let Ok(earlier) = ClusterState::load(&dir) {
        earlier.orphans();
    }
    ClusterState::remove(&dir).context("removing a stale state.json")?;
    let settings = LocalSettings {
        program: options.program.clone(),
        cluster: "standing".to_string(),
        dir,
        client_port: options.client_port,
        insecure: options.insecure,
    };
    let mut cluster = LocalCluster::start(&plan, &settings)?;
    cluster.ready_with_majority(&plan, data).await?;
    let supervisor = Supervisor::new(cluster, &plan, options.restart);
    hold(supervisor, &plan, &settings.dir, interrupted).await
}

/// Runs a ready cluster until a request asks to end it, or until `interrupted` completes. Then ends
/// the replicas of the cluster.
async fn hold(
    mut supervisor: Supervisor<'_>,
    plan: &RunPlan<'_>,
    dir: &Path,
    interrupted: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let control = TcpListener::bind("127.0.0.1:0");
    let control = control.await.context("binding the control port")?;
    let address = control.local_addr().context("the control port")?;
    let state = ClusterState::of(supervisor.cluster(), plan, address);
    state.save(dir)?;
    let (requests, incoming) = mpsc::channel(16);
    let listening = tokio::spawn(control::listen(control, state.token, requests));
    let reply = tokio::select! {
        reply = supervisor.run(incoming) => reply,
        () = interrupted => None,
    };
    listening.abort();
    supervisor.end();
    let _ = ClusterState::remove(dir);
    if let Some(reply) = reply {
        reply.send(&ControlResponse::Done(Vec::new())).await;
    }
    Ok(())
}

/// Sends a request to the supervisor of the cluster in `dir`, and returns the response. The commands
/// in its texts are completed here: the supervisor does not know how the user names the directory.
///
/// # Errors
/// If no cluster is up in `dir`, or the supervisor refuses the request.
pub fn ask(dir: &Path, request: ControlRequest) -> anyhow::Result<ControlResponse> {
    let state = ClusterState::load(dir)?;
    if !state.is_alive() {
        check_gone(dir)?;
        bail!("{}", gone_message(dir));
    }
    let response = state.request(request, DONE_WITHIN).with_context(|| {
        format!(
            "the supervisor did not answer within {} s; its log is {}",
            DONE_WITHIN.as_secs(),
            dir.join("supervisor.log").display()
        )
    })?;
    let complete = |text: String| with_dir(&text, dir);
    match response {
        ControlResponse::Refused(why) => bail!("{}", complete(why)),
        ControlResponse::Done(lines) => {
            let lines = lines.into_iter().map(complete);
            Ok(ControlResponse::Done(lines.collect()))
        }
        ControlResponse::Status(mut overview) => {
            for node in &mut overview.nodes {
                node.why = node.why.take().map(complete);
            }
            Ok(ControlResponse::Status(overview))
        }
    }
}

/// Checks that a supervisor has ended. The caller has received no answer from this supervisor. The
/// check takes the lock of the directory, because this fails if the supervisor is still running.
fn check_gone(dir: &Path) -> anyhow::Result<()> {
    drop(Lock::take(dir).with_context(|| {
        format!(
            "the supervisor of the cluster in {} does not answer; it may stand still, or the machine \
             may be too busy: try again, or end its process, and its replicas end with it",
            dir.display()
        )
    })?);
    Ok(())
}

fn gone_message(dir: &Path) -> String {
    format!(
        "the cluster in {0} is no longer up: its supervisor is gone, and its replicas with it; \
         `leasehold cluster up --dir {1}` starts it again with its data",
        dir.display(),
        shell_word(dir)
    )
}

/// Ends the cluster in `dir` and waits until it has ended. Returns the ports at which replicas
/// still answer. A user has started these replicas by hand.
///
/// # Errors
/// If no cluster is up in `dir`, or its supervisor does not answer.
pub fn stop(dir: &Path) -> anyhow::Result<Vec<ClientPort>> {
    let state = ClusterState::load(dir)?;
    if !state.is_alive() {
        check_gone(dir)?;
        let left = state.orphans();
        ClusterState::remove(dir).context("removing a stale state.json")?;
        bail!(
            "the cluster in {} was down already: its supervisor is gone, and its replicas with it{}",
            dir.display(),
            orphans_message(&left)
        );
    }
    let confirmation = state.request(ControlRequest::Down, DOWN_WITHIN);
    confirmation.with_context(|| {
        format!(
            "the supervisor did not confirm within {} s; its log is {}",
            DOWN_WITHIN.as_secs(),
            dir.join("supervisor.log").display()
        )
    })?;
    Ok(state.still_open())
}

/// Returns a message about replicas that still run although their cluster has ended. The message is
/// empty if there are no such replicas.
pub fn orphans_message(left: &[ClientPort]) -> String {
    if left.is_empty() {
        return String::new();
    }
    let one = |port: &ClientPort| format!("{} at {}", port.site, port.address);
    let all: Vec<String> = left.iter().map(one).collect();
    format!(
        "; somebody still answers for {}: a replica that was started by hand (`leasehold serve`) \
         is not this cluster's to end; end it where it runs",
        all.join(", ")
    )
}
