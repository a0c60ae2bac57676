//! The state machine: what executing the log in order builds, and nothing that a
//! replica promised. It knows nothing of slots that are not executed.

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

/// Factor by which the merges of a slot take more of it than their work.
const MERGE_COST_FACTOR: usize = 4;
/// Minimum that a merge takes of a slot: a command before it may replace its record.
const MERGE_COST_MIN: usize = 8 << 10;
/// Keys and sessions that change before a checkpoint is made: to write them takes the storage
/// some 4 ms.
const CHANGES_MAX: usize = 1 << 10;

/// Bytes of commands that are written before a checkpoint is made. When all replicas restart, their
/// leader proposes all that is above a checkpoint again.
const WRITTEN_BYTES_MAX: usize = 8 << 20;
/// With so many of them above the last checkpoint the next one is urgent.
const URGENT_BYTES: usize = 16 << 20;

/// The state, and up to where it is written down.
#[derive(Clone, Debug)]
pub(super) struct StateMachine {
    kv: Kv,
    /// Commands and configurations executed as of the newest checkpoint.
    checkpointed: (Slot, ConfigId),
    /// The next one, while values of it are written ahead.
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

    /// The state, to be read.
    pub(super) fn kv(&self) -> &Kv {
        &self.kv
    }

    /// Sessions of clients.
    pub(super) fn sessions(&self) -> &Sessions {
        &self.kv.sessions
    }

    /// Log time of the last command, in ms.
    pub(super) fn log_time_ms(&self) -> u64 {
        self.kv.log_time_ms
    }

    /// The result of a write that was executed already.
    pub(super) fn result_of(&self, command: &Command) -> Option<Outcome> {
        match self.kv.sessions.admit(command, self.kv.log_time_ms) {
            Admission::Done(outcome) => Some(outcome),
            Admission::Fresh | Admission::Refused | Admission::NoRoom => None,
        }
    }

    /// Begins to execute a slot.
    pub(super) fn begin(&mut self, value: &Value) {
        if let Value::Commands(batch) = value {
            self.kv.begin(batch.log_time_ms, batch.sessions_max);
        }
    }

    /// Executes a command of the slot that was begun. A repeated sequence gets its first result.
    pub(super) fn execute(&mut self, slot: Slot, index: usize, command: &Command) -> Outcome {
        self.kv.execute(slot, index, command)
    }

    /// About how much of a slot a command takes (§3.9): its cost, and more if it takes
    /// long to execute, for a slot is executed at once. The merges of a slot take some 1.2 ms, and
    /// up to 4 ms if a command before them makes their records the largest.
    pub(super) fn slot_cost(&self, command: &Command) -> usize {
        let merging = command.as_merge().map_or(0, |_| {
            MERGE_COST_MIN.max(MERGE_COST_FACTOR * cost::MERGING * self.merge_work(command))
        });
        cost::of(Request::Command(command)).executing() + merging
    }

    /// About how much work it will be to execute a merge, beside the fields that it brings; of other
    /// commands 0.
    pub(super) fn merge_work(&self, command: &Command) -> usize {
        let merge = command.as_merge();
        merge.map_or(0, |put| self.kv.merge_work_ahead(&put.key))
    }

    /// The work of the merges that were executed since this was asked last.
    pub(super) fn take_merge_work(&mut self) -> usize {
        self.kv.take_merge_work()
    }

    /// Last slots that the newest requested checkpoint covers. It may not be durable yet; for the
    /// durable one see `Log`.
    pub(super) fn checkpointed(&self) -> PerLog<Slot> {
        let (commands, config) = self.checkpointed;
        PerLog {
            commands,
            configs: Slot(config.0),
        }
    }

    /// Whether so much has changed that a checkpoint is to be made before its time. A long one
    /// is a long step, and all that is written after it waits for it.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.has_many_changes() || self.kv.written_bytes() >= WRITTEN_BYTES_MAX
    }

    fn has_many_changes(&self) -> bool {
        self.kv.dirty_len() + self.kv.sessions.dirty_cost() >= CHANGES_MAX
    }

    /// Whether values of the next checkpoint are being written ahead.
    pub(super) fn is_staging(&self) -> bool {
        self.staging.is_some()
    }

    /// Urgency of the checkpoint that is being written in parts, from 0 to 1.
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

    /// Writes down what changed in the state, so that a restart replays little: what does not
    /// fit into one write before the rest, which [`StateMachine::go_on_staging`] adds.
    ///
    /// # Panics
    /// If the last one is not written down yet.
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

    /// Writes down the next values of a checkpoint, or the checkpoint. It holds the state of the
    /// slot at which it was begun, whatever was executed since (hazard 86): a restart executes the
    /// log from there on. `executed` and `config` are what is executed now.
    pub(super) fn go_on_staging(&mut self, step: &mut Step<'_>, executed: Slot, config: ConfigId) {
        let Some(mut staging) = self.staging.take() else {
            return;
        };
        // What follows waits no more than twice as long for it. And the log gets no more of a slow
        // disk than the checkpoint, which would never catch up else.
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
