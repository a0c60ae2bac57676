//! Containment (oracle 1; §3.5, §3.7): in true time, a holder's belief ends before the grant from
//! which the belief follows. A belief in an earlier run of the grantor ends before the restart wait
//! of the grantor's present run.

use leasehold_leases::{ConfigId, Time};
use smallvec::SmallVec;

use super::{Verdict, WorldSnapshot, ensure, id};
use leasehold_kernel::clock::Clock;
use leasehold_replica::Replica;

pub(super) const NAME: &str = "containment";

/// Maximum error when two clocks are compared, in ns of true time. The error arises because each
/// clock rounds its reading to a ns.
const TICKS_NS: u64 = 2;

/// Number of configurations for which past judgements are kept. These are the newest ones.
const CONFIGS_KEPT: u64 = 8;

/// One of the two replicas in a comparison (the grantor or the holder), with the clock of this
/// replica.
struct ComparedReplica<'a> {
    node: usize,
    replica: &'a Replica,
    clock: Clock,
    /// Reading of the replica's clock.
    now: Time,
}

/// End of a promise by the holder's clock, and end of its grant by the grantor's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
struct GrantedPromise {
    config: ConfigId,
    until: Time,
    granted_until: Time,
}

/// Oracle that judges containment: a promise must end at the holder before its grant ends at the
/// grantor. Each pair of a promise and a grant is judged once. It is judged again only if the rate
/// or origin of a clock changes.
#[derive(Debug)]
pub struct ContainmentOracle {
    n: usize,
    /// Clock of each replica at the time of the judgements in `judged`.
    clocks: Vec<Option<Clock>>,
    /// Promises and grants that were judged, by grantor and holder.
    judged: Vec<SmallVec<[GrantedPromise; 2]>>,
    /// Number of promises compared.
    pub checks: u64,
}

impl ContainmentOracle {
    pub(super) fn new(n: usize) -> ContainmentOracle {
        ContainmentOracle {
            n,
            clocks: vec![None; n],
            judged: vec![SmallVec::new(); n * n],
            checks: 0,
        }
    }

    /// Checks the promises that `node` has received and the promises that it has made.
    pub(super) fn stepped(&mut self, snapshot: &WorldSnapshot<'_>, node: usize) -> Verdict {
        let Some(here) = self.side(snapshot, node) else {
            return Ok(());
        };
        for other in (0..snapshot.n()).filter(|other| *other != node) {
            if let Some(there) = self.side(snapshot, other) {
                self.check(snapshot, &there, &here)?;
                self.check(snapshot, &here, &there)?;
            }
        }
        Ok(())
    }

    fn side<'a>(
        &mut self,
        snapshot: &WorldSnapshot<'a>,
        node: usize,
    ) -> Option<ComparedReplica<'a>> {
        let replica = snapshot.replica(node)?;
        let clock = *snapshot.clock(node);
        if self.clocks[node] != Some(clock) {
            self.clocks[node] = Some(clock);
            for other in 0..self.n {
                self.judged[node * self.n + other].clear();
                self.judged[other * self.n + node].clear();
            }
        }
        Some(ComparedReplica {
            node,
            replica,
            clock,
            now: clock.read(snapshot.now_ns),
        })
    }

    fn check(
        &mut self,
        snapshot: &WorldSnapshot<'_>,
        grantor: &ComparedReplica<'_>,
        holder: &ComparedReplica<'_>,
    ) -> Verdict {
        if !grantor.replica.has_joined() {
            return Ok(()); // the grantor casts no vote at all
        }
        let (g, h) = (grantor.node, holder.node);
        let believed = holder.replica.promised_by(id(g));
        for (config, until) in believed.filter(|(_, until)| holder.now < *until) {
            // The grantor has forgotten the promises of its earlier runs. Until its restart wait
            // has ended, every vote must demand all replicas, which is as good as a grant.
            let current = holder.replica.honours(id(g), grantor.replica.incarnation());
            let granted = grantor.replica.granted_to(id(h), config);
            let granted = granted.filter(|_| current).unwrap_or(Time::ZERO);
            let promise = GrantedPromise {
                config,
                until,
                granted_until: granted.max(grantor.replica.outwaits_until()),
            };
            let judged = &mut self.judged[g * self.n + h];
            if judged.contains(&promise) {
                continue;
            }
            remember(judged, promise);
            self.checks += 1;
            compare(snapshot, grantor, holder, promise)?;
        }
        Ok(())
    }
}

