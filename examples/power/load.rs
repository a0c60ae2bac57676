//! The load: writers that note each write and its acknowledgement.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use leasehold_client::{Client, ClientOptions};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinHandle;

use crate::chance::Chance;
use crate::history::WriteHistory;

/// Number of writers. Each writer has one write in flight.
const WRITERS: usize = 6;
/// Number of keys that each writer writes again and again.
const HOT_KEYS: u64 = 4;
/// Lengths of values in bytes. Long values fill segments of the log. Writes of long values are torn
/// more often.
const FILLERS: [usize; 8] = [0, 20, 100, 100, 1_000, 4_000, 20_000, 60_000];
/// Timeout of one write.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause after a write that failed.
const PAUSE: Duration = Duration::from_millis(30);

/// History of all writes of the run. All writers and the judge share this history.
pub type SharedHistory = Rc<RefCell<WriteHistory>>;

/// Returns the time of the monotonic clock in ns. The shim uses the same clock.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Running writers. The writers end when this value is dropped.
pub struct Load {
    is_over: Rc<Cell<bool>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts the writers. The writers wait until a replica at one of the addresses serves.
    pub fn start(addresses: &[String], history: &SharedHistory, chance: &mut Chance) -> Load {
        let is_over = Rc::new(Cell::new(false));
        let mut tasks = Vec::new();
        for number in 0..WRITERS {
            let mut addresses = addresses.to_vec();
            let count = addresses.len();
            addresses.rotate_left(number % count);
            let writer = Writer {
                number,
                addresses,
                history: history.clone(),
                is_over: is_over.clone(),
                chance: Chance::new(chance.number(), number as u64),
            };
            tasks.push(tokio::task::spawn_local(writer.run()));
        }
        Load { is_over, tasks }
    }

    /// Ends the load. Waits until each writer has finished its current write.
    pub async fn stop(mut self) {
        self.is_over.set(true);
        for task in std::mem::take(&mut self.tasks) {
            // A writer that panics was reported on standard error.
            let _ = task.await;
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

struct Writer {
    number: usize,
    addresses: Vec<String>,
    history: SharedHistory,
    is_over: Rc<Cell<bool>>,
    chance: Chance,
}

impl Writer {
    async fn run(mut self) {
        let Some(client) = self.connect().await else {
            return;
        };
        while !self.is_over.get() {
            if !self.write(&client).await {
                tokio::time::sleep(PAUSE).await;
            }
        }
        client.close();
    }

    async fn connect(&self) -> Option<Client> {
        let mut options = ClientOptions::nearest_first(self.addresses.clone());
        options.request_timeout = REQUEST_TIMEOUT;
        while !self.is_over.get() {
            if let Ok(client) = Client::connect(options.clone()).await {
                return Some(client);
            }
            tokio::time::sleep(PAUSE).await;
        }
        None
    }

    /// Draws a key: one of a few keys of this writer, or a new key.
    fn key(&mut self) -> String {
        let history = self.history.borrow();
        if !self.chance.percent(40) {
            return format!("cold/{}", history.next_number());
        }
        let index = self.chance.below(HOT_KEYS);
        let name = |turn: u32| format!("hot/{}/{index}/{turn}", self.number);
        let mut names = (0..).map(name);
        let found = names.find(|key| !history.is_retired(key));
        found.unwrap_or_default()
    }

    /// Performs one write. Returns true if the write was acknowledged.
    async fn write(&mut self, client: &Client) -> bool {
        let key = self.key();
        let removes = key.starts_with("hot/") && self.chance.percent(10);
        let filler = (!removes).then(|| *self.chance.one_of(&FILLERS));
        let write = self.history.borrow_mut().begin(&key, filler, now_ns());
        let done = match write.value(&key) {
            Some(value) => client.put(key.clone(), value).await,
            None => client.delete(key.clone()).await,
        };
        let mut history = self.history.borrow_mut();
        match &done {
            Ok(version) => history.acknowledge(&key, now_ns(), *version),
            Err(error) if !error.may_have_taken_effect() => history.withdraw(&key),
            Err(_) => {}
        }
        done.is_ok()
    }
}
