//! The use of the machine by each replica, and the status of each replica, sampled over time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use leasehold_client::Client;
use leasehold_wire::{StatusReply, StatusRequest};

use crate::cluster::{Cluster, options};

/// Interval between two samples.
const EVERY: Duration = Duration::from_millis(200);
/// Maximum number of open files that are examined one by one in a sample.
const COUNTED_MAX: u64 = 1000;

/// One sample of a replica.
#[derive(Clone, Debug)]
struct ReplicaSample {
    at: Instant,
    replica: usize,
    memory_kib: u64,
    /// Peak memory of the replica so far, in KiB.
    peak_kib: u64,
    files: u64,
    /// Open sockets; all open files if there are more than [`COUNTED_MAX`] of them.
    sockets: u64,
    /// Status that the replica reported; `None` if the replica did not answer.
    status: Option<StatusReply>,
}

/// Monitor that takes samples of all replicas until the monitor is dropped.
pub struct ReplicaMonitor {
    looks: Rc<RefCell<Vec<ReplicaSample>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl ReplicaMonitor {
    pub fn start(cluster: &Cluster) -> ReplicaMonitor {
        let (addresses, processes) = (&cluster.clients, cluster.processes());
        let looks = Rc::new(RefCell::new(Vec::new()));
        let mut tasks = Vec::new();
        for (replica, address) in addresses.iter().enumerate() {
            let address = address.clone();
            let authority = cluster.authority.clone();
            let process = processes[replica].unwrap_or_default();
            let watched = watch(replica, address, authority, process, looks.clone());
            tasks.push(tokio::task::spawn_local(watched));
        }
        ReplicaMonitor { looks, tasks }
    }

    /// Returns the number of new ballot rounds that replicas reported in the samples between `from`
    /// and `to`.
    pub fn elections(&self, from: Instant, to: Instant) -> u64 {
        let mut last: BTreeMap<u64, String> = BTreeMap::new();
        let looks = self.looks.borrow();
        for look in looks.iter().filter(|look| look.at < to) {
            let Some(status) = &look.status else { continue };
            if look.at < from {
                last = BTreeMap::from([(status.ballot_round, status.leader.clone())]);
            } else {
                last.entry(status.ballot_round)
                    .or_insert_with(|| status.leader.clone());
            }
        }
        last.len().saturating_sub(1) as u64
    }

    /// Returns the greatest value of a figure of a sample, over all replicas, between `from` and `to`.
    fn most(&self, from: Instant, to: Instant, figure: impl Fn(&ReplicaSample) -> u64) -> u64 {
        let looks = self.looks.borrow();
        let within = looks.iter().filter(|look| (from..to).contains(&look.at));
        within.map(figure).max().unwrap_or_default()
    }

    /// Returns the greatest memory use of a replica between `from` and `to`, in MiB.
    pub fn memory_mib(&self, from: Instant, to: Instant) -> f64 {
        self.most(from, to, |look| look.memory_kib) as f64 / 1024.0
    }

    /// Returns the greatest memory use of a replica before `to`, in MiB.
    pub fn peak_mib(&self, to: Instant) -> f64 {
        let looks = self.looks.borrow();
        let before = looks.iter().filter(|look| look.at < to);
        let most = before.map(|look| look.peak_kib).max();
        most.unwrap_or_default() as f64 / 1024.0
    }

    /// Returns the greatest number of file descriptors that a replica had open between `from` and
    /// `to`.
    pub fn files(&self, from: Instant, to: Instant) -> u64 {
        self.most(from, to, |look| look.files)
    }

    /// Returns the greatest number of sockets that a replica had open between `from` and `to`.
    pub fn sockets(&self, from: Instant, to: Instant) -> u64 {
        self.most(from, to, |look| look.sockets)
    }

    /// Returns the longest time, between `from` and `to`, in which a replica answered no status
    /// request.
    pub fn longest_silence(&self, from: Instant, to: Instant) -> Duration {
        let looks = self.looks.borrow();
        let mut last_answers: BTreeMap<usize, Instant> = BTreeMap::new();
        let mut longest = Duration::ZERO;
        for look in looks.iter().filter(|look| (from..to).contains(&look.at)) {
            let last = last_answers.entry(look.replica).or_insert(from);
            if look.status.is_some() {
                longest = longest.max(look.at.duration_since(*last));
                *last = look.at;
            }
        }
        let ends = last_answers.values().map(|last| to.duration_since(*last));
        ends.fold(longest, Duration::max)
    }

    /// Returns the value of a counter in the last sample before `to`. If replicas have different
    /// values, returns the highest.
    pub fn counter(&self, name: &str, to: Instant) -> Option<u64> {
        let looks = self.looks.borrow();
        let mut newest: BTreeMap<usize, u64> = BTreeMap::new();
        for look in looks.iter().filter(|look| look.at < to) {
            let counters = look.status.iter().flat_map(|status| &status.counters);
            if let Some(counter) = counters.into_iter().find(|counter| counter.name == name) {
                newest.insert(look.replica, counter.value);
            }
        }
        newest.into_values().max()
    }

    /// Returns the increase of a counter between `from` and `to`: the least increase over all
    /// replicas. Returns `None` if no replica reports the counter.
    pub fn least_rise(&self, name: &str, from: Instant, to: Instant) -> Option<u64> {
        let looks = self.looks.borrow();
        let mut seen: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for look in looks.iter().filter(|look| look.at < to) {
            let counters = look.status.iter().flat_map(|status| &status.counters);
            if let Some(counter) = counters.into_iter().find(|counter| counter.name == name) {
                let (before, after) = seen.entry(look.replica).or_default();
                *after = counter.value;
                if look.at < from {
                    *before = counter.value;
                }
            }
        }
        // The counters of a replica begin at 0 again when it is started again.
        let rises = seen.into_values();
        rises
            .map(|(before, after)| after.saturating_sub(before))
            .min()
    }

    /// Returns the counters that were 0 at `from` and are not 0 at `to`. These counters show the
    /// limits that took effect between the two times. The values are sums over all replicas.
    pub fn acted(&self, from: Instant, to: Instant) -> BTreeMap<String, u64> {
        let looks = self.looks.borrow();
        let mut before: BTreeMap<(usize, &str), u64> = BTreeMap::new();
        let mut after = before.clone();
        for look in looks.iter().filter(|look| look.at < to) {
            let counters = look.status.iter().flat_map(|status| &status.counters);
            let times = if look.at < from {
                &mut before
            } else {
                &mut after
            };
            times.extend(counters.map(|c| ((look.replica, c.name.as_str()), c.value)));
        }
        let mut acted = BTreeMap::new();
        for ((replica, name), value) in after {
            let earlier = before.get(&(replica, name)).copied().unwrap_or_default();
            if earlier == 0 && value > 0 {
                *acted.entry(name.to_owned()).or_insert(0) += value;
            }
        }
        acted
    }
}

impl Drop for ReplicaMonitor {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|task| task.abort());
    }
}

