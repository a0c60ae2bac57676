//! One value per slot (oracle 9; Paxos, §2.1): what one replica executed in a
//! slot, every other executes there.

use leases::{ReplicaId, Slot};

use crate::replica::Replica;
use crate::replica::message::{LogId, Value};

/// See the module.
#[derive(Debug)]
pub struct Agreement {
    chosen: [Vec<Value>; 2],
    executed: Vec<[Slot; 2]>,
    /// Slots compared.
    pub checks: u64,
}

impl Agreement {
    pub(super) fn new(n: usize) -> Agreement {
        Agreement {
            chosen: Default::default(),
            executed: vec![[Slot::ZERO; 2]; n],
            checks: 0,
        }
    }

    pub(super) fn crashed(&mut self, node: ReplicaId) {
        self.executed[node.index()] = [Slot::ZERO; 2];
    }

    pub(super) fn watch(&mut self, node: ReplicaId, replica: &Replica) {
        for log in LogId::ALL {
            let upto = replica.executed_of(log);
            let mut slot = self.executed[node.index()][log.index()];
            while slot < upto {
                slot = slot.next();
                if let Some(value) = replica.entry(log, slot) {
                    self.compare(node, log, slot, value);
                }
            }
            self.executed[node.index()][log.index()] = upto;
        }
    }

    fn compare(&mut self, node: ReplicaId, log: LogId, slot: Slot, value: &Value) {
        let chosen = &mut self.chosen[log.index()];
        let index = slot.0 as usize - 1;
        match chosen.get(index) {
            Some(known) => {
                self.checks += 1;
                assert_eq!(
                    known, value,
                    "{node:?} executed another value in {log:?} {slot:?}"
                );
            }
            None => {
                assert_eq!(
                    chosen.len(),
                    index,
                    "the first to execute {slot:?} skipped slots"
                );
                chosen.push(value.clone());
            }
        }
    }
}
