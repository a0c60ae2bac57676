//! `leasehold leader`.

use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use leasehold_client::{Client, Error};
use leasehold_wire::{StatusReply, StatusRequest};

use crate::connector::Replicas;
use crate::terminal::{runtime, say};

#[derive(Args)]
pub struct LeaderArgs {
    #[command(flatten)]
    replicas: Replicas,
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
        let client = args.replicas.connector()?.connect().await?.client;
        match &args.command {
            LeaderCommand::Show => show(&client.raw().status(StatusRequest::default()).await?),
            LeaderCommand::Move { node } => move_to(&client, node).await?,
        }
        Ok(())
    })
}

async fn move_to(client: &Client, node: &str) -> anyhow::Result<()> {
    let before = client.raw().status(StatusRequest::default()).await?;
    let status = match client.raw().move_leadership(node).await {
        Err(error @ Error::Refused { .. }) => {
            return Err(error).context(format!("leadership did not move to {node}"));
        }
        answer => answer.with_context(|| {
            format!(
                "nobody said whether leadership moves to {node}; `leasehold leader show` says who leads"
            )
        })?,
    };
    let already = if before.leader == status.leader {
        " already"
    } else {
        ""
    };
    say!(
        "{} leads{already}, round {}",
        status.leader,
        status.ballot_round
    );
    Ok(())
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
