//! The command line of YCSB: `ycsb load|run [db] -P file -p k=v -s -threads n -target n -l label`,
//! with one or two dashes before long options.

use crate::properties::{Properties, PropertyError};
use crate::runner::Phase;

/// Action that a command line requests.
#[derive(Debug)]
pub enum Invocation {
    /// Carries out a workload.
    Execute(Box<YcsbArgs>),
    /// Shows this help text.
    Help(&'static str),
}

/// A command line that was parsed.
#[derive(Clone, Debug)]
pub struct YcsbArgs {
    /// Phase: load or run.
    pub phase: Phase,
    /// Properties from the files and the arguments. If both set a property, the argument takes
    /// precedence.
    pub properties: Properties,
    /// Warnings about ignored parts of the command line, with the reasons.
    pub warnings: Vec<String>,
}

/// Reason why a command line cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// The phase is neither `load` nor `run`.
    #[error("found \"{0}\", expected load or run; --help shows how")]
    Phase(String),
    /// An option that needs a value has none.
    #[error("{option} needs a value: {expected}")]
    NoValue {
        /// The option, as the user typed it.
        option: String,
        /// Description of the values that the option accepts.
        expected: &'static str,
    },
    /// There is no option of this name.
    #[error("unknown option {0}; --help shows all")]
    Unknown(String),
    /// A property has a fault.
    #[error(transparent)]
    Property(#[from] PropertyError),
}

/// The text that `--help` shows.
pub const HELP: &str = "\
Carry out a YCSB workload against Leasehold.

Usage: leasehold ycsb load|run [options]

