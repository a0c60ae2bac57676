//! Sessions: a map in the replicated state, from a client and the sequence number of a write to the
//! result of that write. Sessions ensure that a command is executed only once, however often it is
//! proposed.
//!
//! Sessions are deterministic: they end by log time and by the bound that each batch names, and
//! both are part of the log.
//!
//! # Room
//! Each batch names the maximum number of sessions, which applies while the batch is executed. If a
//! client needs a new session and there is no room, the least recently active session ends. It must
//! have been silent for `stay`. If no session has been silent for that long, the new one is not
//! opened for now.
//!
//! No session with an unanswered write ends if its client waits for less than `stay`. The reasons
//! are:
//! - A session's activity is the log time at which its last write was executed. Log time passes at
//!   the rate of a leader's clock, and a new leader continues from the highest value that it
//!   recovers. So, apart from the drift of clocks, log time is no faster than true time.
//! - A client sends a write before it is executed. When a session ends, `stay` has passed since its
//!   last write was executed, and more time since any of its executed writes was sent. By then the
//!   client has received the answers to these writes, or has stopped waiting: the client library
//!   waits for 10 s by default, and the default of `stay` is three times as long.
//! - A write that is executed only after its session has ended is refused for good, and its
//!   client may send it again under a new session.
//!
//! A client that waits for longer is told the truth: it receives the error that its session has
//! ended, and the library reports that the write may have taken effect.
//!
//! A late copy of a command that a session had executed must not open the session again after its
//! end (hazard 84). So whenever a session ends to make room, `opens_from_ms` rises above its last
//! activity. The client had opened the session before that time, and all its commands carry the
//! time of opening.
//!
//! # Refusals
//! A refusal is final (hazard 77): no copy of a refused command is executed later,
//! in whichever order the log holds them. There are two reasons to refuse:
//! - The client has no session and may not open one. That depends only on the log time, on
//!   `opens_from_ms` and on `opened_ms`. All commands of a session name the same `opened_ms`, and
//!   neither log time nor `opens_from_ms` ever falls. So no later command opens the session either.
//! - The sequence is below the session's low-water mark and has no result. The mark never falls
//!   while the session lives. Once the session has ended, the log time or `opens_from_ms` prevents
//!   it from being opened again. So the first reason holds from then on.
//!
//! A client that sends a refused command again under a new session relies on this. A lack of room
//! is no refusal: a later copy of the command may find room.

mod results;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use leasehold_leases::growing::GrowingMap;
use leasehold_leases::mutants::{Rule, off};
use leasehold_wire::{Command, Outcome};

use self::results::Results;
use crate::action::SessionImage;
use crate::settings::{SESSION_STEP, SessionLimits};

const STEP_MS: u64 = SESSION_STEP.as_millis() as u64;
/// Maximum number of sessions that end because of their age when a batch is executed. The limit
/// keeps steps short. Further sessions end when the next batches are executed. It does no harm if a
/// session ends late.
const EXPIRED_MAX: usize = 1024;
/// Number of results of a session that cost as much as one key when the session is written to disk.
/// An encoded result counts as one result more for each `COMPACT_BYTES` bytes of its encoding.
const RESULTS_OF_ONE: usize = 16;
/// Maximum number of old sessions that end when one new session opens. This number is more than
/// one, so that the number of sessions can fall after its maximum was lowered.
const ENDED_MAX: usize = 2;

/// Decision of the sessions about a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// The command was not executed before: it may be executed now.
    Fresh,
    /// The command was executed before, with this result.
    Done(Outcome),
    /// The client has acknowledged or abandoned this sequence number, or the session has ended.
    /// From now on no copy of the command is ever executed.
    Refused,
    /// There is no room for another session, so the command is not executed now. A later copy of
    /// the command may be executed.
    NoRoom,
}

