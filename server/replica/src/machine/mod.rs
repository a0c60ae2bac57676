//! State machine: the state that results from executing the log in order. This module knows nothing
//! of promises, and nothing of slots that are not executed.

mod kv;
mod merge;
mod session;
mod txn;

use leasehold_leases::{ConfigId, Slot};
use leasehold_wire::{Command, Outcome};

use super::action::{Record, StateChanges};
use super::leasing::SavedConfigs;
use super::message::Value;
use super::per_log::PerLog;
use super::settings::SessionLimits;
use super::step::Step;
use crate::cost::{self, Request};

pub use kv::{Kv, version_of};
pub use session::{Admission, InFlightBound, Sessions};

/// Factor by which the estimated cost of a merge is multiplied. The product is the part of a slot's
/// capacity that the merge uses.
const MERGE_COST_FACTOR: usize = 4;
/// Minimum part of a slot's capacity that a merge uses. This minimum is needed because an earlier
/// command of the slot may replace the record with a larger record.
const MERGE_COST_MIN: usize = 8 << 10;
/// Number of changed keys and sessions at which a batch of changes is handed to the storage. The
/// storage needs several milliseconds for a batch of this size.
const CHANGES_MAX: usize = 1 << 12;
/// Bytes of executed writes at which a batch of changes is handed to the storage.
const CHANGES_BYTES_MAX: usize = 1 << 20;
/// Number of bytes of executed writes after which the state is flushed. This number limits the work
/// after a restart: the replica executes again all writes that came after the last flush.
const FLUSH_BYTES: usize = 16 << 20;

/// Replicated state, and its progress on the way to the disk.
#[derive(Clone, Debug)]
pub(super) struct StateMachine {
    kv: Kv,
    /// Last slot of commands and last configuration that the newest batch of changes covers.
    handed_over: (Slot, ConfigId),
    /// Last slot of commands and last configuration that the newest requested flush covers.
    flush_requested: (Slot, ConfigId),
    /// Whether a flush is in progress: it was requested, and its end is not reported yet.
    is_flushing: bool,
    /// Bytes of the writes that were handed over since the newest flush was requested.
    unflushed_bytes: usize,
}

impl StateMachine {
    pub(super) fn restore(sessions: &SessionLimits, state: StateChanges) -> StateMachine {
        StateMachine {
            handed_over: (state.executed, state.config),
            flush_requested: (state.executed, state.config),
            is_flushing: false,
            unflushed_bytes: 0,
            kv: Kv::restore(sessions, state),
        }
    }

    /// Returns the state.
    pub(super) fn kv(&self) -> &Kv {
        &self.kv
    }

    /// Sessions of clients.
    pub(super) fn sessions(&self) -> &Sessions {
        &self.kv.sessions
    }

    /// Highest log time of the batches executed so far, in ms.
    pub(super) fn log_time_ms(&self) -> u64 {
        self.kv.log_time_ms
    }

    /// Returns the result of a write if it was executed already.
    pub(super) fn result_of(&self, command: &Command) -> Option<Outcome> {
        match self.kv.sessions.admit(command, self.kv.log_time_ms) {
            Admission::Done(outcome) => Some(outcome),
            Admission::Fresh | Admission::Refused | Admission::NoRoom => None,
        }
    }

    /// Begins to execute a slot that holds `value`.
    pub(super) fn begin(&mut self, value: &Value) {
        if let Value::Commands(batch) = value {
            self.kv.begin(batch.log_time_ms, batch.sessions_max);
        }
    }

    /// Executes a command of the slot that was begun last. If the command's session has already
    /// executed a write with the same sequence number, returns the result of that write instead.
    pub(super) fn execute(&mut self, slot: Slot, index: usize, command: &Command) -> Outcome {
        self.kv.execute(slot, index, command)
    }

    /// Estimates the part of a slot's capacity that a command uses (§3.9). For a command that merges
    /// nothing, this part equals the cost of the command. For a merge, this part is larger than the
    /// cost, so that a slot contains fewer merges. All merges of a slot then take about 1.2 ms.
    /// They take up to 4 ms if an earlier command makes their records as large as possible. A
    /// transaction rewrites at most 1 MiB, which takes up to 1.5 ms.
    pub(super) fn slot_cost(&self, command: &Command) -> usize {
        let ahead = self.kv.merge_work_ahead(command);
        let parts = ahead.iter().map(|work| {
            let cost = MERGE_COST_FACTOR * cost::MERGING * work;
            MERGE_COST_MIN.max(cost)
        });
        cost::of(Request::Command(command)).executing() + parts.sum::<usize>()
    }

