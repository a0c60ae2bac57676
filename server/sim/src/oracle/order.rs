//! No answer at commit is given while an earlier command on several keys is open (protocol §1,
//! hazards 34 and 38). When a write is acknowledged, or a value read, before its slot is executed,
//! no earlier slot may be open and hold a command on several keys. Otherwise a client could know
//! the later write while a read at another replica returns only a part of the earlier command's
//! effects.
//!
//! This is judged by the version in the answer. The answer for a deleted key has no version.

use std::collections::BTreeSet;

use leasehold_leases::{Ballot, Slot};
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Outcome, Version};

use super::{ChosenValues, Verdict, WorldSnapshot, ensure, id};
use leasehold_replica::action::Action;
use leasehold_replica::message::{LogId, Message, Value};

pub(super) const NAME: &str = "order";

/// Oracle that judges answers at commit. When such an answer is given, no earlier command on
/// several keys may be open.
#[derive(Debug, Default)]
pub struct OrderOracle {
    /// Number of judged answers that were given at commit.
    pub checks: u64,
}

impl OrderOracle {
    /// Judges an answer of `node` to a client, or to a peer that forwarded a read.
    pub(super) fn answers(
        &mut self,
        snapshot: &WorldSnapshot<'_>,
        chosen: &ChosenValues,
        node: usize,
        action: &Action,
    ) -> Verdict {
        match action {
            Action::Reply { outcome, .. } | Action::FencedReply { outcome, .. } => {
                self.answer(snapshot, chosen, node, outcome)
            }
            Action::Send { envelope, .. } => match &envelope.message {
                Message::ReadAnswers(answers) => answers
                    .iter()
                    .filter_map(|answer| answer.outcome.as_ref())
                    .try_for_each(|(outcome, _)| self.answer(snapshot, chosen, node, outcome)),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn answer(
        &mut self,
        snapshot: &WorldSnapshot<'_>,
        chosen: &ChosenValues,
        node: usize,
        outcome: &Outcome,
    ) -> Verdict {
        let (Some(replica), Some(version)) = (snapshot.replica(node), version(outcome)) else {
            return Ok(());
        };
        let slot = Slot(version.slot);
        let executed = replica.executed();
        if slot <= executed {
            return Ok(());
        }
        let Some((ballot, _)) = replica.accepted(LogId::Commands, slot) else {
            return Ok(()); // another replica gave this answer
        };
        self.checks += 1;
        let mut open = chosen.open(LogId::Commands, executed.next(), slot);
        let overtaken = open.find(|slot| holds_multi(snapshot, *slot, ballot));
        ensure!(
            NAME,
            overtaken.is_none(),
            "{:?} answers {slot:?} at its commit, but {overtaken:?} before it is open and holds a \
             command on several keys",
            id(node)
        );
        Ok(())
    }
}

fn version(outcome: &Outcome) -> Option<Version> {
    match outcome.result.as_ref()? {
        Answer::Written(version) => Some(*version),
        Answer::Value(value) => value.version,
        _ => None,
    }
}

/// Whether any replica has accepted a command on several keys in `slot` at `ballot`. A command that
/// was accepted only at lower ballots does not count, because it can be chosen only if it is
/// proposed again.
fn holds_multi(snapshot: &WorldSnapshot<'_>, slot: Slot, ballot: Ballot) -> bool {
    let replicas = (0..snapshot.n()).filter_map(|node| snapshot.replica(node));
    let mut accepted = replicas.filter_map(|replica| replica.accepted(LogId::Commands, slot));
    accepted.any(|(at, value)| at == ballot && is_multi(value))
}

fn is_multi(value: &Value) -> bool {
    let mut commands = value.commands().iter().map(|proposed| &proposed.command);
    commands.any(|command| match &command.op {
        Some(Op::MultiPut(_) | Op::MultiGet(_) | Op::Scan(_)) => true,
        Some(Op::Txn(txn)) => {
            let keys: BTreeSet<_> = txn.keys().collect();
            keys.len() > 1
        }
        Some(Op::Get(_) | Op::Put(_) | Op::Delete(_) | Op::Cas(_) | Op::PutFields(_)) => false,
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use leasehold_leases::Time;
    use leasehold_wire::{KeyValue, Path};

    use super::*;
    use crate::oracle::test_world::{BALLOT, ReplicaState, TestWorld, batch, key, puts, says};
    use leasehold_replica::action::ClientHandle;
    use leasehold_replica::input::{FencedRead, ReadFrom};
    use leasehold_replica::message::{ReadAnswer, RequestId};

    fn has(accepted: Vec<(u64, Value)>) -> ReplicaState {
        ReplicaState {
            accepted,
            ..ReplicaState::default()
        }
    }

    /// Judges replica 0's answer about slot 7, while only replica 1 has accepted slot 6.
    fn judge(
        at_zero: ReplicaState,
        sixth: ReplicaState,
        chosen: &[u64],
        action: &Action,
    ) -> (bool, u64) {
        let world = TestWorld::new([at_zero, sixth, ReplicaState::default()]);
        let mut known = ChosenValues::default();
        for slot in chosen {
            known.committed(LogId::Commands, Slot(*slot), &puts(&["b"]));
        }
        let mut order = OrderOracle::default();
        let verdict = order.answers(&world.snapshot(), &known, 0, action);
        (verdict.is_ok(), order.checks)
    }

    fn seventh() -> ReplicaState {
        has(vec![(7, puts(&["b"]))])
    }

    fn sixth(op: Op) -> ReplicaState {
        has(vec![(6, batch([op]))])
    }

    fn both() -> Op {
        let value = |name| KeyValue {
            key: key(name),
            value: "v".into(),
        };
        Op::multi_put(vec![value("a"), value("b")])
    }

    fn at(slot: u64) -> Version {
        Version { slot, index: 0 }
    }

    const CLIENT: ClientHandle = ClientHandle {
        connection: 1,
        request: 1,
    };

    fn reply(outcome: Outcome) -> Action {
        Action::Reply {
            to: CLIENT,
            path: Path::Log,
            outcome,
        }
    }

    fn written() -> Action {
        reply(Outcome::written(at(7)))
    }

    #[test]
    fn no_answer_overtakes_a_command_on_several_keys() {
        let ops = || {
            let read = Op::multi_get(vec![key("a"), key("b")]);
            [both(), read, Op::scan("", "", 9)]
        };
        for op in ops() {
            let overtaken = judge(seventh(), sixth(op), &[7], &written());
            assert_eq!(overtaken, (false, 1));
        }
        for op in ops() {
            let closed = judge(seventh(), sixth(op), &[6, 7], &written());
            assert_eq!(closed, (true, 1));
        }
        let single = judge(seventh(), sixth(Op::put("b", "v")), &[7], &written());
        assert_eq!(single, (true, 1));
    }

    #[test]
    fn nor_does_a_value_that_is_read_for_whomever() {
        let value = || Outcome::value("v", at(7));
        let fenced = Action::FencedReply {
            to: ReadFrom::Client(CLIENT),
            path: Path::Held,
            outcome: value(),
            until: Time::MAX,
            again: FencedRead::Key(key("b")),
        };
        let answer = ReadAnswer {
            request: RequestId(1),
            outcome: Some((value(), Path::ReadIndex)),
        };
        let (_, to, envelope) = says((0, 1), (2, 1), Message::ReadAnswers(vec![answer]));
        for action in [reply(value()), fenced, Action::Send { to, envelope }] {
            assert_eq!(judge(seventh(), sixth(both()), &[7], &action), (false, 1));
            assert_eq!(judge(seventh(), sixth(both()), &[6, 7], &action), (true, 1));
        }
    }

    #[test]
    fn what_is_executed_comes_after_all_before_it() {
        let executed = ReplicaState {
            executed: 7,
            ..ReplicaState::default()
        };
        assert_eq!(judge(executed, sixth(both()), &[7], &written()), (true, 0));
    }

    #[test]
    fn what_lower_ballots_have_there_overtakes_nobody() {
        let mut ballot = BALLOT;
        ballot.round += 1;
        let newer = ReplicaState {
            ballot,
            ..seventh()
        };
        assert_eq!(judge(newer, sixth(both()), &[7], &written()), (true, 1));
    }
}
