//! Takeover of directories with the log in RocksDB (formats 4 and 5).
//!
//! Everything that belongs in the log is copied to the files of a new log and synced. Then the
//! identity of the directory names the new format. A start that is interrupted before begins again.

use std::time::Duration;

use leasehold_leases::Slot;
use leasehold_replica::action::Record;
use leasehold_replica::codec;
use leasehold_replica::message::LogId;

use super::records::{Column, meta};
use super::{Storage, StorageError};

/// Number of bytes that are copied with one sync.
const GROUP_BYTES: usize = 4 << 20;

impl Storage {
    /// Copies the log of an older format to the new one.
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
        Ok(())
    }

    /// Removes the column families of the log, if an older format left them.
    pub(super) fn drop_older(&mut self) -> Result<(), StorageError> {
        for column in Column::OLDER {
            if self.db.cf_handle(column.name()).is_some() {
                let dropped = self.db.drop_cf(column.name());
                dropped.map_err(|error| self.failed("removing a column family", error))?;
            }
        }
        Ok(())
    }

    fn copy_entries(&mut self, log: LogId) -> Result<(), StorageError> {
        let mut next = Some(Slot::ZERO);
        while let Some(from) = next.take() {
            let mut records = Vec::new();
            let mut total = 0;
            self.each(Column::of(log), &from.0.to_be_bytes(), |key, value| {
                let slot = self.slot(log, key)?;
                total += value.len();
                if total > GROUP_BYTES && !records.is_empty() {
                    next = Some(slot);
                    return Ok(false);
                }
                let decoded = codec::decode_entry(value);
                let (ballot, value) = self.intact(Column::of(log), key, decoded)?;
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

    /// Returns everything but the entries and the incarnation.
    fn older_facts(&self) -> Result<Vec<Record>, StorageError> {
        let mut facts = Vec::new();
        if self.get(Column::Meta, meta::JOINED)?.is_some() {
            facts.push(Record::Joined);
        }
        if let Some(bytes) = self.get(Column::Meta, meta::PROMISED)? {
            let decoded = codec::decode_ballot(bytes);
            let ballot = self.intact(Column::Meta, meta::PROMISED, decoded)?;
            facts.push(Record::Promised(ballot));
        }
        if let Some(bytes) = self.get(Column::Meta, meta::RESTART_WAIT)? {
            let ns = self.number(Column::Meta, meta::RESTART_WAIT, &bytes)?;
            facts.push(Record::RestartWait(Duration::from_nanos(ns)));
        }
        self.older_lives(&mut facts)?;
        self.older_log_starts(&mut facts)?;
        Ok(facts)
    }

    fn older_lives(&self, facts: &mut Vec<Record>) -> Result<(), StorageError> {
        self.each(Column::Meta, meta::LIFE, |key, value| {
            if !key.starts_with(meta::LIFE) {
                return Ok(false);
            }
            let replica = meta::parse_life(key).ok_or_else(|| {
                self.damaged(Column::Meta, key, "not the key of a life".to_owned())
            })?;
            let life = self.number(Column::Meta, key, &value)?;
            facts.push(Record::Life { replica, life });
            Ok(true)
        })
    }

    fn older_log_starts(&self, facts: &mut Vec<Record>) -> Result<(), StorageError> {
        self.each(Column::Meta, meta::LOG_START, |key, value| {
            if !key.starts_with(meta::LOG_START) {
                return Ok(false);
            }
            let (log, ballot) = meta::parse_log_start(key).ok_or_else(|| {
                self.damaged(Column::Meta, key, "not the key of a log start".to_owned())
            })?;
            let slot = Slot(self.number(Column::Meta, key, &value)?);
            facts.push(Record::LogStart { log, ballot, slot });
            Ok(true)
        })
    }
}