fn remember(judged: &mut SmallVec<[GrantedPromise; 2]>, promise: GrantedPromise) {
    judged.retain(|other| {
        other.config != promise.config && other.config.0 + CONFIGS_KEPT > promise.config.0
    });
    judged.push(promise);
}

fn compare(
    snapshot: &WorldSnapshot<'_>,
    grantor: &ComparedReplica<'_>,
    holder: &ComparedReplica<'_>,
    promise: GrantedPromise,
) -> Verdict {
    let ends_ns = holder.clock.when(promise.until);
    let granted_ns = grantor.clock.when(promise.granted_until);
    ensure!(
        NAME,
        granted_ns + TICKS_NS >= ends_ns,
        "{:?} believes {:?} under {:?} until {ends_ns} ns, but the grant ends at {granted_ns} ns \
         (now {} ns)",
        id(holder.node),
        id(grantor.node),
        promise.config,
        snapshot.now_ns
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::oracle::test_world::{LEASE, ReplicaState, TestWorld};

    /// Changes the rate of a node's clock. The origin of the clock stays the same.
    fn change_rate(node: &mut crate::node::Node, rate_ppm: i32) {
        node.process
            .change_clock(|clock| clock.set_rate(0, rate_ppm));
    }

    /// Returns a world in which every replica has promised every other.
    fn promised() -> TestWorld {
        let mut world = TestWorld::new(Default::default());
        world.talk();
        world
    }

    /// Returns the verdict on replica 1, and the number of promises compared.
    fn judge(world: &TestWorld) -> (bool, u64) {
        let mut containment = ContainmentOracle::new(3);
        let verdict = containment.stepped(&world.snapshot(), 1);
        (verdict.is_ok(), containment.checks)
    }

    #[test]
    fn a_promise_ends_before_its_grant_while_clocks_keep_their_bound() {
        for (grantor, holder, good) in [
            (0, 0, true),
            (1000, -1000, true),
            (10_000, 0, false),
            (0, -10_000, false),
        ] {
            let mut world = promised();
            change_rate(&mut world.nodes[0], grantor);
            change_rate(&mut world.nodes[1], holder);
            assert_eq!(judge(&world).0, good, "{grantor} {holder}");
        }
        assert_eq!(judge(&promised()), (true, 4));
    }

    #[test]
    fn a_promise_has_a_grant_behind_it_while_it_lasts() {
        let mut world = promised();
        world.restart(0, ReplicaState::default());
        assert!(!judge(&world).0);
        world.later(LEASE);
        assert!(judge(&world).0);
    }

    #[test]
    fn who_casts_no_vote_need_not_grant() {
        let mut world = promised();
        let joined = false;
        world.restart(
            0,
            ReplicaState {
                joined,
                ..ReplicaState::default()
            },
        );
        assert!(judge(&world).0);
    }

    #[test]
    fn what_an_earlier_run_promised_ends_before_the_restart_wait() {
        for (wait, good) in [(LEASE, true), (LEASE - Duration::from_millis(1), false)] {
            let mut world = promised();
            let second = ReplicaState {
                run: 2,
                restart_wait: Some(wait),
                ..ReplicaState::default()
            };
            world.restart(0, second);
            assert_eq!(judge(&world).0, good, "{wait:?}");
        }
    }

    #[test]
    fn what_was_judged_is_judged_again_when_a_clock_changes_its_rate() {
        let mut world = promised();
        let mut containment = ContainmentOracle::new(3);
        for (rate, checks) in [(0, 4), (0, 4), (1000, 6)] {
            change_rate(&mut world.nodes[0], rate);
            assert!(containment.stepped(&world.snapshot(), 1).is_ok());
            assert_eq!(containment.checks, checks);
        }
    }
}
