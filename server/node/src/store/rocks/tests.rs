//! Tests that acknowledged writes are recovered, and that damaged data is refused.

mod syncs;

use std::path::Path;

use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::config::KeyVersions;
use leasehold_leases::{
    Ballot, ConfigChange, ConfigId, Configs, Incarnation, Key, ReplicaSet, Slot, Time,
};
use leasehold_wire::command::Op;
use leasehold_wire::{Command, Outcome, Version};
use prost::Message as _;

use super::damage::flush;
use super::open::FORMAT;
use super::records::{Column, meta};
use rocksdb::WriteBatch;

use super::*;
use leasehold_leases::ReplicaId;
use leasehold_replica::action::{
    ConfigFrames, RecoveredState, SessionImage, StateChanges, StoredValue,
};
use leasehold_replica::codec::{self, proto};
use leasehold_replica::message::{Batch, LogId, Proposal, RequestId, Value};
use leasehold_replica::{Replica, Settings};

pub(in crate::store) fn stamp() -> DirectoryStamp {
    DirectoryStamp {
        cluster: "demo".to_owned(),
        name: "CA".to_owned(),
        replica: ReplicaId(1),
        members: ["OR", "CA", "JP"].map(str::to_owned).to_vec(),
    }
}

fn open(path: &Path) -> (Storage, RecoveredState) {
    Storage::open(path, &stamp(), Durability::Sync).unwrap()
}

pub(in crate::store) fn ballot(round: u64) -> Ballot {
    Ballot {
        round,
        replica: ReplicaId(2),
    }
}

fn commands(text: &str) -> Value {
    Value::Commands(Arc::new(Batch {
        log_time_ms: 5,
        commands: vec![Proposal {
            origin: ReplicaId(0),
            request: RequestId(9),
            command: Command::session(1, 1, 1, Op::put("k", text.to_owned())),
        }],
        ..Default::default()
    }))
}

pub(in crate::store) fn accepted(slot: u64, text: &str) -> Record {
    Record::Accepted {
        log: LogId::Commands,
        slot: Slot(slot),
        ballot: ballot(slot),
        value: commands(text),
    }
}

pub(in crate::store) fn configured(slot: u64) -> Record {
    Record::Accepted {
        log: LogId::Configs,
        slot: Slot(slot),
        ballot: ballot(1),
        value: Value::Config(Arc::new(ConfigChange::everywhere(ReplicaSet::all(3)))),
    }
}

pub(in crate::store) fn stored(value: &str, slot: u64) -> StoredValue {
    let version = Version { slot, index: 0 };
    StoredValue {
        value: value.to_owned().into(),
        version,
        created: version,
    }
}

pub(in crate::store) fn checkpoint(executed: u64, key: &str, entry: Option<StoredValue>) -> Record {
    Record::from(StateChanges {
        executed: Slot(executed),
        config: ConfigId(1),
        log_time_ms: executed * 10,
        opens_from_ms: executed * 9,
        entries: vec![(key.to_owned().into(), entry)],
        sessions: vec![],
        configs: Some(saved_configs(&[ConfigChange::default()]).0),
        listed: vec![],
    })
}

/// Returns the checkpoint after these changes, as a batch contains it.
pub(in crate::store) fn saved_configs(
    changes: &[ConfigChange],
) -> (ConfigFrames, Vec<(Key, Option<KeyVersions>)>) {
    let mut configs = Configs::new(3);
    for (id, change) in (1..).map(ConfigId).zip(changes) {
        configs.apply(id, change);
    }
    let saved = configs.take_unsaved().expect("there are configurations");
    let frames = ConfigFrames {
        configured: true,
        frames: saved.frames,
    };
    (frames, saved.keys)
}

fn slots(recovered: &RecoveredState, log: LogId) -> Vec<u64> {
    let of_log = recovered.accepted.iter().filter(|entry| entry.log == log);
    of_log.map(|entry| entry.slot.0).collect()
}

#[test]
fn a_new_directory_holds_nothing_and_is_the_first_run() {
    let dir = tempfile::tempdir().unwrap();
    let (_, recovered) = open(dir.path());
    assert_eq!(recovered.incarnation, Incarnation(1));
    assert_eq!(recovered.restart_wait, None);
    assert_eq!(recovered.promised, Ballot::ZERO);
    assert!(recovered.accepted.is_empty() && recovered.state.entries.is_empty());
}

#[test]
fn a_directory_has_a_life_of_its_own_and_keeps_what_it_heard_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, first) = open(dir.path());
    assert!(first.life != 0 && !first.joined && first.lives.is_empty());
    let heard = |replica, life| Record::Life {
        replica: ReplicaId(replica),
        life,
    };
    storage
        .write(&[heard(0, 7), heard(63, u64::MAX), Record::Joined])
        .unwrap();
    drop(storage);
    let (_, again) = open(dir.path());
    assert_eq!(again.life, first.life);
    assert!(again.joined);
    assert_eq!(again.lives, [(ReplicaId(0), 7), (ReplicaId(63), u64::MAX)]);
    let other = tempfile::tempdir().unwrap();
    assert_ne!(open(other.path()).1.life, first.life);
}

/// Makes the identity of a directory name this format.
fn set_format(storage: &Storage, format: u32) {
    let identity = storage.engine.get(Column::Meta, meta::IDENTITY).unwrap();
    let mut identity = proto::Identity::decode(identity.unwrap()).unwrap();
    identity.format = format;
    let mut batch = WriteBatch::default();
    super::records::put(
        &storage.engine.db,
        Column::Meta,
        meta::IDENTITY,
        &identity.encode_to_vec(),
        &mut batch,
    );
    storage.engine.apply(batch).unwrap();
}

