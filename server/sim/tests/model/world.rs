//! One state of the model, and its successors.
//!
//! The replicas are the ones that serve clients, driven as `leasehold-node` drives them: they take a
//! step with all inputs that arrived together, then flush, then perform their actions.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use leasehold_leases::{ReplicaId, ReplicaSet, Slot, fingerprint};
use leasehold_replica::Replica;
use leasehold_replica::message::{Envelope, LogId, Message};

use super::clients::{Clients, KEY, writes_key};
use super::model::{Leasehold, LeasesOfNode};
use super::node::{Node, Packet, ReactionContext, Stimulus};
use super::scenario::{Clocks, N, Order, Scenario};

/// Event that may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A packet arrives. On links that keep the order, this is always the packet with `index` 0.
    Deliver {
        /// Sender.
        from: usize,
        /// Addressee.
        to: usize,
        /// Index of the packet on the link.
        index: usize,
    },
    /// The oldest write of a replica becomes durable.
    Sync(usize),
    /// Everything that a replica has executed becomes durable in its state.
    Flush(usize),
    /// The reading of a replica's clock increases by one tick.
    Tick(usize),
    /// A replica ends, loses everything that is not durable, and starts again.
    Crash(usize),
    /// A replica's election timeout passes.
    Campaign(usize),
    /// A client sends its next command.
    Ask(usize),
}

/// Event that must never happen, but did.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// Two replicas executed different values in one slot.
    Agreement(LogId, Slot),
    /// A client received an answer that contradicts the values known before the request was sent.
    Linearizability(String),
    /// A vote on a write of the key does not name a holder to which the voter has an unexpired grant.
    Vote(Slot),
    /// A replica found that one of its own invariants is broken.
    Panic(String),
}

/// A state. Two states are considered equal if their 64-bit digests are equal.
#[derive(Clone)]
pub struct World {
    pub nodes: [Arc<Node>; N],
    /// Number of ticks of each clock since exploration began.
    pub ticks: [u8; N],
    pub links: [Vec<Arc<Packet>>; N * N],
    pub clients: Clients,
    /// Fingerprints of all values that were ever executed by any replica, by log and slot.
    chosen: [Vec<u64>; 2],
    pub crashes_left: u8,
    pub campaigns_left: u8,
    /// Replicas that may still flush their states.
    pub flush_left: [bool; N],
    pub violation: Option<Violation>,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for node in &self.nodes {
            node.digest.hash(state);
        }
        (self.ticks, &self.clients, &self.chosen).hash(state);
        (self.crashes_left, self.campaigns_left, &self.violation).hash(state);
        self.flush_left.hash(state);
        for link in &self.links {
            link.len().hash(state);
            link.iter().for_each(|packet| packet.digest.hash(state));
        }
    }
}

impl PartialEq for World {
    fn eq(&self, other: &World) -> bool {
        fingerprint::of(self) == fingerprint::of(other)
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ticks {:?}", self.ticks)?;
        for node in &self.nodes {
            let replica = &node.replica;
            write!(
                f,
                " [{:?} follows {:?} executed {:?} flushed {:?} marks {:?} unsynced {}]",
                replica.incarnation(),
                replica.leader(),
                replica.executed(),
                node.flushed.commands,
                replica.marks_on(KEY.as_bytes()),
                node.writing.len()
            )?;
        }
        write!(f, " {:?}", self.clients)?;
        match &self.violation {
            Some(violation) => write!(f, " VIOLATION {violation:?}"),
            None => Ok(()),
        }
    }
}

impl World {
    /// Creates a world of replicas that have started on empty disks.
    pub fn new(nodes: [Arc<Node>; N]) -> World {
        World {
            nodes,
            ticks: [0; N],
            links: Default::default(),
            clients: Clients::default(),
            chosen: Default::default(),
            crashes_left: 0,
            campaigns_left: 0,
            flush_left: [false; N],
            violation: None,
        }
    }

    /// Returns a replica.
    pub fn replica(&self, node: usize) -> &Replica {
        &self.nodes[node].replica
    }

