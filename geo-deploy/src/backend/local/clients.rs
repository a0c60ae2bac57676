//! The clients of a run on this machine: one thread, a connection for each client.

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

use super::super::faults::Faults;
use super::super::load::{
    Due, OpenLoop, Process, Processes, Requests, closed_loops, held_back_note,
};
use super::super::outage::ATTEMPT_S;
use super::super::recorder::{READ_ONCE_MORE, READERS};
use super::super::{Ended, Interval, Plan, Progress, Recorder, key_name, value};
use super::LocalCluster;
use super::cluster::start_wan;
use super::disturb::disturb;
use crate::wan::Wan;
use crate::wan::alarm::Alarm;

/// Timeout after which a client abandons an operation.
const PATIENCE: Duration = Duration::from_secs(30);

/// Record of the clients' requests in a run.
pub(super) struct Asked {
    pub(super) recorder: Recorder,
    /// Beginning and end of the measured interval, in ns since the run began.
    pub(super) interval_ns: (u64, u64),
    pub(super) notes: Vec<String>,
}

/// Runs all clients until the interval is over and every operation has ended, and the
/// plan's faults meanwhile. After faults every key is read once more, for the history. Times
/// count from `epoch`, when the run began.
pub(super) async fn drive(
    plan: &Plan<'_>,
    (cluster, faults): (&mut LocalCluster, &mut Faults<'_>),
    epoch: Instant,
    progress: Progress<'_>,
) -> anyhow::Result<Asked> {
    // Dropped last: it carries what clients ask replicas of other sites.
    let wan = start_wan(plan, cluster.client_addresses())?;
    let options: Vec<ClientOptions> = (0..plan.topology().len())
        .map(|site| options(plan, cluster, &wan, site))
        .collect();
    let mut connections = Vec::new();
    for options in &options {
        connections.push(connect(plan.experiment.workload.clients, options).await?);
    }
    let shared = Rc::new(Shared::new(plan, epoch));
    let local = LocalSet::new();
    let run = async {
        let (tasks, sites) = start(plan, connections, &shared)?;
        for task in tasks {
            task.await.context("a client failed")??;
        }
        if !plan.faults().is_empty() {
            read_all(&options, &shared).await?;
        }
        let held_back = sites.iter();
        let held_back = held_back.map(|site| (site.index, site.open.borrow().held_back));
        Ok(held_back_note(plan, &held_back.collect::<Vec<_>>()))
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
    Ok(Asked {
        notes: note?.into_iter().collect(),
        recorder: shared.recorder.take(),
        interval_ns,
    })
}

/// State that all clients of a run share.
pub(super) struct Shared {
    epoch: Instant,
    interval: RefCell<Interval>,
    recorder: RefCell<Recorder>,
    processes: RefCell<Processes>,
    bytes: usize,
}

impl Shared {
    fn new(plan: &Plan<'_>, epoch: Instant) -> Shared {
        let start_ns = epoch.elapsed().as_nanos() as u64;
        Shared {
            epoch,
            interval: RefCell::new(Interval::new(plan, start_ns)),
            recorder: RefCell::new(Recorder::new(plan)),
            processes: RefCell::new(Processes::new(plan.topology().len())),
            bytes: plan.experiment.workload.value_bytes as usize,
        }
    }

    /// When the measured interval began or will begin, if that is known.
    pub(super) fn begin_ns(&self) -> Option<u64> {
        self.interval.borrow().begin_ns()
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn is_over(&self, now_ns: u64) -> bool {
        self.interval.borrow().is_over(now_ns)
    }

    /// Asks, and notes what came of it.
    async fn operate(
        &self,
        process: &mut Process,
        connection: &Client,
        due: Option<u64>,
        drawn: (OpKind, u64),
    ) {
        let ask = process.ask(drawn);
        let op = match ask.kind {
            OpKind::Read => Op::get(key_name(ask.key)),
            _ => Op::put(key_name(ask.key), value(ask.value, self.bytes)),
        };
        let sent_ns = self.now_ns();
        let reply = connection.execute(op).await;
        let gave_up = !matches!(&reply, Err(error) if !matches!(error, Error::Timeout { .. }));
        let reply = reply.ok();
        self.recorder.borrow_mut().ended(&Ended {
            site: process.site,
            process: process.id,
            ask,
            due_ns: due.unwrap_or(sent_ns),
            sent_ns,
            now_ns: self.now_ns(),
            gave_up,
            answer: reply.as_ref().map(|reply| (reply.path, &reply.outcome)),
        });
    }
}

type Tasks = Vec<JoinHandle<anyhow::Result<()>>>;

/// Starts what asks: the clients of a closed loop, or the sites of an open one.
/// `connections` are those of each site.
fn start(
    plan: &Plan<'_>,
    mut connections: Vec<Vec<Client>>,
    shared: &Rc<Shared>,
) -> anyhow::Result<(Tasks, Vec<Rc<Site>>)> {
    if plan.experiment.workload.rate.is_none() {
        let closed = |(site, stream): (usize, Requests)| {
            let process = shared.processes.borrow_mut().make(site);
            let connection = connections[site]
                .pop()
                .context("a connection for each client")?;
            let asks = closed_loop(shared.clone(), process, stream, connection);
            Ok(tokio::task::spawn_local(asks))
        };
        let tasks: anyhow::Result<Tasks> = closed_loops(plan, shared.now_ns())
            .into_iter()
            .map(closed)
            .collect();
        return Ok((tasks?, Vec::new()));
    }
    let alarm = Rc::new(Alarm::new().context("a timer for requests that are due")?);
    let ring = alarm.clone();
    tokio::task::spawn_local(async move { ring.ring().await });
    let mut sites = Vec::new();
    for open in OpenLoop::all(plan, shared.now_ns()) {
        sites.push(Rc::new(Site {
            index: open.site,
            connections: std::mem::take(&mut connections[open.site]),
            open: RefCell::new(open),
            ended: Notify::new(),
        }));
    }
    let begin = |site: &Rc<Site>| {
        let begun = open_loop(shared.clone(), site.clone(), alarm.clone());
        tokio::task::spawn_local(begun)
    };
    Ok((sites.iter().map(begin).collect(), sites))
}

/// Clients of a site ask its own replica, and while that is dead the nearest other one,
/// over `wan`.
fn options(plan: &Plan<'_>, cluster: &LocalCluster, wan: &Wan, site: usize) -> ClientOptions {
    let own = cluster.client_addresses()[site];
    let nearest = plan.topology().nearest_to(site).into_iter();
    let others = nearest.filter_map(|at| wan.via(site, at));
    let addresses = [own].into_iter().chain(others);
    let mut options = cluster.reach().options(addresses);
    options.request_timeout = PATIENCE;
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

/// Clients of every site read all keys that were written, some at a time.
async fn read_all(options: &[ClientOptions], shared: &Rc<Shared>) -> anyhow::Result<()> {
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
                    let read = (OpKind::Read, key);
                    shared.operate(&mut process, &connection, None, read).await;
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
    shared: Rc<Shared>,
    mut process: Process,
    mut stream: Requests,
    connection: Client,
) -> anyhow::Result<()> {
    let mut made = 0;
    while !shared.is_over(shared.now_ns()) {
        let drawn = stream.next(shared.now_ns());
        shared.operate(&mut process, &connection, None, drawn).await;
        made += 1;
        let now_ns = shared.now_ns();
        shared.interval.borrow_mut().made(made, now_ns);
    }
    Ok(())
}

/// A site that asks at a rate.
struct Site {
    index: usize,
    connections: Vec<Client>,
    open: RefCell<OpenLoop<Process>>,
    /// An operation ended.
    ended: Notify,
}

async fn open_loop(shared: Rc<Shared>, site: Rc<Site>, alarm: Rc<Alarm>) -> anyhow::Result<()> {
    loop {
        let due_ns = site.open.borrow().due_ns();
        if shared.is_over(due_ns) {
            break;
        }
        alarm
            .until(shared.epoch + Duration::from_nanos(due_ns))
            .await;
        let make = || shared.processes.borrow_mut().make(site.index);
        let next = site.open.borrow_mut().next(make);
        if let Some((process, due)) = next {
            tokio::task::spawn_local(asks(shared.clone(), site.clone(), process, due));
        }
    }
    while site.open.borrow().in_flight() > 0 {
        site.ended.notified().await;
    }
    Ok(())
}

/// Carries out an operation, and those that waited for somebody to send them.
async fn asks(shared: Rc<Shared>, site: Rc<Site>, process: Process, due: Due) {
    let mut next = Some((process, due));
    while let Some((mut process, (due_ns, drawn))) = next {
        let connection = &site.connections[process.id as usize % site.connections.len()];
        let due_ns = Some(due_ns);
        shared
            .operate(&mut process, connection, due_ns, drawn)
            .await;
        next = site.open.borrow_mut().done(process);
    }
    site.ended.notify_one();
}
