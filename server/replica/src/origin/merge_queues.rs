//! Merges of this replica's clients: the cost of those that are on their way through the log, and
//! queues of further merges, which wait here until that cost has fallen.
//!
//! The time of a merge grows with the size of its record, and later commands in the log wait for
//! it. So an origin sends merges only while the cost of those that it has sent is below a limit.
//! The others wait here, round-robin by connection, and other commands overtake them. An origin
//! knows the size of a record only as it was after the executed slots. Writes that are still in the
//! log may make the record large.
//!
//! A transaction that rewrites stored values counts as a merge of each of these values. If they are
//! large, and the transaction is short, it waits in a queue of its own. Less work of this kind may be
//! sent, because a single transaction may take as long as many merges.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::ops::Add as _;

use bytes::Bytes;
use leasehold_leases::hashing::SeededState;
use leasehold_wire::Command;
use leasehold_wire::command::Op;

use crate::message::RequestId;
use crate::round_robin::RoundRobinQueue;
use crate::size_estimate::command_size_estimate;

/// Minimum cost that is counted for a merge. The minimum is needed because writes that are not
/// executed yet may make the record large.
const WORK_MIN: usize = 64;
/// Minimum cost that is counted for a merge if many merges of its key are unanswered. The minimum
/// is needed because a write that is not executed yet may make the record large, and all these
/// merges may follow the write.
const WORK_MIN_OF_MANY: usize = 512;
/// Maximum cost of a small merge; a merge that costs more is large. Small and large merges, and large
/// transactions, are in separate queues and do not wait for each other.
const SMALL_WORK_MAX: usize = 256;
/// Maximum size, in bytes, of the command of a merge that may wait here. A longer merge is refused
/// if it cannot be sent immediately. The reason is that the node counts a long command as a large
/// write, so a waiting one would make other large writes wait at the node, too. A shorter transaction
/// is a large write if it has many operations.
const SHORT_BYTES_MAX: usize = 2 << 10;
/// Ratio of the usual cost limit to the cost limits for long merges and for large transactions.
const LIMITED_SHARE: usize = 4;
/// Number of merges that a queue may keep after they no longer wait for an answer. Half the length
/// of the queue is added to this number. If a queue keeps more such merges, they are removed.
const ANSWERED_MAX: usize = 64;

/// Identifiers of a waiting merge: (session, sequence), and the name of the attempt.
pub(super) type QueuedMerge = ((u64, u64), RequestId);

/// Cost that is counted for a merge, and the kind of the merge.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct MergeCost {
    work: usize,
    kind: MergeKind,
    is_txn: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum MergeKind {
    Small,
    Large,
    Long,
    /// A transaction that rewrites large values.
    LargeTxn,
}

impl MergeKind {
    /// Returns the limit on the cost of the merges of this kind that were sent. `work_max` is the
    /// usual limit.
    fn limit(self, work_max: usize) -> usize {
        match self {
            MergeKind::Small | MergeKind::Large => work_max,
            MergeKind::Long | MergeKind::LargeTxn => work_max.div_ceil(LIMITED_SHARE),
        }
    }
}

impl MergeCost {
    /// Whether the merge is long. A long merge is refused if it may not be sent immediately.
    pub fn is_long(self) -> bool {
        self.kind == MergeKind::Long
    }

    /// Returns the higher of this cost and the present estimate `work`. As a result, a small merge
    /// may become a large one.
    pub fn raised_to(self, work: usize) -> MergeCost {
        let kind = match self.kind {
            MergeKind::Small | MergeKind::Large if self.is_txn && work > SMALL_WORK_MAX => {
                MergeKind::LargeTxn
            }
            MergeKind::Small if work > SMALL_WORK_MAX => MergeKind::Large,
            kind => kind,
        };
        MergeCost {
            work: self.work.max(work),
            kind,
            ..self
        }
    }
}

/// The merge that is to be sent next.
#[derive(Debug)]
pub(super) struct NextMerge {
    kind: MergeKind,
    pub connection: u64,
    pub queued: QueuedMerge,
}

