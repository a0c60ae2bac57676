//! Clients of a simulated run. Like the client library, they send an operation to the nearest
//! replica that answers, send it again with the same (client, sequence), and abandon it after a
//! timeout.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use foldhash::fast::FixedState;
use leasehold_sim::world::{ClientReply, World, WorldEvent};
use leasehold_wire::{Outcome, Path};
use leasehold_ycsb::sample::OpKind;

use super::events::event;
use super::faults::{LinkFaults, is_promised, snapshot};
use super::route::Route;
use super::slot::{ClientSlot, Operation};
use crate::backend::faults::{FaultTransition, RunFaults};
use crate::backend::load::{OpenLoop, ProcessNumbers, RequestStream, closed_loops, queued_note};
use crate::backend::recorder::{READ_ONCE_MORE, READERS};
use crate::backend::{IntervalTracker, OperationRecord, ProgressFn, Recorder, RunPlan};
use crate::fault::Effect;
use crate::run::RunEvent;

/// Time, in ns, after which a client abandons an operation with all its attempts.
const REQUEST_TIMEOUT_NS: u64 = 30_000_000_000;
/// Time, in ns, between two checks for unexpired promises to a failed replica.
const PROMISE_CHECK_NS: u64 = 10_000_000;

/// Events that are scheduled for the clients of a run.
pub(super) enum ClientAlarm {
    /// The closed loop with this index begins.
    Begin(usize),
    /// The next request of the open loop with this index is due.
    Due(usize),
    /// A fault begins or ends.
    Fault(FaultTransition),
    /// The change of strategy with this index is due.
    Change(usize),
    /// It is time to check whether the promises to this failed replica have expired.
    Promises(usize),
    /// This replica runs again after a restart.
    Restarted(usize),
    /// A request arrives at a replica of another site, after the delay between the sites.
    RequestArrives { slot: usize, attempt: u64 },
    /// An answer from a replica of another site arrives at the client, after the delay between the
    /// sites.
    ReplyArrives {
        reply: Box<ClientReply>,
        node: usize,
    },
    /// The connection of an attempt was refused, or broke.
    Refused { slot: usize, attempt: u64 },
    /// The time for an attempt is over. The client now also tries another replica.
    Late { slot: usize, attempt: u64 },
    /// Another attempt of an operation is due.
    Retry { slot: usize, attempt: u64 },
    /// The time for an operation is over. `first` is the operation's first attempt.
    Timeout { slot: usize, first: u64 },
    /// A replica that did not answer is probed.
    Probe { site: usize, node: usize },
}

/// Source of the clients' requests.
enum RequestSource {
    Closed(Vec<RequestStream>),
    Open(Vec<OpenLoop<usize>>),
    /// Reads at the end of the run. The list contains the keys that have not been read yet.
    Check(VecDeque<u64>),
}

pub(super) struct Clients<'a> {
    pub(super) plan: &'a RunPlan<'a>,
    pub(super) faults: RunFaults<'a>,
    links: LinkFaults,
    /// True if the times of faults are known and an alarm is set for each of these times.
    scheduled: bool,
    /// Events that report the end of a failed replica's leases.
    pub(super) events: Vec<RunEvent>,
    /// Error that ends the run.
    failure: Option<anyhow::Error>,
    pub(super) world: World,
    pub(super) interval: IntervalTracker,
    pub(super) recorder: Recorder,
    processes: ProcessNumbers,
    pub(super) slots: Vec<ClientSlot>,
    load: RequestSource,
    /// Routes of the clients, by site.
    pub(super) routes: Vec<Route>,
    alarms: HashMap<u64, ClientAlarm, FixedState>,
    set: u64,
    /// True if some operations may never be answered. In this case, operations have timeouts.
    pub(super) doubtful: bool,
    /// Number of request sources that have not ended, plus the number of operations in flight.
    open: usize,
}