    /// Lists every event that may happen next.
    pub fn actions(&self, model: &Leasehold, actions: &mut Vec<Action>) {
        let scenario = &model.scenario;
        if self.violation.is_some() || self.clients.done(scenario) {
            return;
        }
        if let Some(late) = self.half_ticked(scenario) {
            return actions.push(Action::Tick(late));
        }
        for (link, packets) in self.links.iter().enumerate() {
            let (from, to) = (link / N, link % N);
            let deliverable = match scenario.order {
                Order::Fifo => packets.len().min(1),
                Order::Any => packets.len(),
            };
            let deaf = |index: &usize| !self.waits(&packets[*index], to);
            let new = |index: &usize| {
                let earlier = &packets[..*index];
                earlier.iter().all(|p| p.digest != packets[*index].digest)
            };
            let without_delay = |index: &usize| {
                let packet = &packets[*index];
                self.only_truncates(model, to, packet) || self.is_without_effect(model, to, packet)
            };
            if let Some(index) = (0..deliverable).find(without_delay) {
                // A later delivery of this packet would reach no further states.
                actions.clear();
                return actions.push(Action::Deliver { from, to, index });
            }
            let indices = (0..deliverable).filter(deaf).filter(new);
            actions.extend(indices.map(|index| Action::Deliver { from, to, index }));
        }
        for node in 0..N {
            if !self.nodes[node].writing.is_empty() {
                actions.push(Action::Sync(node));
            }
            if self.may_flush(scenario, node) {
                actions.push(Action::Flush(node));
            }
            if self.may_tick(scenario, node) {
                actions.push(Action::Tick(node));
            }
            if self.crashes_left > 0 && scenario.may_crash.contains(&node) {
                actions.push(Action::Crash(node));
            }
            let now = !scenario.campaign_after_crash || self.crashes_left == 0;
            if self.campaigns_left > 0 && now && scenario.may_campaign.contains(&node) {
                actions.push(Action::Campaign(node));
            }
        }
        for client in 0..scenario.programs.len() {
            if self.clients.may_ask(scenario, client) {
                actions.push(Action::Ask(client));
            }
        }
    }

    /// Whether a replica may flush its state now: it has not done so yet, its flushed state does
    /// not cover everything that it has executed, and no replica has campaigned.
    fn may_flush(&self, scenario: &Scenario, node: usize) -> bool {
        let flushed = self.nodes[node].flushed;
        let is_done = flushed.all(|log, slot| self.replica(node).executed_of(log) <= *slot);
        let campaigned = self.campaigns_left < scenario.campaigns;
        self.flush_left[node] && !is_done && !campaigned
    }

    /// Whether each replica can still learn every executed slot: its flushed state covers the slot,
    /// or some log has the executed value.
    pub fn can_learn(&self) -> bool {
        LogId::ALL.into_iter().all(|log| {
            let mut executed = (1..).map(Slot).zip(&self.chosen[log.index()]);
            executed.all(|(slot, value)| {
                let mut nodes = self.nodes.iter();
                nodes.clone().all(|node| slot <= node.flushed[log])
                    || nodes.any(|node| node.has_logged(log, slot, *value))
            })
        })
    }

    /// Whether a clock may tick now. Afterwards, the readings of two clocks may differ by at most
    /// one tick.
    fn may_tick(&self, scenario: &Scenario, node: usize) -> bool {
        let mine = self.ticks[node];
        let others = || (0..N).filter(|other| *other != node);
        let allowed = match scenario.clocks {
            Clocks::Free => others().all(|other| self.ticks[other] >= mine),
            Clocks::Lag(slow) if slow == node => others().all(|other| self.ticks[other] > mine),
            Clocks::Lag(slow) => self.ticks[slow] >= mine,
        };
        allowed && mine < scenario.horizon
    }

    /// Returns the clock that must tick next, if two clocks tick together and only one of them has
    /// ticked.
    fn half_ticked(&self, scenario: &Scenario) -> Option<usize> {
        let Clocks::Lag(slow) = scenario.clocks else {
            return None;
        };
        let others = || (0..N).filter(|other| *other != slow);
        let ahead = others().map(|other| self.ticks[other]).max();
        others().find(|other| Some(self.ticks[*other]) < ahead)
    }

