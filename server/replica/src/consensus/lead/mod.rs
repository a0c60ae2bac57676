//! State of a leader: queued commands, proposals, probes and transfers.

mod in_flight;
mod queue;
mod transfer;

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Slot, Time};
use leasehold_wire::Command;
use leasehold_wire::command::Op;
use smallvec::SmallVec;

use crate::machine::Sessions;
use crate::message::{Batch, Proposal, Value};
use crate::per_log::PerLog;
use crate::sanity::NUMBER_MAX;
use in_flight::InFlight;
use queue::Queue;
pub use queue::{BatchLimits, CommandClass};
use transfer::Transfer;
pub use transfer::TransferProgress;

/// State of a leader, from the beginning to the end of its leadership.
#[derive(Clone, Debug)]
pub struct Leadership {
    pub ballot: Ballot,
    pub since: Time,
    /// Slot of this leader's next proposal in each log.
    pub next: PerLog<Slot>,
    pub queue: Queue,
    pub in_flight: InFlight,
    /// Newest slot of this ballot that holds a multi-key command.
    last_multi: Slot,
    log_time_base_ms: u64,
    /// Value that this leader states in its batches as the maximum number of sessions. The next
    /// field, `least_sessions_max`, is the lowest maximum in the batches in flight.
    sessions_max: u32,
    least_sessions_max: u32,
    /// Whether the peers must still be notified of some commits.
    pub news_due: PerLog<bool>,
    /// Sequence number of the newest probe that was sent. A probe is a numbered heartbeat.
    pub probe: u64,
    /// For each replica, the sequence number of the newest probe that it has answered.
    probe_acks: Vec<u64>,
    /// Time at which each replica last answered a probe or voted.
    answered: Vec<Time>,
    pub transfer: Transfer,
}

impl Hash for Leadership {
    /// Hashes this value, except the times at which replicas answered, and the maximum numbers of
    /// sessions. While a fingerprint is valid, the times only determine which writes share a batch
    /// (`Replica::fingerprint`). The maximum numbers come from the settings.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.ballot, self.since, self.next, &self.queue).hash(state);
        (&self.in_flight, self.last_multi, self.log_time_base_ms).hash(state);
        (self.news_due, self.probe, &self.probe_acks).hash(state);
        self.transfer.hash(state);
    }
}

impl Leadership {
    /// Returns the state of a new leader. `log_time_base_ms` is the replicated clock from which
    /// this leadership continues; `sessions_max` is the maximum number of sessions.
    pub fn new(
        ballot: Ballot,
        n: usize,
        now: Time,
        log_time_base_ms: u64,
        sessions_max: u32,
    ) -> Leadership {
        Leadership {
            ballot,
            since: now,
            next: PerLog::of(|_| Slot(1)),
            queue: Queue::default(),
            in_flight: InFlight::default(),
            last_multi: Slot::ZERO,
            log_time_base_ms,
            sessions_max,
            least_sessions_max: sessions_max,
            news_due: PerLog::default(),
            probe: 0,
            probe_acks: vec![0; n],
            answered: vec![now; n],
            transfer: Transfer::default(),
        }
    }

    /// Queues a command that is neither queued nor proposed.
    pub fn enqueue(&mut self, class: CommandClass, proposed: Proposal) {
        assert!(!self.in_flight.knows(&proposed), "a command is queued once");
        self.in_flight.note(&proposed);
        self.queue.push(class, proposed);
    }

    /// Removes the next batch from the queue. The batch contains commands of `class`, and of
    /// classes that differ from `class` only in `nearby` replicas: see [`Queue::next_batch`].
    pub fn next_batch(
        &mut self,
        class: ReplicaSet,
        nearby: ReplicaSet,
        limits: BatchLimits<'_>,
        now: Time,
    ) -> Batch {
        let led_ms = now.since(self.since).as_millis() as u64;
        let log_time_ms = (self.log_time_base_ms + led_ms).min(NUMBER_MAX);
        let slot = self.next.commands;
        let batch = self
            .queue
            .next_batch(class, nearby, slot, limits, log_time_ms);
        Batch {
            sessions_max: self.sessions_max,
            ..batch
        }
    }

