//! Clients of a round. At every site, some clients use only the replica of the site. The other
//! clients roam: if the replica of their site does not answer, they also send requests to other
//! replicas.

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leasehold_client::{Client, ClientOptions, Error, RefusalKind};
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Path, Version};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::chooser::{Chooser, KeyGroups, KeyPool};
use super::record::{CompletedOperation, OperationOutcome, RoundRecord};
use super::request::{OperationKind, OperationRequest};
use crate::backend::local::ClientAccess;

/// Time that a client waits after a failed attempt to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum delay for which a client compensates. To compensate, a delayed client sends the next
/// operations at shorter intervals.
const BEHIND_MAX: Duration = Duration::from_millis(500);
/// Timeouts of clients. If a timeout is short, many operations have an unknown outcome.
const TIMEOUTS: [Duration; 3] = [
    Duration::from_millis(600),
    Duration::from_secs(2),
    Duration::from_secs(5),
];
/// Number of operations after which a client begins a new session.
const SESSION_OPERATIONS: u64 = 400;
/// Number of groups that are in use at the same time. Clients send [`GROUP_OPERATIONS`] operations
/// on each group.
const GROUPS: u64 = 3;
const GROUP_OPERATIONS: u32 = 120;
/// At each site, one out of `GROUPED_EVERY` clients uses groups of keys.
const GROUPED_EVERY: usize = 4;
/// At each site, one out of `ROAMING_EVERY` clients is a roaming client.
const ROAMING_EVERY: usize = 3;
/// Determines when a roaming client also sends its request to another replica: after its timeout
/// divided by `ROAM_AFTER`, if no answer has arrived.
const ROAM_AFTER: u32 = 4;

/// Settings of the load: the rate of operations, the number of clients, and the addresses of the
/// replicas.
#[derive(Clone, Debug)]
pub struct LoadSettings {
    /// Settings that clients of the cluster need besides the addresses of the replicas.
    pub access: ClientAccess,
    /// For each site, the addresses of all replicas in the order in which clients of the site use
    /// them: the site's own replica first, then the others by distance.
    pub addresses: Vec<Vec<SocketAddr>>,
    /// Number of clients at each site.
    pub clients: usize,
    /// Intended number of operations a second, over all clients.
    pub rate: f64,
    /// Seed of all random choices of the clients.
    pub seed: u64,
}

/// Running clients of a round.
pub struct LoadGenerator {
    shared: Rc<SharedLoadState>,
    tasks: Vec<JoinHandle<()>>,
}

struct SharedLoadState {
    settings: LoadSettings,
    began: Instant,
    over: Cell<bool>,
    groups: RefCell<KeyGroups>,
    record: RefCell<RoundRecord>,
}

impl LoadGenerator {
    /// Starts all clients as tasks of the current `LocalSet`. Times are measured from `began`.
    pub fn start(settings: LoadSettings, began: Instant) -> LoadGenerator {
        let sites = settings.addresses.len();
        let now_ns = began.elapsed().as_nanos() as u64;
        let shared = Rc::new(SharedLoadState {
            began,
            over: Cell::new(false),
            groups: RefCell::new(KeyGroups::new(GROUPS, GROUP_OPERATIONS)),
            record: RefCell::new(RoundRecord::new(sites, now_ns)),
            settings,
        });
        let all = 0..sites * shared.settings.clients;
        let worker = |number| tokio::task::spawn_local(Worker::new(number, shared.clone()).work());
        let tasks = all.map(worker).collect();
        LoadGenerator { shared, tasks }
    }

    /// Returns the record of the operations so far.
    pub fn record(&self) -> Ref<'_, RoundRecord> {
        self.shared.record.borrow()
    }

    /// Ends all clients as soon as their current operations are answered or abandoned. Returns the
    /// record and the number of groups of keys that clients have begun to use.
    ///
    /// # Errors
    /// If a client has panicked.
    pub async fn finish(self) -> anyhow::Result<(RoundRecord, u64)> {
        self.shared.over.set(true);
        for task in self.tasks {
            task.await?;
        }
        let groups = self.shared.groups.borrow().begun();
        let mut record = self.shared.record.take();
        let now_ns = self.shared.now_ns();
        record.close(now_ns);
        Ok((record, groups))
    }
}

impl SharedLoadState {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

struct Worker {
    number: u32,
    site: usize,
    /// True if the client also sends a request to another replica when the replica of its own site
    /// does not answer.
    roams: bool,
    timeout: Duration,
    chooser: Chooser,
    shared: Rc<SharedLoadState>,
    connection: Option<Client>,
    operations: u64,
    due: Instant,
}

impl Worker {
    fn new(number: usize, shared: Rc<SharedLoadState>) -> Worker {
        let LoadSettings { clients, seed, .. } = shared.settings;
        let of_site = number % clients;
        let grouped = of_site % GROUPED_EVERY == GROUPED_EVERY - 1;
        let pool = if grouped {
            KeyPool::Grouped
        } else {
            KeyPool::Single
        };
        Worker {
            number: number as u32,
            site: number / clients,
            roams: of_site % ROAMING_EVERY == 1,
            timeout: TIMEOUTS[number % TIMEOUTS.len()],
            chooser: Chooser::new(pool, number as u32, seed),
            shared,
            connection: None,
            operations: 0,
            due: Instant::now(),
        }
    }

