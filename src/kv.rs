//! `leasehold kv`.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::{Args, Subcommand};
use leasehold_client::{Client, OperationTrace, RawReply};
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Path, Version};

use crate::connector::{ClientCredentials, ConnectedClient, Connector};
use crate::terminal::{escaped, note, print_bytes, runtime};

#[derive(Args)]
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
        default_value = "leasehold-cluster"
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
    /// Also says how the request was served, how long it took, and the value's version
    #[arg(short, long, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Subcommand)]
enum KvCommand {
    /// Prints the value of a key; exit status 1 if there is none. On a terminal, control characters other
    /// than line ends and tabs are shown as escapes, such as \u{1b}; elsewhere the bytes are written as they are
    Get {
        /// The key
        key: String,
    },
    /// Writes a value
    Put {
        /// The key
        key: String,
        /// The value; `-`: standard input
        value: String,
    },
    /// Removes a key
    Del {
        /// The key
        key: String,
    },
    /// Writes a value if the key still has a version; exit status 1 if not
    Cas {
        /// The key
        key: String,
        /// The version expected, as `kv get -v` prints it (slot.index), or `absent`
        expected: String,
        /// The value; `-`: standard input
        value: String,
    },
    /// Prints keys and values in key order, a line for each: the key, a tab, the value. In keys, control
    /// characters and backslashes are always shown as escapes. In values, control characters are shown
    /// as escapes only on a terminal; elsewhere the bytes are written as they are
    Scan {
        /// First key
        #[arg(default_value = "", hide_default_value = true)]
        from: String,
        /// Where to stop, exclusive [default: the end]
        #[arg(default_value = "", hide_default_value = true)]
        to: String,
        /// Most entries to print
        #[arg(long, allow_negative_numbers = true, default_value_t = 100)]
        limit: u32,
    },
}

pub fn run(args: &KvArgs) -> anyhow::Result<()> {
    // The parser detects conflicts only between options on the same side of the subcommand.
    if !args.addresses.is_empty() && args.site.is_some() {
        bail!("--address and --site both name a replica; give one of them");
    }
    let op = op(&args.command)?;
    let timeout = timeout(args)?;
    let connector = Connector::new(&args.addresses, &args.dir, args.site.as_deref())?;
    let mut connector = connector.with(&args.credentials)?;
    connector.options.request_timeout = timeout;
    runtime()?.block_on(async {
        let ConnectedClient { client, before } = connector.connect().await?;
        let started = Instant::now();
        let (reply, trace) = client.raw().execute_traced(op).await;
        let (reply, took) = (reply?, started.elapsed());
        let mut dead = silent(&client, &trace, &reply.replica);
        if let Some(before) = before {
            let trace = OperationTrace::default();
            dead.extend(silent(&before, &trace, &reply.replica));
        }
        warn_dead_replicas(dead, &connector, &reply);
        if args.verbose {
            note!(
                "served: {}, {:.2} ms, at {}",
                path_name(reply.path),
                took.as_secs_f64() * 1e3,
                reply.replica
            );
        }
        warn_truncated_scan(&args.command, &reply);
        print(&reply, args.verbose)
    })
}

/// Replicas that did not answer: for each address, the reason.
type DeadReplicas = BTreeMap<String, String>;

/// Returns the replicas that are dead, or did not answer the traced operation, with the reasons.
/// `answered` is the name of the replica that answered in the end. It may have answered late, after
/// the request was sent to another replica, too.
fn silent(client: &Client, trace: &OperationTrace, answered: &str) -> DeadReplicas {
    let replicas = client.health().replicas.into_iter().enumerate();
    let replicas = replicas.filter(|(_, it)| it.replica.as_deref() != Some(answered));
    let dead = replicas.filter_map(|(at, replica)| match replica.dead {
        Some((_, reason)) => Some((replica.address, reason)),
        None if trace.silent.contains(&at) => Some((replica.address, "no answer".to_owned())),
        None => None,
    });
    dead.collect()
}

fn warn_dead_replicas(dead: DeadReplicas, connector: &Connector, reply: &RawReply) {
    for (address, reason) in dead {
        let name = &reply.replica;
        let address = connector.named(&address);
        note!("note: {address} does not answer ({reason}); {name} was asked instead");
    }
}

/// Prints a warning if a scan may have omitted entries. A scan may have omitted entries if the
/// number of returned entries equals the limit of the scan.
fn warn_truncated_scan(command: &KvCommand, reply: &RawReply) {
    if let KvCommand::Scan { limit, .. } = command
        && let Some(Answer::Entries(found)) = &reply.outcome.result
        && found.entries.len() as u64 == u64::from(*limit)
    {
        note!("note: {limit} entries, and there may be more: --limit sets how many are printed");
    }
}

fn timeout(args: &KvArgs) -> anyhow::Result<Duration> {
    if !(args.timeout > 0.0 && args.timeout < 1e6) {
        bail!(
            "--timeout: {} is not a number of seconds above 0",
            args.timeout
        );
    }
    Ok(Duration::from_secs_f64(args.timeout))
}

