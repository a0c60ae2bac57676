//! Sessions: (client, sequence) -> result, in the replicated state, so that a
//! command is executed once however often it is proposed.
//!
//! Deterministic: sessions expire by log time, which is part of the log.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};

use client::wire::{Command, Outcome};
use foldhash::fast::FixedState;
use leases::mutants::{Rule, off};

use super::action::SessionImage;

/// Activity is remembered in steps of this, so that a busy session is moved
/// rarely; a session may live this much longer than its time to live.
const STEP_MS: u64 = 1000;

/// What a session says to a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// Not executed before: execute it.
    Fresh,
    /// Executed before, with this result.
    Done(Outcome),
    /// Below what the client acknowledged, or the session is gone: never execute it.
    Refused,
}

#[derive(Clone, Debug, Default, Hash)]
struct Session {
    acked_below: u64,
    active_ms: u64,
    results: BTreeMap<u64, Outcome>,
}

/// All sessions.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    by_client: HashMap<u64, Session, FixedState>,
    by_activity: BTreeSet<(u64, u64)>,
    ttl_ms: u64,
    dirty: BTreeSet<u64>,
}

impl Hash for Sessions {
    /// `by_activity` follows from the sessions, and what is dirty matters to the
    /// next checkpoint alone: not before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        leases::fingerprint::unordered(&self.by_client, state);
    }
}

impl Sessions {
    /// Sessions that live `ttl_ms` of log time after their last command.
    pub fn new(ttl_ms: u64) -> Sessions {
        Sessions {
            ttl_ms,
            ..Sessions::default()
        }
    }

    /// What sessions say to a write at log time `now_ms`.
    pub fn admit(&self, command: &Command, now_ms: u64) -> Admission {
        let Some(session) = self.by_client.get(&command.client) else {
            return if self.may_open(command, now_ms) {
                Admission::Fresh
            } else {
                Admission::Refused
            };
        };
        match session.results.get(&command.sequence) {
            Some(outcome) if !off(Rule::H21Once) => Admission::Done(outcome.clone()),
            _ if command.sequence < session.acked_below && !off(Rule::H39Acknowledged) => {
                Admission::Refused
            }
            _ => Admission::Fresh,
        }
    }

    /// Whether a client without a session opens one with this command at log time
    /// `now_ms`: it has had no answer yet, and if any of its commands had been
    /// executed, its session would be here still. A session opens at `opened_ms`
    /// or later, so before that plus its time to live none can have expired; after
    /// it a command that was executed long ago would be executed again.
    pub fn may_open(&self, command: &Command, now_ms: u64) -> bool {
        let cannot_have_expired = self.would_outlive(command.opened_ms, now_ms);
        command.acked_below <= 1 && (cannot_have_expired || off(Rule::H21Reopened))
    }

    /// Whether a session last active at log time `active_ms` outlives `until_ms`.
    pub fn would_outlive(&self, active_ms: u64, until_ms: u64) -> bool {
        active_ms.saturating_add(self.ttl_ms) > until_ms
    }

    /// Whether `client` has a session that outlives log time `until_ms`.
    pub fn outlives(&self, client: u64, until_ms: u64) -> bool {
        let session = self.by_client.get(&client);
        session.is_some_and(|session| self.would_outlive(session.active_ms, until_ms))
    }

    /// Whether `client` has a session.
    pub fn knows(&self, client: u64) -> bool {
        self.by_client.contains_key(&client)
    }

    /// Remembers the result of `sequence`, executed at log time `now_ms`.
    pub fn record(
        &mut self,
        client: u64,
        sequence: u64,
        acked_below: u64,
        now_ms: u64,
        outcome: Outcome,
    ) {
        let session = self.by_client.entry(client).or_default();
        // A client cannot have had the answer to what is being executed.
        session.acked_below = session.acked_below.max(acked_below.min(sequence));
        while session
            .results
            .first_key_value()
            .is_some_and(|(first, _)| *first < session.acked_below)
        {
            session.results.pop_first();
        }
        session.results.insert(sequence, outcome);
        self.dirty.insert(client);
        let step = now_ms - now_ms % STEP_MS;
        if session.active_ms != step || session.results.len() == 1 {
            self.by_activity.remove(&(session.active_ms, client));
            session.active_ms = step;
            self.by_activity.insert((step, client));
        }
    }

