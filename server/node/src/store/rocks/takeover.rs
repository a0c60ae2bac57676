//! Takeover of directories of older formats.
//!
//! In format 7, the state had every executed configuration. In older formats, only the log had
//! them. The configurations are executed again, and the state gets their checkpoint. Before format
//! 6, the log was in RocksDB. Everything that belongs in the log is copied to the files of a new
//! log and synced. Long values of the state, which had rows of their own, become part of the
//! state's rows. Finally the identity of the directory names the new format. If a start is
//! interrupted before that, the next start begins again.

use std::time::Duration;

use leasehold_leases::config::{CheckpointChanges, FRAMES_SAVED};
use leasehold_leases::{ConfigChange, ConfigId, Configs, Slot};
use leasehold_replica::action::{ConfigFrames, Record};
use leasehold_replica::codec;
use leasehold_replica::message::{LogId, Value};

use rocksdb::WriteBatch;

use super::records::{self, Column, meta};
use super::{Storage, StorageError, staged};

/// Approximate number of bytes that are copied between two syncs.
const GROUP_BYTES: usize = 4 << 20;

impl Storage {
    /// Copies the log of an older format to the files of a new log.
    ///
    /// # Errors
    /// `Full`, `Damaged`, `Directory`, `Engine`.
    pub(super) fn take_over(&mut self) -> Result<(), StorageError> {
        tracing::info!("the log is copied to files of its own; this happens once");
        let facts = self.older_facts()?;
        self.log.write(&facts, true)?;
        for log in LogId::ALL {
            self.copy_entries(log)?;
        }
        self.complete_rows()
    }

    /// Executes again all configurations that the state covers, and appends their checkpoint to
    /// `batch`. Also appends the removal of their rows. `n` is the number of replicas.
    ///
    /// # Errors
    /// `Damaged`, `Directory`, `Engine`.
    pub(super) fn condense_configs(
        &self,
        n: usize,
        batch: &mut WriteBatch,
    ) -> Result<(), StorageError> {
        let db = &self.engine.db;
        let position = self.engine.stored_position()?.unwrap_or_default();
        let mut executed = ExecutedAgain::new(n);
        self.engine.each(Column::Meta, meta::CONFIG, |key, value| {
            let Some(slot) = meta::parse_config(key) else {
                return Ok(false);
            };
            let decoded = codec::decode_entry(value);
            let (_, value) = self.engine.intact(Column::Meta, key, decoded)?;
            executed.execute(slot, &value);
            Ok(true)
        })?;
        // The log of a directory without these rows was never truncated, so it has all of them.
        let missing = Slot(executed.configs.newest().0).next();
        if missing.0 <= position.config.0 {
            self.log
                .each(LogId::Configs, missing, |slot, _, value, _| {
                    executed.execute(slot, &value);
                    slot.0 < position.config.0
                })?;
        }
        let newest = executed.configs.newest();
        if newest != position.config {
            return Err(StorageError::Damaged {
                path: self.engine.path.clone(),
                what: "the configurations".to_owned(),
                problem: format!(
                    "number {} is missing, and the state is at configuration {}",
                    newest.0 + 1,
                    position.config.0
                ),
            });
        }
        if let Some(CheckpointChanges { frames, mut keys }) = executed.configs.take_unsaved() {
            keys.retain(|(_, versions)| versions.is_some());
            let configured = executed.configured;
            let frames = ConfigFrames { configured, frames };
            records::append_configs(db, Some(&frames), &keys, batch);
        }
        let handle = Column::Meta.handle(db);
        batch.delete_range_cf(handle, meta::CONFIG, meta::CONFIG_END);
        Ok(())
    }

    /// Replaces each row of the state that only refers to a staged value. The new row contains the
    /// value.
    fn complete_rows(&self) -> Result<(), StorageError> {
        let engine = &self.engine;
        if engine.db.cf_handle(Column::Staged.name()).is_none() {
            return Ok(());
        }
        let mut batch = WriteBatch::default();
        engine.each(Column::State, &[], |row, value| {
            let decoded = codec::decode_stored(value);
            let (mut stored, is_staged) = engine.intact(Column::State, row, decoded)?;
            if !is_staged {
                return Ok(true);
            }
            let value = engine.get(Column::Staged, &staged::row(row, stored.version))?;
            stored.value = value.ok_or_else(|| {
                engine.damaged(Column::State, row, "its value is missing".to_owned())
            })?;
            let mut encoded = Vec::new();
            codec::encode_stored(&stored, false, &mut encoded);
            records::put(&engine.db, Column::State, row, &encoded, &mut batch);
            if batch.size_in_bytes() > GROUP_BYTES {
                engine.apply(std::mem::take(&mut batch))?;
            }
            Ok(true)
        })?;
        engine.apply(batch)
    }