/// Bounds on the effects that the commands in flight before a given command may have on the
/// sessions.
#[derive(Clone, Copy, Debug)]
pub struct InFlightBound {
    /// Number of clients with writes in flight. This number includes the client of the given
    /// command.
    pub clients: usize,
    /// Lowest maximum number of sessions among the batches in flight; 0 if there is no maximum.
    pub sessions_max: u32,
}

#[derive(Clone, Debug, Hash)]
struct Session {
    acked_below: u64,
    active_ms: u64,
    results: Results,
}

/// All sessions.
#[derive(Clone, Debug)]
pub struct Sessions {
    by_client: GrowingMap<u64, Session>,
    by_activity: BTreeSet<(u64, u64)>,
    ttl_ms: u64,
    stay_ms: u64,
    /// Maximum number of sessions, taken from the last batch; 0 if there is no maximum.
    max: u32,
    /// Log time, in ms. A session that was opened before this time may have ended to make room for
    /// another.
    opens_from_ms: u64,
    /// Sessions that have changed since the last checkpoint, each with its part of `dirty_cost`.
    dirty: BTreeMap<u64, usize>,
    dirty_cost: usize,
    made_room: u64,
    no_room: u64,
}

impl Hash for Sessions {
    /// Hashes the sessions and `opens_from_ms`. `by_activity` is omitted because it follows from
    /// the sessions, and `max` is omitted because every batch contains it. The dirty sessions are
    /// omitted because they have no effect in the period for which a fingerprint is valid
    /// (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        leasehold_leases::fingerprint::unordered(self.by_client.iter(), state);
        self.opens_from_ms.hash(state);
    }
}

impl Sessions {
    /// Returns an empty set of sessions.
    ///
    /// # Panics
    /// If `stay` exceeds the time to live: sessions would end by their age earlier than `stay`
    /// permits.
    pub fn new(limits: &SessionLimits) -> Sessions {
        assert!(limits.stay <= limits.ttl, "no session stays beyond its end");
        Sessions {
            by_client: GrowingMap::default(),
            by_activity: BTreeSet::new(),
            ttl_ms: limits.ttl.as_millis() as u64,
            stay_ms: limits.stay.as_millis() as u64,
            max: limits.max,
            opens_from_ms: 0,
            dirty: BTreeMap::new(),
            dirty_cost: 0,
            made_room: 0,
            no_room: 0,
        }
    }

    /// Begins the execution of a batch at log time `now_ms`, with room for `max` sessions (0: any
    /// number). Ends sessions that have been silent for their time to live.
    pub fn begin(&mut self, now_ms: u64, max: u32) {
        self.max = max;
        for _ in 0..EXPIRED_MAX {
            match self.by_activity.first() {
                Some(&(active_ms, client)) if active_ms + self.ttl_ms + STEP_MS <= now_ms => {
                    self.end(active_ms, client);
                }
                _ => return,
            }
        }
    }

    fn end(&mut self, active_ms: u64, client: u64) {
        self.by_activity.remove(&(active_ms, client));
        self.by_client.remove(&client);
        self.touch(client, 1);
    }

    /// Notes that a session has changed. `results` is the present size of its results.
    fn touch(&mut self, client: u64, results: usize) {
        let cost = results.div_ceil(RESULTS_OF_ONE);
        let counted = self.dirty.entry(client).or_default();
        self.dirty_cost += cost.saturating_sub(*counted);
        *counted = cost.max(*counted);
    }

    /// Decides whether a write may be executed at log time `now_ms`.
    pub fn admit(&self, command: &Command, now_ms: u64) -> Admission {
        let Some(session) = self.by_client.get(&command.client) else {
            return if !self.may_open(command, now_ms) {
                Admission::Refused
            } else if self.has_room(now_ms) {
                Admission::Fresh
            } else {
                Admission::NoRoom
            };
        };
        match session.results.get(command.sequence) {
            Some(kept) if !off(Rule::H21Once) => Admission::Done(kept.outcome()),
            _ if command.sequence < session.acked_below && !off(Rule::H39Acknowledged) => {
                Admission::Refused
            }
            _ => Admission::Fresh,
        }
    }

