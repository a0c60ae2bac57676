//! `leasehold leader`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use client::wire::StatusReply;
use client::{Client, ClientOptions};
use geo_deploy::standing::State;

use crate::terminal::{runtime, say};

/// How long a replica may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(2);

#[derive(Args)]
pub struct LeaderArgs {
    /// Client addresses of replicas: the first that answers is asked [default: the cluster that `cluster
    /// up` started]
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        conflicts_with = "dir"
    )]
    address: Vec<String>,
    /// The directory of the cluster that `cluster up` started
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "leasehold-cluster"
    )]
    dir: PathBuf,
    /// How long to wait for a move, in seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    timeout: u16,
    #[command(subcommand)]
    command: LeaderCommand,
}

#[derive(Subcommand)]
enum LeaderCommand {
    /// Shows who leads, since when, and how far each other replica is away
    Show,
    /// Moves leadership to a node, and waits until it leads
    ///
    /// The leader proposes nothing new until all that it has proposed is committed, and then
    /// hands over. No operation fails. A preferred leader (`leader` in the configuration) does
    /// not take leadership back until the node ends, loses it, or `leader move` names another.
    Move {
        /// The node's name: a site's, in a cluster that `cluster up` started
        node: String,
    },
}

pub fn run(args: &LeaderArgs) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let client = first_that_answers(args).await?;
        match &args.command {
            LeaderCommand::Show => show(&client.status().await?),
            LeaderCommand::Move { node } => {
                let status = client
                    .move_leadership(node)
                    .await
                    .with_context(|| format!("leadership did not move to {node}"))?;
                say!("{} leads, round {}", status.leader, status.ballot_round);
            }
        }
        Ok(())
    })
}

/// The addresses given, or those of the standing cluster; and its name.
fn addresses(args: &LeaderArgs) -> anyhow::Result<(Vec<String>, Option<String>)> {
    if !args.address.is_empty() {
        return Ok((args.address.clone(), None));
    }
    let state = State::load(&args.dir)?;
    let ports = state.clients.iter().map(|port| port.address.to_string());
    Ok((ports.collect(), Some(state.cluster)))
}

async fn first_that_answers(args: &LeaderArgs) -> anyhow::Result<Client> {
    let (addresses, cluster) = addresses(args)?;
    let mut refusals = Vec::new();
    for address in &addresses {
        let mut options = ClientOptions::new(address);
        options.cluster.clone_from(&cluster);
        options.connect_timeout = CONNECT;
        options.request_timeout = Duration::from_secs(args.timeout.into());
        match Client::connect(options).await {
            Ok(client) => return Ok(client),
            Err(error) => refusals.push(error.to_string()),
        }
    }
    bail!("no replica answers: {}", refusals.join("; "))
}

fn show(status: &StatusReply) {
    let since = Duration::from_millis(status.leader_since_ms);
    match status.leader.as_str() {
        "" => say!("{} knows no leader", status.replica),
        leader => say!(
            "{leader} leads, round {}, for {:.1} s as {} knows",
            status.ballot_round,
            since.as_secs_f64(),
            status.replica
        ),
    }
    for peer in &status.peers {
        let rtt = match peer.rtt_us {
            0 => "not measured".to_owned(),
            us => format!("{:.1} ms", us as f64 / 1e3),
        };
        say!("  {:12} {rtt} from {}", peer.name, status.replica);
    }
}
