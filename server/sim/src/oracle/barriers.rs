//! Barriers are carried and executed (oracle 4; §3.6, protocol §2 "Barrier"). Each promise names a
//! slot as its barrier. The barrier is at or above every slot that the grantor had accepted when it
//! made the promise. If a replica reads a key under leases, enough grantors must have covered the
//! key by promises. These promises must really have been made, and the replica must have executed
//! the barriers of these promises.
//!
//! Accepted slots are taken from the records that go to disk, and promises from messages.

use std::collections::BTreeSet;

use leasehold_leases::{Ballot, ConfigId, LeaseMessage, ReplicaId, Slot, Time};

use super::promises::Promises;
use super::{StepContext, Verdict, WorldSnapshot, ensure, id, keys_read, records};
use crate::disk::Disk;
use leasehold_replica::action::{Action, Record};
use leasehold_replica::input::FencedRead;
use leasehold_replica::message::{Envelope, LogId, Message};

pub(super) const NAME: &str = "barriers";

/// Number of accepted slots that are remembered for a replica. If there are more, the oldest are
/// forgotten.
const ACCEPTED_MAX: usize = 128;

/// Slots that a replica has accepted. The accepted entries are on its disk or are being written.
#[derive(Clone, Debug, Default)]
struct AcceptedSlots {
    slots: BTreeSet<Slot>,
    /// Last slot executed before the present step.
    executed: Slot,
    /// Oldest configuration that the replica still stored before the present step.
    oldest_config: ConfigId,
}

impl AcceptedSlots {
    fn highest(&self) -> Slot {
        let top = self.slots.last().copied().unwrap_or_default();
        top.max(self.executed)
    }

    /// Forgets the oldest slots if there are too many. An executed slot with a durable entry is
    /// never erased. So only the highest of these slots is needed, and the slots above it.
    fn forget(&mut self, disk: &Disk) {
        if self.slots.len() > ACCEPTED_MAX
            && disk.holds(LogId::Commands, self.executed, Ballot::ZERO)
        {
            self.slots = self.slots.split_off(&self.executed);
        }
    }
}

/// Oracle that judges barriers. The barrier of each promise must be high enough. Before a replica
/// reads, it must have executed the barriers of the promises on which the read relies.
#[derive(Debug)]
pub struct BarrierOracle {
    accepted: Vec<AcceptedSlots>,
    /// Number of promises and reads judged.
    pub checks: u64,
}

impl BarrierOracle {
    pub(super) fn new(n: usize) -> BarrierOracle {
        BarrierOracle {
            accepted: vec![AcceptedSlots::default(); n],
            checks: 0,
        }
    }

    /// Handles a start of `node`. Slots that are not on its disk are no longer treated as accepted.
    pub(super) fn started(&mut self, node: usize, executed: Slot, disk: &Disk) {
        let accepted = &mut self.accepted[node];
        let kept = |slot: &Slot| disk.holds(LogId::Commands, *slot, Ballot::ZERO);
        accepted.slots.retain(kept);
        accepted.executed = executed;
        accepted.oldest_config = ConfigId(0);
    }

    /// Forgets the entries that this step erases, because a promise of the same step need not cover
    /// them. The entries that this step accepts are added at the end of the step, because a promise
    /// of this step may have been made before the entries were accepted.
    pub(super) fn step_begins(&mut self, node: usize, actions: &[Action]) {
        for record in records(actions) {
            if let Record::Erased { log, slot } = record
                && *log == LogId::Commands
            {
                self.accepted[node].slots.remove(slot);
            }
        }
    }

    /// Judges a message that `node` is about to send.
    pub(super) fn sent(&mut self, node: usize, to: ReplicaId, envelope: &Envelope) -> Verdict {
        let Message::Lease(LeaseMessage::Promise(promise)) = &envelope.message else {
            return Ok(());
        };
        self.checks += 1;
        let highest = self.accepted[node].highest();
        ensure!(
            NAME,
            promise.highest_accepted >= highest,
            "{:?} promises {to:?} with barrier {:?}, but has accepted {highest:?}",
            id(node),
            promise.highest_accepted
        );
        Ok(())
    }