    /// Whether a packet has no effect, now or ever, because it is an answer of Paxos that arrives
    /// too late: a vote for a committed slot or a superseded ballot, a promise or refusal of an old
    /// ballot, or an ack of an old probe. If the addressee may still crash and forget its state,
    /// the packet may have an effect.
    fn is_without_effect(&self, model: &Leasehold, to: usize, packet: &Arc<Packet>) -> bool {
        let answers = |e: &Envelope| {
            matches!(
                e.message,
                Message::Accepted { .. }
                    | Message::Prepared { .. }
                    | Message::Rejected { .. }
                    | Message::HeartbeatAck { .. }
            )
        };
        if self.is_forgetful(model, to) || !packet.messages.iter().all(answers) {
            return false;
        }
        let at = self.circumstances(model, to);
        let stimulus = Stimulus::Packet(packet.clone());
        let reaction = model.reactions.of(&self.nodes[to], at, &stimulus, model);
        reaction.is_ok_and(|reaction| reaction.is_none(&self.nodes[to]))
    }

    /// Whether a packet has no effect, now or ever, except that the log of the addressee is
    /// truncated: it contains only pings of a known run. If the addressee may still crash, its
    /// restart depends on the log. Otherwise, the worst case is that the log is truncated early.
    fn only_truncates(&self, model: &Leasehold, to: usize, packet: &Packet) -> bool {
        let is_known = |e: &Envelope| self.replica(to).honours(e.from, e.from_incarnation);
        let pings = |e: &Envelope| matches!(e.message, Message::Ping { .. }) && is_known(e);
        !self.is_forgetful(model, to) && packet.messages.iter().all(pings)
    }

    /// Whether a replica may still crash and forget what is not durable.
    fn is_forgetful(&self, model: &Leasehold, node: usize) -> bool {
        self.crashes_left > 0 && model.scenario.may_crash.contains(&node)
    }

    fn circumstances(&self, model: &Leasehold, node: usize) -> ReactionContext {
        ReactionContext {
            me: node,
            now: model.clock(self, node),
            crashes_left: self.crashes_left,
            reading: self.clients.reading(&model.scenario),
        }
    }

    /// Whether a packet is held back. Only one kind of packet is held back: the refusal of a read,
    /// sent by the replica that the origin of the read considers the leader. Only a timer would
    /// send the read again, and no timer expires here. So the refusal is held back until the origin
    /// knows another leader.
    fn waits(&self, packet: &Packet, to: usize) -> bool {
        let refuses = |envelope: &Envelope| match &envelope.message {
            Message::ReadAnswers(answers) => answers.iter().any(|a| a.outcome.is_none()),
            _ => false,
        };
        let leader = self.replica(to).leader();
        packet
            .messages
            .iter()
            .any(|envelope| refuses(envelope) && leader == Some(envelope.from))
    }

    /// Returns the state after `action`.
    pub fn after(&self, model: &Leasehold, action: Action) -> World {
        let mut next = self.clone();
        let (node, stimulus) = next.stimulate(model, action);
        next.react(model, node, &stimulus);
        next
    }

    /// Returns the replica that an action affects, and the stimulus by which it is affected. No
    /// other replica is affected.
    fn stimulate(&mut self, model: &Leasehold, action: Action) -> (usize, Stimulus) {
        match action {
            Action::Deliver { from, to, index } => {
                let packet = self.links[from * N + to].remove(index);
                (to, Stimulus::Packet(packet))
            }
            Action::Sync(node) => (node, Stimulus::Synced),
            Action::Flush(node) => {
                self.flush_left[node] = false;
                (node, Stimulus::Flush)
            }
            Action::Tick(node) => {
                let before = self.leases(model, node);
                self.ticks[node] += 1;
                model.count_lapses(before, self.leases(model, node));
                (node, Stimulus::Tick)
            }
            Action::Crash(node) => {
                self.crashes_left -= 1;
                self.clients.lost(node);
                (node, Stimulus::Crash)
            }
            Action::Campaign(node) => {
                self.campaigns_left -= 1;
                (node, Stimulus::Silence)
            }
            Action::Ask(client) => {
                let (node, from, command) = self.clients.ask(&model.scenario, client);
                (node, Stimulus::Ask(from, command))
            }
        }
    }

