//! Refused commands are never executed (hazard 77; protocol §1 "Sessions"). A client that is
//! notified that its session refuses a write may send the write again under a new session.
//!
//! After a replica has answered with a refusal, no copy of the command takes effect in a later
//! slot, at any replica. Later slots are those above the slots that the replica had executed when
//! it answered. If only one copy of the command had reached a replica, no copy takes effect in any
//! slot, because no other copy could have been executed before.
//!
//! Effects are detected in the data that replicas store and in their answers. The state machine of
//! the oracles is not used for this, because it could contain the same mistake as the protocol.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use leasehold_leases::Slot;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Command, ErrorCode, Outcome, TxnResult, Version};

use super::{Verdict, WriteId, ensure, id};
use leasehold_replica::Replica;
use leasehold_replica::action::ClientHandle;
use leasehold_replica::message::Value;

pub(super) const NAME: &str = "refusals";

/// Oracle that judges refusals: a refused command must never be executed.
#[derive(Debug, Default)]
pub struct RefusalOracle {
    /// Unanswered requests that each replica has received.
    pending: Vec<HashMap<ClientHandle, WriteId, FixedState>>,
    /// Number of times that a copy of each write has reached a replica.
    reached: HashMap<WriteId, u32, FixedState>,
    /// Lowest slot in which each refused write must not take effect. The write must not take effect
    /// in later slots either.
    refused: HashMap<WriteId, Slot, FixedState>,
    /// Last slot in which each write was seen to take effect.
    effects: HashMap<WriteId, Slot, FixedState>,
    /// Number of refusals judged.
    pub checks: u64,
}

impl RefusalOracle {
    pub(super) fn new(n: usize) -> RefusalOracle {
        RefusalOracle {
            pending: vec![HashMap::default(); n],
            ..RefusalOracle::default()
        }
    }

    /// Records a client's command that has reached `node`.
    pub(super) fn requested(&mut self, node: usize, from: ClientHandle, command: &Command) {
        if command.is_write() {
            let identity = identity(command);
            self.pending[node].insert(from, identity);
            *self.reached.entry(identity).or_default() += 1;
        }
    }

    /// Handles the end of `node`, which will not answer its pending requests.
    pub(super) fn crashed(&mut self, node: usize) {
        self.pending[node].clear();
    }

    /// Judges the effects of a slot that `replica` has executed.
    pub(super) fn executed(&mut self, replica: &Replica, slot: Slot, value: &Value) -> Verdict {
        for (index, proposed) in value.commands().iter().enumerate() {
            let version = Version {
                slot: slot.0,
                index: index as u32,
            };
            let command = &proposed.command;
            let stores = |key| replica.version_of(key) == Some(version);
            if command.is_write() && command.keys().any(|key| stores(key)) {
                self.takes_effect(identity(command), slot)?;
            }
        }
        Ok(())
    }

    /// Judges an answer of `node` to a client, with regard to the slots that `node` has executed so
    /// far.
    pub(super) fn replied(
        &mut self,
        node: usize,
        executed: Slot,
        to: ClientHandle,
        outcome: &Outcome,
    ) -> Verdict {
        let Some(identity) = self.pending[node].remove(&to) else {
            return Ok(());
        };
        match &outcome.result {
            Some(
                Answer::Written(version)
                | Answer::Txn(TxnResult {
                    version: Some(version),
                    ..
                }),
            ) => self.takes_effect(identity, Slot(version.slot)),
            Some(Answer::Error(error)) if error.code() == ErrorCode::SessionExpired => {
                self.refuses(node, executed, identity)
            }
            _ => Ok(()),
        }
    }

    fn refuses(&mut self, node: usize, executed: Slot, identity: WriteId) -> Verdict {
        self.checks += 1;
        let once = self.reached.get(&identity) == Some(&1);
        let first = if once { Slot(1) } else { executed.next() };
        let before = self.refused.entry(identity).or_insert(first);
        *before = first.min(*before);
        let (first, effect) = (*before, self.effects.get(&identity));
        ensure!(
            NAME,
            effect.is_none_or(|slot| *slot < first),
            "{:?} refuses {identity:?}, but it took effect in {effect:?}",
            id(node)
        );
        Ok(())
    }

