//! Parser of the texts of RocksDB's errors.
//!
//! RocksDB has error codes, but its C interface returns only a text:
//!
//! ```text
//! KIND: [SUBKIND: ]OPERATION: PATH: ERROR OF THE SYSTEM
//! ```
//!
//! The kind and the subkind are RocksDB's codes, as fixed words at a fixed position. The operation
//! is one or two fixed words, followed by numbers or names of files. The system's error comes last,
//! in the words of the C library. The path may contain any words. So the parser compares only the
//! beginning and the end of the text, and does not search between them.

use std::io;
use std::path::Path;

use rustix::io::Errno;

/// Subkind of an error, as RocksDB writes it. The parser recognizes this text. The texts of the
/// subkinds are in RocksDB's `util/status.cc`.
const NO_SPACE: &str = "No space left on device";
const PATH_NOT_FOUND: &str = "No such file or directory";
/// End of RocksDB's text for a directory that is not a database.
const NO_DATABASE: &str = "does not exist (create_if_missing is false)";
/// Beginnings of the error texts of certain operations. After a failure of such an operation, the
/// contents of the disk are unknown (`env/io_posix.cc`).
const SYNCS: [&str; 5] = [
    "fsync",
    "fdatasync",
    "msync",
    "sync_file_range",
    "closing file after fsync",
];

/// Texts that RocksDB puts before the text of an error (`db/db_impl/db_impl_open.cc`,
/// `db_impl.cc`). RocksDB adds the first text if it delays writes because of the error. It adds the
/// second text if the error prevents it from writing the file with its options.
const PREFIXES: [&str; 2] = [
    "Result incomplete: ",
    "IO error: DB::Open() failed --- Unable to persist Options file: IO error: Unable to persist \
     options.: ",
];

/// Cause of an error, in the categories that matter to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorCause {
    /// The disk had no space, and the records were not written.
    Full,
    /// Another process uses the directory.
    Locked,
    /// Bytes in a file, or a whole file, are not as they were written.
    Damaged,
    /// The error has another cause.
    Other,
}

/// Returns the cause of an error, according to RocksDB's error text.
pub(super) fn cause(text: &str) -> ErrorCause {
    let found = PREFIXES.into_iter().find_map(|it| text.strip_prefix(it));
    let text = found.unwrap_or(text);
    let parsed = ErrorText::of(text);
    match parsed.kind {
        "Corruption" => ErrorCause::Damaged,
        "Invalid argument" if text.ends_with(NO_DATABASE) => ErrorCause::Damaged,
        "IO error" if parsed.is_full() => ErrorCause::Full,
        "IO error" if parsed.is_locked() => ErrorCause::Locked,
        "IO error" if parsed.subkind == Some(PATH_NOT_FOUND) => ErrorCause::Damaged,
        _ => ErrorCause::Other,
    }
}

/// An error text of RocksDB, divided into parts.
struct ErrorText<'a> {
    /// The whole text.
    text: &'a str,
    kind: &'a str,
    subkind: Option<&'static str>,
    /// Part of the text that begins with the operation.
    operation: &'a str,
}

