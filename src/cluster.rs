//! `leasehold cluster`.

mod limits;
pub mod status;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use leasehold_geo_deploy::fault::{FaultAction, FaultSpec, FaultTarget};
use leasehold_geo_deploy::standing::{
    self, ClusterState, ControlRequest, ControlResponse, DEFAULT_DIR, Lock, SupervisorSettings,
    shell_word,
};
use tokio::time::{sleep, timeout};

use crate::connector::ClientCredentials;
use crate::terminal::{Interrupted, interrupted, log, note, runtime, say};

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Starts a cluster: a replica process for every site, behind an emulated WAN
    Up(UpArgs),
    /// Shows what each replica does and since when, who leads, and who may read what
    Status(StatusArgs),
    /// Starts replicas that are down
    Start(NodesArgs),
    /// Asks replicas to end, and to give their leases back first
    Stop(TimedArgs),
    /// Ends replicas at once, as `kill -9` does
    Kill(TimedArgs),
    /// Asks replicas to end, and starts them again
    Restart(NodesArgs),
    /// Makes replicas stand still, as SIGSTOP does
    Pause(TimedArgs),
    /// Lets paused replicas go on
    Resume(NodesArgs),
    /// Ends the cluster; its data stays
    Down(ClusterDirArgs),
    /// Holds the cluster in the foreground (what `up` starts in the background)
    Run(UpArgs),
}

#[derive(Args)]
pub struct ClusterDirArgs {
    /// The cluster's directory: configuration, data, logs
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub dir: PathBuf,
}

/// Arguments that select the parts of a cluster's state to show.
#[derive(Args)]
pub struct StatusArgs {
    #[command(flatten)]
    at: ClusterDirArgs,
    /// Also shows the limits of clients, what is taken of them, how often they have acted, how long
    /// rounds of the replica took, and what was refused: to peers, in handshakes, and for want of a
    /// token or a right
    #[arg(long)]
    limits: bool,
    /// Shows the limits of the replicas at these client addresses instead, whoever started them
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        conflicts_with = "dir",
        requires = "limits"
    )]
    address: Vec<String>,
    #[command(flatten)]
    credentials: ClientCredentials,
}

/// Nodes on which a command acts.
#[derive(Args)]
pub struct NodesArgs {
    /// Sites, or who has a role now: leader, holder (of the hottest key, not the leader), nearest
    /// (to the leader), random, all
    #[arg(required = true, value_name = "NODE")]
    pub nodes: Vec<String>,
    #[command(flatten)]
    pub at: ClusterDirArgs,
}

/// Nodes on which a command acts, and the time after which the effect of the command is undone.
#[derive(Args)]
pub struct TimedArgs {
    #[command(flatten)]
    pub whom: NodesArgs,
    /// Undo it after so many seconds. The cluster does so, also if this command has ended
    #[arg(long = "for", value_name = "SECONDS", value_parser = finite, allow_negative_numbers = true)]
    pub seconds: Option<f64>,
    /// `holder` is one of this key's, and not of the hottest key's
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
}

/// Parses a number, and refuses infinity and NaN, which JSON cannot represent.
pub fn finite(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| "a finite number is needed".to_owned())
}

impl NodesArgs {
    pub fn targets(&self) -> Vec<FaultTarget> {
        self.nodes
            .iter()
            .map(|name| FaultTarget::named(name))
            .collect()
    }
}

impl TimedArgs {
    /// Asks the cluster's supervisor to begin a fault. The supervisor ends the fault after the time
    /// that the arguments give.
    pub fn begin(&self, fault: FaultSpec) -> anyhow::Result<()> {
        let fault = FaultSpec {
            until_s: self.seconds,
            ..fault
        };
        let key = self.key.clone();
        request_and_print(&self.whom.at.dir, ControlRequest::Begin { fault, key })
    }

    fn act(&self, action: FaultAction) -> anyhow::Result<()> {
        self.begin(FaultSpec::now(action, self.whom.targets()))
    }
}

/// Sends a request to the supervisor of the cluster in `dir`, and prints the answer.
pub fn request_and_print(dir: &Path, request: ControlRequest) -> anyhow::Result<()> {
    if let ControlResponse::Done(lines) = standing::ask(dir, request)? {
        for line in lines {
            say!("{line}");
        }
    }
    Ok(())
}

/// Strategies that need no settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Strategy {
    /// Nobody
    None,
    /// The leader
    Leader,
    /// Every replica
    All,
    /// Per key, a majority: who reads it most
    Quorum,
    /// Per key, whoever makes its operations wait least
    Cost,
}

impl Strategy {
    fn name(self) -> &'static str {
        match self {
            Strategy::None => "none",
            Strategy::Leader => "leader",
            Strategy::All => "all",
            Strategy::Quorum => "quorum",
            Strategy::Cost => "cost",
        }
    }
}

#[derive(Args)]
pub struct UpArgs {
    #[command(flatten)]
    at: ClusterDirArgs,
    /// Who may read locally. It is part of the cluster's data once there is some: `lease set`
    /// changes it then
    #[arg(long, value_enum, default_value = "quorum")]
    strategy: Strategy,
    /// Clients of the first site connect to this port, of the second to the next, ...
    #[arg(long, value_name = "PORT", default_value_t = 7001, value_parser = clap::value_parser!(u16).range(1..))]
    client_port: u16,
    /// Changes a field, as `exp run` does: leader=CA, topology=FILE, lease.t_lease_ms=2000, ... The
    /// sites and the lease's durations are part of the cluster's data, too
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Leave a replica down that died. Otherwise it starts again: after 1 s, then 2 s, 4 s and 8 s if
    /// it keeps dying, and then no more. One that was killed or stopped by a command stays down
    #[arg(long)]
    no_restart: bool,
    /// Replicas prove nothing and encrypt nothing. Otherwise they have certificates, in DIR/certificates, and
    /// clients need that directory's ca.pem: `kv` and others with --dir find it, `ycsb` takes --ca
    #[arg(long)]
    insecure: bool,
}

