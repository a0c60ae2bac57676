//! Conversion of records to keys and values of RocksDB. Each value is sealed with a checksum.
//!
//! The functions that read a row back ([`unseal`], [`meta::parse_log_start`],
//! [`staged::parse_row`]) take bytes that a disk may have changed. These functions are public so
//! that fuzz targets can call them.

use bytes::{Buf, Bytes};
use leasehold_leases::Key;
use leasehold_leases::config::KeyVersions;
use rocksdb::{ColumnFamily, DB, WriteBatch};

use leasehold_replica::action::{ConfigFrames, StateChanges};
use leasehold_replica::codec::{self, Position};
use leasehold_replica::message::LogId;

/// Size in bytes of the checksum that follows each value.
const SEAL_BYTES: usize = 4;

/// The column families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Slot -> accepted commands. Only in directories of older formats.
    Log,
    /// Slot -> accepted configuration. Only in directories of older formats.
    Configs,
    /// Key -> value.
    State,
    /// Version and key -> value; see [`super::staged`]. Only in directories of older formats.
    Staged,
    /// Client -> session.
    Sessions,
    /// Rows with individual keys; see [`meta`].
    Meta,
}

impl Column {
    /// All column families of this format.
    pub const ALL: [Column; 3] = [Column::State, Column::Sessions, Column::Meta];
    /// Column families that only directories of older formats have.
    pub const OLDER: [Column; 3] = [Column::Log, Column::Configs, Column::Staged];

    pub(super) fn of(log: LogId) -> Column {
        match log {
            LogId::Commands => Column::Log,
            LogId::Configs => Column::Configs,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Column::Log => "log",
            Column::Configs => "configs",
            Column::State => "state",
            Column::Staged => "staged",
            Column::Sessions => "sessions",
            Column::Meta => "meta",
        }
    }

    pub(super) fn handle(self, db: &DB) -> &ColumnFamily {
        db.cf_handle(self.name())
            .expect("the column family is opened with the database")
    }

    /// Returns a key as text for operators.
    pub(super) fn readable(self, key: &[u8]) -> String {
        match (self, <[u8; 8]>::try_from(key)) {
            (Column::Log | Column::Configs | Column::Sessions, Ok(number)) => {
                u64::from_be_bytes(number).to_string()
            }
            _ => key.escape_ascii().to_string(),
        }
    }
}

/// Keys of the column family `meta`. The current format uses the keys of the identity, of the
/// position and of the configurations. All other keys occur only in directories of older formats.
/// The current format stores the facts under these keys in the log instead.
pub mod meta {
    use leasehold_leases::{Ballot, ReplicaId, Slot};

    use leasehold_replica::message::LogId;

    pub(in super::super) const IDENTITY: &[u8] = b"identity";
    pub(in super::super) const INCARNATION: &[u8] = b"incarnation";
    pub(in super::super) const JOINED: &[u8] = b"joined";
    pub(in super::super) const POSITION: &[u8] = b"position";
    pub(in super::super) const PROMISED: &[u8] = b"promised";
    pub(in super::super) const RESTART_WAIT: &[u8] = b"restart_wait";
    /// Prefix of the keys under which lives are stored. A life is the random number that identifies
    /// a data directory. The replica's id follows the prefix.
    pub(in super::super) const LIFE: &[u8] = b"life/";
    /// Prefix of the keys for the opening no-ops of ballots. In such a key, the log and the ballot
    /// follow the prefix. Rows are sorted by ballot.
    pub(in super::super) const LOG_START: &[u8] = b"start/";

    /// Key of the newest configurations, without the holders of listed keys.
    pub(in crate::store) const FRAMES: &[u8] = b"frames";
    /// Prefix of the keys for the holders of listed keys. The listed key follows the prefix.
    pub(in crate::store) const LISTED: &[u8] = b"listed/";

    /// Prefix of the key of an executed configuration, in directories of format 7. The slot of the
    /// configuration follows the prefix.
    pub(in super::super) const CONFIG: &[u8] = b"config/";
    /// End of the keys with the prefix [`CONFIG`].
    pub(in super::super) const CONFIG_END: &[u8] = b"config0";

    /// Returns the key for the holders of the listed key `key`.
    pub fn listed(key: &[u8]) -> Vec<u8> {
        [LISTED, key].concat()
    }

    /// Returns the listed key that follows the prefix of `key`; `None` if `key` does not have this
    /// prefix.
    pub fn parse_listed(key: &[u8]) -> Option<&[u8]> {
        key.strip_prefix(LISTED)
    }

    /// Returns the key of the configuration in `slot`.
    pub fn config(slot: Slot) -> Vec<u8> {
        [CONFIG, &slot.0.to_be_bytes()].concat()
    }

    /// Returns the slot of the configuration under `key`; `None` for any other key.
    pub fn parse_config(key: &[u8]) -> Option<Slot> {
        let slot = key.strip_prefix(CONFIG)?.try_into().ok()?;
        Some(Slot(u64::from_be_bytes(slot)))
    }

    /// Returns the key under which the life of `replica` is stored. The stored life is the first
    /// one that was received.
    pub fn life(replica: ReplicaId) -> Vec<u8> {
        [LIFE, &[replica.0]].concat()
    }

    /// Returns the replica from which [`life`] made this key; `None` for any other key.
    pub fn parse_life(key: &[u8]) -> Option<ReplicaId> {
        match key.strip_prefix(LIFE)? {
            &[replica] if replica < 64 => Some(ReplicaId(replica)),
            _ => None,
        }
    }

