//! A simple state machine that executes the chosen commands in slot order, once for the whole
//! cluster. It implements the protocol (§1 "Sessions", §7), and shares no code with the state
//! machine of replicas.

mod txn;

pub(super) use txn::may_be_repeated;

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use foldhash::fast::FixedState;
use leasehold_leases::Key;
use leasehold_wire::command::Op;
use leasehold_wire::{Command, Entry, ErrorCode, Field, Outcome, Record as Fields, Version};
use prost::Message as _;

use leasehold_replica::settings::SessionLimits;

/// Number of ms in a second of log time. A session ends when its time to live has passed since the
/// end of the second in which it was last active. Replicas end only a limited number of sessions
/// with one batch. But no run has enough sessions to reach this limit.
const SECOND_MS: u64 = 1000;
/// Maximum size of an answer that is predicted, in bytes. Longer answers are not predicted, because
/// replicas refuse some of them.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Maximum length of a record, and of a value after an append, in bytes.
const RECORD_BYTES_MAX: usize = 256 << 10;
/// Maximum number of fields of a record.
const FIELDS_MAX: usize = 1024;

/// Effect of a write.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    /// The write was executed, with this result.
    Executed(Outcome),
    /// The write had been executed before, with this result.
    Repeated(Outcome),
    /// The session of the write has ended, or its client has acknowledged or abandoned the write.
    /// No copy of the write is executed from now on.
    Refused,
    /// The write needs a session, but there is no room for it.
    NoRoom,
}

#[derive(Clone, Debug, Default)]
struct ReferenceSession {
    acked_below: u64,
    active_ms: u64,
    results: Vec<(u64, Outcome)>,
}

/// State machine of the oracles, which executes the chosen commands in slot order.
#[derive(Clone, Debug, Default)]
pub(super) struct ReferenceMachine {
    entries: BTreeMap<Key, (Bytes, Version)>,
    sessions: HashMap<u64, ReferenceSession, FixedState>,
    log_time_ms: u64,
    ttl_ms: u64,
    stay_ms: u64,
    /// Maximum number of sessions while the present batch is executed; 0: no limit.
    sessions_max: usize,
    /// Log time in ms. A session that was begun before this time may have ended to make room. A
    /// write that would open the session again is refused.
    opens_from_ms: u64,
}

impl ReferenceMachine {
    pub(super) fn new(limits: &SessionLimits) -> ReferenceMachine {
        ReferenceMachine {
            ttl_ms: limits.ttl.as_millis() as u64,
            stay_ms: limits.stay.as_millis() as u64,
            ..ReferenceMachine::default()
        }
    }

    /// Begins a batch: sets the log time, which never decreases, and the maximum number of
    /// sessions.
    pub(super) fn begin(&mut self, log_time_ms: u64, sessions_max: u32) {
        self.log_time_ms = self.log_time_ms.max(log_time_ms);
        self.sessions_max = sessions_max as usize;
    }

    /// Whether a session may have to end to make room for the next `more` commands.
    pub(super) fn is_crowded(&self, more: usize) -> bool {
        self.sessions_max > 0 && self.sessions.len() + more > self.sessions_max
    }

    /// Makes room for a new session, and returns whether there is room. If there are too many
    /// sessions, the session that was silent for the longest time ends, if it was silent for long
    /// enough. If there are still too many sessions, a second session ends in the same way.
    fn make_room(&mut self) -> bool {
        let (ttl_ms, now) = (self.ttl_ms, self.log_time_ms);
        self.sessions
            .retain(|_, session| session.active_ms + ttl_ms + SECOND_MS > now);
        for may_be_more in [false, true] {
            if self.sessions_max == 0 || self.sessions.len() < self.sessions_max {
                return true;
            }
            let ages = self
                .sessions
                .iter()
                .map(|(client, s)| (s.active_ms, *client));
            let Some((active_ms, client)) = ages.min() else {
                return true;
            };
            if active_ms + SECOND_MS + self.stay_ms > now {
                return may_be_more;
            }
            self.sessions.remove(&client);
            self.opens_from_ms = self.opens_from_ms.max(active_ms + SECOND_MS);
        }
        true
    }

