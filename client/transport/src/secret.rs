//! Values that must stay secret, and files that only the owner of the file may read.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use leasehold_wire::{TOKEN_BYTES_MAX, TOKEN_MARK};

/// Minimum length of a path that looks like a token. A path that is at least this long and begins
/// like a token is refused, because a token was probably given by mistake.
const LIKE_A_TOKEN_BYTES: usize = 40;
/// Permission bits that give rights on a file to the file's group and to other users.
const OF_OTHERS: u32 = 0o077;

/// A token. It is loaded from a file that only the file's owner may read. `Debug` does not show the
/// token.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Bytes);

impl Secret {
    /// Loads the token from a file. Surrounding white space is removed.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, if others may read it, or if it holds no token.
    pub fn load(file: &Path) -> Result<Secret, PrivateFileError> {
        let path = file.as_os_str().as_encoded_bytes();
        if path.starts_with(TOKEN_MARK.as_bytes()) && path.len() >= LIKE_A_TOKEN_BYTES {
            return Err(PrivateFileError::IsToken);
        }
        // White space around a token is allowed, but a large amount is a mistake.
        let text = read_private(file, 2 * TOKEN_BYTES_MAX)?;
        let token = text.trim();
        let is_plain = token.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_plain || token.is_empty() || token.len() > TOKEN_BYTES_MAX {
            return Err(PrivateFileError::NoToken {
                file: file.to_owned(),
            });
        }
        Ok(Secret(Bytes::copy_from_slice(token.as_bytes())))
    }

    /// Returns the token in the form in which it is sent.
    pub fn bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Reason why a file with secrets is not used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Other users than the owner may read or write the file.
    #[error(
        "{}: its mode {mode:04o} lets others than its owner use it; `chmod 600 {}` mends that",
        file.display(), file.display()
    )]
    Open {
        /// The file.
        file: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// The file is longer than `bytes_max`, so its contents cannot be valid.
    #[error("{}: is longer than {bytes_max} bytes, the most that are read", file.display())]
    Long {
        /// The file.
        file: PathBuf,
        /// Maximum length in bytes.
        bytes_max: usize,
    },
    /// A token was given in place of the path. The message does not quote the token.
    #[error(
        "a token was given where the path of its file belongs; others on this machine may have \
         seen it: revoke it, and give the new one's file"
    )]
    IsToken,
    /// The file holds no token.
    #[error(
        "{}: holds no token; a token is one line, as `leasehold token new` prints it",
        file.display()
    )]
    NoToken {
        /// The file.
        file: PathBuf,
    },
}

/// Returns the text of a file that holds secrets, or digests of secrets.
///
/// # Errors
/// Returns an error if the file cannot be read, if it is not text, if it is longer than
/// `bytes_max`, or if users other than its owner may read or write it.
pub fn read_private(file: &Path, bytes_max: usize) -> Result<String, PrivateFileError> {
    let failed = |source| PrivateFileError::Read {
        file: file.to_owned(),
        source,
    };
    // Opening a pipe would wait until another process writes into it.
    if !file.metadata().map_err(failed)?.is_file() {
        let kind = io::ErrorKind::InvalidInput;
        return Err(failed(io::Error::new(kind, "is no regular file")));
    }
    // The opened file itself is checked, because the name may be given to another file in the
    // meantime.
    let open = File::open(file).map_err(failed)?;
    let mode = open.metadata().map_err(failed)?.mode() & 0o7777;
    if mode & OF_OTHERS != 0 {
        let file = file.to_owned();
        return Err(PrivateFileError::Open { file, mode });
    }
    let mut text = String::new();
    let mut bytes = open.take(bytes_max as u64 + 1);
    bytes.read_to_string(&mut text).map_err(failed)?;
    if text.len() > bytes_max {
        let file = file.to_owned();
        return Err(PrivateFileError::Long { file, bytes_max });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn file(dir: &Path, text: &str, mode: u32) -> PathBuf {
        let file = dir.join("token");
        std::fs::write(&file, text).unwrap();
        set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn a_token_is_read_from_a_file_of_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o400, 0o700] {
            let secret = Secret::load(&file(dir.path(), " lh_12\n", mode)).unwrap();
            assert_eq!(secret.bytes(), "lh_12");
        }
        for mode in [0o604, 0o640, 0o620, 0o601, 0o666] {
            let file = file(dir.path(), "lh_12\n", mode);
            let refusal = Secret::load(&file).unwrap_err().to_string();
            assert!(refusal.contains(&format!("mode {mode:04o}")), "{refusal}");
            let mend = format!("`chmod 600 {}`", file.display());
            assert!(refusal.contains(&mend), "{refusal}");
        }
    }

    #[test]
    fn what_holds_no_token_is_refused_without_being_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let long = "long".repeat(TOKEN_BYTES_MAX);
        let longer = "l".repeat(TOKEN_BYTES_MAX + 1);
        for text in [
            "",
            " \n",
            "two words",
            "line\nline",
            "töken",
            &long,
            &longer,
        ] {
            let refusal = Secret::load(&file(dir.path(), text, 0o600)).unwrap_err();
            let words = format!("{refusal} {refusal:?}");
            assert!(text.trim().is_empty() || !words.contains(text), "{words}");
        }
        let token = format!("{TOKEN_MARK}{}", "7".repeat(64));
        let misplaced = Secret::load(Path::new(&token)).unwrap_err();
        let words = format!("{misplaced} {misplaced:?}");
        assert!(
            words.contains("revoke it") && !words.contains("777"),
            "{words}"
        );
        let nowhere = Secret::load(Path::new("/nowhere/token")).unwrap_err();
        assert!(nowhere.to_string().starts_with("/nowhere/token: "));
    }

    #[test]
    fn nothing_shows_it() {
        let dir = tempfile::tempdir().unwrap();
        let token = Secret::load(&file(dir.path(), "lh_hidden", 0o600)).unwrap();
        let hello = leasehold_wire::Hello {
            token: token.bytes(),
            ..leasehold_wire::hello(Some("demo"))
        };
        let shown = format!("{token:?} {hello:?} {hello:#?}");
        assert!(!shown.contains("hidden"), "{shown}");
        // The form in which a list shows bytes.
        assert!(!shown.contains("108, 104"), "{shown}");
    }
}
