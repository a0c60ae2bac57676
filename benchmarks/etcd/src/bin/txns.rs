//! Transactions of puts against one etcd member or one replica of Leasehold, in a closed loop.
//! Prints the number of transactions, transactions per second, and the 50th and 99th percentiles of
//! the latency in us.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use etcd_client::{Txn, TxnOp};
use leasehold_client::{ClientOptions, key};
use tokio::task::LocalSet;

const USAGE: &str =
    "usage: txns etcd|leasehold ADDRESS CONNECTIONS SECONDS OPERATIONS VALUE_BYTES";
/// Number of different keys that are written.
const KEYS: u64 = 10_000;

#[derive(Clone)]
struct TxnLoad {
    /// True if the address is that of an etcd member.
    is_etcd: bool,
    address: String,
    connections: u64,
    duration: Duration,
    /// Number of puts of each transaction.
    operations: usize,
    value: Vec<u8>,
}

type Error = Box<dyn std::error::Error>;

/// A connection to one of the two programs.
enum Store {
    Etcd(Box<etcd_client::Client>),
    Leasehold(leasehold_client::Client),
}

/// Generator of random keys (xorshift). Its seed must not be 0.
struct Keys(u64);

impl Keys {
    fn next(&mut self) -> String {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        format!("user{:016}", self.0 % KEYS)
    }

    /// Returns different keys, because etcd refuses two puts of one key.
    fn distinct(&mut self, number: usize) -> Vec<String> {
        let mut keys: Vec<String> = Vec::new();
        while keys.len() < number {
            let key = self.next();
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }
}

impl Store {
    async fn connect(load: &TxnLoad) -> Result<Store, Error> {
        Ok(if load.is_etcd {
            let client = etcd_client::Client::connect([&load.address], None).await?;
            Store::Etcd(Box::new(client))
        } else {
            let options = ClientOptions::new(&load.address);
            Store::Leasehold(leasehold_client::Client::connect(options).await?)
        })
    }

    /// Puts all keys in one transaction.
    async fn execute(&mut self, keys: Vec<String>, value: &[u8]) -> Result<(), Error> {
        match self {
            Store::Etcd(client) => {
                let puts = keys.into_iter().map(|key| TxnOp::put(key, value, None));
                let txn = Txn::new().and_then(puts.collect::<Vec<_>>());
                client.txn(txn).await?;
            }
            Store::Leasehold(client) => {
                let puts = keys.into_iter().map(|name| key(name).put(value.to_vec()));
                client.txn().then(puts).execute().await?;
            }
        }
        Ok(())
    }
}

impl TxnLoad {
    fn parse(words: &[String]) -> Option<TxnLoad> {
        let [program, address, connections, seconds, operations, value_bytes] = words else {
            return None;
        };
        Some(TxnLoad {
            is_etcd: match program.as_str() {
                "etcd" => true,
                "leasehold" => false,
                _ => return None,
            },
            address: address.clone(),
            connections: connections.parse().ok()?,
            duration: Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?,
            operations: operations.parse().ok()?,
            value: vec![b'v'; value_bytes.parse().ok()?],
        })
    }

    /// Executes transactions over one connection, one after the other. Returns the latency of each
    /// transaction in us.
    async fn work(self, mut store: Store, seed: u64, end: Instant) -> Result<Vec<u64>, Error> {
        let mut latencies = Vec::new();
        let mut keys = Keys(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        loop {
            let began = Instant::now();
            if began >= end {
                return Ok(latencies);
            }
            store
                .execute(keys.distinct(self.operations), &self.value)
                .await?;
            latencies.push(began.elapsed().as_micros() as u64);
        }
    }

    /// Runs all connections. Returns the latencies of all transactions in us, in ascending order,
    /// and the time that they took together.
    async fn run(&self) -> Result<(Vec<u64>, Duration), Error> {
        let mut stores = Vec::new();
        for _ in 0..self.connections {
            stores.push(Store::connect(self).await?);
        }
        let begin = Instant::now();
        let end = begin + self.duration;
        let seeds = 1..;
        let connections = seeds.zip(stores).map(|(seed, store)| {
            tokio::task::spawn_local(self.clone().work(store, seed, end))
        });
        let mut latencies = Vec::new();
        for connection in connections.collect::<Vec<_>>() {
            latencies.extend(connection.await??);
        }
        latencies.sort_unstable();
        Ok((latencies, begin.elapsed()))
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(load) = TxnLoad::parse(&words) else {
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
            eprintln!("no transaction was answered within the time");
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("{}: {error}", load.address);
            return ExitCode::FAILURE;
        }
    };
    let rate = latencies.len() as f64 / took.as_secs_f64();
    let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
    println!("{} {rate:.0} {} {}", latencies.len(), at(50), at(99));
    ExitCode::SUCCESS
}
