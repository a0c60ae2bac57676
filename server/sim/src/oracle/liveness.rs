//! Liveness (oracle 10; §3.7). While a majority of the replicas is up and connected, and there is
//! no other fault, every write commits, every held read ends, and every replica catches up. The
//! time limit is the sum of four durations: t_grace, t_guard + t_lease, the duration of an
//! election, and some slack. A failed replica is suspected after t_grace. Promises to it have ended
//! after t_guard + t_lease, stretched for drift.
//!
//! The driver of the clients notifies this oracle of requests and answers.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use foldhash::fast::FixedState;
use leasehold_leases::LeaseParams;

use super::{Verdict, ensure, id};
use leasehold_replica::settings::Timing;

pub(super) const NAME: &str = "liveness";

/// Maximum pause between two attempts at the same request, as a number of retransmission intervals.
/// The pauses grow with each attempt.
const BACKOFF: u32 = 16;
/// Number of elections that may be needed until one succeeds, because two candidates may collide.
const ELECTIONS: u32 = 3;

/// Oracle that judges liveness: once all faults are healed, every request must be answered within a
/// time limit.
#[derive(Debug, Default)]
pub struct LivenessOracle {
    /// Time at which the last fault was healed, and the time that a request may take after that,
    /// both in ns; `None` while there may be faults.
    healed: Option<(u64, u64)>,
    /// Requests without an answer: (time of the request in ns, token), in rising order of time.
    requests: VecDeque<(u64, u64)>,
    open: HashSet<u64, FixedState>,
    /// Number of requests that were answered within the time limit after all faults were healed.
    pub checks: u64,
}

/// Returns the maximum time that a request may take when there is no fault: the bound of §3.7 under
/// `params` and `timing`. The slack in this bound covers the pauses between attempts. It also
/// covers the time that a leader may take to commit its open slots before it transfers leadership.
pub fn bound(params: &LeaseParams, timing: &Timing) -> Duration {
    let clock = params.clock;
    let leases = clock.keep_from_send(params.t_lease, params.t_guard, params.t0_cap);
    let drains = params.t_grace;
    let elections = timing.election_timeout * 2 * ELECTIONS;
    let slack = drains + timing.retransmit * BACKOFF;
    clock.outwait(params.t_grace + leases + elections + slack)
}

impl LivenessOracle {
    /// Records that all faults are healed and a majority is up at `now_ns`. `params` are the
    /// longest durations in force. `allowance` is added to the time limit, because clients wait
    /// before they retry at another replica, and a lagging replica needs time to catch up.
    pub fn healed(
        &mut self,
        now_ns: u64,
        params: &LeaseParams,
        timing: &Timing,
        allowance: Duration,
    ) {
        let within = bound(params, timing) + allowance;
        self.healed = Some((now_ns, within.as_nanos() as u64));
    }

    /// Records a client's request. Retries belong to the same request.
    pub fn requested(&mut self, token: u64, now_ns: u64) {
        if self.open.insert(token) {
            self.requests.push_back((now_ns, token));
        }
    }

    /// Judges the time of an answer to a request.
    ///
    /// # Errors
    /// This request or another one has waited for too long.
    pub fn answered(&mut self, token: u64, now_ns: u64) -> Verdict {
        let verdict = self.check(now_ns);
        if self.open.remove(&token) && self.healed.is_some() {
            self.checks += 1;
        }
        verdict
    }

    /// Forgets a request, because the client has abandoned it.
    pub fn abandoned(&mut self, token: u64) {
        self.open.remove(&token);
    }

    /// Judges requests that still wait. This must be called repeatedly during a run, and at its
    /// end.
    ///
    /// # Errors
    /// A request has waited for too long.
    pub fn check(&mut self, now_ns: u64) -> Verdict {
        while let Some((requested_ns, token)) = self.requests.front().copied() {
            if !self.open.contains(&token) {
                self.requests.pop_front();
                continue;
            }
            let Some((healed_ns, within_ns)) = self.healed else {
                return Ok(());
            };
            let since_ns = requested_ns.max(healed_ns);
            ensure!(
                NAME,
                now_ns <= since_ns + within_ns,
                "request {token} of {requested_ns} ns has no answer at {now_ns} ns, although all has \
                 been well since {healed_ns} ns: {within_ns} ns are enough"
            );
            return Ok(());
        }
        Ok(())
    }

