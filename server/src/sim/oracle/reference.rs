//! A state machine of the oracles' own, written from the protocol (§1 "Sessions",
//! §7) and not from the replica: what executing the chosen commands in slot order
//! gives. Plain, and executed once for the whole cluster.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use client::wire::command::Op;
use client::wire::{
    Command, Entry, ErrorCode, Field, Outcome, Record as Fields, VALUE_BYTES_MAX, Version,
};
use foldhash::fast::FixedState;
use leases::Key;
use prost::Message as _;

/// Sessions end at whole seconds of log time, at the first that is their time to
/// live after the second in which they were last active ended.
const SECOND_MS: u64 = 1000;
/// Answers of more bytes are not told: the replica refuses some of them.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// What came of a write.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    /// It was executed, with this result.
    Executed(Outcome),
    /// It had been executed, with this result.
    Repeated(Outcome),
    /// Its session has ended, or has acknowledged it or given it up. No copy of it is
    /// executed from now on.
    Refused,
}

#[derive(Clone, Debug, Default)]
struct Session {
    acked_below: u64,
    active_ms: u64,
    results: Vec<(u64, Outcome)>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Reference {
    entries: BTreeMap<Key, (Bytes, Version)>,
    sessions: HashMap<u64, Session, FixedState>,
    log_time_ms: u64,
    ttl_ms: u64,
}

impl Reference {
    pub(super) fn new(ttl_ms: u64) -> Reference {
        Reference {
            ttl_ms,
            ..Reference::default()
        }
    }

    /// A batch of this log time begins. Log time never falls.
    pub(super) fn begin(&mut self, log_time_ms: u64) {
        self.log_time_ms = self.log_time_ms.max(log_time_ms);
    }

    fn session(&self, client: u64, at_ms: u64) -> Option<&Session> {
        let session = self.sessions.get(&client);
        session.filter(|session| session.active_ms + self.ttl_ms + SECOND_MS > at_ms)
    }

    /// Whether a write would be refused at this log time, if nothing came before it.
    pub(super) fn refuses(&self, command: &Command, at_ms: u64) -> bool {
        match self.session(command.client, at_ms) {
            // A session is opened only before one that was opened earlier could have
            // ended. The client's low-water mark says nothing about that.
            None => command.opened_ms + self.ttl_ms <= at_ms,
            Some(session) => {
                let known = session
                    .results
                    .iter()
                    .any(|(of, _)| *of == command.sequence);
                !known && command.sequence < session.acked_below
            }
        }
    }

    /// What is known of one client's session, and nothing else.
    pub(super) fn only(&self, client: u64) -> Reference {
        let session = self.sessions.get(&client).cloned();
        Reference {
            entries: BTreeMap::new(),
            sessions: session
                .map(|session| (client, session))
                .into_iter()
                .collect(),
            log_time_ms: self.log_time_ms,
            ttl_ms: self.ttl_ms,
        }
    }

    /// Executes a write, once.
    pub(super) fn write(&mut self, version: Version, command: &Command) -> Effect {
        let (client, sequence, now) = (command.client, command.sequence, self.log_time_ms);
        if self.refuses(command, now) {
            return Effect::Refused;
        }
        match self.session(client, now) {
            None => {
                self.sessions.remove(&client);
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
            _ => return Outcome::error(ErrorCode::BadRequest, ""),
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

    /// The record under `key` with `fields` put over it; `None` if it is none.
    fn merged(&self, key: &Key, fields: &[Field]) -> Option<Bytes> {
        let mut record = match self.entries.get(key) {
            Some((value, _)) => Fields::decode(value.clone()).ok()?,
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
        (merged.len() <= VALUE_BYTES_MAX).then(|| merged.into())
    }

    /// The answer to a read; `None`: too long to be told.
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
            _ => return None,
        }
        let bytes: usize = entries.iter().map(|e| e.key.len() + e.value.len()).sum();
        (bytes <= ANSWER_BYTES_MAX).then(|| Outcome::entries(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(slot: u64) -> Version {
        Version { slot, index: 0 }
    }

    fn put(client: u64, sequence: u64, acked_below: u64, value: &'static str) -> Command {
        Command::session(client, sequence, acked_below, Op::put("k", value))
    }

    #[test]
    fn a_sequence_is_executed_once() {
        let mut reference = Reference::new(1000);
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
        let mut reference = Reference::new(1000);
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
        let mut reference = Reference::new(1000);
        reference.write(at(1), &put(1, 1, 1, "a"));
        reference.begin(1999);
        assert!(matches!(
            reference.write(at(2), &put(1, 2, 2, "b")),
            Effect::Executed(_)
        ));
        reference.begin(2999);
        assert!(matches!(
            reference.write(at(3), &put(1, 3, 3, "c")),
            Effect::Executed(_)
        ));
        reference.begin(5000);
        assert_eq!(reference.write(at(4), &put(1, 4, 4, "d")), Effect::Refused);
    }

    #[test]
    fn reads_see_what_is_there() {
        let mut reference = Reference::new(1000);
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
            Some(client::wire::outcome::Result::Entries(all)) => all.entries.len(),
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
