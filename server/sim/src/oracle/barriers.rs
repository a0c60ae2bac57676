//! Barriers are carried and executed (oracle 4; §3.6, protocol §2 "Barrier"): a promise names a
//! slot at or above everything that its grantor had accepted when it was made. A replica that reads
//! a key has executed the barriers of enough grantors that cover it, by promises that they really
//! made.
//!
//! Accepted slots are taken from what goes to disk, promises from messages.

use std::collections::BTreeSet;

use leasehold_leases::{Ballot, ConfigId, LeaseMessage, ReplicaId, Slot, Time};

use super::promises::Promises;
use super::{Acting, Sight, Verdict, ensure, id, keys_read, records};
use crate::disk::Disk;
use leasehold_replica::action::{Action, Record};
use leasehold_replica::input::Again;
use leasehold_replica::message::{Envelope, LogId, Message};

pub(super) const NAME: &str = "barriers";

/// Maximum number of accepted slots of a replica that are remembered. Beyond it the oldest are
/// forgotten.
const ACCEPTED_MAX: usize = 128;

/// Slots that a replica has accepted, on its disk or on the way there.
#[derive(Clone, Debug, Default)]
struct Accepted {
    slots: BTreeSet<Slot>,
    /// Executed before the present step.
    executed: Slot,
    /// The oldest configuration whose contents it kept before the present step.
    kept: ConfigId,
}

impl Accepted {
    fn highest(&self) -> Slot {
        let top = self.slots.last().copied().unwrap_or_default();
        top.max(self.executed)
    }

    /// Forgets the oldest slots. What is executed and durable is never erased again, and so the
    /// highest of it stands for all.
    fn forget(&mut self, disk: &Disk) {
        if self.slots.len() > ACCEPTED_MAX
            && disk.holds(LogId::Commands, self.executed, Ballot::ZERO)
        {
            self.slots = self.slots.split_off(&self.executed);
        }
    }
}

/// Oracle that judges barriers: promises carry them, and readers have executed them.
#[derive(Debug)]
pub struct Barriers {
    accepted: Vec<Accepted>,
    /// Promises and reads looked at.
    pub checks: u64,
}

impl Barriers {
    pub(super) fn new(n: usize) -> Barriers {
        Barriers {
            accepted: vec![Accepted::default(); n],
            checks: 0,
        }
    }

    /// `node` has started: what did not reach its disk is not accepted any more.
    pub(super) fn started(&mut self, node: usize, executed: Slot, disk: &Disk) {
        let accepted = &mut self.accepted[node];
        let kept = |slot: &Slot| disk.holds(LogId::Commands, *slot, Ballot::ZERO);
        accepted.slots.retain(kept);
        accepted.executed = executed;
        accepted.kept = ConfigId(0);
    }

    /// Entries that die in this step are not accepted any more when something is
    /// promised in it; new ones need not have been, for that may come before them.
    pub(super) fn step_begins(&mut self, node: usize, actions: &[Action]) {
        for record in records(actions) {
            if let Record::Erased { log, slot } = record
                && *log == LogId::Commands
            {
                self.accepted[node].slots.remove(slot);
            }
        }
    }

    /// `node` is about to send a message.
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