    /// Whether a client without a session may open one with this command at log time `now_ms`. The
    /// room for another session is not checked. The client may open the session if it is certain
    /// that no command of that session was executed yet. Without this condition, a command that was
    /// executed long ago might be executed again (hazards 21 and 84).
    ///
    /// The session opens at log time `opened_ms` or later. So the session cannot have ended by its
    /// age before `opened_ms` plus its time to live. If `opened_ms` is at least `opens_from_ms`,
    /// the session cannot have ended to make room.
    ///
    /// The low-water mark is not considered (hazard 77). A mark above 1 may come from a client that
    /// abandoned its first write. Suppose that a command with such a mark were refused. A late copy
    /// of the first write would then open the session. In this session, a copy of the refused
    /// command would be executed.
    fn may_open(&self, command: &Command, now_ms: u64) -> bool {
        let is_young = self.would_outlive(command.opened_ms, now_ms) || off(Rule::H21Reopened);
        let has_not_made_room = command.opened_ms >= self.opens_from_ms || off(Rule::H84Room);
        let by_mark = command.acked_below <= 1 || !off(Rule::H77Refused);
        by_mark && is_young && has_not_made_room
    }

    fn has_room(&self, now_ms: u64) -> bool {
        let oldest = self.by_activity.first();
        !self.is_full() || oldest.is_some_and(|(active_ms, _)| !self.stays(*active_ms, now_ms))
    }

    fn is_full(&self) -> bool {
        self.max != 0 && self.len() >= self.max as usize
    }

    /// Whether a session is protected at log time `now_ms`. A protected session must not end, even
    /// if other clients need its room (hazard 85). `active_ms` is the log time at which the session
    /// was last active.
    fn stays(&self, active_ms: u64, now_ms: u64) -> bool {
        active_ms + STEP_MS + self.stay_ms > now_ms && !off(Rule::H85Stays)
    }

    fn make_room(&mut self, now_ms: u64) {
        for _ in 0..ENDED_MAX {
            match self.by_activity.first() {
                Some(&(active_ms, client)) if self.is_full() && !self.stays(active_ms, now_ms) => {
                    self.end(active_ms, client);
                    self.opens_from_ms = self.opens_from_ms.max(active_ms + STEP_MS);
                    self.made_room += 1;
                }
                _ => return,
            }
        }
    }

    /// Whether a session still exists at log time `until_ms` if it was last active at log time
    /// `active_ms`. This assumes that the session does not end to make room.
    fn would_outlive(&self, active_ms: u64, until_ms: u64) -> bool {
        active_ms.saturating_add(self.ttl_ms) > until_ms
    }

    /// Whether this write is certain to have a session when it is executed at log time `now_ms`.
    /// The session may exist before, or the write may open it. Each slot in flight before the write
    /// may open the sessions of its commands, or may turn out to be empty. The write must be
    /// certain to have a session in all of these cases (hazard 31).
    ///
    /// A session ends to make room only when a command opens another session. While there is room
    /// for the sessions of all commands in flight, no session ends for this reason, and
    /// `opens_from_ms` does not change.
    pub fn is_certain(&self, command: &Command, now_ms: u64, in_flight: InFlightBound) -> bool {
        let most = self.len() + in_flight.clients;
        let room = in_flight.sessions_max == 0 || most <= in_flight.sessions_max as usize;
        let room = room || off(Rule::H31Room);
        match self.by_client.get(&command.client) {
            Some(session) => {
                let active_ms = session.active_ms;
                self.would_outlive(active_ms, now_ms) && (room || self.stays(active_ms, now_ms))
            }
            None => room && self.may_open(command, now_ms),
        }
    }

