//! Steps by which a replica begins to follow a leader, or stops following one.

use leasehold_leases::Ballot;

use super::Parts;
use crate::message::LogId;
use crate::step::Step;

impl Parts {
    /// Handles a message that the leader of `ballot` sent under that ballot.
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

    /// Makes this replica a follower again, because it received a higher ballot or cannot lead.
    pub(super) fn step_down(&mut self, step: &mut Step<'_>) {
        self.consensus.step_down(step);
        self.leasing.step_down(step.now);
        let (reads, view) = self.reads();
        reads.reroute_read_index(step, view);
    }

    /// Sends the unanswered requests to the new leader, if a leader must answer them.
    pub(super) fn ask_new_leader(&mut self, step: &mut Step<'_>) {
        self.writes.forward_all_again(step);
        let (reads, view) = self.reads();
        reads.ask_new_leader(step, view);
    }

    /// Notes whether the leader has reported committed configurations that are not executed here.
    pub(super) fn note_config_lag(&mut self, step: &Step<'_>) {
        let lags = self.consensus.log(LogId::Configs).lags();
        self.leasing.note_lag(step.now, lags);
    }
}
