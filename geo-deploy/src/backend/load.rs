//! Requests and their times, for clients that wait for each answer (closed loops) and for sites
//! that send requests at a fixed rate (open loops).

use std::collections::VecDeque;

use leasehold_histories::history::ValueId;
use leasehold_ycsb::sample::OpKind;
use leasehold_ycsb::site_stream::SiteStream;

use super::RunPlan;
use crate::experiment::MeasurementWindow;

/// Request for one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRequest {
    pub(crate) kind: OpKind,
    pub(crate) key: u64,
    /// Value that is stored if the request is a write.
    pub(crate) value: ValueId,
}

/// A process of a history, with an ID that is unique in a run. The process executes one operation
/// at a time.
#[derive(Debug)]
pub(crate) struct HistoryProcess {
    pub(crate) site: usize,
    pub(crate) id: u32,
    /// Number of requests that this process has made so far.
    issued: u64,
}

impl HistoryProcess {
    /// Returns the next request of this process. If the request is a write, no other write of the
    /// run has the same value.
    pub(crate) fn next_request(&mut self, kind: OpKind, key: u64) -> KeyRequest {
        let value = ValueId(u64::from(self.id + 1) << 32 | self.issued);
        self.issued += 1;
        KeyRequest { kind, key, value }
    }
}

/// Assigns IDs to processes. If an ID is divided by the number of sites, the remainder is the index
/// of the process's site.
#[derive(Debug)]
pub(crate) struct ProcessNumbers {
    /// For each site, the number of processes that have been created so far.
    made: Vec<u32>,
}

impl ProcessNumbers {
    /// Creates the assignment for `sites` sites. No process has an ID yet.
    pub(crate) fn new(sites: usize) -> ProcessNumbers {
        ProcessNumbers {
            made: vec![0; sites],
        }
    }

    /// Creates one more process at a site.
    pub(crate) fn make(&mut self, site: usize) -> HistoryProcess {
        let id = self.made[site] * self.made.len() as u32 + site as u32;
        self.made[site] += 1;
        HistoryProcess {
            site,
            id,
            issued: 0,
        }
    }
}

/// Stream of requests from a client or a site. The popular keys may change over time.
pub(crate) struct RequestStream {
    stream: SiteStream,
    swaps: Option<SwapSchedule>,
}

/// Schedule by which a site exchanges its popular keys with another site.
struct SwapSchedule {
    /// Time of the first exchange, in ns.
    first_ns: u64,
    every_ns: u64,
    /// First site and second site of the exchange. After an even number of exchanges, the popular
    /// keys are those of the first site. After an odd number of exchanges, the popular keys are
    /// those of the second site.
    sites: [u64; 2],
    /// Number of exchanges so far.
    done: u64,
}

impl RequestStream {
    /// Creates the stream of the client with the index `client` at `site`. Clients send their first
    /// requests at `start_ns`.
    pub(crate) fn of(
        plan: &RunPlan<'_>,
        site: usize,
        client: usize,
        start_ns: u64,
    ) -> RequestStream {
        let workload = &plan.experiment.workload;
        let swaps = workload.swap.as_ref().and_then(|swap| {
            let partner = swap.partner(site, plan.topology())?;
            let MeasurementWindow::Seconds { warmup_s, .. } = workload.window() else {
                return None; // refused when the experiment was read
            };
            let ns = |seconds: f64| (seconds * 1e9) as u64;
            Some(SwapSchedule {
                first_ns: start_ns + ns(warmup_s + swap.every_s),
                every_ns: ns(swap.every_s),
                sites: [site as u64, partner as u64],
                done: 0,
            })
        });
        RequestStream {
            stream: plan.stream(site, client),
            swaps,
        }
    }

    /// Returns the kind and the key of the request to send at `now_ns`. `now_ns` must not be lower
    /// than in the previous call.
    pub(crate) fn next(&mut self, now_ns: u64) -> (OpKind, u64) {
        if let Some(swaps) = &mut self.swaps {
            let since = now_ns.checked_sub(swaps.first_ns);
            let due = since.map_or(0, |since_ns| 1 + since_ns / swaps.every_ns);
            if due > swaps.done {
                swaps.done = due;
                self.stream.move_to(swaps.sites[(due % 2) as usize]);
            }
        }
        self.stream.next()
    }
}

