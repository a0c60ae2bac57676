//! Puts against one etcd member, in a closed loop or at a fixed rate (open loop). Prints puts per
//! second, and the 50th and 99th percentiles of the latency in us. In an open loop, the latency of a
//! late put counts from the time at which it was due.

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
struct Schedule {
    /// Time at which the next put is due.
    due: Instant,
    /// Time between the due times of two puts; zero for a closed loop.
    interval: Duration,
    end: Instant,
}

impl Schedule {
    /// Waits until the next put is due. Returns the time from which its latency counts; `None` after
    /// the end.
    async fn next(&mut self) -> Option<Instant> {
        if self.interval.is_zero() {
            let now = Instant::now();
            return (now < self.end).then_some(now);
        }
        let due = self.due;
        if due >= self.end {
            return None;
        }
        self.due += self.interval;
        if due <= Instant::now() {
            return Some(due);
        }
        tokio::time::sleep_until(due.into()).await;
        // The timer may be late by a millisecond, for which etcd is not responsible.
        Some(Instant::now())
    }
}

impl Load {
    fn parse(words: &[String]) -> Option<Load> {
        let [endpoint, connections, seconds, value_bytes, rate @ ..] = words else {
            return None;
        };
        let is_rate = |rate: &f64| *rate > 0.0 && rate.is_finite();
        let rate = match rate {
            [] => None,
            [rate] => Some(rate.parse().ok().filter(is_rate)?),
            _ => return None,
        };
        Some(Load {
            endpoint: endpoint.clone(),
            connections: connections.parse().ok()?,
            duration: Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?,
            value_bytes: value_bytes.parse().ok()?,
            rate,
        })
    }

    /// Connects to etcd, and makes one put that is not measured, because a client connects only when
    /// it is used.
    async fn connect(&self) -> Result<Client, Error> {
        let mut client = Client::connect([&self.endpoint], None).await?;
        client.put("user", "", None).await?;
        Ok(client)
    }

    /// Puts random keys over one connection, one after the other. Returns the latency of each put in
    /// us. `seed` must not be 0.
    async fn put_until(
        mut client: Client,
        seed: u64,
        value: Vec<u8>,
        mut schedule: Schedule,
    ) -> Result<Vec<u64>, Error> {
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

    /// Runs all connections. Returns the latencies of all puts in us, in ascending order, and the
    /// time that they took together.
    async fn run(&self) -> Result<(Vec<u64>, Duration), Error> {
        let mut clients = Vec::new();
        for _ in 0..self.connections {
            clients.push(self.connect().await?);
        }
        let begin = Instant::now();
        let value = vec![b'v'; self.value_bytes];
        let rate = self.rate.map(|rate| Duration::from_secs_f64(1.0 / rate));
        let step = rate.unwrap_or_default();
        let connections = (0..).zip(clients).map(|(number, client)| {
            let schedule = Schedule {
                due: begin + step * number,
                interval: step * self.connections as u32,
                end: begin + self.duration,
            };
            let seed = u64::from(number) + 1;
            let puts = Load::put_until(client, seed, value.clone(), schedule);
            tokio::task::spawn_local(puts)
        });
        let mut latencies = Vec::new();
        for connection in connections.collect::<Vec<_>>() {
            latencies.extend(connection.await.expect("no connection panics")?);
        }
        let took = begin.elapsed().max(self.duration);
        latencies.sort_unstable();
        Ok((latencies, took))
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
    let (latencies, took) = match local.block_on(&runtime, load.run()) {
        Ok((latencies, took)) if !latencies.is_empty() => (latencies, took),
        Ok(_) => {
            eprintln!("no put was answered within the time");
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("etcd at {}: {error}", load.endpoint);
            return ExitCode::FAILURE;
        }
    };
    let rate = latencies.len() as f64 / took.as_secs_f64();
    let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
    println!("{rate:.0} {} {}", at(50), at(99));
    ExitCode::SUCCESS
}
