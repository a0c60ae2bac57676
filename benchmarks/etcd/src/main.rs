//! Closed-loop puts against one etcd member. Prints puts per second, and the 50th and 99th percentiles
//! of the latency in us.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use etcd_client::{Client, Error};
use tokio::task::LocalSet;

const USAGE: &str = "usage: etcd-puts ENDPOINT CONNECTIONS SECONDS VALUE_BYTES";
/// Number of different keys that are written.
const KEYS: u64 = 10_000;

struct Load {
    endpoint: String,
    connections: u64,
    duration: Duration,
    value_bytes: usize,
}

impl Load {
    fn parse(words: &[String]) -> Option<Load> {
        let [endpoint, connections, seconds, value_bytes] = words else {
            return None;
        };
        Some(Load {
            endpoint: endpoint.clone(),
            connections: connections.parse().ok()?,
            duration: Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?,
            value_bytes: value_bytes.parse().ok()?,
        })
    }

    /// Puts random keys over one connection, one after the other. Returns the latency of each put in
    /// us. `seed` must not be 0.
    async fn put_until(
        endpoint: String,
        seed: u64,
        value: Vec<u8>,
        end: Instant,
    ) -> Result<Vec<u64>, Error> {
        let mut client = Client::connect([endpoint], None).await?;
        let mut latencies = Vec::new();
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        while Instant::now() < end {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let key = format!("user{:016}", random % KEYS);
            let began = Instant::now();
            client.put(key, value.clone(), None).await?;
            latencies.push(began.elapsed().as_micros() as u64);
        }
        Ok(latencies)
    }

    /// Runs all connections. Returns the latencies of all puts in us, in ascending order.
    async fn run(&self) -> Result<Vec<u64>, Error> {
        let end = Instant::now() + self.duration;
        let value = vec![b'v'; self.value_bytes];
        let connections = (1..=self.connections).map(|seed| {
            let puts = Load::put_until(self.endpoint.clone(), seed, value.clone(), end);
            tokio::task::spawn_local(puts)
        });
        let mut latencies = Vec::new();
        for connection in connections.collect::<Vec<_>>() {
            latencies.extend(connection.await.expect("no connection panics")?);
        }
        latencies.sort_unstable();
        Ok(latencies)
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(load) = Load::parse(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the runtime starts");
    let local = LocalSet::new();
    let latencies = match local.block_on(&runtime, load.run()) {
        Ok(latencies) if !latencies.is_empty() => latencies,
        Ok(_) => {
            eprintln!("no put was answered within the time");
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("etcd at {}: {error}", load.endpoint);
            return ExitCode::FAILURE;
        }
    };
    let rate = latencies.len() as f64 / load.duration.as_secs_f64();
    let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
    println!("{rate:.0} {} {}", at(50), at(99));
    ExitCode::SUCCESS
}
