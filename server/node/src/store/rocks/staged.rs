//! Index of the values on disk that were written before their checkpoint.
//!
//! A checkpoint is a single write, and all other writes wait for it. So the long values of a large
//! checkpoint are written to disk before it, in several steps. Each of these staged values has its
//! own row, named by its key and version. The checkpoint then only says that the value is present.
//!
//! The row of a staged value is valid once the newest checkpoint names it. That checkpoint also
//! removes the older rows of the same key. A start removes rows that no checkpoint names. A row
//! never changes, because the log determines the value of each version.

use std::collections::HashMap;

use leasehold_leases::Key;
use leasehold_wire::Version;
use smallvec::SmallVec;

type Versions = SmallVec<[Version; 1]>;

/// The versions of each key that have staged rows.
#[derive(Debug, Default)]
pub(super) struct StagedValues {
    /// Versions that are on disk, by key.
    rows: HashMap<Key, Versions>,
    /// Versions that will replace those of the same keys in `rows` once the current write is on
    /// disk.
    changed: HashMap<Key, Versions>,
}

impl StagedValues {
    /// Returns the index of the rows that a start has found and that a checkpoint names.
    pub(super) fn recovered(named: impl Iterator<Item = (Key, Version)>) -> StagedValues {
        StagedValues {
            rows: named
                .map(|(key, version)| (key, Versions::from_elem(version, 1)))
                .collect(),
            changed: HashMap::new(),
        }
    }

    /// Notes that the row of this version is being written.
    pub(super) fn stage(&mut self, key: &Key, version: Version) {
        let versions = self.change(key);
        if !versions.contains(&version) {
            versions.push(version);
        }
    }

    /// Notes that a checkpoint sets `key` to this version, or removes the key (`None`). Returns
    /// whether the version has a staged row, and the other versions of the key, so that their rows
    /// can be removed.
    pub(super) fn complete(&mut self, key: &Key, version: Option<Version>) -> (bool, Versions) {
        if !self.rows.contains_key(key) && !self.changed.contains_key(key) {
            return (false, Versions::new());
        }
        let versions = self.change(key);
        let (kept, replaced): (Versions, Versions) =
            versions.drain(..).partition(|it| Some(*it) == version);
        let is_staged = !kept.is_empty();
        *versions = kept;
        (is_staged, replaced)
    }

    fn change(&mut self, key: &Key) -> &mut Versions {
        let rows = &self.rows;
        let before = || rows.get(key).cloned().unwrap_or_default();
        self.changed.entry(key.clone()).or_insert_with(before)
    }

    /// Notes that the current write is on disk.
    pub(super) fn commit(&mut self) {
        for (key, versions) in self.changed.drain() {
            if versions.is_empty() {
                self.rows.remove(&key)
            } else {
                self.rows.insert(key, versions)
            };
        }
    }

    /// Notes that the current write is not on disk.
    pub(super) fn abandon(&mut self) {
        self.changed.clear();
    }
}

/// Size in bytes of the version that precedes the key in a row's key.
const VERSION_BYTES: usize = 12;

/// Returns the key of the row that holds a version of `key`.
pub fn row(key: &[u8], version: Version) -> Vec<u8> {
    let mut row = Vec::with_capacity(VERSION_BYTES + key.len());
    row.extend(version.slot.to_be_bytes());
    row.extend(version.index.to_be_bytes());
    row.extend(key);
    row
}

/// Inverse of [`row`]; `None` for any other key.
pub fn parse_row(row: &[u8]) -> Option<(Key, Version)> {
    let (slot, rest) = row.split_first_chunk::<8>()?;
    let (index, key) = rest.split_first_chunk::<4>()?;
    let version = Version {
        slot: u64::from_be_bytes(*slot),
        index: u32::from_be_bytes(*index),
    };
    Some((Key::copy_from_slice(key), version))
}

#[cfg(test)]
mod tests;