    /// Ends sessions that have been silent for their time to live.
    pub fn expire(&mut self, now_ms: u64) {
        while let Some(&(active, client)) = self.by_activity.first() {
            if active + self.ttl_ms + STEP_MS > now_ms {
                return;
            }
            self.by_activity.pop_first();
            self.by_client.remove(&client);
            self.dirty.insert(client);
        }
    }

    /// Sessions changed since the last call.
    pub fn take_dirty(&mut self) -> Vec<(u64, Option<SessionImage>)> {
        let dirty = std::mem::take(&mut self.dirty);
        let image = |client: u64| {
            self.by_client.get(&client).map(|session| SessionImage {
                acked_below: session.acked_below,
                active_ms: session.active_ms,
                results: session
                    .results
                    .iter()
                    .map(|(s, o)| (*s, o.clone()))
                    .collect(),
            })
        };
        dirty
            .into_iter()
            .map(|client| (client, image(client)))
            .collect()
    }

    /// Puts a stored session back.
    pub fn restore(&mut self, client: u64, image: SessionImage) {
        self.by_activity.insert((image.active_ms, client));
        let session = Session {
            acked_below: image.acked_below,
            active_ms: image.active_ms,
            results: image.results.into_iter().collect(),
        };
        self.by_client.insert(client, session);
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.by_client.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::wire::command::Op;

    fn write(client: u64, sequence: u64, acked_below: u64) -> Command {
        Command::session(client, sequence, acked_below, Op::put("k", "v"))
    }

    fn outcome(slot: u64) -> Outcome {
        Outcome::written(client::wire::Version { slot, index: 0 })
    }

    #[test]
    fn a_retry_gets_the_first_result() {
        let mut sessions = Sessions::new(1000);
        assert_eq!(sessions.admit(&write(7, 1, 1), 0), Admission::Fresh);
        sessions.record(7, 1, 1, 0, outcome(5));
        assert_eq!(
            sessions.admit(&write(7, 1, 1), 0),
            Admission::Done(outcome(5))
        );
        assert_eq!(sessions.admit(&write(7, 2, 1), 0), Admission::Fresh);
    }

    #[test]
    fn a_delayed_first_attempt_after_its_acknowledgement_is_refused() {
        let mut sessions = Sessions::new(1000);
        sessions.record(7, 1, 1, 0, outcome(5));
        sessions.record(7, 2, 2, 0, outcome(6));
        assert_eq!(sessions.admit(&write(7, 1, 1), 0), Admission::Refused);
    }

    #[test]
    fn sequences_may_be_executed_out_of_order() {
        let mut sessions = Sessions::new(1000);
        sessions.record(7, 3, 1, 0, outcome(5));
        assert_eq!(
            sessions.admit(&write(7, 2, 1), 0),
            Admission::Fresh,
            "not below the low-water mark"
        );
    }

    #[test]
    fn an_expired_session_is_refused_and_not_opened_anew() {
        let mut sessions = Sessions::new(1000);
        sessions.record(7, 1, 1, 0, outcome(5));
        sessions.expire(1999);
        assert!(sessions.knows(7));
        sessions.expire(2000);
        assert!(!sessions.knows(7));
        assert_eq!(sessions.admit(&write(7, 2, 2), 0), Admission::Refused);
    }

    #[test]
    fn a_first_write_that_may_have_been_executed_and_forgotten_is_refused() {
        let mut sessions = Sessions::new(1000);
        let first = write(7, 1, 1).opened(500);
        assert_eq!(sessions.admit(&first, 1499), Admission::Fresh);
        sessions.record(7, 1, 1, 600, outcome(5));
        sessions.expire(60_000);
        assert_eq!(sessions.admit(&first, 60_000), Admission::Refused);
        assert_eq!(
            sessions.admit(&first.opened(59_500), 60_000),
            Admission::Fresh
        );
    }

    #[test]
    fn images_restore_what_they_were_taken_of() {
        let mut sessions = Sessions::new(1000);
        sessions.record(7, 1, 1, 5000, outcome(5));
        sessions.record(7, 2, 1, 5500, outcome(6));
        let images = sessions.take_dirty();
        assert!(sessions.take_dirty().is_empty());
        let mut restored = Sessions::new(1000);
        for (client, image) in images {
            restored.restore(client, image.expect("alive"));
        }
        assert_eq!(
            restored.admit(&write(7, 2, 1), 0),
            Admission::Done(outcome(6))
        );
        restored.expire(60_000);
        assert_eq!(restored.len(), 0);
    }
}
