//! Queue of the commands that a leader has taken and not proposed yet, sorted by class (§3.9). Also
//! counts the open slots of each class: those that are proposed and not committed.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::iter;
use std::ops::Bound;

use leasehold_leases::{ReplicaSet, Slot};
use leasehold_wire::Command;
use smallvec::SmallVec;

use crate::message::{Batch, Proposal};
use crate::parts::Capacity;

/// Factor that limits the open (uncommitted) slots of one class. The maximum number of open slots
/// is this factor times the number of slots that are still free.
const OPEN_PER_FREE: usize = 3;

/// Class of a command: the replicas that must accept the command before it is committed.
#[derive(Clone, Copy, Debug)]
pub enum CommandClass {
    /// Holders of the command's keys.
    Of(ReplicaSet),
    /// All replicas. The keys of the command were not looked up, because all replicas are nearby.
    AllNearby(ReplicaSet),
}

/// Limits of a batch.
#[derive(Clone, Copy)]
pub struct BatchLimits<'a> {
    /// Maximum number of commands.
    pub commands: usize,
    /// Function that returns the cost of a command, in the units of [`Capacity`].
    pub cost: &'a dyn Fn(&Command) -> usize,
}

/// Queued commands by class. The class of a command is the set of the holders of its keys. Commands
/// of two classes share a batch only if the classes differ only in nearby replicas. So a write does
/// not wait for a distant holder of another write's keys.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    queues: BTreeMap<ReplicaSet, VecDeque<Proposal>>,
    /// Class of the commands that were queued while all replicas were nearby. Their keys were not
    /// looked up. `None` if no such command is queued.
    unclassed: Option<ReplicaSet>,
    /// Class of the newest batch. The next batch comes from the class after this one, in
    /// round-robin order.
    served: ReplicaSet,
    /// Class of each uncommitted slot. The next field, `open`, counts these slots by class.
    class_of: BTreeMap<Slot, ReplicaSet>,
    open: BTreeMap<ReplicaSet, usize>,
}

impl Hash for Queue {
    /// Hashes the queued commands, without the classes of earlier batches. While a fingerprint is
    /// valid, these classes only determine which writes share a batch (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.queues.hash(state);
    }
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub fn push(&mut self, class: CommandClass, proposed: Proposal) {
        let class = match class {
            CommandClass::Of(class) => class,
            CommandClass::AllNearby(all) => *self.unclassed.insert(all),
        };
        self.queues.entry(class).or_default().push_back(proposed);
    }

    /// Returns whether the queue has commands with keys that were not looked up.
    pub fn has_unclassed(&self) -> bool {
        self.unclassed.is_some()
    }

    /// Removes and returns all queued commands with keys that were not looked up.
    pub fn take_unclassed(&mut self) -> VecDeque<Proposal> {
        let taken = self
            .unclassed
            .take()
            .and_then(|all| self.queues.remove(&all));
        taken.unwrap_or_default()
    }

    /// Returns the next class in round-robin order. Skips each class that already has the maximum
    /// number of open slots. This maximum depends on `free`, the number of slots that are left for
    /// all classes. The maximum leaves slots for the other classes if a holder of one class is
    /// dead.
    pub fn next_class(&self, free: usize) -> Option<ReplicaSet> {
        let open_max = free * OPEN_PER_FREE;
        let may = |class: &&ReplicaSet| self.open.get(class).copied().unwrap_or(0) < open_max;
        let after = (Bound::Excluded(self.served), Bound::Unbounded);
        let later = self.queues.range(after).map(|(class, _)| class).find(may);
        later.or_else(|| self.queues.keys().find(may)).copied()
    }

    /// Removes a batch of this class from the queue, for `slot`. If the batch has space left, adds
    /// commands of classes that differ from `class` only in `nearby` replicas.
    pub fn next_batch(
        &mut self,
        class: ReplicaSet,
        nearby: ReplicaSet,
        slot: Slot,
        limits: BatchLimits<'_>,
        log_time_ms: u64,
    ) -> Batch {
        self.served = class;
        let open = self.class_of.insert(slot, class);
        assert!(open.is_none(), "a slot is proposed once");
        *self.open.entry(class).or_default() += 1;
        let commands = self.take(class, nearby, limits);
        assert!(!commands.is_empty(), "a batch holds at least one command");
        Batch {
            log_time_ms,
            commands,
            ..Batch::default()
        }
    }

    fn take(
        &mut self,
        class: ReplicaSet,
        nearby: ReplicaSet,
        limits: BatchLimits<'_>,
    ) -> Vec<Proposal> {
        let (mut capacity, mut commands) = (Capacity::default(), Vec::new());
        // With nearby replicas added, both classes wait for the same replicas.
        let alike = |other: &&ReplicaSet| other.union(nearby) == class.union(nearby);
        let others = self.queues.keys().filter(|other| **other != class);
        let joining = others.filter(alike);
        let classes: SmallVec<[_; 8]> = iter::once(&class).chain(joining).copied().collect();
        for class in classes {
            self.take_of(class, limits, &mut capacity, &mut commands);
        }
        commands
    }

    fn take_of(
        &mut self,
        class: ReplicaSet,
        limits: BatchLimits<'_>,
        capacity: &mut Capacity,
        commands: &mut Vec<Proposal>,
    ) {
        let Some(queue) = self.queues.get_mut(&class) else {
            return;
        };
        // A single command may be as large as a frame. It is then proposed alone.
        let least = usize::from(commands.is_empty());
        let most = limits.commands.saturating_sub(commands.len());
        let fits = |proposed: &&Proposal| capacity.takes((limits.cost)(&proposed.command));
        let fitting = queue.iter().take(most).take_while(fits).count();
        commands.extend(queue.drain(..fitting.max(least).min(queue.len())));
        if queue.is_empty() {
            self.queues.remove(&class);
            self.unclassed.take_if(|all| *all == class);
        }
    }

    /// Notes that a slot is committed. The class of the slot then has one open slot fewer.
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
        assert!(
            self.unclassed
                .is_none_or(|all| self.queues.contains_key(&all)),
            "unclassed commands are queued"
        );
    }
}