    /// Whether `client` has a session.
    pub fn knows(&self, client: u64) -> bool {
        self.by_client.contains_key(&client)
    }

    /// Counts a command for which there was no room for a session.
    pub fn note_no_room(&mut self) {
        self.no_room += 1;
    }

    /// Remembers the result of a write, executed at log time `now_ms`.
    pub fn record(&mut self, command: &Command, now_ms: u64, outcome: Outcome) {
        let (client, sequence) = (command.client, command.sequence);
        // A client cannot have received the answer to a command that is just being executed.
        let acked_below = command.acked_below.min(sequence);
        let step_ms = now_ms - now_ms % STEP_MS;
        let Some(session) = self.by_client.get_mut(&client) else {
            self.make_room(now_ms);
            let session = Session {
                acked_below,
                active_ms: step_ms,
                results: Results::One(sequence, outcome.into()),
            };
            self.touch(client, session.results.size());
            self.by_client.insert(client, session);
            self.by_activity.insert((step_ms, client));
            return;
        };
        session.acked_below = session.acked_below.max(acked_below);
        assert!(
            session.acked_below <= sequence,
            "no client has acknowledged the command being executed"
        );
        let results = &mut session.results;
        let is_new = results.insert(sequence, outcome.into(), session.acked_below);
        assert!(is_new || off(Rule::H21Once), "a sequence is executed once");
        let size = results.size();
        if session.active_ms != step_ms {
            let before_ms = std::mem::replace(&mut session.active_ms, step_ms);
            self.by_activity.remove(&(before_ms, client));
            self.by_activity.insert((step_ms, client));
        }
        self.touch(client, size);
    }

    /// Cost of the changes since the last call of [`Sessions::take_dirty`]. The unit is the cost of
    /// one key, which equals the cost of a session with one result.
    pub fn dirty_cost(&self) -> usize {
        self.dirty_cost
    }

    /// Removes and returns the sessions that have changed since the last call, each with its
    /// client. The entry of a session that has ended is `None`.
    pub fn take_dirty(&mut self) -> Vec<(u64, Option<SessionImage>)> {
        let dirty = std::mem::take(&mut self.dirty);
        self.dirty_cost = 0;
        let image = |client: u64| {
            self.by_client.get(&client).map(|session| SessionImage {
                acked_below: session.acked_below,
                active_ms: session.active_ms,
                results: session.results.image(),
            })
        };
        dirty
            .into_keys()
            .map(|client| (client, image(client)))
            .collect()
    }

    /// Earliest start time, in ms of log time, with which a client may still open a session.
    /// Checkpoints store this time.
    pub fn opens_from_ms(&self) -> u64 {
        self.opens_from_ms
    }

    /// Restores `opens_from_ms` from a checkpoint.
    pub fn restore_opens_from(&mut self, opens_from_ms: u64) {
        if !off(Rule::H84Durable) {
            self.opens_from_ms = opens_from_ms;
        }
    }

    /// Restores a session from a checkpoint.
    pub fn restore(&mut self, client: u64, image: SessionImage) {
        self.by_activity.insert((image.active_ms, client));
        let session = Session {
            acked_below: image.acked_below,
            active_ms: image.active_ms,
            results: Results::restore(image.results),
        };
        self.by_client.insert(client, session);
    }

    /// Checks the invariants of the sessions.
    ///
    /// # Panics
    /// If the sessions contradict their order by activity.
    pub fn check(&self) {
        assert_eq!(
            self.by_activity.len(),
            self.by_client.len(),
            "every session is listed once by its activity"
        );
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.by_client.len()
    }

    /// Returns the maximum number of sessions, taken from the last batch; 0 if there is no maximum.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Number of sessions that ended here in this run to make room.
    pub fn made_room(&self) -> u64 {
        self.made_room
    }

    /// Number of commands that were not executed here in this run, because there was no room for a
    /// session.
    pub fn no_room(&self) -> u64 {
        self.no_room
    }
}
