//! Load of the clients: how much they ask, and of what kind.

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::choose::KEYS_MAX;
use super::record_shape::RecordShape;

/// Amount and kind of what clients ask.
#[derive(Clone, Copy, Debug)]
pub struct ClientLoad {
    /// Clients at each replica.
    pub clients: usize,
    /// Requests that one client has under way, at most.
    pub window: usize,
    /// Requests that one client sends together, at most.
    pub burst: usize,
    /// Requests a second, over all clients.
    pub rate: u32,
    /// Keys there are.
    pub keys: u64,
    /// Share of reads, of all requests.
    pub reads: f64,
    /// Share of requests that touch several keys, or compare and swap, or delete.
    pub rare: f64,
    /// Share of requests sent to two replicas at once.
    pub twice: f64,
    /// A client that has no answer after this, in ns, sends the same command
    /// again, to any replica, and then waits for longer.
    pub retry_timeout_ns: u64,
    /// Clients fall silent for about so long, in ns, if this is how long sessions live:
    /// what they ask next may find theirs alive, or ended, or find both.
    pub silence_ns: Option<u64>,
    /// Number of values that may be large.
    pub large: u32,
    /// Share of what is sent together that its client gives up after `timeout_ns`: it
    /// no longer waits for the answers, and its low-water mark moves past the writes.
    pub abandons: f64,
    /// In ns.
    pub abandon_timeout_ns: u64,
    /// Share of arrivals at which a client begins a new session.
    pub renews: f64,
    /// Share of arrivals at which a client's connection ends. It goes on under another.
    pub hangs_up: f64,
    /// Shape of the values, if they are records.
    pub records: Option<RecordShape>,
}

/// Maximum number of large values in a run. All of them together fit into what a replica keeps of
/// executed entries (16 MiB), so that oracles see each before it is forgotten.
const LARGE_VALUES: u32 = 15;
/// Requests a second, requests sent together, and keys of a run with large values.
const LARGE_RATE: u32 = 10;
const LARGE_BURST: usize = 32;
const LARGE_KEYS: u64 = 3;

/// Share of runs that are small, and their requests a second.
const SMALL: f64 = 0.04;
const SMALL_RATE: u32 = 12;
/// Share of runs with clients that wait for each answer, and number of such clients per replica.
const PATIENT: f64 = 0.06;
const PATIENT_CLIENTS: usize = 16;
/// Clients that do not wait have under way, at most, what so many seconds bring.
const WINDOW_S: usize = 8;

/// Share of runs with clients that give up, and of those the share with clients that begin new
/// sessions.
const ABANDON: f64 = 0.4;
const RENEW: f64 = 0.4;
/// Share of runs in which connections of clients end.
const HANG_UP: f64 = 0.35;
const HANG_UP_SALT: u64 = 0x4a_9697;

impl ClientLoad {
    /// The load of a run.
    pub fn draw(rng: &mut Pcg64Mcg, n: usize, rate: u32) -> ClientLoad {
        // Most clients send several requests at once, and more before they are
        // answered, up to what some seconds bring; or many wait for each answer.
        let burst = [4, 8, 16, 32][rng.random_range(0..4)];
        let (clients, burst, window) = if rng.random::<f64>() < PATIENT {
            (PATIENT_CLIENTS, 1, 1)
        } else {
            let clients = rng.random_range(1..4);
            let some = WINDOW_S * rate as usize / (n * clients);
            (clients, burst, some.max(burst))
        };
        // Some runs are small, so that all keys can be judged together.
        if rng.random::<f64>() < SMALL {
            return ClientLoad::small(rng, rate);
        }
        ClientLoad {
            clients,
            window,
            burst,
            rate,
            keys: [1, 2, 4, 8, KEYS_MAX][rng.random_range(0..5)],
            reads: rng.random_range(0.5..0.95),
            rare: [0.0, 0.02, 0.1][rng.random_range(0..3)],
            twice: [0.0, 0.05][rng.random_range(0..2)],
            retry_timeout_ns: [3_000_000_000, 6_000_000_000][rng.random_range(0..2)],
            silence_ns: None,
            large: 0,
            abandons: 0.0,
            abandon_timeout_ns: 0,
            renews: 0.0,
            hangs_up: 0.0,
            records: None,
        }
    }

    fn small(rng: &mut Pcg64Mcg, rate: u32) -> ClientLoad {
        ClientLoad {
            clients: 1,
            window: 2,
            burst: 1,
            rate: rate.min(SMALL_RATE),
            keys: rng.random_range(2..5),
            reads: 0.5,
            rare: 0.4,
            twice: 0.0,
            retry_timeout_ns: 1_000_000_000,
            silence_ns: None,
            large: 0,
            abandons: 0.0,
            abandon_timeout_ns: 0,
            renews: 0.0,
            hangs_up: 0.0,
            records: None,
        }
    }

    /// Draws what clients do to their sessions. `ttl_ns`: the lifetime of sessions, if they may end
    /// within a run.
    pub fn draw_sessions(&mut self, rng: &mut Pcg64Mcg, ttl_ns: Option<u64>) {
        self.silence_ns = ttl_ns.filter(|_| rng.random());
        if rng.random::<f64>() < ABANDON {
            self.abandons = [0.02, 0.1, 0.3][rng.random_range(0..3)];
            self.abandon_timeout_ns = [150, 500, 2000, 5000][rng.random_range(0..4)] * 1_000_000;
        }
        if rng.random::<f64>() < RENEW {
            self.renews = rng.random_range(0.01..0.1);
        }
    }

    /// Draws whether clients' connections end, and whether values are records. Each apart: all
    /// else in a seed stays as it is without these.
    pub fn draw_apart(&mut self, seed: u64) {
        self.records = RecordShape::draw(seed);
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ HANG_UP_SALT);
        if rng.random::<f64>() < HANG_UP {
            self.hangs_up = [0.01, 0.05, 0.2][rng.random_range(0..3)];
        }
    }

    /// Clients ask for no more than so many merges a second, or those that wait would only grow in
    /// number. Bursts of them must wait still.
    pub(in super::super) fn limit_merges(&mut self, per_s: f64) {
        let puts_per_s = f64::from(self.rate) * (1.0 - self.reads);
        if let Some(records) = &mut self.records {
            records.limit(per_s / puts_per_s);
        }
    }

    /// Makes values large, so that requests sent together, and their answers, exceed a
    /// frame: few requests, in large bursts, on so few keys that a scan of all of them
    /// still has an answer. So large records take no merges: values are none.
    pub(in super::super) fn enlarge(&mut self) {
        self.large = LARGE_VALUES;
        self.records = None;
        self.rate = self.rate.min(LARGE_RATE);
        self.burst = LARGE_BURST;
        self.window = self.window.max(2 * LARGE_BURST);
        self.keys = self.keys.min(LARGE_KEYS);
    }
}
