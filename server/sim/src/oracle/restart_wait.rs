//! The restart wait (oracle 6; §3.7). A replica that has started again has forgotten its promises.
//! Until all of these promises have ended, each of its votes names all replicas in the tag, or it
//! does not vote.
//!
//! The oracle computes the end of the wait independently of the replica. It uses the promises that
//! earlier runs sent, and the beliefs that holders, by their own clocks, still have in these
//! promises.

use std::time::Duration;

use leasehold_leases::promise::Promise;
use leasehold_leases::{Incarnation, LeaseMessage, ReplicaSet, Time};

use super::promises::Promises;
use super::{StepContext, Verdict, Vote, WorldSnapshot, ensure, id, rewritten, writes};
use leasehold_replica::Replica;
use leasehold_replica::action::Record;
use leasehold_replica::message::{Envelope, LogId, Message, Value};

pub(super) const NAME: &str = "restart wait";

/// State of one replica as grantor. This state survives a restart of the replica.
#[derive(Clone, Debug, Default)]
struct Grantor {
    /// Longest time, in ns, for which a holder could rely on a promise of this replica, counted
    /// from the sending of the promise. This time applies to every clock within the drift that
    /// leases allow.
    longest_ns: u64,
    /// Time until which holders could rely on promises of earlier runs, by the replica's clock.
    until: Time,
}

/// Oracle that judges the restart wait.
#[derive(Debug)]
pub struct RestartWaitOracle {
    grantors: Vec<Grantor>,
    /// Number of starts and votes judged.
    pub checks: u64,
}

impl RestartWaitOracle {
    pub(super) fn new(n: usize) -> RestartWaitOracle {
        RestartWaitOracle {
            grantors: vec![Grantor::default(); n],
            checks: 0,
        }
    }

    /// Judges a start of `node`.
    pub(super) fn started(&mut self, snapshot: &WorldSnapshot<'_>, node: usize) -> Verdict {
        let Some(replica) = snapshot.replica(node) else {
            return Ok(());
        };
        let grantor = &mut self.grantors[node];
        let longest_ns = grantor.longest_ns;
        if longest_ns == 0 {
            return Ok(());
        }
        grantor.until = snapshot.time(node) + Duration::from_nanos(longest_ns);
        if !replica.has_joined() {
            return Ok(()); // its disk was wiped: it knows no restart wait, and will never vote
        }
        self.checks += 1;
        let waits = replica.outwaits_until().since(snapshot.time(node));
        ensure!(
            NAME,
            waits >= Duration::from_nanos(longest_ns),
            "{:?} waits for {waits:?} after its start, but promises of earlier runs may last for \
             {longest_ns} ns",
            id(node)
        );
        Ok(())
    }

    /// Judges a message that a replica is about to send.
    pub(super) fn sent(
        &mut self,
        ctx: StepContext<'_>,
        promises: &Promises,
        envelope: &Envelope,
    ) -> Verdict {
        let StepContext { snapshot, node, .. } = ctx;
        let Some(replica) = snapshot.replica(node) else {
            return Ok(());
        };
        if let Message::Lease(LeaseMessage::Promise(promise)) = &envelope.message {
            let rho_ppm = replica.configs().params(promise.config).clock.rho_ppm;
            let longest_ns = &mut self.grantors[node].longest_ns;
            *longest_ns = (*longest_ns).max(lasts_ns(promise, rho_ppm));
            return Ok(());
        }
        // If earlier runs made no promises, nothing was forgotten at the start.
        if self.grantors[node].until == Time::ZERO {
            return Ok(());
        }
        let mut votes = Vote::all_in(&envelope.message).filter(|vote| vote.log == LogId::Commands);
        votes.try_for_each(|vote| self.vote(ctx, promises, vote))
    }

