//! The thread of a member. It passes the program's requests and the packets of other members to the
//! state machine in batches, and carries out the results.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leasehold_clock::{ClockWatch, Clocks};
use leasehold_leases::Time;
use leasehold_lock_core::rules::ROUNDS_RESERVED;
use leasehold_lock_core::{
    AcquireRefusal, ClockModel, Fence, KnownOwner, LeaseLoss, MemberEvent, MemberId, MemberInput,
    MemberMachine, Packet,
};
use tokio::sync::mpsc::{
    Receiver, UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel,
};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::clock::ClockReadings;
use crate::directory::{DirectoryError, MemberDirectory};
use crate::group::Group;
use crate::held::{Held, LeaseState, Loss, Released};
use crate::member::{AcquireError, Owner, Wait};
use crate::peers::Peers;

/// Maximum number of inputs in a batch.
const BATCH_MAX: usize = 4096;
/// Maximum time between two iterations. In each iteration, the clocks are compared.
const IDLE_MAX: Duration = Duration::from_millis(250);
/// Minimum time between the discovery of a wrong clock and a new start of the state machine. Also the
/// time after which a member tries again to write to its directory.
const RETRY: Duration = Duration::from_secs(1);
/// Time for the last packets of a member that stops to reach the sockets.
const LAST_PACKETS: Duration = Duration::from_millis(100);

/// Request of the program.
#[derive(Debug)]
pub(crate) enum Command {
    /// Acquire a resource.
    Acquire {
        /// Number of the request.
        request: u64,
        resource: Bytes,
        wait: Wait,
        answer: oneshot::Sender<Result<Held, AcquireError>>,
    },
    /// Cancel a request to acquire a resource. Nothing happens if the request has a result.
    Cancel { request: u64, resource: Bytes },
    /// Find the owner of a resource.
    FindOwner {
        resource: Bytes,
        answer: oneshot::Sender<Owner>,
    },
    /// Release a lease. Nothing happens if it was lost before.
    Release {
        resource: Bytes,
        fence: Fence,
        /// Member that should own the resource next.
        successor: Option<MemberId>,
        answer: Option<oneshot::Sender<Released>>,
    },
    /// Release everything, and end the thread.
    Stop { answer: oneshot::Sender<()> },
}

/// Sender of commands to the thread of a member.
#[derive(Clone, Debug)]
pub(crate) struct Commands(UnboundedSender<Command>);

impl Commands {
    /// Creates a channel to a thread.
    pub(crate) fn new() -> (Commands, UnboundedReceiver<Command>) {
        let (sender, receiver) = unbounded_channel();
        (Commands(sender), receiver)
    }

    /// Sends a command. If the thread has ended, the command is dropped: everything was released
    /// before.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.0.send(command);
    }
}

/// Interest of the program in one resource.
#[derive(Debug, Default)]
struct Interest {
    /// Request that has no result yet, with its number.
    request: Option<(u64, oneshot::Sender<Result<Held, AcquireError>>)>,
    /// State of the lease.
    lease: Option<Arc<LeaseState>>,
    /// Releases that are not confirmed yet, with the fence tokens of their leases.
    releases: Vec<(Fence, Option<oneshot::Sender<Released>>)>,
    /// Programs that wait for the current query for the owner.
    queries: Vec<oneshot::Sender<Owner>>,
    /// Programs that have asked since the current query began. They wait for the next one.
    later_queries: Vec<oneshot::Sender<Owner>>,
}

impl Interest {
    fn is_over(&self) -> bool {
        self.request.is_none()
            && self.lease.is_none()
            && self.releases.is_empty()
            && self.queries.is_empty()
    }
}

/// Rounds that a member may use.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// Directory in which reserved rounds are kept.
    pub(crate) directory: Option<MemberDirectory>,
    /// First round that was not reserved when the member started.
    pub(crate) floor: u64,
}

impl Rounds {
    /// Reserves all rounds below `until`.
    fn reserve(&self, until: u64) -> Result<(), DirectoryError> {
        let directory = self.directory.as_ref();
        directory.map_or(Ok(()), |it| it.reserve(until))
    }
}

