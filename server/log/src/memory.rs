//! A disk in memory, for tests and simulations. After a crash, it holds all synced writes, and any
//! subset of the sectors of the other writes.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::group::{self, ChainEnd, HEADER_BYTES, Header};
use crate::recovery::Marked;
use crate::{
    ALIGNMENT, LogDamage, LogRecovery, LogWrite, LogWriter, RecordPlace, SegmentBytes, SegmentId,
};

/// Segments of a log in memory, with writes that are not synced yet.
#[derive(Clone, Debug, Default, Hash)]
pub struct MemoryDisk {
    segments: BTreeMap<SegmentId, Vec<u8>>,
    unsynced: Vec<Unsynced>,
    /// Removed segments. Their removal is not durable yet.
    removed: Vec<(SegmentId, Vec<u8>)>,
    /// Removed segments. Later segments use their files, the oldest first.
    spares: VecDeque<(SegmentId, Vec<u8>)>,
    /// The next segment that used the same file, for each segment with a file that was used again.
    reused: BTreeMap<SegmentId, SegmentId>,
}

#[derive(Clone, Debug, Hash)]
struct Unsynced {
    segment: SegmentId,
    offset: usize,
    bytes: Vec<u8>,
}

impl MemoryDisk {
    /// Performs a write. If the write begins a segment, the new segment is durable at once. Before
    /// the write, the new segment contains zeros, or the contents of a removed segment of the same
    /// length.
    pub fn write(&mut self, write: &LogWrite) {
        if let Some(bytes) = write.begins {
            let spare = self.spares.pop_front();
            let contents = match spare.filter(|(_, contents)| contents.len() == bytes) {
                Some((earlier, contents)) => {
                    self.reused.insert(earlier, write.segment);
                    contents
                }
                None => vec![0; bytes],
            };
            self.segments.insert(write.segment, contents);
        }
        self.unsynced.push(Unsynced {
            segment: write.segment,
            offset: write.offset,
            bytes: write.bytes.clone(),
        });
    }

    /// Removes a segment. A crash before the next sync brings the segment back.
    pub fn remove(&mut self, id: SegmentId) {
        if let Some(bytes) = self.segments.remove(&id) {
            self.removed.push((id, bytes));
        }
    }

    /// Makes all writes durable.
    pub fn sync(&mut self) {
        self.spares.extend(self.removed.drain(..));
        self.write_sectors(|| true);
    }

    /// Handles a crash. Calls `survives` once for each sector of each unsynced write, in order. A
    /// sector is lost if `survives` returns false for it. Segments that were removed since the last
    /// sync exist again. No reader survives, so the earlier uses of files are forgotten.
    pub fn crash(&mut self, survives: impl FnMut() -> bool) {
        self.reused.clear();
        self.segments.extend(self.removed.drain(..));
        self.write_sectors(survives);
    }

    fn write_sectors(&mut self, mut survives: impl FnMut() -> bool) {
        for write in std::mem::take(&mut self.unsynced) {
            let Some(segment) = self.segments.get_mut(&write.segment) else {
                continue;
            };
            let there = segment[write.offset..].chunks_mut(ALIGNMENT);
            for (there, sector) in there.zip(write.bytes.chunks(ALIGNMENT)) {
                if survives() {
                    there[..sector.len()].copy_from_slice(sector);
                }
            }
        }
    }

    /// Reads the log.
    ///
    /// # Errors
    /// Returns the damage that was found.
    pub fn recover(
        &self,
        life: u64,
        marked: Marked,
        segment_bytes: SegmentBytes,
    ) -> Result<LogWriter, LogDamage> {
        let mut recovery = LogRecovery::new(life);
        for (id, bytes) in self.segments.range(marked.first..) {
            recovery.segment(*id, bytes)?;
        }
        recovery.finish(marked, segment_bytes)
    }

    /// Returns the bytes at a place, including unsynced bytes; `None` if the place does not exist.
    pub fn read(&self, place: RecordPlace) -> Option<Bytes> {
        let from = place.offset as usize;
        let within =
            |start: usize| Some(from.checked_sub(start)?..from - start + place.bytes as usize);
        let unsynced = self.unsynced.iter().rev();
        let mut unsynced = unsynced.filter(|it| it.segment == place.segment);
        let found = unsynced.find_map(|it| it.bytes.get(within(it.offset)?));
        let found = found.or_else(|| self.segments.get(&place.segment)?.get(within(0)?))?;
        Some(Bytes::copy_from_slice(found))
    }

    /// Returns the bytes that a reader finds if it opened a segment before the segment's file was
    /// used again. These bytes are at the same offset of the segment that uses the file now.
    /// Returns `None` if the file was not used again.
    pub fn read_reused(&self, place: RecordPlace) -> Option<Bytes> {
        let mut segment = *self.reused.get(&place.segment)?;
        while let Some(next) = self.reused.get(&segment) {
            segment = *next;
        }
        self.read(RecordPlace { segment, ..place })
    }

    /// Returns the bytes of all segments, so that a test can change them.
    pub fn segments_mut(&mut self) -> impl Iterator<Item = (SegmentId, &mut Vec<u8>)> {
        self.segments.iter_mut().map(|(id, bytes)| (*id, bytes))
    }
}

/// Returns a segment for a test of the decoder of records. The segment consists of an empty head
/// and one group, which contains `records`. All checksums are correct, so the decoder reads the
/// records.
pub fn sealed_segment(life: u64, id: SegmentId, records: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut chain = ChainEnd::default();
    for (is_head, records) in [(true, &[][..]), (false, records)] {
        let start = out.len();
        out.resize(start + HEADER_BYTES, 0);
        out.extend(records);
        let header = Header {
            segment: id,
            is_head,
            number: chain.number + 1,
            synced: 0,
            previous: chain.seal,
            records: records.len() as u32,
        };
        chain = ChainEnd {
            number: header.number,
            seal: group::seal(&mut out, start, &header, life),
        };
    }
    out
}