  load                insert the records (recordcount, insertstart, insertcount)
  run                 carry out the operations (operationcount, maxexecutiontime)

Options (long ones with one dash or two):
  -P FILE             read properties from FILE; repeatable, later files win.
                      workloada ... workloadf are built in, by these names alone
  -p NAME=VALUE       set a property; wins over files
      --address LIST  HOST:PORT of a replica, or several separated by commas, which
                      the threads use in turn (property leasehold.address). While one
                      is dead, its threads ask the replica nearest to it
      --ca FILE       the certificate of the cluster's authority, its ca.pem, to talk over
                      TLS (leasehold.ca; otherwise the environment's LEASEHOLD_CA)
      --token-file FILE
                      the token of the clients, which only its owner may read
                      (leasehold.token_file; otherwise the file that the environment's
                      LEASEHOLD_TOKEN_FILE names)
      --plain-token   send the token in plain text if there is no --ca, also to other
                      machines (leasehold.plain_token=true)
      --threads N     operations in flight at most (threadcount, default 1)
      --target OPS    operations a second in all (target, default: as many as go);
                      latency then also counts from each operation's intended start
  -s                  show the status on stderr (every status.interval seconds)
  -l LABEL            put LABEL in front of the status (label)
  -h, --help          show this

Properties of YCSB's core workload, and some of our own:
  requestdistribution   uniform, zipfian (YCSB's: scrambled, hottest record 3.8%),
                        zipfian_exact (Zipf over exactly recordcount records),
                        latest, hotspot, exponential, sequential. With insertions, zipfian
                        is YCSB's up to operationcount x insertproportion = 50 x recordcount
  txnproportion         share of transactions: each reads a record and, if it exists, writes
                        others at the same moment (0). They are reported as [TXN]
  txnkeys               records of a transaction, of which the first is read and the others
                        are written: 2 to 16 (2). A record may be drawn several times
  zipfian.constant      theta of zipfian_exact (0.99)
  insertorder           hashed (the keys are scattered) or ordered (hashed)
  insertpart=I/N        this is load generator I of N, which all insert in the run: each
                        inserts records of its own (1/1)
  permutation=site      a different order of popularity at each site
  site                  name of the site of each address, or one for all (the names of
                        the replicas); the name of another replica is refused, and so are
                        blanks and colons
  seed                  equal seeds give equal operations (1)
  warmuptime            seconds at the start that are not measured (0)
  measurement.interval  op, intended, both (op; with a target: both)
  hdrhistogram.fileoutput=true, hdrhistogram.output.path=PREFIX
                        write interval logs and percentile distributions
  hdrhistogram.interval seconds of each interval in those logs (1)
  core_workload_insertion_retry_limit=N, core_workload_insertion_keep_going_on_error=true
                        try a failed insertion of the load again; go on without it.
                        Otherwise the load ends there (0, false)
  leasehold.connections connections that the threads share, so that each has several
                        operations in flight: -threads 160 with 10 connections has 16 on
                        each (as many as threads, as in YCSB)
  leasehold.cores       threads of the operating system that serve the connections (one for
                        each five connections, at most half of the processors)
  leasehold.routing     local: threads ask the replica of their own site (default).
                        lease-aware: reads are asked of a replica that holds the key, of
                        near ones in turn, and writes of the leader, by hints in answers;
                        each connection is then one to every address
  leasehold.start       seconds since 1970 at which to begin, so that several load
                        generators begin together
  leasehold.timeout_ms  time allowed to an operation, with all its attempts (10000).
                        While all replicas refuse connections, they are tried again
                        until then. If all refuse the first one, the run does not begin
  leasehold.attempt_timeout_ms
                        time after which another replica is asked, too (1000)

The report accounts for every operation that was due: [OVERALL] counts those that
succeeded, failed, were abandoned without an answer at the end, and were never sent.
The last two are in the latencies from the intended start, with the time up to the end.
Sites have lines of their own ([READ@JP], [READ@JP:local]), with the longest time
without a successful answer ([READS@JP], LongestGap(ms)), and so have replicas.

The report goes to standard output, or into exportfile=FILE. It is also printed if that
file cannot be written, and whatever other file cannot be.

Exit status: 0; 1 if the run failed, no measured operation succeeded, an insertion ended the
load, or a file could not be written; 3 if the target was missed: at the end more
operations were behind than one for each thread and one in a hundred; 130 after Ctrl-C,
TERM or HUP (a terminal that is gone), which print the report so far.

Replicas with certificates, as those of `leasehold cluster up`, need
--ca leasehold-cluster/certificates/ca.pem besides.

Examples:
  leasehold ycsb load --address 127.0.0.1:7001 --ca leasehold-cluster/certificates/ca.pem \\
      -P workloada -p recordcount=100000 -threads 16
  leasehold ycsb run  --address 127.0.0.1:7001 --ca leasehold-cluster/certificates/ca.pem \\
      -P workloada -p recordcount=100000 -p operationcount=1000000 -threads 16 -s
  leasehold ycsb run  --address 127.0.0.1:7001 --ca leasehold-cluster/certificates/ca.pem \\
      -P workloadb -p recordcount=100000 -p requestdistribution=zipfian_exact \\
      -p permutation=site -p site=CA -target 2000 -p maxexecutiontime=60 -p warmuptime=10
";

/// Parses the arguments after `leasehold ycsb`.
///
/// # Errors
/// If the arguments cannot be parsed, or a property file cannot be read.
pub fn parse<I>(arguments: I) -> Result<Invocation, ArgsError>
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    let mut rest = arguments.into_iter().map(Into::into);
    let phase = match rest.next().as_deref() {
        None | Some("-h" | "-help" | "--help") => return Ok(Invocation::Help(HELP)),
        Some("load") => Phase::Load,
        Some("run") => Phase::Run,
        Some(other) => return Err(ArgsError::Phase(other.to_owned())),
    };
    parse_options(phase, &mut rest)
}

fn parse_options(
    phase: Phase,
    rest: &mut dyn Iterator<Item = String>,
) -> Result<Invocation, ArgsError> {
    let mut options = Options::default();
    while let Some(argument) = rest.next() {
        if let ("h" | "help", _) = split(&argument) {
            return Ok(Invocation::Help(HELP));
        }
        options.take(&argument, rest)?;
    }
    let properties = layer(&options.files, &options.arguments)?;
    let mut warnings = options.warnings;
    warnings.extend(properties.warnings());
    Ok(Invocation::Execute(Box::new(YcsbArgs {
        phase,
        properties,
        warnings,
    })))
}

/// Options parsed so far.
#[derive(Default)]
struct Options {
    files: Vec<String>,
    /// Arguments of `-p`, each `name=value`.
    arguments: Vec<String>,
    warnings: Vec<String>,
}

impl Options {
    /// Handles an option and its value. If the value is not attached to the option, the value is
    /// the next element of `rest`.
    fn take(
        &mut self,
        argument: &str,
        rest: &mut dyn Iterator<Item = String>,
    ) -> Result<(), ArgsError> {
        let (option, attached) = split(argument);
        let mut value = |expected| {
            let value = attached.map(str::to_owned).or_else(|| rest.next());
            value.ok_or_else(|| ArgsError::NoValue {
                option: argument.to_owned(),
                expected,
            })
        };
        let property = match option {
            "P" => {
                self.files.push(value("a property file")?);
                return Ok(());
            }
            "p" => value("name=value")?,
            "plain-token" => "leasehold.plain_token=true".to_owned(),
            "s" => "status=true".to_owned(),
            "l" | "label" => format!("label={}", value("a label")?),
            "threads" => format!("threadcount={}", value("a number")?),
            "target" => format!("target={}", value("operations a second")?),
            "address" => format!("leasehold.address={}", value("HOST:PORT[,...]")?),
            "ca" => format!("leasehold.ca={}", value("a file")?),
            "token-file" => format!("leasehold.token_file={}", value("a file")?),
            "db" | "jvm-args" | "cp" => {
                let value = value("a value, which is ignored")?;
                return self.ignore(&format!("-{option} {value}"), OTHER_STORE);
            }
            "load" | "t" => return self.ignore(argument, "the phase was named before"),
            // `ycsb run mongodb -P ...`: the name of the binding comes first.
            _ if !argument.starts_with('-') && self.is_empty() => {
                return self.ignore(argument, OTHER_STORE);
            }
            _ => return Err(ArgsError::Unknown(argument.to_owned())),
        };
        self.arguments.push(property);
        Ok(())
    }

    /// Returns true if the options contain no file and no property yet.
    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.arguments.is_empty()
    }

    fn ignore(&mut self, what: &str, why: &str) -> Result<(), ArgsError> {
        self.warnings.push(format!("{what} is ignored: {why}"));
        Ok(())
    }
}

/// Reason why an option that chooses a store is ignored.
const OTHER_STORE: &str = "the store is Leasehold";

/// Splits an option into its name without dashes and the value after a `=`. The name is empty if
/// the argument is not an option.
fn split(argument: &str) -> (&str, Option<&str>) {
    let long = argument.strip_prefix("--");
    let Some(option) = long.or_else(|| argument.strip_prefix('-')) else {
        return ("", None);
    };
    match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    }
}

