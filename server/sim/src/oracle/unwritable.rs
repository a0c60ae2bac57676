//! A replica that cannot persist data holds no key (§3.7; protocol §2, hazard 36). A replica that
//! was notified that its storage is not writable believes no promise. Otherwise every write of a
//! key that this replica holds would wait for an acceptance that the replica cannot give. A replica
//! that was notified that its clock cannot be trusted also believes no promise (hazard 80), because
//! it could not know when a promise has ended.

use super::{Verdict, WorldSnapshot, ensure, id};
use leasehold_replica::Replica;

pub(super) const NAME: &str = "unwritable";

/// Oracle that judges replicas without writable storage or without a trusted clock. These replicas
/// must not rely on any promise.
#[derive(Debug, Default)]
pub struct UnwritableOracle {
    /// Number of steps that were judged. Only steps of replicas without writable storage or without
    /// a trusted clock are judged.
    pub checks: u64,
}

impl UnwritableOracle {
    /// Judges a step of `node`.
    pub(super) fn stepped(
        &mut self,
        snapshot: &WorldSnapshot<'_>,
        node: usize,
        replica: &Replica,
    ) -> Verdict {
        let (writable, clock) = (
            snapshot.node(node).is_writable(),
            snapshot.node(node).trusts_clock(),
        );
        if writable && clock {
            return Ok(());
        }
        self.checks += 1;
        let now = snapshot.time(node);
        for grantor in (0..snapshot.n()).map(id) {
            let believed = replica.promised_by(grantor).find(|(_, until)| now < *until);
            ensure!(
                NAME,
                believed.is_none(),
                "{:?} cannot persist or trust its clock (writable: {writable}, clock: {clock}), but \
                 believes {grantor:?}: {believed:?}",
                id(node)
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leasehold_leases::LeaseMessage;

    use super::*;
    use crate::oracle::test_world::{LEASE, ReplicaState, TestWorld, promise, says};
    use leasehold_replica::Input;
    use leasehold_replica::message::Message;

    /// Returns a world in which replica 1 relies on a promise of replica 0. If `full` is true,
    /// replica 1 is told that its disk is full.
    fn believing(full: bool) -> TestWorld {
        let mut world = TestWorld::new([
            ReplicaState::default(),
            ReplicaState::default(),
            ReplicaState::default(),
        ]);
        let now = world.snapshot().time(1);
        let node = &mut world.nodes[1];
        let replica = node.process.machine_mut().expect("it runs");
        let guard = Message::Lease(LeaseMessage::Guard { sequence: 1 });
        for message in [guard, promise(2, 5)] {
            let (_, _, envelope) = says((0, 1), (1, 1), message);
            replica.step(now, Input::Peer(envelope), &mut Vec::new());
        }
        node.watches.disk.set_full(full);
        assert_eq!(node.watches.disk.news(now), full.then_some(false));
        world
    }

    fn judge(world: &TestWorld) -> (bool, u64) {
        let mut oracle = UnwritableOracle::default();
        let snapshot = world.snapshot();
        let replica = snapshot.replica(1).expect("it runs");
        let verdict = oracle.stepped(&snapshot, 1, replica);
        (verdict.is_ok(), oracle.checks)
    }

    #[test]
    fn who_cannot_persist_believes_nobody() {
        let mut world = believing(true);
        assert_eq!(judge(&world), (false, 1));
        let now = world.snapshot().time(1);
        let replica = world.nodes[1].process.machine_mut().expect("it runs");
        replica.step(now, Input::StorageWritable(false), &mut Vec::new());
        assert_eq!(judge(&world), (true, 1));
    }

    #[test]
    fn who_cannot_trust_its_clock_believes_nobody() {
        let mut world = believing(false);
        world.nodes[1].clock_untrusted = true;
        assert_eq!(judge(&world), (false, 1));
        let now = world.snapshot().time(1);
        let replica = world.nodes[1].process.machine_mut().expect("it runs");
        replica.step(now, Input::ClockTrusted(false), &mut Vec::new());
        assert_eq!(judge(&world), (true, 1));
    }

    #[test]
    fn a_promise_that_has_ended_is_not_believed() {
        let mut world = believing(true);
        world.later(LEASE);
        assert_eq!(judge(&world), (true, 1));
    }

    #[test]
    fn who_can_persist_may_believe() {
        assert_eq!(judge(&believing(false)), (true, 0));
    }
}
