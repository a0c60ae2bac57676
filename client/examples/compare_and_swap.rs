//! Increments a counter correctly even while other programs do the same. The value is replaced only
//! if no other program has replaced it since this program read it.

#![allow(clippy::print_stdout)] // a program

mod common;

use leasehold_client::{CasOutcome, Client, Error};

const KEY: &str = "example/counter";

/// Adds one to a counter. Returns the new value.
async fn increment(client: &Client) -> Result<u64, Error> {
    loop {
        let found = client.get(KEY).await?;
        let (count, version) = match &found {
            Some(found) => {
                let text = String::from_utf8_lossy(&found.value);
                (text.parse().unwrap_or(0), Some(found.version))
            }
            None => (0, None),
        };
        let next = count + 1;
        match client
            .compare_and_swap(KEY, next.to_string(), version)
            .await?
        {
            CasOutcome::Written(_) => return Ok(next),
            CasOutcome::Mismatch(_) => {} // another program was faster: read again
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::connect().await?;
    client.delete(KEY).await?;

    // Four increments run at the same time, and none is lost.
    let counting = (0..4).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { increment(&client).await })
    });
    for count in counting.collect::<Vec<_>>() {
        println!("counted to {}", count.await??);
    }
    let found = client.get(KEY).await?.expect("the counter exists");
    assert_eq!(found.value, "4");
    Ok(())
}
