//! Replicated state: keys, values and sessions, and the changes that commands make to it.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use bytes::Bytes;
use foldhash::fast::FixedState;
use leasehold_leases::growing::{GrowingIndexMap, GrowingMap};
use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Key, Slot};
use leasehold_wire::command::Op;
use leasehold_wire::txn_op::Op as Operation;
use leasehold_wire::{Command, Entry, ErrorCode, Outcome, ReadOp, TXN_REWRITES_MAX, Txn, Version};
use prost::Message as _;
use smallvec::SmallVec;

use super::merge::{FIELDS_MAX, RECORD_BYTES_MAX, merge, most_work, work_ahead};
use super::session::{Admission, Sessions};
use super::txn::REWRITTEN_BYTES_MAX;
use crate::action::{StateChanges, StoredValue};
use crate::cost;
use crate::settings::SessionLimits;
use crate::size_estimate::command_size_estimate;
use crate::unavailable;

#[cfg(test)]
mod tests;

/// Maximum size, in bytes, of all entries in one answer. This maximum leaves 64 KiB of the answer's
/// frame for the other fields of the answer.
pub(super) const RESULT_BYTES_MAX: usize = leasehold_wire::FRAME_BYTES_MAX - (64 << 10);
/// Maximum number of bytes that an entry takes on the wire in addition to its key and value.
pub(super) const ENTRY_OVERHEAD: usize = 64;

/// Returns the version that a command gives to the values that it writes (hazard 42). The version
/// consists of the slot and the command's index in its batch. Each command in the log has its own
/// slot and index, so each command gives its own version.
pub fn version_of(slot: Slot, index: usize) -> Version {
    let index = if off(Rule::H42Index) { 0 } else { index as u32 };
    Version {
        slot: slot.0,
        index,
    }
}

/// State after the execution of a prefix of the log.
#[derive(Clone, Debug)]
pub struct Kv {
    map: GrowingMap<Key, StoredValue>,
    ordered: BTreeSet<Key>,
    /// Sessions of clients.
    pub(super) sessions: Sessions,
    /// Highest log time of the batches executed so far, in ms.
    pub(super) log_time_ms: u64,
    /// Keys that have changed since the last batch of changes, each with its present value. The
    /// value is `None` if the key was deleted. The values are stored here, too, so that the next
    /// batch needs no look-ups.
    dirty: GrowingIndexMap<Key, Option<StoredValue>>,
    /// Newest version that was given to a write in this run, as (slot, index in the batch).
    newest: (u64, u32),
    /// Estimated bytes of the writes executed since the last batch of changes.
    written_bytes: usize,
    /// Cost of the merges executed since the last call of [`Kv::take_merge_work`].
    merge_work: usize,
}

impl Hash for Kv {
    /// Hashes the state without the dirty entries. The dirty entries have no effect in the period
    /// for which a fingerprint is valid (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        leasehold_leases::fingerprint::unordered(self.map.iter(), state);
        (&self.sessions, self.log_time_ms).hash(state);
    }
}

impl Kv {
    /// Returns the empty state.
    pub fn new(sessions: &SessionLimits) -> Kv {
        Kv {
            map: Default::default(),
            ordered: BTreeSet::new(),
            sessions: Sessions::new(sessions),
            log_time_ms: 0,
            dirty: Default::default(),
            newest: (0, 0),
            written_bytes: 0,
            merge_work: 0,
        }
    }

    /// Restores the state that was on the disk when this run started.
    pub fn restore(sessions: &SessionLimits, image: StateChanges) -> Kv {
        let mut kv = Kv::new(sessions);
        kv.sessions.restore_opens_from(image.opens_from_ms);
        kv.log_time_ms = image.log_time_ms;
        for (key, stored) in image.entries {
            if let Some(stored) = stored {
                kv.ordered.insert(key.clone());
                kv.map.insert(key, stored);
            }
        }
        for (client, session) in image.sessions {
            if let Some(session) = session {
                kv.sessions.restore(client, session);
            }
        }
        kv
    }

