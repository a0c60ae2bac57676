//! Checks everything in a data directory.

use std::{fs, io};

use bytes::Bytes;
use leasehold_leases::config::{check_frames, check_versions};
use leasehold_leases::{ConfigId, Slot};
use leasehold_log::{FoundRecord, LogRecord, LogWriter, SegmentId, TornWrite};
use leasehold_replica::codec::{self, Position};
use leasehold_replica::message::{LogId, PerLog};
use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::super::StorageError;
use super::super::log_files::{self, FOLDER};
use super::super::rocks::marker::Marker;
use super::super::rocks::read::{newest_differs, newest_of};
use super::super::rocks::read_only::{StateReader, is_read_at_start};
use super::super::rocks::records::{Column, meta};
use super::scan::{self, LogScan, LogVisitor};
use super::{DirectoryProblem, StartEffect, StoppedDirectory};

/// Result of a check of a whole directory.
#[derive(Clone, Debug, Default)]
pub struct DirectoryVerdict {
    /// All problems that were found. If there are none, a start would succeed.
    pub problems: Vec<DirectoryProblem>,
    /// Torn writes. A torn write is not an error, and a start forgets it.
    pub torn: Vec<TornWrite>,
    /// Counts of the checked parts.
    pub checked: CheckedParts,
}

/// Counts of the checked parts of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckedParts {
    /// Number of segments.
    pub segments: u64,
    /// Number of groups.
    pub groups: u64,
    /// Number of records, including the records in heads.
    pub records: u64,
    /// Number of records that are entries.
    pub entries: u64,
    /// Number of RocksDB's table files.
    pub tables: u64,
    /// Number of RocksDB's rows.
    pub rows: u64,
}

/// An entry that cannot be read.
struct BadEntry {
    log: LogId,
    slot: Slot,
    segment: SegmentId,
    offset: usize,
    problem: String,
}

/// Check of the rows that contain the checkpoint of configurations.
#[derive(Default)]
struct CheckpointCheck {
    /// Number of members; `None` if the stamp cannot be read.
    n: Option<usize>,
    /// Newest configuration; `None` if its row cannot be read. This row comes before the rows of
    /// listed keys.
    newest: Option<ConfigId>,
}

impl CheckpointCheck {
    /// Checks a row of the column family `meta`.
    ///
    /// # Errors
    /// Returns the problem with the row.
    fn row(&mut self, key: &[u8], value: &Bytes) -> Result<(), String> {
        if key == meta::FRAMES {
            let found = codec::decode_frames(value.clone()).map_err(|it| it.to_string())?;
            self.newest = Some(newest_of(Some(&found)));
            let checked = self.n.map(|n| check_frames(n, &found.frames));
            return checked.unwrap_or(Ok(())).map_err(|it| it.to_string());
        }
        if meta::parse_listed(key).is_some() {
            let versions = codec::decode_listed(value.clone()).map_err(|it| it.to_string())?;
            // Without this bound, a single bad row would make all others look bad.
            let newest = self.newest.unwrap_or(ConfigId(u64::MAX));
            let checked = self.n.map(|n| check_versions(n, newest, &versions));
            return checked.unwrap_or(Ok(())).map_err(|it| it.to_string());
        }
        Ok(())
    }
}

/// Visitor that checks each record.
#[derive(Default)]
struct RecordCheck {
    checked: CheckedParts,
    /// Number of the group of the last record.
    group: Option<u64>,
    bad_entries: Vec<BadEntry>,
    problems: Vec<DirectoryProblem>,
}

impl LogVisitor for RecordCheck {
    fn record(&mut self, found: &FoundRecord<'_>) {
        self.checked.records += 1;
        if self.group.replace(found.group.number) != Some(found.group.number) {
            self.checked.groups += 1;
        }
        match found.record {
            LogRecord::Entry { log, slot, .. } => self.entry(found, log, slot),
            LogRecord::Erased { .. } | LogRecord::Fact(_) => {
                if !found.is_intact() {
                    let problem = "the record's own checksum does not match".to_owned();
                    let (segment, offset) = (found.segment, found.offset);
                    self.problems
                        .push(of_record(segment, offset, problem, StartEffect::Unread));
                }
            }
        }
    }
}

impl RecordCheck {
    fn entry(&mut self, found: &FoundRecord<'_>, log: LogId, slot: Slot) {
        self.checked.entries += 1;
        if let Err(problem) = found.entry(log, slot) {
            self.bad_entries.push(BadEntry {
                log,
                slot,
                segment: found.segment,
                offset: found.offset,
                problem: problem.to_string(),
            });
        }
    }
}