/// Makes a directory of another format, as far as its stamp says.
pub(in crate::store) fn stamped_with(path: &Path, format: u32) {
    let (storage, _) = open(path);
    set_format(&storage, format);
    flush(&storage);
}

#[test]
fn a_directory_of_another_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    stamped_with(dir.path(), FORMAT + 1);
    let refused = Storage::open(dir.path(), &stamp(), Durability::Sync);
    let message = refused.err().unwrap().to_string();
    for part in [FORMAT + 1, FORMAT].map(|format| format.to_string()) {
        assert!(message.contains(&part), "{part:?} is not in {message:?}");
    }
}

#[test]
fn a_restart_finds_the_newest_of_each_kind() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    let session = SessionImage {
        acked_below: 3,
        active_ms: 70,
        results: vec![(4, Outcome::missing())],
    };
    let with_sessions = Record::from(StateChanges {
        executed: Slot(1),
        sessions: vec![(7, Some(session.clone())), (8, Some(session.clone()))],
        ..Default::default()
    });
    let start = |round| Record::LogStart {
        log: LogId::Commands,
        ballot: ballot(round),
        slot: Slot(round),
    };
    let mut write = |records: &[Record]| storage.write(records).unwrap();
    write(&[
        Record::Promised(ballot(4)),
        accepted(1, "a"),
        accepted(2, "b"),
    ]);
    write(&[
        accepted(3, "c"),
        accepted(4, "d"),
        configured(1),
        configured(2),
    ]);
    write(&[start(1), start(2), start(3), with_sessions]);
    write(&[checkpoint(2, "gone", Some(stored("x", 1)))]);
    write(&[
        Record::Promised(ballot(5)),
        accepted(3, "replaced"),
        Record::Erased {
            log: LogId::Commands,
            slot: Slot(4),
        },
        Record::ForgetLogStarts {
            log: LogId::Commands,
            below: ballot(2),
        },
        Record::RestartWait(Duration::from_millis(4321)),
        checkpoint(2, "kept", Some(stored("y", 2))),
        checkpoint(2, "gone", None),
        Record::from(StateChanges {
            executed: Slot(2),
            config: ConfigId(1),
            log_time_ms: 20,
            opens_from_ms: 19,
            entries: vec![],
            sessions: vec![(8, None)],
            configs: None,
            listed: vec![],
        }),
    ]);
    flush(&storage);
    drop(storage);

    let (mut storage, recovered) = open(dir.path());
    assert_eq!(recovered.incarnation, Incarnation(2));
    assert_eq!(recovered.promised, ballot(5));
    assert_eq!(recovered.restart_wait, Some(Duration::from_millis(4321)));
    assert_eq!(slots(&recovered, LogId::Commands), [3]);
    assert_eq!(slots(&recovered, LogId::Configs), [2]);
    assert_eq!(recovered.accepted[0].value, commands("replaced"));
    let starts: Vec<u64> = recovered
        .log_starts
        .iter()
        .map(|(_, _, slot)| slot.0)
        .collect();
    assert_eq!(starts, [2, 3]);
    let state = &recovered.state;
    assert_eq!((state.executed, state.config), (Slot(2), ConfigId(1)));
    assert_eq!((state.log_time_ms, state.opens_from_ms), (20, 19));
    assert_eq!(state.entries, [("kept".into(), Some(stored("y", 2)))]);
    assert_eq!(state.sessions, [(7, Some(session))]);
    let old = storage
        .read_log(LogId::Commands, Slot(1), Slot(2), 1 << 20)
        .unwrap();
    assert_eq!(old, [(Slot(1), commands("a")), (Slot(2), commands("b"))]);
}

#[test]
fn a_replica_restarts_with_every_entry_however_far_above_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    let settings = Settings::new(ReplicaId(1), 3);
    let far = 2 * settings.log_window;
    let promised = Record::Promised(ballot(far));
    let state = checkpoint(1, "k", Some(stored("a", 1)));
    storage
        .write(&[promised, configured(1), accepted(1, "a"), state])
        .unwrap();
    for slot in [2, far / 2 + 1, far / 2 + 2, far] {
        storage.write(&[accepted(slot, "acknowledged")]).unwrap();
    }
    drop(storage);

    let (_, recovered) = open(dir.path());
    let replica = Replica::new(Time(1), settings, recovered, 0);
    for slot in [2, far / 2 + 1, far / 2 + 2, far] {
        let entry = replica.entry(LogId::Commands, Slot(slot));
        assert_eq!(entry, Some(&commands("acknowledged")), "slot {slot}");
    }
    assert_eq!(replica.highest_of(LogId::Commands), Slot(far));
}

#[test]
fn a_log_is_read_in_pieces_of_at_least_one_entry() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    let entries: Vec<Record> = (1..=10).map(|slot| accepted(slot, "0123456789")).collect();
    storage.write(&entries).unwrap();
    let mut read = |from, last, bytes| {
        let entries = storage.read_log(LogId::Commands, Slot(from), Slot(last), bytes);
        entries
            .unwrap()
            .iter()
            .map(|(slot, _)| slot.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(read(3, 6, 1 << 20), [3, 4, 5, 6]);
    assert_eq!(read(3, 6, 1), [3]);
    assert_eq!(read(11, 20, 1 << 20), Vec::<u64>::new());
    let some = read(1, 10, 150).len();
    assert!((1..10).contains(&some), "{some} entries in 150 bytes");
}

#[test]
fn anyone_elses_directory_is_refused_with_both_values() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let other = |change: fn(&mut DirectoryStamp)| {
        let mut wanted = stamp();
        change(&mut wanted);
        let refused = Storage::open(dir.path(), &wanted, Durability::Sync);
        refused.err().unwrap().to_string()
    };
    for (message, parts) in [
        (
            other(|stamp| stamp.cluster = "prod".to_owned()),
            ["cluster is demo", "says prod"],
        ),
        (
            other(|stamp| stamp.name = "JP".to_owned()),
            ["replica name is CA", "says JP"],
        ),
        (
            other(|stamp| stamp.replica = ReplicaId(2)),
            ["replica id is 1", "says 2"],
        ),
        (
            other(|stamp| stamp.members[2] = "BR".to_owned()),
            ["list of members is OR, CA, JP", "says OR, CA, BR"],
        ),
    ] {
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
        assert!(
            message.contains("configuration it was made under"),
            "{message}"
        );
    }
    // A refused start does not use up an incarnation.
    assert_eq!(open(dir.path()).1.incarnation, Incarnation(2));
}

