//! The model: a fixed schedule prepares the replicas. After that, every event that can happen is
//! explored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_leases::mutants::Rule;
use leasehold_leases::{ReplicaId, ReplicaSet, Slot, Time};
use leasehold_replica::action::Event;
use leasehold_replica::message::{Envelope, LogId, Message};
use leasehold_wire::{Outcome, Path};
use stateright::{Model, Property};

use super::clients::{KEY, writes_key};
use super::node::{self, Node, ReactionContext, Reactions, Stimulus};
use super::scenario::{N, Scenario, TICK};
use super::world::{Action, World};

/// Leases that a replica holds and grants at one moment.
#[derive(Clone, Copy, Debug)]
pub struct LeasesOfNode {
    /// Whether the replica may read.
    pub may_read: bool,
    /// Whether this replica has an unexpired grant to another replica.
    pub grants: bool,
}

/// Events that must be reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Milestone {
    /// A write was acknowledged.
    Written,
    /// A write was acknowledged that some holder of the key does not know. This is allowed because
    /// the holder's lease has ended.
    WrittenWithoutHolder,
    /// A transaction was answered that has written the key.
    TxnWrote,
    /// A transaction was answered that has found the other key.
    TxnFoundOther,
    /// A read was answered under a lease immediately.
    Local,
    /// A read was answered under a lease after it had waited for a write in flight.
    Held,
    /// A read was answered under the lease of another replica.
    Forwarded,
    /// A read was confirmed by the leader.
    ReadIndex,
    /// A read was answered while a replica other than r0 led.
    ReadAfterElection,
    /// A replica became the leader.
    Elected,
    /// A tick of a clock ended a lease.
    LeaseLapsed,
    /// A tick of a clock ended the last grant of a grantor.
    GrantLapsed,
    /// A replica voted after its restart.
    RestartedVotes,
    /// A replica answered a read under a lease that it got after its restart.
    RestartedReads,
    /// Entries were removed from a log.
    Truncated,
    /// A replica restarted after entries had been removed from its log.
    RestartedTruncated,
    /// A replica that had missed entries was served these entries from the log on another
    /// replica's disk.
    ServedFromLog,
}

/// Every milestone.
pub const MILESTONES: [Milestone; 17] = [
    Milestone::Written,
    Milestone::WrittenWithoutHolder,
    Milestone::TxnWrote,
    Milestone::TxnFoundOther,
    Milestone::Local,
    Milestone::Held,
    Milestone::Forwarded,
    Milestone::ReadIndex,
    Milestone::ReadAfterElection,
    Milestone::Elected,
    Milestone::LeaseLapsed,
    Milestone::GrantLapsed,
    Milestone::RestartedVotes,
    Milestone::RestartedReads,
    Milestone::Truncated,
    Milestone::RestartedTruncated,
    Milestone::ServedFromLog,
];

/// The model: prepared replicas, and every event that can happen to them.
pub struct Leasehold {
    pub scenario: Scenario,
    /// Reading of the clocks when the replicas started.
    pub start: Time,
    /// Reading of the clocks when exploration begins.
    origin: Time,
    pub horizon: Time,
    /// Holders of the key.
    pub holders: ReplicaSet,
    exploring: bool,
    pub reactions: Reactions,
    /// Rule that replicas do not apply, in a hunt for a mutant; otherwise `None`.
    pub without: Option<Rule>,
    base: Option<World>,
    reached: [AtomicU64; MILESTONES.len()],
}

