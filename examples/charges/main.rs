//! Measures the processor time that a replica needs for each kind of request in several sizes, and
//! compares this time with the charge of the request.
//!
//! Clusters of real `leasehold serve` processes run on loopback. Each case sends batches of
//! requests to one replica for some time. From the measured processor time, the processor time of
//! an idle replica is subtracted. Every round measures every case, so that a change in the speed of
//! the machine affects all kinds of requests. `benchmarks/charges.sh` builds and runs this program.

mod cases;
mod charge;
#[path = "../common/cluster.rs"]
#[expect(dead_code, reason = "attacks use more of it")]
mod cluster;
mod clusters;
mod load;
mod measure;
#[path = "../common/processor.rs"]
mod processor;
#[path = "../common/provenance.rs"]
mod provenance;
mod report;
mod rows;
#[path = "../common/wire.rs"]
#[expect(dead_code, reason = "attacks use more of it")]
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Parser;

use crate::cases::Case;
use crate::cluster::Recipe;
use crate::measure::{Pace, measure};
use crate::report::Report;

#[derive(Parser)]
#[command(name = "charges")]
/// Measures the processor time of each kind of request beside what it is charged
///
/// Starts clusters of three replicas on loopback, asks one replica for one kind of request after
/// the other, and writes charges.csv and report.md. The exit status is 0 if the ratio of processor
/// time to charge is, for every kind and size, within a factor of three of the median ratio; 1 if not; 2 if
/// it could not be measured. Wants a machine that does little else: with the defaults for a quarter
/// of an hour.
struct Cli {
    /// Directory for charges.csv and report.md
    #[arg(value_name = "OUT", default_value = "results/charges")]
    out: PathBuf,
    /// The program that is measured [default: the `leasehold` of the same build]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// The revision that the program was built from, for the report [default: that of the sources
    /// here, unless --binary names another program]
    #[arg(long, value_name = "NAME")]
    revision: Option<String>,
    /// Only kinds whose names begin so, as --list names them
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Number of times that each kind and size is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Time for which each is asked for in a round, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
    /// Durability of the replicas, by which writes count as durable: sync, async, none
    #[arg(long, value_name = "NAME", default_value = "async")]
    durability: String,
    /// Keeps the directories of clusters there, with their logs
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Lists the kinds with their sizes, and ends
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            leasehold_ycsb::note!("charges: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn chosen(only: &[String]) -> anyhow::Result<Vec<Case>> {
    let all = cases::all();
    let begins = |case: &Case, name: &String| case.kind.starts_with(name.as_str());
    let unknown = |name: &&String| name.is_empty() || !all.iter().any(|case| begins(case, name));
    if let Some(name) = only.iter().find(unknown) {
        bail!("--only: no kind's name begins with {name:?}; --list names them");
    }
    let wanted = |case: &Case| only.is_empty() || only.iter().any(|name| begins(case, name));
    Ok(all.into_iter().filter(wanted).collect())
}

/// Runs the measurements. Returns true if all charges are within their bounds.
fn run(cli: &Cli) -> anyhow::Result<bool> {
    let cases = chosen(&cli.only)?;
    if cli.list {
        for case in &cases {
            leasehold_ycsb::say!("{:<28} {:>8} {}", case.kind, case.size, case.unit);
        }
        return Ok(true);
    }
    if !(0.05..=60.0).contains(&cli.seconds) {
        bail!("--seconds: {} is not between 0.05 and 60", cli.seconds);
    }
    let (binary, program) = provenance::choose(cli.binary.as_deref(), cli.revision.as_deref())?;
    let recipe = Recipe {
        binary,
        replicas: 3,
        durability: cli.durability.clone(),
        keep: cli.keep.clone(),
    };
    let pace = Pace {
        rounds: cli.rounds.into(),
        length: Duration::from_secs_f64(cli.seconds),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let found = runtime.block_on(async {
        let terminated = leasehold_node::terminated()?;
        tokio::select! {
            biased;
            () = terminated => bail!("interrupted; no replica is left running"),
            found = measure(&recipe, &cases, pace) => found,
        }
    })?;
    let report = Report {
        rows: &found.rows,
        elections: found.elections,
        program,
        durability: &cli.durability,
    };
    leasehold_ycsb::say!("{}", report.terminal().trim_end());
    report.write(&cli.out)?;
    leasehold_ycsb::say!("The report: {}", cli.out.join("report.md").display());
    Ok(report.is_good())
}
