//! Makes power failures of real `leasehold serve` processes under load, and judges the clusters
//! that start on the disks that are left.
//!
//! A shim records every file operation of the replicas. A power failure at any moment of the
//! recording leaves a disk that has everything that was synced before, and a random part of the
//! rest. `make power` runs this program.

mod chance;
#[path = "../common/cluster.rs"]
#[expect(dead_code, reason = "attacks use more of it")]
mod cluster;
mod control;
mod cut;
mod disk;
mod fleet;
mod history;
mod image;
mod judge;
mod load;
#[path = "../common/provenance.rs"]
mod provenance;
mod recording;
mod report;
mod round;
mod run;
mod shim;
mod trace;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use leasehold_ycsb::{note, say};

use crate::chance::Chance;
use crate::control::{Control, ControlFinding};
use crate::fleet::Plan;
use crate::report::PowerReport;
use crate::run::PowerRun;
use crate::shim::Shim;

#[derive(Parser)]
#[command(name = "power")]
/// Makes power failures of clusters of its own on loopback, and judges what is left
///
/// The exit status is 0 if nothing was lost, 1 after a violation, 2 if the run could not be made.
/// Temporary files go to TMPDIR, and take up to 1 GiB.
struct Cli {
    /// Number of power failures; 0 makes only the controls
    #[arg(long, value_name = "N", default_value_t = 50)]
    cuts: usize,
    /// Replicas of each cluster
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=5))]
    nodes: u8,
    /// Seed of everything that is drawn; the processes themselves behave a little differently in
    /// each run
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The file with the results
    #[arg(long, value_name = "FILE", default_value = "results/safety/power.md")]
    out: PathBuf,
    /// Folder for the images of violations
    #[arg(
        long,
        value_name = "DIR",
        default_value = "results/safety/power-violations"
    )]
    keep: PathBuf,
    /// The program that loses power [default: the `leasehold` of the same build]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// The revision that the program was built from, for the report [default: that of the sources
    /// here, unless --binary names another program]
    #[arg(long, value_name = "NAME")]
    revision: Option<String>,
    /// Time for which each cluster is under load, in seconds
    #[arg(long, value_name = "S", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ended = run(&cli);
    let printed = || leasehold_ycsb::output::finish().context("writing to standard output");
    match ended.and_then(|passed| printed().map(|()| passed)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            note!("power: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the power failures and the controls. Returns true if nothing was lost.
fn run(cli: &Cli) -> anyhow::Result<bool> {
    let (binary, program) = provenance::choose(cli.binary.as_deref(), cli.revision.as_deref())?;
    let folder = tempfile::tempdir().context("making a temporary directory; see TMPDIR")?;
    let plan = Plan {
        binary,
        shim: Shim::compile(folder.path())?,
        nodes: cli.nodes.into(),
        folder: folder.path().canonicalize()?,
        load: Duration::from_secs(cli.seconds),
    };
    let mut power = PowerRun::new(&plan, cli.cuts, cli.seed, cli.keep.clone());
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    let controls = runtime.block_on(tasks.run_until(async {
        let terminated = leasehold_node::terminated()?;
        tokio::select! {
            biased;
            () = terminated => bail!(
                "interrupted; no replica is left running, and {} is as before",
                cli.out.display()
            ),
            ended = all(&mut power, &plan, cli.seed) => ended,
        }
    }))?;
    let report = PowerReport {
        cuts: &power.cuts,
        controls: &controls,
        recorded: power.recorded,
        nodes: plan.nodes,
        program,
    };
    say!("{}", report.terminal());
    report.write(&cli.out)?;
    say!("The report: {}", cli.out.display());
    Ok(report.is_good())
}

async fn all(
    power: &mut PowerRun<'_>,
    plan: &Plan,
    seed: u64,
) -> anyhow::Result<Vec<ControlFinding>> {
    power.run().await?;
    let mut chance = Chance::new(seed, 2);
    let mut findings = Vec::new();
    for control in Control::ALL {
        note!("[control] {}", control.name());
        let finding = control.check(plan, &mut chance).await?;
        note!(
            "    {}",
            finding.violation.as_deref().unwrap_or("NOTHING WAS FOUND")
        );
        findings.push(finding);
    }
    Ok(findings)
}