#[test]
fn a_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_storage, _) = open(dir.path());
    let refused = Storage::open(dir.path(), &stamp(), Durability::Sync);
    assert!(matches!(refused.err(), Some(StorageError::Locked { .. })));
}

/// Flips one bit of a stored value through the interface of the store. RocksDB's checksums do not
/// detect this change, because they protect only the file, and not the memory from which the file
/// was written.
fn flip(storage: &Storage, column: Column, key: &[u8]) {
    let handle = column.handle(&storage.engine.db);
    let mut value = storage.engine.db.get_cf(handle, key).unwrap().unwrap();
    value[2] ^= 0x10;
    storage.engine.db.put_cf(handle, key, value).unwrap();
}

#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    let listed = meta::listed(b"k1");
    let places: [(Column, &[u8], &str); 5] = [
        (Column::State, b"kept", "state/kept"),
        (Column::Meta, meta::IDENTITY, "meta/identity"),
        (Column::Meta, meta::POSITION, "meta/position"),
        (Column::Meta, meta::FRAMES, "meta/frames"),
        (Column::Meta, &listed, "meta/listed/k1"),
    ];
    for (column, key, name) in places {
        let dir = tempfile::tempdir().unwrap();
        let (mut storage, _) = open(dir.path());
        let (frames, listed) = saved_configs(&some_changes());
        let state = StateChanges {
            executed: Slot(1),
            config: ConfigId(10),
            entries: vec![("kept".into(), Some(stored("y", 1)))],
            configs: Some(frames),
            listed,
            ..StateChanges::default()
        };
        storage.write(&[Record::from(state)]).unwrap();
        flush(&storage);
        flip(&storage, column, key);
        drop(storage);
        let refused = Storage::open(dir.path(), &stamp(), Durability::Sync);
        let message = refused.err().unwrap().to_string();
        assert!(message.contains(name), "{name:?} is not in {message:?}");
        assert!(message.contains("checksum"), "{message}");
    }
}

#[test]
fn a_value_in_the_wrong_place_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    storage
        .write(&[
            checkpoint(1, "one", Some(stored("a", 1))),
            checkpoint(2, "two", Some(stored("b", 2))),
        ])
        .unwrap();
    flush(&storage);
    let handle = Column::State.handle(&storage.engine.db);
    let one = storage.engine.db.get_cf(handle, "one").unwrap().unwrap();
    storage.engine.db.put_cf(handle, "two", one).unwrap();
    flush(&storage);
    drop(storage);
    let refused = Storage::open(dir.path(), &stamp(), Durability::Sync);
    assert!(matches!(refused.err(), Some(StorageError::Damaged { .. })));
}

