//! An answer given at commit overtakes no command on several keys (protocol §1,
//! hazards 34 and 38): when a write is acknowledged, or a value read, before its
//! slot is executed, no slot before it may still be open and hold a command on
//! several keys. Or a client could know the later write, and a read elsewhere
//! would find a part of the earlier one missing.

use client::wire::command::Op;
use client::wire::outcome::Result as Answer;
use client::wire::{Outcome, Version};
use leases::{Ballot, Slot};

use super::{Chosen, Sight, Verdict, ensure, id};
use crate::replica::action::Action;
use crate::replica::message::{LogId, Value};

pub(super) const NAME: &str = "order";

/// See the module.
#[derive(Debug, Default)]
pub struct Order {
    /// Answers at commit looked at.
    pub checks: u64,
}

impl Order {
    /// `node` answers.
    pub(super) fn answers(
        &mut self,
        sight: &Sight<'_>,
        chosen: &Chosen,
        node: usize,
        action: &Action,
    ) -> Verdict {
        let (Action::Reply { outcome, .. } | Action::FencedReply { outcome, .. }) = action else {
            return Ok(());
        };
        let (Some(replica), Some(version)) = (sight.replica(node), version(outcome)) else {
            return Ok(());
        };
        let slot = Slot(version.slot);
        let executed = replica.executed();
        // Above what it has executed; else the answer is another replica's.
        let Some((ballot, _)) = replica
            .accepted(LogId::Commands, slot)
            .filter(|_| slot > executed)
        else {
            return Ok(());
        };
        self.checks += 1;
        let before = (executed.0 + 1..slot.0).map(Slot);
        let mut open = before.filter(|slot| chosen.value(LogId::Commands, *slot).is_none());
        let overtaken = open.find(|slot| holds_multi(sight, *slot, ballot));
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

/// Whether anybody has accepted, at `ballot`, a command on several keys in `slot`.
/// What only lower ballots have there can no longer be chosen, or is proposed again.
fn holds_multi(sight: &Sight<'_>, slot: Slot, ballot: Ballot) -> bool {
    let replicas = (0..sight.n()).filter_map(|node| sight.replica(node));
    let mut accepted = replicas.filter_map(|replica| replica.accepted(LogId::Commands, slot));
    accepted.any(|(at, value)| at == ballot && is_multi(value))
}

fn is_multi(value: &Value) -> bool {
    let mut commands = value.commands().iter().map(|proposed| &proposed.command);
    commands.any(|command| {
        let op = command.op.as_ref();
        op.is_some_and(|op| matches!(op, Op::MultiPut(_) | Op::MultiGet(_) | Op::Scan(_)))
    })
}
