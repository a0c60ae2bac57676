//! Looks at the data directory of a stopped replica. Nothing in the directory is created, written,
//! locked or removed.
//!
//! [`StoppedDirectory::open`] refuses a directory that a running replica uses, or that has another
//! format. Everything else that is wrong becomes a [`DirectoryProblem`], so that the rest of the
//! directory can still be shown.

mod place;
mod problem;
mod scan;
#[cfg(test)]
mod tests;
mod verify;

use std::io;
use std::path::{Path, PathBuf};

pub use leasehold_log::{Fact, FoundGroup, FoundRecord, LogFacts, LogRecord, SegmentId, TornWrite};
use leasehold_replica::codec::Position;

pub use self::problem::{DirectoryProblem, StartEffect};
pub use self::scan::{LogScan, LogVisitor, SegmentSummary};
pub use self::verify::{CheckedParts, DirectoryVerdict};
pub use super::rocks::marker::MarkerSummary;
pub use super::rocks::read_only::FoundStamp;

use super::rocks::marker::{Marker, MarkerFile};
use super::rocks::read_only::{READABLE_FORMAT, StateReader, is_converted, log_problems};
use super::rocks::records::{Column, meta};

/// Reason why a directory cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The path is not that of a data directory.
    #[error("{}: {problem}; give the data directory of one node: {advice}", path.display())]
    Place {
        /// The given path.
        path: PathBuf,
        /// Problem with the path.
        problem: String,
        /// Names of directories that can be given instead, or a hint where to find such a name.
        advice: String,
    },
    /// The directory contains files of a data directory, but no marker.
    #[error(
        "data directory {}: the file LEASEHOLD is missing, and {found} is there; this is a part of a \
         directory, and a start refuses it. Bring the directory back whole from a copy made since its \
         replica last ran", path.display()
    )]
    Half {
        /// Path of the data directory.
        path: PathBuf,
        /// Name of one of these files.
        found: String,
    },
    /// Something stands in the place of a file.
    #[error(
        "data directory {}: {name} is {kind}, not a file; a start refuses this. Bring the directory back \
         whole from a copy made since its replica last ran", path.display()
    )]
    Kind {
        /// Path of the data directory.
        path: PathBuf,
        /// Path of the file within the directory.
        name: String,
        /// Kind of what was found, in words.
        kind: &'static str,
    },
    /// A replica uses the directory.
    #[error(
        "data directory {}: {holder} is using it; stop that node first, or inspect a copy that was made \
         while it was stopped", path.display()
    )]
    InUse {
        /// Path of the data directory.
        path: PathBuf,
        /// Process that uses the directory, in words.
        holder: String,
    },
    /// A replica has used the directory while this process read it.
    #[error(
        "data directory {}: a replica has started on it meanwhile, so this output may be wrong; stop the \
         replica, and repeat the command", path.display()
    )]
    Started {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The directory has another format.
    #[error(
        "data directory {}: its format version is {found}, this program reads {READABLE_FORMAT}; {advice}",
        path.display()
    )]
    OtherFormat {
        /// Path of the data directory.
        path: PathBuf,
        /// Format version of the directory.
        found: u32,
        /// Advice for operators.
        advice: &'static str,
    },
    /// A newer program wrote the marker, and the directory's format is not known.
    #[error(
        "data directory {}: its file LEASEHOLD has version {found}, this program reads versions up to \
         {known}; use the program that made the directory", path.display()
    )]
    NewerMarker {
        /// Path of the data directory.
        path: PathBuf,
        /// Version of the file.
        found: u8,
        /// Newest version that this program reads.
        known: u8,
    },
    /// The operating system refuses to read something.
    #[error("{}: {source}; run this command as the user of the node", path.display())]
    Unreadable {
        /// Path of the file or the directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// The data directory of a stopped replica.
pub struct StoppedDirectory {
    path: PathBuf,
    marker: Option<Marker>,
    state: Option<StateReader>,
    stamp: Option<FoundStamp>,
    problems: Vec<DirectoryProblem>,
}

/// Contents of a directory apart from its entries, rows and segments.
#[derive(Clone, Debug)]
pub struct DirectorySummary {
    /// Stamp of the directory; `None` if there is no stamp, or if the stamp cannot be read.
    pub stamp: Option<FoundStamp>,
    /// The marker file; `None` if it is damaged.
    pub marker: Option<MarkerSummary>,
    /// The executed state; `None` if it cannot be read.
    pub state: Option<StateSummary>,
    /// The log; `None` if the life of the directory is unknown, because the log then cannot be
    /// read.
    pub log: Option<LogScan>,
    /// All problems that were found.
    pub problems: Vec<DirectoryProblem>,
}

/// Executed state of a replica, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateSummary {
    /// Position up to which the logs are executed.
    pub position: Position,
    /// Number of keys.
    pub keys: u64,
    /// Number of sessions of clients.
    pub sessions: u64,
    /// Number of rows with the holders of listed keys.
    pub listed: u64,
}