    /// `node` reads under leases until `until`, by its own clock.
    pub(super) fn read(
        &mut self,
        Acting { sight, node, .. }: Acting<'_>,
        promises: &Promises,
        until: Time,
        again: &Again,
    ) -> Verdict {
        let Some(replica) = sight.replica(node) else {
            return Ok(());
        };
        let (executed, me) = (replica.executed(), id(node));
        let configs = replica.configs();
        // A later input of the same step may have made it forget configurations.
        let kept = self.accepted[node].kept;
        let forgotten = |config| (kept..configs.oldest_kept()).contains(&config);
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
            let holds = |config| match config == newest {
                true => held_now,
                false => held(config),
            };
            enough(node, key, promises.permit(node, executed, holds), until)?;
        }
        Ok(())
    }

    /// Ends the step of `node`: everything that it does in this step is done.
    pub(super) fn step_ends(&mut self, sight: &Sight<'_>, node: usize, actions: &[Action]) {
        let accepted = &mut self.accepted[node];
        let replica = sight.replica(node);
        accepted.executed = replica.map_or(Slot::ZERO, |r| r.executed());
        accepted.kept = replica.map_or(ConfigId(0), |r| r.configs().oldest_kept());
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
        accepted.forget(sight.node(node).disk());
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

    use super::super::bench::{
        BALLOT, Has, World, ack, everybody, key, lease_end, promise, puts, says,
    };
    use super::*;
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

    fn promises(barriers: &mut Barriers, highest: u64) -> Verdict {
        let (node, to, envelope) = says((0, 1), (1, 1), promise(1, highest));
        barriers.sent(node, to, &envelope)
    }

    #[test]
    fn a_promise_names_everything_accepted_before_it() {
        let world = World::new(Default::default());
        let mut barriers = Barriers::new(3);
        barriers.step_ends(&world.sight(), 0, &accepted(9));
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
        let world = World::new(Default::default());
        let mut barriers = Barriers::new(3);
        barriers.step_ends(&world.sight(), 0, &accepted(9));
        barriers.started(0, Slot(5), world.sight().node(0).disk());
        assert!(promises(&mut barriers, 5).is_ok());
    }

    /// Replica 1 answers a read.
    fn reads<'a>(sight: &'a Sight<'a>) -> Acting<'a> {
        Acting {
            sight,
            node: 1,
            rest: &[],
        }
    }

    /// Replica 1 reads, under a promise of replica 0 with this barrier.
    fn read(barrier: u64, again: &Again, longer: Duration, has: Has) -> Verdict {
        let world = World::new([Has::default(), has, Has::default()]);
        let until = lease_end(&world, 1) + longer;
        let taken = taken(&world, barrier);
        Barriers::new(3).read(reads(&world.sight()), &taken, until, again)
    }

    /// That promise is made, and taken.
    fn taken(world: &World, barrier: u64) -> Promises {
        let mut taken = Promises::new(3);
        for (node, to, envelope) in [
            says((0, 1), (1, 1), promise(1, barrier)),
            says((1, 1), (0, 1), ack(1)),
        ] {
            let verdict = taken.sent(&world.sight(), node, to, &envelope);
            verdict.expect("it was made");
        }
        taken
    }

    #[test]
    fn a_reader_has_executed_the_barrier() {
        let a = Again::Key(key("a"));
        let (zero, more) = (Duration::ZERO, Duration::from_nanos(1));
        assert!(read(5, &a, zero, Has::default()).is_ok());
        assert!(read(6, &a, zero, Has::default()).is_err());
        assert!(
            read(5, &a, more, Has::default()).is_err(),
            "longer than promised"
        );
    }

    #[test]
    fn what_a_reader_had_forgotten_gives_it_nothing() {
        let has = Has {
            more: 9,
            ..Has::default()
        };
        let mut world = World::new([Has::default(), has, Has::default()]);
        world.talk();
        let sight = world.sight();
        let configs = sight.replica(1).unwrap().configs();
        assert!(configs.oldest_kept() > ConfigId(1));
        let (taken, until) = (taken(&world, 5), lease_end(&world, 1));
        let a = Again::Key(key("a"));
        let mut barriers = Barriers::new(3);
        let within = barriers.read(reads(&sight), &taken, until, &a);
        assert!(within.is_ok(), "forgotten in the step of the read");
        barriers.step_ends(&sight, 1, &[]);
        assert!(barriers.read(reads(&sight), &taken, until, &a).is_err());
    }

    #[test]
    fn a_reader_holds_every_key() {
        let others = ReplicaSet([0, 2].map(|r| 1 << r).iter().sum());
        let lacks_b = || Has {
            change: leasehold_leases::ConfigChange {
                keys: vec![(others, vec![key("b")])],
                ..everybody()
            },
            ..Has::default()
        };
        let zero = Duration::ZERO;
        let both = Again::Command(Box::new(Command::from(Op::multi_get(vec![
            key("a"),
            key("b"),
        ]))));
        let scan = Again::Command(Box::new(Command::from(Op::scan("", "", 9))));
        assert!(read(5, &Again::Key(key("a")), zero, lacks_b()).is_ok());
        for again in [Again::Key(key("b")), both, scan] {
            assert!(read(5, &again, zero, Has::default()).is_ok(), "{again:?}");
            assert!(read(5, &again, zero, lacks_b()).is_err(), "{again:?}");
        }
    }
}
