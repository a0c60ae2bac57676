//! Measures how long a replica needs, after a kill, to execute many writes that lie in its log above
//! its flushed state.
//!
//! A replica flushes its state every 10 s and after 16 MiB of writes, so its log normally has few
//! writes above this state. This program undoes the flushes: it copies the state before the writes,
//! and puts the copy back after a kill. The log stays as it is. It still has all entries, because
//! one replica of the cluster is down during the writes, and entries are kept for it.

#[path = "../common/cluster.rs"]
#[expect(dead_code, reason = "attacks use more of it")]
mod cluster;
#[path = "../common/processor.rs"]
#[expect(dead_code, reason = "charges use more of it")]
mod processor;
#[path = "../common/provenance.rs"]
mod provenance;

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use leasehold_client::{Client, ClientOptions};
use leasehold_wire::{StatusReply, StatusRequest};
use leasehold_ycsb::{note, say};

use crate::cluster::{Cluster, LEADER, Recipe, Setting};

/// Number of replicas of the cluster. The last one is down during the writes.
const REPLICAS: usize = 3;
/// Number of clients that write. Each client has one write in flight.
const CLIENTS: u64 = 160;
/// Number of keys that are written again and again.
const KEYS: u64 = 100_000;
/// Folder of a data directory that holds the log.
const LOG: &str = "log";
/// Entries of a data directory that are not part of the executed state.
const NOT_STATE: [&str; 3] = [LOG, "reserve", "LOCK"];
/// Longest time to wait until the writes are executed.
const EXECUTED_WITHIN: Duration = Duration::from_secs(120);
/// Interval between two requests for a status.
const POLL: Duration = Duration::from_millis(10);

#[derive(Parser)]
#[command(name = "replay")]
/// Measures how long a replica needs to execute the writes in its log after a kill
///
/// The replicas run on loopback, and one of them is started alone. Temporary files go to TMPDIR.
/// They take about 400 MiB, and 0.6 KiB more for each write if values have 64 bytes.
struct Cli {
    /// Number of writes above the flushed state
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    writes: u64,
    /// Length of each value, in bytes
    #[arg(long, value_name = "N", default_value_t = 64)]
    bytes: usize,
    /// Number of starts that are measured on each of two replicas
    #[arg(long, value_name = "N", default_value_t = 3)]
    starts: usize,
    /// The file with the results
    #[arg(long, value_name = "FILE", default_value = "results/replay.md")]
    out: PathBuf,
    /// The program to measure [default: the `leasehold` of the same build]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// The revision that the program was built from, for the report [default: that of the sources
    /// here, unless --binary names another program]
    #[arg(long, value_name = "NAME")]
    revision: Option<String>,
}

