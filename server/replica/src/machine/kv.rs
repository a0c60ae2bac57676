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
    /// may cause. The work is 0 for a key that is absent. In a transaction, the estimate includes the
    /// bytes that the transaction itself writes to the key. For a merge that is a command of its own,
    /// the estimate does not include the fields that the merge adds.
    ///
    /// For a transaction, the estimate assumes that a rewrite needs new memory, unless the transaction
    /// has rewritten the value before. Each replica hands its changes over at another time, so the
    /// value may be unchanged since then at another replica.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> SessionLimits {
        SessionLimits {
            ttl: std::time::Duration::from_secs(1),
            stay: std::time::Duration::ZERO,
            ..SessionLimits::default()
        }
    }

    fn put(client: u64, sequence: u64, value: &'static str) -> Command {
        Command {
            client,
            sequence,
            acked_below: sequence,
            op: Some(Op::put("k", value)),
            opened_ms: 0,
        }
    }

    #[test]
    fn a_command_that_is_in_the_log_twice_is_executed_once() {
        let mut kv = Kv::new(&limits());
        let first = kv.execute(Slot(1), 0, &put(1, 1, "mine"));
        kv.execute(Slot(2), 0, &put(2, 1, "theirs"));
        assert_eq!(kv.execute(Slot(3), 0, &put(1, 1, "mine")), first);
        let found = kv.get(b"k").map(|stored| stored.value.clone());
        assert_eq!(found.as_deref(), Some(b"theirs".as_slice()));
    }

    #[test]
    fn a_checkpoint_holds_each_key_once_as_it_is() {
        let mut kv = Kv::new(&limits());
        let mut write = |sequence: u64, op| {
            kv.execute(
                Slot(sequence),
                0,
                &Command::session(1, sequence, sequence, op),
            );
        };
        write(1, Op::put("b", "old"));
        write(2, Op::put("a", "kept"));
        write(3, Op::put("c", "gone"));
        write(4, Op::delete("c"));
        write(5, Op::put("b", "new"));
        let value = |stored: Option<StoredValue>| stored.map(|stored| stored.value);
        let taken = kv.take_dirty().into_iter();
        let taken: Vec<_> = taken.map(|(key, stored)| (key, value(stored))).collect();
        let now = |value: &'static str| Some(Bytes::from(value));
        assert_eq!(
            taken,
            [("b", now("new")), ("a", now("kept")), ("c", None)]
                .map(|(key, value)| (Key::from(key), value))
        );
        assert!(kv.take_dirty().is_empty());
    }

    const LONG: &str = match str::from_utf8(&[b'v'; 300_000]) {
        Ok(long) => long,
        Err(_) => unreachable!(),
    };

    /// The checkpoint still refers to the old record, so the first merge after the checkpoint needs
    /// new memory.
    #[test]
    fn the_first_merge_into_a_long_record_after_a_checkpoint_is_more_work() {
        let mut kv = Kv::new(&limits());
        kv.execute(Slot(1), 0, &put(2, 1, LONG));
        let mut sequence = 1;
        let mut merge = |kv: &mut Kv, key: &'static str, bytes: usize| {
            sequence += 1;
            let field = leasehold_wire::Field {
                name: "f".into(),
                value: vec![b'v'; bytes].into(),
            };
            let op = Op::put_fields(key, vec![field]);
            let command = Command::session(1, sequence, sequence, op);
            let ahead: usize = kv.merge_work_ahead(&command).iter().sum();
            kv.execute(Slot(sequence), 0, &command);
            (ahead, kv.take_merge_work())
        };
        merge(&mut kv, "long", 200_000);
        merge(&mut kv, "short", 1000);
        let again = merge(&mut kv, "long", 200_000);
        let short = merge(&mut kv, "short", 1000);
        kv.take_dirty();
        let first = merge(&mut kv, "long", 200_000);
        assert!(first.0 > 5 * again.0 && first.1 > 5 * again.1);
        assert_eq!(merge(&mut kv, "long", 200_000), again);
        assert_eq!(merge(&mut kv, "short", 1000), short);
        // A merge into a value that is too long is refused without any work.
        kv.take_dirty();
        assert_eq!(merge(&mut kv, "k", 1000), (0, 0));
    }

    #[test]
    fn a_checkpoint_restores_state_and_sessions() {
        let mut kv = Kv::new(&limits());
        kv.begin(5, 0);
        let first = kv.execute(Slot(1), 3, &put(1, 1, "mine"));
        let image = StateChanges {
            log_time_ms: kv.log_time_ms,
            entries: kv.take_dirty(),
            sessions: kv.sessions.take_dirty(),
            ..StateChanges::default()
        };
        let mut restored = Kv::restore(&limits(), image);
        assert_eq!(restored.digest(), kv.digest());
        assert_eq!(restored.execute(Slot(2), 0, &put(1, 1, "mine")), first);
        assert!(
            restored.take_dirty().is_empty(),
            "nothing was written again"
        );
    }
    /// Executes transactions that rewrite a value several times. The estimate must be at least the
    /// work, and not much more, even if the transaction itself writes the value.
    #[test]
    fn the_work_of_a_transaction_is_known_before() {
        const LARGE: usize = RECORD_BYTES_MAX - 1000;
        let large = || Bytes::from(vec![b'v'; LARGE]);
        let record = |fields: usize| Bytes::from([0x0A, 0].repeat(fields));
        let put = |key: &'static str, value: Bytes| {
            let key = key.into();
            Operation::Put(leasehold_wire::Put { key, value })
        };
        let append = |key: &'static str| Operation::append(key, "v");
        let field = leasehold_wire::Field {
            name: "f".into(),
            value: "v".into(),
        };
        let put_fields = || {
            Operation::PutFields(leasehold_wire::PutFields {
                key: "record".into(),
                fields: vec![field.clone()],
            })
        };
        let remove = || Operation::delete_fields("record", vec!["f".into()]);
        let get = || {
            let key = "large".into();
            Operation::Get(leasehold_wire::Get { key })
        };
        for operations in [
            vec![append("large"); 4],
            vec![append("large"), append("other"), append("large")],
            vec![append("absent"); 3],
            [vec![put("absent", large())], vec![append("absent"); 4]].concat(),
            [vec![put("short", large())], vec![append("short"); 4]].concat(),
            // The answer keeps each value that is replaced.
            [[get(), append("large")], [get(), append("large")]].concat(),
            vec![put_fields(), remove(), put_fields()],
            vec![
                put("record", record(900)),
                put_fields(),
                remove(),
                put_fields(),
            ],
        ] {
            let mut kv = Kv::new(&limits());
            for (number, key) in (1..).zip(["large", "other", "record", "short"]) {
                let value = match key {
                    "record" => record(30),
                    "short" => "v".into(),
                    _ => large(),
                };
                kv.execute(
                    Slot(number),
                    0,
                    &Command::session(number, 1, 1, Op::put(key, value)),
                );
            }
            kv.take_dirty();
            let then = operations.iter().cloned().map(Into::into).collect();
            let txn = Txn {
                then,
                ..Txn::default()
            };
            let command = Command::session(9, 1, 1, Op::txn(txn));
            let ahead: usize = kv.merge_work_ahead(&command).iter().sum();
            let outcome = kv.execute(Slot(9), 0, &command);
            assert!(matches!(
                outcome.result,
                Some(leasehold_wire::outcome::Result::Txn(_))
            ));
            let work = kv.take_merge_work();
            let shown = format!("{} operations: {ahead} for {work}", operations.len());
            assert!(ahead + 100 >= work && ahead <= 4 * work + 1000, "{shown}");
        }
    }
    /// A transaction that would rewrite more than 1 MiB of stored values changes nothing. Values that
    /// the transaction itself writes count, too.
    #[test]
    fn a_transaction_rewrites_a_limited_number_of_bytes() {
        const LARGE: usize = 250_000;
        let large = || Bytes::from(vec![b'v'; LARGE]);
        let append = |key: &str| Operation::append(key.to_owned(), "v");
        let put = || {
            let (key, value) = ("new".into(), large());
            Operation::Put(leasehold_wire::Put { key, value })
        };
        let all =
            |keys: &[&str]| -> Vec<Operation> { keys.iter().map(|key| append(key)).collect() };
        let most = all(&["a", "b", "c", "d"]);
        let small = all(&["small"; 12]);
        for (operations, is_refused) in [
            ([small.clone(), most.clone()].concat(), false),
            ([most.clone(), all(&["e"])].concat(), true),
            ([vec![put()], all(&["new", "a", "b", "c"])].concat(), false),
            ([vec![put()], all(&["e", "new", "b", "c"])].concat(), false),
            (
                [vec![put()], all(&["new", "new", "a", "b", "c"])].concat(),
                true,
            ),
            (all(&["a", "a", "a", "a", "a"]), true),
        ] {
            let mut kv = Kv::new(&limits());
            for (number, key) in (1..).zip(["a", "b", "c", "d", "e", "small"]) {
                let value = if key == "small" { "v".into() } else { large() };
                let command = Command::session(number, 1, 1, Op::put(key, value));
                kv.execute(Slot(number), 0, &command);
            }
            let txn = |keep_going| Txn {
                then: operations.iter().cloned().map(Into::into).collect(),
                keep_going,
                ..Txn::default()
            };
            let before = kv.digest();
            let command = Command::session(9, 1, 1, Op::txn(txn(false)));
            let ahead: usize = kv.merge_work_ahead(&command).iter().sum();
            let outcome = kv.execute(Slot(9), 0, &command);
            assert!(ahead + 100 >= kv.take_merge_work(), "{ahead}");
            let Some(leasehold_wire::outcome::Result::Error(error)) = outcome.result else {
                assert!(!is_refused && kv.digest() != before);
                continue;
            };
            assert!(is_refused && kv.digest() == before, "{}", error.message);
            let last = operations.len() - 1;
            let expected =
                format!("txn.then[{last}]: append: the transaction would rewrite more than");
            assert!(error.message.starts_with(&expected), "{}", error.message);
            executed(&mut kv, 10, txn(true));
            assert_ne!(kv.digest(), before, "the other operations are executed");
        }
    }
    fn executed(kv: &mut Kv, slot: u64, txn: Txn) -> Outcome {
        let command = Command::session(slot, 1, 1, Op::txn(txn));
        kv.execute(Slot(slot), 0, &command)
    }

    /// The answer has the value of a failed comparison, values that are read, and an error for each
    /// of a thousand other operations.
    #[test]
    fn the_answer_to_a_transaction_fits_into_a_frame() {
        const LARGE: usize = leasehold_wire::VALUE_BYTES_MAX;
        let mut kv = Kv::new(&limits());
        for (number, bytes) in (1..).zip([LARGE, LARGE, LARGE, 950_000, 1000]) {
            let op = Op::put(format!("k{number}"), vec![b'v'; bytes]);
            kv.execute(Slot(number), 0, &Command::session(number, 1, 1, op));
        }
        let get = |number: usize| {
            let key = format!("k{number}").into();
            Operation::Get(leasehold_wire::Get { key })
        };
        let gets = [2, 3, 4, 5, 5, 4].map(get);
        let rest = vec![Operation::add("k1", 1); leasehold_wire::COMMAND_PARTS_MAX - 7];
        let comparison = leasehold_wire::Comparison {
            key: "k1".into(),
            condition: Some(leasehold_wire::comparison::Condition::Less("".into())),
        };
        let txn = Txn {
            comparisons: vec![comparison],
            or_else: gets.into_iter().chain(rest).map(Into::into).collect(),
            keep_going: true,
            ..Txn::default()
        };
        let outcome = executed(&mut kv, 9, txn.clone());
        let bytes = outcome.encoded_len();
        assert!(bytes < leasehold_wire::FRAME_BYTES_MAX - 1000, "{bytes}");
        assert!(bytes > 3 * LARGE + 100_000, "{bytes}");
        let Some(leasehold_wire::outcome::Result::Txn(result)) = outcome.result else {
            panic!("it keeps going");
        };
        let found = |result: &leasehold_wire::OpResult| match &result.result {
            Some(leasehold_wire::op_result::Result::Value(value)) => value.value.len(),
            Some(leasehold_wire::op_result::Result::Error(_)) => 0,
            other => panic!("{other:?}"),
        };
        let found: Vec<usize> = result.results.iter().map(found).collect();
        assert_eq!(found[..7], [LARGE, LARGE, 0, 1000, 1000, 0, 0]);
        let stops = Txn {
            keep_going: false,
            ..txn
        };
        let Some(leasehold_wire::outcome::Result::Error(error)) =
            executed(&mut kv, 10, stops).result
        else {
            panic!("it stops");
        };
        assert!(
            error.message.starts_with("txn.or_else[5]: get: the values"),
            "{error:?}"
        );
    }

    #[test]
    fn only_what_add_writes_itself_is_a_number() {
        let mut kv = Kv::new(&limits());
        let values = [
            ("0", Some(1)),
            ("-9223372036854775808", Some(i64::MIN + 1)),
            ("9223372036854775806", Some(i64::MAX)),
            ("9223372036854775807", None),
            ("9223372036854775808", None),
            ("00000000000000000001", None),
            ("000000000000000000001", None),
            ("-0", None),
            ("+1", None),
            (" 1", None),
            ("", None),
        ];
        for (number, (value, _)) in (1..).zip(values) {
            let op = Op::put(format!("k{number}"), value);
            kv.execute(Slot(number), 0, &Command::session(number, 1, 1, op));
        }
        let add = |number: usize| Operation::add(format!("k{number}"), 1).into();
        let txn = Txn {
            then: (1..=values.len()).map(add).collect(),
            keep_going: true,
            ..Txn::default()
        };
        let outcome = executed(&mut kv, 90, txn);
        let Some(leasehold_wire::outcome::Result::Txn(result)) = outcome.result else {
            panic!("it keeps going");
        };
        let number = |result: &leasehold_wire::OpResult| match &result.result {
            Some(leasehold_wire::op_result::Result::Number(sum)) => Some(*sum),
            _ => None,
        };
        let sums: Vec<_> = result.results.iter().map(number).collect();
        assert_eq!(sums, values.map(|(_, sum)| sum));
    }
}
