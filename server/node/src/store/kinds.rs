//! Check that the files of a data directory are regular files. It is made before any of them is
//! opened, because a read of a pipe never ends.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use rustix::io::Errno;

use super::{log_files, spare};

/// Names of files that a start opens, besides those that [`is_opened`] recognizes by their endings.
const OPENED: [&str; 4] = ["LEASEHOLD", "LOCK", "CURRENT", "IDENTITY"];

/// Something that stands in the place of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WrongKind {
    /// Path within the data directory.
    pub name: String,
    /// Kind of what was found, as words that follow "it is" in a sentence.
    pub kind: &'static str,
}

/// Words for a symbolic link that the operating system cannot follow.
pub(super) const LOOP: &str = "a symbolic link that leads back to itself";

/// Returns the first name at which a start needs a regular file and finds something else; `None`
/// if there is none. The check follows symbolic links. Names that no start opens are ignored.
///
/// # Errors
/// The operating system refuses to list the directory.
pub(super) fn find_wrong_kind(directory: &Path) -> io::Result<Option<WrongKind>> {
    let is_segment = |name: &str| log_files::segment_of(name).is_some();
    if let Some(name) = find(directory, is_opened)? {
        return Ok(Some(name));
    }
    let folder = directory.join(log_files::FOLDER);
    if fs::metadata(&folder).is_err_and(|error| is_loop(&error)) {
        return Ok(Some(WrongKind {
            name: log_files::FOLDER.to_owned(),
            kind: LOOP,
        }));
    }
    // A folder that cannot be listed is reported where the log is opened.
    let found = find(&folder, is_segment).unwrap_or_default();
    let found = found.or_else(|| unremovable_spare(&folder));
    Ok(found.map(|found| WrongKind {
        name: format!("{}/{}", log_files::FOLDER, found.name),
        ..found
    }))
}

/// Whether a start opens the file with this name.
fn is_opened(name: &str) -> bool {
    let is_number = |stem: &str| stem.parse::<u64>().is_ok();
    let is_table = name.strip_suffix(".sst").is_some_and(is_number);
    let is_manifest = name.starts_with("MANIFEST-");
    OPENED.contains(&name) || is_table || is_manifest || name.ends_with(".log")
}

fn find(folder: &Path, is_needed: impl Fn(&str) -> bool) -> io::Result<Option<WrongKind>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = match fs::metadata(entry.path()) {
            Ok(found) if found.is_file() => continue,
            Ok(found) => words(found.file_type()),
            Err(error) if is_loop(&error) => LOOP,
            // A link that leads nowhere, or a file that is gone by now, is reported by its reader.
            Err(_) => continue,
        };
        if is_needed(&name) {
            found.push(WrongKind { name, kind });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found.into_iter().next())
}

/// Returns the spare segment if it is a directory that a start cannot remove, because it contains
/// something. A start removes anything else that stands in the place of the spare segment.
fn unremovable_spare(folder: &Path) -> Option<WrongKind> {
    let path = folder.join(spare::NAME);
    let found = fs::symlink_metadata(&path).ok()?;
    let is_full = found.is_dir() && fs::read_dir(&path).is_ok_and(|mut it| it.next().is_some());
    is_full.then(|| WrongKind {
        name: spare::NAME.to_owned(),
        kind: "a directory",
    })
}

/// Whether the operating system has followed too many symbolic links.
pub(super) fn is_loop(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::LOOP)
}

fn words(kind: fs::FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}