    fn takes_effect(&mut self, identity: WriteId, slot: Slot) -> Verdict {
        let last = self.effects.entry(identity).or_insert(slot);
        *last = slot.max(*last);
        let refused = self.refused.get(&identity);
        ensure!(
            NAME,
            refused.is_none_or(|first| slot < *first),
            "{identity:?} takes effect in {slot:?}, but its client was told that it was refused \
             for good"
        );
        Ok(())
    }
}

fn identity(command: &Command) -> WriteId {
    (command.client, command.sequence)
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::oracle::test_world::{ReplicaState, TestWorld, key, puts};
    use leasehold_replica::action::StoredValue;
    use leasehold_wire::command::Op;

    /// Returns the command that [`puts`] sends.
    fn put() -> Command {
        Command::session(1, 1, 1, Op::put("k", "v"))
    }

    fn handle(request: u64) -> ClientHandle {
        ClientHandle {
            connection: 1,
            request,
        }
    }

    fn refusal() -> Outcome {
        Outcome::error(ErrorCode::SessionExpired, "refused")
    }

    fn written(slot: u64) -> Outcome {
        Outcome::written(Version { slot, index: 0 })
    }

    /// Judges answers to one write. Each answer comes from a different replica. The write had
    /// reached `reached` replicas before the first answer. Each replica that answers has executed
    /// five slots.
    fn judge(reached: usize, answers: &[Outcome]) -> bool {
        let mut refusals = RefusalOracle::new(3);
        (0..reached).for_each(|node| refusals.requested(node, handle(node as u64), &put()));
        let mut answers = answers.iter().enumerate();
        answers.all(|(node, outcome)| {
            let verdict = refusals.replied(node, Slot(5), handle(node as u64), outcome);
            verdict.is_ok()
        })
    }

    #[test]
    fn a_write_that_was_sent_once_and_is_refused_takes_effect_nowhere() {
        let mut refusals = RefusalOracle::new(3);
        refusals.requested(0, handle(1), &put());
        let verdict = refusals.replied(0, Slot(5), handle(1), &refusal());
        assert_eq!((verdict, refusals.checks), (Ok(()), 1));
        refusals.requested(1, handle(2), &put());
        let earlier = refusals.replied(1, Slot(5), handle(2), &written(3));
        assert!(earlier.is_err());
    }

    #[test]
    fn a_write_that_was_sent_again_may_have_taken_effect_before_it_was_refused() {
        assert!(judge(2, &[written(3), refusal()]));
        assert!(judge(2, &[refusal(), written(3)]));
        assert!(judge(2, &[refusal(), written(5)]));
        assert!(!judge(2, &[refusal(), written(6)]));
        assert!(!judge(2, &[written(6), refusal()]));
        assert!(judge(2, &[refusal(), refusal()]));
    }

    #[test]
    fn an_answer_to_nobody_says_nothing() {
        assert!(judge(0, &[refusal(), written(6)]));
        let mut refusals = RefusalOracle::new(3);
        refusals.requested(0, handle(1), &put());
        refusals.crashed(0);
        let verdict = refusals.replied(0, Slot(5), handle(1), &refusal());
        assert_eq!((verdict, refusals.checks), (Ok(()), 0));
    }

    #[test]
    fn what_a_replica_stores_has_taken_effect() {
        let stored = |version| StoredValue {
            value: "v".into(),
            version,
            created: version,
        };
        for (slot, index, good) in [(5, 0, false), (5, 1, true), (4, 0, true)] {
            let has = || ReplicaState {
                entries: vec![(key("k"), Some(stored(Version { slot, index })))],
                ..ReplicaState::default()
            };
            let world = TestWorld::new([has(), has(), has()]);
            let replica = world.nodes[0].replica().expect("it runs");
            assert_eq!(replica.executed(), Slot(5));
            let mut refusals = RefusalOracle::new(3);
            refusals.requested(0, handle(1), &put());
            let verdict = refusals.replied(0, Slot(5), handle(1), &refusal());
            assert_eq!(verdict, Ok(()));
            let verdict = refusals.executed(replica, Slot(5), &puts(&["k"]));
            assert_eq!(verdict.is_ok(), good, "({slot}, {index}): {verdict:?}");
        }
    }
}
