//! Merges of this replica's clients: the amount of merging on its way through the log, and the
//! merges that wait here for that.
//!
//! A merge takes as long as its record is large, and what follows it in the log waits for it. So an
//! origin sends merges only while those it has sent do not cost too much. The others wait here,
//! round-robin by connection, and other commands pass them by. The size of a record is known only
//! as far as the log was executed: writes on their way may make it large.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use bytes::Bytes;
use leasehold_leases::hashing::SeededState;
use leasehold_wire::Command;

use crate::message::RequestId;
use crate::round_robin::RoundRobinQueue;
use crate::size_estimate::command_size_estimate;

/// Minimum cost counted for a merge: writes on their way may make its record large.
const WORK_MIN: usize = 64;
/// The same if many merges of its key wait here: they may follow such a write.
const WORK_MIN_OF_MANY: usize = 512;
/// A merge of more is large. Large and small ones do not wait for each other.
const SMALL_WORK_MAX: usize = 256;
/// A merge of more bytes is long, and does not wait: large writes wait for each other at the node,
/// also those that are no merges.
const SHORT_BYTES_MAX: usize = 2 << 10;
/// Long ones have this share of what the others have, for themselves.
const LONG_SHARE: usize = 4;
/// Number of merges answered another way that are kept among those that wait, at least.
const ANSWERED_MAX: usize = 64;

/// The session of a merge that waits, and its name.
pub(super) type QueuedMerge = ((u64, u64), RequestId);

/// Cost counted for a merge, and its kind.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct MergeCost {
    work: usize,
    kind: MergeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum MergeKind {
    Small,
    Large,
    Long,
}

impl MergeCost {
    /// Whether it is refused if it may not be sent at once.
    pub fn is_long(self) -> bool {
        self.kind == MergeKind::Long
    }

    /// The same, if merging takes so much work as far as is known now.
    pub fn raised_to(self, work: usize) -> MergeCost {
        let kind = match self.kind {
            MergeKind::Small if work > SMALL_WORK_MAX => MergeKind::Large,
            kind => kind,
        };
        MergeCost {
            work: self.work.max(work),
            kind,
        }
    }
}

/// A merge that has its turn.
#[derive(Debug)]
pub(super) struct NextMerge {
    kind: MergeKind,
    pub connection: u64,
    pub queued: QueuedMerge,
}

/// Counts of merges, by key and by kind.
#[derive(Clone, Debug, Default)]
pub(super) struct MergeQueues {
    /// Number of merges of each key that wait for an answer.
    by_key: HashMap<Bytes, usize, SeededState>,
    small: MergeQueue,
    large: MergeQueue,
    long: MergeQueue,
}

/// Merges that wait for each other.
#[derive(Clone, Debug, Default)]
struct MergeQueue {
    /// The work of those that were sent and are not answered.
    work_sent: usize,
    /// Those that were not sent yet, and some that wait for no answer any more: another origin may
    /// have brought them, or their client has disconnected.
    queued: RoundRobinQueue<QueuedMerge>,
    /// Number of those in `queued` that wait for no answer any more.
    answered: usize,
}

impl Hash for MergeQueues {
    /// The rest follows from the writes that wait, and what each counts for.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.small.queued, &self.large.queued).hash(state);
    }
}

/// The key of a merge.
fn merged_key(command: &Command) -> Option<&Bytes> {
    command.as_merge().map(|put| &put.key)
}

impl MergeQueues {
    /// Returns what a command counts for; `None` if it is no merge. `work` is the cost of the merge
    /// as far as is known. With `many` or more merges of its key waiting for an answer, it counts
    /// for at least `WORK_MIN_OF_MANY`.
    pub fn cost_of(&self, command: &Command, work: usize, many: usize) -> Option<MergeCost> {
        let merges = self.by_key.get(merged_key(command)?);
        let least = if merges.is_some_and(|merges| *merges >= many) {
            WORK_MIN_OF_MANY
        } else {
            WORK_MIN
        };
        let work = work.max(least);
        let kind = match (command_size_estimate(command), work) {
            (bytes, _) if bytes > SHORT_BYTES_MAX => MergeKind::Long,
            (_, work) if work > SMALL_WORK_MAX => MergeKind::Large,
            _ => MergeKind::Small,
        };
        Some(MergeCost { work, kind })
    }

