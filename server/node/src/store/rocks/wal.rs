//! Checks that RocksDB's logs, the write-ahead logs and the manifest, can be handed to
//! it: that they are made of records from their beginning to their end.
//!
//! RocksDB checks every record's checksum itself. But it reads a damaged *kind* of
//! record, if that looks like one of a recycled log, again and again without end:
//! such a start would neither fail nor succeed. And where it finds a damaged log
//! it does not say which one.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Checksum (4), length (2) and kind (1) come before what a record holds.
pub(super) const HEADER_BYTES: usize = 7;
/// No record crosses the end of a block; longer ones are written in pieces.
pub(super) const BLOCK_BYTES: usize = 32 << 10;
/// Whole, first, middle and last piece. Others are of logs that are recycled,
/// compressed or linked, which ours are not.
const KINDS: std::ops::RangeInclusive<u8> = 1..=4;

/// Problem with a log, if it holds anything on which RocksDB may hang or fail. An end that a
/// crash may have torn is accepted here: the marker checks it.
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
