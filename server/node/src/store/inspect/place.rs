//! Checks that a path is the data directory of a stopped replica.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::InspectError;
use crate::store::kinds::{self, WrongKind};
use crate::store::rocks::marker;

/// Name of the file that RocksDB locks while a replica runs.
const LOCK: &str = "LOCK";
/// Advice on where to find the path of a data directory in the configuration.
const CONFIGURED: &str = "`data` of the configuration, followed by the name of the node";

/// Checks that `path` is a directory with a marker file.
///
/// # Errors
/// `Place`, `Half`, `Unreadable`.
pub(super) fn check(path: &Path) -> Result<(), InspectError> {
    let refused = |problem: &str, advice: &str| InspectError::Place {
        path: path.to_owned(),
        problem: problem.to_owned(),
        advice: advice.to_owned(),
    };
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(refused("there is no such directory", CONFIGURED));
        }
        Err(error) if kinds::is_loop(&error) => {
            let problem = format!("the path leads through {}", kinds::LOOP);
            return Err(refused(&problem, CONFIGURED));
        }
        found => found.map_err(|source| unreadable(path, source))?,
    };
    if !found.is_dir() {
        return Err(refused("it is not a directory", CONFIGURED));
    }
    let names = names(path).map_err(|source| unreadable(path, source))?;
    if names.iter().any(|name| name == marker::NAME) {
        return Ok(());
    }
    if names.is_empty() {
        return Err(refused("the directory is empty", CONFIGURED));
    }
    let mut nodes = nodes_in(path);
    // `cluster up` has the directories of its nodes there.
    nodes.extend(nodes_in(&path.join("data")));
    if !nodes.is_empty() {
        let nodes = nodes.join(", ");
        return Err(refused("it contains the directories of nodes", &nodes));
    }
    if marker::holds_data(path).map_err(|source| unreadable(path, source))? {
        return Err(half(path));
    }
    Err(refused("no replica has made this directory", CONFIGURED))
}

/// Returns the paths of the data directories that a directory contains.
fn nodes_in(path: &Path) -> Vec<String> {
    let names = names(path).unwrap_or_default().into_iter();
    let nodes = names.map(|name| path.join(name));
    let nodes = nodes.filter(|node| node.join(marker::NAME).is_file());
    nodes.map(|node| node.display().to_string()).collect()
}

/// Returns the error for a directory without a marker.
pub(super) fn half(path: &Path) -> InspectError {
    let names = names(path).unwrap_or_default();
    let is_data = |name: &&String| ["CURRENT", "log"].contains(&name.as_str());
    let found = names.iter().find(is_data).or_else(|| names.first());
    InspectError::Half {
        path: path.to_owned(),
        found: found.map_or("nothing else", String::as_str).to_owned(),
    }
}

/// Checks that nothing stands in the place of a file, because a read of a pipe never ends.
///
/// # Errors
/// `Kind`, `Unreadable`.
pub(super) fn check_kinds(path: &Path) -> Result<(), InspectError> {
    let found = kinds::find_wrong_kind(path).map_err(|source| unreadable(path, source))?;
    found.map_or(Ok(()), |WrongKind { name, kind }| {
        Err(InspectError::Kind {
            path: path.to_owned(),
            name,
            kind,
        })
    })
}

/// Checks that no process holds RocksDB's lock. If the lock file does not exist, no replica has
/// run. This check does not acquire the lock, because it must not stop a replica that starts at
/// this moment.
///
/// Requirement: this process does not hold the lock. When a process closes a file, the process
/// loses all locks that it holds on the file.
///
/// # Errors
/// `InUse`, `Unreadable`.
pub(super) fn check_unused(directory: &Path) -> Result<(), InspectError> {
    let path = directory.join(LOCK);
    let file = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file.map_err(|source| unreadable(&path, source))?,
    };
    let held = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock));
    let Some(held) = held.map_err(|error| unreadable(&path, error.into()))? else {
        return Ok(());
    };
    // A process in another namespace has no id here.
    let holder = held.pid.map_or("another process".to_owned(), |pid| {
        format!("process {}", pid.as_raw_nonzero())
    });
    Err(InspectError::InUse {
        path: directory.to_owned(),
        holder,
    })
}

/// Returns the names of the entries of a directory, in ascending order.
fn names(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

fn unreadable(path: &Path, source: io::Error) -> InspectError {
    InspectError::Unreadable {
        path: path.to_owned(),
        source,
    }
}