    /// Judges a read of `node` under leases that last until `until` by the clock of `node`.
    pub(super) fn read(
        &mut self,
        StepContext { snapshot, node, .. }: StepContext<'_>,
        promises: &Promises,
        until: Time,
        again: &FencedRead,
    ) -> Verdict {
        let Some(replica) = snapshot.replica(node) else {
            return Ok(());
        };
        let (executed, me) = (replica.executed(), id(node));
        let configs = replica.configs();
        // A later input of the same step may have made the replica forget configurations.
        let oldest = self.accepted[node].oldest_config;
        let forgotten = |config| (oldest..configs.oldest_kept()).contains(&config);
        let keys = keys_read(again);
        self.checks += 1;
        if keys.is_empty() {
            let every = |config| forgotten(config) || configs.universal(config).contains(me);
            let permit = promises.permit(node, executed, every);
            return enough(node, "every key", permit, until);
        }
        for key in keys {
            let view = configs.view(key);
            let held = |config| forgotten(config) || view.holders(config).contains(me);
            let (newest, held_now) = (configs.newest(), held(configs.newest()));
            let holds = |config| {
                if config == newest {
                    held_now
                } else {
                    held(config)
                }
            };
            enough(node, key, promises.permit(node, executed, holds), until)?;
        }
        Ok(())
    }

    /// Ends the step of `node`, after the last action of the step.
    pub(super) fn step_ends(
        &mut self,
        snapshot: &WorldSnapshot<'_>,
        node: usize,
        actions: &[Action],
    ) {
        let accepted = &mut self.accepted[node];
        let replica = snapshot.replica(node);
        accepted.executed = replica.map_or(Slot::ZERO, |r| r.executed());
        accepted.oldest_config = replica.map_or(ConfigId(0), |r| r.configs().oldest_kept());
        for record in records(actions) {
            match record {
                Record::Accepted { log, slot, .. } if *log == LogId::Commands => {
                    accepted.slots.insert(*slot);
                }
                Record::Erased { log, slot } if *log == LogId::Commands => {
                    accepted.slots.remove(slot);
                }
                _ => {}
            }
        }
        accepted.forget(snapshot.node(node).disk());
    }
}

