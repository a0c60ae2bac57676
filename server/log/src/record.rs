//! Records as bytes: a length, a checksum, a kind and the contents.
//!
//! The checksum of a record serves reads of single entries. It covers the number of the segment, so
//! that a record is not mistaken for a record of an earlier use of the same file.

use std::time::Duration;

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, Incarnation, ReplicaId, Slot};
use leasehold_replica::action::Record;
use leasehold_replica::codec;
use leasehold_replica::message::{LogId, PerLog};

use crate::SegmentId;

/// Number of bytes in the frame of a record: the length of the record and its checksum.
pub(crate) const FRAME_BYTES: usize = 8;
/// Exclusive upper bound of replica ids.
const REPLICAS_MAX: u8 = 64;

const COMMAND: u8 = 1;
const CONFIG: u8 = 2;
const ERASED: u8 = 3;
const PROMISED: u8 = 4;
const LOG_START: u8 = 5;
const FORGET_LOG_STARTS: u8 = 6;
const RESTART_WAIT: u8 = 7;
const LIFE: u8 = 8;
const JOINED: u8 = 9;
const INCARNATION: u8 = 10;
const COMMITTED: u8 = 11;

/// A fact about the replica that is not an entry of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The replica has promised this ballot.
    Promised(Ballot),
    /// A ballot began.
    LogStart {
        /// Log in which the ballot began.
        log: LogId,
        /// Ballot that began.
        ballot: Ballot,
        /// Slot at which the ballot began.
        slot: Slot,
    },
    /// The replica forgets at which slots lower ballots began.
    ForgetLogStarts {
        /// Log in which the ballots began.
        log: LogId,
        /// Exclusive upper bound of the forgotten ballots.
        below: Ballot,
    },
    /// Restart wait.
    RestartWait(Duration),
    /// Life of the data directory of another replica.
    Life {
        /// Replica that owns the directory.
        replica: ReplicaId,
        /// Life of the directory.
        life: u64,
    },
    /// The replica has joined.
    Joined,
    /// Incarnation of the run that first wrote this fact.
    Incarnation(Incarnation),
    /// Commit points of both logs.
    Committed(PerLog<Slot>),
}

/// A record as it was read back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LogRecord<'a> {
    /// An accepted entry.
    Entry {
        /// Log of the entry.
        log: LogId,
        /// Slot of the entry.
        slot: Slot,
        /// The ballot and the value, in the encoding of `codec::encode_entry`.
        entry: &'a [u8],
    },
    /// The entry of a slot is erased.
    Erased {
        /// Log of the entry.
        log: LogId,
        /// Slot of the entry.
        slot: Slot,
    },
    /// A fact about the replica.
    Fact(Fact),
}

/// Record in the form that the log stores. The log stores all records of a replica except records
/// of the executed state.
pub(crate) enum Logged<'a> {
    Entry {
        log: LogId,
        slot: Slot,
        ballot: Ballot,
        value: &'a leasehold_replica::message::Value,
    },
    Erased {
        log: LogId,
        slot: Slot,
    },
    Fact(Fact),
}

impl Logged<'_> {
    /// Returns `record` in the form that the log stores. Returns `None` for records of the executed
    /// state, because the log does not store them.
    pub(crate) fn of(record: &Record) -> Option<Logged<'_>> {
        Some(match record {
            Record::Accepted {
                log,
                slot,
                ballot,
                value,
            } => Logged::Entry {
                log: *log,
                slot: *slot,
                ballot: *ballot,
                value,
            },
            Record::Erased { log, slot } => Logged::Erased {
                log: *log,
                slot: *slot,
            },
            Record::Promised(ballot) => Logged::Fact(Fact::Promised(*ballot)),
            Record::LogStart { log, ballot, slot } => Logged::Fact(Fact::LogStart {
                log: *log,
                ballot: *ballot,
                slot: *slot,
            }),
            Record::ForgetLogStarts { log, below } => Logged::Fact(Fact::ForgetLogStarts {
                log: *log,
                below: *below,
            }),
            Record::RestartWait(wait) => Logged::Fact(Fact::RestartWait(*wait)),
            Record::Life { replica, life } => Logged::Fact(Fact::Life {
                replica: *replica,
                life: *life,
            }),
            Record::Joined => Logged::Fact(Fact::Joined),
            Record::Committed(slots) => Logged::Fact(Fact::Committed(*slots)),
            Record::Changes(_) => return None,
        })
    }
}