#[cfg(test)]
mod tests {
    use leasehold_leases::ReplicaId;
    use leasehold_wire::command::Op;

    use super::*;
    use crate::message::RequestId;
    use crate::parts::{ITEM_OVERHEAD, PART_BYTES};
    use crate::size_estimate::command_size_estimate;

    fn limits(commands: usize) -> BatchLimits<'static> {
        BatchLimits {
            commands,
            cost: &command_size_estimate,
        }
    }

    #[test]
    fn a_batch_takes_what_fits_and_one_command_at_least() {
        let class = ReplicaSet::EMPTY;
        let mut queue = Queue::default();
        let mut batches = |bytes: &[usize], commands_max| {
            let put = |(sequence, bytes): (usize, &usize)| Proposal {
                origin: ReplicaId(0),
                request: RequestId(sequence as u64),
                command: Command::session(1, sequence as u64, 1, Op::put("", vec![0; *bytes])),
            };
            let queued = bytes.iter().enumerate().map(put);
            queued.for_each(|proposed| queue.push(CommandClass::Of(class), proposed));
            let mut sizes = Vec::new();
            while !queue.is_empty() {
                let batch = queue.take(class, ReplicaSet::EMPTY, limits(commands_max));
                let values = batch.iter().map(|p| command_size_estimate(&p.command));
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

    /// §3.9: commands of different classes share a batch if the classes differ only in nearby
    /// replicas.
    #[test]
    fn classes_that_differ_in_who_is_at_hand_share_a_batch() {
        let set = |ids: &[u8]| ids.iter().map(|id| ReplicaId(*id)).collect::<ReplicaSet>();
        let classes = [&[0, 1][..], &[0, 2], &[0, 1, 2], &[0, 3], &[0, 1, 3]].map(set);
        let batches = |nearby: &[u8]| {
            let mut queue = Queue::default();
            for (class, sequence) in classes.iter().zip(1..) {
                let command = Command::session(1, sequence, 1, Op::put("", ""));
                let request = RequestId(sequence);
                let origin = ReplicaId(0);
                queue.push(
                    CommandClass::Of(*class),
                    Proposal {
                        origin,
                        request,
                        command,
                    },
                );
            }
            let mut found = Vec::new();
            while let Some(class) = queue.next_class(100) {
                let slot = Slot(found.len() as u64 + 1);
                let batch = queue.next_batch(class, set(nearby), slot, limits(100), 0);
                let numbers = batch.commands.iter().map(|one| one.request.0);
                found.push(numbers.collect::<Vec<_>>());
                queue.check();
            }
            found.sort();
            found
        };
        assert_eq!(batches(&[]), [[1], [2], [3], [4], [5]]);
        assert_eq!(batches(&[0, 1, 2]), [vec![1, 2, 3], vec![4, 5]]);
        assert_eq!(batches(&[0, 1, 2, 3]), [[1, 2, 3, 4, 5]]);
    }

    /// A batch of one class includes a command that needs further holders only if these holders are
    /// nearby. Otherwise the writes of the first class would wait for a holder that they do not
    /// need.
    #[test]
    fn who_is_not_at_hand_is_waited_for_by_no_class_that_needs_it_not() {
        let set = |ids: &[u8]| ids.iter().map(|id| ReplicaId(*id)).collect::<ReplicaSet>();
        let (few, many) = (set(&[0, 1]), set(&[0, 1, 2]));
        for (nearby, sizes) in [(&[0][..], [1, 1]), (&[0, 1], [1, 1]), (&[0, 1, 2], [2, 0])] {
            let mut queue = Queue {
                served: few,
                ..Queue::default()
            };
            for (class, sequence) in [(few, 1), (many, 2)] {
                let command = Command::session(1, sequence, 1, Op::put("", ""));
                let (origin, request) = (ReplicaId(0), RequestId(sequence));
                let proposed = Proposal {
                    origin,
                    request,
                    command,
                };
                queue.push(CommandClass::Of(class), proposed);
            }
            let found = [1, 2].map(|slot| {
                let class = queue.next_class(100)?;
                let batch = queue.next_batch(class, set(nearby), Slot(slot), limits(100), 0);
                Some(batch.commands.len())
            });
            assert_eq!(found.map(Option::unwrap_or_default), sizes, "{nearby:?}");
        }
    }
}
