//! Clients of a run on this machine. All clients run in one thread, and each has its own
//! connection.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use leasehold_client::{Client, ClientOptions, Error};
use leasehold_wire::command::Op;
use leasehold_ycsb::sample::OpKind;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, LocalSet};

use super::LocalCluster;
use super::cluster::start_wan;
use super::fault_runner::disturb;
use crate::backend::faults::RunFaults;
use crate::backend::load::{
    DueRequest, HistoryProcess, OpenLoop, ProcessNumbers, RequestStream, closed_loops, queued_note,
};
use crate::backend::outage::ATTEMPT_S;
use crate::backend::recorder::{READ_ONCE_MORE, READERS};
use crate::backend::{
    IntervalTracker, OperationRecord, ProgressFn, Recorder, RunPlan, key_name, value,
};
use crate::wan::Wan;
use crate::wan::alarm::TimerQueue;

/// Timeout after which a client abandons an operation.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Record of the clients' operations in a run, and the measured interval.
pub(super) struct ClientsOutcome {
    pub(super) recorder: Recorder,
    /// Beginning and end of the measured interval, in ns since the run began.
    pub(super) interval_ns: (u64, u64),
    pub(super) notes: Vec<String>,
}

/// Runs all clients until the interval is over and every operation has ended. During this time, the
/// faults of the plan are carried out. If there were faults, every written key is read once more at
/// the end, and these reads become part of the history. Times are measured from `epoch`, the
/// beginning of the run.
pub(super) async fn drive(
    plan: &RunPlan<'_>,
    cluster: &mut LocalCluster,
    faults: &mut RunFaults<'_>,
    epoch: Instant,
    progress: ProgressFn<'_>,
) -> anyhow::Result<ClientsOutcome> {
    // The WAN is dropped last: it carries the requests of clients to replicas of other sites.
    let wan = start_wan(plan, cluster.client_addresses())?;
    let options: Vec<ClientOptions> = (0..plan.topology().len())
        .map(|site| options(plan, cluster, &wan, site))
        .collect();
    let mut connections = Vec::new();
    for options in &options {
        connections.push(connect(plan.experiment.workload.clients, options).await?);
    }
    let shared = Rc::new(SharedRunState::new(plan, epoch));
    let local = LocalSet::new();
    let run = async {
        let (tasks, sites) = start(plan, connections, &shared)?;
        for task in tasks {
            task.await.context("a client failed")??;
        }
        if !plan.faults().is_empty() {
            read_all(&options, &shared).await?;
        }
        let queued = sites.iter();
        let queued = queued.map(|site| (site.index, site.open.borrow().queued));
        Ok(queued_note(plan, &queued.collect::<Vec<_>>()))
    };
    let show = async {
        loop {
            let (done, all) = shared.interval.borrow().progress(shared.now_ns());
            progress(&plan.strategy.label, done, all);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let either = async {
        tokio::select! {
            done = run => done,
            never = show => never,
            stopped = disturb(plan, cluster, &shared, faults) => Err(match stopped {
                Err(error) => error,
                Ok(never) => match never {},
            }),
        }
    };
    let note: anyhow::Result<Option<String>> = local.run_until(either).await;
    let interval_ns = shared.interval.borrow().bounds_ns(shared.now_ns());
    Ok(ClientsOutcome {
        notes: note?.into_iter().collect(),
        recorder: shared.recorder.take(),
        interval_ns,
    })
}

/// State that is common to all clients of a run.
pub(super) struct SharedRunState {
    epoch: Instant,
    interval: RefCell<IntervalTracker>,
    recorder: RefCell<Recorder>,
    processes: RefCell<ProcessNumbers>,
    bytes: usize,
}

impl SharedRunState {
    fn new(plan: &RunPlan<'_>, epoch: Instant) -> SharedRunState {
        let start_ns = epoch.elapsed().as_nanos() as u64;
        SharedRunState {
            epoch,
            interval: RefCell::new(IntervalTracker::new(plan, start_ns)),
            recorder: RefCell::new(Recorder::new(plan)),
            processes: RefCell::new(ProcessNumbers::new(plan.topology().len())),
            bytes: plan.experiment.workload.value_bytes as usize,
        }
    }

    /// Returns the time, in ns, at which the measured interval began or will begin; `None` if it is
    /// unknown.
    pub(super) fn begin_ns(&self) -> Option<u64> {
        self.interval.borrow().begin_ns()
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn is_over(&self, now_ns: u64) -> bool {
        self.interval.borrow().is_over(now_ns)
    }

    /// Sends a request, and records its outcome.
    async fn operate(
        &self,
        process: &mut HistoryProcess,
        connection: &Client,
        due: Option<u64>,
        kind: OpKind,
        key: u64,
    ) {
        let request = process.next_request(kind, key);
        let op = match request.kind {
            OpKind::Read => Op::get(key_name(request.key)),
            _ => Op::put(key_name(request.key), value(request.value, self.bytes)),
        };
        let sent_ns = self.now_ns();
        let reply = connection.raw().execute(op).await;
        let timed_out = !matches!(&reply, Err(error) if !matches!(error, Error::Timeout { .. }));
        let reply = reply.ok();
        self.recorder.borrow_mut().record(&OperationRecord {
            site: process.site,
            process: process.id,
            request,
            due_ns: due.unwrap_or(sent_ns),
            sent_ns,
            now_ns: self.now_ns(),
            timed_out,
            answer: reply.as_ref().map(|reply| (reply.path, &reply.outcome)),
        });
    }
}

type Tasks = Vec<JoinHandle<anyhow::Result<()>>>;

/// Starts the clients of a closed loop, or the open loop of each site. `connections` contains the
/// clients' connections, by site.
fn start(
    plan: &RunPlan<'_>,
    mut connections: Vec<Vec<Client>>,
    shared: &Rc<SharedRunState>,
) -> anyhow::Result<(Tasks, Vec<Rc<OpenLoopSite>>)> {
    if plan.experiment.workload.rate.is_none() {
        let closed = |(site, stream): (usize, RequestStream)| {
            let process = shared.processes.borrow_mut().make(site);
            let connection = connections[site]
                .pop()
                .context("a connection for each client")?;
            let requests = closed_loop(shared.clone(), process, stream, connection);
            Ok(tokio::task::spawn_local(requests))
        };
        let tasks: anyhow::Result<Tasks> = closed_loops(plan, shared.now_ns())
            .into_iter()
            .map(closed)
            .collect();
        return Ok((tasks?, Vec::new()));
    }
    let timers = Rc::new(TimerQueue::new().context("a timer for requests that are due")?);
    let runner = timers.clone();
    tokio::task::spawn_local(async move { runner.run().await });
    let mut sites = Vec::new();
    for open in OpenLoop::all(plan, shared.now_ns()) {
        sites.push(Rc::new(OpenLoopSite {
            index: open.site,
            connections: std::mem::take(&mut connections[open.site]),
            open: RefCell::new(open),
            ended: Notify::new(),
        }));
    }
    let begin = |site: &Rc<OpenLoopSite>| {
        let requests = open_loop(shared.clone(), site.clone(), timers.clone());
        tokio::task::spawn_local(requests)
    };
    Ok((sites.iter().map(begin).collect(), sites))
}

/// Returns the options of a site's clients. The clients use the replica of their own site. While
/// that replica is down, they use the nearest other replica. The requests to other replicas pass
/// through `wan`.
fn options(plan: &RunPlan<'_>, cluster: &LocalCluster, wan: &Wan, site: usize) -> ClientOptions {
    let own = cluster.client_addresses()[site];
    let nearest = plan.topology().nearest_to(site).into_iter();
    let others = nearest.filter_map(|at| wan.via(site, at));
    let addresses = [own].into_iter().chain(others);
    let mut options = cluster.client_access().options(addresses);
    options.request_timeout = REQUEST_TIMEOUT;
    options.attempt_timeout = Duration::from_secs_f64(ATTEMPT_S);
    options
}

async fn connect(count: u32, options: &ClientOptions) -> anyhow::Result<Vec<Client>> {
    let mut connections = Vec::new();
    for _ in 0..count {
        let connection = Client::connect(options.clone()).await;
        connections.push(connection.context("a client")?);
    }
    Ok(connections)
}

/// Lets clients of every site read all keys that were written in the run. Several clients read at
/// the same time.
async fn read_all(options: &[ClientOptions], shared: &Rc<SharedRunState>) -> anyhow::Result<()> {
    let keys: VecDeque<u64> = shared.recorder.borrow().written_keys().into();
    shared
        .recorder
        .borrow_mut()
        .notes
        .push(READ_ONCE_MORE.to_owned());
    let keys = Rc::new(RefCell::new(keys));
    let mut tasks = Vec::new();
    for (site, options) in options.iter().enumerate() {
        let Ok(connection) = Client::connect(options.clone()).await else {
            continue; // its replica is down
        };
        for _ in 0..READERS {
            let mut process = shared.processes.borrow_mut().make(site);
            let (shared, keys, connection) = (shared.clone(), keys.clone(), connection.clone());
            tasks.push(tokio::task::spawn_local(async move {
                loop {
                    let Some(key) = keys.borrow_mut().pop_front() else {
                        return;
                    };
                    shared
                        .operate(&mut process, &connection, None, OpKind::Read, key)
                        .await;
                }
            }));
        }
    }
    for task in tasks {
        task.await.context("a client failed")?;
    }
    Ok(())
}

async fn closed_loop(
    shared: Rc<SharedRunState>,
    mut process: HistoryProcess,
    mut stream: RequestStream,
    connection: Client,
) -> anyhow::Result<()> {
    let mut made = 0;
    while !shared.is_over(shared.now_ns()) {
        let (kind, key) = stream.next(shared.now_ns());
        shared
            .operate(&mut process, &connection, None, kind, key)
            .await;
        made += 1;
        let now_ns = shared.now_ns();
        shared.interval.borrow_mut().made(made, now_ns);
    }
    Ok(())
}

/// State of one site's open loop, which sends requests at a fixed rate.
struct OpenLoopSite {
    index: usize,
    connections: Vec<Client>,
    open: RefCell<OpenLoop<HistoryProcess>>,
    /// Notification for the site's loop that an operation has ended.
    ended: Notify,
}

async fn open_loop(
    shared: Rc<SharedRunState>,
    site: Rc<OpenLoopSite>,
    timers: Rc<TimerQueue>,
) -> anyhow::Result<()> {
    loop {
        let due_ns = site.open.borrow().due_ns();
        if shared.is_over(due_ns) {
            break;
        }
        timers
            .until(shared.epoch + Duration::from_nanos(due_ns))
            .await;
        let make = || shared.processes.borrow_mut().make(site.index);
        let next = site.open.borrow_mut().next(make);
        if let Some((process, due)) = next {
            tokio::task::spawn_local(send_due(shared.clone(), site.clone(), process, due));
        }
    }
    while site.open.borrow().in_flight() > 0 {
        site.ended.notified().await;
    }
    Ok(())
}

/// Sends a request. After the answer, sends the requests in the backlog, one after another, until
/// the backlog is empty.
async fn send_due(
    shared: Rc<SharedRunState>,
    site: Rc<OpenLoopSite>,
    process: HistoryProcess,
    due: DueRequest,
) {
    let mut next = Some((process, due));
    while let Some((mut process, due)) = next {
        let connection = &site.connections[process.id as usize % site.connections.len()];
        let due_ns = Some(due.due_ns);
        shared
            .operate(&mut process, connection, due_ns, due.kind, due.key)
            .await;
        next = site.open.borrow_mut().complete(process);
    }
    site.ended.notify_one();
}
