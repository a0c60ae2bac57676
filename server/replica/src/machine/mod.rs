//! State machine: the state that results from executing the log in order. This module knows nothing
//! of promises, and nothing of slots that are not executed.

mod kv;
mod merge;
mod session;
mod staging;

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{ConfigId, Slot};
use leasehold_wire::{Command, Outcome};

use super::action::{Checkpoint, Record};
use super::message::Value;
use super::per_log::PerLog;
use super::persist::Continuation;
use super::settings::SessionLimits;
use super::step::Step;
use crate::cost::{self, Request};

pub use kv::{Kv, version_of};
pub use session::{Admission, InFlightBound, Sessions};

use self::staging::StagedCheckpoint;

/// A merge takes this many times its estimated cost from the capacity of a slot.
const MERGE_COST_FACTOR: usize = 4;
/// Minimum part of a slot's capacity that a merge takes, because an earlier command of the slot may
/// replace the record with a larger one.
const MERGE_COST_MIN: usize = 8 << 10;
/// Number of changed keys and sessions at which a checkpoint is made. The storage takes some 4 ms
/// to write this many.
const CHANGES_MAX: usize = 1 << 10;

/// Bytes of executed writes at which a checkpoint is made. When all replicas restart, their leader
/// proposes everything above a checkpoint again.
const WRITTEN_BYTES_MAX: usize = 8 << 20;
/// Bytes of writes executed since the last checkpoint. If there are more, the next checkpoint is
/// urgent.
const URGENT_BYTES: usize = 16 << 20;

/// State, and the slots that the newest checkpoint of it covers.
#[derive(Clone, Debug)]
pub(super) struct StateMachine {
    kv: Kv,
    /// Last slot of commands and last configuration that the newest requested checkpoint covers.
    checkpointed: (Slot, ConfigId),
    /// Checkpoint that is being written in parts, if there is one: its long values are written
    /// before the checkpoint itself.
    staging: Option<StagedCheckpoint>,
}

impl StateMachine {
    pub(super) fn restore(sessions: &SessionLimits, state: Checkpoint) -> StateMachine {
        StateMachine {
            checkpointed: (state.executed, state.config),
            staging: None,
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

    /// Estimates the part of a slot's capacity that a command takes (§3.9). This is the cost of the
    /// command. For a merge it is more, because a slot is executed in one step, which must not take
    /// long. The merges of a slot take some 1.2 ms. They take up to 4 ms if a command before them
    /// makes their records as large as possible.
    pub(super) fn slot_cost(&self, command: &Command) -> usize {
        let merging = command.as_merge().map_or(0, |_| {
            MERGE_COST_MIN.max(MERGE_COST_FACTOR * cost::MERGING * self.merge_work(command))
        });
        cost::of(Request::Command(command)).executing() + merging
    }

    /// Estimates the work of a merge into the record as it is now; 0 for other commands. The
    /// estimate does not include the fields that the merge adds.
    pub(super) fn merge_work(&self, command: &Command) -> usize {
        let merge = command.as_merge();
        merge.map_or(0, |put| self.kv.merge_work_ahead(&put.key))
    }

    /// Returns the work of the merges executed since the last call.
    pub(super) fn take_merge_work(&mut self) -> usize {
        self.kv.take_merge_work()
    }

    /// Last slots that the newest requested checkpoint covers. That checkpoint may not be durable
    /// yet; `Log` knows the durable one.
    pub(super) fn checkpointed(&self) -> PerLog<Slot> {
        let (commands, config) = self.checkpointed;
        PerLog {
            commands,
            configs: Slot(config.0),
        }
    }

    /// Whether enough has changed that a checkpoint should be made early. A checkpoint of more
    /// changes would take one long step, and all later writes to the disk would wait for this
    /// checkpoint.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.has_many_changes() || self.kv.written_bytes() >= WRITTEN_BYTES_MAX
    }

    fn has_many_changes(&self) -> bool {
        self.kv.dirty_len() + self.kv.sessions.dirty_cost() >= CHANGES_MAX
    }

    /// Whether a checkpoint is being written in parts.
    pub(super) fn is_staging(&self) -> bool {
        self.staging.is_some()
    }

    /// Urgency of the checkpoint that is being written in parts, from 0 to 1 (most urgent).
    pub(super) fn urgency(&self) -> f64 {
        if self.has_many_changes() {
            return 1.0;
        }
        let staged = self
            .staging
            .as_ref()
            .map_or(0, StagedCheckpoint::written_bytes);
        let written = staged + self.kv.written_bytes();
        (written as f64 / URGENT_BYTES as f64).min(1.0)
    }

    /// Makes a checkpoint of the changes in the state, so that a restart replays little of the log.
    /// If the values of the checkpoint do not fit into one write, this function writes the first
    /// part of them, and [`StateMachine::go_on_staging`] writes the rest.
    ///
    /// # Panics
    /// If the previous checkpoint is not completely written yet.
    pub(super) fn checkpoint(&mut self, step: &mut Step<'_>, executed: Slot, config: ConfigId) {
        assert!(
            !self.is_staging(),
            "checkpoints are made one after the other"
        );
        assert!(
            (executed, config) >= self.checkpointed,
            "the state is not behind its checkpoint"
        );
        if (executed, config) == self.checkpointed {
            return;
        }
        let written_bytes = self.kv.written_bytes();
        let checkpoint = Checkpoint {
            executed,
            config,
            log_time_ms: self.kv.log_time_ms,
            entries: self.kv.take_dirty(),
            sessions: self.kv.sessions.take_dirty(),
            opens_from_ms: self.kv.sessions.opens_from_ms(),
        };
        let piece_bytes = step.ctx.settings.checkpoint_piece_bytes;
        self.staging = Some(StagedCheckpoint::new(
            checkpoint,
            written_bytes,
            piece_bytes,
        ));
        self.go_on_staging(step, executed, config);
    }

    /// Writes the next long values of a checkpoint, or the checkpoint itself if the values left are
    /// few enough to be written with it. A checkpoint holds the state of the slot at which it was
    /// begun, although later slots were executed since (hazard 86): a restart executes the log from
    /// that slot. `executed` and `config` are the last slots executed now.
    pub(super) fn go_on_staging(&mut self, step: &mut Step<'_>, executed: Slot, config: ConfigId) {
        let Some(mut staging) = self.staging.take() else {
            return;
        };
        // The piece is at least as large as the log's writes that wait for the disk. So writes that
        // follow it wait at most twice as long as without it. And on a slow disk the log gets no
        // larger share than the checkpoint, which would otherwise never be finished.
        let waiting = step.persister.waiting_bytes();
        let piece_bytes = waiting.max(step.ctx.settings.checkpoint_piece_bytes);
        if let Some(piece) = staging.piece(piece_bytes) {
            self.staging = Some(staging);
            step.when_durable(Continuation::Staged { since: step.now });
            step.record(Record::Staged(piece));
            return;
        }
        let mut checkpoint = staging.finish();
        if off(Rule::H86OneSlot) {
            (checkpoint.executed, checkpoint.config) = (executed, config);
        }
        self.checkpointed = (checkpoint.executed, checkpoint.config);
        step.when_durable(Continuation::Checkpointed(self.checkpointed()));
        step.record(Record::Checkpoint(checkpoint));
    }
}