fn op(command: &KvCommand) -> anyhow::Result<Op> {
    let bytes = |text: &String| Bytes::from(text.clone());
    Ok(match command {
        KvCommand::Get { key } => Op::get(bytes(key)),
        KvCommand::Put { key, value } => Op::put(bytes(key), read_value(value)?),
        KvCommand::Del { key } => Op::delete(bytes(key)),
        KvCommand::Cas {
            key,
            expected,
            value,
        } => {
            let expected = version(expected)?;
            Op::cas(bytes(key), read_value(value)?, expected)
        }
        KvCommand::Scan { from, to, limit } => Op::scan(bytes(from), bytes(to), *limit),
    })
}

/// Returns the value of a command-line argument. If the argument is `-`, reads the value from
/// standard input.
fn read_value(argument: &str) -> anyhow::Result<Bytes> {
    if argument != "-" {
        return Ok(Bytes::from(argument.to_owned()));
    }
    let mut read = Vec::new();
    let input = std::io::stdin().read_to_end(&mut read);
    input.context("reading standard input")?;
    Ok(read.into())
}

fn version(text: &str) -> anyhow::Result<Option<Version>> {
    if text == "absent" {
        return Ok(None);
    }
    let parsed = text.split_once('.').and_then(|(slot, index)| {
        Some(Version {
            slot: slot.parse().ok()?,
            index: index.parse().ok()?,
        })
    });
    let wanted = "a version is written slot.index, as `kv get -v` prints it, or `absent`";
    parsed
        .map(Some)
        .with_context(|| format!("expected: '{text}' is no version; {wanted}"))
}

fn path_name(path: Path) -> &'static str {
    match path {
        Path::Local => "locally, under this replica's own lease",
        Path::Held => "locally, after a write in flight",
        Path::Forwarded => "by the nearest holder",
        Path::ReadIndex => "by the leader, confirmed by a majority",
        Path::Log => "through the log",
        Path::Unspecified => "in a way unknown to this version",
    }
}

fn print(reply: &RawReply, verbose: bool) -> anyhow::Result<()> {
    let is_terminal = std::io::stdout().is_terminal();
    let mut version = None;
    match &reply.outcome.result {
        Some(Answer::Value(found)) => {
            print_bytes(&value_line(&found.value, is_terminal));
            version = Some(found.version.as_ref());
        }
        Some(Answer::Entries(entries)) => {
            let lines = entries.entries.iter();
            let lines = lines.map(|entry| entry_line(&entry.key, &entry.value, is_terminal));
            print_bytes(&lines.collect::<Vec<_>>().concat());
        }
        Some(Answer::Written(written)) => version = Some(Some(written)),
        Some(Answer::Missing(_)) => bail!("there is no such key"),
        Some(Answer::Mismatch(found)) => {
            bail!(
                "not written: its version is {}",
                shown(found.actual.as_ref())
            )
        }
        Some(Answer::Error(error)) => bail!("{}", error.message),
        None => bail!("the replica's answer is of a kind this version does not know"),
    }
    if let Some(version) = version.filter(|_| verbose) {
        note!("version: {}", shown(version));
    }
    Ok(())
}

/// Returns the line that `get` prints for this value.
fn value_line(value: &[u8], is_terminal: bool) -> Vec<u8> {
    let must_escape = |letter: char| letter.is_control() && !['\n', '\t'].contains(&letter);
    if is_terminal {
        [escaped(value, must_escape).as_bytes(), b"\n"].concat()
    } else {
        [value, b"\n"].concat()
    }
}

/// Returns the line that `scan` prints for this entry.
fn entry_line(key: &[u8], value: &[u8], is_terminal: bool) -> Vec<u8> {
    let key = escaped(key, |letter| letter.is_control() || letter == '\\');
    let key = key.as_bytes();
    if is_terminal {
        [
            key,
            b"\t",
            escaped(value, char::is_control).as_bytes(),
            b"\n",
        ]
        .concat()
    } else {
        [key, b"\t", value, b"\n"].concat()
    }
}

/// Formats a version in the notation that `kv cas` accepts.
fn shown(version: Option<&Version>) -> String {
    version.map_or("absent".to_string(), |v| format!("{}.{}", v.slot, v.index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_shown_no_control_characters_and_a_pipe_gets_the_bytes() {
        let value = "a\u{1b}[2J\r\n\t\u{9b}Z\\é".as_bytes();
        let value = [value, &[0xff]].concat();
        let shown = String::from_utf8(value_line(&value, true)).unwrap();
        assert_eq!(shown, "a\\u{1b}[2J\\r\n\t\\u{9b}Z\\é\\xff\n");
        assert_eq!(value_line(&value, false), [&value[..], b"\n"].concat());

        let shown = String::from_utf8(entry_line(b"k\t\\1", b"a\nb\x07", true)).unwrap();
        assert_eq!(shown, "k\\t\\\\1\ta\\nb\\u{7}\n");
        let piped = entry_line(b"k\t\\1", b"a\nb\x07", false);
        assert_eq!(piped, b"k\\t\\\\1\ta\nb\x07\n");
    }
}
