//! Steps that follow a commit. The commands of a committed slot are answered before execution if
//! that is safe. Slots are executed in order, and then the requests that waited for a slot are
//! answered.

use std::time::Duration;

use leasehold_leases::{Ballot, ConfigId, ReplicaId, Slot, Time};
use leasehold_wire::Outcome;

use super::Parts;
use crate::action::{Action, Event};
use crate::consensus::EarlyAnswer;
use crate::cost;
use crate::message::{LogId, LogNews, Proposal};
use crate::per_log::PerLog;
use crate::step::Step;
use crate::timers::Timer;
use crate::unavailable::client_disconnected;

/// Approximate time of a unit of [`cost::merging`] if several replicas run on one machine and share
/// its memory. A replica on a machine of its own needs only half of this time.
const WORK_TIME: Duration = Duration::from_nanos(20);
/// Divisor that determines the share of merges: merges may take `1 / MERGING_SHARE` of the time.
/// The share is small, because a write may wait for merges at each replica that handles the write.
const MERGING_SHARE: u32 = 4;

/// Divisor for the maximum work of a group of inputs. A group may execute `1 / EXECUTED_SHARE` of
/// the remaining work, if this part exceeds the normal maximum.
const EXECUTED_SHARE: usize = 8;
/// Maximum work of a group of inputs, as a multiple of the normal maximum.
const EXECUTED_FACTOR: usize = 16;

/// Divisor for the maximum wait of a batch of changes of the state. The maximum wait is
/// `1 / CHANGES_SHARE` of the interval between checkpoints.
const CHANGES_SHARE: u32 = 10;

/// Limits on execution: the work of one group of inputs, and the time at which merges continue.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct ExecutionBudget {
    /// Work that this group of inputs has executed, without merging, in units of [`cost`].
    work: usize,
    /// Time up to which earlier merges have used up the share of merges.
    merged_until: Time,
}

impl ExecutionBudget {
    /// Returns the limits as they are at the beginning of the next group of inputs.
    pub(super) fn next_group(self) -> ExecutionBudget {
        ExecutionBudget { work: 0, ..self }
    }

    fn executed(&mut self, now: Time, work: usize, merging: Duration) {
        self.work += work;
        self.merged_until = self.merged_until.max(now) + merging;
    }

    /// Returns the time at which execution may continue; `None` if execution may continue now.
    /// Merges may exceed their share of the time by `ahead`, the time that the merges of one group
    /// take. `left` is the work that is left to execute. The limit on other work rises with `left`,
    /// because otherwise `left` could grow forever.
    fn later(&self, now: Time, work_max: usize, ahead: Duration, left: usize) -> Option<Time> {
        let merge_from = self.merged_until - ahead;
        if merge_from > now {
            return Some(merge_from);
        }
        let most = (left / EXECUTED_SHARE).clamp(work_max, work_max * EXECUTED_FACTOR);
        let next = now + Duration::from_nanos(1); // all inputs of a group share one `now`
        (self.work >= most).then_some(next)
    }
}

/// Returns the shortest period in which merges of `work` units stay within their share of the time.
/// `left` is the work that is left to execute. If `left` exceeds half of `behind`, the share is
/// half of the time. If `left` exceeds `behind`, the share is the whole time. With the normal
/// share, a replica with so much work left would never catch up.
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
    /// Applies the commit rule to a slot that was accepted or voted on.
    pub(super) fn try_commit(&mut self, step: &mut Step<'_>, log: LogId, slot: Slot) {
        if self.consensus.is_chosen(step, log, slot) {
            self.commit(step, log, &[slot]);
        }
    }

    /// Commits `slots`: the values accepted in these slots are the chosen values.
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
        self.plan_changes(step);
    }

    /// Sets the time at which changes of the state are handed to the storage, and the time at which
    /// the state is flushed.
    fn plan_changes(&self, step: &mut Step<'_>) {
        let reached = self.reached();
        let listed = self.leasing.configs().unsaved_len();
        if self.machine.has_many_changes(listed) {
            step.timers.set_earlier(Timer::Changes, step.now);
        } else if self.machine.has_changes(reached) {
            let later = step.ctx.settings.timing.checkpoint / CHANGES_SHARE;
            step.timers.set_earlier(Timer::Changes, step.now + later);
        }
        if self.wants_flush() {
            step.timers.set_earlier(Timer::Flush, step.now);
        }
    }

    /// Whether the state should be flushed early: too much has changed, or a log would otherwise
    /// reach the end of its window.
    fn wants_flush(&self) -> bool {
        let requested = self.machine.flush_requested();
        self.machine.may_flush()
            && (self.machine.has_much_to_flush() || self.consensus.wants_flush(requested))
    }

    /// Hands the changes of the state since the last batch to the storage, so that a restart
    /// replays little of the log. If too much already waits for the disk, these changes become part
    /// of the next batch.
    pub(super) fn hand_over_changes(&mut self, step: &mut Step<'_>) {
        if step.persister.takes_changes() {
            let (executed, config) = self.reached();
            let configs = || self.leasing.take_unsaved();
            self.machine.hand_over(step, executed, config, configs);
        }
    }

    /// Requests a flush of the state.
    pub(super) fn flush_state(&mut self, step: &mut Step<'_>) {
        self.hand_over_changes(step);
        self.machine.flush(step);
    }

    /// Handles the report that the state up to these slots is durable.
    pub(super) fn on_flushed(&mut self, step: &mut Step<'_>, slots: PerLog<Slot>) {
        self.machine.note_flushed(slots);
        self.move_windows(step, slots);
        self.truncate_flushed(step, step.me(), slots);
        self.plan_changes(step);
    }

    /// Notes the flushed state of a member. Frees the entries that no member needs any more.
    pub(super) fn truncate_flushed(
        &mut self,
        step: &mut Step<'_>,
        member: ReplicaId,
        flushed: PerLog<Slot>,
    ) {
        if let Some(slots) = self.compaction.note_flushed(member, flushed) {
            step.out.push(Action::Truncate(slots));
        }
    }

    /// Returns the last executed slot of the log of commands, and the last executed configuration.
    fn reached(&self) -> (Slot, ConfigId) {
        let executed = self.consensus.commands().executed();
        (executed, self.leasing.configs().newest())
    }

    /// Handles a leader's report of commits.
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

    /// Answers the committed commands that can be answered at commit. The others are answered after
    /// execution.
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
                // There may be thousands of slots behind this one.
                EarlyAnswer::Later => return,
                EarlyAnswer::Never => {}
            }
            self.writes.complete(slot);
        }
    }

    /// Executes committed commands, up to the limit for one group of inputs. The next group
    /// executes the rest. If too much is left to execute, nothing more is accepted
    /// (`Consensus::is_backlogged`).
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

    /// Executes a command. Returns the outcome and the cost of the command. A read that no client
    /// of this replica waits for is not executed, because reads change nothing; the result is then
    /// `None`.
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

    /// Executes slots that an earlier group of inputs left. Fetches may have stopped, because too
    /// much was left to execute. Returns true if entries can be fetched again now.
    pub(super) fn execute_more(&mut self, step: &mut Step<'_>) -> bool {
        let was_backlogged = self.consensus.is_backlogged(step);
        self.execute_configs(step);
        self.execute_commands(step);
        self.plan_changes(step);
        was_backlogged && !self.consensus.is_backlogged(step)
    }

    /// Counts committed commands of this replica's clients that wait for the execution of an
    /// earlier slot.
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