/// Figures of one start.
struct MeasuredStart {
    replica: usize,
    /// Time from the start of the process until it first answers a status. It has read its state and
    /// its log by then.
    served: Duration,
    /// Time from the start of the process until everything committed was executed.
    executed: Duration,
    /// Processor time of the process until everything committed was executed.
    processor: Duration,
    /// Number of slots that the replica executed.
    slots: u64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let measured = run(&cli);
    let printed = || leasehold_ycsb::output::finish().context("writing to standard output");
    match measured.and_then(|()| printed()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note!("replay: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let (binary, program) = provenance::choose(cli.binary.as_deref(), cli.revision.as_deref())?;
    let recipe = Recipe {
        binary,
        replicas: REPLICAS,
        durability: "sync".to_owned(),
        keep: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    let starts = runtime.block_on(tasks.run_until(async {
        let terminated = leasehold_node::terminated()?;
        tokio::select! {
            biased;
            () = terminated => bail!("interrupted; no replica is left running"),
            measured = measure(cli, &recipe) => measured,
        }
    }))?;
    let report = report(cli, &program, &starts);
    say!("{report}");
    if let Some(folder) = cli.out.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&cli.out, report).with_context(|| format!("writing {}", cli.out.display()))
}

async fn measure(cli: &Cli, recipe: &Recipe) -> anyhow::Result<Vec<MeasuredStart>> {
    let mut cluster = Cluster::start(recipe, Setting::USUAL, "replay")?;
    cluster.ready().await?;
    cluster.kill();
    let copies = tempfile::tempdir().context("making a temporary directory")?;
    let replicas = 0..REPLICAS - 1;
    for replica in replicas.clone() {
        copy_state(
            &cluster.data(replica),
            &copies.path().join(replica.to_string()),
        )?;
        cluster.start_one(replica)?;
    }
    cluster.ready().await?;
    note!("writing {} values of {} bytes", cli.writes, cli.bytes);
    let begun = Instant::now();
    write_all(cli, &cluster.clients[LEADER]).await?;
    note!("written in {:.0} s", begun.elapsed().as_secs_f64());
    let mut starts = Vec::new();
    for _ in 0..cli.starts {
        for replica in replicas.clone() {
            cluster.kill();
            let copy = copies.path().join(replica.to_string());
            replace_state(&cluster.data(replica), &copy)?;
            starts.push(measure_start(&mut cluster, replica).await?);
        }
    }
    Ok(starts)
}

/// Writes the values, with all clients at the same time.
async fn write_all(cli: &Cli, address: &str) -> anyhow::Result<()> {
    let next = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let options = ClientOptions::new(address);
        let (next, writes, bytes) = (next.clone(), cli.writes, cli.bytes);
        tasks.push(tokio::task::spawn_local(async move {
            let client = Client::connect(options).await?;
            while next.get() < writes {
                let number = next.get();
                next.set(number + 1);
                // The step is coprime to the number of keys, so all keys are visited.
                let key = format!("user{:08}", number * 7_919 % KEYS);
                client.put(key, vec![b'v'; bytes]).await?;
            }
            client.close();
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Starts one replica alone. Measures how long it takes until it has executed everything that its
/// log says is committed.
async fn measure_start(cluster: &mut Cluster, replica: usize) -> anyhow::Result<MeasuredStart> {
    let begun = Instant::now();
    cluster.start_one(replica)?;
    let (mut served, mut first) = (None, 0);
    loop {
        ensure!(
            begun.elapsed() < EXECUTED_WITHIN && cluster.ended(replica).is_none(),
            "the replica does not execute its log. {}",
            cluster.last_log_lines()
        );
        if let Some(status) = status(cluster, replica).await {
            let after = begun.elapsed();
            if served.is_none() {
                (served, first) = (Some(after), status.executed);
            }
            if status.executed >= status.committed {
                note!("{replica}: executed after {:.2} s", after.as_secs_f64());
                let id = cluster.processes()[replica].context("the replica has ended")?;
                return Ok(MeasuredStart {
                    replica,
                    served: served.unwrap_or_default(),
                    executed: after,
                    processor: processor::spent(id)?.all,
                    slots: status.executed - first,
                });
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn status(cluster: &Cluster, replica: usize) -> Option<StatusReply> {
    let client = cluster.client(replica).await.ok()?;
    let status = client.raw().status(StatusRequest::default()).await;
    client.close();
    status.ok()
}

/// Copies the files of the executed state.
fn copy_state(data: &Path, copy: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(copy)?;
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        if !is_state(&entry.file_name()) {
            continue;
        }
        fs::copy(entry.path(), copy.join(entry.file_name()))
            .with_context(|| format!("copying {}", entry.path().display()))?;
    }
    Ok(())
}

/// Puts copied files of the executed state in the place of the present ones.
fn replace_state(data: &Path, copy: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        if is_state(&entry.file_name()) {
            fs::remove_file(entry.path())?;
        }
    }
    copy_state(copy, data)
}

fn is_state(name: &std::ffi::OsStr) -> bool {
    !NOT_STATE.iter().any(|other| name == *other)
}

fn report(cli: &Cli, program: &provenance::Program, starts: &[MeasuredStart]) -> String {
    let mut text = format!(
        "# Execution of the log after a kill\n\n\
         A replica is killed, and started alone. Its log has {} writes of {} bytes above its flushed \
         state.\n\n\
         - Command: `{}`\n- Program: {program}\n- Machine: {}\n\n\
         | replica | slots | served after, s | executed after, s | processor time, s |\n\
         |---|---:|---:|---:|---:|\n",
        cli.writes,
        cli.bytes,
        provenance::command(),
        provenance::machine()
    );
    for start in starts {
        let (served, executed) = (start.served.as_secs_f64(), start.executed.as_secs_f64());
        let name = cluster::NAMES[start.replica];
        let _ = writeln!(
            text,
            "| {name} | {} | {served:.2} | {executed:.2} | {:.2} |",
            start.slots,
            start.processor.as_secs_f64()
        );
    }
    text
}
