//! Code with which clients handle answers.

use leasehold_histories::history::HistoryAction;
use leasehold_leases::Key;
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{ErrorCode, Outcome, Txn, TxnResult};
use rand::RngExt as _;

use super::choose::{key, version_of};
use super::operations::{Operation, Parts};
use super::record_shape::is_rest;
use super::txns::put_keys;
use super::{ClientWorkload, SILENT_AT_FIRST};
use crate::fault::FaultKind;
use crate::world::{ClientReply, World};
use leasehold_replica::unavailable;

/// Fraction of the refused merges that clients send again when the timeout has passed. For the
/// other refused merges, clients accept the refusal immediately.
const WAITS: f64 = 0.5;

impl ClientWorkload {
    /// Handles an answer that reached a client. If an operation was sent several times, only the
    /// first answer is used.
    pub fn replied(&mut self, reply: &ClientReply, world: &mut World) {
        let id = reply.to.request >> 8;
        if !self.hears(id, reply, world) {
            return;
        }
        let Some(operation) = self.end(id) else {
            return;
        };
        let verdict = world.oracles.liveness.answered(id, world.now_ns());
        world.judge(verdict);
        match &reply.outcome.result {
            Some(Answer::Error(_)) => self.refused(operation, &reply.outcome, world),
            _ => self.answered(&operation, reply, world),
        }
    }

    fn answered(&mut self, operation: &Operation, reply: &ClientReply, world: &mut World) {
        self.recorder.answered += 1;
        *self.recorder.paths.entry(reply.path).or_default() += 1;
        if let (Some(Op::Txn(txn)), Some(Answer::Txn(result))) =
            (&operation.command.op, &reply.outcome.result)
        {
            return self.answered_txn(operation, txn, result, world);
        }
        let mut parts = Parts::new();
        for (k, did) in &operation.ops {
            let Some(action) = self.chooser.answered(*k, *did, &reply.outcome) else {
                continue;
            };
            parts.push((*k, action));
            if is_rest(*k) {
                continue;
            }
            let freshness = &mut world.oracles.freshness;
            if let HistoryAction::Read { value } = action {
                let version = version_of(*k, &reply.outcome);
                let one = version.map_or_else(Outcome::missing, |v| Outcome::value(Key::new(), v));
                let token = operation.id << 8 | k;
                let verdict = freshness.read(token, &one, reply.path.as_str_name());
                world.judge(verdict);
                let client = &mut self.clients[operation.client];
                client.seen.insert(*k, (version, value));
            } else if !matches!(action, HistoryAction::Delete) {
                freshness.wrote(&key(*k), &reply.outcome);
            }
        }
        self.recorder.push(operation, parts, Some(world.now_ns()));
    }

    fn answered_txn(
        &mut self,
        operation: &Operation,
        txn: &Txn,
        result: &TxnResult,
        world: &mut World,
    ) {
        if let Some(version) = result.version {
            let freshness = &mut world.oracles.freshness;
            let written = Outcome::written(version);
            put_keys(txn, result).for_each(|key| freshness.wrote(key, &written));
        }
        let seen = &mut self.clients[operation.client].seen;
        let parts = self.chooser.answered_txn(txn, result, seen);
        self.recorder.push(operation, parts, Some(world.now_ns()));
    }

    /// Handles the refusal of a write. If the session of the write has ended, the client begins a
    /// new session.
    ///
    /// If several copies of the write were sent, one of them may still be executed. If only one
    /// copy was sent, the copy is never executed in these cases: the session has ended, or the
    /// replica reports the write as unsent.
    fn refused(&mut self, operation: Operation, outcome: &Outcome, world: &mut World) {
        let Some(Answer::Error(error)) = &outcome.result else {
            return;
        };
        if error.code() != ErrorCode::SessionExpired {
            if operation.sent > 1 || !unavailable::is_unsent(outcome) {
                return self.leave_open(&operation);
            }
            self.recorder.refused += 1;
            return;
        }
        world.note_fault(FaultKind::Expiry);
        let index = operation.client;
        if self.clients[index].session.issued(&operation.command) {
            self.begin_session(index, error.log_time_ms);
            self.fall_silent(index, SILENT_AT_FIRST, world);
        }
        if operation.sent > 1 {
            return self.leave_open(&operation);
        }
        self.recorder.refused += 1;
        if !operation.again {
            self.ask_again(operation, world);
        }
    }

    /// Sends a permanently refused write once more, under a new session.
    fn ask_again(&mut self, refused: Operation, world: &mut World) {
        let index = refused.client;
        let client = &mut self.clients[index];
        let (Some(op), Some(lane)) = (refused.command.op, client.idle.pop()) else {
            return;
        };
        let home = client.home;
        world.note_fault(FaultKind::ResentAfterRefusal);
        let id = self.ask(index, lane, op, refused.ops, world);
        if let Some(operation) = self.operations.get_mut(id) {
            operation.again = true;
        }
        self.send(&[id], home, world);
        self.wait_first(index, id, 1, world);
    }

    /// Whether this answer reaches the client and ends the client's wait. An answer ends the wait
    /// only if the client does not send the request again.
    fn hears(&mut self, id: u64, reply: &ClientReply, world: &mut World) -> bool {
        let Some(operation) = self.operations.get_mut(id) else {
            return false;
        };
        if self.clients[operation.client].connection != reply.to.connection {
            return false; // the answer is to a connection that has ended
        }
        if unavailable::is_sent_again(&reply.outcome) {
            return false; // the request is sent again, and the answer to that one is authoritative
        }
        note_unavailable(&reply.outcome, world);
        // Once all faults are healed, clients no longer retry refused merges: the number of retries
        // would have no bound.
        let may_wait =
            unavailable::is_too_many_merges(&reply.outcome) && world.now_ns() < self.end_ns;
        !(may_wait && self.chooser.rng.random::<f64>() < WAITS)
    }
}

/// Counts a temporary refusal of a write as a fault that fired. The reason for the refusal
/// determines the fault. Does nothing if `outcome` is not a temporary refusal.
fn note_unavailable(outcome: &Outcome, world: &mut World) {
    if unavailable::is_no_room(outcome) {
        world.note_fault(FaultKind::NoRoom);
    } else if unavailable::is_too_many_session_opens(outcome) {
        world.note_fault(FaultKind::SessionOpens);
    } else if unavailable::is_too_many_merges(outcome) {
        world.note_fault(FaultKind::LongMergeRefused);
    }
}