    /// Returns the key for the opening no-op of `ballot`.
    pub fn log_start(log: LogId, ballot: Ballot) -> Vec<u8> {
        let mut key = LOG_START.to_vec();
        key.push(match log {
            LogId::Commands => b'c',
            LogId::Configs => b'g',
        });
        key.extend(ballot.round.to_be_bytes());
        key.push(ballot.replica.0);
        key
    }

    /// Returns the log and the ballot from which [`log_start`] made this key; `None` for any other
    /// key.
    pub fn parse_log_start(key: &[u8]) -> Option<(LogId, Ballot)> {
        let (log, rest) = key.strip_prefix(LOG_START)?.split_first()?;
        let (round, replica) = rest.split_first_chunk::<8>()?;
        let log = match log {
            b'c' => LogId::Commands,
            b'g' => LogId::Configs,
            _ => return None,
        };
        let &[replica] = replica else { return None };
        let ballot = Ballot {
            round: u64::from_be_bytes(*round),
            replica: ReplicaId(replica),
        };
        (replica < 64).then_some((log, ballot))
    }
}

/// Returns the checksum of a value. The checksum also covers the column family and the key of the
/// value. So a value under the wrong key is detected as damage.
fn checksum(column: Column, key: &[u8], value: &[u8]) -> [u8; SEAL_BYTES] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(column.name().as_bytes());
    hasher.update(&(key.len() as u32).to_be_bytes());
    hasher.update(key);
    hasher.update(value);
    hasher.finalize().to_be_bytes()
}

/// Checks the checksum at the end of `sealed` and removes it.
///
/// # Errors
/// Returns the problem with the value.
pub fn unseal(column: Column, key: &[u8], mut sealed: Bytes) -> Result<Bytes, &'static str> {
    let Some(length) = sealed.len().checked_sub(SEAL_BYTES) else {
        return Err("too short for a checksum");
    };
    let value = sealed.split_to(length);
    if sealed.chunk() != checksum(column, key, &value) {
        return Err("its checksum does not match");
    }
    Ok(value)
}

/// Returns the value with its checksum appended.
pub fn seal(column: Column, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(value.len() + SEAL_BYTES);
    sealed.extend(value);
    sealed.extend(checksum(column, key, value));
    sealed
}

/// Appends a write of the value with its checksum to `batch`.
pub(super) fn put(db: &DB, column: Column, key: &[u8], value: &[u8], batch: &mut WriteBatch) {
    batch.put_cf(column.handle(db), key, seal(column, key, value));
}

/// Appends a batch of changes of the executed state to a batch of RocksDB.
pub(super) fn append(db: &DB, changes: &StateChanges, batch: &mut WriteBatch) {
    let scratch = Vec::new();
    Appender { db, batch, scratch }.changes(changes);
}

/// Appends changes of the configurations to a batch of RocksDB.
pub(super) fn append_configs(
    db: &DB,
    configs: Option<&ConfigFrames>,
    listed: &[(Key, Option<KeyVersions>)],
    batch: &mut WriteBatch,
) {
    let scratch = Vec::new();
    Appender { db, batch, scratch }.configs(configs, listed);
}

struct Appender<'a> {
    db: &'a DB,
    batch: &'a mut WriteBatch,
    scratch: Vec<u8>,
}

impl Appender<'_> {
    fn put(&mut self, column: Column, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
        self.scratch.clear();
        encode(&mut self.scratch);
        let seal = checksum(column, key, &self.scratch);
        self.scratch.extend(seal);
        self.batch
            .put_cf(column.handle(self.db), key, &self.scratch);
    }

    fn put_or_delete<T>(
        &mut self,
        column: Column,
        key: &[u8],
        value: Option<&T>,
        encode: impl FnOnce(&T, &mut Vec<u8>),
    ) {
        match value {
            Some(value) => self.put(column, key, |out| encode(value, out)),
            None => self.batch.delete_cf(column.handle(self.db), key),
        }
    }

    fn configs(&mut self, configs: Option<&ConfigFrames>, listed: &[(Key, Option<KeyVersions>)]) {
        if let Some(configs) = configs {
            self.put(Column::Meta, meta::FRAMES, |out| {
                codec::encode_frames(configs, out);
            });
        }
        let mut listed: Vec<_> = listed.iter().collect();
        listed.sort_unstable_by_key(|(key, _)| key);
        for (key, versions) in listed {
            let row = meta::listed(key);
            self.put_or_delete(Column::Meta, &row, versions.as_ref(), codec::encode_listed);
        }
    }

    /// Appends the changes, in ascending order of keys: RocksDB then inserts them faster.
    fn changes(&mut self, changes: &StateChanges) {
        let mut entries: Vec<_> = changes.entries.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| key);
        for (key, stored) in entries {
            self.put_or_delete(Column::State, key, stored.as_ref(), |stored, out| {
                codec::encode_stored(stored, false, out);
            });
        }
        let mut sessions: Vec<_> = changes.sessions.iter().collect();
        sessions.sort_unstable_by_key(|(client, _)| *client);
        for (client, session) in sessions {
            let key = client.to_be_bytes();
            self.put_or_delete(
                Column::Sessions,
                &key,
                session.as_ref(),
                codec::encode_session,
            );
        }
        self.configs(changes.configs.as_ref(), &changes.listed);
        let position = Position {
            executed: changes.executed,
            config: changes.config,
            log_time_ms: changes.log_time_ms,
            opens_from_ms: changes.opens_from_ms,
        };
        self.put(Column::Meta, meta::POSITION, |out| {
            codec::encode_position(&position, out);
        });
    }
}