/// Changes one byte in the middle of the used part of a segment.
fn damage_segment(directory: &Path) {
    let path = directory.join("log/0000000001.seg");
    let mut bytes = std::fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end / 2] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn damage_to_the_log_is_found_at_the_next_start_or_when_the_entry_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    storage.write(&[accepted(1, &"x".repeat(10_000))]).unwrap();
    damage_segment(dir.path());
    let read = storage.read_log(LogId::Commands, Slot(1), Slot(1), 1 << 20);
    let message = read.unwrap_err().to_string();
    for part in ["log/0000000001.seg", "slot 1", "checksum"] {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
    drop(storage);
    let refused = Storage::open(dir.path(), &stamp(), Durability::Sync);
    let message = refused.err().unwrap().to_string();
    for part in ["log/0000000001.seg", "acknowledged"] {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

#[test]
fn every_durability_survives_a_clean_end() {
    for durability in [Durability::Sync, Durability::Async, Durability::None] {
        let dir = tempfile::tempdir().unwrap();
        let (mut storage, _) = Storage::open(dir.path(), &stamp(), durability).unwrap();
        storage.write(&[accepted(1, "a")]).unwrap();
        storage.close().unwrap();
        let (_, recovered) = Storage::open(dir.path(), &stamp(), durability).unwrap();
        assert_eq!(slots(&recovered, LogId::Commands), [1], "{durability:?}");
        assert_eq!(recovered.incarnation, Incarnation(2));
    }
}

#[test]
fn a_restart_wait_survives_a_kill_whatever_the_durability() {
    for durability in [Durability::Sync, Durability::Async, Durability::None] {
        let dir = tempfile::tempdir().unwrap();
        let (mut storage, _) = Storage::open(dir.path(), &stamp(), durability).unwrap();
        storage
            .write(&[Record::RestartWait(Duration::ZERO)])
            .unwrap();
        storage.close().unwrap();
        let (mut storage, recovered) = Storage::open(dir.path(), &stamp(), durability).unwrap();
        assert_eq!(recovered.restart_wait, Some(Duration::ZERO));
        let wait = Duration::from_millis(1760);
        let records = [accepted(1, "a"), Record::RestartWait(wait)];
        storage.write(&records).unwrap();
        // Copy of the files that a killed process leaves behind.
        let left = tempfile::tempdir().unwrap();
        for (name, bytes) in super::damage::files(dir.path()) {
            std::fs::create_dir_all(left.path().join("log")).unwrap();
            std::fs::write(left.path().join(name), bytes).unwrap();
        }
        let (_, recovered) = Storage::open(left.path(), &stamp(), durability).unwrap();
        assert_eq!(recovered.restart_wait, Some(wait), "{durability:?}");
        drop(storage);
    }
}

#[test]
fn a_directory_that_is_taken_away_is_missed_at_the_next_batch_and_at_the_end() {
    for durability in [Durability::Sync, Durability::Async, Durability::None] {
        for is_replaced in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (path, elsewhere) = (dir.path().join("CA"), dir.path().join("elsewhere"));
            let (mut storage, _) = Storage::open(&path, &stamp(), durability).unwrap();
            std::fs::rename(&path, &elsewhere).unwrap();
            if is_replaced {
                std::fs::create_dir(&path).unwrap();
                std::fs::copy(elsewhere.join(marker::NAME), path.join(marker::NAME)).unwrap();
            }
            storage.write(&[accepted(1, "v")]).unwrap();
            let missed = storage.write(&[checkpoint(1, "k", None)]).unwrap_err();
            assert!(matches!(missed, StorageError::Gone { .. }), "{missed}");
            let missed = storage.close().unwrap_err();
            assert!(matches!(missed, StorageError::Gone { .. }), "{missed}");
        }
    }
}

/// Writes a log and its facts in the way in which directories of formats 4 and 5 store them.
fn write_older(storage: &Storage, format: u32) {
    let mut batch = WriteBatch::default();
    let mut put = |column, key: &[u8], value: &[u8]| {
        super::records::put(&storage.engine.db, column, key, value, &mut batch);
    };
    for slot in [1, 2, 9] {
        let mut entry = Vec::new();
        codec::encode_entry(ballot(slot), &commands("older"), &mut entry);
        put(Column::Log, &u64::to_be_bytes(slot), &entry);
    }
    let mut config = Vec::new();
    let Record::Accepted { value, .. } = configured(1) else {
        unreachable!("it is an entry");
    };
    codec::encode_entry(ballot(1), &value, &mut config);
    put(Column::Configs, &1u64.to_be_bytes(), &config);
    let mut promised = Vec::new();
    codec::encode_ballot(ballot(9), &mut promised);
    put(Column::Meta, meta::PROMISED, &promised);
    put(Column::Meta, meta::JOINED, b"");
    put(
        Column::Meta,
        meta::RESTART_WAIT,
        &7_000_000u64.to_be_bytes(),
    );
    put(Column::Meta, meta::INCARNATION, &41u64.to_be_bytes());
    put(Column::Meta, &meta::life(ReplicaId(2)), &5u64.to_be_bytes());
    let start = meta::log_start(LogId::Commands, ballot(9));
    put(Column::Meta, &start, &9u64.to_be_bytes());
    if format == 5 {
        let mut long = stored("long", 1);
        put(
            Column::Staged,
            &super::staged::row(b"long", long.version),
            b"long",
        );
        long.value = "".into();
        let mut encoded = Vec::new();
        codec::encode_stored(&long, true, &mut encoded);
        put(Column::State, b"long", &encoded);
    }
    let identity = storage.engine.get(Column::Meta, meta::IDENTITY).unwrap();
    let mut identity = proto::Identity::decode(identity.unwrap()).unwrap();
    identity.format = format;
    put(Column::Meta, meta::IDENTITY, &identity.encode_to_vec());
    storage.engine.db.write(batch).unwrap();
}

fn make_older(storage: &mut Storage, columns: impl Iterator<Item = Column>) {
    storage.applier = None;
    for column in columns {
        let options = rocksdb::Options::default();
        let created = storage.db_mut().create_cf(column.name(), &options);
        created.unwrap();
    }
}

/// Makes a directory of an older format.
pub(in crate::store) fn older(path: &Path, format: u32) {
    let (mut storage, _) = open(path);
    let state = checkpoint(0, "kept", Some(stored("y", 1)));
    storage.write(&[state]).unwrap();
    flush(&storage);
    let columns = Column::OLDER.into_iter();
    make_older(
        &mut storage,
        columns.filter(|it| format == 5 || *it != Column::Staged),
    );
    write_older(&storage, format);
    drop(storage);
    std::fs::remove_dir_all(path.join("log")).unwrap();
    marker::tests::forget_log(path);
}

#[test]
fn a_directory_whose_log_is_in_rocksdb_is_taken_over() {
    for format in [5, 4] {
        let dir = tempfile::tempdir().unwrap();
        older(dir.path(), format);
        let check = |recovered: &RecoveredState, incarnation| {
            assert_eq!(slots(recovered, LogId::Commands), [1, 2, 9]);
            let change = ConfigChange::everywhere(ReplicaSet::all(3));
            let (frames, _) = saved_configs(&[change]);
            assert_eq!(recovered.state.configs, Some(frames));
            assert!(slots(recovered, LogId::Configs).is_empty());
            let long = ("long".into(), Some(stored("long", 1)));
            let kept = ("kept".into(), Some(stored("y", 1)));
            let expected = if format == 5 {
                vec![kept, long]
            } else {
                vec![kept]
            };
            assert_eq!(recovered.state.entries, expected);
            assert_eq!(recovered.accepted[0].value, commands("older"));
            assert_eq!(recovered.promised, ballot(9));
            assert!(recovered.joined);
            assert_eq!(recovered.lives, [(ReplicaId(2), 5)]);
            assert_eq!(recovered.restart_wait, Some(Duration::from_millis(7)));
            let start = (LogId::Commands, ballot(9), Slot(9));
            assert_eq!(recovered.log_starts, [start]);
            assert_eq!(recovered.incarnation, Incarnation(incarnation));
        };
        let (storage, recovered) = open(dir.path());
        check(&recovered, 42);
        assert!(
            Column::OLDER
                .iter()
                .all(|it| storage.engine.db.cf_handle(it.name()).is_none())
        );
        drop(storage);
        check(&open(dir.path()).1, 43);
    }
}

#[test]
fn an_interrupted_takeover_begins_again() {
    let dir = tempfile::tempdir().unwrap();
    older(dir.path(), 5);
    // The process is killed when a part of the log is copied.
    let (mut storage, _) = open(&dir.path().join("other"));
    storage.write(&[accepted(1, "half")]).unwrap();
    drop(storage);
    std::fs::rename(dir.path().join("other/log"), dir.path().join("log")).unwrap();
    std::fs::remove_dir_all(dir.path().join("other")).unwrap();
    let (_, recovered) = open(dir.path());
    assert_eq!(slots(&recovered, LogId::Commands), [1, 2, 9]);
    assert_eq!(recovered.accepted[0].value, commands("older"));
}

/// The process is killed when the log and its mark are durable, and the identity is not.
#[test]
fn a_start_that_is_interrupted_before_the_identity_is_written_begins_again() {
    let dir = tempfile::tempdir().unwrap();
    older(dir.path(), 5);
    let (mut storage, _) = open(dir.path());
    make_older(&mut storage, Column::OLDER.into_iter());
    write_older(&storage, 5);
    drop(storage);
    let (_, recovered) = open(dir.path());
    assert_eq!(slots(&recovered, LogId::Commands), [1, 2, 9]);
    assert_eq!(recovered.incarnation, Incarnation(42));

    let fresh = tempfile::tempdir().unwrap();
    let (storage, _) = open(fresh.path());
    let handle = Column::Meta.handle(&storage.engine.db);
    storage.engine.db.delete_cf(handle, meta::IDENTITY).unwrap();
    marker::tests::unmake(&storage.engine.marker);
    drop(storage);
    let (_, recovered) = open(fresh.path());
    assert_eq!(recovered.incarnation, Incarnation(1));
}

#[test]
fn a_log_without_the_rest_of_its_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    for entry in std::fs::read_dir(dir.path()).unwrap().flatten() {
        if entry.file_name() != "log" {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    let refused = Storage::open(dir.path(), &stamp(), Durability::Sync);
    assert!(matches!(refused.err(), Some(StorageError::Damaged { .. })));
    assert!(dir.path().join("log/0000000001.seg").exists());
}

/// Changes the folder of the log with `place`, and then opens the directory. Returns the result of
/// opening.
fn foreign(place: impl Fn(&Path)) -> Result<(), StorageError> {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    place(&dir.path().join("log"));
    Storage::open(dir.path(), &stamp(), Durability::Sync).map(drop)
}

#[test]
fn foreign_files_in_the_log_are_ignored_or_refused_by_name() {
    for name in ["1.seg", "+000000002.seg", "00000000002.seg", "notes"] {
        foreign(|log| std::fs::write(log.join(name), "text").unwrap()).unwrap();
    }
    let directory = |log: &Path| std::fs::create_dir(log.join("0000000002.seg")).unwrap();
    let refused = foreign(directory).unwrap_err().to_string();
    assert!(refused.contains("log/0000000002.seg"), "{refused}");
    let file = |log: &Path| {
        std::fs::remove_dir_all(log).unwrap();
        std::fs::write(log, "").unwrap();
    };
    let refused = foreign(file).unwrap_err().to_string();
    assert!(
        refused.contains("log is damaged (it is not a directory)"),
        "{refused}"
    );
}

#[test]
fn a_segment_that_is_taken_away_is_missed_at_the_next_batch() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    std::fs::remove_file(dir.path().join("log/0000000001.seg")).unwrap();
    storage.write(&[accepted(1, "v")]).unwrap();
    let missed = storage.write(&[checkpoint(1, "k", None)]).unwrap_err();
    assert!(matches!(missed, StorageError::Gone { .. }), "{missed}");
}

#[test]
fn a_spare_segment_that_is_taken_away_or_replaced_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open_small(dir.path());
    let spare = dir.path().join("log/spare");
    let before = segments(dir.path()).len();
    let mut removed = 0;
    for slot in 1..=200 {
        if std::fs::remove_file(&spare).is_ok() {
            let path = dir.path().join("elsewhere");
            match removed % 5 {
                0 => {}
                1 => std::fs::write(&spare, "another file").unwrap(),
                2 => std::fs::create_dir(&spare).unwrap(),
                3 => std::os::unix::fs::symlink(path, &spare).unwrap(),
                _ => make_pipe(&spare),
            }
            removed += 1;
        }
        storage.write(&[accepted(slot, &"v".repeat(1000))]).unwrap();
    }
    assert!(removed > 5);
    assert!(
        !dir.path().join("elsewhere").exists(),
        "no link is followed"
    );
    assert!(segments(dir.path()).len() > before + 1);
    drop(storage);
    let (_, recovered) = open_small(dir.path());
    assert_eq!(slots(&recovered, LogId::Commands).len(), 200);
}