impl<'a> ErrorText<'a> {
    fn of(text: &'a str) -> ErrorText<'a> {
        let (kind, rest) = text.split_once(": ").unwrap_or((text, ""));
        let mut subkinds = [NO_SPACE, PATH_NOT_FOUND].into_iter();
        let subkind = subkinds.find(|words| rest.starts_with(words));
        let after = subkind.map_or(rest, |words| &rest[words.len()..]);
        let operation = after.trim_start_matches(": ");
        let operation = operation.strip_prefix("While ").unwrap_or(operation);
        ErrorText {
            text,
            kind,
            subkind,
            operation: operation.strip_prefix("while ").unwrap_or(operation),
        }
    }

    /// Whether the error means that the disk is full. The result is false if the disk was full
    /// during a sync, because it is then unknown whether earlier writes are on the disk.
    fn is_full(&self) -> bool {
        let full = self.subkind == Some(NO_SPACE) || self.ends_with(Errno::DQUOT);
        let sync = SYNCS.iter().any(|words| self.operation.starts_with(words));
        full && !sync
    }

    /// Whether the lock of the directory is already held, by this process or by another one.
    fn is_locked(&self) -> bool {
        let others = self.operation.starts_with("lock file")
            && (self.ends_with(Errno::AGAIN) || self.ends_with(Errno::ACCESS));
        others || self.operation.starts_with("lock hold by current process")
    }

    fn ends_with(&self, error: Errno) -> bool {
        self.text.ends_with(&words(error))
    }
}

/// Returns the C library's text for an error. RocksDB uses the same library.
fn words(error: Errno) -> String {
    let number = error.raw_os_error();
    let mut words = io::Error::from_raw_os_error(number).to_string();
    let suffix = format!(" (os error {number})");
    if words.ends_with(&suffix) {
        words.truncate(words.len() - suffix.len());
    }
    format!(": {words}")
}

/// Returns the name of the file to which an error of RocksDB refers, for use in messages. The
/// error's text contains the name, unless the file is a write-ahead log. The name of a write-ahead
/// log is only in RocksDB's own log.
pub(super) fn culprit(directory: &Path, message: &str) -> String {
    let known = directory.to_string_lossy();
    let named = |text: &str| {
        let text = text.replace(known.as_ref(), "");
        let words = text.split([' ', ':', ',', ';', '\n']);
        let names = words.filter_map(|word| word.rsplit('/').next());
        let mut files = names.filter(|name| {
            name.ends_with(".sst") || name.ends_with(".log") || name.starts_with("MANIFEST-")
        });
        files.next().map(str::to_owned)
    };
    let numbered = || {
        let (_, rest) = message.split_once("log number: ")?;
        let number = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
        Some(format!("{number:0>6}.log"))
    };
    let from_log = || {
        let log = std::fs::read(directory.join("LOG")).ok()?;
        let log = String::from_utf8_lossy(&log);
        let dropping = log
            .lines()
            .rev()
            .find(|line| line.contains(": dropping "))?;
        named(dropping)
    };
    named(message)
        .or_else(numbered)
        .or_else(from_log)
        .unwrap_or_else(|| "one of the store's files".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths that contain words of error texts. The parser must not interpret these words, because
    /// they are part of a path.
    const PATHS: [&str; 6] = [
        "/data/A/000012.log",
        "/sync/LOCK/fsync/No space left on device/000012.log",
        "relative sync: lock file/Disk quota exceeded/x",
        "/No such file or directory: does not exist/000012.sst",
        "/fdatasync: Corruption: x/lock hold by current process",
        "/While fsync: No space left on device: y/LOCK",
    ];

    /// Returns an error text in the format of RocksDB.
    fn told(kind: &str, operation: &str, path: &str, error: &str) -> String {
        format!("{kind}: {operation}: {path}: {error}")
    }

    #[test]
    fn an_error_in_another_one_is_told_like_the_inner_error() {
        for prefix in PREFIXES {
            for path in PATHS {
                let operation = "No space left on device: While appending to file";
                let inner = told("IO error", operation, path, NO_SPACE);
                assert_eq!(cause(&format!("{prefix}{inner}")), ErrorCause::Full);
                let inner = told("IO error", "While fsync", path, "Input/output error");
                assert_eq!(cause(&format!("{prefix}{inner}")), ErrorCause::Other);
            }
        }
    }

    #[test]
    fn an_error_is_told_by_its_codes_whatever_the_path_is() {
        let full = "IO error: No space left on device";
        let missing = "IO error: No such file or directory";
        let io = "IO error";
        let cases = [
            (full, "While appending to file", NO_SPACE, ErrorCause::Full),
            (
                full,
                "While open a file for appending",
                NO_SPACE,
                ErrorCause::Full,
            ),
            (
                full,
                "while open a file for lock",
                NO_SPACE,
                ErrorCause::Full,
            ),
            (
                full,
                "While closing file after writing",
                NO_SPACE,
                ErrorCause::Full,
            ),
            (full, "While fdatasync", NO_SPACE, ErrorCause::Other),
            (full, "While fsync", NO_SPACE, ErrorCause::Other),
            (
                full,
                "While sync_file_range returned -1",
                NO_SPACE,
                ErrorCause::Other,
            ),
            (
                full,
                "While closing file after fsync",
                NO_SPACE,
                ErrorCause::Other,
            ),
            (
                io,
                "While appending to file",
                "Disk quota exceeded",
                ErrorCause::Full,
            ),
            (
                io,
                "While fdatasync",
                "Disk quota exceeded",
                ErrorCause::Other,
            ),
            (
                io,
                "While appending to file",
                "Input/output error",
                ErrorCause::Other,
            ),
            (
                io,
                "While fdatasync",
                "Input/output error",
                ErrorCause::Other,
            ),
            (
                io,
                "While open a file for appending",
                "Too many open files",
                ErrorCause::Other,
            ),
            (
                io,
                "While lock file",
                "Resource temporarily unavailable",
                ErrorCause::Locked,
            ),
            (
                io,
                "While lock file",
                "No locks available",
                ErrorCause::Other,
            ),
            (
                io,
                "lock hold by current process, acquire time 7 acquiring thread 8",
                "No locks available",
                ErrorCause::Locked,
            ),
            (
                missing,
                "while stat a file for size",
                PATH_NOT_FOUND,
                ErrorCause::Damaged,
            ),
            ("Corruption", "checksum mismatch", "", ErrorCause::Damaged),
            ("Resource busy", "x", "", ErrorCause::Other),
        ];
        for (kind, operation, error, meant) in cases {
            for path in PATHS {
                let text = told(kind, operation, path, error);
                assert_eq!(cause(&text), meant, "{text}");
            }
        }
    }

    #[test]
    fn operations_that_name_another_file_are_not_taken_for_a_sync() {
        for path in PATHS {
            let operation = format!("While renaming a file to {path}");
            let text = told(
                "IO error: No space left on device",
                &operation,
                path,
                NO_SPACE,
            );
            assert_eq!(cause(&text), ErrorCause::Full, "{text}");
        }
    }

    #[test]
    fn a_directory_without_a_database_is_damaged() {
        for path in PATHS {
            let text = format!("Invalid argument: {path}: {NO_DATABASE}");
            assert_eq!(cause(&text), ErrorCause::Damaged, "{text}");
        }
        assert_eq!(cause("Invalid argument: no such thing"), ErrorCause::Other);
        assert_eq!(cause(""), ErrorCause::Other);
    }

    #[test]
    fn the_file_named_is_none_of_the_path() {
        let directory = Path::new("/data.log/my MANIFEST-1.sst");
        let text = "Corruption: Bad table: /data.log/my MANIFEST-1.sst/000012.sst";
        assert_eq!(culprit(directory, text), "000012.sst");
        let none = "Corruption: what: /data.log/my MANIFEST-1.sst";
        assert_eq!(culprit(directory, none), "one of the store's files");
    }
}