    fn queue(&mut self, kind: MergeKind) -> &mut MergeQueue {
        match kind {
            MergeKind::Small => &mut self.small,
            MergeKind::Large => &mut self.large,
            MergeKind::Long => &mut self.long,
        }
    }

    /// Whether one that comes now may be sent, however much work it is.
    pub fn may_send(&mut self, cost: MergeCost, work_max: usize) -> bool {
        let work_max = match cost.kind {
            MergeKind::Long => work_max.div_ceil(LONG_SHARE),
            MergeKind::Small | MergeKind::Large => work_max,
        };
        let queue = self.queue(cost.kind);
        queue.queued.is_empty() && queue.work_sent < work_max
    }

    /// A merge was sent.
    pub fn note_sent(&mut self, cost: MergeCost) {
        self.queue(cost.kind).work_sent += cost.work;
    }

    /// A merge of this connection waits for its turn.
    pub fn enqueue(&mut self, cost: MergeCost, connection: u64, queued: QueuedMerge) {
        self.queue(cost.kind).queued.push(connection, queued);
    }

    /// Takes the next that has its turn, if there is one; no small one if `large_only`.
    pub fn next(&mut self, work_max: usize, large_only: bool) -> Option<NextMerge> {
        let kinds = [MergeKind::Small, MergeKind::Large];
        kinds[usize::from(large_only)..].iter().find_map(|kind| {
            let queue = self.queue(*kind);
            let open = queue.work_sent < work_max;
            let (connection, queued) = open.then(|| queue.queued.pop())??;
            Some(NextMerge {
                kind: *kind,
                connection,
                queued,
            })
        })
    }

    /// Drops a merge that was next but waits for no answer any more.
    pub fn pass_over(&mut self, next: &NextMerge) {
        self.queue(next.kind).answered -= 1;
    }

    /// Whether what has its turn may be sent, which counts for this by now.
    pub fn may_go(&mut self, next: &NextMerge, cost: MergeCost, work_max: usize) -> bool {
        next.kind == cost.kind || self.may_send(cost, work_max)
    }

    /// Forgets those that wait for no answer any more, if they are many.
    pub fn tidy(&mut self, waits: impl Fn(&QueuedMerge) -> bool) {
        for queue in [&mut self.small, &mut self.large] {
            if queue.answered > ANSWERED_MAX + queue.queued.len() / 2 {
                queue.queued.retain(&waits);
                queue.answered = 0;
            }
        }
    }

    /// A command waits for an answer.
    pub fn count(&mut self, command: &Command) {
        let Some(key) = merged_key(command) else {
            return;
        };
        match self.by_key.get_mut(key) {
            Some(merges) => *merges += 1,
            // Not a part of the frame, which would be kept as long.
            None => drop(self.by_key.insert(Bytes::copy_from_slice(key), 1)),
        }
    }

    /// A command waits for no answer any more. If it is a merge it counted for this, and was sent
    /// or not.
    pub fn release(&mut self, command: &Command, cost: Option<MergeCost>, sent: bool) {
        if let Some(cost) = cost {
            let queue = self.queue(cost.kind);
            if sent {
                queue.work_sent -= cost.work
            } else {
                queue.answered += 1
            }
        }
        let Some(key) = merged_key(command) else {
            return;
        };
        let merges = self
            .by_key
            .get_mut(key)
            .expect("the merges of a key are counted");
        *merges -= 1;
        if *merges == 0 {
            self.by_key.remove(key);
        }
    }

    /// # Panics
    /// If it is not what follows from the commands that wait for an answer: each with what it
    /// counts for, if it is a merge, and whether it was sent.
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
        let queues = |of: &MergeQueues| [&of.small, &of.large, &of.long].map(Clone::clone);
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
    use leasehold_wire::command::Op;

    use super::*;

    /// A client may have its writes answered another way as fast as it likes, and nobody counts
    /// what is queued for them.
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