async fn watch(
    replica: usize,
    address: String,
    authority: Option<PathBuf>,
    process: u32,
    looks: Rc<RefCell<Vec<ReplicaSample>>>,
) {
    let mut client = None;
    loop {
        let at = Instant::now();
        if client.is_none() {
            client = connect(&address, authority.as_deref()).await;
        }
        let status = match &client {
            Some(client) => client.raw().status(StatusRequest::default()).await.ok(),
            None => None,
        };
        let files = files(process);
        let sockets = match files {
            0..=COUNTED_MAX => sockets(process),
            _ => files,
        };
        looks.borrow_mut().push(ReplicaSample {
            at,
            replica,
            memory_kib: memory_kib(process, "VmRSS:"),
            peak_kib: memory_kib(process, "VmHWM:"),
            files,
            sockets,
            status,
        });
        tokio::time::sleep(EVERY).await;
    }
}

async fn connect(address: &str, authority: Option<&Path>) -> Option<Client> {
    let mut options = options(address, authority).ok()?;
    options.request_timeout = Duration::from_secs(2);
    options.connect_timeout = Duration::from_secs(2);
    Client::connect(options).await.ok()
}

/// Returns the memory of a process in KiB. `which` is the name of the line in the kernel's status
/// of the process.
fn memory_kib(process: u32, which: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(which));
    let number = line.and_then(|line| line.trim().strip_suffix("kB"));
    number
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or_default()
}

fn files(process: u32) -> u64 {
    let listing = format!("/proc/{process}/fd");
    // Linux 6.2 and later report the number of descriptors as the directory's size, which is fast
    // even for ten thousand.
    let size = std::fs::metadata(&listing).map_or(0, |listing| listing.len());
    let counted = || std::fs::read_dir(&listing).map_or(0, |open| open.count() as u64);
    if size > 0 { size } else { counted() }
}

/// Returns the number of open sockets of a process.
fn sockets(process: u32) -> u64 {
    let listing = std::fs::read_dir(format!("/proc/{process}/fd"));
    let open = listing.into_iter().flatten().flatten();
    let targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count() as u64
}
