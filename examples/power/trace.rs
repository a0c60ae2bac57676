//! The records that the shim writes about the operations of a process on its files.

use anyhow::{Context as _, bail};
use bytes::Bytes;

/// Number of bytes of a record without its contents; see `struct record` in `shim.c`.
const HEAD_BYTES: usize = 40;

/// An operation, with the time at which it was complete, in ns of the monotonic clock.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRecord {
    pub at_ns: u64,
    pub operation: FileOperation,
}

/// A change of files or folders. Descriptors are those of the recorded process.
#[derive(Clone, Debug, PartialEq)]
pub enum FileOperation {
    Open {
        descriptor: i32,
        path: String,
        creates: bool,
        truncates: bool,
    },
    Close(i32),
    Write {
        descriptor: i32,
        offset: usize,
        contents: Contents,
    },
    Resize {
        descriptor: i32,
        bytes: usize,
    },
    /// The file gets at least this length.
    Extend {
        descriptor: i32,
        bytes: usize,
    },
    /// Beginning of a sync. The matching `SyncEnd` has the same ticket.
    SyncBegin {
        descriptor: i32,
        ticket: u64,
    },
    SyncEnd {
        ticket: u64,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    Remove(String),
    MakeFolder(String),
}

/// Bytes that were written.
#[derive(Clone, Debug, PartialEq)]
pub enum Contents {
    Zeros(usize),
    Bytes(Bytes),
}

impl Contents {
    pub fn len(&self) -> usize {
        match self {
            Contents::Zeros(bytes) => *bytes,
            Contents::Bytes(bytes) => bytes.len(),
        }
    }

    /// Writes the first `length` bytes of these contents into `file` at `offset`.
    pub fn put(&self, file: &mut Vec<u8>, offset: usize, length: usize) {
        if file.len() < offset + length {
            file.resize(offset + length, 0);
        }
        let target = &mut file[offset..offset + length];
        match self {
            Contents::Zeros(_) => target.fill(0),
            Contents::Bytes(bytes) => target.copy_from_slice(&bytes[..length]),
        }
    }
}

/// Parses a trace. An incomplete record at the end is ignored, because the process was killed
/// before anything could depend on this record.
///
/// # Errors
/// A record shows an operation that the harness does not model.
pub fn parse(trace: Bytes) -> anyhow::Result<Vec<TraceRecord>> {
    let mut records = Vec::new();
    let mut at = 0;
    while let Some(head) = trace.get(at..at + HEAD_BYTES) {
        let head = RecordHead::decode(head);
        at += HEAD_BYTES;
        let length = if head.zeros { 0 } else { head.length };
        if at + length > trace.len() {
            break;
        }
        let contents = trace.slice(at..at + length);
        at += length;
        if let Some(operation) = head.operation(contents)? {
            records.push(TraceRecord {
                at_ns: head.at_ns,
                operation,
            });
        }
    }
    Ok(records)
}

/// Fields of a record as the shim wrote them.
struct RecordHead {
    at_ns: u64,
    first: u64,
    second: u64,
    descriptor: i32,
    length: usize,
    kind: u8,
    zeros: bool,
}

impl RecordHead {
    fn decode(bytes: &[u8]) -> RecordHead {
        let long = |at: usize| {
            let found = bytes[at..].first_chunk();
            found.map_or(0, |it| u64::from_le_bytes(*it))
        };
        RecordHead {
            at_ns: long(0),
            first: long(8),
            second: long(16),
            descriptor: long(24) as u32 as i32,
            length: (long(24) >> 32) as usize,
            kind: bytes[32],
            zeros: bytes[33] == 1,
        }
    }

    fn operation(&self, contents: Bytes) -> anyhow::Result<Option<FileOperation>> {
        let descriptor = self.descriptor;
        let bytes = self.first as usize;
        let text = || String::from_utf8_lossy(&contents).into_owned();
        Ok(Some(match self.kind {
            b'O' => opened(descriptor, self.first, text()),
            b'C' => FileOperation::Close(descriptor),
            b'W' => FileOperation::Write {
                descriptor,
                offset: bytes,
                contents: if self.zeros {
                    Contents::Zeros(self.length)
                } else {
                    Contents::Bytes(contents)
                },
            },
            b'T' => FileOperation::Resize { descriptor, bytes },
            b'A' => return extended(descriptor, bytes, self.second),
            b's' => FileOperation::SyncBegin {
                descriptor,
                ticket: self.first,
            },
            b'S' => FileOperation::SyncEnd { ticket: self.first },
            b'R' => {
                let (from, to) = two_paths(&text())?;
                FileOperation::Rename { from, to }
            }
            b'H' => {
                let (from, to) = two_paths(&text())?;
                FileOperation::Link { from, to }
            }
            b'U' => FileOperation::Remove(text()),
            b'M' => FileOperation::MakeFolder(text()),
            _ => bail!(
                "a replica used a call that examples/power/shim.c does not model ({}): add it there",
                text()
            ),
        }))
    }
}

fn opened(descriptor: i32, flags: u64, path: String) -> FileOperation {
    let flags = rustix::fs::OFlags::from_bits_retain(flags as u32);
    let writes = flags.intersects(rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::RDWR);
    FileOperation::Open {
        descriptor,
        path,
        creates: flags.contains(rustix::fs::OFlags::CREATE),
        truncates: writes && flags.contains(rustix::fs::OFlags::TRUNC),
    }
}

/// Converts a record of `fallocate`, which reserves space. Mode 0 also extends the file. Mode 1
/// (`FALLOC_FL_KEEP_SIZE`) does not change the file's contents, so the result is `None`.
fn extended(descriptor: i32, bytes: usize, mode: u64) -> anyhow::Result<Option<FileOperation>> {
    match mode {
        0 => Ok(Some(FileOperation::Extend { descriptor, bytes })),
        1 => Ok(None),
        _ => bail!(
            "a replica used fallocate with mode {mode}, which examples/power/trace.rs does not model: add it there"
        ),
    }
}

fn two_paths(text: &str) -> anyhow::Result<(String, String)> {
    let paths = text.split_once('\n');
    let (from, to) = paths.context("a record of the shim lacks its second path")?;
    Ok((from.to_owned(), to.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, first: u64, contents: &[u8], zeros: usize) -> Vec<u8> {
        let length = if zeros > 0 { zeros } else { contents.len() };
        let mut bytes = Vec::new();
        for number in [7, first, 0, 5 | (length as u64) << 32] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend([kind, u8::from(zeros > 0), 0, 0, 0, 0, 0, 0]);
        bytes.extend(contents);
        bytes
    }

    #[test]
    fn a_record_that_is_not_whole_is_left_out() {
        let mut trace = record(b'W', 512, b"", 64);
        trace.extend(record(b'U', 0, b"/disk/spare", 0));
        let whole = trace.len();
        trace.extend(record(b'W', 0, b"contents", 0));
        for end in [whole, whole + 3, trace.len() - 1] {
            let found = parse(Bytes::copy_from_slice(&trace[..end])).unwrap();
            let operations: Vec<_> = found.into_iter().map(|it| it.operation).collect();
            let zeros = FileOperation::Write {
                descriptor: 5,
                offset: 512,
                contents: Contents::Zeros(64),
            };
            let removal = FileOperation::Remove("/disk/spare".to_owned());
            assert_eq!(operations, [zeros, removal], "{end}");
        }
    }

    #[test]
    fn an_operation_that_is_not_modelled_is_an_error() {
        let error = parse(record(b'?', 0, b"syncfs", 0).into()).unwrap_err();
        assert!(error.to_string().contains("syncfs"), "{error}");
    }
}
