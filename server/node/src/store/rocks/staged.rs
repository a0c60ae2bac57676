//! Rows of the column family `staged`, which only directories of older formats have. It holds long
//! values of the state, which were written before the checkpoint that names them.

use leasehold_leases::Key;
use leasehold_wire::Version;

/// Size in bytes of the version at the beginning of a row's key. The key of the value follows the
/// version.
const VERSION_BYTES: usize = 12;

/// Returns the row key for version `version` of the value of `key`.
pub fn row(key: &[u8], version: Version) -> Vec<u8> {
    let mut row = Vec::with_capacity(VERSION_BYTES + key.len());
    row.extend(version.slot.to_be_bytes());
    row.extend(version.index.to_be_bytes());
    row.extend(key);
    row
}

/// Returns the key and the version from which [`row`] made this row's key; `None` for any other
/// row's key.
pub fn parse_row(row: &[u8]) -> Option<(Key, Version)> {
    let (slot, rest) = row.split_first_chunk::<8>()?;
    let (index, key) = rest.split_first_chunk::<4>()?;
    let version = Version {
        slot: u64::from_be_bytes(*slot),
        index: u32::from_be_bytes(*index),
    };
    Some((Key::copy_from_slice(key), version))
}
