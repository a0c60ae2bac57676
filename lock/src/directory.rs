//! The directory of a member. It has a file with the rounds that the member has reserved, so that
//! fence tokens rise also after a restart of all members. No lease is written to it.

use std::fs::{DirBuilder, File, rename};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use leasehold_lock_core::ballot::ROUND_MAX;
use leasehold_lock_core::rules::ROUNDS_RESERVED;
use rustix::fs::FlockOperation;

/// Name of the file. It has 16 bytes: [`MAGIC`], and the first round that is not reserved, as a
/// big-endian number.
const ROUNDS: &str = "rounds";
const MAGIC: [u8; 8] = *b"LHROUND1";

/// Reason why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process uses the directory.
    #[error(
        "{}: another process uses this directory; give each member its own, and run each member once",
        dir.display()
    )]
    Used {
        /// Path of the directory.
        dir: PathBuf,
    },
    /// The file of rounds is damaged.
    #[error(
        "{}: this is no file of reserved rounds; bring it back from a copy, or remove it if fence \
         tokens may begin anew",
        file.display()
    )]
    Damaged {
        /// Path of the file.
        file: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", file.display())]
    File {
        /// Path of the file or directory.
        file: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Directory of a member. Other processes cannot use it before it is dropped.
#[derive(Debug)]
pub(crate) struct MemberDirectory {
    dir: PathBuf,
    /// The directory, locked.
    locked: File,
}

impl MemberDirectory {
    /// Makes the directory if it is missing, and locks it. Reserves rounds. Returns the first round
    /// that was not reserved before.
    pub(crate) fn open(dir: &Path) -> Result<(MemberDirectory, u64), DirectoryError> {
        let failed = |source| failed(dir, source);
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(dir);
        made.map_err(failed)?;
        let locked = File::open(dir).map_err(failed)?;
        match rustix::fs::flock(&locked, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let dir = dir.to_owned();
                return Err(DirectoryError::Used { dir });
            }
            Err(error) => return Err(failed(error.into())),
        }
        let dir = dir.to_owned();
        let directory = MemberDirectory { dir, locked };
        let floor = directory.read()?;
        directory.reserve(floor.saturating_add(ROUNDS_RESERVED))?;
        Ok((directory, floor))
    }

    fn read(&self) -> Result<u64, DirectoryError> {
        let file = self.dir.join(ROUNDS);
        let mut opened = match File::open(&file) {
            Ok(opened) => opened.take(17),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(failed(&file, error)),
        };
        let mut bytes = Vec::new();
        let read = opened.read_to_end(&mut bytes);
        read.map_err(|error| failed(&file, error))?;
        let found = match bytes.split_first_chunk() {
            Some((&MAGIC, rest)) if rest.len() == 8 => {
                let rounds = rest.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                let is_possible = rounds <= ROUND_MAX - ROUNDS_RESERVED;
                is_possible.then_some(rounds)
            }
            _ => None,
        };
        found.ok_or(DirectoryError::Damaged { file })
    }

    /// Reserves all rounds below `until`. They are on the disk when this returns.
    pub(crate) fn reserve(&self, until: u64) -> Result<(), DirectoryError> {
        let file = self.dir.join(ROUNDS);
        let new = self.dir.join("rounds.new");
        let write = || {
            let mut opened = File::create(&new)?;
            opened.write_all(&MAGIC)?;
            opened.write_all(&until.to_be_bytes())?;
            opened.sync_all()?;
            rename(&new, &file)?;
            self.locked.sync_all()
        };
        write().map_err(|source| failed(&file, source))
    }
}

fn failed(file: &Path, source: io::Error) -> DirectoryError {
    let file = file.to_owned();
    DirectoryError::File { file, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_never_used_again() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("a/b");
        let (first, floor) = MemberDirectory::open(&dir).unwrap();
        assert_eq!(floor, 0);
        let used = MemberDirectory::open(&dir).unwrap_err().to_string();
        assert!(
            used.contains("another process uses this directory"),
            "{used}"
        );
        first.reserve(7 * ROUNDS_RESERVED).unwrap();
        drop(first);
        for starts in 7..9 {
            let (_again, floor) = MemberDirectory::open(&dir).unwrap();
            assert_eq!(floor, starts * ROUNDS_RESERVED);
        }
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let too_large = [&MAGIC[..], &[0xff; 8]].concat();
        for contents in [
            &too_large[..],
            &b""[..],
            b"LHROUND1",
            b"LHROUND1\0\0\0\0\0\0\0\x01\x02",
            &[7; 16],
        ] {
            std::fs::write(scratch.path().join(ROUNDS), contents).unwrap();
            let error = MemberDirectory::open(scratch.path()).unwrap_err();
            assert!(matches!(error, DirectoryError::Damaged { .. }), "{error}");
        }
    }
}