fn enough(node: usize, what: impl std::fmt::Debug, permit: Option<Time>, until: Time) -> Verdict {
    ensure!(
        NAME,
        permit.is_some_and(|permit| until <= permit),
        "{:?} reads {what:?} until {until:?}, but enough grantors whose barriers it has executed \
         cover that until {permit:?} only",
        id(node)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_leases::ReplicaSet;
    use leasehold_wire::Command;
    use leasehold_wire::command::Op;

    use super::*;
    use crate::oracle::test_world::{
        BALLOT, ReplicaState, TestWorld, ack, everybody, key, lease_end, promise, puts, says,
    };
    use leasehold_replica::action::Sequence;

    fn persists(record: Record) -> Vec<Action> {
        vec![Action::Persist {
            sequence: Sequence(1),
            records: vec![record],
        }]
    }

    fn accepted(slot: u64) -> Vec<Action> {
        persists(Record::Accepted {
            log: LogId::Commands,
            slot: Slot(slot),
            ballot: BALLOT,
            value: puts(&["a"]),
        })
    }

    fn promises(barriers: &mut BarrierOracle, highest: u64) -> Verdict {
        let (node, to, envelope) = says((0, 1), (1, 1), promise(1, highest));
        barriers.sent(node, to, &envelope)
    }

    #[test]
    fn a_promise_names_everything_accepted_before_it() {
        let world = TestWorld::new(Default::default());
        let mut barriers = BarrierOracle::new(3);
        barriers.step_ends(&world.snapshot(), 0, &accepted(9));
        assert!(promises(&mut barriers, 8).is_err());
        assert!(promises(&mut barriers, 9).is_ok());
        let erased = persists(Record::Erased {
            log: LogId::Commands,
            slot: Slot(9),
        });
        barriers.step_begins(0, &erased);
        assert!(
            promises(&mut barriers, 4).is_err(),
            "five slots are executed"
        );
        assert!(promises(&mut barriers, 5).is_ok());
        assert_eq!(barriers.checks, 4);
    }

    #[test]
    fn what_never_reached_the_disk_is_not_accepted_after_a_crash() {
        let world = TestWorld::new(Default::default());
        let mut barriers = BarrierOracle::new(3);
        barriers.step_ends(&world.snapshot(), 0, &accepted(9));
        barriers.started(0, Slot(5), world.snapshot().node(0).disk());
        assert!(promises(&mut barriers, 5).is_ok());
    }

    /// Returns the context in which replica 1 answers a read.
    fn reads<'a>(snapshot: &'a WorldSnapshot<'a>) -> StepContext<'a> {
        StepContext {
            snapshot,
            node: 1,
            rest: &[],
        }
    }

    /// Judges a read at replica 1 under a promise of replica 0 with this barrier.
    fn read(barrier: u64, again: &FencedRead, longer: Duration, has: ReplicaState) -> Verdict {
        let world = TestWorld::new([ReplicaState::default(), has, ReplicaState::default()]);
        let until = lease_end(&world, 1) + longer;
        let taken = taken(&world, barrier);
        BarrierOracle::new(3).read(reads(&world.snapshot()), &taken, until, again)
    }

    /// Returns a record with one promise. Replica 0 made the promise with this barrier, and replica
    /// 1 has taken the promise.
    fn taken(world: &TestWorld, barrier: u64) -> Promises {
        let mut taken = Promises::new(3);
        for (node, to, envelope) in [
            says((0, 1), (1, 1), promise(1, barrier)),
            says((1, 1), (0, 1), ack(1)),
        ] {
            let verdict = taken.sent(&world.snapshot(), node, to, &envelope);
            verdict.expect("it was made");
        }
        taken
    }

    #[test]
    fn a_reader_has_executed_the_barrier() {
        let a = FencedRead::Key(key("a"));
        let (zero, more) = (Duration::ZERO, Duration::from_nanos(1));
        assert!(read(5, &a, zero, ReplicaState::default()).is_ok());
        assert!(read(6, &a, zero, ReplicaState::default()).is_err());
        assert!(
            read(5, &a, more, ReplicaState::default()).is_err(),
            "longer than promised"
        );
    }

    #[test]
    fn what_a_reader_had_forgotten_gives_it_nothing() {
        let has = ReplicaState {
            more: 9,
            ..ReplicaState::default()
        };
        let mut world = TestWorld::new([ReplicaState::default(), has, ReplicaState::default()]);
        world.talk();
        let snapshot = world.snapshot();
        let configs = snapshot.replica(1).unwrap().configs();
        assert!(configs.oldest_kept() > ConfigId(1));
        let (taken, until) = (taken(&world, 5), lease_end(&world, 1));
        let a = FencedRead::Key(key("a"));
        let mut barriers = BarrierOracle::new(3);
        let within = barriers.read(reads(&snapshot), &taken, until, &a);
        assert!(within.is_ok(), "forgotten in the step of the read");
        barriers.step_ends(&snapshot, 1, &[]);
        assert!(barriers.read(reads(&snapshot), &taken, until, &a).is_err());
    }

    #[test]
    fn a_reader_holds_every_key() {
        let others = ReplicaSet([0, 2].map(|r| 1 << r).iter().sum());
        let lacks_b = || ReplicaState {
            change: leasehold_leases::ConfigChange {
                keys: vec![(others, vec![key("b")])],
                ..everybody()
            },
            ..ReplicaState::default()
        };
        let zero = Duration::ZERO;
        let both = FencedRead::Command(Box::new(Command::from(Op::multi_get(vec![
            key("a"),
            key("b"),
        ]))));
        let scan = FencedRead::Command(Box::new(Command::from(Op::scan("", "", 9))));
        assert!(read(5, &FencedRead::Key(key("a")), zero, lacks_b()).is_ok());
        for again in [FencedRead::Key(key("b")), both, scan] {
            assert!(
                read(5, &again, zero, ReplicaState::default()).is_ok(),
                "{again:?}"
            );
            assert!(read(5, &again, zero, lacks_b()).is_err(), "{again:?}");
        }
    }
}
