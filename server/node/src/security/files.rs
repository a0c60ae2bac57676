//! Certificates and keys in files.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::SecurityError;

/// Name of the file of the authority's certificate, in the directory of certificates.
pub const AUTHORITY: &str = "ca.pem";
/// Name of the file of the authority's key. No node needs it.
pub const AUTHORITY_KEY: &str = "ca.key";
/// Minimum length of a shared secret, in bytes.
pub const SECRET_BYTES_MIN: usize = 32;
/// Maximum size of a file: more bytes than any certificate, key or secret has.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Returns the file of a node's certificate.
pub fn certificate_file(directory: &Path, node: &str) -> PathBuf {
    directory.join(format!("{node}.pem"))
}

/// Returns the file of a node's key.
pub fn key_file(directory: &Path, node: &str) -> PathBuf {
    directory.join(format!("{node}.key"))
}

/// Reads a file that any user may read. `fix` is the advice in the error if the file does not
/// exist.
pub(super) fn read(file: &Path, fix: &str) -> Result<Vec<u8>, SecurityError> {
    let opened = open(file);
    let opened = opened.map_err(|source| unread(file, source, fix))?;
    rest(opened, file, fix)
}

/// Reads a file that only its owner may read. `fix` is the advice in the error if the file does not
/// exist.
///
/// # Errors
/// `Read`; `Loose` if other users may read or write the file.
pub fn read_private(file: &Path, fix: &str) -> Result<Vec<u8>, SecurityError> {
    let opened = open(file);
    let opened = opened.map_err(|source| unread(file, source, fix))?;
    // Metadata of the open file, even if another file takes its name meanwhile.
    let about = opened.metadata();
    let about = about.map_err(|source| unread(file, source, fix))?;
    let mode = about.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        let file = file.to_owned();
        return Err(SecurityError::Loose { file, mode });
    }
    rest(opened, file, fix)
}

/// Refuses a path that is no regular file: opening a pipe would wait for a writer.
fn open(file: &Path) -> io::Result<File> {
    if !file.metadata()?.is_file() {
        let kind = io::ErrorKind::InvalidInput;
        return Err(io::Error::new(kind, "is no regular file"));
    }
    File::open(file)
}

fn rest(opened: File, file: &Path, fix: &str) -> Result<Vec<u8>, SecurityError> {
    let mut bytes = Vec::new();
    let read = opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|source| unread(file, source, fix))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(SecurityError::Malformed {
            file: file.to_owned(),
            problem: format!("it has more than {FILE_BYTES_MAX} bytes; {fix}"),
        });
    }
    Ok(bytes)
}

fn unread(file: &Path, source: io::Error, fix: &str) -> SecurityError {
    SecurityError::Read {
        file: file.to_owned(),
        source,
        fix: fix.to_owned(),
    }
}

/// Writes a new file with this mode. It never replaces an existing file.
///
/// # Errors
/// `Write`, also if the file exists.
pub fn write_new(file: &Path, text: &str, mode: u32) -> Result<(), SecurityError> {
    let write = || {
        let mut options = OpenOptions::new();
        let mut opened = options.write(true).create_new(true).mode(mode).open(file)?;
        opened.write_all(text.as_bytes())?;
        opened.sync_all()
    };
    write().map_err(|source| SecurityError::Write {
        file: file.to_owned(),
        source,
    })
}
