//! What a leader has taken and not yet proposed, by class (§3.9), and how many slots
//! each class has open.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use leases::{ReplicaSet, Slot};

use crate::replica::message::{Batch, Proposed};
use crate::replica::parts::Room;
use crate::replica::weight::command_weight;

/// No class may have more slots in flight than this for each that is still free.
const OPEN_PER_FREE: usize = 3;

/// Commands by class: the holders of their keys. A write never waits for the holders
/// of another's keys.
#[derive(Clone, Debug, Default, Hash)]
pub struct Queue {
    queues: BTreeMap<ReplicaSet, VecDeque<Proposed>>,
    /// The class of the newest batch: the next in turn follows it.
    served: ReplicaSet,
    /// Classes of uncommitted slots, and how many slots each has.
    class_of: BTreeMap<Slot, ReplicaSet>,
    open: BTreeMap<ReplicaSet, usize>,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub fn push(&mut self, class: ReplicaSet, proposed: Proposed) {
        self.queues.entry(class).or_default().push_back(proposed);
    }

    /// The class whose turn it is: the first after the one served last that has fewer
    /// slots open than it may while `free` slots are left for all. So a class whose
    /// holder is dead fills neither the queue before the others nor all the slots in
    /// flight.
    pub fn next_class(&self, free: usize) -> Option<ReplicaSet> {
        let open_max = free * OPEN_PER_FREE;
        let may = |class: &&ReplicaSet| self.open.get(class).copied().unwrap_or(0) < open_max;
        let after = (Bound::Excluded(self.served), Bound::Unbounded);
        let later = self.queues.range(after).map(|(class, _)| class).find(may);
        later.or_else(|| self.queues.keys().find(may)).copied()
    }

    /// Takes a batch of this class for `slot`.
    pub fn next_batch(
        &mut self,
        class: ReplicaSet,
        slot: Slot,
        commands_max: usize,
        log_time_ms: u64,
    ) -> Batch {
        self.served = class;
        let open = self.class_of.insert(slot, class);
        assert!(open.is_none(), "a slot is proposed once");
        *self.open.entry(class).or_default() += 1;
        Batch {
            log_time_ms,
            commands: self.take(class, commands_max),
            ..Batch::default()
        }
    }

    fn take(&mut self, class: ReplicaSet, commands_max: usize) -> Vec<Proposed> {
        let Some(queue) = self.queues.get_mut(&class) else {
            return Vec::new();
        };
        let mut room = Room::default();
        let fits = |proposed: &&Proposed| room.takes(command_weight(&proposed.command));
        let fitting = queue.iter().take(commands_max).take_while(fits).count();
        // A single command may be as large as a frame; it then goes alone.
        let commands = queue.drain(..fitting.max(1).min(queue.len())).collect();
        if queue.is_empty() {
            self.queues.remove(&class);
        }
        commands
    }

    /// A slot is committed: its class has one open slot less.
    pub fn close(&mut self, slot: Slot) {
        if let Some(class) = self.class_of.remove(&slot)
            && let Some(open) = self.open.get_mut(&class)
        {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&class);
            }
        }
    }

    pub fn check(&self) {
        let open: usize = self.open.values().sum();
        assert_eq!(open, self.class_of.len(), "every open slot has its class");
        assert!(
            self.queues.values().all(|queue| !queue.is_empty()),
            "a class without commands has no queue"
        );
    }
}

#[cfg(test)]
mod tests {
    use client::wire::Command;
    use client::wire::command::Op;
    use leases::ReplicaId;

    use super::*;
    use crate::replica::message::RequestId;
    use crate::replica::parts::{ITEM_OVERHEAD, PART_BYTES};

    #[test]
    fn a_batch_takes_what_fits_and_one_command_at_least() {
        let class = ReplicaSet::EMPTY;
        let mut queue = Queue::default();
        let mut batches = |bytes: &[usize], commands_max| {
            let put = |(sequence, bytes): (usize, &usize)| Proposed {
                origin: ReplicaId(0),
                request: RequestId(sequence as u64),
                command: Command::session(1, sequence as u64, 1, Op::put("", vec![0; *bytes])),
            };
            let queued = bytes.iter().enumerate().map(put);
            queued.for_each(|proposed| queue.push(class, proposed));
            let mut sizes = Vec::new();
            while !queue.is_empty() {
                let batch = queue.take(class, commands_max);
                let values = batch.iter().map(|p| command_weight(&p.command));
                sizes.push(values.collect::<Vec<_>>());
            }
            sizes
        };
        let (half, most) = (PART_BYTES / 2, PART_BYTES);
        let fitting = half - ITEM_OVERHEAD;
        assert_eq!(batches(&[1, 2, 3], 2), [vec![1, 2], vec![3]]);
        assert_eq!(batches(&[1, 2], 0), [[1], [2]]);
        let all = [fitting, fitting, 2 * most, 1, half, half];
        let expected: [&[usize]; 4] = [&all[..2], &all[2..3], &all[3..5], &all[5..]];
        assert_eq!(batches(&all, 9), expected);
    }
}
