//! Measures the cost of choosing holders for millions of keys. The results are the longest steps of
//! replicas in CPU time, by kind of work, and the share of the bytes on links and in logs that
//! reports of demand and configurations take. Five replicas run in virtual time, at the distances
//! of the paper. For half of the requests at a site, the popularity of keys is the same at all
//! sites. For the other half, each site has popular keys of its own. Both popularities follow
//! Zipf's law.
//!
//! ```sh
//! cargo run --release --locked -p leasehold-sim --example holders -- quorum      # or cost
//! cargo run --release --locked -p leasehold-sim --example holders -- cost 60 10000 2000000
//! ```
//!
//! The three numbers in the second command are the duration in seconds, the operations a second at
//! each site (one in ten is a write), and the number of keys. Every run reports the same bytes; CPU
//! times depend on the machine.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::print_stdout
)] // a program: arguments and output

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use leasehold_leases::{Incarnation, ReplicaId, Slot, StrategySpec, Time, UnlistedHolders};
use leasehold_replica::action::{
    ClientHandle, Event, ReadFrom, Record, RecoveredState, Requester, Sequence,
};
use leasehold_replica::codec;
use leasehold_replica::message::{Envelope, LogId, Message, PerLog, Value};
use leasehold_replica::shell::{self, FencedAnswers, FencedReply, Host};
use leasehold_replica::{Input, Replica, Settings};
use leasehold_wire::{Command, Outcome, Path, StatusReply, command::Op};
use rustix::time::{ClockId, clock_gettime};

const MS: u64 = 1_000_000;
const SITES: usize = 5;
/// Round-trip times in ms between CA, VA, IRL, OR and JP.
const WORLD: [[u64; SITES]; SITES] = [
    [0, 61, 134, 24, 108],
    [61, 0, 75, 68, 150],
    [134, 75, 0, 130, 212],
    [24, 68, 130, 0, 97],
    [108, 150, 212, 97, 0],
];
/// Duration of a sync, in ns.
const SYNC_NS: u64 = MS / 10;
/// Time in ns before clients begin. In this time, a leader is elected and leases are made.
const SETTLE_NS: u64 = 8_000 * MS;
/// Number of operations from one write to the next.
const WRITES: u64 = 10;

/// Returns the CPU time that this thread has used.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Generator of random numbers that are the same in every run (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Draws a rank by Zipf's law with exponent 1: the logarithm of the rank is uniformly
    /// distributed.
    fn rank(&mut self, keys: u64) -> u64 {
        let uniform = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        ((keys as f64).powf(uniform) as u64).min(keys) - 1
    }
}