    /// Removes the column families that only older formats have.
    pub(super) fn drop_older(&mut self) -> Result<(), StorageError> {
        for column in Column::OLDER {
            if self.engine.db.cf_handle(column.name()).is_some() {
                let dropped = self.db_mut().drop_cf(column.name());
                dropped.map_err(|error| self.engine.failed("removing a column family", error))?;
            }
        }
        Ok(())
    }

    fn copy_entries(&mut self, log: LogId) -> Result<(), StorageError> {
        let mut next = Some(Slot::ZERO);
        while let Some(from) = next.take() {
            let mut records = Vec::new();
            let mut total = 0;
            self.engine
                .each(Column::of(log), &from.0.to_be_bytes(), |key, value| {
                    let slot = self.engine.slot(log, key)?;
                    total += value.len();
                    if total > GROUP_BYTES && !records.is_empty() {
                        next = Some(slot);
                        return Ok(false);
                    }
                    let decoded = codec::decode_entry(value);
                    let (ballot, value) = self.engine.intact(Column::of(log), key, decoded)?;
                    records.push(Record::Accepted {
                        log,
                        slot,
                        ballot,
                        value,
                    });
                    Ok(true)
                })?;
            self.log.write(&records, true)?;
        }
        Ok(())
    }

    /// Returns the records of an older format's log, except the entries and the incarnation.
    fn older_facts(&self) -> Result<Vec<Record>, StorageError> {
        let mut facts = Vec::new();
        if self.engine.get(Column::Meta, meta::JOINED)?.is_some() {
            facts.push(Record::Joined);
        }
        if let Some(bytes) = self.engine.get(Column::Meta, meta::PROMISED)? {
            let decoded = codec::decode_ballot(bytes);
            let ballot = self.engine.intact(Column::Meta, meta::PROMISED, decoded)?;
            facts.push(Record::Promised(ballot));
        }
        if let Some(bytes) = self.engine.get(Column::Meta, meta::RESTART_WAIT)? {
            let ns = self
                .engine
                .number(Column::Meta, meta::RESTART_WAIT, &bytes)?;
            facts.push(Record::RestartWait(Duration::from_nanos(ns)));
        }
        self.older_lives(&mut facts)?;
        self.older_log_starts(&mut facts)?;
        Ok(facts)
    }

    fn older_lives(&self, facts: &mut Vec<Record>) -> Result<(), StorageError> {
        self.engine.each(Column::Meta, meta::LIFE, |key, value| {
            if !key.starts_with(meta::LIFE) {
                return Ok(false);
            }
            let replica = meta::parse_life(key).ok_or_else(|| {
                self.engine
                    .damaged(Column::Meta, key, "not the key of a life".to_owned())
            })?;
            let life = self.engine.number(Column::Meta, key, &value)?;
            facts.push(Record::Life { replica, life });
            Ok(true)
        })
    }

    fn older_log_starts(&self, facts: &mut Vec<Record>) -> Result<(), StorageError> {
        self.engine
            .each(Column::Meta, meta::LOG_START, |key, value| {
                if !key.starts_with(meta::LOG_START) {
                    return Ok(false);
                }
                let (log, ballot) = meta::parse_log_start(key).ok_or_else(|| {
                    self.engine
                        .damaged(Column::Meta, key, "not the key of a log start".to_owned())
                })?;
                let slot = Slot(self.engine.number(Column::Meta, key, &value)?);
                facts.push(Record::LogStart { log, ballot, slot });
                Ok(true)
            })
    }
}

/// Configurations that are executed again.
struct ExecutedAgain {
    configs: Configs,
    configured: bool,
}

impl ExecutedAgain {
    fn new(n: usize) -> ExecutedAgain {
        ExecutedAgain {
            configs: Configs::new(n),
            configured: false,
        }
    }

    /// Executes a slot of the configuration log, if it is the next one.
    fn execute(&mut self, slot: Slot, value: &Value) {
        let next = ConfigId(self.configs.newest().0 + 1);
        if slot.0 != next.0 {
            return;
        }
        let (change, none) = (value.config_change(), ConfigChange::default());
        self.configured |= change.is_some();
        self.configs.apply(next, change.unwrap_or(&none));
        let kept = next.0.saturating_sub(FRAMES_SAVED as u64);
        self.configs.forget_before(ConfigId(kept));
    }
}