    fn session(&self, client: u64, at_ms: u64) -> Option<&ReferenceSession> {
        let session = self.sessions.get(&client);
        session.filter(|session| session.active_ms + self.ttl_ms + SECOND_MS > at_ms)
    }

    /// Whether a write would be refused if it were executed next, at log time `at_ms`.
    pub(super) fn refuses(&self, command: &Command, at_ms: u64) -> bool {
        match self.session(command.client, at_ms) {
            // A session is opened only until another one that was opened at the same time could
            // have expired, and not if it may already have ended to make room. The client's
            // low-water mark is not considered for a new session.
            None => {
                let opened_ms = command.opened_ms;
                opened_ms + self.ttl_ms <= at_ms || opened_ms < self.opens_from_ms
            }
            Some(session) => {
                let known = session
                    .results
                    .iter()
                    .any(|(of, _)| *of == command.sequence);
                !known && command.sequence < session.acked_below
            }
        }
    }

    /// Returns a state machine with the session of one client, and nothing else.
    pub(super) fn only(&self, client: u64) -> ReferenceMachine {
        let session = self.sessions.get(&client).cloned();
        ReferenceMachine {
            entries: BTreeMap::new(),
            sessions: session
                .map(|session| (client, session))
                .into_iter()
                .collect(),
            ..*self
        }
    }

    /// Executes a write, unless it was executed before.
    pub(super) fn write(&mut self, version: Version, command: &Command) -> Effect {
        let (client, sequence, now) = (command.client, command.sequence, self.log_time_ms);
        if self.refuses(command, now) {
            return Effect::Refused;
        }
        match self.session(client, now) {
            None => {
                self.sessions.remove(&client);
                if !self.make_room() {
                    return Effect::NoRoom;
                }
            }
            Some(session) => {
                let known = session.results.iter().find(|(of, _)| *of == sequence);
                if let Some((_, outcome)) = known {
                    return Effect::Repeated(outcome.clone());
                }
            }
        }
        let outcome = self.change(version, command);
        let session = self.sessions.entry(client).or_default();
        let acked = command.acked_below.min(sequence);
        session.acked_below = session.acked_below.max(acked);
        let acked_below = session.acked_below;
        session.results.retain(|(of, _)| *of >= acked_below);
        session.results.push((sequence, outcome.clone()));
        session.active_ms = now - now % SECOND_MS;
        Effect::Executed(outcome)
    }

    fn change(&mut self, version: Version, command: &Command) -> Outcome {
        match &command.op {
            Some(Op::Put(put)) => self.put(&put.key, put.value.clone(), version),
            Some(Op::Delete(delete)) => {
                self.entries.remove(&delete.key);
            }
            Some(Op::Cas(cas)) => {
                let actual = self.entries.get(&cas.key).map(|(_, version)| *version);
                if actual != cas.expected {
                    return Outcome::mismatch(actual);
                }
                self.put(&cas.key, cas.value.clone(), version);
            }
            Some(Op::PutFields(put)) => match self.merged(&put.key, &put.fields) {
                Some(merged) => self.put(&put.key, merged, version),
                None => return Outcome::error(ErrorCode::NotARecord, ""),
            },
            Some(Op::MultiPut(multi)) => {
                for entry in &multi.entries {
                    self.put(&entry.key, entry.value.clone(), version);
                }
            }
            Some(Op::Txn(txn)) => {
                let mut after = self.entries.clone();
                return match txn::execute(&mut after, version, txn) {
                    Ok(result) => {
                        self.entries = after;
                        Outcome::txn(result)
                    }
                    Err(outcome) => outcome,
                };
            }
            Some(Op::Get(_) | Op::MultiGet(_) | Op::Scan(_)) | None => {
                return Outcome::error(ErrorCode::BadRequest, "");
            }
        }
        Outcome::written(version)
    }

    fn put(&mut self, key: &Key, value: Bytes, version: Version) {
        match self.entries.get_mut(key) {
            Some(entry) => *entry = (value, version),
            None => {
                self.entries.insert(key.clone(), (value, version));
            }
        }
    }

    fn merged(&self, key: &Key, fields: &[Field]) -> Option<Bytes> {
        let value = self.entries.get(key).map(|(value, _)| value);
        merged(value, fields)
    }

