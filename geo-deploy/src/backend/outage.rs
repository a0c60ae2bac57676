//! Bounds on the outage that the protocol allows after a fault.
//!
//! - If a holder fails, a write to one of its keys waits until all promises to the holder have
//!   expired on every clock. Peers stop renewing their promises to the holder after two renewals
//!   were not answered. The last promise lasts `t_guard + t_lease`, with drift. After the last
//!   promise has expired, the write commits. Reads of the key may wait for the write. No operation
//!   waits for `t_grace`: `t_grace` matters only if a holder answers but does not persist, and
//!   there is no bound for this case.
//! - If the leader fails, every operation that needs a leader waits for the next one. The failed
//!   leader holds every key, so its promises must expire first. The bound is the greater of the
//!   election timeout and `t_guard + t_lease`, with drift, plus two round trips and 100 ms.
//! - Operations on other keys do not wait for a failed replica.
//!
//! If a replica no longer answers, its clients send requests to another replica. They do so
//! immediately if the replica is down, and after the timeout of an attempt if it is paused or cut
//! off.

use super::RunPlan;
use crate::fault::{FaultAction, FaultSpec};
use crate::run::OutageBound;
use crate::run::bound::{Bounds, Replies, SiteSet};

/// Time for processing, in s, that is included in every bound.
const SLACK_S: f64 = 0.1;
/// Time, in s, that a client waits for the answer of one replica. After this time, the client also
/// sends the request to another replica.
pub(crate) const ATTEMPT_S: f64 = 1.0;

/// Returns bounds on the outage of each site's clients after a fault at the sites `failed`.
/// `leader` is the leader at the time of the fault. Returns an empty list if no bound is
/// guaranteed.
pub(crate) fn bounds(
    plan: &RunPlan<'_>,
    fault: &FaultSpec,
    failed: SiteSet,
    leader: Option<usize>,
) -> Vec<OutageBound> {
    let n = plan.topology().len();
    let survives = n - failed.iter().count() > n / 2;
    let silences = match fault.action {
        FaultAction::Kill | FaultAction::Stop | FaultAction::Restart | FaultAction::Pause => true,
        // The loss of some links may have no consequence or the same one as the loss of all, so
        // bounds exist only for the loss of all.
        FaultAction::Partition => fault.to.is_empty() && fault.direction == Default::default(),
        FaultAction::Slow | FaultAction::Loss | FaultAction::FillDisk => false,
    };
    if !silences || !survives {
        return Vec::new();
    }
    let of_leader = leader.is_some_and(|leader| failed.contains(leader));
    let bound = |site| of_site(plan, fault, site, failed.contains(site), of_leader);
    (0..n).map(bound).collect()
}

fn of_site(
    plan: &RunPlan<'_>,
    fault: &FaultSpec,
    site: usize,
    failed: bool,
    of_leader: bool,
) -> OutageBound {
    let (election_s, leased_s) = durations_s(plan);
    let usual_s = usual_s(plan, site);
    let finds_another_s = match fault.action {
        _ if !failed => 0.0,
        FaultAction::Kill | FaultAction::Stop | FaultAction::Restart => usual_s,
        _ => ATTEMPT_S + usual_s,
    };
    let other_s = if of_leader {
        finds_another_s + usual_s + election_s
    } else {
        finds_another_s + usual_s + SLACK_S
    };
    let leased_s = if of_leader {
        other_s
    } else {
        finds_another_s + usual_s + leased_s
    };
    OutageBound {
        leased_reads_s: Some(leased_s),
        leased_writes_s: Some(leased_s),
        other_reads_s: Some(other_s),
        other_writes_s: Some(other_s),
    }
}

