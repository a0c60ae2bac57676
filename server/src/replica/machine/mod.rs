//! The state machine: what executing the log in order builds, and nothing that a
//! replica promised. It knows nothing of slots that are not executed.

mod kv;
mod merge;
mod session;

use client::wire::{Command, Outcome};
use leases::{ConfigId, Slot};

use super::action::{Checkpoint, Record};
use super::per_log::PerLog;
use super::persist::After;
use super::step::Step;

pub use kv::{Kv, version_of};
pub use session::{Admission, Sessions};

/// The state, and up to where it is written down.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    kv: Kv,
    /// What the newest checkpoint holds: commands and configurations executed.
    checkpointed: (Slot, ConfigId),
}

impl Machine {
    pub(super) fn restore(session_ttl_ms: u64, state: Checkpoint) -> Machine {
        Machine {
            checkpointed: (state.executed, state.config),
            kv: Kv::restore(session_ttl_ms, state),
        }
    }

    /// The state, to be read.
    pub(super) fn kv(&self) -> &Kv {
        &self.kv
    }

    /// Begins the execution of a batch with this log time, in ms.
    pub(super) fn begin(&mut self, log_time_ms: u64) {
        self.kv.begin(log_time_ms);
    }

    /// Executes one command, once: a repeated sequence gets its first result.
    pub(super) fn execute(&mut self, slot: Slot, index: usize, command: &Command) -> Outcome {
        self.kv.execute(slot, index, command)
    }

    /// What the newest checkpoint holds, durable or not.
    pub(super) fn checkpointed(&self) -> PerLog<Slot> {
        let (commands, config) = self.checkpointed;
        PerLog {
            commands,
            configs: Slot(config.0),
        }
    }

    /// Writes down what changed in the state, so that a restart replays little.
    pub(super) fn checkpoint(&mut self, step: &mut Step<'_>, executed: Slot, config: ConfigId) {
        assert!(
            (executed, config) >= self.checkpointed,
            "no state goes back behind its checkpoint"
        );
        if (executed, config) == self.checkpointed {
            return;
        }
        self.checkpointed = (executed, config);
        step.after(After::Checkpointed(self.checkpointed()));
        step.record(Record::Checkpoint(Checkpoint {
            executed,
            config,
            log_time_ms: self.kv.log_time_ms,
            entries: self.kv.take_dirty(),
            sessions: self.kv.sessions.take_dirty(),
        }));
    }
}
