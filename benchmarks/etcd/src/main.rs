//! Puts against one etcd member, in a closed loop or at a fixed rate (open loop). Prints puts per
//! second, and the 50th and 99th percentiles of the latency in us. In an open loop, the latency of a
//! put counts from the time at which it was due.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use etcd_client::{Client, Error};
use tokio::task::LocalSet;

const USAGE: &str = "usage: etcd-puts ENDPOINT CONNECTIONS SECONDS VALUE_BYTES [PUTS_A_SECOND]";
/// Number of different keys that are written.
const KEYS: u64 = 10_000;

struct Load {
    endpoint: String,
    connections: u64,
    duration: Duration,
    value_bytes: usize,
    /// Puts per second of all connections together; `None` for a closed loop.
    rate: Option<f64>,
}

/// Times at which the puts of one connection are due.
#[derive(Clone, Copy)]
struct Schedule {
    first: Instant,
    /// Time between two puts; zero for a closed loop.
    pause: Duration,
    end: Instant,
}

impl Schedule {
    /// Waits until the next put is due. Returns the time from which its latency counts; `None` after
    /// the end.
    async fn next(&mut self) -> Option<Instant> {
        if self.pause.is_zero() {
            let now = Instant::now();
            return (now < self.end).then_some(now);
        }
        let due = self.first;
        self.first += self.pause;
        tokio::time::sleep_until(due.into()).await;
        (due < self.end).then_some(due)
    }
}

impl Load {
    fn parse(words: &[String]) -> Option<Load> {
        let (words, rate) = match words {
            [words @ .., rate] if words.len() == 4 => (words, Some(rate)),
            words => (words, None),
        };
        let [endpoint, connections, seconds, value_bytes] = words else {
            return None;
        };
        let rate = match rate {
            Some(rate) => Some(rate.parse().ok().filter(|rate| *rate > 0.0)?),
            None => None,
        };
        Some(Load {
            endpoint: endpoint.clone(),
            connections: connections.parse().ok()?,
            duration: Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?,
            value_bytes: value_bytes.parse().ok()?,
            rate,
        })
    }

    /// Puts random keys over one connection, one after the other. Returns the latency of each put in
    /// us. `seed` must not be 0.
    async fn put_until(
        endpoint: String,
        seed: u64,
        value: Vec<u8>,
        mut schedule: Schedule,
    ) -> Result<Vec<u64>, Error> {
        let mut client = Client::connect([endpoint], None).await?;
        let mut latencies = Vec::new();
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        while let Some(began) = schedule.next().await {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let key = format!("user{:016}", random % KEYS);
            client.put(key, value.clone(), None).await?;
            latencies.push(began.elapsed().as_micros() as u64);
        }
        Ok(latencies)
    }

    /// Runs all connections. Returns the latencies of all puts in us, in ascending order.
    async fn run(&self) -> Result<Vec<u64>, Error> {
        let begin = Instant::now();
        let value = vec![b'v'; self.value_bytes];
        let step = self
            .rate
            .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(1.0 / rate));
        let connections = (0..self.connections).map(|number| {
            let schedule = Schedule {
                first: begin + step * number as u32,
                pause: step * self.connections as u32,
                end: begin + self.duration,
            };
            let seed = number + 1;
            let puts = Load::put_until(self.endpoint.clone(), seed, value.clone(), schedule);
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