/// Returns two times in s: the time without a leader after the leader failed, and the time for
/// which a leased key is blocked after another holder failed.
fn durations_s(plan: &RunPlan<'_>) -> (f64, f64) {
    let params = plan.params();
    let rho = plan.experiment.lease.rho;
    let seconds = |duration: std::time::Duration| duration.as_secs_f64();
    let promise_s = seconds(params.t_guard) + seconds(params.t_lease);
    let rtts = plan.topology().matrix().iter().flatten();
    let farthest_s = rtts.copied().fold(0.0, f64::max) / 1e3;
    let election_s = seconds(plan.election_timeout()).max(promise_s);
    let renewals_s = 2.0 * seconds(params.renew) * (1.0 + rho);
    (
        election_s * (1.0 + rho) + 2.0 * farthest_s + SLACK_S,
        renewals_s + seconds(params.restart_wait()) + farthest_s + SLACK_S,
    )
}

/// Returns the longest time, in s, that an operation at a site takes without faults. This operation
/// is a write that every replica must acknowledge. The write also waits for an earlier write of the
/// same kind.
fn usual_s(plan: &RunPlan<'_>, site: usize) -> f64 {
    let topology = plan.topology();
    let bounds = Bounds::new(topology, plan.experiment.leader_index());
    let everybody = SiteSet::all(topology.len());
    let write_ms = bounds.write_ms(site, everybody, Replies::LeaderAndOrigin);
    2.0 * (write_ms + topology.local_rtt_ms()) / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;
    use crate::fault::FaultTarget;

    const JP: usize = 0;
    const CA: usize = 1;

    fn of(sets: &[&str], action: FaultAction, failed: SiteSet) -> Vec<OutageBound> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let experiment = Experiment::find("fig6").unwrap().with(&sets).unwrap();
        let plan = RunPlan::new(&experiment, &experiment.strategies[0]);
        let fault = FaultSpec::now(action, vec![FaultTarget::All]);
        bounds(&plan, &fault, failed, Some(CA))
    }

    const PAPER: [&str; 5] = [
        "lease.t_lease_ms=2000",
        "lease.t_guard_ms=2000",
        "lease.renew_ms=500",
        "lease.grace_ms=5000",
        "lease.rho=0.001",
    ];

    #[test]
    fn the_papers_holder_blocks_its_keys_for_two_renewals_and_its_last_promise() {
        let bounds = of(&PAPER, FaultAction::Kill, SiteSet::one(JP));
        let at_leader = bounds[CA];
        let usual_s = at_leader.other_writes_s.unwrap() - SLACK_S;
        // The terms are 1.001 s and 4.016 s, a round trip of 0.27 s, 0.1 s, and two writes.
        let leased_s = at_leader.leased_writes_s.unwrap() - usual_s;
        assert!((5.38..5.40).contains(&leased_s), "{leased_s}");
        let other_s = at_leader.other_writes_s.unwrap();
        assert!(other_s < 0.5, "{other_s}");
        let paused = of(&PAPER, FaultAction::Pause, SiteSet::one(JP));
        let found_s = paused[JP].other_reads_s.unwrap() - bounds[JP].other_reads_s.unwrap();
        assert!((found_s - ATTEMPT_S).abs() < 1e-9, "{found_s}");
        assert_eq!(paused[CA], at_leader);
    }

    #[test]
    fn a_leader_that_fails_is_replaced_when_its_promises_have_run_out() {
        let fast = [
            "lease.t_lease_ms=250",
            "lease.renew_ms=60",
            "lease.t_guard_ms=250",
        ];
        let bounds = of(&fast, FaultAction::Kill, SiteSet::one(CA));
        let waits_s = bounds[JP].other_writes_s.unwrap();
        assert!(
            bounds
                .iter()
                .all(|bound| bound.leased_writes_s == bound.other_writes_s)
        );
        assert!((0.5..3.0).contains(&waits_s), "{waits_s}");
    }

    #[test]
    fn nothing_is_promised_without_a_majority_or_of_a_slow_link() {
        assert_eq!(of(&[], FaultAction::Kill, SiteSet::all(5)), []);
        assert_eq!(of(&[], FaultAction::Slow, SiteSet::one(JP)), []);
        assert_eq!(of(&[], FaultAction::Partition, SiteSet::one(JP)).len(), 5);
    }
}
