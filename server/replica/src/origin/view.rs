//! View of the state that reads look at: all of it belongs to other parts, and is read only.

use leasehold_leases::{NoPermit, Permit, Slot, Time};
use leasehold_wire::Outcome;

use crate::consensus::Consensus;
use crate::leasing::Leasing;
use crate::machine::Kv;

/// State that reads look at.
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

    /// Leave to read `key` here at `now`, under leases.
    pub fn permit(self, now: Time, key: &[u8]) -> Result<Permit, NoPermit> {
        self.leader_ready()?;
        self.leasing.permit(now, key, self.executed())
    }

    /// A new leader reads nothing locally until its opening no-op is executed.
    pub(super) fn leader_ready(self) -> Result<(), NoPermit> {
        let start = self.consensus.commands().start();
        if self.consensus.leads() && self.executed() < start {
            Err(NoPermit::Barrier(start))
        } else {
            Ok(())
        }
    }

    /// The newest open slot that writes `key`.
    pub(super) fn newest_mark(self, key: &[u8]) -> Option<Slot> {
        let newest = self.consensus.marks().on(key).last().copied();
        assert!(
            newest.is_none_or(|slot| slot > self.executed()),
            "only open slots are marked"
        );
        newest
    }

    /// The value of `key` after `slot`: from the state, once that is executed, or from
    /// the slot itself, if that says it already (protocol §3.3).
    pub(super) fn value_after(self, slot: Slot, key: &[u8]) -> Option<Outcome> {
        if slot <= self.executed() {
            Some(self.kv.read(key))
        } else {
            self.consensus.value_at_commit(slot, key)
        }
    }
}
