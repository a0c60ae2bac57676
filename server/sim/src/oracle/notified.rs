//! Every reader is notified (oracle 2; §3.2, §3.6). When a write of a key is chosen, each replica
//! that could serve the key from its leases is in one of two states. It has the write pending or
//! executed, or it must first execute a barrier at or above the write. When a replica serves a key,
//! the permit of its read must not have expired, and the replica must have every chosen write of
//! the key.

use leasehold_leases::{Key, Slot};
use leasehold_wire::{Command, Path, ReadOp};

use super::{ChosenValues, Entry, FencedReply, Verdict, WorldSnapshot, ensure, id, knows, writes};
use leasehold_replica::Replica;
use leasehold_replica::input::FencedRead;
use leasehold_replica::message::{LogId, Value};

pub(super) const NAME: &str = "notified";

/// Oracle that judges notifications: every replica that may read a key must be notified of all
/// writes of this key.
#[derive(Debug, Default)]
pub struct NotificationOracle {
    /// Number of pairs of a write and a replica that were judged, plus the number of reads that
    /// were judged.
    pub checks: u64,
}

impl NotificationOracle {
    /// Judges all replicas at the moment at which `value` is chosen.
    pub(super) fn chosen(
        &mut self,
        snapshot: &WorldSnapshot<'_>,
        Entry { log, slot, value }: Entry<'_>,
    ) -> Verdict {
        if log != LogId::Commands {
            return Ok(());
        }
        for node in 0..snapshot.n() {
            let Some(replica) = snapshot.replica(node) else {
                continue;
            };
            if knows(replica, slot, value) {
                continue;
            }
            for key in writes(value) {
                self.checks += 1;
                ensure!(
                    NAME,
                    !could_serve(snapshot, node, replica, key, slot),
                    "{slot:?} writes {key:?} and is chosen, but {:?} can serve the key and has \
                     not heard of it",
                    id(node)
                );
            }
        }
        Ok(())
    }

    /// Judges a read that `node` answers under its leases.
    pub(super) fn read(
        &mut self,
        snapshot: &WorldSnapshot<'_>,
        chosen: &ChosenValues,
        node: usize,
        read: &FencedReply,
    ) -> Verdict {
        let Some(replica) = snapshot.replica(node) else {
            return Ok(());
        };
        self.checks += 1;
        let now = snapshot.time(node);
        ensure!(
            NAME,
            now < read.until,
            "{:?} serves {:?} at {now:?}, under a permit until {:?}",
            id(node),
            read.again,
            read.until
        );
        let executed = replica.executed();
        let missing = missing(replica, chosen, read);
        ensure!(
            NAME,
            missing.is_none(),
            "{:?} serves {:?} ({:?}) without {missing:?}, which writes to it and is chosen; it \
             has executed {executed:?}",
            id(node),
            read.again,
            read.path
        );
        Ok(())
    }
}

/// Returns the slot of a chosen write that the answer may lack. The write changes a key of the
/// read.
fn missing(replica: &Replica, chosen: &ChosenValues, read: &FencedReply) -> Option<Slot> {
    let executed = replica.executed();
    match &read.again {
        FencedRead::Key(key) => chosen.newest(key).filter(|newest| {
            // A read that was not held back found no pending write of the key.
            let pending = read.path != Path::Local;
            let value = chosen.value(LogId::Commands, *newest);
            let known = pending && value.is_some_and(|value| knows(replica, *newest, value));
            *newest > executed && !known
        }),
        // Several keys are read only while no write is pending on any of them.
        FencedRead::Command(command) => {
            let beyond = chosen.beyond(LogId::Commands, executed);
            let touches = |(_, value): &(Slot, &Value)| writes_any(value, command);
            beyond.into_iter().find(touches).map(|(slot, _)| slot)
        }
    }
}

/// Whether `value` writes a key that `command` reads.
fn writes_any(value: &Value, command: &Command) -> bool {
    let mut keys = writes(value);
    match command.as_read() {
        Some(ReadOp::Scan(scan)) => {
            keys.any(|key| *key >= scan.from && (scan.to.is_empty() || *key < scan.to))
        }
        Some(ReadOp::Get(_) | ReadOp::MultiGet(_)) | None => {
            keys.any(|key| command.keys().any(|read| read == key))
        }
    }
}

/// Whether `node` could serve `key` although it has not executed `slot`. This is possible if enough
/// grantors cover the key, and their barriers are below the slot.
fn could_serve(
    snapshot: &WorldSnapshot<'_>,
    node: usize,
    replica: &Replica,
    key: &Key,
    slot: Slot,
) -> bool {
    let now = snapshot.time(node);
    let covers = |grantor: usize| {
        let coverage = replica.covered_by(now, id(grantor), key);
        coverage.is_some_and(|(until, barrier)| now < until && barrier < slot)
    };
    let others = (0..snapshot.n()).filter(|other| *other != node);
    others.filter(|other| covers(*other)).count() >= snapshot.n() / 2
}

#[cfg(test)]
mod tests {
    use leasehold_leases::Time;
    use leasehold_wire::Outcome;
    use leasehold_wire::command::Op;

    use super::*;
    use crate::oracle::test_world::{ReplicaState, TestWorld, key, puts};
    use leasehold_replica::action::ClientHandle;
    use leasehold_replica::input::ReadFrom;

    /// Judges a read at replica 1. Before the read, slot 6 was chosen, which writes `b`.
    fn read(has: ReplicaState, path: Path, again: FencedRead) -> Verdict {
        let world = TestWorld::new([ReplicaState::default(), has, ReplicaState::default()]);
        let mut chosen = ChosenValues::default();
        chosen.committed(LogId::Commands, Slot(6), &puts(&["b"]));
        let to = ClientHandle {
            connection: 1,
            request: 1,
        };
        let read = FencedReply {
            to: ReadFrom::Client(to),
            path,
            outcome: Outcome::missing(),
            until: Time::MAX,
            again,
        };
        NotificationOracle::default().read(&world.snapshot(), &chosen, 1, &read)
    }

    fn has(executed: u64, pending: bool) -> ReplicaState {
        let accepted = (6, puts(&["b"]));
        ReplicaState {
            executed,
            accepted: pending.then_some(accepted).into_iter().collect(),
            ..ReplicaState::default()
        }
    }

    #[test]
    fn a_read_has_every_chosen_write_of_its_key() {
        let b = || FencedRead::Key(key("b"));
        assert!(read(has(5, false), Path::Held, b()).is_err());
        assert!(read(has(5, true), Path::Held, b()).is_ok());
        assert!(
            read(has(5, true), Path::Local, b()).is_err(),
            "it is pending"
        );
        assert!(read(has(6, false), Path::Local, b()).is_ok());
        assert!(read(has(5, false), Path::Local, FencedRead::Key(key("a"))).is_ok());
    }

    #[test]
    fn a_read_of_several_keys_has_executed_every_chosen_write_of_any() {
        let ask = |op: Op| FencedRead::Command(Box::new(Command::from(op)));
        let touch = || {
            let both = Op::multi_get(vec![key("a"), key("b")]);
            [both, Op::scan("", "", 9), Op::scan("b", "c", 9)].map(ask)
        };
        for again in touch() {
            assert!(
                read(has(5, true), Path::Local, again.clone()).is_err(),
                "{again:?}"
            );
            assert!(read(has(6, true), Path::Local, again).is_ok());
        }
        for op in [
            Op::multi_get(vec![key("a")]),
            Op::scan("", "b", 9),
            Op::scan("c", "", 9),
        ] {
            assert!(read(has(5, true), Path::Local, ask(op)).is_ok());
        }
    }
}