/// Times of the steps for each kind of work: (number of steps, total time, longest time).
#[derive(Default)]
struct Steps(BTreeMap<&'static str, (u64, Duration, Duration)>);

impl Steps {
    fn note(&mut self, what: &'static str, took: Duration) {
        let (count, all, longest) = self.0.entry(what).or_default();
        *count += 1;
        *all += took;
        *longest = took.max(*longest);
    }

    /// Calls `does`, and adds the duration of the call to the time for work of the kind `what`.
    fn time<T>(&mut self, what: &'static str, does: impl FnOnce() -> T) -> T {
        let began = cpu();
        let done = does();
        self.note(what, cpu() - began);
        done
    }
}

/// Number of bytes of one kind of data, for each second of virtual time.
#[derive(Default)]
struct Volume(BTreeMap<u64, usize>);

impl Volume {
    fn note(&mut self, now_ns: u64, bytes: usize) {
        *self.0.entry(now_ns / (1000 * MS)).or_default() += bytes;
    }

    fn show(&self, what: &str, seconds: u64) {
        let all: usize = self.0.values().sum();
        let most = self.0.values().max().copied().unwrap_or(0);
        let mean = all as f64 / seconds as f64 / 1e3;
        println!("{what:<44} {mean:>9.1} {:>9.1}", most as f64 / 1e3);
    }
}

/// Effects of one batch of inputs.
#[derive(Default)]
struct StepEffects {
    sent: Vec<(ReplicaId, Envelope)>,
    persisted: Vec<Sequence>,
    answers: FencedAnswers,
    reports: bool,
    checkpoints: bool,
    /// Size in bytes of the configurations that the step wrote to the log.
    proposed: usize,
}

impl Host for StepEffects {
    fn send(&mut self, to: ReplicaId, envelope: Envelope) {
        self.reports |= matches!(envelope.message, Message::Demand(_));
        self.sent.push((to, envelope));
    }

    fn persist(&mut self, sequence: Sequence, records: Vec<Record>) {
        for record in records {
            match record {
                Record::Accepted {
                    log: LogId::Configs,
                    ballot,
                    value,
                    ..
                } => {
                    let mut entry = Vec::new();
                    codec::encode_entry(ballot, &value, &mut entry);
                    self.proposed += entry.len();
                }
                Record::Changes(_) => self.checkpoints = true,
                _ => {}
            }
        }
        self.persisted.push(sequence);
    }

    fn reply(&mut self, _: ClientHandle, _: Path, _: Outcome) {}

    /// Answers a read without reading the clock again. The permit cannot have expired, because
    /// virtual time does not advance within a step.
    fn fenced_reply(&mut self, read: FencedReply) {
        if let ReadFrom::Peer(peer, request) = read.to {
            self.answers.push(peer, request, read.outcome, read.path);
        }
    }

    /// Does nothing. The state on the disk does not matter here.
    fn flush(&mut self) {}

    /// Does nothing, for the same reason.
    fn truncate(&mut self, _: PerLog<Slot>) {}

    /// Does nothing. No replica ever lags so far that it needs entries from a disk.
    fn read_log(&mut self, _: LogId, _: Requester, _: Slot, _: Slot) {}

    fn event(&mut self, _: Event) {}
}

struct Cluster {
    replicas: Vec<Replica>,
    now_ns: u64,
    queue: BTreeMap<(u64, u64), (usize, Input)>,
    scheduled: u64,
    steps: Steps,
    reports: Volume,
    entries: Volume,
    logs: Volume,
    elections: u64,
}

impl Cluster {
    fn new(strategy: StrategySpec) -> Cluster {
        let replica = |me: usize| {
            let mut settings = Settings::new(ReplicaId(me as u8), SITES);
            settings.strategies = strategy.clone().into();
            settings.elections.preferred = Some(ReplicaId(0));
            // Checkpoints do not coincide with the steps in which demand is reported.
            settings.timing.checkpoint = Duration::from_millis(1010);
            let recovered = RecoveredState {
                incarnation: Incarnation(1),
                life: 1,
                ..RecoveredState::default()
            };
            Replica::new(Time(1), settings, recovered, me as u64)
        };
        Cluster {
            replicas: (0..SITES).map(replica).collect(),
            now_ns: 1,
            queue: BTreeMap::new(),
            scheduled: 0,
            steps: Steps::default(),
            reports: Volume::default(),
            entries: Volume::default(),
            logs: Volume::default(),
            elections: 0,
        }
    }

    fn schedule(&mut self, at_ns: u64, node: usize, input: Input) {
        self.scheduled += 1;
        self.queue.insert((at_ns, self.scheduled), (node, input));
    }

    /// Processes all events before the virtual time `end_ns`.
    fn run_until(&mut self, end_ns: u64) {
        loop {
            let deadlines = self
                .replicas
                .iter()
                .map(|replica| replica.next_deadline().0);
            let (node, due) = deadlines
                .enumerate()
                .min_by_key(|(_, due)| *due)
                .expect("a cluster has replicas");
            let queued = self
                .queue
                .first_key_value()
                .map_or(u64::MAX, |(at, _)| at.0);
            if due.min(queued) >= end_ns {
                break;
            }
            if queued <= due {
                let ((at, _), (node, input)) =
                    self.queue.pop_first().expect("the queue has an event");
                self.now_ns = at.max(self.now_ns);
                self.run_iteration(node, vec![input]);
            } else {
                self.now_ns = due.max(self.now_ns);
                self.run_iteration(node, vec![Input::Tick]);
            }
        }
        self.now_ns = end_ns;
    }

    /// Lets a replica process one group of inputs, and performs the resulting actions.
    fn run_iteration(&mut self, node: usize, inputs: Vec<Input>) {
        let subject = subject_of(&inputs);
        let now = Time(self.now_ns);
        let replica = &mut self.replicas[node];
        let config = replica.configuration();
        let mut actions = Vec::new();
        let began = cpu();
        for input in inputs {
            replica.step(now, input, &mut actions);
        }
        replica.flush(now, &mut actions);
        let took = cpu() - began;
        let applied = replica.configuration() != config;
        let mut effects = StepEffects::default();
        for action in actions {
            if let leasehold_replica::Action::Event(Event::Leading(_)) = action {
                self.elections += 1;
            }
            shell::perform(action, &mut effects);
        }
        let what = match subject {
            _ if applied => "a configuration is applied",
            Some(subject) => subject,
            None if effects.proposed > 0 => "a configuration is proposed",
            None if effects.reports => "demand is reported",
            None if effects.checkpoints => "a checkpoint is asked for",
            None => "anything else that is due",
        };
        self.steps.note(what, took);
        self.perform(node, effects);
    }

    fn perform(&mut self, node: usize, effects: StepEffects) {
        let StepEffects {
            sent,
            persisted,
            mut answers,
            proposed,
            ..
        } = effects;
        if proposed > 0 && node == 0 {
            self.logs.note(self.now_ns, proposed);
        }
        for sequence in persisted {
            self.schedule(self.now_ns + SYNC_NS, node, Input::Persisted(sequence));
        }
        for (to, envelope) in sent {
            self.transmit(node, to, envelope);
        }
        for (to, message) in answers.take() {
            let envelope = self.replicas[node].envelope(to, message);
            self.transmit(node, to, envelope);
        }
    }

    fn transmit(&mut self, from: usize, to: ReplicaId, envelope: Envelope) {
        let at = self.now_ns + WORLD[from][to.index()] * MS / 2 + MS / 10;
        let kind = match &envelope.message {
            Message::Demand(_) => Some(("a report is encoded", "a report is decoded")),
            Message::Accept(accept) if matches!(accept.value, Value::Config(_)) => {
                Some(("a configuration is encoded", "a configuration is decoded"))
            }
            _ => None,
        };
        let envelope = match kind {
            None => envelope,
            Some((encoded, decoded)) => {
                let is_report = matches!(envelope.message, Message::Demand(_));
                let mut buffer = BytesMut::new();
                let frame = self.steps.time(encoded, || {
                    let fits = codec::encode_envelope(envelope, &mut buffer);
                    fits.expect("an envelope fits into a frame");
                    buffer.split_off(4).freeze()
                });
                // One link for each kind of traffic: a follower's reports, and the leader's entries
                // to that follower.
                if is_report && from == 1 {
                    self.reports.note(self.now_ns, frame.len());
                } else if !is_report && to == ReplicaId(1) {
                    self.entries.note(self.now_ns, frame.len());
                }
                let decode =
                    || codec::decode_envelope(frame).expect("an encoded envelope is decoded");
                self.steps.time(decoded, decode)
            }
        };
        self.schedule(at, to.index(), Input::Peer(envelope));
    }
}

/// Returns the kind of work that a batch of inputs causes. Returns `None` if this kind of work is
/// not measured.
fn subject_of(inputs: &[Input]) -> Option<&'static str> {
    match inputs.first()? {
        Input::Tick => None,
        Input::Client { .. } => Some("clients ask"),
        Input::Peer(envelope) => Some(match &envelope.message {
            Message::Demand(_) => "a report is taken",
            Message::Accept(accept) if matches!(accept.value, Value::Config(_)) => {
                "a configuration is accepted"
            }
            _ => "another message",
        }),
        _ => Some("something is durable"),
    }
}

