//! A planned end: nobody is to wait for this replica while it is away.

use super::Parts;
use crate::action::Event;
use crate::step::Step;

impl Parts {
    /// The process is to end: transfers leadership, gives leases back and recalls promises.
    pub(super) fn leave(&mut self, step: &mut Step<'_>) {
        self.leasing.leave(step);
        let (reads, view) = self.reads();
        reads.look_again_all(step, view);
        if self.consensus.leads() {
            self.consensus.end_transfer();
            self.transfer_before_leaving(step);
        }
    }

    /// Says once that this replica has left.
    pub(super) fn leave_on(&mut self, step: &mut Step<'_>) {
        if self.left || !self.leasing.is_leaving() {
            return;
        }
        // A replica that has not joined has promised nothing in this life, and knows of no other.
        let joined = self.joining.has_joined();
        if joined {
            self.leasing.record_leaving(step);
        }
        let alone = step.ctx.others().next().is_none();
        let unsettled = match self.consensus.leader() {
            Some(leader) => leader == step.me() && !alone,
            // A replica that leaves while another campaigns could keep it from what it still lacks.
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