    async fn work(mut self) {
        while !self.shared.over.get() {
            self.pause().await;
            match self.connect().await {
                Some(client) => self.operate(client).await,
                None => sleep(CONNECT_PAUSE).await,
            }
        }
    }

    /// Waits until the next operation is due.
    async fn pause(&mut self) {
        let settings = &self.shared.settings;
        let rate = settings.rate / (settings.addresses.len() * settings.clients) as f64;
        self.due += Duration::from_secs_f64(self.chooser.pause_s(rate));
        let now = Instant::now();
        self.due = self.due.max(now - BEHIND_MAX);
        sleep(self.due.saturating_duration_since(now)).await;
    }

    async fn connect(&mut self) -> Option<Client> {
        if self.operations % SESSION_OPERATIONS == SESSION_OPERATIONS - 1 {
            self.connection = None;
        }
        if self.connection.is_none() {
            self.connection = Client::connect(self.options()).await.ok();
        }
        self.connection.clone()
    }

    fn options(&self) -> ClientOptions {
        let settings = &self.shared.settings;
        let known = &settings.addresses[self.site];
        let count = if self.roams { known.len() } else { 1 };
        let mut options = settings.access.options(&known[..count]);
        options.connect_timeout = self.timeout;
        options.attempt_timeout = self.timeout / ROAM_AFTER;
        options.request_timeout = self.timeout;
        options
    }

    async fn operate(&mut self, client: Client) {
        let request = self.chooser.next(&mut self.shared.groups.borrow_mut());
        self.operations += 1;
        let began_ns = self.shared.now_ns();
        let result = client.raw().execute(request.op()).await;
        let now_ns = self.shared.now_ns();
        let end = match result {
            Ok(reply) => self.answered(&request, reply.outcome.result.as_ref(), reply.path),
            Err(error) => self.failed(&request, &error),
        };
        self.shared.record.borrow_mut().add(&CompletedOperation {
            client: self.number,
            site: self.site,
            roams: self.roams,
            kind: request.kind,
            began_ns,
            now_ns,
            end,
        });
    }

    fn answered(
        &mut self,
        request: &OperationRequest,
        answer: Option<&Answer>,
        path: Path,
    ) -> OperationOutcome {
        let done = answer.map(|answer| (request.effects_of(answer), versions(request, answer)));
        match done {
            Some((Ok(effects), versions)) => {
                self.chooser.learn(&effects.parts, &versions);
                self.shared.record.borrow_mut().served(path);
                OperationOutcome::Answered(effects)
            }
            Some((Err(wrong), _)) => {
                self.shared.record.borrow_mut().wrong(wrong.0);
                OperationOutcome::Failed
            }
            None => OperationOutcome::Failed,
        }
    }

    fn failed(&mut self, request: &OperationRequest, error: &Error) -> OperationOutcome {
        self.chooser.forget(&request.keys);
        if let Some(what) = wrong_error(request, error) {
            self.shared.record.borrow_mut().wrong(what);
        }
        if error.may_have_taken_effect() && request.kind.is_write() {
            OperationOutcome::Unknown(request.possible_effects())
        } else {
            OperationOutcome::Failed
        }
    }
}

/// Returns the description of an error that a correct store cannot cause.
fn wrong_error(request: &OperationRequest, error: &Error) -> Option<String> {
    match error {
        Error::Protocol { message, .. } => Some(message.clone()),
        Error::Refused {
            kind: RefusalKind::NotARecord | RefusalKind::NotAnInteger,
            ..
        } if !request.may_be_refused() => Some(format!("{request:?} was refused: {error}")),
        _ => None,
    }
}

/// Returns the versions that an answer contains, by key.
pub fn versions(request: &OperationRequest, answer: &Answer) -> BTreeMap<u64, Version> {
    match (request.kind, answer) {
        (_, Answer::Written(version)) => request.keys.iter().map(|key| (*key, *version)).collect(),
        (OperationKind::Get, Answer::Value(found)) => {
            let version = found.version.map(|version| (request.keys[0], version));
            version.into_iter().collect()
        }
        (_, Answer::Txn(result)) => {
            let request = request.txn.as_ref();
            request.map_or_else(BTreeMap::new, |request| request.versions(result))
        }
        (_, Answer::Entries(entries)) => {
            let found = entries.entries.iter();
            found
                .filter_map(|entry| Some((request.key_of(&entry.key)?, entry.version?)))
                .collect()
        }
        _ => BTreeMap::new(),
    }
}
