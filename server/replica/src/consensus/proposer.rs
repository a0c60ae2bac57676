//! Proposals and messages of a leader: Accepts and heartbeats (§2.1, §3.9).

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, Key, ReplicaId, ReplicaSet, Slot, Time};
use leasehold_wire::Command;

use super::acceptor::{SlotEntry, vote_once_durable};
use super::cell::Accepted;
use super::lead::BatchLimits;
use super::{CommandClass, Consensus, Leadership};
use crate::leasing::Tags;
use crate::machine::Sessions;
use crate::message::{Accept, Batch, LogId, Message, Proposal, Value};
use crate::per_log::PerLog;
use crate::step::Step;

/// Maximum number of Accepts that are sent again in one step.
const RETRANSMIT_MAX: usize = 256;
/// Maximum round-trip time to a nearby replica. A nearby replica is on the leader's site, or is
/// treated as if it were on that site.
const NEARBY_RTT_MAX: Duration = Duration::from_millis(5);
/// Maximum silence of a nearby replica, and maximum wait of a slot for the vote of such a replica.
/// A replica that exceeds this limit no longer counts as nearby, so only commands that need its
/// vote wait for it.
const ANSWERS_WITHIN: Duration = Duration::from_millis(20);
/// Limit on the search of a leader for replicas that block slots. The leader examines at most this
/// many of the oldest uncommitted slots, and at most this many of the newest.
const STUCK_MAX: usize = 64;

impl Consensus {
    /// Whether this replica leads and has queued or proposed this command already. If so, the
    /// command is answered when it is executed.
    pub fn has_queued(&self, proposed: &Proposal) -> bool {
        let leadership = self.leadership();
        leadership.is_some_and(|leadership| leadership.in_flight.knows(proposed))
    }

    /// Returns the nearby replicas (§3.9): those that are on the leader's site and answer at
    /// present. A command may wait for their votes even if it does not need these votes, because
    /// their votes delay no commit. If all replicas are on one site, all commands can share a
    /// batch.
    fn nearby(&self, leadership: &Leadership, step: &Step<'_>) -> ReplicaSet {
        let is_near = |replica| {
            step.ctx
                .rtt(replica)
                .is_some_and(|rtt| rtt <= NEARBY_RTT_MAX)
        };
        let touched = leadership.heard_of(step.now, ANSWERS_WITHIN);
        // A replica with a hanging disk still answers probes.
        let late = self.blockers(step.now, ANSWERS_WITHIN);
        let others = touched.minus(late).iter();
        others
            .filter(|replica| is_near(*replica))
            .chain([step.me()])
            .collect()
    }

    /// Returns all replicas, if this replica leads and all others are nearby; `None` otherwise.
    pub fn all_nearby(&self, step: &Step<'_>) -> Option<ReplicaSet> {
        let nearby = self.nearby(self.leadership()?, step);
        let all = step.ctx.others().all(|replica| nearby.contains(replica));
        all.then_some(nearby)
    }

    /// Queues a command by its class: the holders of its keys (§3.9).
    pub fn enqueue(&mut self, class: CommandClass, proposed: Proposal) {
        if let Some(leadership) = self.leadership_mut() {
            leadership.enqueue(class, proposed);
        }
    }

    /// If some replica is no longer nearby, removes and returns the commands that were queued while
    /// all replicas were nearby. The caller must [queue these commands again](Self::queue_again) by
    /// their classes. Otherwise the commands would wait for a replica that no longer answers.
    pub fn take_unclassed(&mut self, step: &Step<'_>) -> VecDeque<Proposal> {
        let waits = |leadership: &Leadership| leadership.queue.has_unclassed();
        if !self.leadership().is_some_and(waits) || self.all_nearby(step).is_some() {
            return VecDeque::new();
        }
        let leadership = self.leadership_mut();
        leadership.map_or_else(VecDeque::new, |it| it.queue.take_unclassed())
    }