/// Clients at all sites.
struct Clients {
    keys: u64,
    per_ms: u64,
    requests: u64,
    written: [u64; SITES],
    chance: Chance,
}

impl Clients {
    fn key(&mut self, site: usize) -> Bytes {
        let own = (self.chance.next() & 1) * (site as u64 + 1);
        let place = self.chance.rank(self.keys).wrapping_mul(0x9e37_79b1) + own * self.keys / 7;
        Bytes::from(format!("user{:012}", place % self.keys))
    }

    /// Returns the requests of a site's clients in one millisecond.
    fn ask(&mut self, site: usize) -> Vec<Input> {
        (0..self.per_ms).map(|_| self.one(site)).collect()
    }

    fn one(&mut self, site: usize) -> Input {
        self.requests += 1;
        let key = self.key(site);
        let command = match self.requests % WRITES {
            0 => {
                self.written[site] += 1;
                let (client, sequence) = (site as u64 + 1, self.written[site]);
                let below = sequence.saturating_sub(10_000).max(1);
                Command::session(client, sequence, below, Op::put(key, vec![b'v'; 8]))
            }
            _ => Command {
                op: Some(Op::get(key)),
                ..Command::default()
            },
        };
        let from = ClientHandle {
            connection: site as u64,
            request: self.requests,
        };
        Input::Client { from, command }
    }
}

