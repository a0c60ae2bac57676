//! Check that the files of a data directory are regular files. It is made before any of them is
//! opened, because a read of a pipe never ends.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

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

/// Returns the first name at which a start needs a regular file and finds something else; `None`
/// if there is none. The check follows symbolic links. Names that no start opens are ignored.
///
/// # Errors
/// The operating system refuses to list the directory.
pub(super) fn find_wrong_kind(directory: &Path) -> io::Result<Option<WrongKind>> {
    let is_segment = |name: &str| name == spare::NAME || log_files::segment_of(name).is_some();
    if let Some(name) = find(directory, is_opened)? {
        return Ok(Some(name));
    }
    // A folder that cannot be listed is reported where the log is opened.
    let found = find(&directory.join(log_files::FOLDER), is_segment).unwrap_or_default();
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
        // A link that leads nowhere, or a file that is gone by now, is reported by its reader.
        let Some(kind) = fs::metadata(entry.path())
            .ok()
            .map(|found| found.file_type())
        else {
            continue;
        };
        if !kind.is_file() && is_needed(&name) {
            found.push((name, kind));
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found.into_iter().next().map(|(name, kind)| WrongKind {
        name,
        kind: words(kind),
    }))
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