    /// Queues a command that was taken from the queue.
    pub fn queue_again(&mut self, class: ReplicaSet, proposed: Proposal) {
        if let Some(leadership) = self.leadership_mut() {
            leadership.queue.push(CommandClass::Of(class), proposed);
        }
    }

    /// Returns the next batch; `None` if no command is queued or too many slots are in flight. The
    /// limit is on the number of uncommitted slots, so one blocked slot does not stop the others.
    /// `cost` returns the part of a slot's capacity that a command needs.
    pub fn next_batch(
        &mut self,
        step: &Step<'_>,
        cost: &dyn Fn(&Command) -> usize,
    ) -> Option<Batch> {
        let (commit_point, above) = {
            let commands = &self.logs.commands;
            (commands.commit_point, commands.above.len())
        };
        let leadership = self.leadership_mut()?;
        assert!(
            leadership.next.commands.0 > commit_point.0 + above,
            "a committed slot was proposed"
        );
        let in_flight = leadership.next.commands.0 - 1 - commit_point.0 - above;
        let most = step.ctx.settings.in_flight_max;
        let full = in_flight >= most as u64;
        if leadership.transfer.is_active() || leadership.queue.is_empty() || full {
            return None;
        }
        let next = leadership.next.commands;
        if !self.logs.commands.may_propose(next) {
            return None; // A checkpoint must move the window first.
        }
        let nearby = self.nearby(self.leadership()?, step);
        let leadership = self.leadership_mut()?;
        let class = leadership.queue.next_class(most - in_flight as usize)?;
        let limits = BatchLimits {
            commands: step.ctx.settings.batch_max,
            cost,
        };
        Some(leadership.next_batch(class, nearby, limits, step.now))
    }

    /// Proposes a value in the next slot of a log.
    pub fn propose(
        &mut self,
        step: &mut Step<'_>,
        log: LogId,
        value: Value,
        early_tag: Option<ReplicaSet>,
        sessions: &Sessions,
    ) {
        let Some(leadership) = self.leadership_mut() else {
            return;
        };
        let slot = leadership.next[log];
        let entry = SlotEntry {
            last_multi: leadership.note_multi(slot, &value),
            infallible: leadership.infallible_bits(&value, sessions),
            early_tag,
            ..SlotEntry::plain(leadership.ballot, value)
        };
        let replaced = self.propose_next(step, log, entry);
        assert!(replaced.is_empty(), "a fresh slot replaces no value");
    }

    /// Proposes an entry in the next slot of a log. Replaces an entry that the slot already holds.
    /// If the replaced entry has a different value, returns the keys of that value.
    pub fn propose_next(&mut self, step: &mut Step<'_>, log: LogId, entry: SlotEntry) -> Vec<Key> {
        let Some(leadership) = self.leadership_mut() else {
            return Vec::new();
        };
        let slot = leadership.next[log];
        leadership.next[log] = slot.next();
        let ballot = entry.ballot;
        assert_eq!(ballot, leadership.ballot, "a leader proposes at its ballot");
        assert!(
            slot > self.logs[log].commit_point,
            "a leader proposes above what is committed"
        );
        let replaced = self.store(step, log, slot, entry);
        self.send_accept(step, log, slot);
        if off(Rule::H113Durable) {
            self.vote_durable(log, slot, ballot, None);
        }
        vote_once_durable(step, log, slot, ballot, None);
        replaced
    }

    /// Notes that all commands in committed, unexecuted slots are in flight. The executed state
    /// does not contain such a command yet. So the sessions in that state cannot show that
    /// execution will refuse a copy of the command (hazard 31).
    pub fn note_unexecuted(&mut self) {
        if off(Rule::H31Unexecuted) {
            return;
        }
        let commands = &self.logs.commands;
        let committed = commands
            .unexecuted()
            .take_while(|(slot, _)| *slot <= commands.commit_point);
        let accepted = committed.filter_map(|(_, cell)| cell.accepted.as_ref());
        let values: Vec<Value> = accepted.map(|accepted| accepted.value.clone()).collect();
        for value in &values {
            self.note_in_flight(value);
        }
    }

