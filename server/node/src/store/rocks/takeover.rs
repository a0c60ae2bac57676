//! Takeover of directories of older formats.
//!
//! Before format 7, configurations were only in the log. They are copied to the state. Before format
//! 6, the log was in RocksDB. Everything that belongs in the log is copied to the files of a new log
//! and synced. Long values of the state, which had rows of their own, become part of the state's
//! rows. Finally the identity of the directory names the new format. If a start is interrupted
//! before that, the next start begins again.

use std::time::Duration;

use leasehold_leases::Slot;
use leasehold_replica::action::Record;
use leasehold_replica::codec;
use leasehold_replica::message::LogId;

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

    /// Copies the configurations that the state covers from the log to the state.
    ///
    /// # Errors
    /// `Damaged`, `Directory`, `Engine`.
    pub(super) fn copy_configs(&self) -> Result<(), StorageError> {
        let position = self.engine.stored_position()?.unwrap_or_default();
        let last = Slot(position.config.0);
        let mut configs = Vec::new();
        self.log
            .each(LogId::Configs, Slot(1), |slot, _, value, _| {
                configs.push((slot, value));
                true
            })?;
        configs.retain(|(slot, _)| *slot <= last);
        let expected = (1..=last.0).map(Slot);
        if !configs.iter().map(|(slot, _)| *slot).eq(expected) {
            return Err(StorageError::Damaged {
                path: self.engine.path.clone(),
                what: "the log".to_owned(),
                problem: format!("it lacks one of the configurations 1 to {}", last.0),
            });
        }
        let mut batch = WriteBatch::default();
        records::append_configs(&self.engine.db, &configs, &mut batch);
        self.engine.apply(batch)
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
