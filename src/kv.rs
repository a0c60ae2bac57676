//! `leasehold kv`.

mod export;
mod import;
mod json;
mod notation;
mod pages;
mod progress;
mod range;
mod replica;
mod scan;
mod single;
mod txn;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use leasehold_geo_deploy::standing::DEFAULT_DIR;

use self::notation::Notation;
use self::single::SingleKeyCommand;
use crate::connector::{ClientCredentials, Connector};
use crate::terminal::runtime;

const EXAMPLES: &str = "\
Examples:
  leasehold kv put greeting hello
  leasehold kv get greeting --site JP -v            how it was served, and its version
  leasehold kv cas greeting 12.0 hi                 only if the version is still 12.0
  leasehold kv add visits 1                         adds to a number, and prints the sum
  leasehold kv txn 'if absent a then put a 1; add n 5 else get a'
                                                    several operations at one moment: kv txn --help
  leasehold kv put logo --file logo.png             and back: kv get logo --output logo.png
  leasehold kv scan --prefix users/ --all           all keys that begin with users/
  leasehold kv scan --all --json --hex | jq -r .key_hex
  leasehold kv get --hex 00ff                       a key that is not text

To copy all data from a cluster at old1 and old2 to a cluster at new1 and new2:
  leasehold kv --address old1:8001,old2:8001 --ca old-ca.pem export data.jsonl
  leasehold kv --address new1:8001,new2:8001 --ca new-ca.pem import data.jsonl
If the export is cut off, repeat it with --resume. Until the export is complete, the file is called data.jsonl.part. If the import is cut off, its message names the --from-line \
for the next attempt. For a copy of one moment, stop all writers during the export. To copy without a file:
  set -o pipefail; leasehold kv … export - | leasehold kv … import -

Exit status: 0: success. 1: there is no such key, `cas` has not written, a comparison of `txn` did not hold, an \
argument has a wrong value, or the command failed. 2: the command line cannot be parsed. 130: a signal ended an export or an import.";

/// Upper limit of `--timeout`, which is exclusive, in seconds.
const TIMEOUT_S_MAX: f64 = 1e6;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct KvArgs {
    /// A replica's client address; several, with commas between them or the option repeated: the
    /// first that answers is asked [default: the cluster that `cluster up` started]
    #[arg(
        long = "address",
        global = true,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        conflicts_with_all = ["site", "dir"]
    )]
    addresses: Vec<String>,
    /// The site whose replica to ask, and while that is dead another one [default: who leads]
    #[arg(long, global = true, value_name = "NAME")]
    site: Option<String>,
    /// The directory of the cluster that `cluster up` started
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = DEFAULT_DIR
    )]
    dir: PathBuf,
    #[command(flatten)]
    credentials: ClientCredentials,
    /// How long to wait for an answer, in seconds. If nobody accepts the first connection, the command
    /// fails at once; if replicas end later, they are tried again until the time is over
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        default_value_t = 10.0,
        allow_negative_numbers = true
    )]
    timeout: f64,
    /// Also says how the request was served, how long it took, and the value's version. No effect on `import`
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Keys and values are hexadecimal digits, in arguments and in the output. Files and standard input are
    /// read as they are. `export` writes the digits as key_hex and value_hex. No effect on `import`
    #[arg(long, global = true, conflicts_with = "escapes")]
    hex: bool,
    /// Arguments may have the escapes \n, \t, \r, \\, \xff (a byte) and \u{1b} (a character). Printed keys
    /// and values have them, too, except in JSON. Files and standard input are read as they are. No effect
    /// on `import`
    #[arg(long, global = true)]
    escapes: bool,
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Subcommand)]
enum KvCommand {
    #[command(flatten)]
    Single(SingleKeyCommand),
    /// Executes several operations at one moment, on condition that comparisons hold; exit status 1 if one
    /// does not
    Txn(txn::TxnArgs),
    /// Prints keys and values in key order, a line for each: the key, a tab, the value. In keys, control
    /// characters and backslashes are always shown as escapes. In values, control characters are shown
    /// as escapes only on a terminal; elsewhere the bytes are written as they are
    ///
    /// Many entries are read page by page. A page has up to 10,000 entries and is read at one moment.
    /// Several pages are not from one moment if somebody writes meanwhile.
    Scan(scan::ScanArgs),
    /// Writes all keys and values to a file, in key order, a line of JSON for each
    ///
    /// A line is {"key":"k","value":"v"}. A key or value that is not UTF-8 is called key_hex or value_hex,
    /// and consists of hexadecimal digits. The file is written page by page. A page has up to 10,000
    /// entries and is read at one moment. Several pages are not from one moment if somebody writes
    /// meanwhile.
    Export(export::ExportArgs),
    /// Writes the keys and values of a file that `kv export` or `kv scan --json` wrote
    ///
    /// A line is {"key":"k","value":"v"}. Bytes that are not text are hexadecimal digits in key_hex or
    /// value_hex.
    ///
    /// The file is written in batches of up to 1,000 lines or about 256 KiB. Only the lines of one batch are
    /// written at one moment. If a key is in several lines, the last one counts. Keys that are not in the
    /// file stay as they are.
    Import(import::ImportArgs),
}

impl KvArgs {
    fn notation(&self) -> anyhow::Result<Notation> {
        match (self.hex, self.escapes) {
            (true, true) => bail!("--hex and --escapes both name a notation; give one of them"),
            (true, false) => Ok(Notation::Hex),
            (false, true) => Ok(Notation::Escapes),
            (false, false) => Ok(Notation::Plain),
        }
    }

    fn timeout(&self) -> anyhow::Result<Duration> {
        if !(self.timeout > 0.0 && self.timeout < TIMEOUT_S_MAX) {
            bail!(
                "--timeout: {} is not a number of seconds above 0 and below {TIMEOUT_S_MAX}",
                self.timeout
            );
        }
        Ok(Duration::from_secs_f64(self.timeout))
    }

    fn connector(&self) -> anyhow::Result<Connector> {
        let timeout = self.timeout()?;
        let connector = Connector::new(&self.addresses, &self.dir, self.site.as_deref())?;
        let mut connector = connector.with(&self.credentials)?;
        connector.options.request_timeout = timeout;
        Ok(connector)
    }
}

pub fn run(args: &KvArgs) -> anyhow::Result<()> {
    // The parser detects conflicts only between options on the same side of the subcommand.
    if !args.addresses.is_empty() && args.site.is_some() {
        bail!("--address and --site both name a replica; give one of them");
    }
    let notation = args.notation()?;
    let runtime = runtime()?;
    let result = match &args.command {
        KvCommand::Single(command) => {
            let op = command.op(notation)?;
            let connector = args.connector()?;
            runtime.block_on(command.run(op, notation, &connector, args.verbose))
        }
        KvCommand::Txn(command) => {
            let txn = command.txn(notation)?;
            let connector = args.connector()?;
            runtime.block_on(command.run(txn, notation, &connector, args.verbose))
        }
        KvCommand::Scan(scan) => {
            let pages = scan.pages(notation)?;
            let connector = args.connector()?;
            runtime.block_on(scan.run(pages, notation, &connector, args.verbose))
        }
        KvCommand::Export(export) => {
            let range = export.range(notation)?;
            let connector = args.connector()?;
            runtime.block_on(export.run(range, notation, &connector, args.verbose))
        }
        KvCommand::Import(import) => {
            let connector = args.connector()?;
            runtime.block_on(import.run(&connector))
        }
    };
    // A thread that waits for an output or an input must not keep the program from ending.
    runtime.shutdown_background();
    result
}