/// Returns the request stream of each client of a closed loop, in order of sites. Each stream is
/// paired with the index of its site. Clients begin at `start_ns`.
pub(crate) fn closed_loops(plan: &RunPlan<'_>, start_ns: u64) -> Vec<(usize, RequestStream)> {
    let clients = plan.experiment.workload.clients as usize;
    let of = |index: usize| {
        let site = index / clients;
        (
            site,
            RequestStream::of(plan, site, index % clients, start_ns),
        )
    };
    (0..clients * plan.topology().len()).map(of).collect()
}

/// Open loop of a site: the site sends requests at a fixed rate, whether or not earlier requests
/// were answered.
pub(crate) struct OpenLoop<T> {
    pub(crate) site: usize,
    requests: RequestStream,
    /// Time between two requests, in ns.
    every_ns: f64,
    /// Time at which the first request is due, in ns.
    first_ns: f64,
    due: u64,
    /// Requests that became due while the maximum number of requests was in flight. These requests
    /// have not been sent yet.
    backlog: VecDeque<DueRequest>,
    /// Number of requests that had to wait in the backlog.
    pub(crate) queued: u64,
    /// Senders without a request in flight.
    idle: Vec<T>,
    busy: u32,
    most: u32,
}

/// Request of an open loop, and the time at which it is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueRequest {
    /// Time at which the request is due, in ns.
    pub(crate) due_ns: u64,
    pub(crate) kind: OpKind,
    pub(crate) key: u64,
}

impl<T> OpenLoop<T> {
    /// Returns an open loop for each site with a rate above 0. The loops begin at `start_ns`.
    pub(crate) fn all(plan: &RunPlan<'_>, start_ns: u64) -> Vec<OpenLoop<T>> {
        let workload = &plan.experiment.workload;
        let n = plan.topology().len();
        let of = |(site, name): (usize, &&str)| {
            let rate = workload.rate.as_ref()?.at(name);
            let every_ns = 1e9 / rate;
            (rate > 0.0).then(|| OpenLoop {
                site,
                requests: RequestStream::of(plan, site, 0, start_ns),
                every_ns,
                // Sites do not all send their requests at the same moment.
                first_ns: start_ns as f64 + every_ns * site as f64 / n as f64,
                due: 0,
                backlog: VecDeque::new(),
                queued: 0,
                idle: Vec::new(),
                busy: 0,
                most: workload.outstanding,
            })
        };
        let names = plan.topology().names();
        names.iter().enumerate().filter_map(of).collect()
    }

    /// Returns the number of requests that were sent but not answered.
    pub(crate) fn in_flight(&self) -> u32 {
        self.busy
    }

    /// Returns the time at which the next request is due, in ns.
    pub(crate) fn due_ns(&self) -> u64 {
        (self.first_ns + self.every_ns * self.due as f64) as u64
    }

    /// Returns the request that is due now, together with an idle sender. If no sender is idle,
    /// `make` creates one. If the maximum number of requests is in flight, puts the request into
    /// the backlog and returns `None`.
    pub(crate) fn next(&mut self, make: impl FnOnce() -> T) -> Option<(T, DueRequest)> {
        let due_ns = self.due_ns();
        let (kind, key) = self.requests.next(due_ns);
        let due = DueRequest { due_ns, kind, key };
        self.due += 1;
        if self.busy == self.most {
            self.queued += 1;
            self.backlog.push_back(due);
            return None;
        }
        self.busy += 1;
        Some((self.idle.pop().unwrap_or_else(make), due))
    }

    /// Notes that the request of `sender` has ended. Returns `sender` with the oldest request of
    /// the backlog; `None` if the backlog is empty.
    pub(crate) fn complete(&mut self, sender: T) -> Option<(T, DueRequest)> {
        if let Some(due) = self.backlog.pop_front() {
            return Some((sender, due));
        }
        self.busy -= 1;
        self.idle.push(sender);
        None
    }
}

