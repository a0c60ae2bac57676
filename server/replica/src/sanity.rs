//! Sanity checks that decide whether the numbers in a peer's message are believed (hazard 81).
//!
//! Some numbers are counted up by the replica that receives them: rounds, slots and the replicated
//! clock. The replica then sends these numbers and stores them on its disk, and every decoder
//! refuses numbers above [`NUMBER_MAX`]. So after one wrong message near that limit, every replica
//! would campaign with a round above the limit, and no data directory could be opened again. A
//! message with numbers too far beyond those known here is therefore refused as a whole, before any
//! part of it is believed. A malicious member can still do harm within the bounds. Without
//! certificates, any process that poses as a member can do the same harm.
//!
//! # A replica that was away
//! After a long absence, a replica must believe an honest leader again, even if much has happened
//! meanwhile:
//! - Slots, configurations and the replicated clock: the bounds correspond to decades of work.
//! - Rounds: 2^20 campaigns, which take 12 days if no leader ever leads longer than the default
//!   election timeout of 1 s. If there were more campaigns, the first messages are refused. But
//!   each refused message raises the highest round seen by up to 2^20 ([`nearer`]), so the replica
//!   soon believes its peers again. A refused message near the decoders' limit also raises the
//!   highest round by only 2^20 of the 2^56 rounds.
//! - Durations: a day, which is the maximum that a configuration may set.
//! - Incarnations: a peer may have started 2^20 times since its last message, and 2^40 times before
//!   its first message to this run.

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, ConfigId, Incarnation, LeaseMessage, LeaseParams, Slot};
use leasehold_wire::KEY_BYTES_MAX;

use super::lease_set::Durations;
use super::message::{
    Accept, DemandReport, Envelope, LogId, LogNews, Message, PerLog, ReportedEntry, Value,
};

/// Largest slot, round, incarnation, time in ms or span in ns that a decoder accepts. It is far
/// above all numbers that occur in practice. It is also far enough below `u64::MAX` that counting
/// up from it does not overflow.
pub const NUMBER_MAX: u64 = 1 << 56;

/// Maximum distance from the highest round seen here to a round in a message. A message with a
/// higher round is refused.
pub const ROUNDS_AHEAD_MAX: u64 = 1 << 20;
/// Maximum number of starts of a peer since its last message. A message with a higher incarnation
/// is refused.
pub const INCARNATIONS_AHEAD_MAX: u64 = 1 << 20;
/// Maximum incarnation in the first message that this run receives from a peer. With one start in
/// each ms it is reached after 34 years.
pub const FIRST_INCARNATION_MAX: u64 = 1 << 40;
/// Maximum distance from the highest slot accepted here to a slot in a message. With 55,000 slots a
/// second, the log of commands covers this distance in ten years. With two slots a second, the log
/// of configurations covers its distance in 68 years.
pub const SLOTS_AHEAD_MAX: PerLog<u64> = PerLog {
    commands: 1 << 44,
    configs: 1 << 32,
};
/// Maximum time, in ms, by which a log time in a message may exceed the log time of the last slot
/// executed here. Log time advances as fast as a leader's clock, so this corresponds to 34 years.
pub const LOG_TIME_AHEAD_MAX_MS: u64 = 1 << 40;
/// Maximum sequence number of a replica's answers in Phase 1, and of its guards and promises. They
/// are counted from 0 in each run of the replica. If one is counted in each ms, the maximum is
/// reached after 8,900 years.
pub const COUNT_MAX: u64 = 1 << 48;

/// Numbers that this replica knows. The numbers in a message are compared with these numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct SanityBaseline {
    /// Highest round seen.
    pub round: u64,
    /// Newest run of the sender from which this run has received a message; 0 if it has received
    /// none.
    pub incarnation: Incarnation,
    /// Highest slot accepted here in each log.
    pub slots: PerLog<Slot>,
    /// Log time of the last command executed here, in ms.
    pub log_time_ms: u64,
}

/// Compares the numbers in a message with the numbers known here. Returns whether the message may
/// be believed.
pub fn is_sane(baseline: &SanityBaseline, envelope: &Envelope) -> bool {
    if off(Rule::H81Leaps) {
        return true;
    }
    baseline.run(envelope.from_incarnation) && baseline.message(&envelope.message)
}

/// Returns the new highest round seen, after a message with `round` was refused. `seen` is the old
/// highest round. The new highest round is `round`, but not below `seen`, and at most
/// [`ROUNDS_AHEAD_MAX`] above `seen`. Without this increase, a replica with much higher rounds than
/// all others would be refused forever.
pub fn nearer(seen: u64, round: u64) -> u64 {
    seen.max(round.min(seen + ROUNDS_AHEAD_MAX)).min(NUMBER_MAX)
}

/// Returns the round of the ballot in a message; `None` if the message has no ballot of its own.
pub fn round_of(message: &Message) -> Option<u64> {
    let ballot = match message {
        Message::PreVote { ballot, .. }
        | Message::PreVoted { ballot, .. }
        | Message::Prepare { ballot, .. }
        | Message::Prepared { ballot, .. }
        | Message::Accept(Accept { ballot, .. })
        | Message::Accepted { ballot, .. }
        | Message::Rejected { promised: ballot }
        | Message::Heartbeat { ballot, .. }
        | Message::HeartbeatAck { ballot, .. }
        | Message::Transfer { ballot, .. } => ballot,
        _ => return None,
    };
    Some(ballot.round)
}

/// Whether the durations are so short that leases end within days. This matters because a replica
/// waits after each restart until its earlier leases have ended.
fn are_sane(params: &LeaseParams) -> bool {
    Durations::of(params).are_sane() && params.t0_cap <= Durations::T0_MAX
}

