//! Steps by which a leader proposes values in the log, and sends the messages that keep it the
//! leader.

use std::sync::Arc;

use leasehold_leases::{Ballot, ReplicaId, ReplicaSet};
use leasehold_wire::{Command, Outcome};

use super::Parts;
use crate::consensus::{CommandClass, SlotEntry};
use crate::message::{Batch, LogId, Message, Proposal, RequestId, Value};
use crate::parts::{chunks, outcome_size};
use crate::step::Step;

impl Parts {
    /// Handles commands that an origin has sent to the leader. The origin may be this replica. A
    /// replica that does not lead ignores the commands, and the origin sends them again to the
    /// leader.
    pub(super) fn on_forward(
        &mut self,
        step: &mut Step<'_>,
        origin: ReplicaId,
        commands: Vec<(RequestId, Command)>,
    ) {
        if !self.consensus.leads() {
            return;
        }
        let classes = self.classes(step, &commands);
        let mut answers: Vec<(RequestId, Outcome)> = Vec::new();
        for ((request, command), class) in commands.into_iter().zip(classes) {
            let proposed = Proposal {
                origin,
                request,
                command,
            };
            if let Some(outcome) = self.take_command(step, class, proposed) {
                answers.push((request, outcome));
            }
        }
        if answers.is_empty() {
            return;
        }
        if origin == step.me() {
            self.writes.on_answered(step, answers);
        } else {
            for answers in chunks(answers, |(_, outcome)| outcome_size(outcome)) {
                step.send(origin, Message::Answered { answers });
            }
        }
    }

    /// Returns the class of each command: the set of the holders of the command's keys. If all
    /// replicas are nearby, no key is looked up, because every command is suitable for every batch.
    /// Otherwise the keys of all commands are looked up together, because the processor can then
    /// wait for several memory accesses at a time.
    fn classes(&self, step: &Step<'_>, commands: &[(RequestId, Command)]) -> Vec<CommandClass> {
        if let Some(all) = self.consensus.all_nearby(step) {
            return vec![CommandClass::AllNearby(all); commands.len()];
        }
        let live = self.leasing.live(step.now);
        let class =
            |(_, command): &(_, Command)| CommandClass::Of(self.leasing.class(&live, command));
        commands.iter().map(class).collect()
    }

    /// Queues a command, unless it is queued or proposed already. If the command was executed
    /// before, it is not queued, and its result is returned.
    fn take_command(
        &mut self,
        step: &mut Step<'_>,
        class: CommandClass,
        proposed: Proposal,
    ) -> Option<Outcome> {
        let command = &proposed.command;
        if command.op.is_none() {
            step.metrics.refused_messages += 1;
            return None;
        }
        if self.consensus.has_queued(&proposed) {
            return None; // Its execution will answer it.
        }
        if command.is_write()
            && let Some(outcome) = self.machine.result_of(command)
        {
            return Some(outcome);
        }
        self.consensus.enqueue(class, proposed);
        None
    }

    /// Proposes queued commands in batches, up to the limit on slots in flight.
    pub(super) fn propose_batches(&mut self, step: &mut Step<'_>) {
        if !step.ctx.writable {
            return;
        }
        let unclassed = self.consensus.take_unclassed(step);
        if !unclassed.is_empty() {
            let live = self.leasing.live(step.now);
            for proposed in unclassed {
                let class = self.leasing.class(&live, &proposed.command);
                self.consensus.queue_again(class, proposed);
            }
        }
        while !self.consensus.is_backlogged(step)
            && let Some(batch) = self.next_batch(step)
        {
            step.metrics.batches += 1;
            step.metrics.batched_commands += batch.commands.len() as u64;
            self.propose(step, LogId::Commands, Value::Commands(Arc::new(batch)));
        }
    }

    fn next_batch(&mut self, step: &Step<'_>) -> Option<Batch> {
        let machine = &self.machine;
        let cost = |command: &Command| machine.slot_cost(command);
        self.consensus.next_batch(step, &cost)
    }

    /// Proposes a value in the next slot of a log.
    pub(super) fn propose(&mut self, step: &mut Step<'_>, log: LogId, value: Value) {
        let early_tag = self.early_tag(step, &value);
        let sessions = self.machine.sessions();
        self.consensus
            .propose(step, log, value, early_tag, sessions);
    }

    /// Proposes a value that Phase 1 recovered, in the next slot. Replaces an entry that the slot
    /// already holds. The recovered commands are never *infallible*, so they are answered only
    /// after execution.
    pub(super) fn propose_recovered(
        &mut self,
        step: &mut Step<'_>,
        log: LogId,
        ballot: Ballot,
        value: Value,
    ) {
        let entry = SlotEntry {
            early_tag: self.early_tag(step, &value),
            ..SlotEntry::plain(ballot, value)
        };
        let replaced = self.consensus.propose_next(step, log, entry);
        self.look_again(step, replaced);
    }

    /// Sends Accepts again for slots with too few votes.
    pub(super) fn retransmit_accepts(&mut self, step: &mut Step<'_>) {
        if self.consensus.leads() {
            let tags = self.leasing.tags(step.now);
            self.consensus.retransmit_accepts(step, &tags);
        }
    }

    /// Sends a probe. The answers to the probe confirm the leader's reads.
    pub(super) fn send_probe(&mut self, step: &mut Step<'_>) {
        self.consensus.send_probe(step);
        self.reads.probe_sent();
    }

    /// Sends a probe now if reads wait for the confirmation of a majority.
    pub(super) fn send_due_probe(&mut self, step: &mut Step<'_>) {
        if self.reads.is_probe_due() {
            self.send_probe(step);
            let (reads, view) = self.reads();
            reads.confirm(step, view);
        }
    }

    /// Handles a peer's answer to a probe. The answer includes the replicas that the peer suspects.
    pub(super) fn on_heartbeat_ack(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        ballot: Ballot,
        probe: u64,
        suspects: ReplicaSet,
    ) {
        if self.consensus.probe_answered(step, from, ballot, probe) {
            self.leasing.note_report(step.now, from, suspects);
            self.answer_confirmed_requests(step);
            let (reads, view) = self.reads();
            reads.confirm(step, view);
        }
    }
}
