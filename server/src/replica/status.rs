//! What an operator may look at: counters and the state in a few words.

use std::time::Duration;

use client::wire::{Counter, Peer, StatusReply};
use leases::{ConfigId, NoPermit, Slot, Time};

use super::Replica;

/// Counts since the start of this run.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub(super) held: u64,
    pub(super) log_reads: u64,
    pub(super) blocked_prefix: u64,
    pub(super) not_holder: u64,
    pub(super) uncovered: u64,
    pub(super) barrier: u64,
    pub(super) fence_missed: u64,
    pub(super) batches: u64,
    pub(super) batched_commands: u64,
    pub(super) retransmits: u64,
    pub(super) reforwards: u64,
    pub(super) fetches: u64,
    pub(super) fetched: u64,
    pub(super) stale_incarnation: u64,
    pub(super) refused_messages: u64,
    pub(super) beyond_window: u64,
    pub(super) clock_distrusted: u64,
    pub(super) checkpointed: (Slot, ConfigId),
    pub(super) restart_wait_asked: Duration,
    pub(super) restart_wait_over: bool,
}

impl Counters {
    /// Counts a read that could not be served here, by its reason.
    pub(super) fn count(&mut self, reason: NoPermit) {
        match reason {
            NoPermit::NotHolder => self.not_holder += 1,
            NoPermit::Uncovered => self.uncovered += 1,
            NoPermit::Barrier(_) => self.barrier += 1,
        }
    }
}

impl Replica {
    /// The state in a few words; replicas are named by their index.
    pub fn status(&self, now: Time) -> StatusReply {
        let granted_by = self.holder.grantors(now);
        let peers = self.others().map(|peer| Peer {
            name: peer.0.to_string(),
            rtt_us: self.peers[peer.index()]
                .rtt
                .map_or(0, |rtt| rtt.as_micros() as u64),
            granted_to: self
                .grantor
                .granted_until(peer)
                .is_some_and(|until| now < until),
            granted_by: granted_by.contains(peer),
        });
        StatusReply {
            replica: self.me().0.to_string(),
            leader: self
                .leader()
                .map_or(String::new(), |leader| leader.0.to_string()),
            ballot_round: self.promised.round,
            committed: self.commands().commit_point.0,
            executed: self.executed().0,
            configuration: self.configs.newest().0,
            strategy: self.configs.strategy().name().to_string(),
            counters: self.counters(),
            peers: peers.collect(),
            incarnation: self.incarnation.0,
            durability: String::new(),
            keys: self.kv.len() as u64,
        }
    }

    fn counters(&self) -> Vec<Counter> {
        let c = &self.counters;
        [
            ("reads_held", c.held),
            ("reads_in_log", c.log_reads),
            ("blocked_prefix", c.blocked_prefix),
            ("fallback_not_holder", c.not_holder),
            ("fallback_uncovered", c.uncovered),
            ("fallback_barrier", c.barrier),
            ("fallback_fence", c.fence_missed),
            ("batches", c.batches),
            ("batched_commands", c.batched_commands),
            ("retransmitted_accepts", c.retransmits),
            ("forwarded_again", c.reforwards),
            ("fetches", c.fetches),
            ("fetched_entries", c.fetched),
            ("stale_incarnation", c.stale_incarnation),
            ("refused_messages", c.refused_messages),
            ("refused_beyond_window", c.beyond_window),
            ("log_window_used", self.commands().used()),
            ("config_window_used", self.logs[1].used()),
            ("clock_trusted", self.clock_trusted.into()),
            ("clock_distrusted", c.clock_distrusted),
            ("sessions", self.kv.sessions.len() as u64),
            ("listed_keys", self.configs.listed_len() as u64),
            ("pending_commands", self.pending.len() as u64),
            ("waiting_reads", self.reader.len() as u64),
            ("joined", self.has_joined().into()),
        ]
        .map(|(name, value)| Counter {
            name: name.to_string(),
            value,
        })
        .into()
    }
}

/// What oracles look at.
impl Replica {
    /// This run.
    pub fn incarnation(&self) -> leases::Incarnation {
        self.incarnation
    }

    /// How far a log is executed.
    pub fn executed_of(&self, log: super::message::LogId) -> Slot {
        self.logs[log.index()].executed
    }

    /// Up to where everything is committed here, and how many slots are beyond.
    pub fn commits_of(&self, log: super::message::LogId) -> (Slot, u64) {
        let log = &self.logs[log.index()];
        (log.commit_point, log.above.len())
    }