impl Leasehold {
    /// Prepares a cluster: r0 leads, the configuration is in force, promises have just been made,
    /// the states are flushed, and the logs are truncated.
    pub fn new(scenario: Scenario, without: Option<Rule>) -> Leasehold {
        let start = Time(1_000_000_000);
        let mut model = Leasehold {
            start,
            origin: start,
            horizon: start + scenario.preparation() + TICK * u32::from(scenario.horizon),
            holders: ReplicaSet::EMPTY,
            exploring: false,
            reactions: Reactions::new(),
            without,
            base: None,
            reached: Default::default(),
            scenario,
        };
        let node = |me| Arc::new(Node::new(&model.scenario, me, start));
        let mut world = World::new(std::array::from_fn(node));
        model.stimulate_all(&mut world);
        // No replica campaigns without a stimulus: r0 becomes the leader.
        world.react(&model, 0, &Stimulus::Silence);
        model.deliver_all(&mut world);
        let end = start + model.scenario.preparation();
        while model.origin < end {
            let due = (0..N).map(|node| world.replica(node).next_deadline()).min();
            model.origin = due.expect("replicas").min(end);
            model.stimulate_all(&mut world);
        }
        model.holders = world.replica(0).configs().holders(KEY.as_bytes());
        model.exploring = true;
        world.crashes_left = model.scenario.crashes;
        world.campaigns_left = model.scenario.campaigns;
        world.flush_left = [model.scenario.flushes; N];
        for (me, node) in world.nodes.iter_mut().enumerate() {
            let circumstances = ReactionContext {
                me,
                now: model.origin,
                crashes_left: model.scenario.crashes,
                reading: false,
            };
            let digest = node.sum(circumstances, &model);
            let node = Arc::make_mut(node);
            node.digest = digest;
            node.truncated = false;
        }
        model.reached = Default::default();
        model.base = Some(world);
        model
    }

    fn stimulate_all(&self, world: &mut World) {
        for node in 0..N {
            world.react(self, node, &Stimulus::Tick);
        }
        self.deliver_all(world);
    }

    fn deliver_all(&self, world: &mut World) {
        while let Some(link) = world.links.iter().position(|link| !link.is_empty()) {
            let packet = world.links[link].remove(0);
            world.react(self, link % N, &Stimulus::Packet(packet));
        }
    }

    /// Returns the reading of a replica's clock.
    pub fn clock(&self, world: &World, node: usize) -> Time {
        self.origin + TICK * u32::from(world.ticks[node])
    }

    /// Whether the preparation is over.
    pub fn exploring(&self) -> bool {
        self.exploring
    }

    /// Whether the delivery of a message can change anything that is judged.
    pub fn matters(&self, envelope: &Envelope, to: usize, reading: bool) -> bool {
        if !self.exploring {
            return self.scenario.sole_grantor.is_none_or(|sole| {
                let lease = node::parties(envelope, to);
                lease.is_none_or(|(g, h)| g.index() == sole || !self.scenario.reads_at(h.index()))
            });
        }
        match &envelope.message {
            // A ping makes a new run or a flushed state known; the delay that it measures is not
            // used.
            Message::Ping { .. } => envelope.from_incarnation.0 > 1 || self.scenario.flushes,
            Message::Pong { .. } => false,
            // An ack of a heartbeat confirms reads that had arrived before the probe was sent.
            Message::HeartbeatAck { .. } => reading,
            // A promise to a replica that holds nothing, or at which no client reads, protects
            // nothing.
            Message::Lease(_) => node::parties(envelope, to).is_some_and(|(grantor, holder)| {
                let used = self.holders.contains(holder) && self.scenario.reads_at(holder.index());
                let made = !self.scenario.late_promise
                    || self.scenario.sole_grantor == Some(grantor.index());
                used && made && self.scenario.promises
            }),
            _ => true,
        }
    }

