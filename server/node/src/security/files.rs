//! Reading and writing of files with certificates and keys.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::SecurityError;

/// File name of the authority's certificate in the directory of certificates.
pub const AUTHORITY: &str = "ca.pem";
/// File name of the authority's private key. No node needs this file.
pub const AUTHORITY_KEY: &str = "ca.key";
/// Minimum length of a shared secret, in bytes.
pub const SECRET_BYTES_MIN: usize = 32;
/// Maximum size of a file in bytes. No certificate, key or secret is larger.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Returns the path of the file with a node's certificate.
pub fn certificate_file(directory: &Path, node: &str) -> PathBuf {
    directory.join(format!("{node}.pem"))
}

/// Returns the path of the file with a node's private key.
pub fn key_file(directory: &Path, node: &str) -> PathBuf {
    directory.join(format!("{node}.key"))
}

/// Reads a file that any user may read. If the file does not exist, the error contains the advice
/// `fix`.
pub(super) fn read(file: &Path, fix: &str) -> Result<Vec<u8>, SecurityError> {
    let opened = open(file);
    let opened = opened.map_err(|source| unread(file, source, fix))?;
    rest(opened, file, fix)
}

/// Reads a file that only its owner may read. If the file does not exist, the error contains the
/// advice `fix`.
///
/// # Errors
/// `Read` if the file cannot be read; `Loose` if other users may read or write the file.
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

/// Opens a file for reading. Refuses a path that is not a regular file, because opening a pipe
/// would wait for a writer.
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

/// Writes a new file with the permission bits `mode`. Never replaces an existing file.
///
/// # Errors
/// `Write`, which is also returned if the file exists.
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