    /// Notes commands that were in the log before this replica led.
    pub fn note_in_flight(&mut self, value: &Value) {
        if let Some(leadership) = self.leadership_mut() {
            leadership.note_recovered(value);
        }
    }

    /// Sends an Accept for a new proposal. The entry is not durable here yet, so the Accept is no
    /// vote (hazard 113). All replicas, this leader included, write the entry to their disks at the
    /// same time.
    fn send_accept(&mut self, step: &mut Step<'_>, log: LogId, slot: Slot) {
        if let Some(message) = self.accept_message(log, slot, None) {
            step.broadcast(&Message::Accept(message));
        }
        if let Some(leadership) = self.leadership_mut() {
            leadership.news_due[log] = false; // the Accept carried it
        }
    }

    fn accept_message(&self, log: LogId, slot: Slot, vote: Option<ReplicaSet>) -> Option<Accept> {
        let paxos = &self.logs[log];
        let accepted = paxos.accepted(slot)?;
        Some(Accept {
            ballot: accepted.ballot,
            log,
            slot,
            value: accepted.value.clone(),
            vote,
            news: paxos.news(),
            last_multi: accepted.last_multi,
            infallible: accepted.infallible.clone(),
        })
    }

    /// Sends Accepts again to replicas that have not voted. Also sends Accepts to a replica if each
    /// of its votes demands another replica that has not accepted. A later vote without this demand
    /// may have been lost. An Accept contains the leader's vote if the leader's entry is durable.
    pub fn retransmit_accepts(&mut self, step: &mut Step<'_>, tags: &Tags<'_>) {
        let Some(ballot) = self.leadership().map(|leadership| leadership.ballot) else {
            return;
        };
        let timeout = step.ctx.settings.timing.retransmit;
        for log in LogId::ALL {
            let overdue = self.logs[log].uncommitted().filter(|(_, accepted)| {
                accepted.ballot == ballot && step.now.since(accepted.sent) >= timeout
            });
            let slots: Vec<Slot> = overdue.map(|(slot, _)| slot).take(RETRANSMIT_MAX).collect();
            for slot in slots {
                self.retransmit_slot(step, log, slot, tags);
            }
        }
    }

    fn retransmit_slot(&mut self, step: &mut Step<'_>, log: LogId, slot: Slot, tags: &Tags<'_>) {
        let Some(cell) = self.logs[log].get_mut(slot) else {
            return;
        };
        let Some(accepted) = cell.accepted.as_mut() else {
            return;
        };
        // If only the leader's own entry is not durable yet, sending again does not help.
        let satisfied = if accepted.durable {
            cell.votes.satisfied()
        } else {
            cell.votes.satisfied_with(step.me())
        };
        accepted.sent = step.now;
        let tag = match log {
            LogId::Commands if !off(Rule::H09LeaderTag) => tags.of(&accepted.value),
            _ => ReplicaSet::EMPTY,
        };
        let vote = accepted.durable.then_some(tag);
        let Some(message) = self.accept_message(log, slot, vote) else {
            return;
        };
        for to in step.ctx.others().filter(|to| !satisfied.contains(*to)) {
            step.metrics.retransmitted_accepts += 1;
            step.send(to, Message::Accept(message.clone()));
        }
    }

    /// Sends a probe: a numbered heartbeat that reports the committed slots. The answers confirm
    /// reads, and replicas that do not answer are suspected.
    pub fn send_probe(&mut self, step: &mut Step<'_>) {
        if let Some(leadership) = self.leadership_mut() {
            leadership.probe += 1;
            let probe = leadership.probe;
            self.send_heartbeat(step, probe);
        }
    }

