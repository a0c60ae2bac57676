//! Clients that do nothing wrong. There is one such client next to each replica. Each client sends
//! puts and gets at a fixed rate. Latency is measured from the time at which an operation should
//! have begun. So if a replica does not respond for some time, the latency of every operation that
//! should have begun in this time becomes longer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use leasehold_client::Client;

use crate::cluster::{Cluster, options};
use crate::figures::percentile;

/// Number of keys that the clients use.
const KEYS: u64 = 1000;
const VALUE: &[u8] = &[b'v'; 100];
/// Longest time that an operation may take, including all attempts.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

/// One operation of a well-behaved client.
#[derive(Clone, Copy)]
struct Sample {
    /// Time at which the operation should have begun.
    at: Instant,
    latency: Duration,
    write: bool,
    good: bool,
}

/// Measurements of the operations of the well-behaved clients. Only operations that should have
/// begun within a range of time are included.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientLatencies {
    pub put_p50_us: u64,
    pub put_p99_us: u64,
    pub put_max_us: u64,
    /// Time at which the slowest put should have begun, in ms from the beginning of the range of
    /// time.
    pub put_max_at_ms: u64,
    pub get_p50_us: u64,
    pub get_p99_us: u64,
    pub get_max_us: u64,
    pub operations: u64,
    pub failed: u64,
}

/// The well-behaved clients. They send requests until this value is dropped.
pub struct WellBehavedClients {
    samples: Rc<RefCell<Vec<Sample>>>,
    begun: Rc<Cell<u64>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    clients: Vec<Client>,
}

impl WellBehavedClients {
    /// Starts one client next to each replica. If that replica fails, the client uses the other
    /// replicas. All clients together send `rate` puts and `rate` gets per second.
    pub async fn start(cluster: &Cluster, rate: u32) -> anyhow::Result<WellBehavedClients> {
        let addresses = &cluster.clients;
        let samples = Rc::new(RefCell::new(Vec::new()));
        let begun = Rc::new(Cell::new(0));
        let mut clients = Vec::new();
        for nearest in 0..addresses.len() {
            let mut order = addresses.to_vec();
            order.rotate_left(nearest);
            let mut options = options(&order[0], cluster.authority.as_deref())?;
            options.addresses = order;
            options.request_timeout = OPERATION_TIMEOUT;
            let client = Client::connect(options).await;
            clients.push(client.context("connecting a well-behaved client")?);
        }
        let pause = Duration::from_secs_f64(addresses.len() as f64 / f64::from(2 * rate));
        let work = |client: &Client| {
            let work = work(client.clone(), pause, begun.clone(), samples.clone());
            tokio::task::spawn_local(work)
        };
        let tasks = clients.iter().map(work).collect();
        Ok(WellBehavedClients {
            samples,
            begun,
            tasks,
            clients,
        })
    }

    /// Prevents new operations, and waits for the operations that are in flight.
    pub async fn stop(&self) {
        self.tasks.iter().for_each(|task| task.abort());
        let deadline = Instant::now() + 2 * OPERATION_TIMEOUT;
        while self.begun.get() > self.samples.borrow().len() as u64 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the measurements of operations that should have begun between `from` and `to`.
    pub fn noticed(&self, from: Instant, to: Instant) -> ClientLatencies {
        let samples = self.samples.borrow();
        let within = || {
            samples
                .iter()
                .filter(|sample| (from..to).contains(&sample.at))
        };
        let latencies = |write: bool| -> Vec<u64> {
            let of_kind = within().filter(|sample| sample.write == write);
            of_kind
                .map(|sample| sample.latency.as_micros() as u64)
                .collect()
        };
        let puts = within().filter(|sample| sample.write);
        let slowest = puts.max_by_key(|sample| sample.latency);
        let slowest_at = slowest.map_or(Duration::ZERO, |sample| sample.at - from);
        let (mut puts, mut gets) = (latencies(true), latencies(false));
        ClientLatencies {
            put_p50_us: percentile(&mut puts, 0.5),
            put_p99_us: percentile(&mut puts, 0.99),
            put_max_us: percentile(&mut puts, 1.0),
            put_max_at_ms: slowest_at.as_millis() as u64,
            get_p50_us: percentile(&mut gets, 0.5),
            get_p99_us: percentile(&mut gets, 0.99),
            get_max_us: percentile(&mut gets, 1.0),
            operations: within().count() as u64,
            failed: within().filter(|sample| !sample.good).count() as u64,
        }
    }
}

impl Drop for WellBehavedClients {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|task| task.abort());
        self.clients.iter().for_each(Client::close);
    }
}

/// Sends puts and gets alternately. The client continues as long as this future is polled.
async fn work(
    client: Client,
    pause: Duration,
    begun: Rc<Cell<u64>>,
    samples: Rc<RefCell<Vec<Sample>>>,
) {
    let mut due = tokio::time::Instant::now();
    for number in 0.. {
        tokio::time::sleep_until(due).await;
        begun.set(begun.get() + 1);
        let (client, samples, at) = (client.clone(), samples.clone(), due.into_std());
        tokio::task::spawn_local(async move {
            let sample = operate(&client, number, at).await;
            samples.borrow_mut().push(sample);
        });
        due += pause;
    }
}

async fn operate(client: &Client, number: u64, at: Instant) -> Sample {
    let write = number.is_multiple_of(2);
    // Spread over the keys, in an order that does not help the replicas.
    let key = format!("calm-{}", number / 2 * 7919 % KEYS);
    let good = if write {
        client.put(key, VALUE).await.is_ok()
    } else {
        client.get(key).await.is_ok()
    };
    Sample {
        at,
        latency: at.elapsed(),
        write,
        good,
    }
}
