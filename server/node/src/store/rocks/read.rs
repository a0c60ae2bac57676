//! Reads of the storage. At the start, they return the state from which a replica continues. Later,
//! they return entries of its logs for other replicas. The checksum of every value is checked.

use bytes::Bytes;
use leasehold_leases::config::{check_frames, check_versions};
use leasehold_leases::{ConfigId, Incarnation, Key, Slot};
use rocksdb::{Direction, IteratorMode, ReadOptions};

use super::engine::Engine;
use super::records::{self, Column, meta};
use super::{Storage, StorageError};
use leasehold_replica::action::{ConfigFrames, RecoveredState, StateChanges};
use leasehold_replica::codec::{self, Position};
use leasehold_replica::message::{LogId, PerLog, ReportedEntry};

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
    ) -> Result<Vec<(Slot, leasehold_replica::message::Value)>, StorageError> {
        self.log.prepare_read(log, from, last, bytes_max)?.perform()
    }

    /// Returns the state from which a run of one of `n` replicas continues.
    pub(super) fn recover(
        &self,
        incarnation: Incarnation,
        n: usize,
    ) -> Result<RecoveredState, StorageError> {
        let state = self.recover_state(n)?;
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

    fn recover_state(&self, n: usize) -> Result<StateChanges, StorageError> {
        let mut state = StateChanges::default();
        if let Some(position) = self.engine.stored_position()? {
            state.executed = position.executed;
            state.config = position.config;
            state.log_time_ms = position.log_time_ms;
            state.opens_from_ms = position.opens_from_ms;
        }
        self.recover_configs(n, &mut state)?;
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
    /// Reads the newest configurations and the holders of listed keys. Checks that they fit
    /// together, and that they match the position of the state.
    fn recover_configs(&self, n: usize, state: &mut StateChanges) -> Result<(), StorageError> {
        let damaged = |key: &[u8], problem: String| self.engine.damaged(Column::Meta, key, problem);
        if let Some(found) = self.engine.get(Column::Meta, meta::FRAMES)? {
            let decoded = codec::decode_frames(found);
            let found = self.engine.intact(Column::Meta, meta::FRAMES, decoded)?;
            check_frames(n, &found.frames)
                .map_err(|problem| damaged(meta::FRAMES, problem.to_string()))?;
            state.configs = Some(found);
        }
        let newest = newest_of(state.configs.as_ref());
        if newest != state.config {
            return Err(damaged(meta::FRAMES, newest_differs(newest, state.config)));
        }
        self.engine.each(Column::Meta, meta::LISTED, |row, value| {
            let Some(key) = meta::parse_listed(row) else {
                return Ok(false);
            };
            let decoded = codec::decode_listed(value);
            let versions = self.engine.intact(Column::Meta, row, decoded)?;
            check_versions(n, newest, &versions)
                .map_err(|problem| damaged(row, problem.to_string()))?;
            let key = Key::copy_from_slice(key);
            state.listed.push((key, Some(versions)));
            Ok(true)
        })
    }
}

/// Returns the newest of these configurations; 0 if there is none.
pub(in crate::store) fn newest_of(configs: Option<&ConfigFrames>) -> ConfigId {
    let newest = configs.and_then(|configs| configs.frames.last());
    newest.map_or(ConfigId(0), |frame| frame.id)
}

/// Describes the error that the newest configuration differs from the one in the position of the
/// state.
pub(in crate::store) fn newest_differs(newest: ConfigId, position: ConfigId) -> String {
    format!(
        "the newest configuration is {}, and the state is at configuration {}",
        newest.0, position.0
    )
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