impl<'a> Clients<'a> {
    /// Creates the clients of a plan. They send their first requests from `start_ns` on.
    pub(super) fn new(plan: &'a RunPlan<'a>, world: World, start_ns: u64) -> Clients<'a> {
        let topology = plan.topology();
        let route = |site| Route::new(topology, site);
        let mut clients = Clients {
            plan,
            faults: RunFaults::new(plan),
            links: LinkFaults::default(),
            scheduled: false,
            events: Vec::new(),
            failure: None,
            world,
            interval: IntervalTracker::new(plan, start_ns),
            recorder: Recorder::new(plan),
            processes: ProcessNumbers::new(topology.len()),
            slots: Vec::new(),
            load: RequestSource::Closed(Vec::new()),
            routes: (0..topology.len()).map(route).collect(),
            alarms: HashMap::default(),
            set: 0,
            doubtful: plan.is_doubtful(),
            open: 0,
        };
        clients.begin(start_ns);
        clients
    }

    fn begin(&mut self, start_ns: u64) {
        if self.plan.experiment.workload.rate.is_some() {
            let sites = OpenLoop::all(self.plan, start_ns);
            for (index, site) in sites.iter().enumerate() {
                self.alarm(site.due_ns(), ClientAlarm::Due(index));
            }
            self.open = sites.len();
            self.load = RequestSource::Open(sites);
            return;
        }
        let mut streams = Vec::new();
        for (index, (site, stream)) in closed_loops(self.plan, start_ns).into_iter().enumerate() {
            streams.push(stream);
            self.new_slot(site);
            // Clients start one after another, as clients of real sites would.
            self.alarm(
                start_ns + index as u64 * 1_370_000,
                ClientAlarm::Begin(index),
            );
        }
        self.open = streams.len();
        self.load = RequestSource::Closed(streams);
    }

    fn new_slot(&mut self, site: usize) -> usize {
        // A new session begins at the log time that the replicas report when the client connects.
        let replicas = (0..self.world.n()).filter_map(|node| self.world.replica(node));
        let opened_ms = replicas.map(|replica| replica.log_time_ms()).max();
        let process = self.processes.make(site);
        self.slots
            .push(ClientSlot::new(process, opened_ms.unwrap_or(0)));
        self.slots.len() - 1
    }

    pub(super) fn alarm(&mut self, at_ns: u64, alarm: ClientAlarm) {
        self.set += 1;
        self.alarms.insert(self.set, alarm);
        self.world.alarm(at_ns, self.set);
    }

    /// Runs until the interval is over and every operation has ended. If the plan has faults, every
    /// written key is then read once more, for the history.
    ///
    /// # Errors
    /// If a fault names a role that no replica has.
    pub(super) fn drive(
        &mut self,
        progress: ProgressFn<'_>,
        stop: &AtomicBool,
    ) -> anyhow::Result<()> {
        self.run(progress, stop)?;
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.check_changes()?;
        if !self.plan.faults().is_empty() {
            self.read_all();
            self.run(&|_, _, _| (), stop)?;
        }
        let (_, all) = self.interval.progress(self.world.now_ns());
        progress(&self.plan.strategy.label, all, all);
        Ok(())
    }

    fn run(&mut self, progress: ProgressFn<'_>, stop: &AtomicBool) -> anyhow::Result<()> {
        let label = &self.plan.strategy.label;
        let mut shown = 0;
        while self.open > 0 && !stop.load(Ordering::Relaxed) {
            match self.world.advance() {
                Some(WorldEvent::Replied(replies)) => {
                    replies.into_iter().for_each(|reply| self.replied(reply));
                }
                Some(WorldEvent::Alarm(token)) => self.on_alarm(token),
                Some(WorldEvent::Ended(node, down_ns)) => self.process_ended(node, down_ns),
                Some(WorldEvent::Nothing) => {}
                None => return Ok(()),
            }
            if !self.scheduled {
                self.schedule();
            }
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
            let (done, all) = self.interval.progress(self.world.now_ns());
            if done > shown + all / 200 {
                shown = done;
                progress(label, done, all);
            }
        }
        Ok(())
    }

    /// Sets the alarms for faults and changes as soon as the beginning of the measured interval is
    /// known.
    fn schedule(&mut self) {
        let Some(begin_ns) = self.interval.begin_ns() else {
            return;
        };
        self.scheduled = true;
        for (at_ns, transition) in self.faults.transitions(begin_ns) {
            self.alarm(at_ns, ClientAlarm::Fault(transition));
        }
        self.schedule_changes(begin_ns);
    }

    fn apply_transition(&mut self, transition: FaultTransition) {
        let now_ns = self.world.now_ns();
        let effects = match transition {
            FaultTransition::Begin(index) => {
                let snapshot = snapshot(self.plan, &self.world);
                self.faults.begin(index, now_ns, snapshot)
            }
            FaultTransition::End(index) => Ok(self.faults.end(index, now_ns)),
        };
        match effects {
            Ok(effects) => effects.into_iter().for_each(|effect| self.perform(effect)),
            Err(error) => self.failure = Some(error),
        }
    }

    fn perform(&mut self, effect: Effect) {
        if let Some(node) = self.links.perform(&mut self.world, effect) {
            self.on_disconnect(node);
        }
        let now_ns = self.world.now_ns();
        if let Effect::Kill(node) | Effect::Pause(node) = effect {
            self.alarm(now_ns, ClientAlarm::Promises(node));
        }
    }

    /// Handles the event that a replica's process has ended on request. The process is started
    /// again after `down_ns` ns, or not at all if `down_ns` is `None`.
    fn process_ended(&mut self, node: usize, down_ns: Option<u64>) {
        let now_ns = self.world.now_ns();
        self.on_disconnect(node);
        self.alarm(now_ns, ClientAlarm::Promises(node));
        if let Some(down_ns) = down_ns {
            self.alarm(now_ns + down_ns, ClientAlarm::Restarted(node));
        }
    }

    /// Checks, for a replica that is down or paused, whether all promises to this replica have
    /// expired. If all have expired, adds an event. Otherwise, checks again later.
    fn check_promises(&mut self, node: usize) {
        let now_ns = self.world.now_ns();
        if self.world.is_up(node) {
            return; // it came back before
        }
        if is_promised(&self.world, node) {
            return self.alarm(now_ns + PROMISE_CHECK_NS, ClientAlarm::Promises(node));
        }
        let text = "all promises to it have run out".to_owned();
        let event = event(self.plan, now_ns, &[node], RunEvent::LEASE_END, text);
        self.events.push(event);
    }

    /// Lets clients of every site read all keys that were written in the run.
    fn read_all(&mut self) {
        let keys: VecDeque<u64> = self.recorder.written_keys().into();
        self.recorder.notes.push(READ_ONCE_MORE.to_owned());
        self.load = RequestSource::Check(keys);
        for site in 0..self.plan.topology().len() {
            for _ in 0..READERS {
                let slot = self.new_slot(site);
                self.open += 1;
                self.read_next(slot);
            }
        }
    }

    fn read_next(&mut self, slot: usize) {
        let now_ns = self.world.now_ns();
        let RequestSource::Check(keys) = &mut self.load else {
            return;
        };
        match keys.pop_front() {
            Some(key) => self.operate(slot, now_ns, OpKind::Read, key),
            None => self.open -= 1,
        }
    }

    fn on_alarm(&mut self, token: u64) {
        let Some(alarm) = self.alarms.remove(&token) else {
            return;
        };
        match alarm {
            ClientAlarm::Begin(slot) => self.send_next(slot),
            ClientAlarm::Due(index) => self.due(index),
            ClientAlarm::Fault(transition) => self.apply_transition(transition),
            ClientAlarm::Change(index) => {
                let changed = self.change(index);
                self.failure = self.failure.take().or(changed.err());
            }
            ClientAlarm::Promises(node) => self.check_promises(node),
            ClientAlarm::Restarted(node) => {
                self.faults.replica_restarted(node, self.world.now_ns())
            }
            ClientAlarm::RequestArrives { slot, attempt } => self.request_arrives(slot, attempt),
            ClientAlarm::ReplyArrives { reply, node } => self.reply_arrives(*reply, node),
            ClientAlarm::Refused { slot, attempt } => self.refused(slot, attempt),
            ClientAlarm::Late { slot, attempt } if self.is_last(slot, attempt) => self.send(slot),
            ClientAlarm::Retry { slot, attempt } if self.is_last(slot, attempt) => self.send(slot),
            ClientAlarm::Timeout { slot, first } => {
                let operation = self.slots[slot].operation.as_ref();
                if operation.is_some_and(|operation| operation.first == first) {
                    self.complete(slot, None);
                }
            }
            ClientAlarm::Probe { site, node } => self.probe(site, node),
            // The operation has ended, or another attempt is under way.
            ClientAlarm::Late { .. } | ClientAlarm::Retry { .. } => {}
        }
    }

    /// Sends the next request of a closed loop.
    fn send_next(&mut self, slot: usize) {
        let now_ns = self.world.now_ns();
        let RequestSource::Closed(streams) = &mut self.load else {
            return;
        };
        if self.interval.is_over(now_ns) {
            self.open -= 1;
            return;
        }
        let (kind, key) = streams[slot].next(now_ns);
        self.operate(slot, now_ns, kind, key);
    }

    /// Sends the next request of an open loop, or queues it if too many requests are in flight.
    fn due(&mut self, index: usize) {
        let RequestSource::Open(sites) = &mut self.load else {
            return;
        };
        if self.interval.is_over(sites[index].due_ns()) {
            self.open -= 1;
            return;
        }
        let fresh = self.slots.len();
        let site = sites[index].site;
        let next = sites[index].next(|| fresh);
        let next_ns = sites[index].due_ns();
        self.alarm(next_ns, ClientAlarm::Due(index));
        // The request is open while it is in flight or queued: it must end before the run does.
        self.open += 1;
        if let Some((slot, due)) = next {
            if slot == fresh {
                self.new_slot(site);
            }
            self.operate(slot, due.due_ns, due.kind, due.key);
        }
    }

    fn operate(&mut self, slot: usize, due_ns: u64, kind: OpKind, key: u64) {
        let now_ns = self.world.now_ns();
        let client = &mut self.slots[slot];
        let request = client.process.next_request(kind, key);
        let command = client.command(request);
        let first = client.attempts + 1;
        client.operation = Some(Operation {
            request,
            due_ns,
            sent_ns: now_ns,
            command,
            first,
            targets: Vec::new(),
            open: Vec::new(),
        });
        if self.doubtful {
            self.alarm(
                now_ns + REQUEST_TIMEOUT_NS,
                ClientAlarm::Timeout { slot, first },
            );
        }
        self.send(slot);
    }

    /// Records the end of a client's operation, and lets the client continue. `answer` is `None` if
    /// the operation was not answered.
    pub(super) fn complete(&mut self, slot: usize, answer: Option<(Path, &Outcome)>) {
        let now_ns = self.world.now_ns();
        let client = &mut self.slots[slot];
        let Some(operation) = client.operation.take() else {
            return;
        };
        client.ended += 1;
        self.recorder.record(&OperationRecord {
            site: client.process.site,
            process: client.process.id,
            request: operation.request,
            due_ns: operation.due_ns,
            sent_ns: operation.sent_ns,
            now_ns,
            timed_out: true,
            answer,
        });
        self.interval.made(client.ended, now_ns);
        let site = client.process.site;
        let sites = match &mut self.load {
            RequestSource::Closed(_) => return self.send_next(slot),
            RequestSource::Check(_) => return self.read_next(slot),
            RequestSource::Open(sites) => sites,
        };
        self.open -= 1;
        let source = sites.iter_mut().find(|source| source.site == site);
        let next = source.and_then(|source| source.complete(slot));
        if let Some((slot, due)) = next {
            self.operate(slot, due.due_ns, due.kind, due.key);
        }
    }

    /// Returns the report's notes on the clients.
    pub(super) fn notes(&self) -> Vec<String> {
        let RequestSource::Open(sites) = &self.load else {
            return Vec::new();
        };
        let queued: Vec<(usize, u64)> = sites.iter().map(|s| (s.site, s.queued)).collect();
        queued_note(self.plan, &queued).into_iter().collect()
    }
}