    /// Checks a record with which `node` declares that its next run needs no restart wait. The
    /// record is a violation if any replica still relies on a promise of any run of `node`. It is
    /// also a violation if a promise in transit could still be taken.
    pub(super) fn records(
        &mut self,
        snapshot: &WorldSnapshot<'_>,
        promises: &Promises,
        node: usize,
        record: &Record,
    ) -> Verdict {
        let Record::RestartWait(Duration::ZERO) = record else {
            return Ok(());
        };
        self.checks += 1;
        let waits = snapshot.time(node) < self.grantors[node].until;
        let next = Incarnation(u64::MAX);
        let believes = |other: &usize| {
            *other != node
                && snapshot.replica(*other).is_some()
                && snapshot.time(*other) < promises.forgotten(node, *other, next)
        };
        let believing: ReplicaSet = (0..snapshot.n()).filter(believes).map(id).collect();
        ensure!(
            NAME,
            !waits && believing.is_empty(),
            "{:?} writes down that nobody believes it, but {believing:?} may (in its restart wait: \
             {waits})",
            id(node)
        );
        self.grantors[node] = Grantor::default();
        Ok(())
    }

    fn vote(&mut self, ctx: StepContext<'_>, promises: &Promises, vote: Vote) -> Verdict {
        let StepContext {
            snapshot,
            node,
            rest,
        } = ctx;
        let Vote { log, slot, tag, .. } = vote;
        let Some(replica) = snapshot.replica(node) else {
            return Ok(());
        };
        let owed = self.owed(ctx, promises, replica);
        if owed.is_empty() || slot <= replica.executed() {
            return Ok(());
        }
        if !replica.entry(log, slot).is_some_and(has_write) {
            return Ok(());
        }
        self.checks += 1;
        ensure!(
            NAME,
            owed.is_subset(tag) || rewritten(rest, log, slot),
            "{:?} {:?} votes for {slot:?} with tag {tag:?}, but {owed:?} may believe an earlier \
             run of its",
            id(node),
            replica.incarnation()
        );
        Ok(())
    }

    /// Returns the replicas that `node` must name in the tags of its votes, because `node` may have
    /// promised keys to these replicas in an earlier run.
    fn owed(
        &self,
        StepContext { snapshot, node, .. }: StepContext<'_>,
        promises: &Promises,
        replica: &Replica,
    ) -> ReplicaSet {
        let outwaits = replica.outwaits_until().max(self.grantors[node].until);
        if snapshot.time(node) < outwaits {
            return ReplicaSet::all(snapshot.n());
        }
        let run = replica.incarnation();
        let believes = |other: &usize| {
            *other != node
                && snapshot.replica(*other).is_some()
                && snapshot.time(*other) < promises.forgotten(node, *other, run)
        };
        (0..snapshot.n()).filter(believes).map(id).collect()
    }
}

/// Returns true if a value may change a key. A transaction of reads changes none.
fn has_write(value: &Value) -> bool {
    writes(value).next().is_some()
}