impl SanityBaseline {
    fn run(&self, incarnation: Incarnation) -> bool {
        let most = match self.incarnation.0 {
            0 => FIRST_INCARNATION_MAX,
            known => known + INCARNATIONS_AHEAD_MAX,
        };
        incarnation.0 <= most
    }

    fn round(&self, round: u64) -> bool {
        round <= self.round + ROUNDS_AHEAD_MAX && round <= NUMBER_MAX
    }

    fn ballot(&self, ballot: &Ballot) -> bool {
        self.round(ballot.round)
    }

    fn slot(&self, log: LogId, slot: Slot) -> bool {
        let known = self.slots[log].0;
        slot.0 <= known + SLOTS_AHEAD_MAX[log]
    }

    fn config(&self, config: ConfigId) -> bool {
        self.slot(LogId::Configs, Slot(config.0))
    }

    fn both(&self, slots: &PerLog<Slot>) -> bool {
        slots.all(|log, slot| self.slot(log, *slot))
    }

    fn news(&self, log: LogId, news: &LogNews) -> bool {
        // The decoder has checked that the ranges rise.
        let last = news.above.last().map_or(Slot::ZERO, |(_, last)| *last);
        let slots = [news.commit_point, news.log_start, last];
        slots.iter().all(|slot| self.slot(log, *slot))
    }

    fn value(&self, value: &Value) -> bool {
        match value {
            Value::Commands(batch) => batch.log_time_ms <= self.log_time_ms + LOG_TIME_AHEAD_MAX_MS,
            Value::Config(change) => change.params.as_ref().is_none_or(are_sane),
            Value::Noop => true,
        }
    }

    fn accept(&self, accept: &Accept) -> bool {
        self.slot(accept.log, accept.slot)
            && self.slot(accept.log, accept.last_multi)
            && self.news(accept.log, &accept.news)
            && self.value(&accept.value)
    }

    fn lease(&self, message: &LeaseMessage) -> bool {
        match message {
            LeaseMessage::Guard { sequence } => *sequence <= COUNT_MAX,
            LeaseMessage::Relinquish { up_to } | LeaseMessage::Leave { recalls: up_to } => {
                *up_to <= COUNT_MAX
            }
            LeaseMessage::GuardAck { sequence, known }
            | LeaseMessage::PromiseAck { sequence, known } => {
                *sequence <= COUNT_MAX && self.config(*known)
            }
            LeaseMessage::Promise(promise) => {
                promise.sequence <= COUNT_MAX
                    && promise.base <= COUNT_MAX
                    && promise.t0 <= Durations::T0_MAX
                    && promise.t_guard.max(promise.t_lease) <= Durations::MAX
                    && self.config(promise.config)
                    && self.slot(LogId::Commands, promise.highest_accepted)
            }
        }
    }

    fn message(&self, message: &Message) -> bool {
        let round = round_of(message).is_none_or(|round| self.round(round));
        round
            && match message {
                Message::Prepare { commits, .. } => self.both(commits),
                Message::Prepared {
                    answer,
                    commits,
                    entries,
                    log_starts,
                    ..
                } => {
                    let entry = |entry: &ReportedEntry| {
                        self.ballot(&entry.ballot)
                            && self.slot(entry.log, entry.slot)
                            && self.value(&entry.value)
                    };
                    let start = |(log, ballot, slot): &(LogId, Ballot, Slot)| {
                        self.ballot(ballot) && self.slot(*log, *slot)
                    };
                    *answer <= COUNT_MAX
                        && self.both(commits)
                        && entries.iter().all(entry)
                        && log_starts.iter().all(start)
                }
                Message::PreVote { ask, .. } | Message::PreVoted { ask, .. } => *ask <= COUNT_MAX,
                Message::Accept(accept) => self.accept(accept),
                Message::Accepted { log, votes, .. } => {
                    votes.iter().all(|(slot, _)| self.slot(*log, *slot))
                }
                Message::Heartbeat { probe, logs, .. } => {
                    *probe <= COUNT_MAX && logs.all(|log, news| self.news(log, news))
                }
                Message::HeartbeatAck { probe, .. } => *probe <= COUNT_MAX,
                Message::Fetch { log, from, to } => self.slot(*log, *from) && self.slot(*log, *to),
                Message::Fetched { log, entries } => entries
                    .iter()
                    .all(|(slot, value)| self.slot(*log, *slot) && self.value(value)),
                Message::Lease(message) => self.lease(message),
                Message::Ping { flushed, .. } => self.both(flushed),
                Message::Pong { .. }
                | Message::Join { .. }
                | Message::Joined { .. }
                | Message::Rejected { .. }
                | Message::Forward { .. }
                | Message::Answered { .. }
                | Message::ForwardRead { .. }
                | Message::ReadAnswers(_)
                | Message::TransferRequest
                | Message::Transfer { .. }
                | Message::Move { .. } => true,
                Message::Demand(DemandReport { report, .. }) => {
                    // No client can read or write keys of other lengths, and no such key could ever
                    // be listed.
                    let mut lengths = report.deltas.iter().map(|delta| delta.key.len());
                    lengths.all(|length| (1..=KEY_BYTES_MAX).contains(&length))
                }
                Message::SetLease { ask, set } => *ask <= COUNT_MAX && set.durations.are_sane(),
                Message::LeaseAnswer { ask, answer } => {
                    let known = answer.as_ref().map(|in_force| self.config(in_force.config));
                    *ask <= COUNT_MAX && known.unwrap_or(true)
                }
            }
    }
}

#[cfg(test)]
mod tests;