    /// Whether a slot is known to be committed here.
    pub fn is_committed(&self, log: super::message::LogId, slot: Slot) -> bool {
        self.logs[log.index()].is_committed(slot)
    }

    /// The highest slot of a log that is accepted here.
    pub fn highest_of(&self, log: super::message::LogId) -> Slot {
        self.logs[log.index()].highest
    }

    /// The tags of this replica's own votes on a slot, as it counts them itself.
    pub fn own_votes(
        &self,
        log: super::message::LogId,
        slot: Slot,
    ) -> impl Iterator<Item = (leases::Ballot, leases::ReplicaSet)> + '_ {
        let cell = self.logs[log.index()].get(slot);
        let me = self.me();
        cell.into_iter().flat_map(move |cell| {
            let ballot = cell.votes.ballot();
            cell.votes.tags_of(me).map(move |tag| (ballot, tag))
        })
    }

    /// Log time at the last command executed here, in ms: what a client opens a
    /// session with.
    pub fn log_time_ms(&self) -> u64 {
        self.kv.log_time_ms
    }

    /// The version of what is stored under `key` here.
    pub fn version_of(&self, key: &[u8]) -> Option<client::wire::Version> {
        self.kv.get(key).map(|stored| stored.version)
    }

    /// Slots that are marked on `key`: accepted, not yet executed, rising.
    pub fn marks_on(&self, key: &[u8]) -> &[Slot] {
        self.marks.on(key)
    }

    /// Until when `grantor` covers `key` here, by this replica's clock, and the
    /// barrier of that chain.
    pub fn covered_by(
        &self,
        now: Time,
        grantor: leases::ReplicaId,
        key: &[u8],
    ) -> Option<(Time, Slot)> {
        self.holder.covered_by(now, grantor, self.configs.view(key))
    }

    /// How many members the cluster has.
    pub fn members(&self) -> usize {
        self.settings.n
    }

    /// What is accepted in a slot, if it is still in memory.
    pub fn entry(&self, log: super::message::LogId, slot: Slot) -> Option<&super::message::Value> {
        let cell = self.logs[log.index()].get(slot)?;
        cell.accepted.as_ref().map(|accepted| &accepted.value)
    }

    /// What is accepted in a slot, and at which ballot.
    pub fn accepted(
        &self,
        log: super::message::LogId,
        slot: Slot,
    ) -> Option<(leases::Ballot, &super::message::Value)> {
        let accepted = self.logs[log.index()].get(slot)?.accepted.as_ref()?;
        Some((accepted.ballot, &accepted.value))
    }

    /// For which slots reads of which keys wait, in no order.
    pub fn marks(&self) -> impl Iterator<Item = (&leases::Key, Slot)> {
        self.marks.all()
    }

    /// Whether reads of `key` wait for `slot`.
    pub fn is_marked(&self, key: &[u8], slot: Slot) -> bool {
        self.marks.on(key).contains(&slot)
    }

    /// Until when, by its own clock, every vote demands everyone, for forgotten
    /// grants may be alive; zero if that is over.
    pub fn outwaits_until(&self) -> Time {
        self.restart_wait_until
    }

    /// Whether promises of this incarnation of `grantor` are the ones believed here.
    pub fn honours(&self, grantor: leases::ReplicaId, incarnation: leases::Incarnation) -> bool {
        self.peers[grantor.index()].incarnation == incarnation
    }

    /// What `grantor` has promised this replica, and until when by its own clock.
    pub fn promised_by(
        &self,
        grantor: leases::ReplicaId,
    ) -> impl Iterator<Item = (ConfigId, Time)> + '_ {
        self.holder.promised_by(grantor)
    }

    /// What this replica has granted `holder`: under which configurations, and
    /// until when by its own clock.
    pub fn grants_to(
        &self,
        holder: leases::ReplicaId,
    ) -> impl Iterator<Item = (ConfigId, Time)> + '_ {
        self.grantor.granted_to(holder)
    }

    /// Until when, by its own clock, this replica keeps its grant to `holder`.
    pub fn granted_to(&self, holder: leases::ReplicaId, config: ConfigId) -> Option<Time> {
        self.grantor
            .granted_to(holder)
            .find(|(under, _)| *under == config)
            .map(|(_, until)| until)
    }
}

#[cfg(test)]
impl Replica {
    /// The marks, for tests of who judges them.
    pub(crate) fn marks_mut(&mut self) -> &mut super::marks::Marks {
        &mut self.marks
    }
}
