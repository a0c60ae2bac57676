//! From a commit to its answers: what is committed is answered if that is safe,
//! executed in slot order, and what waited for it is released.

use std::time::Duration;

use leasehold_leases::{Ballot, ConfigId, ReplicaId, Slot, Time};
use leasehold_wire::Outcome;

use super::Parts;
use crate::action::Event;
use crate::consensus::EarlyAnswer;
use crate::cost;
use crate::message::{LogId, LogNews, Proposal};
use crate::step::Step;
use crate::timers::Timer;
use crate::unavailable::client_disconnected;

/// About how long a unit of [`cost::merging`] takes where replicas share the memory of
/// one machine. A replica that has a machine for itself takes half of that, and its merges half of their
/// part.
const WORK_TIME: Duration = Duration::from_nanos(20);
/// Merges into records have one part in so many of the time: a write waits at each replica that
/// it passes.
const MERGING_SHARE: u32 = 4;

/// A group of inputs executes one of so many bytes that are left, if that is more than it would.
const EXECUTED_SHARE: usize = 8;
/// But never more than so many times what it would.
const EXECUTED_FACTOR: usize = 16;

/// Between the parts of a checkpoint the disk rests so many times as long as one took.
const STAGING_REST: u32 = 2;
/// But no longer than this.
const STAGING_REST_MAX: Duration = Duration::from_millis(30);

/// Limits on execution: how much is executed in one batch of inputs, and when merges go on.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct ExecutionBudget {
    /// Work that this batch of inputs has executed, without merging.
    work: usize,
    /// When merges will have had no more than their part of the time.
    merged_until: Time,
}

impl ExecutionBudget {
    /// State with which the next batch of inputs begins.
    pub(super) fn next_group(self) -> ExecutionBudget {
        ExecutionBudget { work: 0, ..self }
    }

    fn executed(&mut self, now: Time, work: usize, merging: Duration) {
        self.work += work;
        self.merged_until = self.merged_until.max(now) + merging;
    }

    /// When to go on, if that is not now. Merges may be ahead of their part by `ahead`, which is
    /// what one group executes. So much else is executed that what is `left` does not grow for
    /// ever.
    fn later(&self, now: Time, work_max: usize, ahead: Duration, left: usize) -> Option<Time> {
        let merge_from = self.merged_until - ahead;
        if merge_from > now {
            return Some(merge_from);
        }
        let most = (left / EXECUTED_SHARE).clamp(work_max, work_max * EXECUTED_FACTOR);
        let next = now + Duration::from_nanos(1); // all of a group shares one moment
        (self.work >= most).then_some(next)
    }
}

/// The time of which so much work of merges is their part. With the part that the others take, a
/// replica that is behind would never catch up with them: there merges have the whole time, and
/// half of it if it is half as far behind.
fn merging_time(work: usize, left: usize, behind: usize) -> Duration {
    let work = u32::try_from(work).unwrap_or(u32::MAX);
    let share = match left {
        left if left > behind => 1,
        left if left > behind / 2 => MERGING_SHARE / 2,
        _ => MERGING_SHARE,
    };
    WORK_TIME * work * share
}

impl Parts {
    /// Applies the commit rule to a slot that was accepted or voted for.
    pub(super) fn try_commit(&mut self, step: &mut Step<'_>, log: LogId, slot: Slot) {
        if self.consensus.is_chosen(step, log, slot) {
            self.commit(step, log, &[slot]);
        }
    }

    /// The values accepted in `slots` are the chosen ones.
    pub(super) fn commit(&mut self, step: &mut Step<'_>, log: LogId, slots: &[Slot]) {
        if slots.is_empty() {
            return;
        }
        for slot in slots {
            self.consensus.note_commit(step, log, *slot);
        }
        match log {
            LogId::Configs => self.execute_configs(step),
            LogId::Commands => {
                self.writes.note_committed(slots);
                self.answer_committed(step);
                self.execute_commands(step);
                self.count_blocked(step, slots);
            }
        }
        self.hasten_checkpoint(step);
    }

    /// Brings a checkpoint forward if too much has changed, or a log would run out.
    fn hasten_checkpoint(&self, step: &mut Step<'_>) {
        if self.wants_checkpoint() {
            step.timers.set_earlier(Timer::Checkpoint, step.now);
        }
    }

    /// Whether the next checkpoint should not wait for its time.
    fn wants_checkpoint(&self) -> bool {
        let checkpointed = self.machine.checkpointed();
        self.consensus.wants_checkpoint(checkpointed) || self.machine.wants_checkpoint()
    }

    /// Writes down what was executed since the last checkpoint, unless too much waits for
    /// the disk already, or the last one is not written down yet: the next one holds it too.
    pub(super) fn checkpoint(&mut self, step: &mut Step<'_>) {
        if !step.persister.may_checkpoint() || self.machine.is_staging() {
            return;
        }
        let (executed, config) = self.reached();
        self.machine.checkpoint(step, executed, config);
    }

    /// Up to where commands and configurations are executed.
    fn reached(&self) -> (Slot, ConfigId) {
        let executed = self.consensus.commands().executed();
        (executed, self.leasing.configs().newest())
    }

    /// The values of a checkpoint that were handed over at `since` are durable. The disk rests
    /// before the next part, the shorter the more urgent the checkpoint is.
    pub(super) fn values_staged(&mut self, step: &mut Step<'_>, since: Time) {
        let checkpointed = self.machine.checkpointed();
        let urgency = if self.consensus.wants_checkpoint(checkpointed) {
            1.0
        } else {
            self.machine.urgency()
        };
        let rest = (step.now.since(since) * STAGING_REST).min(STAGING_REST_MAX);
        step.set_timer(Timer::Stage, step.now + rest.mul_f64(1.0 - urgency));
    }