    /// Notes a value that was in the log before this replica led.
    pub fn note_recovered(&mut self, value: &Value) {
        if let Value::Commands(batch) = value {
            self.least_sessions_max = match (self.least_sessions_max, batch.sessions_max) {
                (0, bound) | (bound, 0) => bound,
                (one, other) => one.min(other),
            };
        }
        for proposed in value.commands() {
            self.in_flight.note(proposed);
        }
    }

    /// Notes that `value` is proposed in `slot`. Returns `last_multi` for this slot: the highest
    /// slot, up to and including this one, that may hold a multi-key command.
    pub fn note_multi(&mut self, slot: Slot, value: &Value) -> Slot {
        let mut commands = value.commands().iter();
        if commands.any(|proposed| is_multi(&proposed.command)) {
            self.last_multi = slot;
        }
        self.last_multi
    }

    /// Returns one bit for each command of `value`. The bit is set if the command is *infallible*:
    /// a blind write that execution cannot refuse.
    pub fn infallible_bits(&self, value: &Value, sessions: &Sessions) -> Arc<[u64]> {
        let Value::Commands(batch) = value else {
            return Arc::from([]);
        };
        let mut bits = vec![0u64; batch.commands.len().div_ceil(64)];
        let (log_time_ms, sessions_max) = (batch.log_time_ms, self.least_sessions_max);
        let is_infallible = |command: &Command| {
            let in_flight = &self.in_flight;
            in_flight.is_infallible(command, sessions, log_time_ms, sessions_max)
        };
        for (index, Proposal { command, .. }) in batch.commands.iter().enumerate() {
            if command.is_blind_write() && is_infallible(command) {
                bits[index / 64] |= 1 << (index % 64);
            }
        }
        bits.into()
    }

    /// Notes that a peer has answered a probe.
    pub fn probe_answered(&mut self, from: ReplicaId, probe: u64) {
        let answered = &mut self.probe_acks[from.index()];
        *answered = (*answered).max(probe);
    }

    /// Notes that the peer `from` has answered this leader. Returns the time of this peer's
    /// previous answer.
    pub fn heard(&mut self, now: Time, from: ReplicaId) -> Time {
        std::mem::replace(&mut self.answered[from.index()], now)
    }

    /// Returns the replicas that have answered a probe or voted within `timeout`. Votes count, too,
    /// because a probe may wait behind large Accepts.
    pub fn in_touch(&self, now: Time, timeout: Duration) -> ReplicaSet {
        let each = self.answered.iter().zip(0..);
        let lately = each.filter(|(at, _)| now.since(**at) < timeout);
        lately.map(|(_, id)| ReplicaId(id)).collect()
    }

    /// Returns the replicas that have answered a probe or voted within `timeout` and since this
    /// leadership began. A new leadership at first assumes that all replicas have just answered.
    /// These assumed answers do not count here.
    pub fn heard_of(&self, now: Time, timeout: Duration) -> ReplicaSet {
        let touched = self.in_touch(now, timeout).iter();
        let answered = touched.filter(|who| self.answered[who.index()] > self.since);
        answered.collect()
    }

    /// Returns the sequence number of the newest probe that a majority has answered. The leader
    /// `me` counts as a member of that majority.
    pub fn confirmed_probe(&self, me: ReplicaId, majority: usize) -> u64 {
        let mut answered: SmallVec<[u64; 8]> = self.probe_acks.as_slice().into();
        answered[me.index()] = self.probe + 1;
        answered.sort_unstable_by(|a, b| b.cmp(a));
        assert!(
            majority <= answered.len(),
            "a majority has no more replicas than the cluster"
        );
        answered[majority - 1]
    }

    pub fn check(&self) {
        let newest = self.probe_acks.iter().max();
        assert!(
            newest.is_none_or(|newest| *newest <= self.probe),
            "no probe is answered before it is sent"
        );
        assert!(
            self.last_multi < self.next.commands,
            "last_multi is below the next slot"
        );
        self.queue.check();
    }
}

/// Returns true if a command concerns several keys. For a transaction, the keys that it compares or
/// reads count like those that it writes. If they did not, a later blind write of a compared key
/// could be answered before the transaction commits. A client that knows of this write could then
/// still read the old values of the keys that the transaction writes (hazard 34).
fn is_multi(command: &Command) -> bool {
    match &command.op {
        Some(Op::Txn(txn)) if off(Rule::H34TxnReads) => {
            let mut written = txn.written_keys();
            let first = written.next();
            written.any(|key| Some(key) != first)
        }
        _ => command.is_multi(),
    }
}