/// Returns the time, in ns, for which a holder may rely on a promise, counted from the sending of
/// the promise. This time applies to every clock within the drift that leases allow.
///
/// The promise names an ack of the holder. The grantor received this ack `t0` before it sent the
/// promise. The grantor measured `t0` by its own clock, which may be slow, while the holder's clock
/// may be fast. The holder takes the promise at most `t0 + t_guard` after it sent the ack. From
/// then on, the promise lasts `t_lease`.
fn lasts_ns(promise: &Promise, rho_ppm: u32) -> u64 {
    let rho = u128::from(rho_ppm);
    let aged = promise.t0.as_nanos() * 2 * rho / 1_000_000;
    let duration = (promise.t_guard + promise.t_lease).as_nanos() + aged;
    let stretched = duration * (1_000_000 + rho) / (1_000_000 - rho);
    u64::try_from(stretched).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use leasehold_leases::{ConfigId, Slot};

    use super::*;
    use crate::oracle::test_world::{
        BALLOT, LEASE, ReplicaState, TestWorld, ack, promise, puts, says,
    };
    use leasehold_replica::action::{Action, Record, Sequence};

    #[test]
    fn a_promise_lasts_for_guard_and_lease_stretched_by_both_clocks() {
        let promise = Promise {
            sequence: 1,
            base: 1,
            t0: Duration::ZERO,
            t_guard: Duration::from_secs(1),
            t_lease: Duration::from_secs(2),
            config: ConfigId(1),
            highest_accepted: Slot::ZERO,
        };
        assert_eq!(lasts_ns(&promise, 0), 3_000_000_000);
        assert_eq!(lasts_ns(&promise, 1000), 3_006_006_006);
        let aged = Promise {
            t0: Duration::from_secs(4),
            ..promise
        };
        assert_eq!(lasts_ns(&aged, 1000), 3_014_022_022);
    }

    /// Replica 0. In its first run, it makes promises to replica 1. Then it is started again.
    struct RestartedReplica {
        world: TestWorld,
        oracle: RestartWaitOracle,
        promises: Promises,
        start: Verdict,
        /// Actions that the replica performs after its vote, in the same step.
        rest: Vec<Action>,
    }

    impl RestartedReplica {
        fn new(joined: bool, restart_wait: Duration) -> RestartedReplica {
            let mut restarted = RestartedReplica {
                world: TestWorld::new(Default::default()),
                oracle: RestartWaitOracle::new(3),
                promises: Promises::new(3),
                start: Ok(()),
                rest: Vec::new(),
            };
            let first = restarted.oracle.started(&restarted.world.snapshot(), 0);
            first.expect("nothing was promised");
            restarted.promised(1);
            let second = ReplicaState {
                run: 2,
                joined,
                restart_wait: Some(restart_wait),
                accepted: vec![(6, puts(&["a"])), (7, Value::Noop)],
                ..ReplicaState::default()
            };
            restarted.world.restart(0, second);
            restarted.start = restarted.oracle.started(&restarted.world.snapshot(), 0);
            restarted
        }

        /// Lets replica 1 take a promise of the first run.
        fn promised(&mut self, sequence: u64) {
            for (node, to, envelope) in [
                says((0, 1), (1, 1), promise(sequence, 5)),
                says((1, 1), (0, 1), ack(sequence)),
            ] {
                let snapshot = self.world.snapshot();
                let taken = self.promises.sent(&snapshot, node, to, &envelope);
                taken.expect("as it should be");
                let ctx = StepContext {
                    snapshot: &snapshot,
                    node,
                    rest: &[],
                };
                let sent = self.oracle.sent(ctx, &self.promises, &envelope);
                sent.expect("as it should be");
            }
        }

        fn votes(&mut self, slot: u64, tag: u64) -> Verdict {
            let message = Message::Accepted {
                ballot: BALLOT,
                log: LogId::Commands,
                votes: vec![(Slot(slot), ReplicaSet(tag))].into(),
            };
            let (node, _, envelope) = says((0, 2), (1, 1), message);
            let ctx = StepContext {
                snapshot: &self.world.snapshot(),
                node,
                rest: &self.rest,
            };
            self.oracle.sent(ctx, &self.promises, &envelope)
        }
    }

    #[test]
    fn a_wait_that_is_shorter_than_what_was_promised_is_noticed() {
        for (joined, wait, good) in [
            (true, LEASE, false),
            (true, LEASE * 3, true),
            (false, LEASE, true),
        ] {
            let restarted = RestartedReplica::new(joined, wait);
            assert_eq!(restarted.start.is_ok(), good);
            assert_eq!(restarted.oracle.checks, u64::from(joined));
        }
    }

    #[test]
    fn within_the_wait_everyone_is_demanded() {
        // The same must hold if the replica knows too short a wait.
        for wait in [LEASE * 3, LEASE] {
            let mut restarted = RestartedReplica::new(true, wait);
            restarted.oracle.checks = 0;
            assert!(restarted.votes(6, 0b111).is_ok());
            assert!(restarted.votes(6, 0b011).is_err());
            assert!(restarted.votes(5, 0).is_ok(), "executed");
            assert!(restarted.votes(7, 0).is_ok(), "writes nothing");
            restarted.rest = vec![Action::Persist {
                sequence: Sequence(1),
                records: vec![Record::Erased {
                    log: LogId::Commands,
                    slot: Slot(6),
                }],
            }];
            assert!(
                restarted.votes(6, 0).is_ok(),
                "of a value that is dead by now"
            );
            restarted.world.later(LEASE * 3);
            assert!(restarted.votes(6, 0).is_ok());
            assert_eq!(restarted.oracle.checks, 3);
        }
    }

    #[test]
    fn who_believes_an_earlier_run_is_demanded_whatever_the_wait_was() {
        let mut restarted = RestartedReplica::new(true, LEASE * 3);
        restarted.world.later(LEASE * 3);
        restarted.promised(2); // taken too late: the belief lasts beyond the wait
        assert!(restarted.votes(6, 0b010).is_ok());
        assert!(restarted.votes(6, 0b100).is_err());
        restarted.world.later(LEASE);
        assert!(restarted.votes(6, 0b100).is_ok());
    }
}
