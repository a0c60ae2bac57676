//! Sessions: (client, sequence) -> result, in the replicated state, so that a
//! command is executed once however often it is proposed.
//!
//! Deterministic: sessions expire by log time, which is part of the log.
//!
//! A refusal is final (hazard 77): no copy of a refused command is executed later,
//! in whichever order the log holds them. There are two reasons to refuse:
//! - The client has no session and may not open one. That depends on the log time
//!   and on `opened_ms` alone. All commands of a session name the same `opened_ms`
//!   and log time never falls, so no later command opens the session either.
//! - The sequence is below the session's low-water mark and has no result. The mark
//!   never falls while the session lives. The session ends at a log time at which it
//!   may not be opened again, so the first reason holds from then on.
//!
//! A client that sends a refused command again under a new session relies on this.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};

use client::wire::{Command, Outcome};
use foldhash::fast::FixedState;
use leases::mutants::{Rule, off};

use super::super::action::SessionImage;

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
    /// Below what the client acknowledged or gave up, or the session has ended: no copy
    /// of it is ever executed from now on.
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
    /// `now_ms`. A session is opened at `opened_ms` or later, so until that plus its
    /// time to live it cannot have ended: the client has none because no command of
    /// it was executed. After that a command that was executed long ago would be
    /// executed again (hazard 21).
    ///
    /// The low-water mark says nothing here (hazard 77). A mark above 1 may be that of
    /// a client which gave its first write up. If such a command were refused, a late
    /// copy of the first write would open the session, and a copy of the refused
    /// command would be executed in it.
    pub fn may_open(&self, command: &Command, now_ms: u64) -> bool {
        let cannot_have_ended = self.would_outlive(command.opened_ms, now_ms);
        let by_mark = command.acked_below <= 1 || !off(Rule::H77Refused);
        by_mark && (cannot_have_ended || off(Rule::H21Reopened))
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

    /// Remembers the result of a write, executed at log time `now_ms`.
    pub fn record(&mut self, command: &Command, now_ms: u64, outcome: Outcome) {
        let Command {
            client,
            sequence,
            acked_below,
            ..
        } = *command;
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
        assert!(
            session.acked_below <= sequence,
            "nobody has acknowledged what is being executed"
        );
        let known = session.results.insert(sequence, outcome);
        assert!(
            known.is_none() || off(Rule::H21Once),
            "a sequence is executed once"
        );
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

    /// # Panics
    /// If what is kept of sessions contradicts itself.
    pub fn check(&self) {
        assert_eq!(
            self.by_activity.len(),
            self.by_client.len(),
            "every session is listed once by its activity"
        );
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
        sessions.record(&write(7, 1, 1), 0, outcome(5));
        assert_eq!(
            sessions.admit(&write(7, 1, 1), 0),
            Admission::Done(outcome(5))
        );
        assert_eq!(sessions.admit(&write(7, 2, 1), 0), Admission::Fresh);
    }

    #[test]
    fn a_delayed_first_attempt_after_its_acknowledgement_is_refused() {
        let mut sessions = Sessions::new(1000);
        sessions.record(&write(7, 1, 1), 0, outcome(5));
        sessions.record(&write(7, 2, 2), 0, outcome(6));
        assert_eq!(sessions.admit(&write(7, 1, 1), 0), Admission::Refused);
    }

    #[test]
    fn sequences_may_be_executed_out_of_order() {
        let mut sessions = Sessions::new(1000);
        sessions.record(&write(7, 3, 1), 0, outcome(5));
        assert_eq!(
            sessions.admit(&write(7, 2, 1), 0),
            Admission::Fresh,
            "not below the low-water mark"
        );
    }

    #[test]
    fn a_session_opens_whatever_its_client_has_given_up() {
        let mut sessions = Sessions::new(1000);
        // Write 1 was given up: the client's mark is past it. Write 2 comes first.
        assert_eq!(sessions.admit(&write(7, 2, 2), 999), Admission::Fresh);
        sessions.record(&write(7, 2, 2), 999, outcome(5));
        assert_eq!(sessions.admit(&write(7, 1, 1), 999), Admission::Refused);
        assert_eq!(
            sessions.admit(&write(7, 2, 2), 999),
            Admission::Done(outcome(5))
        );
    }

    /// Every order of copies of three commands, with time passing or not before each.
    #[test]
    fn what_was_refused_is_refused_for_ever() {
        let ttl_ms = 1000;
        // Sequence 1 is given up before 2 is sent, 2 is answered or given up before 3.
        let commands = [write(7, 1, 1), write(7, 2, 2), write(7, 3, 3)];
        let opened: Vec<Command> = commands.map(|command| command.opened(500)).into();
        let choices = opened.len() * 2;
        let length = 5;
        for case in 0..choices.pow(length) {
            let mut sessions = Sessions::new(ttl_ms);
            let (mut now_ms, mut refused) = (500, BTreeSet::new());
            for place in 0..length {
                let choice = case / choices.pow(place) % choices;
                now_ms += (choice % 2) as u64 * (ttl_ms + STEP_MS) / 2;
                sessions.expire(now_ms);
                let command = &opened[choice / 2];
                match sessions.admit(command, now_ms) {
                    Admission::Refused => {
                        refused.insert(command.sequence);
                    }
                    Admission::Done(_) => {}
                    Admission::Fresh => {
                        assert!(!refused.contains(&command.sequence), "case {case}");
                        sessions.record(command, now_ms, outcome(place.into()));
                    }
                }
            }
        }
    }

    #[test]
    fn an_expired_session_is_refused_and_not_opened_anew() {
        let mut sessions = Sessions::new(1000);
        sessions.record(&write(7, 1, 1), 0, outcome(5));
        sessions.expire(1999);
        assert!(sessions.knows(7));
        sessions.expire(2000);
        assert!(!sessions.knows(7));
        assert_eq!(sessions.admit(&write(7, 2, 2), 2000), Admission::Refused);
    }

    #[test]
    fn a_first_write_that_may_have_been_executed_and_forgotten_is_refused() {
        let mut sessions = Sessions::new(1000);
        let first = write(7, 1, 1).opened(500);
        assert_eq!(sessions.admit(&first, 1499), Admission::Fresh);
        sessions.record(&write(7, 1, 1), 600, outcome(5));
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
        sessions.record(&write(7, 1, 1), 5000, outcome(5));
        sessions.record(&write(7, 2, 1), 5500, outcome(6));
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
