//! Check that RocksDB's logs consist of records from beginning to end, so that RocksDB can read
//! them. The logs are the write-ahead logs and the manifest.
//!
//! RocksDB itself checks the checksum of every record. But if the *kind* of a record is damaged so
//! that it looks like a kind of a recycled log, RocksDB reads the record again and again without
//! end. Such a start would neither fail nor succeed. And when RocksDB finds a damaged log, its
//! error does not name the log.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Size of a record's header in bytes: checksum (4), length (2) and kind (1).
pub(super) const HEADER_BYTES: usize = 7;
/// Size of a block in bytes. No record crosses the end of a block, so longer records are written in
/// pieces.
pub(super) const BLOCK_BYTES: usize = 32 << 10;
/// Kinds of records that are accepted: a whole record, and a first, middle and last piece. Other
/// kinds occur only in recycled, compressed or linked logs. Leasehold does not use such logs.
const KINDS: std::ops::RangeInclusive<u8> = 1..=4;

/// Returns a description of the problem if a log has bytes on which RocksDB may hang or fail;
/// otherwise `None`. A log that a crash has cut off passes this check, because the marker file
/// serves to check the end of the log.
pub(super) fn problem(path: &Path) -> io::Result<Option<String>> {
    let mut file = File::open(path)?;
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    let mut before = 0;
    loop {
        block.clear();
        let bytes = (&mut file)
            .take(BLOCK_BYTES as u64)
            .read_to_end(&mut block)?;
        if let Some((at, problem)) = problem_in(&block) {
            return Ok(Some(format!("{problem} at byte {}", before + at)));
        }
        if bytes < BLOCK_BYTES {
            return Ok(None);
        }
        before += bytes;
    }
}

fn problem_in(block: &[u8]) -> Option<(usize, String)> {
    let mut at = 0;
    while let Some(header) = block.get(at..at + HEADER_BYTES) {
        let length = usize::from(u16::from_le_bytes([header[4], header[5]]));
        let kind = header[6];
        if kind == 0 && length == 0 {
            return None; // room that was never written to
        }
        if !KINDS.contains(&kind) {
            return Some((at, format!("no kind of record ({kind})")));
        }
        let end = at + HEADER_BYTES + length;
        if end > block.len() && block.len() == BLOCK_BYTES {
            return Some((at, "a record longer than its block".to_owned()));
        }
        at = end;
    }
    None
}