impl BadEntry {
    /// Returns the problem with this entry. The effect of the problem depends on `covered`, because
    /// a start reads only the entries that the state does not cover.
    fn problem(self, covered: PerLog<Slot>) -> DirectoryProblem {
        let effect = if self.slot > covered[self.log] {
            StartEffect::Refused
        } else {
            StartEffect::EndsLater
        };
        let problem = format!("the entry of slot {}: {}", self.slot.0, self.problem);
        of_record(self.segment, self.offset, problem, effect)
    }
}

impl StoppedDirectory {
    /// Checks everything in the directory.
    pub fn verify(&self) -> DirectoryVerdict {
        let mut verdict = DirectoryVerdict::default();
        let known = self.problems.clone();
        known.into_iter().for_each(|it| verdict.note(it));
        self.check_writable(&mut verdict);
        if self.is_unfinished() {
            return verdict;
        }
        let position = match &self.state {
            Some(state) => self.check_state(state, &mut verdict),
            None => None,
        };
        if let Some(life) = self.life() {
            self.check_log(life, position, &mut verdict);
        }
        verdict
    }

    /// Checks that the directory and the folder of the log can be written to.
    fn check_writable(&self, verdict: &mut DirectoryVerdict) {
        for name in ["", FOLDER] {
            let problem = match access(self.path.join(name), Access::WRITE_OK) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(error) => io::Error::from(error),
            };
            let file = if name.is_empty() { "directory" } else { name };
            let problem = format!("it cannot be written to: {problem}");
            verdict.note(DirectoryProblem {
                effect: StartEffect::Unwritable,
                ..DirectoryProblem::refused(file, &problem)
            });
        }
    }

    /// Checks the rows and the tables of RocksDB. Returns the position of the state.
    fn check_state(&self, state: &StateReader, verdict: &mut DirectoryVerdict) -> Option<Position> {
        self.check_tables(state, verdict);
        let mut checkpoint = CheckpointCheck {
            n: self
                .stamp()
                .map(|found| found.stamp.members.len())
                .filter(|n| (1..=64).contains(n)),
            ..CheckpointCheck::default()
        };
        for column in Column::ALL {
            let read = state.each_row(column, &mut |key, value| {
                verdict.checked.rows += 1;
                if let (Column::Meta, Ok(value)) = (column, &value)
                    && let Err(problem) = checkpoint.row(key, value)
                {
                    let error = state.damaged(column, key, problem);
                    verdict.note(DirectoryProblem::of(&self.path, error));
                }
                if let Some(problem) = self.row_problem(state, column, key, value) {
                    verdict.note(problem);
                }
            });
            if let Err(error) = read {
                verdict.note(DirectoryProblem::of(&self.path, error));
            }
        }
        let position = match state.position() {
            Ok(position) => position.unwrap_or_default(),
            Err(error) => {
                verdict.note(DirectoryProblem::of(&self.path, error));
                return None;
            }
        };
        let newest = checkpoint.newest.unwrap_or_default();
        if newest != position.config {
            let problem = newest_differs(newest, position.config);
            verdict.note(DirectoryProblem::refused("meta/frames", &problem));
        }
        let marker = self.marker.as_ref();
        let compared = marker.map(|marker: &Marker| marker.check_state(slots(&position)));
        if let Some(Err(error)) = compared {
            verdict.note(DirectoryProblem::of(&self.path, error));
        }
        Some(position)
    }

    /// Compares the lengths of the tables with the lengths in RocksDB's manifest.
    fn check_tables(&self, state: &StateReader, verdict: &mut DirectoryVerdict) {
        let tables = match state.tables() {
            Ok(tables) => tables,
            Err(error) => return verdict.note(DirectoryProblem::of(&self.path, error)),
        };
        for (name, bytes) in tables {
            verdict.checked.tables += 1;
            let problem = match fs::metadata(self.path.join(&name)) {
                Ok(found) if found.len() == bytes => continue,
                Ok(found) => format!("it has {} bytes, and had {bytes}", found.len()),
                Err(error) => error.to_string(),
            };
            verdict.note(DirectoryProblem::refused(&name, &problem));
        }
    }

    fn row_problem(
        &self,
        state: &StateReader,
        column: Column,
        key: &[u8],
        value: Result<Bytes, StorageError>,
    ) -> Option<DirectoryProblem> {
        let (error, effect) = match value {
            Err(error) if is_read_at_start(column, key) => (error, StartEffect::Refused),
            Err(error) => (error, StartEffect::Unread),
            Ok(value) => {
                let (problem, effect) = undecodable(column, key, value)?;
                (state.damaged(column, key, problem), effect)
            }
        };
        Some(DirectoryProblem {
            effect,
            ..DirectoryProblem::of(&self.path, error)
        })
    }

    /// Checks the log, and compares it with the state.
    fn check_log(&self, life: u64, position: Option<Position>, verdict: &mut DirectoryVerdict) {
        let mut check = RecordCheck::default();
        let LogScan {
            segments,
            problems,
            places,
            ..
        } = scan::all_damage(&self.path, life, self.marked(), &mut check);
        verdict.checked = CheckedParts {
            segments: segments.len() as u64,
            tables: verdict.checked.tables,
            rows: verdict.checked.rows,
            ..check.checked
        };
        let covered = position.as_ref().map(slots).unwrap_or_default();
        let bad_entries = check.bad_entries.into_iter();
        verdict.torn = segments.iter().filter_map(|it| it.torn).collect();
        verdict.problems.extend(problems);
        verdict.problems.extend(check.problems);
        verdict
            .problems
            .extend(bad_entries.map(|entry| entry.problem(covered)));
        if let (Some(position), Some(places)) = (position, places) {
            let is_whole = self.marked().first == SegmentId(1);
            let misfits = slots(&position).each().into_iter();
            let misfits = misfits.flat_map(|(log, last)| {
                let lost = lost(&places, log, last);
                let misfit = misfit(&places, log, last).filter(|_| is_whole);
                misfit.into_iter().chain(lost)
            });
            verdict.problems.extend(misfits);
        }
    }
}

