//! The file format of a history.
//!
//! A file consists of a magic string, the format version (u32), the number of events (u64), the
//! events, and the CRC-32 of all preceding bytes (u32). Numbers are little-endian. Numbers inside
//! an event are varints. The begin of an event is stored as the difference from the begin of the
//! previous event, so that an event takes about a dozen bytes.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "reads and writes files, which nothing else here does"
)]

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::{History, HistoryAction, HistoryEvent, ValueId};

const MAGIC: [u8; 8] = *b"LHSHIST\0";
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = MAGIC.len() + 4 + 8;
const CHECKSUM_BYTES: usize = 4;
/// Length of the shortest event, in bytes. The shortest event is a delete without an answer. Its
/// kind, its process, its key and its begin take one byte each.
const EVENT_BYTES_MIN: usize = 4;

/// Reason why a history could not be stored or loaded.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file could not be written or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file does not begin with the magic string of histories.
    #[error("not a history: the magic is missing")]
    NotAHistory,
    /// The file was written by another version of this program.
    #[error("history of format {found}, this program reads format {FORMAT}")]
    Format {
        /// Format version in the file.
        found: u32,
    },
    /// The checksum does not match the contents.
    #[error("history damaged: its checksum is {stored:08x}, its contents give {computed:08x}")]
    Checksum {
        /// Checksum in the file.
        stored: u32,
        /// Checksum of all bytes that precede the checksum in the file.
        computed: u32,
    },
    /// The contents are malformed although the checksum matches.
    #[error("history malformed at byte {offset}")]
    Malformed {
        /// Position of the event that could not be read, in bytes from the start of the file.
        offset: usize,
    },
}

impl History {
    /// Stores the history in a file. An existing file is replaced.
    ///
    /// # Errors
    /// `Io`.
    pub fn save(&self, path: &Path) -> Result<(), HistoryError> {
        std::fs::write(path, self.to_bytes()).map_err(|source| io_error(path, source))
    }

    /// Loads a history that [`History::save`] stored.
    ///
    /// # Errors
    /// Any [`HistoryError`].
    pub fn load(path: &Path) -> Result<History, HistoryError> {
        let bytes = std::fs::read(path).map_err(|source| io_error(path, source))?;
        History::from_bytes(&bytes)
    }

    /// Returns true if a file begins like the files that [`History::save`] writes. The file may
    /// still have another format version, or be damaged.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn is_in(path: &Path) -> io::Result<bool> {
        let mut begin = Vec::new();
        let file = std::fs::File::open(path)?;
        file.take(MAGIC.len() as u64).read_to_end(&mut begin)?;
        Ok(begin == MAGIC)
    }

    /// Returns the contents of a file with this history.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.events.len() * 16);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&(self.events.len() as u64).to_le_bytes());
        let mut before = 0;
        for event in &self.events {
            put_event(&mut bytes, event, before);
            before = event.invoke_ns;
        }
        let checksum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a history from the contents of a file. Uses memory in proportion to the length of
    /// `bytes`, even if the header claims more events.
    ///
    /// # Errors
    /// Any [`HistoryError`] but `Io`.
    pub fn from_bytes(bytes: &[u8]) -> Result<History, HistoryError> {
        let (contents, count) = open_file(bytes)?;
        let mut input = Input {
            bytes: contents,
            offset: HEADER_BYTES,
        };
        let fitting = (contents.len() - HEADER_BYTES) / EVENT_BYTES_MIN;
        let mut events = Vec::with_capacity(fitting.min(usize::try_from(count).unwrap_or(fitting)));
        let mut before = 0;
        for _ in 0..count {
            let offset = input.offset;
            let event = take_event(&mut input, before);
            let event = event.ok_or(HistoryError::Malformed { offset })?;
            before = event.invoke_ns;
            events.push(event);
        }
        if input.offset != contents.len() {
            let offset = input.offset;
            return Err(HistoryError::Malformed { offset });
        }
        Ok(History { events })
    }
}

fn io_error(path: &Path, source: io::Error) -> HistoryError {
    let path = path.to_owned();
    HistoryError::Io { path, source }
}