    /// Returns the value stored under `key`.
    pub fn get(&self, key: &[u8]) -> Option<&StoredValue> {
        self.map.get(key)
    }

    /// Returns the answer to a read of `key`.
    pub fn read(&self, key: &[u8]) -> Outcome {
        self.get(key).map_or_else(Outcome::missing, |stored| {
            Outcome::value(stored.value.clone(), stored.version)
        })
    }

    /// Returns the answer to a read of several keys. Absent keys are omitted.
    pub fn read_many(&self, keys: &[Key]) -> Outcome {
        self.entries(keys.iter())
    }

    /// Returns up to `limit` entries of `from..to`, in key order. If `to` is empty, the range has
    /// no end.
    pub fn scan(&self, from: &Key, to: &Key, limit: usize) -> Outcome {
        let keys = self.ordered.range::<Key, _>(from.clone()..);
        let within = keys
            .take_while(|key| to.is_empty() || *key < to)
            .take(limit);
        self.entries(within)
    }

    /// Returns the entries of those `keys` that exist, or an error if the entries do not fit into a
    /// frame.
    fn entries<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> Outcome {
        let mut bytes = 0;
        let mut entries = Vec::new();
        for key in keys {
            let Some(stored) = self.get(key) else {
                continue;
            };
            bytes += key.len() + stored.value.len() + ENTRY_OVERHEAD;
            if bytes > RESULT_BYTES_MAX {
                return too_large();
            }
            entries.push(entry(key, stored));
        }
        Outcome::entries(entries)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Begins the execution of a batch with log time `log_time_ms`. During the batch,
    /// `sessions_max` is the maximum number of sessions (0: no maximum).
    pub fn begin(&mut self, log_time_ms: u64, sessions_max: u32) {
        self.log_time_ms = self.log_time_ms.max(log_time_ms);
        self.sessions.begin(self.log_time_ms, sessions_max);
    }

    /// Executes a command. If the command's session has already executed a write with the same
    /// sequence number, returns the result of that write instead.
    pub fn execute(&mut self, slot: Slot, index: usize, command: &Command) -> Outcome {
        if !command.is_write() {
            return self.query(command);
        }
        self.written_bytes += command_size_estimate(command);
        match self.sessions.admit(command, self.log_time_ms) {
            Admission::Done(outcome) => return outcome,
            Admission::Refused => return refused(self.log_time_ms),
            Admission::NoRoom => {
                self.sessions.note_no_room();
                return unavailable::no_room();
            }
            Admission::Fresh => {}
        }
        let version = version_of(slot, index);
        assert!(
            (version.slot, version.index) > self.newest || off(Rule::H42Index),
            "versions rise with the log"
        );
        self.newest = (version.slot, version.index);
        let outcome = self.write(version, command);
        let now = self.log_time_ms;
        self.sessions.record(command, now, outcome.clone());
        outcome
    }

    fn query(&self, command: &Command) -> Outcome {
        match command.as_read() {
            Some(ReadOp::Get(get)) => self.read(&get.key),
            Some(ReadOp::MultiGet(multi)) => self.read_many(&multi.keys),
            Some(ReadOp::Scan(scan)) => self.scan(&scan.from, &scan.to, scan.limit as usize),
            None => Outcome::error(ErrorCode::BadRequest, "the command names no operation"),
        }
    }

    fn write(&mut self, version: Version, command: &Command) -> Outcome {
        match &command.op {
            Some(Op::Put(put)) => self.put(&put.key, own(&put.value), version),
            Some(Op::Delete(delete)) => self.delete(&delete.key),
            Some(Op::Cas(cas)) => {
                let actual = self.get(&cas.key).map(|stored| stored.version);
                if actual != cas.expected {
                    return Outcome::mismatch(actual);
                }
                self.put(&cas.key, own(&cas.value), version);
            }
            Some(Op::PutFields(put)) => {
                let old = self.get(&put.key).map(|stored| &stored.value[..]);
                let old = old.unwrap_or_default();
                let (merged, work) = merge(old, &put.fields);
                let clearing = self.clearing_work(&put.key, old.len(), false);
                self.merge_work += work;
                let Some(merged) = merged else {
                    return not_a_record();
                };
                self.merge_work += clearing;
                self.put(&put.key, merged.into(), version);
            }
            Some(Op::MultiPut(multi)) => {
                for entry in &multi.entries {
                    self.put(&entry.key, own(&entry.value), version);
                }
            }
            Some(Op::Txn(txn)) => return self.txn(version, txn),
            Some(Op::Get(_) | Op::MultiGet(_) | Op::Scan(_)) | None => {
                return Outcome::error(ErrorCode::BadRequest, "the command names no operation");
            }
        }
        Outcome::written(version)
    }

    pub(super) fn put(&mut self, key: &[u8], value: Bytes, version: Version) {
        if let Some(stored) = self.map.get_mut(key) {
            stored.value = value;
            stored.version = version;
        } else {
            let key = Key::copy_from_slice(key);
            self.ordered.insert(key.clone());
            self.map.insert(
                key,
                StoredValue {
                    value,
                    version,
                    created: version,
                },
            );
        }
        self.touch(key);
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        if self.map.remove(key).is_some() {
            self.ordered.remove(key);
        }
        self.touch(key);
    }

    fn touch(&mut self, key: &[u8]) {
        let (key, stored) = match self.map.get_key_value(key) {
            Some((key, stored)) => (key.clone(), Some(stored.clone())),
            None => (Key::copy_from_slice(key), None),
        };
        self.dirty.insert_full(key, stored);
    }

    /// Checks the invariants of the state.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn check(&self) {
        assert_eq!(
            self.map.len(),
            self.ordered.len(),
            "every key is stored and ordered"
        );
        self.sessions.check();
    }

