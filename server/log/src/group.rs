//! Groups: the unit that is whole or absent after a crash.
//!
//! A group is a header, the records, and a checksum over both. The header has a checksum of its
//! own, so that it can be recognized although the records behind it are torn. Groups begin at
//! multiples of [`ALIGNMENT`], the sector size of disks: a torn write never touches a sector of an
//! earlier group.
//!
//! The checksum of a header also covers the life of the data directory, a random number that
//! clients do not know. So no value of a client can be taken for a header.

use leasehold_leases::mutants::{Rule, off};

use crate::SegmentId;

/// Alignment of groups in bytes. It is the sector size, because disks write a sector atomically.
pub const ALIGNMENT: usize = 512;
/// Maximum number of bytes that a group needs besides the bytes of its records.
pub const GROUP_BYTES_EXTRA: usize = HEADER_BYTES + SEAL_BYTES + ALIGNMENT - 1;

pub(crate) const HEADER_BYTES: usize = 40;
const SEAL_BYTES: usize = 4;
const MAGIC: [u8; 4] = *b"LHG\x01";
/// Flag of the group with which a segment begins.
const HEAD: u32 = 1;

/// Number and checksum of the last group in a chain. The header of the next group contains this
/// checksum, and the following number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainEnd {
    pub(crate) number: u64,
    pub(crate) seal: u32,
}

/// Header of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Segment to which the group was written. A file may be used again for another segment. Then a
    /// group in the file may still name the earlier segment.
    pub(crate) segment: SegmentId,
    /// Whether the segment begins with this group.
    pub(crate) is_head: bool,
    /// Number of the group. Numbers rise by one from group to group, across segments.
    pub(crate) number: u64,
    /// Number of the last group that was synced before this group was written.
    pub(crate) synced: u64,
    /// Checksum of the group before this one.
    pub(crate) previous: u32,
    /// Length of the records in bytes.
    pub(crate) records: u32,
}

impl Header {
    pub(crate) fn encode(&self, life: u64) -> [u8; HEADER_BYTES] {
        let flags = if self.is_head { HEAD } else { 0 };
        let mut bytes = [0; HEADER_BYTES];
        let fields = [
            &MAGIC[..],
            &flags.to_le_bytes(),
            &self.segment.0.to_le_bytes(),
            &self.records.to_le_bytes(),
            &self.number.to_le_bytes(),
            &self.synced.to_le_bytes(),
            &self.previous.to_le_bytes(),
        ]
        .concat();
        let (body, seal) = bytes.split_at_mut(HEADER_BYTES - SEAL_BYTES);
        body.copy_from_slice(&fields);
        seal.copy_from_slice(&checksum(life, body).to_le_bytes());
        bytes
    }

    /// Returns the header at the beginning of `bytes`; `None` if there is none.
    pub(crate) fn decode(life: u64, bytes: &[u8]) -> Option<Header> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let (body, seal) = bytes.split_at(HEADER_BYTES - SEAL_BYTES);
        if !body.starts_with(&MAGIC) || seal != checksum(life, body).to_le_bytes() {
            return None;
        }
        let short = |at: usize| Some(u32::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_le_bytes(*body.get(at..)?.first_chunk()?));
        Some(Header {
            is_head: short(4)? == HEAD,
            segment: SegmentId(short(8)?),
            records: short(12)?,
            number: long(16)?,
            synced: long(24)?,
            previous: short(32)?,
        })
    }

    /// Returns the length of the whole group in bytes, a multiple of [`ALIGNMENT`].
    pub(crate) fn group_bytes(&self) -> usize {
        group_bytes(self.records as usize)
    }
}

fn checksum(life: u64, header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&life.to_le_bytes()), header)
}

/// Returns the length of a group with records of this length, in bytes.
pub(crate) fn group_bytes(records: usize) -> usize {
    (HEADER_BYTES + records + SEAL_BYTES).next_multiple_of(ALIGNMENT)
}

/// Completes the group from byte `start` to the end of `out`. The caller has reserved space for the
/// header at `start`. The records follow this space. Returns the checksum of the group.
pub(crate) fn seal(out: &mut Vec<u8>, start: usize, header: &Header, life: u64) -> u32 {
    out[start..start + HEADER_BYTES].copy_from_slice(&header.encode(life));
    let seal = crc32c::crc32c(&out[start..]);
    out.extend(seal.to_le_bytes());
    out.resize(start + header.group_bytes(), 0);
    seal
}

/// Returns the records and the checksum of a group; `None` if the group is incomplete or damaged.
/// The group is at the beginning of `bytes`.
pub(crate) fn open<'a>(header: &Header, bytes: &'a [u8]) -> Option<(&'a [u8], u32)> {
    let end = HEADER_BYTES + header.records as usize;
    let sealed = bytes.get(..end)?;
    let seal = u32::from_le_bytes(*bytes.get(end..)?.first_chunk()?);
    (crc32c::crc32c(sealed) == seal || off(Rule::H116Whole))
        .then_some((&sealed[HEADER_BYTES..], seal))
}