    /// Counts a transition that reaches the milestone `what`.
    pub fn reach(&self, what: Milestone) {
        self.reached[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of transitions that reached the milestone `what`.
    pub fn times(&self, what: Milestone) -> u64 {
        self.reached[what as usize].load(Ordering::Relaxed)
    }

    /// Counts an event that a replica announced, if the event is a milestone.
    pub fn note(&self, event: &Event) {
        if matches!(event, Event::Leading(_)) {
            self.reach(Milestone::Elected);
        }
    }

    /// Counts the milestones of a tick: the end of a lease, and the end of a grant.
    pub fn count_lapses(&self, before: LeasesOfNode, after: LeasesOfNode) {
        if before.may_read && !after.may_read {
            self.reach(Milestone::LeaseLapsed);
        }
        if before.grants && !after.grants {
            self.reach(Milestone::GrantLapsed);
        }
    }

    /// Counts the milestones that an answer reaches. They depend on the path by which the answer
    /// was served.
    pub fn note_answer(&self, world: &World, node: usize, path: Path, outcome: &Outcome) {
        use leasehold_wire::outcome::Result as Answer;
        if let Some(Answer::Txn(result)) = &outcome.result {
            self.reach(if result.or_else {
                Milestone::TxnWrote
            } else {
                Milestone::TxnFoundOther
            });
            return;
        }
        if let Some(Answer::Written(version)) = &outcome.result {
            self.reach(Milestone::Written);
            let slot = Slot(version.slot);
            let value = world.replica(node).entry(LogId::Commands, slot);
            if !value.is_some_and(writes_key) {
                return;
            }
            let knows = |holder: ReplicaId| {
                let replica = world.replica(holder.index());
                replica.executed() >= slot || replica.marks_on(KEY.as_bytes()).contains(&slot)
            };
            if !self.holders.iter().all(knows) {
                self.reach(Milestone::WrittenWithoutHolder);
            }
            return;
        }
        let replica = world.replica(node);
        match path {
            Path::Local => self.reach(Milestone::Local),
            Path::Held => self.reach(Milestone::Held),
            Path::Forwarded => self.reach(Milestone::Forwarded),
            Path::ReadIndex => self.reach(Milestone::ReadIndex),
            _ => {}
        }
        if matches!(path, Path::Local | Path::Held) && replica.incarnation().0 > 1 {
            self.reach(Milestone::RestartedReads);
        }
        let leads = |node: usize| world.replica(node).leader() == Some(ReplicaId(node as u8));
        if (1..N).any(leads) {
            self.reach(Milestone::ReadAfterElection);
        }
    }

    /// Whether every belief of a holder ends before the grant from which it follows (oracle 1;
    /// §3.5, §3.7).
    fn contained(&self, world: &World) -> bool {
        let pairs = (0..N).flat_map(|g| (0..N).map(move |h| (g, h)));
        pairs.filter(|(g, h)| g != h).all(|(g, h)| {
            let (grantor, holder) = (world.replica(g), world.replica(h));
            let (there, here) = (self.clock(world, g), self.clock(world, h));
            let current = holder.honours(ReplicaId(g as u8), grantor.incarnation());
            let promised = holder.promised_by(ReplicaId(g as u8));
            promised.filter(|(_, until)| here < *until).all(|(id, _)| {
                let granted = grantor.granted_to(ReplicaId(h as u8), id);
                let granted = granted.filter(|_| current).unwrap_or(Time::ZERO);
                there < granted.max(grantor.outwaits_until())
            })
        })
    }

    /// Whether every replica that may read the key has executed or marked each write that any
    /// replica knows to be committed (oracle 2; §3.6).
    fn notified(&self, world: &World) -> bool {
        let key = KEY.as_bytes();
        let may_read = |node: &usize| world.replica(*node).may_read(self.clock(world, *node), key);
        (0..N).filter(may_read).all(|reader| {
            let reader = world.replica(reader);
            (0..N).all(|other| {
                let other = world.replica(other);
                let first = reader.executed().next().0;
                let last = other.highest_accepted().0;
                (first..=last).map(Slot).all(|slot| {
                    let writes = other.entry(LogId::Commands, slot).is_some_and(writes_key);
                    !writes
                        || !other.is_committed(LogId::Commands, slot)
                        || reader.marks_on(key).contains(&slot)
                })
            })
        })
    }
}

impl Model for Leasehold {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        self.base.iter().cloned().collect()
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        state.actions(self, actions);
    }

    fn next_state(&self, state: &World, action: Action) -> Option<World> {
        Some(state.after(self, action))
    }

    fn properties(&self) -> Vec<Property<Leasehold>> {
        vec![
            Property::always(
                "no answer, execution or assertion is wrong",
                |_, world: &World| world.violation.is_none(),
            ),
            Property::always(
                "leases are contained in grants",
                |model: &Leasehold, world| model.contained(world),
            ),
            Property::always(
                "who may read knows of every commit",
                |model: &Leasehold, world| node::run(model.without, || model.notified(world)),
            ),
            Property::always(
                "every replica can still learn every executed slot",
                |model: &Leasehold, world: &World| !model.scenario.flushes || world.can_learn(),
            ),
        ]
    }
}