    /// Writes the next values of a checkpoint ahead, or the checkpoint.
    pub(super) fn stage(&mut self, step: &mut Step<'_>) {
        let (executed, config) = self.reached();
        self.machine.go_on_staging(step, executed, config);
        self.hasten_checkpoint(step);
    }

    /// Takes a leader's news of commits.
    pub(super) fn learn_news(
        &mut self,
        step: &mut Step<'_>,
        log: LogId,
        ballot: Ballot,
        news: &LogNews,
    ) {
        let Some(update) = self.consensus.hear_commits(log, ballot, news) else {
            return;
        };
        self.commit(step, log, &update.chosen);
        if update.behind {
            self.consensus.want_fetch(step);
        }
        match log {
            LogId::Configs => self.note_config_lag(step),
            LogId::Commands if update.new_commit_point && update.chosen.is_empty() => {
                self.answer_committed(step);
            }
            LogId::Commands => {}
        }
    }

    /// Answers what can be answered at commit; the rest waits for its execution.
    fn answer_committed(&mut self, step: &mut Step<'_>) {
        while let Some(slot) = self.writes.first_unanswered() {
            assert!(
                self.consensus.commands().is_committed(slot),
                "only committed slots are answered"
            );
            match self.consensus.at_commit(slot) {
                EarlyAnswer::Now(accepted) => {
                    self.writes.answer_at_commit(step, slot, accepted);
                    let (reads, view) = self.reads();
                    reads.release_by_commit(step, view, slot);
                }
                // There may be thousands behind it.
                EarlyAnswer::Later => return,
                EarlyAnswer::Never => {}
            }
            self.writes.complete(slot);
        }
    }

    /// Executes what is committed, as much as a group of inputs may; the next goes on. If too
    /// much is left, nothing more is accepted (`Consensus::is_backlogged`).
    fn execute_commands(&mut self, step: &mut Step<'_>) {
        while let Some((slot, value)) = self.consensus.next_to_execute(LogId::Commands) {
            let settings = &step.ctx.settings;
            let (work_max, behind) = (settings.executed_work_max, settings.behind_work());
            let left = self.consensus.commands().to_execute_work();
            let merging_time = |work| merging_time(work, left, behind);
            let ahead = merging_time(work_max / cost::MERGING);
            if let Some(later) = self.execution.later(step.now, work_max, ahead, left) {
                step.metrics.executed_later += 1;
                step.timers.set_earlier(Timer::Execute, later);
                break;
            }
            let mut work = 0;
            self.machine.begin(&value);
            for (index, proposed) in value.commands().iter().enumerate() {
                if let Some((outcome, done)) = self.execute(step.me(), slot, index, proposed) {
                    work += done;
                    self.writes.answer(step, proposed, outcome);
                }
            }
            let merging = merging_time(self.machine.take_merge_work());
            self.execution.executed(step.now, work, merging);
            self.writes.complete(slot);
            let reads = &mut self.reads;
            let unmarked = |key: &_| reads.note_executed(key);
            self.consensus
                .note_executed(LogId::Commands, slot, &value, unmarked);
        }
        let (reads, view) = self.reads();
        reads.release_executed(step, view);
    }

    /// Executes a command. Returns its outcome and its cost; `None` if it is a read that no client
    /// asked here. Reads change nothing, so a client that asks for many of them lets one replica
    /// work, and not all.
    fn execute(
        &mut self,
        me: ReplicaId,
        slot: Slot,
        index: usize,
        proposed: &Proposal,
    ) -> Option<(Outcome, usize)> {
        let command = if proposed.command.is_write() {
            &proposed.command
        } else {
            self.writes.read_of_placeholder(me, proposed)?
        };
        if command.op.is_none() {
            return Some((client_disconnected(), 0));
        }
        let outcome = self.machine.execute(slot, index, command);
        let done = cost::executed(command, &outcome);
        Some((outcome, done))
    }

    /// Goes on with what an earlier group of inputs left to execute. Returns whether more can be
    /// fetched again.
    pub(super) fn execute_more(&mut self, step: &mut Step<'_>) -> bool {
        let was_backlogged = self.consensus.is_backlogged(step);
        self.execute_commands(step);
        self.hasten_checkpoint(step);
        was_backlogged && !self.consensus.is_backlogged(step)
    }

    /// Counts clients here with a committed command that needs its execution and so waits for a
    /// slot before it.
    fn count_blocked(&self, step: &mut Step<'_>, slots: &[Slot]) {
        let commands = self.consensus.commands();
        for slot in slots.iter().filter(|slot| commands.executed() < **slot) {
            let accepted = commands.accepted(*slot);
            let blocked = self.writes.blocked(step.me(), accepted);
            step.metrics.blocked_prefix += blocked as u64;
        }
    }

    fn execute_configs(&mut self, step: &mut Step<'_>) {
        while let Some((slot, value)) = self.consensus.next_to_execute(LogId::Configs) {
            let id = ConfigId(slot.0);
            let keys = self.leasing.execute(id, &value);
            self.consensus
                .note_executed(LogId::Configs, slot, &value, |_| {});
            self.leasing.answer_requests(step, id);
            let configs = self.leasing.configs();
            step.announce(Event::Configured {
                id,
                keys,
                strategy: configs.policies().strategies().names(),
                excluded: configs.excluded(),
            });
        }
        self.note_config_lag(step);
    }
}
