//! Accepted slots are pending (§3.6; protocol §3.2). From the acceptance of a slot until its
//! execution, the slot is marked on every key that it writes. After a restart, the marks are
//! restored. Otherwise a read of the key would not wait for the slot. Oracle 2 relies on this. No
//! other slot may be marked, because a read would wait for the execution of that slot, which may
//! never happen (hazard 18).
//!
//! A slot is checked when it is accepted, when it is committed and when it is executed. All slots
//! are checked when a replica starts, and when it changes to another ballot.

use leasehold_leases::Slot;

use super::{Entry, Verdict, ensure, id, writes};
use leasehold_replica::Replica;
use leasehold_replica::action::{Action, Record};
use leasehold_replica::message::{LogId, Value};

pub(super) const NAME: &str = "pending";

/// Oracle that judges the marks that pending slots put on keys.
#[derive(Debug, Default)]
pub struct PendingOracle {
    /// Number of marks checked.
    pub checks: u64,
}

impl PendingOracle {
    /// Judges a replica that has started. The pending slots must be exactly the slots that the
    /// replica had accepted.
    pub(super) fn started(&mut self, node: usize, replica: &Replica) -> Verdict {
        self.everything(node, replica)
    }

    fn everything(&mut self, node: usize, replica: &Replica) -> Verdict {
        let highest = replica.highest_accepted();
        for slot in (replica.executed().0 + 1..=highest.0).map(Slot) {
            if let Some(value) = replica.entry(LogId::Commands, slot) {
                self.marked(node, replica, slot, value)?;
            }
        }
        self.nothing_else(node, replica)
    }

    /// Checks that `node` has marked the slots that it is about to write to its disk.
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
                // A ballot is adopted: exactly the entries that it makes dead are dropped.
                Record::LogStart {
                    log: LogId::Commands,
                    ..
                } => self.everything(node, replica)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Judges the marks on the keys that `value` writes. `node` has committed or executed `value`.
    pub(super) fn learns(
        &mut self,
        node: usize,
        replica: &Replica,
        Entry { log, slot, value }: Entry<'_>,
    ) -> Verdict {
        if log != LogId::Commands {
            return Ok(());
        }
        if slot > replica.executed() {
            return self.marked(node, replica, slot, value);
        }
        self.checks += 1;
        let left = writes(value).find(|key| replica.is_marked(key, slot));
        ensure!(
            NAME,
            left.is_none(),
            "{:?} has executed {slot:?}, but reads of {left:?} wait for it still",
            id(node)
        );
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

#[cfg(test)]
mod tests {
    use leasehold_wire::command::Op;

    use super::*;
    use crate::oracle::test_world::{BALLOT, ReplicaState, TestWorld, batch, key, puts};
    use leasehold_replica::action::Sequence;

    /// Returns a world in which replica 0 has executed slots 1 to 5, and has accepted writes of the
    /// keys `a` and `b` in slot 6.
    fn world() -> TestWorld {
        let has = ReplicaState {
            accepted: vec![(6, puts(&["a", "b"]))],
            ..ReplicaState::default()
        };
        TestWorld::new([has, ReplicaState::default(), ReplicaState::default()])
    }

    fn replica(world: &mut TestWorld) -> &mut Replica {
        world.nodes[0].process.machine_mut().expect("it runs")
    }

    fn persists(replica: &Replica, record: Record) -> Verdict {
        let action = Action::Persist {
            sequence: Sequence(1),
            records: vec![record],
        };
        PendingOracle::default().persists(0, replica, &action)
    }

    fn accepted(slot: u64, value: Value) -> Record {
        Record::Accepted {
            log: LogId::Commands,
            slot: Slot(slot),
            ballot: BALLOT,
            value,
        }
    }

    fn follows() -> Record {
        Record::LogStart {
            log: LogId::Commands,
            ballot: BALLOT,
            slot: Slot(7),
        }
    }

    fn learns(replica: &Replica, slot: u64) -> Verdict {
        let entry = Entry {
            log: LogId::Commands,
            slot: Slot(slot),
            value: &puts(&["a", "b"]),
        };
        PendingOracle::default().learns(0, replica, entry)
    }

    #[test]
    fn every_key_of_what_is_accepted_is_marked() {
        let mut world = world();
        let replica = replica(&mut world);
        let sixth = || accepted(6, puts(&["a", "b"]));
        assert!(PendingOracle::default().started(0, replica).is_ok());
        assert!(persists(replica, sixth()).is_ok());
        assert!(persists(replica, follows()).is_ok());
        assert!(learns(replica, 6).is_ok());
        replica.unmark_wrongly(Slot(6), &puts(&["b"]));
        assert!(PendingOracle::default().started(0, replica).is_err());
        assert!(persists(replica, sixth()).is_err());
        assert!(persists(replica, follows()).is_err(), "it is not dead");
        assert!(learns(replica, 6).is_err());
    }

    #[test]
    fn what_is_replaced_or_executed_in_the_step_need_not_be_marked() {
        let mut world = world();
        let replica = replica(&mut world);
        assert!(persists(replica, accepted(6, puts(&["c"]))).is_ok());
        assert!(persists(replica, accepted(5, puts(&["c"]))).is_ok());
    }

    #[test]
    fn nothing_else_is_marked() {
        for (slot, keys) in [(6, "c"), (7, "a"), (5, "a")] {
            let mut world = world();
            let replica = replica(&mut world);
            replica.mark_wrongly(Slot(slot), &puts(&[keys]));
            assert!(
                PendingOracle::default().started(0, replica).is_err(),
                "{slot}"
            );
            assert!(persists(replica, follows()).is_err(), "{slot}");
        }
    }

    #[test]
    fn what_is_executed_is_not_marked() {
        let mut world = world();
        let replica = replica(&mut world);
        assert!(learns(replica, 5).is_ok());
        replica.mark_wrongly(Slot(5), &puts(&["b"]));
        assert!(learns(replica, 5).is_err());
    }

    #[test]
    fn reads_wait_for_no_reads() {
        let has = ReplicaState {
            accepted: vec![(6, batch([Op::multi_get(vec![key("a")])]))],
            ..ReplicaState::default()
        };
        let mut world = TestWorld::new([has, ReplicaState::default(), ReplicaState::default()]);
        let mut pending = PendingOracle::default();
        let replica = replica(&mut world);
        assert!(pending.started(0, replica).is_ok());
        assert_eq!(pending.checks, 0);
        replica.mark_wrongly(Slot(6), &puts(&["a"]));
        assert!(pending.started(0, replica).is_err());
    }
}
