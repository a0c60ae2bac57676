//! Functions that show a replica's state to the oracles of tests.

use leasehold_leases::{Ballot, ConfigId, Incarnation, Key, ReplicaId, ReplicaSet, Slot, Time};

use super::Replica;
use super::message::{LogId, Value};

impl Replica {
    /// Returns the incarnation of this run.
    pub fn incarnation(&self) -> Incarnation {
        self.ctx.incarnation
    }

    /// Returns the ballot under which this replica leads; `None` if it does not lead.
    pub fn leads_at(&self) -> Option<Ballot> {
        self.parts.consensus.leadership().map(|l| l.ballot)
    }

    /// Returns the last executed slot of a log.
    pub fn executed_of(&self, log: LogId) -> Slot {
        self.parts.consensus.log(log).executed()
    }

    /// Returns the commit point of a log, and the number of slots above it that are committed here.
    pub fn commits_of(&self, log: LogId) -> (Slot, u64) {
        let log = &self.parts.consensus.log(log);
        (log.commit_point(), log.committed_above())
    }

    /// Whether a slot is known to be committed here.
    pub fn is_committed(&self, log: LogId, slot: Slot) -> bool {
        self.parts.consensus.log(log).is_committed(slot)
    }

    /// Returns the highest slot of a log that is accepted here.
    pub fn highest_of(&self, log: LogId) -> Slot {
        self.parts.consensus.log(log).highest()
    }

    /// Returns the votes of this replica on a slot, as far as they are counted here. Each vote is a
    /// pair: a ballot and a tag.
    pub fn own_votes(
        &self,
        log: LogId,
        slot: Slot,
    ) -> impl Iterator<Item = (Ballot, ReplicaSet)> + '_ {
        let cell = self.parts.consensus.log(log).get(slot);
        let me = self.ctx.me();
        cell.into_iter().flat_map(move |cell| {
            let ballot = cell.votes.ballot();
            cell.votes.tags_of(me).map(move |tag| (ballot, tag))
        })
    }

    /// Returns the log time of the last command executed here, in ms. A client sends this time when
    /// it opens a session.
    pub fn log_time_ms(&self) -> u64 {
        self.parts.machine.log_time_ms()
    }

    /// Returns the version of the value stored under `key` here; `None` if there is none.
    pub fn version_of(&self, key: &[u8]) -> Option<leasehold_wire::Version> {
        let stored = self.parts.machine.kv().get(key);
        stored.map(|stored| stored.version)
    }

    /// Returns the slots that are marked on `key`, in rising order: they are accepted and not yet
    /// executed.
    pub fn marks_on(&self, key: &[u8]) -> &[Slot] {
        self.parts.consensus.marks().on(key)
    }

    /// Returns the time until which `grantor` covers `key` here, by this replica's clock. Also
    /// returns the barrier of the chain of promises that covers the key.
    pub fn covered_by(&self, now: Time, grantor: ReplicaId, key: &[u8]) -> Option<(Time, Slot)> {
        let view = self.configs().view(key);
        self.parts.leasing.holder().covered_by(now, grantor, view)
    }

    /// Returns the number of members of the cluster.
    pub fn members(&self) -> usize {
        self.ctx.settings.n
    }

    /// Returns the value accepted in a slot, if it is still in memory.
    pub fn entry(&self, log: LogId, slot: Slot) -> Option<&Value> {
        let cell = self.parts.consensus.log(log).get(slot)?;
        cell.accepted.as_ref().map(|accepted| &accepted.value)
    }

    /// Returns the value accepted in a slot, and the ballot under which it was accepted.
    pub fn accepted(&self, log: LogId, slot: Slot) -> Option<(Ballot, &Value)> {
        let accepted = self.parts.consensus.log(log).get(slot)?.accepted.as_ref()?;
        Some((accepted.ballot, &accepted.value))
    }

    /// Returns all marks, in no particular order. Each mark is a pair of a key and a slot: reads of
    /// the key wait for the slot.
    pub fn marks(&self) -> impl Iterator<Item = (&Key, Slot)> {
        self.parts.consensus.marks().all()
    }

    /// Whether reads of `key` wait for `slot`.
    pub fn is_marked(&self, key: &[u8], slot: Slot) -> bool {
        self.parts.consensus.marks().on(key).contains(&slot)
    }

    /// Returns the time, by this replica's clock, at which its restart wait ends; zero if the wait
    /// is over. Until then each vote of this replica demands all replicas, because forgotten grants
    /// may still be valid.
    pub fn outwaits_until(&self) -> Time {
        self.parts.leasing.outwaits_until()
    }

    /// Returns whether this replica accepts promises that `grantor` makes in the run `incarnation`.
    pub fn honours(&self, grantor: ReplicaId, incarnation: Incarnation) -> bool {
        self.ctx.incarnation_of(grantor) == incarnation
    }

    /// Returns the promises of `grantor` to this replica: the configuration of each promise, and
    /// the time until which the promise lasts, by this replica's own clock.
    pub fn promised_by(&self, grantor: ReplicaId) -> impl Iterator<Item = (ConfigId, Time)> + '_ {
        self.parts.leasing.holder().promised_by(grantor)
    }

    /// Returns the grants of this replica to `holder`: the configuration of each grant, and the
    /// time until which the grant lasts, by this replica's own clock.
    pub fn grants_to(&self, holder: ReplicaId) -> impl Iterator<Item = (ConfigId, Time)> + '_ {
        self.parts.leasing.grantor().granted_to(holder)
    }

    /// Returns the time, by this replica's clock, until which this replica keeps its grant to
    /// `holder` under `config`; `None` if there is no such grant.
    pub fn granted_to(&self, holder: ReplicaId, config: ConfigId) -> Option<Time> {
        self.parts
            .leasing
            .grantor()
            .granted_to(holder)
            .find(|(under, _)| *under == config)
            .map(|(_, until)| until)
    }

    /// Whether `key` may be read at this replica under leases at `now`.
    pub fn may_read(&self, now: Time, key: &[u8]) -> bool {
        self.parts.view().permit(now, key).is_ok()
    }

    /// Returns the highest slot of the log of commands that is accepted here.
    pub fn highest_accepted(&self) -> Slot {
        self.parts.consensus.commands().highest()
    }
}

/// Methods that corrupt marks. Tests use these methods to check that the oracles notice wrong
/// marks.
#[doc(hidden)]
impl Replica {
    /// Marks the keys of `value`, although `value` is not accepted in this slot.
    pub fn mark_wrongly(&mut self, slot: Slot, value: &Value) {
        self.parts.consensus.marks_mut().mark(slot, value);
    }

    /// Removes the marks of the keys of `value`, although `value` is accepted in this slot.
    pub fn unmark_wrongly(&mut self, slot: Slot, value: &Value) {
        self.parts.consensus.marks_mut().unmark(slot, value, |_| {});
    }
}
