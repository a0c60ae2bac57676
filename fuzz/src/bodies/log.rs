//! Segments of the log, which a replica reads when it starts.

use bytes::Bytes;
use leasehold_leases::Slot;
use leasehold_log::memory::sealed_segment;
use leasehold_log::{LogRecovery, Marked, SegmentBytes, SegmentId, damage_behind, decode_entry};
use leasehold_replica::message::LogId;

use super::peer;
use crate::memory;

const LIFE: u64 = 7;
const SEGMENT: SegmentId = SegmentId(1);
/// Maximum memory for each byte of a segment, in bytes. The smallest entry has 17 bytes. Each entry
/// may need its own block in the index, and a block has about 3 KiB.
const PER_BYTE: usize = 512;

/// Reads the input as a segment, and as the records of a group with correct checksums.
pub fn log_segments(input: &[u8]) {
    recover(input);
    recover(&sealed_segment(LIFE, SEGMENT, input));
}

fn recover(segment: &[u8]) {
    let read = memory::sharing(segment, PER_BYTE, |segment| {
        let mut recovery = LogRecovery::new(LIFE);
        recovery.segment(SEGMENT, &segment).map(|()| recovery)
    });
    memory::sharing(segment, PER_BYTE, |segment| {
        damage_behind(LIFE, SEGMENT, &segment, 0).len()
    });
    let Ok(recovery) = read else {
        return;
    };
    let torn = recovery.torn_write(SEGMENT, segment);
    assert!(torn.is_none_or(|torn| torn.offset + torn.bytes <= segment.len()));
    let bytes = SegmentBytes {
        first: 4096,
        max: 4096,
    };
    let marked = Marked {
        group: 0,
        first: SEGMENT,
    };
    let log = recovery.finish(marked, bytes).expect("nothing is missing");
    for id in LogId::ALL {
        for (slot, place) in log.entries(id, Slot::ZERO) {
            let from = place.offset as usize;
            let entry = &segment[from..from + place.bytes as usize];
            let _ = memory::sharing(entry, peer::PER_BYTE, |entry: Bytes| {
                decode_entry(&entry, place.segment, id, slot)
            });
        }
    }
}

pub mod seeds {
    use leasehold_leases::{Ballot, Incarnation, ReplicaId, Slot};
    use leasehold_log::memory::MemoryDisk;
    use leasehold_log::{Marked, SegmentBytes};
    use leasehold_replica::action::Record;
    use leasehold_replica::message::LogId;

    use crate::bodies::samples;

    const BALLOT: Ballot = Ballot {
        round: 12,
        replica: ReplicaId(3),
    };

    /// Returns inputs for the body: a whole segment, and the records of the groups in this segment.
    pub fn log_segments() -> Vec<Vec<u8>> {
        let bytes = SegmentBytes {
            first: 4096,
            max: 4096,
        };
        let log = MemoryDisk::default().recover(super::LIFE, Marked::default(), bytes);
        let mut log = log.expect("an empty log is not damaged");
        let first = log.plan_incarnation(Incarnation(4));
        let mut segment = first.bytes.clone();
        log.complete(first, true);
        let mut seeds = Vec::new();
        for (slot, value) in (1..).zip(samples::values()) {
            let accepted = Record::Accepted {
                log: LogId::Commands,
                slot: Slot(slot),
                ballot: BALLOT,
                value,
            };
            let facts = [
                Record::Promised(BALLOT),
                Record::LogStart {
                    log: LogId::Configs,
                    ballot: BALLOT,
                    slot: Slot(slot),
                },
                Record::ForgetLogStarts {
                    log: LogId::Commands,
                    below: BALLOT,
                },
                Record::Erased {
                    log: LogId::Commands,
                    slot: Slot(slot + 7),
                },
                Record::Life {
                    replica: ReplicaId(2),
                    life: 9,
                },
                Record::Joined,
                Record::Committed([Slot(slot), Slot(2)].into()),
                accepted,
            ];
            let write = log.plan(&facts, Vec::new());
            let write = write.expect("the records belong in the log");
            let header = 40;
            seeds.push(write.bytes[header..].to_vec());
            if write.begins.is_none() {
                segment.extend(&write.bytes);
            }
            log.complete(write, true);
        }
        seeds.push(segment);
        seeds
    }
}
