//! Writes of the load, and the values that a reader may find after a loss of power.
//!
//! One writer at a time writes a key, so the writes of a key are in order. If a write ends without
//! an answer, it may take effect at any later time. Its key is then not written again.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_client::Version;

use crate::chance::Chance;

/// Size in bytes of a write's number. A stored value consists of this number and the filler after
/// it.
const NUMBER_BYTES: usize = 8;

/// A write of one key.
#[derive(Clone, Debug)]
pub struct KeyWrite {
    /// Number of the write. No other write of the run has the same number.
    pub number: u64,
    /// Length of the filler in bytes; `None` if the write removes the key.
    pub filler: Option<usize>,
    /// Time of the request, in ns of the monotonic clock.
    pub sent_ns: u64,
    /// Time of the answer, and the version that the answer contains; `None` if no answer came.
    pub acked: Option<(u64, Version)>,
}

impl KeyWrite {
    /// Returns the value of the key after this write; `None` if the write removes the key.
    pub fn value(&self, key: &str) -> Option<Bytes> {
        self.filler.map(|filler| value(key, self.number, filler))
    }

    fn is_acked_by(&self, at_ns: u64) -> bool {
        self.acked.is_some_and(|(acked_ns, _)| acked_ns <= at_ns)
    }
}

/// Returns the value of a write: its number, and a filler that depends on the key and the number.
fn value(key: &str, number: u64, filler: usize) -> Bytes {
    let mut bytes = number.to_le_bytes().to_vec();
    let mut chance = Chance::new(number, u64::from(crc(key)));
    while bytes.len() < NUMBER_BYTES + filler {
        bytes.extend(chance.number().to_le_bytes());
    }
    bytes.truncate(NUMBER_BYTES + filler);
    bytes.into()
}

/// Returns a hash of a key.
fn crc(key: &str) -> u32 {
    let step = |sum: u32, byte: u8| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    key.bytes().fold(0x811c_9dc5, step)
}

/// Writes of a key, in order.
#[derive(Clone, Debug, Default)]
struct KeyHistory {
    writes: Vec<KeyWrite>,
}

impl KeyHistory {
    /// Whether the key must not be written again, because one of its writes got no answer.
    fn is_retired(&self) -> bool {
        self.writes.iter().any(|write| write.acked.is_none())
    }
}

/// A value that a reader found, with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundValue {
    pub value: Bytes,
    pub version: Version,
}

/// Kind of a contradiction between the writes and a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// An acknowledged write is lost: the key is missing, or has an older value.
    Lost,
    /// The key has a value that was never written. Or the key has an acknowledged value, but not
    /// the acknowledged version.
    Wrong,
}

/// Contradiction between the writes and a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub kind: LossKind,
    pub words: String,
}

/// Writes of all keys.
#[derive(Clone, Debug, Default)]
pub struct WriteHistory {
    keys: BTreeMap<String, KeyHistory>,
    last_number: u64,
}

impl WriteHistory {
    /// Begins a write, and returns it. From now on, the write is treated as sent.
    pub fn begin(&mut self, key: &str, filler: Option<usize>, sent_ns: u64) -> KeyWrite {
        self.last_number += 1;
        let write = KeyWrite {
            number: self.last_number,
            filler,
            sent_ns,
            acked: None,
        };
        let history = self.keys.entry(key.to_owned()).or_default();
        history.writes.push(write.clone());
        write
    }

    /// Notes that the last write of a key was acknowledged.
    pub fn acknowledge(&mut self, key: &str, at_ns: u64, version: Version) {
        let history = self.keys.get_mut(key);
        if let Some(write) = history.and_then(|it| it.writes.last_mut()) {
            write.acked = Some((at_ns, version));
        }
    }

    /// Forgets the last write of a key, because it certainly had no effect.
    pub fn withdraw(&mut self, key: &str) {
        if let Some(history) = self.keys.get_mut(key) {
            history.writes.pop();
        }
    }

    /// Returns the number that the next write will have.
    pub fn next_number(&self) -> u64 {
        self.last_number + 1
    }

    pub fn is_retired(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(KeyHistory::is_retired)
    }

    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.keys.keys()
    }

    /// Returns the number of writes that were acknowledged at or before the time `at_ns`.
    pub fn acked_by(&self, at_ns: u64) -> u64 {
        let writes = self.keys.values().flat_map(|history| &history.writes);
        writes.filter(|write| write.is_acked_by(at_ns)).count() as u64
    }

    /// Returns the time of the first acknowledgement at or after `from_ns`.
    pub fn first_ack(&self, from_ns: u64) -> Option<u64> {
        let writes = self.keys.values().flat_map(|history| &history.writes);
        let acks = writes.filter_map(|write| Some(write.acked?.0));
        acks.filter(|at_ns| *at_ns >= from_ns).min()
    }

    /// Removes all events after the time `at_ns`, at which the power failed. A write in flight at
    /// this time stays in the history without an answer, because the write may have taken effect.
    pub fn go_back(&mut self, at_ns: u64) {
        for history in self.keys.values_mut() {
            history.writes.retain(|write| write.sent_ns <= at_ns);
            for write in &mut history.writes {
                if !write.is_acked_by(at_ns) {
                    write.acked = None;
                }
            }
        }
        self.keys.retain(|_, history| !history.writes.is_empty());
    }

    /// Judges the value that a reader found for a key after a loss of power at `at_ns`.
    pub fn judge(&self, key: &str, found: Option<&FoundValue>, at_ns: u64) -> Result<(), Loss> {
        let none = KeyHistory::default();
        let history = self.keys.get(key).unwrap_or(&none);
        let sent = history.writes.iter().filter(|it| it.sent_ns <= at_ns);
        let sent: Vec<&KeyWrite> = sent.collect();
        let last_acked = sent.iter().rposition(|write| write.is_acked_by(at_ns));
        let allowed = &sent[last_acked.unwrap_or(0)..];
        let is_empty_allowed = last_acked.is_none() || allowed.iter().any(|it| it.filler.is_none());
        match found {
            None if is_empty_allowed => Ok(()),
            None => Err(lost(key, sent[last_acked.unwrap_or(0)], "it is missing")),
            Some(found) => {
                let Some(index) = position(&sent, key, &found.value) else {
                    let problem = format!("its {} bytes were never written", found.value.len());
                    return Err(wrong(key, &problem));
                };
                if let Some(acked) = last_acked.filter(|acked| index < *acked) {
                    let older = format!("it has the older write {}", sent[index].number);
                    return Err(lost(key, sent[acked], &older));
                }
                judge_version(key, sent[index], found, at_ns)
            }
        }
    }
}