/// Runs the load for `seconds` of virtual time.
fn drive(cluster: &mut Cluster, clients: &mut Clients, seconds: u64) {
    let begin = cluster.now_ns;
    for ms in 0..seconds * 1000 {
        cluster.run_until(begin + ms * MS);
        for site in 0..SITES {
            let inputs = clients.ask(site);
            if !inputs.is_empty() {
                cluster.run_iteration(site, inputs);
            }
        }
    }
}

fn show(cluster: &mut Cluster, seconds: u64) {
    let leader = &cluster.replicas[0];
    let now = Time(cluster.now_ns);
    let mut status = cluster.steps.time("status", || leader.status(now));
    let steps = &mut cluster.steps;
    steps.time("status, leases", || leader.describe_leases(&mut status));
    let asks = |status: &mut StatusReply| leader.describe_holders(now, b"", status);
    steps.time("status, the hottest key", || asks(&mut status));
    println!(
        "{:<44} {:>9} {:>9}",
        "CPU time of a step, in ms", "mean", "longest"
    );
    let mut all: Vec<_> = cluster.steps.0.iter().collect();
    all.sort_by_key(|(_, (_, _, longest))| std::cmp::Reverse(*longest));
    for (what, (count, sum, longest)) in all {
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        let mean = ms(*sum) / *count as f64;
        println!("{what:<44} {mean:>9.3} {:>9.3}", ms(*longest));
    }
    println!("{:<44} {:>9} {:>9}", "KB a second", "mean", "most");
    cluster
        .reports
        .show("reports of demand, of one replica", seconds);
    cluster
        .entries
        .show("configurations, to one replica", seconds);
    cluster.logs.show("configurations, in a log", seconds);
    for (name, value) in status.counters.iter().map(|it| (&it.name, it.value)) {
        if name.starts_with("demand") || name.starts_with("listed") {
            println!("{name:<44} {value:>19}");
        }
    }
    println!("{:<44} {:>19}", "configurations", status.configuration);
    println!("{:<44} {:>19}", "elections", cluster.elections);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u64| -> u64 {
        let given = arguments.get(at).map(|text| text.parse());
        given.map_or(usual, |number| number.expect("an argument is a number"))
    };
    let unlisted = UnlistedHolders::Nearest;
    let strategy = match arguments.first().map(String::as_str) {
        Some("cost") => StrategySpec::Cost(Default::default()),
        _ => StrategySpec::Quorum { unlisted },
    };
    let (seconds, rate, keys) = (number(1, 45), number(2, 10_000), number(3, 2_000_000));
    println!(
        "{}, {seconds} s, {rate} operations a second at each site, {keys} keys",
        strategy.name()
    );
    let mut cluster = Cluster::new(strategy);
    cluster.run_until(SETTLE_NS);
    let mut clients = Clients {
        keys,
        per_ms: rate.div_ceil(1000),
        requests: 0,
        written: [0; SITES],
        chance: Chance(7),
    };
    drive(&mut cluster, &mut clients, seconds);
    show(&mut cluster, seconds);
}
