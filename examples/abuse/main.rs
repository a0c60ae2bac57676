//! Carries out one attack on a cluster after another. For each attack it judges the latency of
//! well-behaved clients, changes of the leader, and the replicas' use of the machine.
//!
//! Each attack has a fresh cluster of real `leasehold serve` processes on loopback. The attackers
//! run in a separate process with a lower priority (`nice`), so that even on a small machine the
//! replicas are measured and not the attackers. `make abuse` runs it.

mod aftermath;
mod attacks;
#[path = "../common/cluster.rs"]
mod cluster;
mod failing_disk;
mod figures;
mod judge;
#[path = "../common/provenance.rs"]
mod provenance;
mod report;
mod stage;
mod watch;
mod well_behaved;
#[path = "../common/wire.rs"]
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand};

use crate::attacks::{ATTACKS, Attack};
use crate::report::Results;
use crate::stage::Stage;
use leasehold_ycsb::{note, say};

#[derive(Parser)]
#[command(name = "abuse", args_conflicts_with_subcommands = true)]
/// Attacks clusters of its own on loopback, and judges how well they bear it
struct Cli {
    #[command(flatten)]
    run: RunArgs,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Args)]
struct RunArgs {
    /// Where report.md, figures.csv, p99.svg and LABEL.json go
    #[arg(long, value_name = "DIR", default_value = "results/abuse")]
    out: PathBuf,
    /// The program that is attacked [default: the `leasehold` of the same build]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// The revision that the program was built from, for the report [default: that of the sources
    /// here, unless --binary names another program]
    #[arg(long, value_name = "NAME")]
    revision: Option<String>,
    /// The name of this program in the report; results of other names in DIR are kept
    #[arg(long, value_name = "NAME", default_value = "after")]
    label: String,
    /// Only attacks whose names begin so; of the others the results in DIR are kept
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Replicas of each cluster
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=5))]
    replicas: u8,
    /// Puts a second that the well-behaved clients ask for, and as many gets
    #[arg(long, value_name = "N", default_value_t = 200)]
    rate: u32,
    /// How long is measured before each attack, in seconds
    #[arg(long, value_name = "S", default_value_t = 6)]
    quiet: u64,
    /// Keys that are loaded where millions matter
    #[arg(long, value_name = "N", default_value_t = 2_100_000)]
    keys: u64,
    /// When a write counts as durable: sync, async, none
    #[arg(long, value_name = "NAME", default_value = "sync")]
    durability: String,
    /// Keeps the directories of clusters there, with their logs
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Lists the attacks and ends
    #[arg(long)]
    list: bool,
}

#[derive(Subcommand)]
enum Part {
    /// The attackers of one attack: started by this program itself
    #[command(hide = true)]
    Wage { target: String },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ended = match cli.part {
        Some(Part::Wage { target }) => attacks::wage(&target).map(|()| true),
        None if cli.run.list => {
            list();
            Ok(true)
        }
        None => run(&cli.run),
    };
    let printed = || leasehold_ycsb::output::finish().context("writing to standard output");
    match ended.and_then(|passed| printed().map(|()| passed)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            note!("abuse: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn list() {
    for attack in ATTACKS {
        say!("{:<18} {}", attack.name, attack.what);
    }
}

fn chosen(only: &[String]) -> anyhow::Result<Vec<&'static Attack>> {
    let begins = |attack: &Attack, name: &String| attack.name.starts_with(name.as_str());
    if let Some(name) = only
        .iter()
        .find(|name| name.is_empty() || !ATTACKS.iter().any(|attack| begins(attack, name)))
    {
        bail!("--only: no attack's name begins with {name:?}; --list names them");
    }
    let wanted = |attack: &&Attack| only.is_empty() || only.iter().any(|name| begins(attack, name));
    Ok(ATTACKS.iter().filter(wanted).collect())
}

/// Runs the requested command. Returns true if all checks succeeded.
fn run(args: &RunArgs) -> anyhow::Result<bool> {
    let attacks = chosen(&args.only)?;
    let (binary, program) = provenance::choose(args.binary.as_deref(), args.revision.as_deref())?;
    let mut results = Results::open(&args.out, &args.label, program)?;
    let stage = Stage {
        binary,
        replicas: args.replicas.into(),
        rate: args.rate,
        quiet_s: args.quiet,
        keys: args.keys,
        durability: args.durability.clone(),
        keep: args.keep.clone(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let tasks = tokio::task::LocalSet::new();
    let interrupted = runtime.block_on(tasks.run_until(async {
        let signal = leasehold_node::terminated()?;
        tokio::select! {
            biased;
            () = signal => Ok(true),
            ended = all(&stage, &attacks, &mut results) => ended.map(|()| false),
        }
    }))?;
    results.write()?;
    say!("{}", results.terminal(&args.label));
    say!("The report: {}", args.out.join("report.md").display());
    if interrupted {
        bail!("interrupted; no replica is left running");
    }
    Ok(results.all_passed(&args.label))
}

async fn all(
    stage: &Stage,
    attacks: &[&'static Attack],
    results: &mut Results,
) -> anyhow::Result<()> {
    for (number, attack) in attacks.iter().enumerate() {
        note!(
            "[{} of {}] {}: {}",
            number + 1,
            attacks.len(),
            attack.name,
            attack.what
        );
        let row = stage.row(attack).await;
        note!("    {}", row.words());
        results.add(row);
        results.write()?;
    }
    Ok(())
}
