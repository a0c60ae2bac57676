//! `leasehold cluster`.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use client::wire::StatusReply;
use client::{Client, ClientOptions};
use geo_deploy::standing::{self, ClientPort, State};
use tokio::time::{sleep, timeout};

use crate::terminal::{Interrupted, interrupted, log, runtime, say};

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Starts a cluster: a replica process for every site, behind an emulated WAN
    Up(UpArgs),
    /// Shows who leads, who may read, and how far each replica is
    Status(WhereArgs),
    /// Ends the cluster; its data stays
    Down(WhereArgs),
    /// Holds the cluster in the foreground (what `up` starts in the background)
    Run(UpArgs),
}

#[derive(Args)]
pub struct WhereArgs {
    /// The cluster's directory: configuration, data, logs
    #[arg(long, value_name = "DIR", default_value = "leasehold-cluster")]
    pub dir: PathBuf,
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
}

impl Strategy {
    fn name(self) -> &'static str {
        match self {
            Strategy::None => "none",
            Strategy::Leader => "leader",
            Strategy::All => "all",
            Strategy::Quorum => "quorum",
        }
    }
}

#[derive(Args)]
pub struct UpArgs {
    #[command(flatten)]
    at: WhereArgs,
    /// Who may read locally. It is part of the cluster's data once there is some: for another one
    /// give another --dir
    #[arg(long, value_enum, default_value = "quorum")]
    strategy: Strategy,
    /// Clients of the first site connect to this port, of the second to the next, ...
    #[arg(long, value_name = "PORT", default_value_t = 7001, value_parser = clap::value_parser!(u16).range(1..))]
    client_port: u16,
    /// Changes a field, as `exp run` does: leader=CA, topology=FILE, lease.t_lease_ms=2000, ... The
    /// sites and the lease's durations are part of the cluster's data, too
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

pub fn run(command: &ClusterCommand) -> anyhow::Result<()> {
    match command {
        ClusterCommand::Up(args) => up(args),
        ClusterCommand::Status(at) => status(&at.dir),
        ClusterCommand::Down(at) => {
            standing::stop(&at.dir)?;
            say!("The cluster in {} is down.", at.dir.display());
            Ok(())
        }
        ClusterCommand::Run(args) => hold(args),
    }
}

fn hold(args: &UpArgs) -> anyhow::Result<()> {
    let _log = log();
    let mut sets = vec![format!("strategies={}", args.strategy.name())];
    sets.extend(args.sets.iter().cloned());
    let experiment = standing::experiment()?.with(&sets)?;
    let program = std::env::current_exe().context("finding this program")?;
    let port = Some(args.client_port);
    runtime()?.block_on(standing::supervise(
        &experiment,
        program,
        &args.at.dir,
        port,
        interrupted(),
    ))
}

fn up(args: &UpArgs) -> anyhow::Result<()> {
    let dir = &args.at.dir;
    standing::not_up(dir)?;
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let log = dir.join("supervisor.log");
    let command = supervisor(args, &log)?;
    if runtime()?.block_on(start(command, dir, &log))? == Started::Interrupted {
        standing::stop(dir)?;
        let words = format!("interrupted; the cluster in {} is down", dir.display());
        return Err(Interrupted(words).into());
    }
    status(dir)?;
    let state = State::load(dir)?;
    let addresses: Vec<String> = (state.clients.iter())
        .map(|port| port.address.to_string())
        .collect();
    say!(
        "\nTry: leasehold kv --dir {0} put greeting hello\n     leasehold ycsb load -P workloada \
         --address {1}\n     leasehold cluster down --dir {0}",
        dir.display(),
        addresses.join(",")
    );
    Ok(())
}

/// `leasehold cluster run` with the same arguments, writing into `log`.
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
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        // In a process group of its own, so that Ctrl-C in this terminal does not reach it.
        .process_group(0);
    Ok(command)
}

/// How the start of a cluster ended. It is up in either case.
#[derive(PartialEq, Eq)]
enum Started {
    Wanted,
    Interrupted,
}

/// Starts the supervisor, and waits until the cluster is up.
async fn start(mut supervisor: Command, dir: &Path, log: &Path) -> anyhow::Result<Started> {
    let mut started = Started::Wanted;
    let mut interrupted = pin!(interrupted());
    // The first poll installs the handler: Ctrl-C is noticed from here on.
    let _ = timeout(Duration::ZERO, &mut interrupted).await;
    let mut supervisor = supervisor.spawn().context("starting the supervisor")?;
    while !State::load(dir).is_ok_and(|state| state.alive()) {
        if let Some(ended) = supervisor.try_wait()? {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let text = text.trim_end().trim_start_matches("leasehold: ");
            bail!("the cluster did not start ({ended}): {text}");
        }
        tokio::select! {
            () = &mut interrupted, if started == Started::Wanted => {
                started = Started::Interrupted;
                eprintln!("interrupted: waiting for it to start, then stopping it");
            }
            () = sleep(Duration::from_millis(100)) => {}
        }
    }
    Ok(started)
}

fn status(dir: &Path) -> anyhow::Result<()> {
    let state = State::load(dir)?;
    if !state.alive() {
        bail!(
            "the cluster in {0} is no longer up: its supervisor is gone, and its replicas with it; \
             `leasehold cluster up --dir {0}` starts it again with its data",
            dir.display()
        );
    }
    say_heading();
    runtime()?.block_on(async {
        for ClientPort { site, address } in &state.clients {
            match ask(*address, &state.cluster).await {
                Ok(status) => say_status(site, *address, &status),
                Err(error) => say!("{site:8} {address:<16} {error}"),
            }
        }
    });
    Ok(())
}

fn say_heading() {
    say!(
        "{:8} {:16} {:8} {:8} {:>9} {:>9} {:>6}  promised by",
        "site",
        "clients at",
        "leader",
        "strategy",
        "committed",
        "executed",
        "keys"
    );
}

fn say_status(site: &str, address: SocketAddr, status: &StatusReply) {
    let granted = status.peers.iter().filter(|peer| peer.granted_by);
    let names: Vec<&str> = granted.map(|peer| peer.name.as_str()).collect();
    say!(
        "{site:8} {address:<16} {:8} {:8} {:>9} {:>9} {:>6}  {}",
        status.leader,
        status.strategy,
        status.committed,
        status.executed,
        status.keys,
        names.join(" ")
    );
}

async fn ask(address: SocketAddr, cluster: &str) -> Result<StatusReply, client::Error> {
    let mut options = ClientOptions::new(address.to_string());
    options.cluster = Some(cluster.to_string());
    options.request_timeout = Duration::from_secs(5);
    options.connect_timeout = Duration::from_secs(2);
    Client::connect(options).await?.status().await
}