/// Appends a record to `out`. Returns the length of the record in bytes.
pub(crate) fn encode(segment: SegmentId, record: &Logged<'_>, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend([0; FRAME_BYTES]);
    match record {
        Logged::Entry {
            log,
            slot,
            ballot,
            value,
        } => {
            out.push(entry_kind(*log));
            out.extend(slot.0.to_le_bytes());
            codec::encode_entry(*ballot, value, out);
        }
        Logged::Erased { log, slot } => {
            out.extend([ERASED, entry_kind(*log)]);
            out.extend(slot.0.to_le_bytes());
        }
        Logged::Fact(fact) => encode_fact(fact, out),
    }
    let body = out.len() - start - FRAME_BYTES;
    let length = u32::try_from(body).expect("a record is shorter than 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    let seal = checksum(segment, &out[start + FRAME_BYTES..]);
    out[start + 4..start + FRAME_BYTES].copy_from_slice(&seal.to_le_bytes());
    out.len() - start
}

fn encode_fact(fact: &Fact, out: &mut Vec<u8>) {
    match fact {
        Fact::Promised(ballot) => {
            out.push(PROMISED);
            encode_ballot(*ballot, out);
        }
        Fact::LogStart { log, ballot, slot } => {
            out.extend([LOG_START, entry_kind(*log)]);
            encode_ballot(*ballot, out);
            out.extend(slot.0.to_le_bytes());
        }
        Fact::ForgetLogStarts { log, below } => {
            out.extend([FORGET_LOG_STARTS, entry_kind(*log)]);
            encode_ballot(*below, out);
        }
        Fact::RestartWait(wait) => {
            let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
            out.push(RESTART_WAIT);
            out.extend(ns.to_le_bytes());
        }
        Fact::Life { replica, life } => {
            out.extend([LIFE, replica.0]);
            out.extend(life.to_le_bytes());
        }
        Fact::Joined => out.push(JOINED),
        Fact::Incarnation(incarnation) => {
            out.push(INCARNATION);
            out.extend(incarnation.0.to_le_bytes());
        }
        Fact::Committed(slots) => {
            out.push(COMMITTED);
            out.extend(slots.commands.0.to_le_bytes());
            out.extend(slots.configs.0.to_le_bytes());
        }
    }
}

fn encode_ballot(ballot: Ballot, out: &mut Vec<u8>) {
    out.extend(ballot.round.to_le_bytes());
    out.push(ballot.replica.0);
}

fn entry_kind(log: LogId) -> u8 {
    match log {
        LogId::Commands => COMMAND,
        LogId::Configs => CONFIG,
    }
}

pub(crate) fn checksum(segment: SegmentId, body: &[u8]) -> u32 {
    let segment = if off(Rule::H114Segment) { 0 } else { segment.0 };
    crc32c::crc32c_append(crc32c::crc32c(&segment.to_le_bytes()), body)
}

/// Reads the frame at the beginning of a record. Returns the length of the body, the checksum, and
/// the bytes after the frame.
pub(crate) fn split_frame(bytes: &[u8]) -> Option<(usize, u32, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (seal, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    Some((length, u32::from_le_bytes(*seal), rest))
}

/// Decodes the record in `body`, which does not include the frame. Returns `None` if `body` is not
/// a record of a known kind.
pub(crate) fn decode(body: &[u8]) -> Option<LogRecord<'_>> {
    let (kind, rest) = body.split_first()?;
    let mut reader = Reader(rest);
    let record = match *kind {
        COMMAND | CONFIG => {
            let slot = reader.slot()?;
            let entry = std::mem::take(&mut reader.0);
            LogRecord::Entry {
                log: log_of(*kind)?,
                slot,
                entry,
            }
        }
        ERASED => LogRecord::Erased {
            log: reader.log()?,
            slot: reader.slot()?,
        },
        PROMISED => LogRecord::Fact(Fact::Promised(reader.ballot()?)),
        LOG_START => LogRecord::Fact(Fact::LogStart {
            log: reader.log()?,
            ballot: reader.ballot()?,
            slot: reader.slot()?,
        }),
        FORGET_LOG_STARTS => LogRecord::Fact(Fact::ForgetLogStarts {
            log: reader.log()?,
            below: reader.ballot()?,
        }),
        RESTART_WAIT => LogRecord::Fact(Fact::RestartWait(Duration::from_nanos(reader.long()?))),
        LIFE => LogRecord::Fact(Fact::Life {
            replica: reader.replica()?,
            life: reader.long()?,
        }),
        JOINED => LogRecord::Fact(Fact::Joined),
        INCARNATION => LogRecord::Fact(Fact::Incarnation(Incarnation(reader.long()?))),
        COMMITTED => LogRecord::Fact(Fact::Committed(PerLog {
            commands: reader.slot()?,
            configs: reader.slot()?,
        })),
        _ => return None,
    };
    reader.0.is_empty().then_some(record)
}

fn log_of(kind: u8) -> Option<LogId> {
    match kind {
        COMMAND => Some(LogId::Commands),
        CONFIG => Some(LogId::Configs),
        _ => None,
    }
}

/// Reads fields from the front of a record.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn long(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    fn slot(&mut self) -> Option<Slot> {
        self.long().map(Slot)
    }

    fn log(&mut self) -> Option<LogId> {
        self.byte().and_then(log_of)
    }

    fn replica(&mut self) -> Option<ReplicaId> {
        self.byte().filter(|id| *id < REPLICAS_MAX).map(ReplicaId)
    }

    fn ballot(&mut self) -> Option<Ballot> {
        Some(Ballot {
            round: self.long()?,
            replica: self.replica()?,
        })
    }
}