impl DirectoryVerdict {
    /// Adds a problem, unless another problem of the same file or row is already known.
    fn note(&mut self, problem: DirectoryProblem) {
        if !self.problems.iter().any(|known| known.file == problem.file) {
            self.problems.push(problem);
        }
    }
}

/// Checks the contents of a RocksDB row that has a correct checksum. Returns the problem; `None` if
/// there is none.
fn undecodable(column: Column, key: &[u8], value: Bytes) -> Option<(String, StartEffect)> {
    let refused = |problem: String| Some((problem, StartEffect::Refused));
    match column {
        Column::State => match codec::decode_stored(value) {
            Ok((_, false)) => None,
            Ok((_, true)) => {
                let problem = "its value is missing: the row is one of an older format";
                Some((problem.to_owned(), StartEffect::Unnoticed))
            }
            Err(error) => refused(error.to_string()),
        },
        Column::Sessions if key.len() != 8 => refused("its key is no number of 8 bytes".to_owned()),
        Column::Sessions => match codec::decode_session(value) {
            Ok(_) => None,
            Err(error) => refused(error.to_string()),
        },
        // The other rows that count are read by name.
        Column::Meta | Column::Log | Column::Configs | Column::Staged => None,
    }
}

/// Returns a problem if the log lacks committed slots that the state does not cover. A start would
/// have to execute these slots.
fn lost(places: &LogWriter, log: LogId, executed: Slot) -> Option<DirectoryProblem> {
    let committed = places.facts().committed[log];
    let mut missing = executed.next();
    for (slot, _) in places.entries(log, missing) {
        if slot != missing {
            break;
        }
        missing = slot.next();
    }
    (missing <= committed).then(|| {
        let name = name(log);
        let problem = format!(
            "slot {} of the {name} is neither in the log nor in the state, and slots up to {} were \
             committed",
            missing.0, committed.0
        );
        DirectoryProblem::refused(FOLDER, &problem)
    })
}

/// Returns a problem if the log lacks some of the executed slots. Other replicas may still fetch
/// these slots. The caller must ignore the result for a truncated log, because such a log may lack
/// slots that all members have flushed.
fn misfit(places: &LogWriter, log: LogId, executed: Slot) -> Option<DirectoryProblem> {
    let mut next = Slot(1);
    let mut missing = (0, None);
    let mut skip = |from: Slot, to: Slot| {
        if from < to {
            missing = (missing.0 + (to.0 - from.0), missing.1.or(Some(from)));
        }
    };
    let entries = places.entries(log, Slot(1)).map(|(slot, _)| slot);
    for slot in entries.take_while(|slot| *slot <= executed) {
        skip(next, slot);
        next = slot.next();
    }
    skip(next, executed.next());
    let (count, Some(first)) = missing else {
        return None;
    };
    let name = name(log);
    let problem = if count == executed.next().0 - first.0 {
        format!(
            "the state is newer than the log of {name}: it covers slot {}, and the log ends before slot {}",
            executed.0, first.0
        )
    } else {
        format!(
            "the log of {name} has holes: {count} of the executed slots are missing, the first is {}",
            first.0
        )
    };
    Some(DirectoryProblem {
        effect: StartEffect::Unnoticed,
        ..DirectoryProblem::refused(FOLDER, &problem)
    })
}

fn name(log: LogId) -> &'static str {
    match log {
        LogId::Commands => "commands",
        LogId::Configs => "configurations",
    }
}

fn slots(position: &Position) -> PerLog<Slot> {
    PerLog {
        commands: position.executed,
        configs: Slot(position.config.0),
    }
}

fn of_record(
    segment: SegmentId,
    offset: usize,
    problem: String,
    effect: StartEffect,
) -> DirectoryProblem {
    DirectoryProblem {
        file: log_files::name_of(segment),
        byte: Some(offset),
        problem,
        effect,
    }
}