#[test]
fn a_start_removes_what_stands_in_the_place_of_the_spare_segment_if_it_can() {
    let dir = tempfile::tempdir().unwrap();
    drop(open_small(dir.path()));
    let spare = dir.path().join("log/spare");
    make_pipe(&spare);
    drop(open_small(dir.path()));
    std::fs::create_dir(&spare).unwrap();
    drop(open_small(dir.path()));
    std::fs::create_dir(&spare).unwrap();
    std::fs::write(spare.join("file"), "").unwrap();
    let refused = Storage::open(dir.path(), &stamp(), Durability::Sync).err();
    let refused = refused.unwrap().to_string();
    assert!(
        refused.contains("log/spare is damaged (it is a directory"),
        "{refused}"
    );
}

#[test]
fn a_manifest_that_is_taken_away_while_the_store_is_open_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    storage
        .write(&[checkpoint(1, "k", Some(stored("v", 1)))])
        .unwrap();
    let entries = std::fs::read_dir(dir.path()).unwrap().flatten();
    let names = entries.map(|it| it.file_name().into_string().unwrap());
    let name = names.into_iter().find(|it| it.starts_with("MANIFEST-"));
    let name = name.unwrap();
    std::fs::remove_file(dir.path().join(&name)).unwrap();
    let error = storage.close().unwrap_err().to_string();
    assert!(
        error.contains(&name) && error.contains("No such file"),
        "{error}"
    );
}