    /// Estimates the work of each merge, and of each other rewrite of a stored value, that a command
    /// may cause. For a command of its own, the work is 0 if the key is absent, and the estimate
    /// does not include the fields that the merge adds. In a transaction, the estimate includes the
    /// bytes that the transaction itself writes to the key.
    ///
    /// For a transaction, the estimate assumes that a rewrite needs new memory, unless the transaction
    /// has rewritten the value before. Replicas make batches of changes at different times. So a
    /// rewrite may need new memory at another replica, even if it needs none here.
    pub fn merge_work_ahead(&self, command: &Command) -> SmallVec<[usize; 1]> {
        let keys: SmallVec<[&Key; 1]> = command.rewritten_keys().collect();
        let txn = match &command.op {
            Some(Op::Txn(txn)) => Some(txn),
            _ => None,
        };
        let shares = txn.is_some_and(Txn::answers_with_values);
        let mut stored_left = STORED_WORK_MAX;
        let of_key = |(at, key): (usize, &&Key)| {
            let is_first = !keys[..at].contains(key);
            let value = self.get(key).map(|stored| &stored.value);
            let bytes = value.map_or(0, Bytes::len);
            let clearing = |bytes| {
                if is_first || shares {
                    self.clearing_work(key, bytes, txn.is_some())
                } else {
                    0
                }
            };
            let stored = value.map_or(0, |value| work_ahead(value) + clearing(bytes));
            let stored = stored.min(stored_left);
            stored_left -= stored;
            let Some(txn) = txn else { return stored };
            let added = added_bytes(txn, key);
            let kept = if bytes > RECORD_BYTES_MAX { 0 } else { bytes };
            let longest = clearing((kept + added).min(RECORD_BYTES_MAX));
            stored + most_work(added) + longest.saturating_sub(clearing(kept))
        };
        keys.iter().enumerate().map(of_key).collect()
    }

    /// Returns the extra work of a rewrite that needs new memory, because something still refers to
    /// the old value; 0 for other rewrites. The batch of changes refers to a value that has not
    /// changed since the batch. If `is_shared` is true, something else refers to the value, such as
    /// an answer to a client.
    pub(super) fn clearing_work(&self, key: &[u8], bytes: usize, is_shared: bool) -> usize {
        let reuses = !is_shared && self.dirty.contains_key(key);
        if bytes > RECORD_BYTES_MAX || reuses {
            0
        } else {
            cost::clearing(bytes)
        }
    }

