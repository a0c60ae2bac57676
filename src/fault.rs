//! `leasehold fault`: makes links fail and disks fill up in a cluster that is running.

use std::path::Path;

use clap::{Args, Subcommand, ValueEnum};
use leasehold_geo_deploy::fault::{Direction, FaultAction, FaultSpec, FaultTarget};
use leasehold_geo_deploy::standing::{self, ControlRequest, ControlResponse, with_dir};

use crate::cluster::status::fault_line;
use crate::cluster::{ClusterDirArgs, TimedArgs, finite, request_and_print};
use crate::terminal::say;

const EXAMPLES: &str = "\
Examples:
  leasehold fault partition JP                     JP and the others: nothing passes
  leasehold fault partition leader --direction out --for 20
                                                   nothing that the leader sends arrives
  leasehold fault partition JP IRL --to CA OR VA   two groups
  leasehold fault slow VA --to CA --delay-ms 80
  leasehold fault loss random --loss 0.05
  leasehold fault fill-disk holder --for 30
  leasehold fault list
  leasehold fault heal 2                           or: heal all

The names are those of [[fault]] in experiment files. Replicas die and stand still with
`leasehold cluster kill|stop|pause`. Faults end with the cluster at the latest.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct FaultArgs {
    #[command(subcommand)]
    command: FaultCommand,
}

#[derive(Subcommand)]
enum FaultCommand {
    /// Lets nothing pass between sites
    Partition(LinkArgs),
    /// Makes messages between sites take longer; what was sent before the end keeps the delay
    Slow {
        #[command(flatten)]
        link: LinkArgs,
        /// How much longer each takes, one way
        #[arg(long, value_name = "MS", value_parser = finite, allow_negative_numbers = true)]
        delay_ms: f64,
    },
    /// Loses messages between sites; they are sent again, as by TCP, and arrive later
    Loss {
        #[command(flatten)]
        link: LinkArgs,
        /// The probability that a packet is lost, above 0 and at most 1
        #[arg(long, value_name = "PROBABILITY", value_parser = finite, allow_negative_numbers = true)]
        loss: f64,
    },
    /// Has replicas treat their disk as full: every write to it is refused
    FillDisk(TimedArgs),
    /// Ends faults
    Heal {
        /// Numbers of faults, as `list` shows them, or `all`
        #[arg(required = true, value_name = "NUMBER|all")]
        which: Vec<String>,
        #[command(flatten)]
        at: ClusterDirArgs,
    },
    /// Shows the faults that hold
    List(ClusterDirArgs),
}

#[derive(Args)]
struct LinkArgs {
    #[command(flatten)]
    timed: TimedArgs,
    /// The other ends: sites or roles. All but the targets, if left out
    #[arg(long, value_name = "NODE", num_args = 1..)]
    to: Vec<String>,
    /// Which messages are concerned: those that the targets send (out), those that are sent to
    /// them (in), or both
    #[arg(long, value_enum, default_value = "both")]
    direction: DirectionArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DirectionArg {
    Both,
    Out,
    In,
}

impl LinkArgs {
    fn fault(&self, action: FaultAction) -> FaultSpec {
        FaultSpec {
            to: self
                .to
                .iter()
                .map(|name| FaultTarget::named(name))
                .collect(),
            direction: match self.direction {
                DirectionArg::Both => Direction::Both,
                DirectionArg::Out => Direction::Out,
                DirectionArg::In => Direction::In,
            },
            ..FaultSpec::now(action, self.timed.whom.targets())
        }
    }
}

pub fn run(args: &FaultArgs) -> anyhow::Result<()> {
    match &args.command {
        FaultCommand::Partition(link) => link.timed.begin(link.fault(FaultAction::Partition)),
        FaultCommand::Slow { link, delay_ms } => link.timed.begin(FaultSpec {
            delay_ms: *delay_ms,
            ..link.fault(FaultAction::Slow)
        }),
        FaultCommand::Loss { link, loss } => link.timed.begin(FaultSpec {
            loss: *loss,
            ..link.fault(FaultAction::Loss)
        }),
        FaultCommand::FillDisk(timed) => {
            timed.begin(FaultSpec::now(FaultAction::FillDisk, timed.whom.targets()))
        }
        FaultCommand::Heal { which, at } => {
            request_and_print(&at.dir, ControlRequest::Heal(numbers(which, &at.dir)?))
        }
        FaultCommand::List(at) => list(at),
    }
}

/// Returns the IDs of the faults that the user named. Returns an empty list if the user wrote
/// `all`. An empty list means all faults.
fn numbers(which: &[String], dir: &Path) -> anyhow::Result<Vec<u64>> {
    if which.iter().any(|word| word == "all") {
        return Ok(Vec::new());
    }
    let number = |word: &String| {
        word.parse().map_err(|_| {
            let list = with_dir("`leasehold fault list`", dir);
            anyhow::anyhow!("heal {word}: give the number of a fault, as {list} shows it, or all")
        })
    };
    which.iter().map(number).collect()
}

fn list(at: &ClusterDirArgs) -> anyhow::Result<()> {
    let ControlResponse::Status(overview) = standing::ask(&at.dir, ControlRequest::Status)? else {
        anyhow::bail!("the supervisor did not say which faults there are");
    };
    if overview.faults.is_empty() {
        let status = with_dir("`leasehold cluster status`", &at.dir);
        say!("No link fails and no disk is full. {status} shows the replicas.");
    }
    for fault in &overview.faults {
        say!("{}", fault_line(fault, &at.dir));
    }
    Ok(())
}
