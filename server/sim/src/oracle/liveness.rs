//! Liveness (oracle 10; §3.7): with a majority up and connected and nothing else going wrong, every
//! write commits, every read that was held ends, and every replica catches up, within t_grace (to
//! suspect a failed replica), t_guard + t_lease (to outwait what it was promised, stretched for
//! drift), an election, and some slack.
//!
//! Notified of invocations and answers by the driver of the clients.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use foldhash::fast::FixedState;
use leasehold_leases::LeaseParams;

use super::{Verdict, ensure, id};
use leasehold_replica::settings::Timing;

pub(super) const NAME: &str = "liveness";

/// The longest pause between two attempts at a request that has waited long, in
/// retransmission intervals: its attempts back off.
const BACKOFF: u32 = 16;
/// Elections that may fail before one succeeds: two candidates may collide.
const ELECTIONS: u32 = 3;

/// Oracle that judges liveness: every request ends in time once all is well.
#[derive(Debug, Default)]
pub struct LivenessOracle {
    /// Since when nothing goes wrong any more, and how long a request may take
    /// from then on, in ns.
    healed: Option<(u64, u64)>,
    /// Requests without an answer: (when asked, in ns; token), rising by time.
    requests: VecDeque<(u64, u64)>,
    open: HashSet<u64, FixedState>,
    /// Requests that were answered in time, after the heal.
    pub checks: u64,
}

/// Returns the maximum time that a request may take once all is well: the bound of §3.7 under
/// `params` and `timing`. Its slack is the time for which a leader that transfers leadership may
/// drain, and the pauses between attempts.
pub fn bound(params: &LeaseParams, timing: &Timing) -> Duration {
    let clock = params.clock;
    let leases = clock.keep_from_send(params.t_lease, params.t_guard, params.t0_cap);
    let drains = params.t_grace;
    let elections = timing.election_timeout * 2 * ELECTIONS;
    let slack = drains + timing.retransmit * BACKOFF;
    clock.outwait(params.t_grace + leases + elections + slack)
}

impl LivenessOracle {
    /// From `now_ns` on nothing goes wrong, and a majority is up; `params` are the
    /// longest in force, and `allowance` is what clients wait before they ask
    /// again elsewhere, and what a replica that is behind needs to catch up.
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

    /// A client asks; retries are the same request.
    pub fn requested(&mut self, token: u64, now_ns: u64) {
        if self.open.insert(token) {
            self.requests.push_back((now_ns, token));
        }
    }

    /// A request was answered.
    ///
    /// # Errors
    /// Another one has waited for too long.
    pub fn answered(&mut self, token: u64, now_ns: u64) -> Verdict {
        let verdict = self.check(now_ns);
        if self.open.remove(&token) && self.healed.is_some() {
            self.checks += 1;
        }
        verdict
    }

    /// Nobody waits for a request any longer.
    pub fn abandoned(&mut self, token: u64) {
        self.open.remove(&token);
    }

    /// To be asked now and then, and at the end.
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

    /// To be asked now and then: so many replicas have not executed what others had when all
    /// was healed. Clients need not notice, for they ask others.
    ///
    /// # Errors
    /// They take too long.
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

    /// To be asked now and then: a replica has a write since so long ago and has not answered it.
    /// Clients need not notice, for they ask others.
    ///
    /// # Errors
    /// It takes too long.
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

    /// Requests without an answer.
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
