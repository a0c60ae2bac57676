//! What is accepted is pending (§3.6; protocol §3.2): from its acceptance until its
//! execution, and again from a restart on, a slot is marked on every key that it
//! writes, or a read of the key would not wait for it. Oracle 2 rests on this. And
//! nothing else is marked, or a read would wait for what never comes (hazard 18).

use leases::{Key, Slot};

use super::{Verdict, ensure, id};
use crate::replica::Replica;
use crate::replica::action::{Action, Record};
use crate::replica::message::{LogId, Value};

pub(super) const NAME: &str = "pending";

/// See the module.
#[derive(Debug, Default)]
pub struct Pending {
    /// Marks looked for.
    pub checks: u64,
}

impl Pending {
    /// A replica has started: everything that it had accepted is pending.
    pub(super) fn started(&mut self, node: usize, replica: &Replica) -> Verdict {
        let highest = replica.highest_accepted();
        for slot in (replica.executed().0 + 1..=highest.0).map(Slot) {
            if let Some(value) = replica.entry(LogId::Commands, slot) {
                self.marked(node, replica, slot, value)?;
            }
        }
        Ok(())
    }

    /// `node` has accepted what it is about to write to its disk.
    pub(super) fn persists(&mut self, node: usize, replica: &Replica, action: &Action) -> Verdict {
        let Action::Persist { records, .. } = action else {
            return Ok(());
        };
        for record in records {
            match record {
                Record::Accepted {
                    log: LogId::Commands,
                    slot,
                    value,
                    ..
                } if *slot > replica.executed()
                    && replica.entry(LogId::Commands, *slot) == Some(value) =>
                {
                    self.marked(node, replica, *slot, value)?;
                }
                // A ballot is adopted: what it made dead is dropped.
                Record::LogStart {
                    log: LogId::Commands,
                    ..
                } => self.nothing_else(node, replica)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn nothing_else(&mut self, node: usize, replica: &Replica) -> Verdict {
        for (key, slot) in replica.marks() {
            self.checks += 1;
            let value = replica.entry(LogId::Commands, slot);
            let written = value.filter(|_| slot > replica.executed());
            ensure!(
                NAME,
                written.is_some_and(|value| writes(value).any(|of| of == key)),
                "reads of {key:?} at {:?} wait for {slot:?}, which does not write it",
                id(node)
            );
        }
        Ok(())
    }

    fn marked(&mut self, node: usize, replica: &Replica, slot: Slot, value: &Value) -> Verdict {
        for key in writes(value) {
            self.checks += 1;
            ensure!(
                NAME,
                replica.is_marked(key, slot),
                "{:?} has accepted {slot:?}, which writes {key:?}, but no read would wait for it",
                id(node)
            );
        }
        Ok(())
    }
}

fn writes(value: &Value) -> impl Iterator<Item = &Key> {
    let writes = value.commands().iter().filter(|p| p.command.is_write());
    writes.flat_map(|proposed| proposed.command.keys())
}
