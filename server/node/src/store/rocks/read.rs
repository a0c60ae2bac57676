//! Reads of the storage. At the start, they return the state from which a replica continues. Later,
//! they return entries of its logs for other replicas. The checksum of every value is checked.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use leasehold_leases::{Incarnation, Key, ReplicaId, Slot};
use leasehold_wire::Version;
use rocksdb::{Direction, IteratorMode, ReadOptions, WriteBatch};

use super::records::{self, Column, meta};
use super::staged::{self, StagedValues};
use super::{Storage, StorageError};
use leasehold_replica::action::{Checkpoint, RecoveredState};
use leasehold_replica::codec;
use leasehold_replica::message::{LogId, ReportedEntry, Value};

impl Storage {
    /// Returns entries of a log from slot `from` to slot `last` in ascending order: at least one
    /// entry, and then as many as fit into `bytes_max`.
    ///
    /// # Errors
    /// `Damaged`, `Engine`.
    pub fn read_log(
        &self,
        log: LogId,
        from: Slot,
        last: Slot,
        bytes_max: usize,
    ) -> Result<Vec<(Slot, Value)>, StorageError> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        self.each(Column::of(log), &from.0.to_be_bytes(), |key, value| {
            let slot = self.slot(log, key)?;
            bytes += value.len();
            if slot > last || (bytes > bytes_max && !entries.is_empty()) {
                return Ok(false);
            }
            let decoded = codec::decode_entry(value);
            let (_, entry) = self.intact(Column::of(log), key, decoded)?;
            entries.push((slot, entry));
            Ok(bytes < bytes_max)
        })?;
        Ok(entries)
    }

    pub(super) fn recover(
        &mut self,
        incarnation: Incarnation,
    ) -> Result<RecoveredState, StorageError> {
        let mut recovered = RecoveredState {
            incarnation,
            life: self.marker.life(),
            joined: self.get(Column::Meta, meta::JOINED)?.is_some(),
            lives: self.recover_lives()?,
            state: self.recover_state()?,
            ..Default::default()
        };
        if let Some(bytes) = self.get(Column::Meta, meta::PROMISED)? {
            let decoded = codec::decode_ballot(bytes);
            recovered.promised = self.intact(Column::Meta, meta::PROMISED, decoded)?;
        }
        if let Some(bytes) = self.get(Column::Meta, meta::RESTART_WAIT)? {
            let ns = self.number(Column::Meta, meta::RESTART_WAIT, &bytes)?;
            recovered.restart_wait = Some(Duration::from_nanos(ns));
        }
        self.recover_log_starts(&mut recovered)?;
        let unexecuted = recovered.state.executed.next();
        self.recover_log(LogId::Commands, unexecuted, &mut recovered.accepted)?;
        self.recover_log(LogId::Configs, Slot::ZERO, &mut recovered.accepted)?;
        Ok(recovered)
    }

    fn recover_state(&mut self) -> Result<Checkpoint, StorageError> {
        let mut state = Checkpoint::default();
        if let Some(bytes) = self.get(Column::Meta, meta::POSITION)? {
            let decoded = codec::decode_position(bytes);
            let position = self.intact(Column::Meta, meta::POSITION, decoded)?;
            state.executed = position.executed;
            state.config = position.config;
            state.log_time_ms = position.log_time_ms;
            state.opens_from_ms = position.opens_from_ms;
        }
        let mut staged = self.recover_staged()?;
        let mut named = Vec::new();
        self.each(Column::State, &[], |row, value| {
            let decoded = codec::decode_stored(value);
            let (mut stored, is_staged) = self.intact(Column::State, row, decoded)?;
            let key = Key::copy_from_slice(row);
            if is_staged {
                let name = (key.clone(), stored.version);
                stored.value = staged.remove(&name).ok_or_else(|| {
                    self.damaged(Column::State, row, "its value is missing".to_owned())
                })?;
                named.push(name);
            }
            state.entries.push((key, Some(stored)));
            Ok(true)
        })?;
        self.staged = StagedValues::recovered(named.into_iter());
        self.forget_staged(staged.into_keys())?;
        self.each(Column::Sessions, &[], |key, value| {
            let client = self.number(Column::Sessions, key, key)?;
            let decoded = codec::decode_session(value);
            let session = self.intact(Column::Sessions, key, decoded)?;
            state.sessions.push((client, Some(session)));
            Ok(true)
        })?;
        Ok(state)
    }

    /// Reads all values that were written to disk before their checkpoint.
    fn recover_staged(&self) -> Result<HashMap<(Key, Version), Bytes>, StorageError> {
        let mut staged = HashMap::new();
        self.each(Column::Staged, &[], |row, value| {
            let name = staged::parse_row(row).ok_or_else(|| {
                self.damaged(Column::Staged, row, "not a key and its version".to_owned())
            })?;
            staged.insert(name, value);
            Ok(true)
        })?;
        Ok(staged)
    }

    /// Removes the staged values that no checkpoint names, because a crash came before their
    /// checkpoint.
    fn forget_staged(
        &self,
        unnamed: impl Iterator<Item = (Key, Version)>,
    ) -> Result<(), StorageError> {
        let mut batch = WriteBatch::default();
        for (key, version) in unnamed {
            let row = staged::row(&key, version);
            batch.delete_cf(Column::Staged.handle(&self.db), row);
        }
        if batch.is_empty() {
            Ok(())
        } else {
            self.write_batch(batch, self.durability)
        }
    }

    fn recover_lives(&self) -> Result<Vec<(ReplicaId, u64)>, StorageError> {
        let mut lives = Vec::new();
        self.each(Column::Meta, meta::LIFE, |key, value| {
            if !key.starts_with(meta::LIFE) {
                return Ok(false);
            }
            let replica = meta::parse_life(key).ok_or_else(|| {
                self.damaged(Column::Meta, key, "not the key of a life".to_owned())
            })?;
            lives.push((replica, self.number(Column::Meta, key, &value)?));
            Ok(true)
        })?;
        Ok(lives)
    }

    fn recover_log_starts(&self, recovered: &mut RecoveredState) -> Result<(), StorageError> {
        self.each(Column::Meta, meta::LOG_START, |key, value| {
            if !key.starts_with(meta::LOG_START) {
                return Ok(false);
            }
            let (log, ballot) = meta::parse_log_start(key).ok_or_else(|| {
                self.damaged(Column::Meta, key, "not the key of a log start".to_owned())
            })?;
            let slot = Slot(self.number(Column::Meta, key, &value)?);
            recovered.log_starts.push((log, ballot, slot));
            Ok(true)
        })
    }

    fn recover_log(
        &self,
        log: LogId,
        from: Slot,
        accepted: &mut Vec<ReportedEntry>,
    ) -> Result<(), StorageError> {
        self.each(Column::of(log), &from.0.to_be_bytes(), |key, value| {
            let slot = self.slot(log, key)?;
            let decoded = codec::decode_entry(value);
            let (ballot, value) = self.intact(Column::of(log), key, decoded)?;
            accepted.push(ReportedEntry {
                log,
                slot,
                ballot,
                value,
            });
            Ok(true)
        })
    }

    pub(super) fn intact<T>(
        &self,
        column: Column,
        key: &[u8],
        decoded: Result<T, codec::CodecError>,
    ) -> Result<T, StorageError> {
        decoded.map_err(|error| self.damaged(column, key, error.to_string()))
    }

    pub(super) fn get(&self, column: Column, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let found = self
            .db
            .get_cf(column.handle(&self.db), key)
            .map_err(|error| self.failed("reading", error))?;
        found
            .map(|value| {
                records::unseal(column, key, value.into())
                    .map_err(|problem| self.damaged(column, key, problem.to_owned()))
            })
            .transpose()
    }

    /// Visits the rows of a column family in order, from the key `from` on, until the visitor
    /// returns false.
    fn each(
        &self,
        column: Column,
        from: &[u8],
        mut visit: impl FnMut(&[u8], Bytes) -> Result<bool, StorageError>,
    ) -> Result<(), StorageError> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        let start = IteratorMode::From(from, Direction::Forward);
        let handle = column.handle(&self.db);
        for item in self.db.iterator_cf_opt(handle, options, start) {
            let (key, value) = item.map_err(|error| self.failed("reading", error))?;
            let value = records::unseal(column, &key, Bytes::from(value))
                .map_err(|problem| self.damaged(column, &key, problem.to_owned()))?;
            if !visit(&key, value)? {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn number(
        &self,
        column: Column,
        key: &[u8],
        bytes: &[u8],
    ) -> Result<u64, StorageError> {
        let bytes = <[u8; 8]>::try_from(bytes)
            .map_err(|_| self.damaged(column, key, "not a number of 8 bytes".to_owned()))?;
        Ok(u64::from_be_bytes(bytes))
    }

    fn slot(&self, log: LogId, key: &[u8]) -> Result<Slot, StorageError> {
        self.number(Column::of(log), key, key).map(Slot)
    }
}