/// Number of unanswered merges of each key, and a queue for each kind of merge.
#[derive(Clone, Debug, Default)]
pub(super) struct MergeQueues {
    /// Number of unanswered merges of each key.
    by_key: HashMap<Bytes, usize, SeededState>,
    small: MergeQueue,
    large: MergeQueue,
    long: MergeQueue,
    large_txns: MergeQueue,
}

/// Queue of the merges of one kind. They wait only for merges of the same kind.
#[derive(Clone, Debug, Default)]
struct MergeQueue {
    /// Total cost of the merges that were sent and are not answered yet.
    work_sent: usize,
    /// Merges that were not sent yet. Some of these no longer wait for an answer, because another
    /// origin has sent them or their client has disconnected.
    queued: RoundRobinQueue<QueuedMerge>,
    /// Number of merges in `queued` that no longer wait for an answer.
    answered: usize,
}

impl Hash for MergeQueues {
    /// Hashes only the queued merges, because the other fields follow from the waiting writes and
    /// their counted costs.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (
            &self.small.queued,
            &self.large.queued,
            &self.large_txns.queued,
        )
            .hash(state);
    }
}

impl MergeQueues {
    /// Returns the cost counted for a command; `None` if it is no merge. `work` is the estimated
    /// cost of the merge. If `many` or more merges of its key wait for an answer, the counted cost
    /// is at least `WORK_MIN_OF_MANY`.
    pub fn cost_of(&self, command: &Command, work: usize, many: usize) -> Option<MergeCost> {
        let least = |key| match self.by_key.get(key) {
            Some(merges) if *merges >= many => WORK_MIN_OF_MANY,
            Some(_) | None => WORK_MIN,
        };
        let least = command.rewritten_keys().map(least).reduce(usize::add)?;
        let is_txn = matches!(command.op, Some(Op::Txn(_)));
        let kind = if command_size_estimate(command) > SHORT_BYTES_MAX {
            MergeKind::Long
        } else if is_txn && work > SMALL_WORK_MAX {
            MergeKind::LargeTxn
        } else if work.max(least) > SMALL_WORK_MAX {
            MergeKind::Large
        } else {
            MergeKind::Small
        };
        let work = work.max(least);
        Some(MergeCost { work, kind, is_txn })
    }

    fn queue(&mut self, kind: MergeKind) -> &mut MergeQueue {
        match kind {
            MergeKind::Small => &mut self.small,
            MergeKind::Large => &mut self.large,
            MergeKind::Long => &mut self.long,
            MergeKind::LargeTxn => &mut self.large_txns,
        }
    }

    /// Whether a new merge may be sent now. It may be sent if no merge of its kind is queued, and
    /// the total cost of the unanswered merges of its kind is below the limit. The limit is
    /// `work_max`, or a fraction of that for long merges and large transactions. The cost of the new
    /// merge does not matter.
    pub fn may_send(&mut self, cost: MergeCost, work_max: usize) -> bool {
        let work_max = cost.kind.limit(work_max);
        let queue = self.queue(cost.kind);
        queue.queued.is_empty() && queue.work_sent < work_max
    }

    /// Notes that a merge was sent.
    pub fn note_sent(&mut self, cost: MergeCost) {
        self.queue(cost.kind).work_sent += cost.work;
    }

    /// Queues a merge of `connection`.
    pub fn enqueue(&mut self, cost: MergeCost, connection: u64, queued: QueuedMerge) {
        self.queue(cost.kind).queued.push(connection, queued);
    }

    /// Returns the next merge that may be sent, and removes it from its queue. Small merges come
    /// first. If `large_only` is true, small merges are left in their queue.
    pub fn next(&mut self, work_max: usize, large_only: bool) -> Option<NextMerge> {
        let kinds = [MergeKind::Small, MergeKind::Large, MergeKind::LargeTxn];
        kinds[usize::from(large_only)..].iter().find_map(|kind| {
            let queue = self.queue(*kind);
            let open = queue.work_sent < kind.limit(work_max);
            let (connection, queued) = open.then(|| queue.queued.pop())??;
            Some(NextMerge {
                kind: *kind,
                connection,
                queued,
            })
        })
    }

    /// Notes that the merge `next` is not sent, because it no longer waits for an answer.
    pub fn pass_over(&mut self, next: &NextMerge) {
        self.queue(next.kind).answered -= 1;
    }