fn layer(files: &[String], arguments: &[String]) -> Result<Properties, PropertyError> {
    let mut properties = Properties::new();
    for file in files {
        properties.load_file(file)?;
    }
    for argument in arguments {
        properties.load_argument(argument)?;
    }
    Ok(properties)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn go(line: &str) -> YcsbArgs {
        match parse(line.split_whitespace()).unwrap() {
            Invocation::Execute(args) => *args,
            Invocation::Help(_) => panic!("{line} asks for help"),
        }
    }

    fn refusal(line: &str) -> String {
        parse(line.split_whitespace()).unwrap_err().to_string()
    }

    #[test]
    fn a_ycsb_users_line_is_understood() {
        let args = go(
            "run mongodb -s -P workloads/workloada -P workloadb -threads 8 \
                       -target 500 -p recordcount=77 -l west --address a:1,b:2",
        );
        assert_eq!(args.phase, Phase::Run);
        let get = |name| args.properties.get(name);
        assert_eq!(get("recordcount"), Some("77"), "-p wins over files");
        assert_eq!(get("readproportion"), Some("0.95"), "the second file wins");
        assert_eq!(get("threadcount"), Some("8"));
        assert_eq!(get("target"), Some("500"));
        assert_eq!(get("status"), Some("true"));
        assert_eq!(get("label"), Some("west"));
        assert_eq!(get("leasehold.address"), Some("a:1,b:2"));
        assert_eq!(
            args.warnings,
            ["mongodb is ignored: the store is Leasehold"]
        );
    }

    #[test]
    fn dashes_and_equals_signs_are_all_one() {
        for line in [
            "load -threads 3",
            "load --threads 3",
            "load --threads=3",
            "load -threads=3",
            "load -p threadcount=3",
        ] {
            let args = go(line);
            assert_eq!(args.phase, Phase::Load);
            assert_eq!(args.properties.get("threadcount"), Some("3"), "{line}");
        }
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let args = go("run -db site.ycsb.BasicDB -p mystery=1 -t");
        assert_eq!(args.warnings.len(), 3, "{:?}", args.warnings);
        assert!(args.warnings[0].contains("-db site.ycsb.BasicDB is ignored"));
        assert!(args.warnings[2].contains("unknown property mystery"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(refusal("shell").contains("found \"shell\", expected load or run"));
        assert!(refusal("run -threads").contains("-threads needs a value"));
        assert!(refusal("run --frobnicate 3").contains("unknown option --frobnicate"));
        assert!(refusal("run -s stray").contains("unknown option stray"));
        assert!(refusal("run -p recordcount").contains("expected name=value"));
        assert!(refusal("run -P /no/such/file").contains("/no/such/file"));
    }

    #[test]
    fn every_example_is_a_command_for_the_usual_cluster() {
        let (_, examples) = HELP.split_once("Examples:\n").unwrap();
        let examples = examples.replace("\\\n", " ");
        assert_eq!(examples.lines().count(), 3);
        for line in examples.lines() {
            let words = line.trim_start().strip_prefix("leasehold ycsb ").unwrap();
            assert!(words.contains("--ca leasehold-cluster/"), "{line}");
            go(words);
        }
    }

    #[test]
    fn help_is_shown_when_asked_for() {
        for line in ["", "--help", "-h", "run -P workloada --help", "load -h"] {
            let parsed = parse(line.split_whitespace()).unwrap();
            assert!(
                matches!(parsed, Invocation::Help(text) if text.contains("Examples:")),
                "{line}"
            );
        }
    }
}