fn make_pipe(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

/// A kill loses the changes since the last flush. The log has their commands.
#[test]
fn a_kill_loses_the_changes_that_were_not_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    let write = |storage: &mut Storage, slot| {
        let changes = checkpoint(slot, "k", Some(stored("v", slot)));
        storage.write(&[accepted(slot, "v"), changes]).unwrap();
    };
    write(&mut storage, 1);
    let (report, reports) = std::sync::mpsc::channel();
    let report = move |flushed| report.send(flushed).unwrap();
    storage.flush(Box::new(report)).unwrap();
    let flushed = reports.recv().unwrap().unwrap();
    assert_eq!(flushed, [Slot(1), Slot(1)].into());
    write(&mut storage, 2);
    // Copy of the files that a killed process leaves behind.
    let left = super::damage::lay_out(&super::damage::files(dir.path()));
    let (_, recovered) = open(left.path());
    assert_eq!(recovered.state.executed, Slot(1));
    assert_eq!(
        recovered.state.entries,
        [("k".into(), Some(stored("v", 1)))]
    );
    assert_eq!(slots(&recovered, LogId::Commands), [2]);
}

#[test]
fn a_segment_that_lacks_some_of_its_zeros_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open_small(dir.path());
    storage.write(&[accepted(1, "v")]).unwrap();
    drop(storage);
    let path = dir.path().join("log/0000000001.seg");
    let bytes = std::fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    assert!(end % 512 > 0, "some zeros follow in the same sector");
    std::fs::write(&path, &bytes[..end]).unwrap();
    let (_, recovered) = open_small(dir.path());
    assert_eq!(slots(&recovered, LogId::Commands), [1]);
}

/// The batches are more than may wait to be applied.
#[test]
fn a_flush_covers_every_batch_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    let write = |storage: &mut Storage, slot| {
        let changes = checkpoint(slot, &format!("k{slot}"), Some(stored("v", slot)));
        storage.write(&[accepted(slot, "v"), changes]).unwrap();
    };
    (1..=50).for_each(|slot| write(&mut storage, slot));
    let (report, reports) = std::sync::mpsc::channel();
    let report = move |flushed| report.send(flushed).unwrap();
    storage.flush(Box::new(report)).unwrap();
    (51..=60).for_each(|slot| write(&mut storage, slot));
    let flushed = reports.recv().unwrap().unwrap();
    assert_eq!(flushed.commands, Slot(50));
    let left = super::damage::lay_out(&super::damage::files(dir.path()));
    let (_, recovered) = open(left.path());
    assert!(recovered.state.executed >= Slot(50));
    assert!(recovered.state.entries.len() >= 50);
    storage.close().unwrap();
    let (_, recovered) = open(dir.path());
    assert_eq!(recovered.state.executed, Slot(60));
    assert_eq!(recovered.state.entries.len(), 60);
}

/// Names of the segments in a data directory, in order.
fn segments(path: &Path) -> Vec<String> {
    let found = std::fs::read_dir(path.join("log")).unwrap().flatten();
    let names = found.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".seg")).collect();
    names.sort();
    names
}