impl StoppedDirectory {
    /// Opens a data directory for reading.
    ///
    /// # Errors
    /// Any [`InspectError`] except `Started`.
    pub fn open(path: &Path) -> Result<StoppedDirectory, InspectError> {
        place::check(path)?;
        place::check_kinds(path)?;
        place::check_unused(path)?;
        let mut problems = Vec::new();
        let marker = match Marker::read(path) {
            Ok(MarkerFile::Intact(marker)) => Some(marker),
            Ok(MarkerFile::Newer(version)) => return Err(newer(path, version)),
            Ok(MarkerFile::Missing) => return Err(place::half(path)),
            Err(error) => {
                problems.push(DirectoryProblem::of(path, error));
                None
            }
        };
        let mut directory = StoppedDirectory {
            path: path.to_owned(),
            marker,
            state: None,
            stamp: None,
            problems,
        };
        directory.open_state();
        directory.check_format()?;
        directory.check_stamp();
        Ok(directory)
    }

    /// Whether the creation of the directory was interrupted. If so, the next start creates the
    /// directory again.
    pub fn is_unfinished(&self) -> bool {
        let is_made = self.marker.as_ref().is_none_or(Marker::is_made);
        !is_made && self.stamp.is_none()
    }

    /// Returns the stamp of the directory; `None` if there is no stamp, or if the stamp cannot be
    /// read.
    pub fn stamp(&self) -> Option<&FoundStamp> {
        self.stamp.as_ref()
    }

    /// Returns the problems that were found so far.
    pub fn problems(&self) -> &[DirectoryProblem] {
        &self.problems
    }

    /// Reads the log, up to the first damage. Returns `None` if the life of the directory is
    /// unknown, because the log then cannot be read.
    pub fn scan(&self, visitor: &mut dyn LogVisitor) -> Option<LogScan> {
        Some(scan::first_damage(
            &self.path,
            self.life()?,
            self.marked(),
            visitor,
        ))
    }

    /// Returns the contents of the directory apart from entries and rows.
    pub fn summary(&self) -> DirectorySummary {
        let mut problems = self.problems.clone();
        let log = self.scan(&mut scan::Ignorant);
        problems.extend(log.iter().flat_map(|log| log.problems.clone()));
        let state = match &self.state {
            Some(state) => self.count(state, &mut problems),
            None => None,
        };
        DirectorySummary {
            stamp: self.stamp.clone(),
            marker: self.marker.as_ref().map(Marker::summary),
            state,
            log,
            problems,
        }
    }

