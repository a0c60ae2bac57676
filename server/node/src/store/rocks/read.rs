//! Reads of the storage. At the start, they return the state from which a replica continues. Later,
//! they return entries of its logs for other replicas. The checksum of every value is checked.

use bytes::Bytes;
use leasehold_leases::{ConfigId, Incarnation, Key, Slot};
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
    #[cfg(test)]
    pub fn read_log(
        &mut self,
        log: LogId,
        from: Slot,
        last: Slot,
        bytes_max: usize,
    ) -> Result<Vec<(Slot, Value)>, StorageError> {
        self.log.prepare_read(log, from, last, bytes_max)?.perform()
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
            committed: facts.committed,
            log_starts: log_starts
                .map(|((log, ballot), slot)| (*log, *ballot, *slot))
                .collect(),
            state,
            ..Default::default()
        };
        let covered = PerLog {
            commands: recovered.state.executed,
            configs: Slot(recovered.state.config.0),
        };
        for (log, covered) in covered.each() {
            let mut next = covered.next();
            self.log.each(log, next, |slot, ballot, value, _| {
                if slot == next {
                    next = slot.next();
                }
                recovered.accepted.push(ReportedEntry {
                    log,
                    slot,
                    ballot,
                    value,
                });
                true
            })?;
            self.check_committed(log, next, facts.committed[log])?;
        }
        Ok(recovered)
    }

    /// Checks that the log holds all committed entries that the state does not cover. `missing` is
    /// the first slot without an entry.
    fn check_committed(
        &self,
        log: LogId,
        missing: Slot,
        committed: Slot,
    ) -> Result<(), StorageError> {
        if missing > committed {
            return Ok(());
        }
        let name = match log {
            LogId::Commands => "commands",
            LogId::Configs => "configurations",
        };
        Err(StorageError::Damaged {
            path: self.engine.path.clone(),
            what: "the log".to_owned(),
            problem: format!(
                "slot {} of the {name} is neither in the log nor in the state, and slots up to {} \
                 were committed: files of an earlier time were put in place of others",
                missing.0, committed.0
            ),
        })
    }

    fn recover_state(&self) -> Result<StateChanges, StorageError> {
        let mut state = StateChanges::default();
        if let Some(position) = self.engine.stored_position()? {
            state.executed = position.executed;
            state.config = position.config;
            state.log_time_ms = position.log_time_ms;
            state.opens_from_ms = position.opens_from_ms;
        }
        state.configs = self.recover_configs(state.config)?;
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

impl Storage {
    /// Returns all configurations up to `last`.
    fn recover_configs(&self, last: ConfigId) -> Result<Vec<(Slot, Value)>, StorageError> {
        let mut configs = Vec::new();
        self.engine.each(Column::Meta, meta::CONFIG, |key, value| {
            if !key.starts_with(meta::CONFIG) {
                return Ok(false);
            }
            let next = Slot(configs.len() as u64 + 1);
            if meta::parse_config(key) != Some(next) {
                let problem = format!("configuration {} is missing", next.0);
                return Err(self.engine.damaged(Column::Meta, key, problem));
            }
            let decoded = codec::decode_entry(value);
            let (_, value) = self.engine.intact(Column::Meta, key, decoded)?;
            configs.push((next, value));
            Ok(true)
        })?;
        if configs.len() as u64 == last.0 {
            return Ok(configs);
        }
        let problem = format!("{} configurations are there, not {}", configs.len(), last.0);
        Err(self.engine.damaged(Column::Meta, meta::CONFIG, problem))
    }
}

impl Engine {
    pub(super) fn stored_position(&self) -> Result<Option<Position>, StorageError> {
        let found = self.get(Column::Meta, meta::POSITION)?;
        let decoded = found.map(codec::decode_position);
        let position = decoded.map(|it| self.intact(Column::Meta, meta::POSITION, it));
        position.transpose()
    }

    /// Returns the last slot of each log that the state covers. Fails if the state is older than
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