    /// Whether the next merge may still be sent. `cost` is its present cost.
    pub fn may_go(&mut self, next: &NextMerge, cost: MergeCost, work_max: usize) -> bool {
        next.kind == cost.kind || self.may_send(cost, work_max)
    }

    /// Removes merges that no longer wait for an answer. Only queues with many such merges are
    /// searched. `waits` returns whether a merge still waits.
    pub fn tidy(&mut self, waits: impl Fn(&QueuedMerge) -> bool) {
        for queue in [&mut self.small, &mut self.large, &mut self.large_txns] {
            if queue.answered > ANSWERED_MAX + queue.queued.len() / 2 {
                queue.queued.retain(&waits);
                queue.answered = 0;
            }
        }
    }

    /// Counts a command that now waits for an answer.
    pub fn count(&mut self, command: &Command) {
        for key in command.rewritten_keys() {
            match self.by_key.get_mut(key) {
                Some(merges) => *merges += 1,
                // The key is copied. A slice would keep its whole frame in memory.
                None => drop(self.by_key.insert(Bytes::copy_from_slice(key), 1)),
            }
        }
    }

    /// Notes that a command no longer waits for an answer. If it is a merge, `cost` is the cost
    /// that was counted for it, and `sent` is true if it was sent.
    pub fn release(&mut self, command: &Command, cost: Option<MergeCost>, sent: bool) {
        if let Some(cost) = cost {
            let queue = self.queue(cost.kind);
            if sent {
                queue.work_sent -= cost.work
            } else {
                queue.answered += 1
            }
        }
        for key in command.rewritten_keys() {
            let merges = self
                .by_key
                .get_mut(key)
                .expect("the merges of a key are counted");
            *merges -= 1;
            if *merges == 0 {
                self.by_key.remove(key);
            }
        }
    }

    /// # Panics
    /// If the counts do not follow from the commands that `waiting` yields. `waiting` must yield
    /// all commands that wait for an answer. With each command, it yields the counted cost if the
    /// command is a merge, and whether the command was sent.
    pub fn check<'a>(&self, waiting: impl Iterator<Item = (&'a Command, Option<MergeCost>, bool)>) {
        let mut counted = MergeQueues::default();
        for (command, cost, sent) in waiting {
            counted.count(command);
            match cost {
                Some(cost) if sent => counted.note_sent(cost),
                Some(cost) => counted.enqueue(cost, 0, ((0, 0), RequestId(0))),
                None => assert!(sent, "only merges are queued"),
            }
        }
        assert_eq!(self.by_key, counted.by_key, "merges are counted");
        let queues =
            |of: &MergeQueues| [&of.small, &of.large, &of.long, &of.large_txns].map(Clone::clone);
        for (queue, found) in queues(self).iter().zip(queues(&counted)) {
            assert_eq!(queue.work_sent, found.work_sent, "sent work is counted");
            let waiting = queue.queued.len() - queue.answered;
            assert_eq!(waiting, found.queued.len(), "unsent merges are queued");
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_wire::Field;

    use super::*;

    /// The queue must remove merges that were answered before they were sent. A client can cause
    /// any number of such merges, because no limit counts their queue entries.
    #[test]
    fn what_was_answered_another_way_is_not_kept() {
        let field = Field {
            name: "f".into(),
            value: "v".into(),
        };
        let merge = Command::session(1, 1, 1, Op::put_fields("k", vec![field]));
        let mut merging = MergeQueues::default();
        let cost = merging.cost_of(&merge, 0, 64).expect("it is a merge");
        let queued = |number| ((1, number), RequestId(number));
        for number in 0..10 * ANSWERED_MAX as u64 {
            merging.count(&merge);
            merging.enqueue(cost, number % 3, queued(number));
            if number > 10 {
                merging.release(&merge, Some(cost), false);
            }
            merging.tidy(|(_, request)| request.0 <= 10);
            let most = 2 * (11 + ANSWERED_MAX + 1);
            assert!(merging.small.queued.len() <= most, "{number}");
        }
        let waiting = (0..=10).map(|_| (&merge, Some(cost), false));
        merging.check(waiting);
    }
}
