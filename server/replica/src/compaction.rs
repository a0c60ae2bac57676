//! Compaction: which entries of the logs are no longer needed by any member.

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{ReplicaId, Slot};

use super::message::PerLog;

/// Progress of the flushed states of all members, and of the truncation of this replica's logs.
///
/// An entry may be removed when the flushed states of *all* members contain this entry (hazard
/// 125). Then no member will ever fetch the entry, and no restart will ever execute the entry
/// again. So no log ever lacks an entry that another member still needs. If a member is down for a
/// long time, the logs of all members grow, because truncation waits for that member.
#[derive(Clone, Debug, Hash)]
pub(super) struct Compaction {
    me: ReplicaId,
    /// Last slot that each member's flushed state covers in each log, as far as this replica knows.
    flushed: Vec<PerLog<Slot>>,
    /// Last slot that was truncated in each log during this run.
    truncated: PerLog<Slot>,
}

impl Compaction {
    /// Begins a run of replica `me` in a cluster of `n` replicas. The flushed state of this replica
    /// covers the slots up to `flushed`.
    pub(super) fn begin(me: ReplicaId, n: usize, flushed: PerLog<Slot>) -> Compaction {
        let mut all = vec![PerLog::default(); n];
        all[me.index()] = flushed;
        Compaction {
            me,
            flushed: all,
            truncated: PerLog::default(),
        }
    }

    /// Returns the last slot that the flushed state of this replica covers in each log.
    pub(super) fn flushed(&self) -> PerLog<Slot> {
        self.flushed[self.me.index()]
    }

    /// Notes that the flushed state of `member` covers these slots. Returns the slots up to which
    /// entries may now be removed; `None` if no further entries may be removed.
    pub(super) fn note_flushed(
        &mut self,
        member: ReplicaId,
        slots: PerLog<Slot>,
    ) -> Option<PerLog<Slot>> {
        let known = &mut self.flushed[member.index()];
        *known = PerLog::of(|log| known[log].max(slots[log])); // Pings may arrive out of order.
        let needed = if off(Rule::H125Members) {
            self.flushed()
        } else {
            PerLog::of(|log| self.flushed_by_all(|slots| slots[log]))
        };
        let is_more = !needed.all(|log, slot| *slot <= self.truncated[log]);
        is_more.then(|| {
            self.truncated = needed;
            needed
        })
    }

    fn flushed_by_all(&self, of_log: impl Fn(&PerLog<Slot>) -> Slot) -> Slot {
        self.flushed.iter().map(of_log).min().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use leasehold_leases::{ReplicaId, Slot};

    use super::Compaction;
    use crate::message::PerLog;

    fn slots(commands: u64, configs: u64) -> PerLog<Slot> {
        [Slot(commands), Slot(configs)].into()
    }

    #[test]
    fn entries_go_when_all_members_have_flushed_them() {
        let mut compaction = Compaction::begin(ReplicaId(0), 3, slots(10, 2));
        assert_eq!(compaction.note_flushed(ReplicaId(1), slots(9, 3)), None);
        let both = compaction.note_flushed(ReplicaId(2), slots(12, 1));
        assert_eq!(
            both,
            Some(slots(9, 1)),
            "the member that is furthest behind"
        );
        assert_eq!(compaction.note_flushed(ReplicaId(1), slots(8, 3)), None);
        assert_eq!(compaction.note_flushed(ReplicaId(0), slots(20, 3)), None);
        let one = compaction.note_flushed(ReplicaId(2), slots(12, 2));
        assert_eq!(one, Some(slots(9, 2)), "each log has slots of its own");
        assert_eq!(compaction.flushed(), slots(20, 3));
    }
}