/// The thread of a member.
pub(crate) struct Driver {
    group: Arc<Group>,
    me: MemberId,
    rounds: Rounds,
    /// First round that is not reserved.
    reserved: u64,
    /// Rounds below this number could not be reserved. The next attempt is made at this moment.
    unreserved: Option<(u64, Time)>,
    core: MemberMachine,
    peers: Rc<Peers>,
    /// Sender for the leases that the program gets. It is weak, so that it does not keep the channel
    /// open: the thread ends when the program has dropped the member and all leases.
    commands: WeakUnboundedSender<Command>,
    interests: HashMap<Bytes, Interest>,
    /// Clocks in the last iteration.
    clocks: ClockReadings,
    machine_clocks: Clocks,
    /// Comparison of the clocks of this machine.
    watch: ClockWatch,
    /// Whether the clocks of this machine agree. Used only with clocks of bounded rates.
    is_trusted: bool,
    /// Moment at which a clock was found to be wrong.
    distrusted: Option<Time>,
    /// Answers to requests to stop.
    stopping: Vec<oneshot::Sender<()>>,
}

/// Starts the state machine of a member. Its run has a random number, so that no other process is
/// taken for this one.
fn core(group: &Group, me: MemberId, floor: u64, now: ClockReadings) -> MemberMachine {
    // The keys of each state are random.
    let random = || RandomState::new().hash_one(now.wall.0);
    let settings = group.settings().clone();
    MemberMachine::new(settings, me, random(), random(), floor, now.time)
}

impl Driver {
    pub(crate) fn new(
        group: Arc<Group>,
        me: MemberId,
        rounds: Rounds,
        peers: Rc<Peers>,
        commands: &Commands,
    ) -> Driver {
        let now = ClockReadings::now(group.settings());
        Driver {
            core: core(&group, me, rounds.floor, now),
            group,
            me,
            reserved: rounds.floor.saturating_add(ROUNDS_RESERVED),
            rounds,
            unreserved: None,
            peers,
            commands: commands.0.downgrade(),
            interests: HashMap::new(),
            clocks: now,
            machine_clocks: Clocks::default(),
            watch: ClockWatch::default(),
            is_trusted: true,
            distrusted: None,
            stopping: Vec::new(),
        }
    }

    /// Runs until the program has stopped the member, or has dropped the member and all its leases.
    pub(crate) async fn run(
        mut self,
        mut commands: UnboundedReceiver<Command>,
        mut packets: Receiver<Packet>,
    ) {
        let (mut requests, mut arrived) = (Vec::new(), Vec::new());
        let mut is_dropped = false;
        while !self.interests.is_empty() || !is_dropped && self.stopping.is_empty() {
            let deadline = pin!(sleep(self.idle_time()));
            tokio::select! {
                count = commands.recv_many(&mut requests, BATCH_MAX), if !is_dropped => {
                    is_dropped = count == 0;
                }
                _ = packets.recv_many(&mut arrived, BATCH_MAX) => {}
                () = deadline => {}
            }
            // What arrived meanwhile belongs to the same batch.
            while requests.len() < BATCH_MAX
                && let Ok(request) = commands.try_recv()
            {
                requests.push(request);
            }
            while arrived.len() < BATCH_MAX
                && let Ok(packet) = packets.try_recv()
            {
                arrived.push(packet);
            }
            self.iterate(&mut requests, &mut arrived);
            // The tasks of the connections run in between.
            tokio::task::yield_now().await;
        }
        // The other members can do without the last packets.
        let _ = timeout(LAST_PACKETS, self.peers.drained()).await;
        for stopped in self.stopping {
            // The program may have stopped waiting.
            let _ = stopped.send(());
        }
    }

    fn idle_time(&self) -> Duration {
        let now = ClockReadings::now(self.group.settings());
        self.core.next_deadline().since(now.time).min(IDLE_MAX)
    }

