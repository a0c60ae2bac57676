//! Parses the command line, and runs the command that it names.

mod advice;
mod cert;
mod chaos;
mod cluster;
mod connector;
#[cfg(test)]
mod contract;
mod exp;
mod fault;
mod inspect;
mod kv;
mod leader;
mod lease;
mod lock;
mod pictures;
mod plot;
mod serve;
mod sim;
mod terminal;
mod throughput;
mod token;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand};
use leasehold_node::NodeError;

/// Allocator of the program. The speed of the allocator matters, because every operation allocates
/// and frees values, batches and messages.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A strongly consistent, geo-replicated key-value store in which the operator
/// chooses who may read locally.
#[derive(Parser)]
#[command(version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  leasehold demo                              three strategies on five replicas, in minutes
  leasehold exp run fig6                      latency at five sites, in virtual time
  leasehold cluster up                        five replicas that stay up, and then:
  leasehold kv put greeting hello
  leasehold kv get greeting --site JP -v
  leasehold ycsb load -P workloada -p recordcount=1000 -threads 100 \\
      --address 127.0.0.1:7002 --ca leasehold-cluster/certificates/ca.pem
  leasehold cluster kill leader               see what the others do; then: cluster start all
  leasehold fault partition JP --for 20       nothing passes to and from JP for 20 s
  leasehold cluster down
  leasehold sim --hours 1                     an hour of faults, judged step by step
  leasehold chaos                             ten minutes of faults on real processes
  leasehold lock demo                         one owner at a time, although owners die

Logs go to standard error; RUST_LOG=debug shows more of them, RUST_LOG=off none.";

#[derive(Subcommand)]
enum Command {
    /// Compares leader, Megastore and quorum leases on five real replica processes
    Demo(exp::DemoArgs),
    /// Runs one replica until SIGINT or SIGTERM
    Serve(serve::ServeArgs),
    /// Makes the certificates by which the nodes of a cluster know each other, and clients know them
    Cert(cert::CertArgs),
    /// Reads and writes keys, and copies data out of a cluster and into one
    Kv(kv::KvArgs),
    /// Shows who leads, and moves leadership
    Leader(leader::LeaderArgs),
    /// Shows which replicas may read which keys locally, forecasts the latencies of other strategies, and changes
    /// the strategy while the cluster runs
    Lease(lease::LeaseArgs),
    /// Exclusive leases: processes agree on one owner of a resource, without a server
    Lock(lock::LockArgs),
    /// Makes, lists and revokes tokens, with which clients prove what they may do
    Token(token::TokenArgs),
    /// Lists and runs experiments
    #[command(subcommand)]
    Exp(exp::ExpCommand),
    /// Draws interval logs (.hlog) of `ycsb` or of an experiment: over time, and as distributions
    Plot(plot::PlotArgs),
    /// Simulates clusters in which everything goes wrong that may, and judges every step
    Sim(sim::SimArgs),
    /// Breaks replica processes at random under load, and judges what clients saw
    Chaos(chaos::ChaosArgs),
    /// Keeps a geo cluster up on this machine, for `kv` and `ycsb`
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Makes links fail and disks fill up, in a cluster that `cluster up` started
    Fault(fault::FaultArgs),
    /// Shows and checks the data directory of a stopped replica, without writing to it
    Inspect(inspect::InspectArgs),
    /// Loads data or runs a workload as YCSB does (`leasehold ycsb --help` has its own options)
    #[command(disable_help_flag = true)]
    Ycsb {
        /// load|run, then options as YCSB users type them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Prints a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Writes manual pages
    Man {
        /// Where to
        #[arg(default_value = "man")]
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Demo(args) => exp::demo(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Cert(args) => cert::run(&args),
        Command::Kv(args) => kv::run(&args),
        Command::Leader(args) => leader::run(&args),
        Command::Lease(args) => lease::run(&args),
        Command::Lock(args) => lock::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Exp(command) => exp::run(&command),
        Command::Plot(args) => plot::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Chaos(args) => chaos::run(&args),
        Command::Cluster(command) => cluster::run(&command),
        Command::Fault(args) => fault::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Ycsb { arguments } => terminal::ycsb(arguments),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "leasehold", &mut script);
            terminal::say!("{}", String::from_utf8_lossy(&script).trim_end());
            Ok(())
        }
        Command::Man { dir } => man(&dir),
    };
    let printed = || leasehold_ycsb::output::finish().context("writing to standard output");
    match result.and_then(|()| printed()) {
        Ok(()) => ExitCode::SUCCESS,
        // The command has said everything itself.
        Err(error) if error.is::<lock::CommandEnded>() => status(&error),
        Err(error) => {
            // Texts of replicas and files may contain any characters.
            let must_escape =
                |letter| terminal::is_unprintable(letter) && !['\n', '\t'].contains(&letter);
            let words = terminal::escaped(describe_error(&error).as_bytes(), must_escape);
            terminal::note!("leasehold: {}", terminal::abridged(&words));
            status(&error)
        }
    }
}

fn status(error: &anyhow::Error) -> ExitCode {
    if error.is::<terminal::Interrupted>() {
        return ExitCode::from(terminal::Interrupted::STATUS);
    }
    if error.is::<terminal::TargetMissed>() {
        return ExitCode::from(terminal::TargetMissed::STATUS);
    }
    if error.is::<lock::OwnedByOther>() {
        return ExitCode::from(lock::OwnedByOther::STATUS);
    }
    if error.is::<lock::LeaseLost>() {
        return ExitCode::from(lock::LeaseLost::STATUS);
    }
    if let Some(lock::CommandEnded(status)) = error.downcast_ref() {
        return ExitCode::from(*status);
    }
    let node = error.downcast_ref::<NodeError>();
    ExitCode::from(node.map_or(1, NodeError::status))
}

/// Describes an error and its causes. If the text of a cause already occurs in the description,
/// this cause is omitted.
fn describe_error(error: &anyhow::Error) -> String {
    let mut all = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !all.contains(&cause) {
            all = format!("{all}: {cause}");
        }
    }
    all
}

fn man(dir: &std::path::Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
        .with_context(|| format!("writing manual pages to {}", dir.display()))?;
    terminal::say!("wrote manual pages to {}", dir.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_cause_is_told_once() {
        let error = anyhow::anyhow!("no such file");
        assert_eq!(describe_error(&error), "no such file");
        let error = error.context("a.toml: no such file; make one");
        assert_eq!(describe_error(&error), "a.toml: no such file; make one");
        let error = error.context("reading");
        assert_eq!(
            describe_error(&error),
            "reading: a.toml: no such file; make one"
        );
    }
}
