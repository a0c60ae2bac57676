//! Places of the entries: for each slot of each log, the newest record that holds it.

use std::collections::BTreeMap;

use leasehold_leases::Slot;
use leasehold_replica::message::LogId;

use crate::SegmentId;

/// Place of a record in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordPlace {
    /// Segment with the record.
    pub segment: SegmentId,
    /// Offset of the record in the segment, in bytes.
    pub offset: u32,
    /// Length of the record in bytes.
    pub bytes: u32,
}

impl RecordPlace {
    /// Whether this place has no record. Such a place has segment number 0, and segments are
    /// numbered from 1.
    fn is_vacant(&self) -> bool {
        self.segment == SegmentId(0)
    }
}

/// Number of slots in a block of [`EntryIndex`].
const BLOCK: u64 = 256;

/// A change of the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexChange {
    pub(crate) log: LogId,
    pub(crate) slot: Slot,
    /// Place of the slot's new entry; `None` if the entry was erased.
    pub(crate) place: Option<RecordPlace>,
}

/// Places of the entries of both logs. One block stores the places of [`BLOCK`] successive slots.
/// In a block, the place of an entry needs 12 bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryIndex {
    blocks: BTreeMap<(LogId, u64), Block>,
}

#[derive(Clone, Debug)]
struct Block(Box<[RecordPlace; BLOCK as usize]>);

impl EntryIndex {
    pub(crate) fn change(&mut self, change: &IndexChange) {
        let IndexChange { log, slot, place } = *change;
        let (block, at) = (slot.0 / BLOCK, (slot.0 % BLOCK) as usize);
        let empty = || Block(Box::new([RecordPlace::default(); BLOCK as usize]));
        let block = self.blocks.entry((log, block)).or_insert_with(empty);
        block.0[at] = place.unwrap_or_default();
    }

    /// Forgets the entries of a log up to slot `last`.
    pub(crate) fn truncate(&mut self, log: LogId, last: Slot) {
        let first_kept = last.0 + 1;
        let mut later = self.blocks.split_off(&(log, first_kept / BLOCK));
        self.blocks.retain(|(of, _), _| *of != log);
        self.blocks.append(&mut later);
        if let Some(block) = self.blocks.get_mut(&(log, first_kept / BLOCK)) {
            block.0[..(first_kept % BLOCK) as usize].fill(RecordPlace::default());
        }
    }

    /// Returns the entries of a log from slot `from` on, in ascending order.
    pub(crate) fn entries(
        &self,
        log: LogId,
        from: Slot,
    ) -> impl Iterator<Item = (Slot, RecordPlace)> + Clone {
        let blocks = (log, from.0 / BLOCK)..=(log, u64::MAX);
        let places = self.blocks.range(blocks).flat_map(|((_, block), places)| {
            let first = block * BLOCK;
            let slots = (0..BLOCK).map(move |at| Slot(first + at));
            slots.zip(places.0.iter().copied())
        });
        places.filter(move |(slot, place)| *slot >= from && !place.is_vacant())
    }
}