    /// Takes one batch of inputs.
    fn iterate(&mut self, requests: &mut Vec<Command>, arrived: &mut Vec<Packet>) {
        // After everything has arrived.
        let now = ClockReadings::now(self.group.settings());
        self.watch_clock(now);
        for packet in arrived.drain(..) {
            self.core.step(now.time, MemberInput::Packet(packet));
        }
        self.take_events(now);
        for request in requests.drain(..) {
            self.on_command(now, request);
            // The next request may be about the same resource.
            self.take_events(now);
        }
        self.core.step(now.time, MemberInput::Tick);
        if let Some((until, _)) = self.unreserved.take_if(|(_, at)| now.local >= *at) {
            self.reserve(now, until);
        }
        self.take_events(now);
        for packet in self.core.take_packets(now.time) {
            self.peers.send(packet);
        }
    }

    fn take_events(&mut self, now: ClockReadings) {
        for event in self.core.take_events() {
            self.on_event(now, event);
        }
    }

    /// Gives up everything if the clock cannot be trusted, and starts anew later.
    fn watch_clock(&mut self, now: ClockReadings) {
        let news = match self.group.settings().clocks {
            ClockModel::Bounded(bound) => {
                let reading = self.machine_clocks.reading();
                self.watch.news(reading, bound.rho_ppm)
            }
            ClockModel::Synchronised { .. } if !now.is_together => return,
            ClockModel::Synchronised { .. } => now.was_set_since(self.clocks).then_some(false),
        };
        self.clocks = now;
        match news {
            Some(false) => {
                if self.distrusted.is_none() {
                    tracing::error!(
                        "the clocks of this machine disagree, or one was set; this member gives up its \
                         leases, and starts anew when they agree"
                    );
                    self.core.step(now.time, MemberInput::ClockSet);
                }
                self.is_trusted = false;
                self.distrusted = Some(now.local);
            }
            Some(true) => self.is_trusted = true,
            None => {}
        }
        // A wall clock that was set counts as right from now on; the others check it.
        let is_trusted = self.is_trusted || !self.group.settings().has_timers();
        let is_over = |since| now.local.since(since) >= RETRY;
        if is_trusted && self.distrusted.is_some_and(is_over) {
            self.start_anew(now);
        }
    }

    /// Starts the state machine anew. It has forgotten its promises, so its rounds begin above all
    /// reserved rounds. If more rounds cannot be reserved, this is tried again.
    fn start_anew(&mut self, now: ClockReadings) {
        let floor = self.reserved;
        let until = floor.saturating_add(ROUNDS_RESERVED);
        if let Err(error) = self.rounds.reserve(until) {
            tracing::error!(%error, "rounds cannot be reserved; this is tried again");
            self.distrusted = Some(now.local);
            return;
        }
        self.reserved = until;
        self.unreserved = None;
        self.distrusted = None;
        self.core = core(&self.group, self.me, floor, now);
    }

    fn on_command(&mut self, now: ClockReadings, command: Command) {
        match command {
            Command::Acquire {
                request,
                resource,
                wait,
                answer,
            } => self.acquire(now, request, resource, wait, answer),
            Command::Cancel { request, resource } => {
                let interest = self.interests.get(&resource);
                let current = interest.and_then(|it| it.request.as_ref());
                if current.is_some_and(|(number, _)| *number == request) {
                    let successor = None;
                    let release = MemberInput::Release {
                        resource,
                        successor,
                    };
                    self.core.step(now.time, release);
                }
            }
            Command::FindOwner { resource, answer } => {
                let interest = self.interests.entry(resource.clone()).or_default();
                if interest.queries.is_empty() {
                    interest.queries.push(answer);
                    let query = MemberInput::FindOwner { resource };
                    self.core.step(now.time, query);
                } else {
                    interest.later_queries.push(answer);
                }
            }
            Command::Release {
                resource,
                fence,
                successor,
                answer,
            } => self.release(now, resource, fence, successor, answer),
            Command::Stop { answer } => self.stop(now, answer),
        }
    }

