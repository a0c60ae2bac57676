//! `leasehold inspect`: shows and checks the data directory of a stopped replica.

#[cfg(feature = "store")]
mod log;
#[cfg(feature = "store")]
mod meta;
#[cfg(feature = "store")]
mod operation;
#[cfg(feature = "store")]
mod verify;
#[cfg(feature = "store")]
mod words;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
DIR is the data directory of one node: `data` of the configuration, followed by the node's name. The node must be \
stopped. Nothing in the directory is written, made, locked or removed.

Examples:
  leasehold inspect meta pantry-data/A                    the node that it belongs to, and its position
  leasehold inspect verify pantry-data/A                  would a start succeed? Exit status 0 if so, else 1
  leasehold inspect log pantry-data/A --from 100 --to 120
  leasehold inspect log pantry-data/A --log configs       which leases were in force
  leasehold inspect log pantry-data/A --json | jq .       one object in each line";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    #[command(subcommand)]
    command: InspectCommand,
}

#[derive(Subcommand)]
enum InspectCommand {
    /// Lists the records of the log, in the order in which they were written
    Log(LogArgs),
    /// Shows the node of a directory, its promises, its executed position, and the segments of its log
    Meta(DataArgs),
    /// Reads and checks everything, and says whether a start would succeed; exit status 1 if not
    ///
    /// A write that a crash has torn is no error: nobody relied on it, and a start forgets it.
    Verify(DataArgs),
}

#[derive(Args)]
struct DataArgs {
    /// The data directory of a stopped node
    dir: PathBuf,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct LogArgs {
    /// The data directory of a stopped node
    dir: PathBuf,
    /// Prints JSON: one object in each line
    #[arg(long)]
    json: bool,
    /// Only entries of this slot and of higher ones
    #[arg(long, value_name = "SLOT")]
    from: Option<u64>,
    /// Only entries of this slot and of lower ones
    #[arg(long, value_name = "SLOT")]
    to: Option<u64>,
    /// Only entries of this log
    #[arg(long, value_name = "LOG")]
    log: Option<LogName>,
    /// Also all facts, such as promises, although --from, --to or --log choose entries
    #[arg(long)]
    facts: bool,
    /// Shows values, not only their lengths
    #[arg(long)]
    values: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogName {
    Commands,
    Configs,
}

#[cfg(feature = "store")]
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    match &args.command {
        InspectCommand::Log(args) => log::run(args),
        InspectCommand::Meta(args) => meta::run(args),
        InspectCommand::Verify(args) => verify::run(args),
    }
}

#[cfg(not(feature = "store"))]
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let (InspectCommand::Meta(DataArgs { dir, json })
    | InspectCommand::Verify(DataArgs { dir, json })
    | InspectCommand::Log(LogArgs { dir, json, .. })) = &args.command;
    _ = (dir, json);
    Err(leasehold_node::store::StorageError::NotBuilt.into())
}