    /// Returns the answer to a read; `None` if the answer is too long to be predicted.
    pub(super) fn read(&self, op: &Op) -> Option<Outcome> {
        let mut entries = Vec::new();
        let entry = |(key, (value, version)): (&Key, &(Bytes, Version))| Entry {
            key: key.clone(),
            value: value.clone(),
            version: Some(*version),
        };
        match op {
            Op::Get(get) => {
                let found = self.entries.get(&get.key);
                let value =
                    |(value, version): &(Bytes, Version)| Outcome::value(value.clone(), *version);
                return Some(found.map_or_else(Outcome::missing, value));
            }
            Op::MultiGet(multi) => {
                let found = multi
                    .keys
                    .iter()
                    .filter_map(|key| self.entries.get_key_value(key));
                entries.extend(found.map(entry));
            }
            Op::Scan(scan) => {
                let from = self.entries.range::<Key, _>(&scan.from..);
                let within = from.take_while(|(key, _)| scan.to.is_empty() || **key < scan.to);
                entries.extend(within.take(scan.limit as usize).map(entry));
            }
            Op::Put(_) | Op::Delete(_) | Op::Cas(_) | Op::PutFields(_) => return None,
            Op::MultiPut(_) | Op::Txn(_) => return None,
        }
        let bytes: usize = entries.iter().map(|e| e.key.len() + e.value.len()).sum();
        (bytes <= ANSWER_BYTES_MAX).then(|| Outcome::entries(entries))
    }
}

/// Returns the record that is stored as `value`; `None` if the value is not a record.
fn record(value: &Bytes) -> Option<Fields> {
    if value.len() > RECORD_BYTES_MAX {
        return None;
    }
    let record = Fields::decode(value.clone()).ok()?;
    // Other encodings, and unknown fields, make no record.
    let is_record = record.encode_to_vec() == *value && record.fields.len() <= FIELDS_MAX;
    is_record.then_some(record)
}