    /// Adds the work of merges.
    pub(super) fn add_merge_work(&mut self, work: usize) {
        self.merge_work += work;
    }

    /// Returns the cost of all merges since the last call.
    pub fn take_merge_work(&mut self) -> usize {
        std::mem::take(&mut self.merge_work)
    }

    /// Number of keys that have changed since the last batch of changes.
    pub fn dirty_len(&self) -> usize {
        self.dirty.len()
    }

    /// Estimated bytes of the writes executed since the last batch of changes.
    pub fn written_bytes(&self) -> usize {
        self.written_bytes
    }

    /// Removes and returns the keys that have changed since the last call, in the order in which
    /// they were first written. The value of a key that was deleted is `None`.
    pub fn take_dirty(&mut self) -> Vec<(Key, Option<StoredValue>)> {
        self.written_bytes = 0;
        std::mem::take(&mut self.dirty).into_entries()
    }

    /// Returns a digest of all keys and the values stored under them. Replicas that have executed
    /// up to the same slot have equal digests.
    pub fn digest(&self) -> u64 {
        use std::hash::BuildHasher;
        let mut hasher = FixedState::default().build_hasher();
        self.ordered.hash(&mut hasher);
        leasehold_leases::fingerprint::unordered(self.map.iter(), &mut hasher);
        hasher.finish()
    }
}

/// Maximum work of rewriting the stored values of a transaction, in units of [`cost::merging`].
const STORED_WORK_MAX: usize = cost::merging(TXN_REWRITES_MAX * FIELDS_MAX, REWRITTEN_BYTES_MAX)
    + cost::clearing(REWRITTEN_BYTES_MAX);

/// Returns the number of bytes that the operations of a transaction may add to the value of a key.
fn added_bytes(txn: &Txn, key: &Key) -> usize {
    let of_key = txn.operations().filter(|operation| operation.key() == key);
    let bytes = of_key.map(|operation| match operation {
        Operation::Put(put) => put.value.len(),
        Operation::Append(append) => append.suffix.len(),
        Operation::PutFields(put) => put.encoded_len(),
        Operation::Get(_) | Operation::Delete(_) => 0,
        Operation::DeleteFields(_) | Operation::Add(_) => 0,
    });
    bytes.sum()
}

/// Copies a value out of its frame. The copy is needed because an arrived value is a slice of its
/// frame. If the state stored this slice, the whole frame would stay in memory.
pub(super) fn own(value: &Bytes) -> Bytes {
    Bytes::copy_from_slice(value)
}

fn entry(key: &Key, stored: &StoredValue) -> Entry {
    Entry {
        key: key.clone(),
        value: stored.value.clone(),
        version: Some(stored.version),
    }
}

fn refused(log_time_ms: u64) -> Outcome {
    let message = "the session has expired or has acknowledged this sequence: this attempt was not \
                   executed, and no copy of it ever will be; open a new session";
    let error = leasehold_wire::Error::new(ErrorCode::SessionExpired, message);
    leasehold_wire::Error {
        log_time_ms,
        ..error
    }
    .into()
}

fn too_large() -> Outcome {
    Outcome::error(
        ErrorCode::TooLarge,
        "the entries do not fit into one answer of 4 MiB; ask for fewer keys, or scan with a \
         smaller limit and go on from the last key",
    )
}

/// Returns the error for a refused merge. A merge is refused if the value is not a record, or if
/// the record is too large before or after the merge.
pub(super) fn not_a_record() -> Outcome {
    record_error().into()
}

/// Returns the error of [`not_a_record`].
pub(super) fn record_error() -> leasehold_wire::Error {
    leasehold_wire::Error::new(
        ErrorCode::NotARecord,
        "put_fields: the value stored under the key is not a record, or it or the merged record \
         has more than 256 KiB or 1024 fields; write it whole with put",
    )
}