/// Returns a note about the requests that waited at clients; `None` if no request waited.
pub(crate) fn queued_note(plan: &RunPlan<'_>, queued: &[(usize, u64)]) -> Option<String> {
    let names = plan.topology().names();
    let sites = queued.iter().filter(|(_, count)| *count > 0);
    let sites: Vec<String> = sites
        .map(|(site, count)| format!("{count} at {}", names[*site]))
        .collect();
    (!sites.is_empty()).then(|| {
        format!(
            "{} operations were in flight at a site, the most that workload.outstanding allows; \
             so operations were sent later than due: {}. Their latency includes the wait",
            plan.experiment.workload.outstanding,
            sites.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::experiment::Experiment;

    #[test]
    fn requests_are_due_at_even_distances_and_wait_beyond_the_most() {
        let sets = ["rate=100", "outstanding=2"].map(|set| match set.split_once('=') {
            Some(("outstanding", n)) => format!("workload.outstanding={n}"),
            _ => set.to_owned(),
        });
        let experiment = Experiment::find("demo").unwrap().with(&sets).unwrap();
        let plan = RunPlan::new(&experiment, &experiment.strategies[0]);
        let mut sites = OpenLoop::all(&plan, 1_000_000_000);
        assert_eq!(sites.len(), 5);
        let site = &mut sites[0];
        let mut processes = ProcessNumbers::new(5);
        let mut make = || processes.make(0).id;
        let first = site.next(&mut make).unwrap();
        let second = site.next(&mut make).unwrap();
        let due_ns = (first.1.due_ns, second.1.due_ns);
        assert_eq!(due_ns, (1_000_000_000, 1_010_000_000));
        assert_ne!(first.0, second.0);
        assert!(site.next(&mut make).is_none());
        let (sender, due) = site.complete(first.0).unwrap();
        assert_eq!((sender, due.due_ns), (first.0, 1_020_000_000));
        assert!(site.complete(second.0).is_none());
        assert_eq!(
            site.next(&mut make).unwrap().0,
            second.0,
            "an idle one is used"
        );
        assert_eq!(site.queued, 1);
        let note = queued_note(&plan, &[(0, 1), (1, 0)]).unwrap();
        assert!(note.contains("1 at JP") && !note.contains("CA"), "{note}");
        assert_eq!(queued_note(&plan, &[(0, 0)]), None);
    }

    #[test]
    fn two_sites_exchange_their_keys_again_and_again() {
        let experiment = Experiment::find("moving").unwrap();
        let plan = RunPlan::new(&experiment, &experiment.strategies[0]);
        let hottest = |site: usize, at_s: u64| {
            let mut requests = RequestStream::of(&plan, site, 0, 5_000_000_000);
            let mut times = HashMap::new();
            for _ in 0..2_000 {
                let (_, key) = requests.next(at_s * 1_000_000_000);
                *times.entry(key).or_insert(0) += 1;
            }
            let most = times.into_iter().max_by_key(|(_, times)| *times);
            most.unwrap().0
        };
        let (jp, ca, irl) = (0, 1, 4);
        let key_of = |site| plan.stream(site, 0).key_of_rank(0);
        // Clients begin at 5 s and warm up for 60 s. So exchanges are at 125 s, 185 s, ...
        for (at_s, site, like) in [
            (124, jp, jp),
            (125, jp, irl),
            (125, irl, jp),
            (184, jp, irl),
            (185, jp, jp),
            (245, irl, jp),
            (125, ca, ca),
        ] {
            assert_eq!(hottest(site, at_s), key_of(like), "site {site} at {at_s} s");
        }
    }

    #[test]
    fn no_two_writes_share_a_value() {
        let mut processes = ProcessNumbers::new(2);
        let mut all = std::collections::BTreeSet::new();
        for site in [0, 1, 1, 0] {
            let mut process = processes.make(site);
            assert_eq!(process.id % 2, site as u32, "the number says where it is");
            let ask = |_| process.next_request(OpKind::Update, 1).value;
            assert!((0..5).map(ask).all(|value| all.insert(value)));
        }
    }
}