    /// Sends a report of new commits immediately, if no Accept has carried that report.
    pub fn send_news(&mut self, step: &mut Step<'_>) {
        let leadership = self.leadership();
        let is_due = |log| leadership.is_some_and(|leadership| leadership.news_due[log]);
        if LogId::ALL.into_iter().any(is_due) {
            self.send_heartbeat(step, 0);
        }
    }

    fn send_heartbeat(&mut self, step: &mut Step<'_>, probe: u64) {
        let logs = PerLog::of(|log| self.logs[log].news());
        if let Some(leadership) = self.leadership_mut() {
            leadership.news_due = PerLog::default();
            let ballot = leadership.ballot;
            step.broadcast(&Message::Heartbeat {
                ballot,
                probe,
                logs,
            });
        }
    }

    /// Notes that a peer has answered a probe. Returns whether this replica sent the probe under
    /// its present leadership.
    pub fn probe_answered(
        &mut self,
        step: &Step<'_>,
        from: ReplicaId,
        ballot: Ballot,
        probe: u64,
    ) -> bool {
        let leadership = self.leadership_mut();
        let Some(leadership) = leadership.filter(|l| l.ballot == ballot && probe <= l.probe) else {
            return false;
        };
        leadership.probe_answered(from, probe);
        self.follower_answered(step, from);
        true
    }

    /// Returns true if the leader and the replicas that have answered it within
    /// `ReplicaContext::majority_timeout` are not a majority. Such a leader can commit no proposal,
    /// but replicas that still receive its messages wait for it.
    pub fn is_out_of_touch(&self, step: &Step<'_>) -> bool {
        let timeout = step.ctx.majority_timeout();
        self.leadership().is_some_and(|leadership| {
            let touched = leadership.in_touch(step.now, timeout);
            let touched = touched.union(ReplicaSet::one(step.me()));
            !step.ctx.members.is_quorum(touched)
        })
    }

    /// Returns the sequence numbers of two probes: the newest probe that was sent, and the newest
    /// probe that a majority has answered. Returns `None` if this replica does not lead.
    pub fn probes(&self, step: &Step<'_>) -> Option<(u64, u64)> {
        let leadership = self.leadership()?;
        let majority = step.ctx.members.majority();
        let confirmed = leadership.confirmed_probe(step.me(), majority);
        Some((leadership.probe, confirmed))
    }

    /// Returns the replicas that have blocked a slot for `grace` or longer, because they have not
    /// accepted it (§3.7, hazard 36).
    pub fn blockers(&self, now: Time, grace: Duration) -> ReplicaSet {
        let Some(leadership) = self.leadership() else {
            return ReplicaSet::EMPTY;
        };
        let commands = &self.logs.commands;
        let is_stuck = |(_, open): &(Slot, &Accepted)| {
            open.ballot == leadership.ballot && now.since(open.proposed) >= grace
        };
        let mut first = commands
            .uncommitted()
            .take(STUCK_MAX)
            .filter(is_stuck)
            .peekable();
        if first.peek().is_none() {
            // Slots above were proposed later.
            return ReplicaSet::EMPTY;
        }
        // The oldest slots may all wait for one replica, and later slots for another.
        let last = commands.uncommitted().rev();
        let last = last.filter(is_stuck).take(STUCK_MAX);
        let cells = first.chain(last).filter_map(|(slot, _)| commands.get(slot));
        cells.fold(ReplicaSet::EMPTY, |all, c| all.union(c.votes.missing()))
    }

    /// Returns whether a configuration may be proposed. The result is true if the opening no-op and
    /// all earlier configurations are committed, the window has free space, and no transfer of
    /// leadership is active.
    pub fn may_configure(&self, leadership: &Leadership) -> bool {
        let (next, configs) = (leadership.next.configs, &self.logs.configs);
        !leadership.transfer.is_active()
            && next == configs.executed.next()
            && configs.may_propose(next)
    }

    /// Whether this leader has executed every configuration that earlier leaders proposed.
    pub fn knows_configs(&self) -> bool {
        let configs = &self.logs.configs;
        configs.executed >= configs.start()
    }
}
