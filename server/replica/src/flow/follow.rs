//! Steps by which a replica begins and ends to follow a leader.

use leasehold_leases::Ballot;

use super::Parts;
use crate::message::LogId;
use crate::step::Step;

impl Parts {
    /// Handles a message of the leader of `ballot`, under that ballot.
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

    /// Becomes a follower again, because a higher ballot was received or this replica cannot lead.
    pub(super) fn step_down(&mut self, step: &mut Step<'_>) {
        self.consensus.step_down(step);
        self.leasing.step_down(step.now);
        let (reads, view) = self.reads();
        reads.reroute_read_index(step, view);
    }

    /// Sends the requests that wait for a leader's answer to the new leader.
    pub(super) fn ask_new_leader(&mut self, step: &mut Step<'_>) {
        self.writes.forward_all_again(step);
        let (reads, view) = self.reads();
        reads.ask_new_leader(step, view);
    }

    /// Notes whether the configurations executed here lag those that the leader knows to be
    /// committed.
    pub(super) fn note_config_lag(&mut self, step: &Step<'_>) {
        let lags = self.consensus.log(LogId::Configs).lags();
        self.leasing.note_lag(step.now, lags);
    }
}