/// Returns the index of the write that wrote exactly this value.
fn position(writes: &[&KeyWrite], key: &str, value: &Bytes) -> Option<usize> {
    let number = u64::from_le_bytes(*value.first_chunk()?);
    let index = writes.iter().position(|write| write.number == number)?;
    (writes[index].value(key).as_ref() == Some(value)).then_some(index)
}

/// Checks the version that a reader found. If the write was acknowledged by `at_ns`, this version
/// must be equal to the version in the acknowledgement.
fn judge_version(key: &str, write: &KeyWrite, found: &FoundValue, at_ns: u64) -> Result<(), Loss> {
    match write.acked {
        Some((acked_ns, version)) if acked_ns <= at_ns && version != found.version => {
            let number = write.number;
            let there = found.version;
            let problem =
                format!("write {number} has version {there}, but was acknowledged as {version}");
            Err(wrong(key, &problem))
        }
        _ => Ok(()),
    }
}

fn lost(key: &str, write: &KeyWrite, found: &str) -> Loss {
    let version = write.acked.map(|(_, version)| version.to_string());
    let version = version.unwrap_or_default();
    Loss {
        kind: LossKind::Lost,
        words: format!(
            "key {key}: {found}, but write {} was acknowledged as version {version}",
            write.number
        ),
    }
}

fn wrong(key: &str, problem: &str) -> Loss {
    Loss {
        kind: LossKind::Wrong,
        words: format!("key {key}: {problem}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn found(write: &KeyWrite, version_text: &str) -> Option<FoundValue> {
        Some(FoundValue {
            value: write.value("k")?,
            version: version(version_text),
        })
    }

    /// Returns a history of three writes, together with the writes themselves. Two writes are
    /// acknowledged, and one write is in flight.
    fn history() -> (WriteHistory, [KeyWrite; 3]) {
        let mut history = WriteHistory::default();
        let first = history.begin("k", Some(100), 10);
        history.acknowledge("k", 20, version("1.0"));
        let second = history.begin("k", Some(0), 30);
        history.acknowledge("k", 40, version("2.0"));
        let third = history.begin("k", Some(9), 50);
        (history, [first, second, third])
    }

    #[test]
    fn an_older_value_and_a_missing_key_are_losses() {
        let (history, [first, second, third]) = history();
        let kind = |found: Option<FoundValue>, at_ns| {
            let judged = history.judge("k", found.as_ref(), at_ns);
            judged.err().map(|loss| loss.kind)
        };
        assert_eq!(kind(found(&first, "1.0"), 60), Some(LossKind::Lost));
        assert_eq!(kind(None, 60), Some(LossKind::Lost));
        assert_eq!(kind(found(&second, "2.0"), 60), None);
        assert_eq!(kind(found(&third, "3.0"), 60), None);
        assert_eq!(kind(found(&first, "1.0"), 35), None);
        assert_eq!(kind(found(&second, "2.0"), 35), None);
        assert_eq!(kind(None, 15), None);
    }

    #[test]
    fn values_from_the_future_and_changed_bytes_are_wrong() {
        let (history, [first, second, third]) = history();
        let judge = |found: &FoundValue, at_ns| history.judge("k", Some(found), at_ns);
        let mut changed = found(&second, "2.0").unwrap();
        let early = judge(&found(&third, "3.0").unwrap(), 45).unwrap_err();
        assert_eq!(early.kind, LossKind::Wrong, "{}", early.words);
        let other = judge(&found(&first, "1.1").unwrap(), 25).unwrap_err();
        assert_eq!(other.kind, LossKind::Wrong, "{}", other.words);
        changed.value = Bytes::from_static(b"12345678");
        assert_eq!(judge(&changed, 60).unwrap_err().kind, LossKind::Wrong);
    }

    #[test]
    fn after_a_loss_of_power_a_write_in_flight_retires_its_key() {
        let (mut history, [first, second, _]) = history();
        history.go_back(35);
        assert!(history.is_retired("k"));
        assert_eq!(history.acked_by(u64::MAX), 1);
        for write in [&first, &second] {
            let found = found(write, "1.0");
            assert_eq!(history.judge("k", found.as_ref(), 60), Ok(()));
        }
        history.go_back(5);
        assert_eq!(history.keys().count(), 0);
    }
}