/// Returns the record `value` after `fields` are merged into it; `None` if the value is not a
/// record.
fn merged(value: Option<&Bytes>, fields: &[Field]) -> Option<Bytes> {
    let mut record = match value {
        Some(value) => record(value)?,
        None => Fields::default(),
    };
    for field in fields {
        let mut known = record.fields.iter_mut();
        match known.find(|known| known.name == field.name) {
            Some(known) => known.value = field.value.clone(),
            None => record.fields.push(field.clone()),
        }
    }
    let merged = record.encode_to_vec();
    let fits = merged.len() <= RECORD_BYTES_MAX && record.fields.len() <= FIELDS_MAX;
    fits.then(|| merged.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn limits(ttl_ms: u64, stay_ms: u64) -> SessionLimits {
        SessionLimits {
            ttl: Duration::from_millis(ttl_ms),
            stay: Duration::from_millis(stay_ms),
            ..SessionLimits::default()
        }
    }

    fn at(slot: u64) -> Version {
        Version { slot, index: 0 }
    }

    fn put(client: u64, sequence: u64, acked_below: u64, value: &'static str) -> Command {
        Command::session(client, sequence, acked_below, Op::put("k", value))
    }

    #[test]
    fn a_sequence_is_executed_once() {
        let mut reference = ReferenceMachine::new(&limits(1000, 0));
        let first = reference.write(at(1), &put(1, 1, 1, "a"));
        assert_eq!(first, Effect::Executed(Outcome::written(at(1))));
        reference.write(at(2), &put(2, 1, 1, "b"));
        let again = reference.write(at(3), &put(1, 1, 1, "a"));
        assert_eq!(again, Effect::Repeated(Outcome::written(at(1))));
        assert_eq!(
            reference.read(&Op::get("k")),
            Some(Outcome::value("b", at(2)))
        );
        reference.write(at(4), &put(1, 2, 2, "c"));
        assert_eq!(reference.write(at(5), &put(1, 1, 1, "a")), Effect::Refused);
    }

    #[test]
    fn a_session_opens_whatever_was_given_up_before() {
        let mut reference = ReferenceMachine::new(&limits(1000, 0));
        let second = put(1, 2, 2, "b");
        assert!(matches!(
            reference.write(at(1), &second),
            Effect::Executed(_)
        ));
        assert_eq!(reference.write(at(2), &put(1, 1, 1, "a")), Effect::Refused);
        assert!(matches!(
            reference.write(at(3), &second),
            Effect::Repeated(_)
        ));
    }

    #[test]
    fn a_session_ends_and_is_not_opened_again() {
        let mut reference = ReferenceMachine::new(&limits(1000, 0));
        reference.write(at(1), &put(1, 1, 1, "a"));
        reference.begin(1999, 0);
        assert!(matches!(
            reference.write(at(2), &put(1, 2, 2, "b")),
            Effect::Executed(_)
        ));
        reference.begin(2999, 0);
        assert!(matches!(
            reference.write(at(3), &put(1, 3, 3, "c")),
            Effect::Executed(_)
        ));
        reference.begin(5000, 0);
        assert_eq!(reference.write(at(4), &put(1, 4, 4, "d")), Effect::Refused);
    }

    #[test]
    fn a_session_makes_room_and_is_not_opened_again() {
        let mut reference = ReferenceMachine::new(&limits(60_000, 2000));
        let first = put(1, 1, 1, "a").opened(500);
        reference.begin(1500, 1);
        assert!(matches!(
            reference.write(at(1), &first),
            Effect::Executed(_)
        ));
        let second = put(2, 1, 1, "b").opened(2500);
        reference.begin(3999, 1);
        assert_eq!(reference.write(at(2), &second), Effect::NoRoom);
        reference.begin(4000, 1);
        assert!(matches!(
            reference.write(at(3), &second),
            Effect::Executed(_)
        ));
        reference.begin(20_000, 1);
        assert_eq!(reference.write(at(4), &first), Effect::Refused);
        let third = put(3, 1, 1, "c").opened(1999);
        assert_eq!(reference.write(at(5), &third), Effect::Refused);
        let third = third.opened(2000);
        assert!(matches!(
            reference.write(at(6), &third),
            Effect::Executed(_)
        ));
    }

    #[test]
    fn two_sessions_make_room_for_one_while_there_are_too_many() {
        let mut reference = ReferenceMachine::new(&limits(60_000, 0));
        for client in 1..=5 {
            reference.write(at(client), &put(client, 1, 1, "a"));
        }
        let opened = |client| put(client, 1, 1, "b").opened(2000);
        for (client, sessions) in [(6, 4), (7, 3), (8, 2), (9, 2)] {
            reference.begin(client * 1000, 2);
            reference.write(at(client), &opened(client));
            assert_eq!(reference.sessions.len(), sessions, "after {client}");
        }
    }

    #[test]
    fn reads_see_what_is_there() {
        let mut reference = ReferenceMachine::new(&limits(1000, 0));
        let field = |name: &'static str, value: &'static str| Field {
            name: name.into(),
            value: value.into(),
        };
        let fields = Op::put_fields("r", vec![field("x", "1"), field("y", "2")]);
        reference.write(at(1), &Command::session(1, 1, 1, fields));
        let fields = Op::put_fields("r", vec![field("x", "3")]);
        reference.write(at(2), &Command::session(1, 2, 2, fields));
        let record = Fields {
            fields: vec![field("x", "3"), field("y", "2")],
        };
        let merged = Outcome::value(record.encode_to_vec(), at(2));
        assert_eq!(reference.read(&Op::get("r")), Some(merged));
        reference.write(at(3), &put(1, 3, 3, "v"));
        let keys = |outcome: Option<Outcome>| match outcome.and_then(|o| o.result) {
            Some(leasehold_wire::outcome::Result::Entries(all)) => all.entries.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(keys(reference.read(&Op::scan("", "", 10))), 2);
        assert_eq!(keys(reference.read(&Op::scan("", "", 1))), 1);
        assert_eq!(keys(reference.read(&Op::scan("a", "r", 10))), 1);
        let multi = Op::multi_get(vec!["k".into(), "none".into()]);
        assert_eq!(keys(reference.read(&multi)), 1);
        reference.write(at(4), &Command::session(1, 4, 4, Op::delete("k")));
        assert_eq!(reference.read(&Op::get("k")), Some(Outcome::missing()));
    }
}