    /// Returns the leases that `node` has and grants now.
    fn leases(&self, model: &Leasehold, node: usize) -> LeasesOfNode {
        let now = model.clock(self, node);
        let replica = self.replica(node);
        let grants = (0..N as u8).filter_map(|holder| {
            let newest = replica.configuration();
            replica.granted_to(ReplicaId(holder), newest)
        });
        LeasesOfNode {
            may_read: replica.may_read(now, KEY.as_bytes()),
            grants: grants.max() > Some(now),
        }
    }

    /// Lets a replica react, and applies the effects of its reaction to the rest of the state.
    pub fn react(&mut self, model: &Leasehold, node: usize, stimulus: &Stimulus) {
        let at = self.circumstances(model, node);
        let reaction = model.reactions.of(&self.nodes[node], at, stimulus, model);
        let reaction = match reaction {
            Ok(reaction) => reaction,
            Err(panic) => {
                self.violation = Some(Violation::Panic(panic));
                return;
            }
        };
        self.nodes[node] = reaction.node.clone();
        for (to, packet) in &reaction.sent {
            let link = &mut self.links[node * N + to];
            let at = match model.scenario.order {
                Order::Fifo => link.len(),
                // Packets without an order of their own are sorted, so that equal states have equal
                // digests.
                Order::Any => link.partition_point(|other| other.digest < packet.digest),
            };
            link.insert(at, packet.clone());
        }
        for (log, slot, value) in &reaction.executed {
            self.compare(*log, *slot, *value);
        }
        self.judge_votes(model, node, &reaction.sent);
        for (to, path, outcome) in &reaction.answers {
            if let Err(what) = self.clients.answered(&model.scenario, *to, outcome) {
                self.violation = Some(Violation::Linearizability(what));
            }
            let origin = model.scenario.origin(*to);
            model.note_answer(self, origin, *path, outcome);
        }
        reaction.events.iter().for_each(|event| model.note(event));
        reaction.reached.iter().for_each(|what| model.reach(*what));
    }

    /// Checks that each vote on a write of the key names every holder to which its sender has an
    /// unexpired grant (§3.6).
    fn judge_votes(&mut self, model: &Leasehold, node: usize, sent: &[(usize, Arc<Packet>)]) {
        let (replica, now) = (self.replica(node), model.clock(self, node));
        let newest = replica.configuration();
        let is_granted = |holder: &ReplicaId| replica.granted_to(*holder, newest) > Some(now);
        let granted: ReplicaSet = model.holders.iter().filter(is_granted).collect();
        let writes = |slot: Slot| {
            let value = replica.entry(LogId::Commands, slot);
            value.is_some_and(writes_key)
        };
        let messages = sent.iter().flat_map(|(_, packet)| &packet.messages);
        let mut votes = messages.flat_map(|envelope| votes_of(&envelope.message));
        let wrong = votes.find(|(slot, tag)| writes(*slot) && !granted.minus(*tag).is_empty());
        if let Some((slot, _)) = wrong {
            self.violation = Some(Violation::Vote(slot));
        }
    }

    /// Compares a value that a replica executed with the values that other replicas executed in the
    /// same slot.
    fn compare(&mut self, log: LogId, slot: Slot, value: u64) {
        let chosen = &mut self.chosen[log.index()];
        match chosen.get(slot.0 as usize - 1) {
            Some(known) if *known == value => {}
            Some(_) => self.violation = Some(Violation::Agreement(log, slot)),
            None => {
                assert_eq!(chosen.len() as u64 + 1, slot.0, "execution skips no slot");
                chosen.push(value);
            }
        }
    }
}

/// Returns the votes in a message that concern the log of commands, each with its tag.
fn votes_of(message: &Message) -> Vec<(Slot, ReplicaSet)> {
    match message {
        Message::Accepted {
            log: LogId::Commands,
            votes,
            ..
        } => votes.to_vec(),
        Message::Accept(accept) if accept.log == LogId::Commands => accept
            .vote
            .map(|tag| (accept.slot, tag))
            .into_iter()
            .collect(),
        _ => Vec::new(),
    }
}