    fn acquire(
        &mut self,
        now: ClockReadings,
        request: u64,
        resource: Bytes,
        wait: Wait,
        answer: oneshot::Sender<Result<Held, AcquireError>>,
    ) {
        self.meet_deadlines(now);
        let interest = self.interests.entry(resource.clone()).or_default();
        let refusal = if !self.stopping.is_empty() {
            Some(AcquireError::Stopped)
        } else if interest.request.is_some() || interest.lease.is_some() {
            Some(AcquireError::AlreadyRequested)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            // The program may have stopped waiting.
            let _ = answer.send(Err(refusal));
            self.forget(&resource);
            return;
        }
        interest.request = Some((request, answer));
        let wait_until = match wait {
            Wait::No => Time::ZERO,
            Wait::For(time) => now.time + time,
            Wait::Forever => Time::MAX,
        };
        let input = MemberInput::Acquire {
            resource,
            wait_until,
        };
        self.core.step(now.time, input);
    }

    /// Handles the losses of leases that have just ended. They do not count any more.
    fn meet_deadlines(&mut self, now: ClockReadings) {
        self.core.step(now.time, MemberInput::Tick);
        self.take_events(now);
    }

    /// Releases a lease, unless it was lost or released before. A later lease of the same resource
    /// has another fence token, and stays.
    fn release(
        &mut self,
        now: ClockReadings,
        resource: Bytes,
        fence: Fence,
        successor: Option<MemberId>,
        answer: Option<oneshot::Sender<Released>>,
    ) {
        self.meet_deadlines(now);
        let interest = self.interests.get_mut(&resource);
        let held = interest.filter(|it| {
            it.lease
                .as_ref()
                .is_some_and(|lease| lease.fence() == fence)
        });
        if let Some(interest) = held {
            interest.lease = None;
            interest.releases.push((fence, answer));
            let release = MemberInput::Release {
                resource,
                successor,
            };
            self.core.step(now.time, release);
        }
    }

    fn stop(&mut self, now: ClockReadings, answer: oneshot::Sender<()>) {
        self.meet_deadlines(now);
        self.stopping.push(answer);
        let mut resources: Vec<_> = self.interests.keys().cloned().collect();
        resources.sort();
        for resource in resources {
            if let Some(interest) = self.interests.get_mut(&resource)
                && let Some(lease) = interest.lease.take()
            {
                lease.lose(Loss::Released);
                interest.releases.push((lease.fence(), None));
            }
            let successor = None;
            let release = MemberInput::Release {
                resource,
                successor,
            };
            self.core.step(now.time, release);
        }
    }

    /// Forgets a resource in which the program is not interested any more.
    fn forget(&mut self, resource: &Bytes) {
        if self.interests.get(resource).is_some_and(Interest::is_over) {
            self.interests.remove(resource);
        }
    }

