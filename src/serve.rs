//! `leasehold serve`.

use std::io::Read as _;
use std::path::PathBuf;

use clap::Args;
use leasehold_node::{ClusterConfig, NodeError, ServeOptions, serve_until, terminated};

const EXAMPLE: &str = "\
A configuration, with all that must be in it:

  cluster = \"pantry\"
  data = \"pantry-data\"        # a directory for each node, beside this file

  [[node]]
  name = \"A\"
  client = \"127.0.0.1:8001\"   # where clients connect
  peer = \"127.0.0.1:9001\"     # where other replicas connect
  # ... and a [[node]] for each other replica

What may be in it, with what it is otherwise: leader (nobody is preferred), durability = \"sync\" \
(async: one machine that loses power may lose confirmed writes; none: one process that crashes may), accept_replies = \"origin\" (leader, all), batch_max = 5000, demand_mb = 64, \
holders_kb_s = 100; in [lease]: strategy = \"leader\" (none, all, quorum, fixed, cost), for quorum \
unlisted = \"nearest\" (leader), for cost cost = { read_weight = 0.5, spare = 0 }, t_lease_ms = 1000, \
t_guard_ms = 750, renew_ms = 150, reconfigure_ms = 10000, grace_ms = 2000, rho = 0.001, and a \
[[lease.range]] for each key range with a strategy of its own: from, to (the next range), strategy, \
holders (for fixed: names of nodes), unlisted, cost; in [timing]: heartbeat_ms = 150, \
election_timeout_ms = 1000, retransmit_ms = 700, ping_ms = 500, checkpoint_ms = 10000.

What clients may take, in [limits]: connection_requests = 16384, connection_in_flight_mb = 16, \
in_flight_mb = 512, large_writes_mb = 2, connection_unread_mb = 32, unread_mb = 512, frame_s = 30, \
stalled_s = 30, idle_s = 600, clients and clients_per_address (as many as files may be open), \
connections_per_peer = 2, sessions_max = 262144, sessions_opened_per_s (by sessions_max and the \
number of nodes). docs/operating.md says what each means.

Unless all addresses are of this machine alone, [security] must say how nodes prove who they are: \
certificates = \"DIR\" (`leasehold cert --help`) or secret = \"FILE\"; and, unless those for clients \
are, what clients may do: tokens = \"FILE\" (`leasehold token --help`). Or it says insecure = true.

The first start of all needs more nodes than a majority: three of three, four of five. A node whose \
data directory was emptied stops, for it has forgotten what it voted for; bring the directory back \
from a copy made since the node last ran, and never start it on an older one.

A node raises its limit of open files to the hard limit (`ulimit -Hn`), keeps about 500 of them for \
its storage and the other nodes, and refuses clients above what is left.

Exit status: 0 after SIGINT or SIGTERM, from the first moment on; 78 if somebody must mend something \
first, so that starting again cannot help: the configuration, the data directory (no directory, wiped, damaged, of \
another replica or version), how the node proves who it is, or the file of tokens; 3 if the data directory was \
deleted, moved, replaced or unmounted while the node ran, so that starting again cannot help either; else 1, as \
when the store keeps refusing writes although the disk has room again: start the node again. A node whose \
disk hangs may not end within 5 s after the signal, or after a failure with status 1. It then says so and kills \
itself (137; as process 1 of a container, it aborts).";

#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub struct ServeArgs {
    /// The cluster's configuration (TOML); the same file serves every node
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Name of this node in the configuration
    #[arg(long, value_name = "NAME")]
    node: String,
    /// Appends elections, configurations and the like to FILE, one JSON object a line
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Ends when standard input is closed: for processes that start replicas
    #[arg(long)]
    until_stdin_closes: bool,
    /// Treats the disk as full while FILE exists: for experiments with failures
    #[arg(long, value_name = "FILE")]
    disk_full_while: Option<PathBuf>,
}

pub fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let _log = crate::terminal::log();
    let config = ClusterConfig::load(&args.config).map_err(NodeError::from)?;
    let options = ServeOptions {
        events: args.events.clone(),
        disk_full_while: args.disk_full_while.clone(),
    };
    let watch = args.until_stdin_closes;
    if watch {
        wake_when_parent_dies()?;
    }
    let served = serve_until(&config, &args.node, &options, move || ended(watch));
    Ok(served?)
}

/// Returns a future that ends with SIGINT or SIGTERM. If `until_stdin_closes` is true, the future
/// also ends when standard input is closed. Signals count from this call on.
///
/// # Errors
/// Fails if the signals cannot be received.
pub fn ended(until_stdin_closes: bool) -> std::io::Result<impl Future<Output = ()>> {
    let signal = terminated()?;
    Ok(async move {
        if !until_stdin_closes {
            return signal.await;
        }
        let (closed, wait) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            let _ = closed.send(());
        });
        tokio::select! {
            () = signal => {}
            _ = wait => {}
        }
    })
}

/// Makes the kernel wake this process with a signal when the process that started it dies. A
/// process that is stopped (by SIGSTOP) needs this signal, because it cannot detect that its
/// standard input was closed.
pub fn wake_when_parent_dies() -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use anyhow::Context as _;
        use rustix::process::{Signal, set_parent_process_death_signal};
        set_parent_process_death_signal(Some(Signal::CONT))
            .context("asking the kernel for a signal when the parent dies")?;
    }
    Ok(())
}
