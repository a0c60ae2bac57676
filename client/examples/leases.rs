//! Lets every replica read the keys of a range locally, and then gives the range the strategy
//! `quorum` again, which is the default of `cluster up`.

#![allow(clippy::print_stdout)] // a program

mod common;

use leasehold_client::LeaseChange;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::connect().await?;

    // Returns once the change is in force. From then on every replica serves reads of these keys
    // locally, and writes to them wait for every replica.
    let change = LeaseChange::strategy("all").range("example/catalog/", "example/catalog0");
    let status = client.admin().set_leases(change).await?;
    for range in status.leases.into_iter().flat_map(|leases| leases.ranges) {
        println!("from '{}': {}", range.from.escape_ascii(), range.strategy);
    }

    let change = LeaseChange::strategy("quorum").range("example/catalog/", "example/catalog0");
    client.admin().set_leases(change).await?;
    println!("given back");
    Ok(())
}
