//! Choice of the leader to follow.

use leasehold_leases::Ballot;

use super::Parts;
use crate::message::LogId;
use crate::step::Step;

impl Parts {
    /// A ballot was heard of from its leader.
    pub(super) fn hear_leader(&mut self, step: &mut Step<'_>, ballot: Ballot) {
        self.consensus.promise(step, ballot);
        if !self.consensus.is_follower() {
            self.step_down(step);
        }
        if self.consensus.follow(step, ballot) {
            self.ask_new_leader(step);
            self.note_config_lag(step);
        }
        self.consensus.heard_leader(step);
    }

    /// Follows again: a higher ballot was heard of, or this replica cannot lead.
    pub(super) fn step_down(&mut self, step: &mut Step<'_>) {
        self.consensus.step_down(step);
        self.leasing.step_down(step.now);
        let (reads, view) = self.reads();
        reads.reroute_read_index(step, view);
    }

    /// A new leadership begins: what waits for a leader's answer asks this one.
    pub(super) fn ask_new_leader(&mut self, step: &mut Step<'_>) {
        self.writes.forward_all_again(step);
        let (reads, view) = self.reads();
        reads.ask_new_leader(step, view);
    }

    /// Notes whether the configuration log lags the leader's.
    pub(super) fn note_config_lag(&mut self, step: &Step<'_>) {
        let lags = self.consensus.log(LogId::Configs).lags();
        self.leasing.note_lag(step.now, lags);
    }
}
