//! One value per slot, and one state per prefix (oracle 9; Paxos, §2.1). All replicas commit and
//! execute the same value in each slot, and replicas that have executed up to the same slot are in
//! the same state.

use super::progress::Stage;
use super::{ChosenValues, Entry, Verdict, ensure, id};
use leasehold_replica::Replica;

pub(super) const NAME: &str = "agreement";

/// Number of slots between two comparisons of states. Comparisons are rare because a digest reads
/// the entire state.
const DIGEST_EVERY: u64 = 16;

/// Oracle that judges agreement: all replicas must have the same value in each slot, and the same
/// state after the same slots.
#[derive(Debug, Default)]
pub struct AgreementOracle {
    /// Digests of the state after every [`DIGEST_EVERY`]th slot. Each digest was computed at the
    /// first replica that executed the slot. The index is slot / [`DIGEST_EVERY`].
    digests: Vec<Option<u64>>,
    /// Number of slots and states compared.
    pub checks: u64,
}

impl AgreementOracle {
    /// Judges a value that `node` has committed or executed.
    pub(super) fn learns(
        &mut self,
        chosen: &ChosenValues,
        node: usize,
        stage: Stage,
        Entry { log, slot, value }: Entry<'_>,
    ) -> Verdict {
        self.checks += 1;
        let known = chosen.value(log, slot);
        ensure!(
            NAME,
            known.is_some_and(|known| known == value),
            "{:?} {} another value in {log:?} {slot:?}: {value:?}, not {known:?}",
            id(node),
            stage.name()
        );
        Ok(())
    }

    /// Judges the state of `replica` after a step. The state is compared only if the last executed
    /// slot is one of the slots after which digests are taken.
    pub(super) fn stepped(&mut self, node: usize, replica: &Replica) -> Verdict {
        let executed = replica.executed().0;
        if executed == 0 || !executed.is_multiple_of(DIGEST_EVERY) {
            return Ok(());
        }
        let index = (executed / DIGEST_EVERY) as usize;
        if self.digests.len() <= index {
            self.digests.resize(index + 1, None);
        }
        let digest = replica.digest();
        self.checks += 1;
        let known = *self.digests[index].get_or_insert(digest);
        ensure!(
            NAME,
            known == digest,
            "{:?} is in another state after slot {executed}: {digest:#x}, not {known:#x}",
            id(node)
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leasehold_leases::Slot;
    use leasehold_wire::Version;

    use super::*;
    use crate::oracle::test_world::{ReplicaState, TestWorld, key, puts};
    use leasehold_replica::action::StoredValue;
    use leasehold_replica::message::{LogId, Value};

    #[test]
    fn a_slot_has_one_value() {
        let (mut agreement, mut chosen) = (AgreementOracle::default(), ChosenValues::default());
        let (log, slot) = (LogId::Commands, Slot(6));
        chosen.committed(log, slot, &puts(&["a"]));
        for stage in [Stage::Committed, Stage::Executed] {
            let mut learns = |value| {
                let value = &value;
                agreement.learns(&chosen, 1, stage, Entry { log, slot, value })
            };
            assert!(learns(puts(&["a"])).is_ok());
            assert!(learns(puts(&["b"])).is_err());
            assert!(learns(Value::Noop).is_err());
        }
        assert_eq!(agreement.checks, 6);
    }

    #[test]
    fn who_has_executed_as_far_is_in_the_same_state() {
        let has = |executed, value: &'static str| {
            let version = Version { slot: 3, index: 0 };
            let stored = StoredValue {
                value: value.into(),
                version,
                created: version,
            };
            ReplicaState {
                executed,
                entries: vec![(key("a"), Some(stored))],
                ..ReplicaState::default()
            }
        };
        let judge = |other: ReplicaState| {
            let world = TestWorld::new([has(DIGEST_EVERY, "1"), other, ReplicaState::default()]);
            let mut agreement = AgreementOracle::default();
            let mut verdicts = (0..3).map(|node| {
                let replica = world.snapshot().replica(node).expect("it runs");
                agreement.stepped(node, replica)
            });
            verdicts.try_for_each(|verdict| verdict)
        };
        assert!(judge(has(DIGEST_EVERY, "1")).is_ok());
        assert!(judge(has(DIGEST_EVERY, "2")).is_err());
        assert!(judge(has(DIGEST_EVERY + 1, "2")).is_ok(), "further on");
        assert!(judge(has(2 * DIGEST_EVERY, "2")).is_ok());
    }
}
