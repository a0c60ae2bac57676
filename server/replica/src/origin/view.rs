//! Read-only view of the state that reads need. This state belongs to other parts of the replica.

use leasehold_leases::{NoPermit, Permit, Slot, Time};
use leasehold_wire::Outcome;

use crate::consensus::Consensus;
use crate::leasing::Leasing;
use crate::machine::Kv;

/// Parts of the replica's state that are needed for reads.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub consensus: &'a Consensus,
    pub leasing: &'a Leasing,
    pub kv: &'a Kv,
}

impl View<'_> {
    pub(super) fn executed(self) -> Slot {
        self.consensus.commands().executed()
    }

    /// Returns a permit to read `key` here at `now` under leases, or the reason why there is none.
    pub fn permit(self, now: Time, key: &[u8]) -> Result<Permit, NoPermit> {
        self.leader_ready()?;
        self.leasing.permit(now, key, self.executed())
    }

    /// Returns an error if this replica is a new leader that has not executed its opening no-op.
    /// Such a leader serves no local read.
    pub(super) fn leader_ready(self) -> Result<(), NoPermit> {
        let start = self.consensus.commands().start();
        if self.consensus.leads() && self.executed() < start {
            Err(NoPermit::Barrier(start))
        } else {
            Ok(())
        }
    }

    /// Returns the newest open slot that writes `key`, if there is one.
    pub(super) fn newest_mark(self, key: &[u8]) -> Option<Slot> {
        let newest = self.consensus.marks().on(key).last().copied();
        assert!(
            newest.is_none_or(|slot| slot > self.executed()),
            "only open slots are marked"
        );
        newest
    }

    /// Returns the value of `key` after `slot`: from the state if the slot is executed, or from the
    /// slot itself if the slot determines the value (protocol §3.3). Returns `None` if the value is
    /// not known yet.
    pub(super) fn value_after(self, slot: Slot, key: &[u8]) -> Option<Outcome> {
        if slot <= self.executed() {
            Some(self.kv.read(key))
        } else {
            self.consensus.value_at_commit(slot, key)
        }
    }
}