pub fn run(command: &ClusterCommand) -> anyhow::Result<()> {
    match command {
        ClusterCommand::Up(args) => up(args),
        ClusterCommand::Status(args) => match &args.address[..] {
            [] => status::show(&args.at.dir, args.limits),
            addresses => status::show_limits(addresses, &args.credentials),
        },
        ClusterCommand::Start(args) => {
            request_and_print(&args.at.dir, ControlRequest::Start(args.targets()))
        }
        ClusterCommand::Resume(args) => {
            request_and_print(&args.at.dir, ControlRequest::Resume(args.targets()))
        }
        ClusterCommand::Restart(args) => {
            let fault = FaultSpec::now(FaultAction::Restart, args.targets());
            request_and_print(&args.at.dir, ControlRequest::Begin { fault, key: None })
        }
        ClusterCommand::Stop(args) => args.act(FaultAction::Stop),
        ClusterCommand::Kill(args) => args.act(FaultAction::Kill),
        ClusterCommand::Pause(args) => args.act(FaultAction::Pause),
        ClusterCommand::Down(at) => {
            let left = standing::stop(&at.dir)?;
            let left = standing::orphans_message(&left);
            say!("The cluster in {} is down{left}.", at.dir.display());
            Ok(())
        }
        ClusterCommand::Run(args) => run_in_foreground(args),
    }
}

fn run_in_foreground(args: &UpArgs) -> anyhow::Result<()> {
    let _log = log();
    let mut sets = vec![format!("strategies={}", args.strategy.name())];
    sets.extend(args.sets.iter().cloned());
    let experiment = standing::experiment()?.with(&sets)?;
    let standing = SupervisorSettings {
        program: std::env::current_exe().context("finding this program")?,
        dir: args.at.dir.clone(),
        client_port: Some(args.client_port),
        restart: !args.no_restart,
        insecure: args.insecure,
    };
    runtime()?.block_on(standing::supervise(&experiment, &standing, interrupted()))
}

fn up(args: &UpArgs) -> anyhow::Result<()> {
    let dir = &args.at.dir;
    standing::ensure_down(dir)?;
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    // Another `up` may be running. If only the supervisor detected this, the log of the other `up`
    // would be lost.
    drop(Lock::take(dir)?);
    let log = dir.join("supervisor.log");
    let command = supervisor(args, &log)?;
    if runtime()?.block_on(start(command, dir, &log))? == StartOutcome::Interrupted {
        standing::stop(dir)?;
        let words = format!("interrupted; the cluster in {} is down", dir.display());
        return Err(Interrupted(words).into());
    }
    status::show(dir, false)?;
    let state = ClusterState::load(dir)?;
    let addresses: Vec<String> = (state.clients.iter())
        .map(|port| port.address.to_string())
        .collect();
    let ca = state.ca.map(|ca| format!(" --ca {}", shell_word(&ca)));
    say!(
        "\nTry: leasehold kv --dir {0} put greeting hello\n     leasehold ycsb load -P workloada -threads 100 \
         --address {1}{2}\n     leasehold cluster down --dir {0}",
        shell_word(dir),
        addresses.join(","),
        ca.unwrap_or_default()
    );
    Ok(())
}

/// Returns the command `leasehold cluster run` with the arguments `args`. The output of the command
/// goes to `log`.
fn supervisor(args: &UpArgs, log: &Path) -> anyhow::Result<Command> {
    let file = std::fs::File::create(log).with_context(|| format!("creating {}", log.display()))?;
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command
        .args(["cluster", "run", "--strategy", args.strategy.name()])
        .arg("--dir")
        .arg(&args.at.dir)
        .arg("--client-port")
        .arg(args.client_port.to_string());
    for set in &args.sets {
        command.args(["--set", set]);
    }
    if args.no_restart {
        command.arg("--no-restart");
    }
    if args.insecure {
        command.arg("--insecure");
    }
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        // The supervisor has its own process group, so that Ctrl-C in this terminal does not reach
        // it.
        .process_group(0);
    Ok(command)
}

/// Outcome of the wait for the start of a cluster. If the user interrupts the wait, the wait still
/// continues until the cluster is up.
#[derive(PartialEq, Eq)]
enum StartOutcome {
    Completed,
    Interrupted,
}

/// Starts the supervisor, and waits until the cluster is up.
async fn start(mut supervisor: Command, dir: &Path, log: &Path) -> anyhow::Result<StartOutcome> {
    let mut started = StartOutcome::Completed;
    let mut interrupted = pin!(interrupted());
    // The first poll installs the handler, so Ctrl-C is handled from here on.
    if timeout(Duration::ZERO, &mut interrupted).await.is_ok() {
        return Err(Interrupted("interrupted; nothing was started".to_owned()).into());
    }
    let mut supervisor = supervisor.spawn().context("starting the supervisor")?;
    while !ClusterState::load(dir).is_ok_and(|state| state.is_alive()) {
        if let Some(ended) = supervisor.try_wait()? {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let text = text.trim_end().trim_start_matches("leasehold: ");
            bail!("the cluster did not start ({ended}): {text}");
        }
        tokio::select! {
            () = &mut interrupted, if started == StartOutcome::Completed => {
                started = StartOutcome::Interrupted;
                note!("interrupted: waiting for it to start, then stopping it");
            }
            () = sleep(Duration::from_millis(100)) => {}
        }
    }
    Ok(started)
}