    /// Judges the time that replicas take to catch up. A replica is behind if it has not executed
    /// all slots that another replica had executed when all faults were healed. `behind` is the
    /// number of these replicas. This must be called repeatedly during a run, because clients that
    /// use other replicas do not notice that a replica is behind.
    ///
    /// # Errors
    /// The replicas take too long.
    pub fn caught_up(&self, now_ns: u64, behind: usize) -> Verdict {
        if let Some((healed_ns, within_ns)) = self.healed {
            ensure!(
                NAME,
                behind == 0 || now_ns <= healed_ns + within_ns,
                "{behind} replicas have not caught up at {now_ns} ns with what others had executed at \
                 {healed_ns} ns, when all was well again: {within_ns} ns are enough"
            );
        }
        Ok(())
    }

    /// Judges the time that `node` takes to answer. `node` has had an unanswered write at every
    /// moment since `since_ns`. This must be called repeatedly during a run, because clients that
    /// use other replicas do not notice a replica that gives no answers.
    ///
    /// # Errors
    /// The replica takes too long.
    pub fn answers(&self, now_ns: u64, node: usize, since_ns: u64) -> Verdict {
        if let Some((healed_ns, within_ns)) = self.healed {
            ensure!(
                NAME,
                now_ns <= since_ns.max(healed_ns) + within_ns,
                "{:?} has not answered at {now_ns} ns what it was asked at {since_ns} ns, although \
                 all has been well since {healed_ns} ns: {within_ns} ns are enough",
                id(node)
            );
        }
        Ok(())
    }

    /// Returns the number of requests without an answer.
    pub fn open(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healed_at(now_ns: u64) -> (LivenessOracle, u64) {
        let (params, timing) = (LeaseParams::default(), Timing::default());
        let mut liveness = LivenessOracle::default();
        liveness.requested(1, 5);
        liveness.healed(now_ns, &params, &timing, Duration::ZERO);
        (liveness, bound(&params, &timing).as_nanos() as u64)
    }

    #[test]
    fn the_bound_holds_what_the_paper_names() {
        let params = LeaseParams::default();
        let least = params.t_grace + params.t_guard + params.t_lease;
        assert!(bound(&params, &Timing::default()) > least);
        let longer = LeaseParams {
            t_lease: params.t_lease * 2,
            ..params
        };
        assert!(
            bound(&longer, &Timing::default())
                >= bound(&params, &Timing::default()) + params.t_lease
        );
    }

    #[test]
    fn a_request_that_is_never_answered_is_noticed() {
        let (mut liveness, bound_ns) = healed_at(1000);
        assert!(liveness.check(1000 + bound_ns).is_ok());
        assert!(liveness.check(1001 + bound_ns).is_err());
    }

    #[test]
    fn an_answer_that_comes_too_late_is_noticed() {
        let (mut liveness, bound_ns) = healed_at(1000);
        assert!(liveness.answered(1, 1001 + bound_ns).is_err());
    }

    #[test]
    fn a_replica_that_does_not_catch_up_is_noticed() {
        let (liveness, bound_ns) = healed_at(1000);
        assert!(liveness.caught_up(1000 + bound_ns, 1).is_ok());
        assert!(liveness.caught_up(1001 + bound_ns, 0).is_ok());
        assert!(liveness.caught_up(1001 + bound_ns, 1).is_err());
    }

    #[test]
    fn a_replica_that_never_answers_is_noticed() {
        let (liveness, bound_ns) = healed_at(1000);
        assert!(liveness.answers(1000 + bound_ns, 0, 5).is_ok());
        assert!(liveness.answers(1001 + bound_ns, 0, 5).is_err());
        assert!(liveness.answers(1001 + bound_ns, 0, 1001).is_ok());
    }

    #[test]
    fn what_was_given_up_is_not_waited_for() {
        let (mut liveness, bound_ns) = healed_at(1000);
        liveness.abandoned(1);
        assert!(liveness.check(1001 + bound_ns).is_ok());
        assert_eq!((liveness.checks, liveness.open()), (0, 0));
    }

    #[test]
    fn nothing_is_asked_of_a_world_that_has_not_healed() {
        let mut liveness = LivenessOracle::default();
        liveness.requested(1, 5);
        assert!(liveness.check(u64::MAX).is_ok());
        assert!(liveness.answered(1, u64::MAX).is_ok());
        assert_eq!((liveness.checks, liveness.open()), (0, 0));
    }

    #[test]
    fn each_request_has_its_own_time() {
        let (mut liveness, bound_ns) = healed_at(1000);
        liveness.requested(2, 2000);
        assert!(liveness.answered(1, 1500).is_ok());
        assert!(liveness.check(2000 + bound_ns).is_ok());
        liveness.requested(2, 9000); // a retry
        assert!(liveness.check(2001 + bound_ns).is_err());
        assert_eq!(liveness.checks, 1);
    }
}
