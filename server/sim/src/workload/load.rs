//! Load of the clients: the number and the kinds of their requests.

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::choose::KEYS_MAX;
use super::record_shape::RecordShape;

/// Number and kinds of the clients' requests.
#[derive(Clone, Copy, Debug)]
pub struct ClientLoad {
    /// Number of clients at each replica.
    pub clients: usize,
    /// Maximum number of requests that one client has under way.
    pub window: usize,
    /// Maximum number of requests that one client sends together.
    pub burst: usize,
    /// Number of requests a second, summed over all clients.
    pub rate: u32,
    /// Number of keys.
    pub keys: u64,
    /// Fraction of requests that are reads.
    pub reads: f64,
    /// Fraction of requests that are compare-and-swaps, deletes, or requests for several keys.
    pub rare: f64,
    /// Fraction of requests that are sent to two replicas at the same time.
    pub twice: f64,
    /// Time in ns after which a client sends an unanswered command again, to a random replica. The
    /// time grows with each attempt.
    pub retry_timeout_ns: u64,
    /// Lifetime of sessions in ns; `None` if clients never fall silent in this run. A silence lasts
    /// about as long as a session, so the client's session may or may not end during the silence.
    pub silence_ns: Option<u64>,
    /// Maximum number of large values.
    pub large: u32,
    /// Probability that a client abandons a group of requests. The client abandons the group
    /// `abandon_timeout_ns` after it has sent the requests. The client then no longer waits for
    /// their answers, and its low-water mark moves past the abandoned writes.
    pub abandons: f64,
    /// Time in ns after which a client abandons a group of requests that it has sent. A group is
    /// abandoned only with the probability `abandons`.
    pub abandon_timeout_ns: u64,
    /// Probability that a client begins a new session when it is about to send new requests.
    pub renews: f64,
    /// Probability that a client's connection ends when the client is about to send new requests.
    /// The client continues on another connection.
    pub hangs_up: f64,
    /// Shape of the records, if the values are records; otherwise `None`.
    pub records: Option<RecordShape>,
    /// Fraction of requests that are transactions.
    pub txns: f64,
    /// Fraction of transactions that may rewrite stored values.
    pub txn_rewrites: f64,
}

/// Maximum number of large values in a run. All large values together fit into the 16 MiB of
/// executed entries that a replica keeps. So oracles see every large value before a replica forgets
/// it.
const LARGE_VALUES: u32 = 15;
/// Number of requests a second, in runs with large values.
const LARGE_RATE: u32 = 10;
/// Number of requests that are sent together, in runs with large values.
const LARGE_BURST: usize = 32;
/// Number of keys, in runs with large values.
const LARGE_KEYS: u64 = 3;

/// Fraction of runs that are small: they have few requests a second.
const SMALL: f64 = 0.04;
/// Number of requests a second, in small runs.
const SMALL_RATE: u32 = 12;
/// Fraction of runs in which each client waits for an answer before it sends another request.
const PATIENT: f64 = 0.06;
/// Number of clients per replica, in runs in which clients wait for each answer.
const PATIENT_CLIENTS: usize = 16;
/// Time in seconds from which the limit on a client's unanswered requests is computed. The limit is
/// the number of requests that the client sends in this time on average. The limit does not apply
/// to clients that wait for each answer.
const WINDOW_S: usize = 8;

/// Fraction of runs in which clients abandon requests.
const ABANDON: f64 = 0.4;
/// Fraction of runs in which clients begin new sessions.
const RENEW: f64 = 0.4;
/// Fraction of runs in which connections of clients end.
const HANG_UP: f64 = 0.35;
const HANG_UP_SALT: u64 = 0x4a_9697;
/// Fraction of runs with transactions.
const TXNS: f64 = 0.4;
const TXNS_SALT: u64 = 0x7c5_41d2;

impl ClientLoad {
    /// Draws the load of a run.
    pub fn draw(rng: &mut Pcg64Mcg, n: usize, rate: u32) -> ClientLoad {
        // Most clients send several requests together, and have more under way, up to the number
        // that arrives in a few seconds. In some runs there are many clients, each of which waits
        // for every answer.
        let burst = [4, 8, 16, 32][rng.random_range(0..4)];
        let (clients, burst, window) = if rng.random::<f64>() < PATIENT {
            (PATIENT_CLIENTS, 1, 1)
        } else {
            let clients = rng.random_range(1..4);
            let some = WINDOW_S * rate as usize / (n * clients);
            (clients, burst, some.max(burst))
        };
        // Some runs are so small that the history of all keys can be judged together.
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
            txns: 0.0,
            txn_rewrites: 0.0,
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
            txns: 0.0,
            txn_rewrites: 0.0,
        }
    }

    /// Draws whether clients abandon requests, begin new sessions, and fall silent. `ttl_ns` is the
    /// lifetime of sessions; `None` if sessions do not end within a run.
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

    /// Draws whether clients' connections end, whether values are records, and whether there are
    /// transactions. Each draw uses its own random generator, so it does not influence the seed's
    /// other draws.
    pub fn draw_apart(&mut self, seed: u64) {
        self.records = RecordShape::draw(seed);
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ HANG_UP_SALT);
        if rng.random::<f64>() < HANG_UP {
            self.hangs_up = [0.01, 0.05, 0.2][rng.random_range(0..3)];
        }
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ TXNS_SALT);
        if rng.random::<f64>() < TXNS {
            self.txns = [0.03, 0.15, 0.5][rng.random_range(0..3)];
            self.txn_rewrites = [0.1, 0.6][rng.random_range(0..2)];
        }
    }

    /// Limits the merges of clients and their transactions that rewrite values to `per_s` a second on
    /// average, so that the number of waiting merges stays bounded. Merges that arrive in a burst
    /// still have to wait.
    pub(in super::super) fn limit_merges(&mut self, per_s: f64) {
        let rate = f64::from(self.rate);
        let mut per_s = per_s;
        if self.txns > 0.0 {
            per_s /= 2.0;
            self.txn_rewrites = self.txn_rewrites.min(per_s / (rate * self.txns));
        }
        if let Some(records) = &mut self.records {
            records.limit(per_s / (rate * (1.0 - self.reads)));
        }
    }

    /// Makes values large. Requests that are sent together then do not fit into one frame. Their
    /// answers do not fit into one frame either. There are few requests, in large bursts. Clients
    /// use few keys, so the answer to a scan of all keys is not too long. Values are not records,
    /// so clients send no merges.
    pub(in super::super) fn enlarge(&mut self) {
        self.large = LARGE_VALUES;
        self.records = None;
        self.rate = self.rate.min(LARGE_RATE);
        self.burst = LARGE_BURST;
        self.window = self.window.max(2 * LARGE_BURST);
        self.keys = self.keys.min(LARGE_KEYS);
    }
}