    fn on_event(&mut self, now: ClockReadings, event: MemberEvent) {
        match event {
            MemberEvent::Acquired { resource, holding } => {
                let interest = self.interests.entry(resource.clone()).or_default();
                let request = interest.request.take();
                let (_, answer) = request.expect("a resource is acquired only on request");
                let state = Arc::new(LeaseState::new(holding, &self.group, now));
                interest.lease = Some(state.clone());
                let Some(commands) = self.commands.upgrade().map(Commands) else {
                    // The program has dropped the member, and nobody can own the resource.
                    return self.release(now, resource, holding.fence(), None, None);
                };
                let held = Held::new(resource, state, self.group.clone(), commands);
                // If nobody waits any more, the lease is dropped, and so released.
                let _ = answer.send(Ok(held));
            }
            MemberEvent::Renewed { resource, holding } => {
                let interest = self.interests.get(&resource);
                if let Some(lease) = interest.and_then(|it| it.lease.as_ref()) {
                    lease.renew(holding, now);
                }
            }
            MemberEvent::Refused { resource, reason } => {
                let error = self.refusal(now, reason);
                let interest = self.interests.get_mut(&resource);
                if let Some((_, answer)) = interest.and_then(|it| it.request.take()) {
                    // The program may have stopped waiting.
                    let _ = answer.send(Err(error));
                }
                self.forget(&resource);
            }
            MemberEvent::Lost {
                resource, reason, ..
            } => {
                let interest = self.interests.get_mut(&resource);
                if let Some(lease) = interest.and_then(|it| it.lease.take()) {
                    lease.lose(match reason {
                        LeaseLoss::Expired => Loss::NotRenewed,
                        LeaseLoss::Clock => Loss::Clock,
                    });
                }
                self.forget(&resource);
            }
            MemberEvent::Released {
                resource,
                fence,
                ends,
            } => {
                let releases = self.interests.get_mut(&resource).map(|it| &mut it.releases);
                let released = releases.and_then(|all| {
                    let index = all.iter().position(|(of, _)| *of == fence)?;
                    all.swap_remove(index).1
                });
                if let Some(answer) = released {
                    // The program may have stopped waiting.
                    let _ = answer.send(match ends {
                        None => Released::Yes,
                        Some(ends) => Released::Unknown {
                            ends_in: ends.since(now.time),
                        },
                    });
                }
                self.forget(&resource);
            }
            MemberEvent::OwnerFound { resource, owner } => {
                let owner = self.known_owner(now, owner);
                if let Some(interest) = self.interests.get_mut(&resource) {
                    let later = std::mem::take(&mut interest.later_queries);
                    let is_asked = !later.is_empty();
                    for answer in std::mem::replace(&mut interest.queries, later) {
                        // The program may have stopped waiting.
                        let _ = answer.send(owner.clone());
                    }
                    if is_asked {
                        let query = MemberInput::FindOwner { resource };
                        return self.core.step(now.time, query);
                    }
                }
                self.forget(&resource);
            }
            MemberEvent::ReserveRounds { until } => self.reserve(now, until),
            MemberEvent::ClocksDiffer { member } => {
                let member = self.group.name_of(member);
                tracing::error!(
                    member,
                    "the clocks of this member and of the named one differ by more than `epsilon_ms`; \
                     this member gives up its leases; check the time synchronisation of both machines"
                );
                self.distrusted = Some(now.local);
            }
        }
    }

    /// Reserves rounds on the disk. If this fails, tries again later. Until then, the member promises
    /// only the rounds that it has reserved.
    fn reserve(&mut self, now: ClockReadings, until: u64) {
        match self.rounds.reserve(until) {
            Ok(()) => {
                self.reserved = self.reserved.max(until);
                self.core
                    .step(now.time, MemberInput::RoundsReserved { until });
            }
            Err(error) => {
                tracing::error!(%error, "rounds cannot be reserved; this is tried again");
                self.unreserved = Some((until, now.local + RETRY));
            }
        }
    }

    fn known_owner(&self, now: ClockReadings, owner: KnownOwner) -> Owner {
        match owner {
            KnownOwner::Free => Owner::Free,
            KnownOwner::Is {
                member,
                fence,
                until,
            } => Owner::Is {
                member: self.group.name_of(member).to_owned(),
                fence: fence.0,
                at_most: until.since(now.time),
            },
            KnownOwner::Unknown => Owner::Unknown,
        }
    }

    fn refusal(&self, now: ClockReadings, reason: AcquireRefusal) -> AcquireError {
        match reason {
            AcquireRefusal::Taken {
                owner,
                fence,
                until,
            } => AcquireError::Taken {
                owner: self.group.name_of(owner).to_owned(),
                fence: fence.0,
                at_most: until.since(now.time),
            },
            AcquireRefusal::Starting { until } => AcquireError::Starting {
                at_most: until.since(now.time),
            },
            AcquireRefusal::NoMajority => AcquireError::NoMajority,
            AcquireRefusal::AlreadyRequested => AcquireError::AlreadyRequested,
            AcquireRefusal::Name => AcquireError::Name,
            AcquireRefusal::Clock => AcquireError::Clock,
            AcquireRefusal::Cancelled => AcquireError::Stopped,
        }
    }
}
