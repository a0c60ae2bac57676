//! No write commits while a former leader that does not know the write can still serve its key
//! (oracle 7; §3.3, §3.7). A replica that once led keeps the lease under which it led. Until this
//! lease has ended, the replica must learn of every write to the keys of the lease, whichever
//! replica leads then.
//!
//! This is the rule of module `notified`, applied to replicas that once led. It is judged by the
//! oracles' own record of promises, not by the beliefs of the holder.

use leasehold_leases::{Ballot, Slot};

use super::promises::Promises;
use super::{Entry, Verdict, WorldSnapshot, ensure, id, knows, writes};
use leasehold_replica::message::LogId;

pub(super) const NAME: &str = "old leader";

/// Oracle that judges former leaders. A write must not be committed while a former leader can still
/// serve the written key and does not know the write.
#[derive(Debug)]
pub struct OldLeaderOracle {
    /// Last ballot in which each replica led.
    led: Vec<Option<Ballot>>,
    /// Number of pairs that were judged. Each pair is a write and a former leader that does not
    /// know this write.
    pub checks: u64,
}

impl OldLeaderOracle {
    pub(super) fn new(n: usize) -> OldLeaderOracle {
        OldLeaderOracle {
            led: vec![None; n],
            checks: 0,
        }
    }

    /// Records that `node` leads.
    pub(super) fn leads(&mut self, node: usize, ballot: Ballot) {
        self.led[node] = Some(ballot);
    }

    /// Judges all former leaders at the moment at which `value` is chosen.
    pub(super) fn chosen(
        &mut self,
        snapshot: &WorldSnapshot<'_>,
        promises: &Promises,
        Entry { log, slot, value }: Entry<'_>,
    ) -> Verdict {
        if log != LogId::Commands {
            return Ok(());
        }
        for (node, led) in self.led.iter().enumerate() {
            let (Some(ballot), Some(replica)) = (led, snapshot.replica(node)) else {
                continue;
            };
            if knows(replica, slot, value) {
                continue;
            }
            self.checks += 1;
            let now = snapshot.time(node);
            for key in writes(value) {
                let view = replica.configs().view(key);
                let holds = |config| view.holders(config).contains(id(node));
                let permit = promises.permit(node, Slot(slot.0 - 1), holds);
                ensure!(
                    NAME,
                    permit.is_none_or(|until| until <= now),
                    "{slot:?} writes {key:?} and is chosen, but {:?}, which led in {ballot:?}, can \
                     serve the key and has not heard of it",
                    id(node)
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::test_world::{
        BALLOT, LEASE, ReplicaState, TestWorld, ack, promise, puts, says,
    };

    /// Judges slot 6, which writes `a`. Before this, replica 0 has made a promise to replica 1,
    /// with slot 5 as barrier.
    fn chosen(led: bool, has: ReplicaState, later: bool) -> Verdict {
        let mut world = TestWorld::new([ReplicaState::default(), has, ReplicaState::default()]);
        let (mut oracle, mut promises) = (OldLeaderOracle::new(3), Promises::new(3));
        for (node, to, envelope) in [
            says((0, 1), (1, 1), promise(1, 5)),
            says((1, 1), (0, 1), ack(1)),
        ] {
            promises.sent(&world.snapshot(), node, to, &envelope)?;
        }
        if led {
            oracle.leads(1, BALLOT);
        }
        if later {
            world.later(LEASE);
        }
        let entry = Entry {
            log: LogId::Commands,
            slot: Slot(6),
            value: &puts(&["a"]),
        };
        oracle.chosen(&world.snapshot(), &promises, entry)
    }

    #[test]
    fn who_led_and_can_serve_has_every_write() {
        let knows = ReplicaState {
            accepted: vec![(6, puts(&["a"]))],
            ..ReplicaState::default()
        };
        assert!(chosen(true, ReplicaState::default(), false).is_err());
        assert!(chosen(true, knows, false).is_ok());
        assert!(
            chosen(true, ReplicaState::default(), true).is_ok(),
            "its lease has ended"
        );
        assert!(
            chosen(false, ReplicaState::default(), false).is_ok(),
            "it never led"
        );
        let nobody = ReplicaState {
            change: leasehold_leases::ConfigChange::default(),
            ..ReplicaState::default()
        };
        assert!(chosen(true, nobody, false).is_ok(), "it holds nothing");
    }
}