/// Checks the header and the checksum of a file, but not its events. Returns `bytes` without the
/// checksum at the end, and the number of events that the header states.
fn open_file(bytes: &[u8]) -> Result<(&[u8], u64), HistoryError> {
    if !bytes.starts_with(&MAGIC) {
        return Err(HistoryError::NotAHistory);
    }
    let truncated = HistoryError::Malformed {
        offset: bytes.len(),
    };
    let Some((contents, checksum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(truncated);
    };
    let Some((header, _)) = contents.split_first_chunk::<HEADER_BYTES>() else {
        return Err(truncated);
    };
    let (found, count) = header_fields(header);
    if found != FORMAT {
        return Err(HistoryError::Format { found });
    }
    let stored = u32::from_le_bytes(*checksum);
    let computed = crc32fast::hash(contents);
    if stored != computed {
        return Err(HistoryError::Checksum { stored, computed });
    }
    Ok((contents, count))
}

fn header_fields(header: &[u8; HEADER_BYTES]) -> (u32, u64) {
    let [_, _, _, _, _, _, _, _, f0, f1, f2, f3, count @ ..] = *header;
    (
        u32::from_le_bytes([f0, f1, f2, f3]),
        u64::from_le_bytes(count),
    )
}

/// Kind of an event, as stored in the low bits of the event's first byte.
#[derive(Clone, Copy)]
enum EventKind {
    ReadValue,
    ReadAbsent,
    Write,
    Delete,
    CasValue,
    CasAbsent,
}

const KINDS: [EventKind; 6] = [
    EventKind::ReadValue,
    EventKind::ReadAbsent,
    EventKind::Write,
    EventKind::Delete,
    EventKind::CasValue,
    EventKind::CasAbsent,
];
const SWAPPED: u8 = 0x40;
const ANSWERED: u8 = 0x80;

fn put_event(bytes: &mut Vec<u8>, event: &HistoryEvent, before_ns: u64) {
    let (head, values) = put_action(event.action);
    let answered = event.return_ns.map_or(0, |_| ANSWERED);
    bytes.push(head | answered);
    put_varint(bytes, event.process.into());
    put_varint(bytes, event.key);
    for value in values.into_iter().flatten() {
        put_varint(bytes, value.0);
    }
    put_varint(bytes, zigzag(event.invoke_ns.wrapping_sub(before_ns)));
    if let Some(return_ns) = event.return_ns {
        put_varint(bytes, zigzag(return_ns.wrapping_sub(event.invoke_ns)));
    }
}

/// Returns the first byte of an action, and the values that follow this byte. The first byte is the
/// action's kind, combined with `SWAPPED` if a compare-and-swap wrote its value.
fn put_action(action: HistoryAction) -> (u8, [Option<ValueId>; 2]) {
    match action {
        HistoryAction::Read { value: Some(value) } => {
            (EventKind::ReadValue as u8, [Some(value), None])
        }
        HistoryAction::Read { value: None } => (EventKind::ReadAbsent as u8, [None, None]),
        HistoryAction::Write { value } => (EventKind::Write as u8, [Some(value), None]),
        HistoryAction::Delete => (EventKind::Delete as u8, [None, None]),
        HistoryAction::Cas {
            expected,
            new,
            swapped,
        } => {
            let kind = expected.map_or(EventKind::CasAbsent, |_| EventKind::CasValue) as u8;
            let flag = if swapped { SWAPPED } else { 0 };
            (kind | flag, [Some(new), expected])
        }
    }
}

fn take_event(input: &mut Input, before_ns: u64) -> Option<HistoryEvent> {
    let head = input.byte()?;
    let kind = *KINDS.get(usize::from(head & !(SWAPPED | ANSWERED)))?;
    let process = u32::try_from(input.varint()?).ok()?;
    let key = input.varint()?;
    let action = take_action(input, kind, head & SWAPPED != 0)?;
    let invoke_ns = before_ns.wrapping_add(unzigzag(input.varint()?));
    let return_ns = if head & ANSWERED != 0 {
        Some(invoke_ns.wrapping_add(unzigzag(input.varint()?)))
    } else {
        None
    };
    Some(HistoryEvent {
        process,
        key,
        action,
        invoke_ns,
        return_ns,
    })
}

fn take_action(input: &mut Input, kind: EventKind, swapped: bool) -> Option<HistoryAction> {
    Some(match kind {
        EventKind::ReadValue => HistoryAction::Read {
            value: Some(input.value()?),
        },
        EventKind::ReadAbsent => HistoryAction::Read { value: None },
        EventKind::Write => HistoryAction::Write {
            value: input.value()?,
        },
        EventKind::Delete => HistoryAction::Delete,
        EventKind::CasValue => HistoryAction::Cas {
            new: input.value()?,
            expected: Some(input.value()?),
            swapped,
        },
        EventKind::CasAbsent => HistoryAction::Cas {
            new: input.value()?,
            expected: None,
            swapped,
        },
    })
}

/// Maps each difference to an unsigned number. No two differences get the same number. A difference
/// close to 0, positive or negative, becomes a small number.
fn zigzag(difference: u64) -> u64 {
    let signed = difference as i64;
    ((signed << 1) ^ (signed >> 63)) as u64
}

fn unzigzag(encoded: u64) -> u64 {
    (encoded >> 1) ^ (encoded & 1).wrapping_neg()
}

fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

struct Input<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.offset)?;
        self.offset += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if (bits << shift) >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn value(&mut self) -> Option<ValueId> {
        self.varint().map(ValueId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn action() -> impl Strategy<Value = HistoryAction> {
        let value = || any::<u64>().prop_map(ValueId);
        prop_oneof![
            proptest::option::of(value()).prop_map(|value| HistoryAction::Read { value }),
            value().prop_map(|value| HistoryAction::Write { value }),
            Just(HistoryAction::Delete),
            (proptest::option::of(value()), value(), any::<bool>()).prop_map(
                |(expected, new, swapped)| HistoryAction::Cas {
                    expected,
                    new,
                    swapped
                }
            ),
        ]
    }

    fn event() -> impl Strategy<Value = HistoryEvent> {
        let time = prop_oneof![any::<u64>(), 0..1000_u64];
        (
            any::<u32>(),
            any::<u64>(),
            action(),
            time.clone(),
            proptest::option::of(time),
        )
            .prop_map(
                |(process, key, action, invoke_ns, return_ns)| HistoryEvent {
                    process,
                    key,
                    action,
                    invoke_ns,
                    return_ns,
                },
            )
    }

    fn write(value: u64) -> HistoryEvent {
        HistoryEvent {
            process: 1,
            key: 2,
            action: HistoryAction::Write {
                value: ValueId(value),
            },
            invoke_ns: 1_000_000 * value,
            return_ns: Some(1_000_000 * value + 500_000),
        }
    }

    proptest! {
        #[test]
        fn what_was_stored_is_loaded(events in proptest::collection::vec(event(), 0..50)) {
            let history: History = events.into_iter().collect();
            prop_assert_eq!(History::from_bytes(&history.to_bytes()).unwrap(), history);
        }

        #[test]
        fn a_changed_byte_is_noticed(
            events in proptest::collection::vec(event(), 1..10),
            at in any::<proptest::sample::Index>(),
            flip in 1..=u8::MAX,
        ) {
            let history: History = events.into_iter().collect();
            let mut bytes = history.to_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(History::from_bytes(&bytes).is_err());
        }

        #[test]
        fn arbitrary_contents_are_read_or_refused(
            count in any::<u64>(),
            contents in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = [&MAGIC[..], &FORMAT.to_le_bytes(), &count.to_le_bytes(), &contents]
                .concat();
            bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
            if let Ok(history) = History::from_bytes(&bytes) {
                prop_assert_eq!(history.len() as u64, count);
            }
        }
    }

    #[test]
    fn a_file_that_is_none_says_so() {
        let bytes = History::from_iter([write(1)]).to_bytes();
        for length in 0..bytes.len() {
            assert!(History::from_bytes(&bytes[..length]).is_err(), "{length}");
        }
        let error = History::from_bytes(b"PNG and so on").unwrap_err();
        assert!(matches!(error, HistoryError::NotAHistory), "{error}");
        let mut newer = bytes;
        newer[MAGIC.len()] = 9;
        let error = History::from_bytes(&newer).unwrap_err();
        assert!(error.to_string().contains("format 9"), "{error}");
    }

    #[test]
    fn files_hold_what_was_saved_and_errors_name_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.bin");
        let error = History::load(&path).unwrap_err();
        assert!(error.to_string().contains("history.bin"), "{error}");
        let history: History = (0..100).map(write).collect();
        history.save(&path).unwrap();
        assert_eq!(History::load(&path).unwrap(), history);
        let bytes = std::fs::metadata(&path).unwrap().len();
        assert!(bytes < 100 * 14, "{bytes} bytes");
    }
}
