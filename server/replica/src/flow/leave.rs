//! A planned end of the process: no other replica should have to wait for this replica while this
//! replica is away.

use super::Parts;
use crate::action::Event;
use crate::step::Step;

impl Parts {
    /// Prepares the end of the process: transfers leadership, gives leases back and recalls
    /// promises.
    pub(super) fn leave(&mut self, step: &mut Step<'_>) {
        self.leasing.leave(step);
        let (reads, view) = self.reads();
        reads.look_again_all(step, view);
        if self.consensus.leads() {
            self.consensus.end_transfer();
            self.transfer_before_leaving(step);
        }
    }

    /// Announces that this replica has left, once no other replica waits for it any more. The
    /// announcement is made only once.
    pub(super) fn leave_on(&mut self, step: &mut Step<'_>) {
        if self.left || !self.leasing.is_leaving() {
            return;
        }
        // A replica that has not joined has made no promise in this life, and knows of no earlier
        // life.
        let joined = self.joining.has_joined();
        if joined {
            self.leasing.record_leaving(step);
        }
        let alone = step.ctx.others().next().is_none();
        let unsettled = match self.consensus.leader() {
            Some(leader) => leader == step.me() && !alone,
            // If this replica ended while another campaigns, the candidate might not get entries
            // that it still lacks.
            None => step.now < self.awaits_successor_until,
        };
        if !joined || !unsettled && self.leasing.has_left(step) {
            let leads = self.consensus.leads();
            assert!(!leads || alone, "a leader of other replicas does not leave");
            self.left = true;
            step.announce(Event::Left);
        }
    }
}
