//! Shows how reads are served: locally, by another holder, or by the leader.

#![allow(clippy::print_stdout)] // a program

mod common;

use leasehold_client::{Operation, OperationResult};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::connect().await?;
    client.put("example/popular", "value").await?;

    // With `quorum` leases, a replica becomes a holder of a key if its clients read the key often.
    for _ in 0..3 {
        let key = "example/popular".into();
        let reply = client.execute(Operation::Get { key }).await?;
        assert!(matches!(reply.result, OperationResult::Value(_)));
        println!("{} answered, path {:?}", reply.replica, reply.path);
    }
    Ok(())
}
