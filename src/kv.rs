//! `leasehold kv`.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::{Args, Subcommand};
use client::wire::command::Op;
use client::wire::outcome::Result as Answer;
use client::wire::{Path, Version};
use client::{Client, ClientOptions, Reply};
use geo_deploy::standing::State;

use crate::terminal::runtime;

#[derive(Args)]
pub struct KvArgs {
    /// A replica's client address [default: the cluster that `cluster up` started]
    #[arg(long, global = true, value_name = "HOST:PORT", conflicts_with_all = ["site", "dir"])]
    address: Option<String>,
    /// The site whose replica to ask [default: the leader's]
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
    /// How long to wait for an answer, in seconds
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
    /// Prints the value of a key; exit status 1 if there is none
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
        /// The value
        value: String,
    },
    /// Prints keys and values in key order
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
    // The parser compares only what stands on the same side of the subcommand.
    if args.address.is_some() && args.site.is_some() {
        bail!("--address and --site both name a replica; give one of them");
    }
    let op = op(&args.command)?;
    let options = options(args)?;
    runtime()?.block_on(async {
        let client = connect(args, options).await?;
        let started = Instant::now();
        let reply = client.execute(op).await?;
        let took = started.elapsed();
        if args.verbose {
            eprintln!(
                "served: {}, {:.2} ms",
                path_name(reply.path),
                took.as_secs_f64() * 1e3
            );
        }
        print(&reply, args.verbose)
    })
}

async fn connect(args: &KvArgs, options: ClientOptions) -> anyhow::Result<Client> {
    let connected = Client::connect(options).await;
    if args.address.is_some() {
        return Ok(connected?);
    }
    connected.with_context(|| {
        format!(
            "this replica is not up; --site NAME asks another, and `leasehold cluster status --dir \
             {}` shows which are",
            args.dir.display()
        )
    })
}

fn options(args: &KvArgs) -> anyhow::Result<ClientOptions> {
    if !(args.timeout > 0.0 && args.timeout < 1e6) {
        bail!(
            "--timeout: {} is not a number of seconds above 0",
            args.timeout
        );
    }
    let mut options = match &args.address {
        Some(address) => of_address(address)?,
        None => of_site(args)?,
    };
    options.request_timeout = Duration::from_secs_f64(args.timeout);
    Ok(options)
}

fn of_address(address: &str) -> anyhow::Result<ClientOptions> {
    let port = address
        .rsplit_once(':')
        .map(|(_, port)| port.parse::<u16>());
    if !matches!(port, Some(Ok(1..))) {
        bail!("--address: '{address}' is no HOST:PORT, as in 127.0.0.1:7001");
    }
    Ok(ClientOptions::new(address))
}

/// The replica of a standing cluster at the site asked for, or at the leader's.
fn of_site(args: &KvArgs) -> anyhow::Result<ClientOptions> {
    let state = State::load(&args.dir)?;
    let site = args.site.as_ref().unwrap_or(&state.leader);
    let port = state.clients.iter().find(|port| port.site == *site);
    let port = port.with_context(|| {
        let known: Vec<&str> = state.clients.iter().map(|p| p.site.as_str()).collect();
        format!(
            "--site: there is no site '{site}'; there are {}",
            known.join(", ")
        )
    })?;
    let mut options = ClientOptions::new(port.address.to_string());
    options.cluster = Some(state.cluster);
    Ok(options)
}

fn op(command: &KvCommand) -> anyhow::Result<Op> {
    let bytes = |text: &String| Bytes::from(text.clone());
    Ok(match command {
        KvCommand::Get { key } => Op::get(bytes(key)),
        KvCommand::Put { key, value } if value == "-" => {
            let mut read = Vec::new();
            std::io::stdin()
                .read_to_end(&mut read)
                .context("reading standard input")?;
            Op::put(bytes(key), read)
        }
        KvCommand::Put { key, value } => Op::put(bytes(key), bytes(value)),
        KvCommand::Del { key } => Op::delete(bytes(key)),
        KvCommand::Cas {
            key,
            expected,
            value,
        } => Op::cas(bytes(key), bytes(value), version(expected)?),
        KvCommand::Scan { from, to, limit } => Op::scan(bytes(from), bytes(to), *limit),
    })
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

fn print(reply: &Reply, verbose: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut version = None;
    match &reply.outcome.result {
        Some(Answer::Value(found)) => {
            out.write_all(&[&found.value[..], b"\n"].concat())?;
            version = Some(found.version.as_ref());
        }
        Some(Answer::Entries(entries)) => {
            for entry in &entries.entries {
                out.write_all(&[&entry.key[..], b"\t", &entry.value, b"\n"].concat())?;
            }
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
        eprintln!("version: {}", shown(version));
    }
    Ok(())
}

/// A version as `kv cas` takes it.
fn shown(version: Option<&Version>) -> String {
    version.map_or("absent".to_string(), |v| format!("{}.{}", v.slot, v.index))
}
