//! Requests a replica's view of the cluster: the leader, round trips, and holders of a key.

#![allow(clippy::print_stdout)] // a program

mod common;

use leasehold_client::StatusQuery;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::connect().await?;
    let query = StatusQuery::default()
        .holders_of("example/popular")
        .leases();
    let status = client.status(query).await?;

    let leader = status.leader.as_deref().unwrap_or("nobody");
    println!("{}: {leader} leads, {} keys", status.replica, status.keys);
    for peer in &status.peers {
        println!("  to {}: {:?}", peer.name, peer.round_trip);
    }
    if let Some(holders) = status.holders {
        println!("holders of the key: {}", holders.holders.join(", "));
    }
    for range in status.leases.into_iter().flat_map(|leases| leases.ranges) {
        println!("from '{}': {}", range.from.escape_ascii(), range.strategy);
    }
    Ok(())
}