/// Waits until the directory has only the segments that the log needs. Returns their names.
fn wait_for_removal(storage: &Storage, path: &Path) -> Vec<String> {
    let needed = storage.log.log().segments().count();
    loop {
        let found = segments(path);
        if found.len() == needed {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Opens a directory with segments of 4 KiB.
fn open_small(path: &Path) -> (Storage, RecoveredState) {
    let options = StorageOptions {
        segment_bytes: Some(4096),
        ..StorageOptions::default()
    };
    Storage::open_with(path, &stamp(), options).unwrap()
}

/// Writes slots 1 to `last`, each with its changes of the state, and flushes the state.
fn write_flushed(storage: &mut Storage, last: u64) {
    for slot in 1..=last {
        let text = "v".repeat(1000);
        let changes = checkpoint(slot, "k", Some(stored(&text, slot)));
        storage.write(&[accepted(slot, &text), changes]).unwrap();
    }
    flush(storage);
}

#[test]
fn truncation_removes_segments_and_a_start_goes_on_without_them() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open_small(dir.path());
    write_flushed(&mut storage, 40);
    let before = segments(dir.path());
    storage.truncate([Slot(30), Slot(1)].into()).unwrap();
    let after = wait_for_removal(&storage, dir.path());
    assert!(after.len() < before.len() && before.ends_with(&after));
    storage.write(&[accepted(41, "last")]).unwrap();
    let entries = storage.read_log(LogId::Commands, Slot(31), Slot(41), 1 << 20);
    assert_eq!(entries.unwrap().len(), 11);
    drop(storage);
    // A loss of power brings back a part of what was removed.
    std::fs::write(dir.path().join("log").join(&before[0]), "remains").unwrap();
    let (mut storage, recovered) = open_small(dir.path());
    assert_eq!(slots(&recovered, LogId::Commands), [41]);
    assert_eq!(recovered.state.executed, Slot(40));
    assert!(!segments(dir.path()).contains(&before[0]));
    // Nothing is served above the gap.
    let gap = storage.read_log(LogId::Commands, Slot(2), Slot(41), 1 << 20);
    assert_eq!(gap.unwrap(), []);
}

#[test]
fn a_prepared_read_is_not_affected_by_a_truncation() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open_small(dir.path());
    write_flushed(&mut storage, 400);
    let last = Slot(20);
    let read = storage.prepare_read(LogId::Commands, Slot(1), last, 1 << 20);
    storage.truncate([Slot(390), Slot(1)].into()).unwrap();
    // These writes use segments again.
    for slot in 401..800 {
        storage.write(&[accepted(slot, &"w".repeat(1000))]).unwrap();
    }
    let entries = read.unwrap()().unwrap();
    assert_eq!(entries.len(), 20);
    let expected = commands(&"v".repeat(1000));
    assert!(entries.iter().all(|(_, value)| *value == expected));
    drop(entries);
    let gone = storage.prepare_read(LogId::Commands, Slot(1), last, 1 << 20);
    assert_eq!(gone.unwrap()().unwrap(), []);
}

#[test]
fn a_segment_that_truncation_left_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open_small(dir.path());
    write_flushed(&mut storage, 40);
    storage.truncate([Slot(30), Slot(1)].into()).unwrap();
    let first = wait_for_removal(&storage, dir.path()).remove(0);
    drop(storage);
    std::fs::remove_file(dir.path().join("log").join(&first)).unwrap();
    let refused = Storage::open(dir.path(), &stamp(), Durability::Sync);
    let message = refused.err().unwrap().to_string();
    assert!(message.contains(&first), "{message}");
}

#[test]
fn a_committed_slot_that_is_nowhere_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    let committed = Record::Committed([Slot(3), Slot(0)].into());
    let entries = [accepted(1, "a"), accepted(2, "b"), committed];
    storage.write(&entries).unwrap();
    drop(storage);
    let refused = Storage::open(dir.path(), &stamp(), Durability::Sync);
    let message = refused.err().unwrap().to_string();
    assert!(message.contains("slot 3 of the commands"), "{message}");
}

#[test]
fn configurations_of_format_6_are_copied_to_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    let config = Record::Accepted {
        log: LogId::Configs,
        slot: Slot(1),
        ballot: ballot(1),
        value: Value::Config(Arc::new(ConfigChange::default())),
    };
    storage.write(&[config]).unwrap();
    storage.write(&[checkpoint(1, "k", None)]).unwrap();
    let handle = Column::Meta.handle(&storage.engine.db);
    storage.engine.db.delete_cf(handle, meta::FRAMES).unwrap();
    set_format(&storage, 6);
    flush(&storage);
    drop(storage);
    let (_, recovered) = open(dir.path());
    let (frames, _) = saved_configs(&[ConfigChange::default()]);
    assert_eq!(recovered.state.configs, Some(frames));
    assert_eq!(recovered.accepted.len(), 0);
}

/// Returns the changes of some configurations: the first one is for all keys, and the others list
/// keys.
fn some_changes() -> Vec<ConfigChange> {
    let listing = |at: usize| ConfigChange {
        keys: vec![(
            ReplicaSet(1 + at as u64 % 7),
            vec![format!("k{}", at % 3).into()],
        )],
        ..ConfigChange::default()
    };
    let first = ConfigChange::everywhere(ReplicaSet::all(3));
    std::iter::once(first).chain((0..9).map(listing)).collect()
}

/// Makes a directory of format 7, which has all executed configurations. The configuration with the
/// index `missing` is left out.
fn with_all_configs(path: &Path, missing: Option<usize>) {
    let (mut storage, _) = open(path);
    let changes = some_changes();
    let position = codec::Position {
        config: ConfigId(changes.len() as u64),
        ..codec::Position::default()
    };
    let mut encoded = Vec::new();
    codec::encode_position(&position, &mut encoded);
    let mut rows = vec![(meta::POSITION.to_vec(), encoded)];
    for (nth, change) in changes.into_iter().enumerate() {
        let slot = Slot(nth as u64 + 1);
        let value = Value::Config(Arc::new(change));
        let mut encoded = Vec::new();
        codec::encode_entry(Ballot::ZERO, &value, &mut encoded);
        let accepted = Record::Accepted {
            log: LogId::Configs,
            slot,
            ballot: ballot(1),
            value,
        };
        if missing != Some(nth) {
            rows.push((meta::config(slot), encoded));
            storage.write(&[accepted]).unwrap();
        }
    }
    let mut batch = WriteBatch::default();
    for (row, value) in rows {
        super::records::put(&storage.engine.db, Column::Meta, &row, &value, &mut batch);
    }
    storage.engine.apply(batch).unwrap();
    set_format(&storage, 7);
    flush(&storage);
}

