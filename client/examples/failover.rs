//! Uses several replicas, and prints which replicas die and which answer again while the program
//! runs. Give more than one address: `127.0.0.1:7001,127.0.0.1:7002`. The program writes once a
//! second for ten seconds. Kill a replica during this time.

#![allow(clippy::print_stdout)] // a program

mod common;

use std::time::{Duration, Instant};

use leasehold_client::{Client, LivenessChange, Watcher};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::var("SECONDS").map_or(Ok(10), |text| text.parse())?;
    let mut options = common::options()?;
    options.watcher = Watcher::new(|change| match &change.liveness {
        LivenessChange::Dead { reason } => println!("{} is dead: {reason}", change.address),
        LivenessChange::Back { after } => println!("{} is back after {after:?}", change.address),
        _ => {}
    });
    let client = Client::connect(options).await?;
    for second in 0..seconds {
        let begun = Instant::now();
        match client.put("example/clock", second.to_string()).await {
            Ok(version) => println!("{version} after {:?}", begun.elapsed()),
            Err(error) if error.may_have_taken_effect() => println!("unknown: {error}"),
            Err(error) => println!("not written: {error}"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    println!(
        "{} operations were answered by another replica",
        client.health().failovers
    );
    Ok(())
}
