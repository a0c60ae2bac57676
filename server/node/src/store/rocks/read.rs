//! Reads of the storage. At the start, they return the state from which a replica continues. Later,
//! they return entries of its logs for other replicas. The checksum of every value is checked.

use bytes::Bytes;
use leasehold_leases::{Incarnation, Key, Slot};
use rocksdb::{Direction, IteratorMode, ReadOptions};

use super::engine::Engine;
use super::records::{self, Column, meta};
use super::{Storage, StorageError};
use leasehold_replica::action::{RecoveredState, StateChanges};
use leasehold_replica::codec::{self, Position};
use leasehold_replica::message::{LogId, PerLog, ReportedEntry, Value};

impl Storage {
    /// Returns the entries of a log from slot `from` to slot `last`, in ascending order. Stops
    /// early if further entries do not fit into `bytes_max`, but returns at least one entry.
    ///
    /// # Errors
    /// `Damaged`, `Directory`.
    pub fn read_log(
        &self,
        log: LogId,
        from: Slot,
        last: Slot,
        bytes_max: usize,
    ) -> Result<Vec<(Slot, Value)>, StorageError> {
        let mut entries = Vec::new();
        let mut total = 0;
        self.log.each(log, from, |slot, _, value, bytes| {
            total += bytes;
            if slot > last || (total > bytes_max && !entries.is_empty()) {
                return false;
            }
            entries.push((slot, value));
            total < bytes_max
        })?;
        Ok(entries)
    }

    pub(super) fn recover(&self, incarnation: Incarnation) -> Result<RecoveredState, StorageError> {
        let state = self.recover_state()?;
        let facts = self.log.log().facts();
        let log_starts = facts.log_starts.iter();
        let mut recovered = RecoveredState {
            incarnation,
            life: self.engine.marker.life(),
            joined: facts.joined,
            lives: facts.lives.iter().map(|(id, life)| (*id, *life)).collect(),
            promised: facts.promised,
            restart_wait: facts.restart_wait,
            log_starts: log_starts
                .map(|((log, ballot), slot)| (*log, *ballot, *slot))
                .collect(),
            state,
            ..Default::default()
        };
        let unexecuted = recovered.state.executed.next();
        for (log, from) in [(LogId::Commands, unexecuted), (LogId::Configs, Slot::ZERO)] {
            self.log.each(log, from, |slot, ballot, value, _| {
                recovered.accepted.push(ReportedEntry {
                    log,
                    slot,
                    ballot,
                    value,
                });
                true
            })?;
        }
        Ok(recovered)
    }

    fn recover_state(&self) -> Result<StateChanges, StorageError> {
        let mut state = StateChanges::default();
        if let Some(position) = self.engine.stored_position()? {
            state.executed = position.executed;
            state.config = position.config;
            state.log_time_ms = position.log_time_ms;
            state.opens_from_ms = position.opens_from_ms;
        }
        self.engine.each(Column::State, &[], |row, value| {
            let decoded = codec::decode_stored(value);
            let (stored, _) = self.engine.intact(Column::State, row, decoded)?;
            state
                .entries
                .push((Key::copy_from_slice(row), Some(stored)));
            Ok(true)
        })?;
        self.engine.each(Column::Sessions, &[], |key, value| {
            let client = self.engine.number(Column::Sessions, key, key)?;
            let decoded = codec::decode_session(value);
            let session = self.engine.intact(Column::Sessions, key, decoded)?;
            state.sessions.push((client, Some(session)));
            Ok(true)
        })?;
        Ok(state)
    }
}

impl Engine {
    fn stored_position(&self) -> Result<Option<Position>, StorageError> {
        let found = self.get(Column::Meta, meta::POSITION)?;
        let decoded = found.map(codec::decode_position);
        let position = decoded.map(|it| self.intact(Column::Meta, meta::POSITION, it));
        position.transpose()
    }

    /// Returns the last slot of each log that the state covers. The state must not be older than
    /// the marker says.
    ///
    /// # Errors
    /// `Damaged`, `Engine`.
    pub(super) fn position(&self) -> Result<PerLog<Slot>, StorageError> {
        let found = self.stored_position()?;
        let found = found.map_or(PerLog::default(), |found| PerLog {
            commands: found.executed,
            configs: Slot(found.config.0),
        });
        self.marker.check_state(found)?;
        Ok(found)
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
    pub(super) fn each(
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

    pub(super) fn slot(&self, log: LogId, key: &[u8]) -> Result<Slot, StorageError> {
        self.number(Column::of(log), key, key).map(Slot)
    }
}