    /// Checks that no replica has used the directory since it was opened.
    ///
    /// # Errors
    /// `InUse`, `Started`, `Unreadable`.
    pub fn check_still_stopped(&self) -> Result<(), InspectError> {
        place::check_unused(&self.path)?;
        match &self.marker {
            Some(marker) if !marker.is_unchanged() => Err(InspectError::Started {
                path: self.path.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Opens RocksDB, and reads the stamp.
    fn open_state(&mut self) {
        let is_made = self.marker.as_ref().is_none_or(Marker::is_made);
        if is_made && let Some(Err(error)) = self.marker.as_ref().map(Marker::check_manifest) {
            self.note(DirectoryProblem::of(&self.path, error));
        }
        if is_made && let Ok(found) = log_problems(&self.path) {
            found
                .into_iter()
                .for_each(|error| self.note(DirectoryProblem::of(&self.path, error)));
        }
        let read = StateReader::open(&self.path, self.marker.as_ref()).and_then(|state| {
            let state = self.state.insert(state);
            state.stamp()
        });
        match read {
            Ok(stamp) => self.stamp = stamp,
            // Files of RocksDB may be there in part.
            Err(_) if !is_made => {}
            Err(error) => self.note(DirectoryProblem::of(&self.path, error)),
        }
    }

    /// Adds a problem, unless another problem of the same file is already known.
    fn note(&mut self, problem: DirectoryProblem) {
        if !self.problems.iter().any(|known| known.file == problem.file) {
            self.problems.push(problem);
        }
    }

    fn check_format(&self) -> Result<(), InspectError> {
        let Some(found) = self.stamp.as_ref().map(|stamp| stamp.format) else {
            return Ok(());
        };
        if found == READABLE_FORMAT {
            return Ok(());
        }
        Err(InspectError::OtherFormat {
            path: self.path.clone(),
            found,
            advice: advice_for(found),
        })
    }

    /// Checks that the stamp exists, and that stamp and marker belong to the same directory.
    fn check_stamp(&mut self) {
        let Some(marker) = self.marker.as_ref().map(Marker::summary) else {
            return;
        };
        let problem = |file: &str, problem: &str| DirectoryProblem::refused(file, problem);
        match &self.stamp {
            Some(stamp) if stamp.life != marker.life => {
                self.note(problem("LEASEHOLD", "it is that of another directory"));
            }
            None if marker.is_made && self.state.is_some() => {
                self.note(problem("meta/identity", "it is missing"));
            }
            _ => {}
        }
    }

    /// Returns the life of the directory: a random number that enters the checksum of each group
    /// header of the log.
    fn life(&self) -> Option<u64> {
        let marked = self.marker.as_ref().map(|marker| marker.summary().life);
        marked.or_else(|| self.stamp.as_ref().map(|stamp| stamp.life))
    }

    /// Returns the parts of the log that must be present.
    fn marked(&self) -> leasehold_log::Marked {
        self.marker.as_ref().map(Marker::log).unwrap_or_default()
    }

    /// Counts the rows of the state.
    fn count(
        &self,
        state: &StateReader,
        problems: &mut Vec<DirectoryProblem>,
    ) -> Option<StateSummary> {
        let rows_if = |column, is_counted: &dyn Fn(&[u8]) -> bool| {
            let mut count = 0;
            let read = state.each_row(column, &mut |key, _| count += u64::from(is_counted(key)));
            read.map(|()| count)
        };
        let rows = |column| rows_if(column, &|_| true);
        let counted = state.position().and_then(|position| {
            Ok(StateSummary {
                position: position.unwrap_or_default(),
                keys: rows(Column::State)?,
                sessions: rows(Column::Sessions)?,
                listed: rows_if(Column::Meta, &|key| meta::parse_listed(key).is_some())?,
            })
        });
        match counted {
            Ok(summary) => Some(summary),
            Err(error) => {
                problems.push(DirectoryProblem::of(&self.path, error));
                None
            }
        }
    }
}

/// Returns the error for a directory with a marker that a newer program wrote.
fn newer(path: &Path, version: u8) -> InspectError {
    let state = StateReader::open(path, None);
    let stamp = state.and_then(|state| state.stamp());
    match stamp {
        Ok(Some(stamp)) if stamp.format != READABLE_FORMAT => InspectError::OtherFormat {
            path: path.to_owned(),
            found: stamp.format,
            advice: advice_for(stamp.format),
        },
        _ => InspectError::NewerMarker {
            path: path.to_owned(),
            found: version,
            known: super::rocks::marker::VERSION,
        },
    }
}

fn advice_for(format: u32) -> &'static str {
    if is_converted(format) {
        "start its node once with this program, which converts the directory"
    } else {
        "use the program that made the directory"
    }
}