#[test]
fn all_configurations_of_format_7_are_executed_once_and_removed_and_format_8_has_none() {
    let dir = tempfile::tempdir().unwrap();
    with_all_configs(dir.path(), None);
    let mut original = Configs::new(3);
    for (id, change) in (1..).map(ConfigId).zip(some_changes()) {
        original.apply(id, &change);
    }
    for older in [Some(8), None, None] {
        let (storage, recovered) = open(dir.path());
        let first = storage.engine.get(Column::Meta, &meta::config(Slot(1)));
        assert_eq!(first.unwrap(), None);
        let found = recovered.state.configs.as_ref().expect("they are there");
        assert!(found.configured);
        assert_eq!(recovered.state.listed.len(), 3);
        let replica = Replica::new(Time(1), Settings::new(ReplicaId(1), 3), recovered, 1);
        let configs = replica.configs();
        assert_eq!(configs.newest(), original.newest());
        for key in ["k0", "k1", "k2", "other"] {
            assert_eq!(
                configs.holders(key.as_bytes()),
                original.holders(key.as_bytes())
            );
        }
        assert_eq!(configs.listed_by_range(), original.listed_by_range());
        if let Some(older) = older {
            set_format(&storage, older);
            continue;
        }
        drop(storage);
        let found = super::super::inspect::StoppedDirectory::open(dir.path()).unwrap();
        assert_eq!(found.verify().problems, []);
        assert_eq!(found.summary().state.unwrap().listed, 3);
    }
}

#[test]
fn a_directory_of_format_7_that_lacks_a_configuration_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    with_all_configs(dir.path(), Some(4));
    let refused = Storage::open(dir.path(), &stamp(), Durability::Sync);
    let message = refused.err().unwrap().to_string();
    assert!(message.contains("number 5 is missing"), "{message}");
}

/// Rows with a correct checksum that do not fit together are refused, too.
#[test]
fn a_checkpoint_of_configurations_that_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    let (frames, listed) = saved_configs(&some_changes());
    let saved = |config, frames: Option<ConfigFrames>, listed: Vec<_>| {
        Record::from(StateChanges {
            config: ConfigId(config),
            configs: frames,
            listed,
            ..StateChanges::default()
        })
    };
    let newest = frames.frames.last().unwrap().id.0;
    storage
        .write(&[saved(newest, Some(frames.clone()), listed)])
        .unwrap();
    flush(&storage);
    drop(storage);
    let later = [(ConfigId(newest + 1), ReplicaSet::all(3))];
    let foreign = [(ConfigId(1), ReplicaSet::all(4))];
    let row = |versions: [(ConfigId, ReplicaSet); 1]| {
        vec![("k0".into(), Some(versions.into_iter().collect()))]
    };
    let mut hole = frames.clone();
    hole.frames.remove(1);
    for (record, expected) in [
        (saved(newest + 1, None, vec![]), "meta/frames"),
        (saved(newest, Some(hole), vec![]), "is missing"),
        (saved(newest, None, row(later)), "meta/listed/k0"),
        (saved(newest, None, row(foreign)), "no member"),
    ] {
        let copy = super::damage::lay_out(&super::damage::files(dir.path()));
        let (mut storage, recovered) = open(copy.path());
        assert_eq!(recovered.state.listed.len(), 3);
        storage.write(&[record]).unwrap();
        flush(&storage);
        drop(storage);
        let found = super::super::inspect::StoppedDirectory::open(copy.path()).unwrap();
        let problems = found.verify().problems;
        let problem = problems.first().expect("there is a problem").to_string();
        assert!(problem.contains(expected), "{problem}");
        let refused = Storage::open(copy.path(), &stamp(), Durability::Sync);
        let message = refused.err().unwrap().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

/// Measures the bytes on the disk, and the time of a start.
#[test]
#[ignore = "measures: 5,000 configurations of 100 keys each, among 20,000 keys"]
fn a_start_after_many_configurations() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    let (keys, all) = (100, 20_000);
    let mut configs = Configs::new(3);
    for slot in 1..=5000u64 {
        let first = slot as usize * 7919 % all;
        let listed = (0..keys).map(|i| format!("user{:012}", (first + i * 13) % all).into());
        let change = ConfigChange {
            keys: vec![(ReplicaSet(1 + slot % 7), listed.collect())],
            ..ConfigChange::default()
        };
        configs.apply(ConfigId(slot), &change);
        configs.forget_before(ConfigId(slot.saturating_sub(3)));
        let saved = configs.take_unsaved().unwrap();
        let frames = ConfigFrames {
            configured: true,
            frames: saved.frames,
        };
        let changes = StateChanges {
            executed: Slot(slot),
            config: ConfigId(slot),
            configs: Some(frames),
            listed: saved.keys,
            ..StateChanges::default()
        };
        storage.write(&[Record::from(changes)]).unwrap();
    }
    flush(&storage);
    drop(storage);
    for _ in 0..3 {
        let files = super::damage::files(dir.path()).into_iter();
        let tables = files.filter(|(name, _)| name.ends_with(".sst"));
        let bytes: usize = tables.map(|(_, bytes)| bytes.len()).sum();
        let begin = std::time::Instant::now();
        let (storage, recovered) = open(dir.path());
        let opened = begin.elapsed();
        let replica = Replica::new(Time(1), Settings::new(ReplicaId(1), 3), recovered, 1);
        let started = begin.elapsed();
        assert_eq!(replica.configs().listed_len(), all);
        println!("{bytes} bytes of tables; opened in {opened:?}, started in {started:?}");
        drop(storage);
    }
}

/// The files of RocksDB are replaced by those of an earlier time, and the log is not.
#[test]
fn a_state_older_than_the_marker_says_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut storage, _) = open(dir.path());
    storage
        .write(&[checkpoint(3, "k", Some(stored("v", 3)))])
        .unwrap();
    flush(&storage);
    let later = [Slot(9), Slot(1)].into();
    let marker = &storage.engine.marker;
    let manifest = marker.find_manifest().unwrap();
    marker.advance_state(later, manifest).unwrap();
    drop(storage);
    let refused = Storage::open(dir.path(), &stamp(), Durability::Sync);
    let message = refused.err().unwrap().to_string();
    for part in ["slot 3", "slot 9"] {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}