    /// Estimates the work that the merges of a command would cause if it were executed now; 0 for
    /// a command that merges nothing.
    pub(super) fn merge_work(&self, command: &Command) -> usize {
        self.kv.merge_work_ahead(command).iter().sum()
    }

    /// Returns the work of the merges executed since the last call.
    pub(super) fn take_merge_work(&mut self) -> usize {
        self.kv.take_merge_work()
    }

    /// Last slots that the newest requested flush covers. The flush may not be complete yet; `Log`
    /// knows the last slot that is durable.
    pub(super) fn flush_requested(&self) -> PerLog<Slot> {
        let (commands, config) = self.flush_requested;
        PerLog {
            commands,
            configs: Slot(config.0),
        }
    }

    /// Whether a flush may be requested. Only one flush may be in progress at a time.
    pub(super) fn may_flush(&self) -> bool {
        !self.is_flushing
    }

    /// Whether so much has changed since the last flush that the state should be flushed early.
    pub(super) fn has_much_to_flush(&self) -> bool {
        self.unflushed_bytes + self.kv.written_bytes() >= FLUSH_BYTES
    }

    /// Whether so much has changed since the last batch that the changes should be handed over now.
    /// A larger batch would keep the storage busy for a long time. `listed` is the number of listed
    /// keys that have changed.
    pub(super) fn has_many_changes(&self, listed: usize) -> bool {
        self.kv.dirty_len() + self.kv.sessions.dirty_cost() + listed >= CHANGES_MAX
            || self.kv.written_bytes() >= CHANGES_BYTES_MAX
    }

    /// Whether anything was executed since the last batch. `reached` contains the last slot and the
    /// last configuration that are executed now.
    pub(super) fn has_changes(&self, reached: (Slot, ConfigId)) -> bool {
        reached != self.handed_over
    }

    /// Hands the changes since the last batch to the storage. `executed` and `config` are the last
    /// slot and the last configuration executed now. `configs` returns the changes of the
    /// configurations since the last batch.
    pub(super) fn hand_over(
        &mut self,
        step: &mut Step<'_>,
        executed: Slot,
        config: ConfigId,
        configs: impl FnOnce() -> Option<SavedConfigs>,
    ) {
        assert!(
            (executed, config) >= self.handed_over,
            "the state is not behind what was handed over"
        );
        if !self.has_changes((executed, config)) {
            return;
        }
        self.handed_over = (executed, config);
        self.unflushed_bytes += self.kv.written_bytes();
        let (configs, listed) = configs().unzip();
        step.record(Record::from(StateChanges {
            executed,
            config,
            log_time_ms: self.kv.log_time_ms,
            entries: self.kv.take_dirty(),
            sessions: self.kv.sessions.take_dirty(),
            opens_from_ms: self.kv.sessions.opens_from_ms(),
            configs,
            listed: listed.unwrap_or_default(),
        }));
    }

    /// Requests a flush of everything that was handed over, unless a flush is in progress or there
    /// is nothing to flush.
    pub(super) fn flush(&mut self, step: &mut Step<'_>) {
        if self.is_flushing || self.flush_requested == self.handed_over {
            return;
        }
        self.is_flushing = true;
        self.flush_requested = self.handed_over;
        self.unflushed_bytes = 0;
        step.persister.flush_state();
    }

    /// Notes that the requested flush is complete: the state up to these slots is durable. On a full
    /// disk, the flush may cover less than was requested. The rest is then requested again.
    pub(super) fn note_flushed(&mut self, slots: PerLog<Slot>) {
        self.is_flushing = false;
        let (commands, config) = self.flush_requested;
        let config = config.min(ConfigId(slots.configs.0));
        self.flush_requested = (commands.min(slots.commands), config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_that_covers_less_is_followed_by_another_one() {
        let reached = (Slot(9), ConfigId(2));
        let mut machine = StateMachine {
            handed_over: reached,
            flush_requested: reached,
            is_flushing: true,
            ..StateMachine::restore(&SessionLimits::default(), StateChanges::default())
        };
        let flushed = PerLog {
            commands: Slot(7),
            configs: Slot(2),
        };
        machine.note_flushed(flushed);
        assert!(machine.may_flush());
        assert_eq!(machine.flush_requested(), flushed);
        assert_ne!(machine.flush_requested, machine.handed_over);
    }
}
