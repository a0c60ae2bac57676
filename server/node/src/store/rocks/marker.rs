//! The file `LEASEHOLD`. It marks a directory as a data directory. It records the random number
//! that identifies the directory's life, and how much data the directory must contain.
//!
//! RocksDB and the log detect a flipped bit wherever a checksum covers it. But they do not know
//! where their data should end. A group of the log with a damaged *length*, or a log that was cut
//! off, looks like a write that was torn by a crash. A torn write was never acknowledged and may be
//! forgotten. And a directory without the file `CURRENT` looks new to RocksDB. So after each sync,
//! and before any acknowledgement, the number of the log's last durable group is written into this
//! file. After each flush of the state, the last slots that the state covers and the length and the
//! checksum of RocksDB's manifest are written. A start that finds less data than that refuses the
//! directory. The marker never covers data that the log does not hold (hazard 89).
//!
//! # Damage that is detected, and damage that is not
//! The marker file is overwritten in place. The operating system writes it to disk within about
//! half a minute. In addition it is synced at every flush of the state. A sync of the marker after
//! each group of writes would double the cost of a write; an overwrite costs some microseconds.
//! - The process was killed, or ended: the marker is exact. Any later loss or change, in any file,
//!   is detected.
//! - The machine lost its power: the marker may be some moments old. A torn group at the end of the
//!   log is rightly forgotten. Damage after the last flush that *also* looks like a torn group is
//!   not detected, unless a group behind the damage shows that the damaged group was synced.
//! - Durability `async`: a loss of power may take acknowledged writes. If the marker had reached
//!   the disk, the directory is then refused; otherwise the loss is not detected. Durability
//!   `none`: the marker covers only the data that was synced.
//! - An older copy of the whole directory, put in its place between two runs, is not detected. A
//!   directory that is deleted, moved, replaced or unmounted during a run is detected at the next
//!   flush ([`Marker::check_place`]). A single file that is deleted during a run is not detected.
//! - A background flush after the last flush that was requested is not recorded in the marker.
//!   Damage to the manifest's last bytes is then detected only if RocksDB detects it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_leases::Slot;
use leasehold_log::{Marked, SegmentId};
use leasehold_replica::message::PerLog;

use super::super::log_files;
use super::StorageError;

/// Name of the marker file.
pub(in crate::store) const NAME: &str = "LEASEHOLD";
const CURRENT: &str = "CURRENT";
const MAGIC: [u8; 8] = *b"LHDATA\0\x02";
const BYTES: usize = 80;
/// Version of the marker file, which is the last byte of its magic number.
pub(in crate::store) const VERSION: u8 = MAGIC[7];
/// Magic number and length of a marker of an old format, in which the log had no files of its own.
const MAGIC_UNLOGGED: [u8; 8] = *b"LHDATA\0\x01";
const BYTES_UNLOGGED: usize = 56;
/// Maximum length, in bytes, of a marker file that a newer program wrote.
const BYTES_MAX: u64 = 4096;

/// Part of RocksDB's manifest that must be present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ManifestState {
    number: u64,
    bytes: u64,
    checksum: u32,
}

/// Contents of the marker file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MarkerContents {
    life: u64,
    /// Whether the creation of the directory was ever completed. If it was not completed, this
    /// replica has acknowledged nothing that is stored in the directory.
    made: bool,
    /// RocksDB's sequence number of the last durable write, in a directory of an older format;
    /// otherwise 0.
    sequence: u64,
    /// Last slot that the durable state covers, for each log.
    state: PerLog<Slot>,
    manifest: ManifestState,
    /// Parts of the log that must be present.
    log: Marked,
}

impl MarkerContents {
    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let fields = [
            &MAGIC[..],
            &u64::from(self.made).to_le_bytes(),
            &self.life.to_le_bytes(),
            &self.state.commands.0.to_le_bytes(),
            &self.state.configs.0.to_le_bytes(),
            &self.manifest.number.to_le_bytes(),
            &self.manifest.bytes.to_le_bytes(),
            &self.manifest.checksum.to_le_bytes(),
            &self.log.group.to_le_bytes(),
            &self.log.first.0.to_le_bytes(),
            &[0; 4],
        ]
        .concat();
        let (body, seal) = bytes.split_at_mut(BYTES - 4);
        body.copy_from_slice(&fields);
        seal.copy_from_slice(&crc32fast::hash(body).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<MarkerContents> {
        let (body, seal) = bytes.split_last_chunk::<4>()?;
        let long = |at: usize| {
            body.get(at..)?
                .first_chunk()
                .map(|it| u64::from_le_bytes(*it))
        };
        let short = |at: usize| {
            body.get(at..)?
                .first_chunk()
                .map(|it| u32::from_le_bytes(*it))
        };
        let is_intact = u32::from_le_bytes(*seal) == crc32fast::hash(body);
        let is_current = bytes.len() == BYTES && body.starts_with(&MAGIC);
        let is_older = bytes.len() == BYTES_UNLOGGED && body.starts_with(&MAGIC_UNLOGGED);
        if !is_intact || !(is_current || is_older) {
            return None;
        }
        // The current format has a number more before the manifest.
        let manifest = if is_current { 40 } else { 32 };
        let mut contents = MarkerContents {
            made: long(8)? != 0,
            life: long(16)?,
            sequence: 0,
            state: PerLog::default(),
            manifest: ManifestState {
                number: long(manifest)?,
                bytes: long(manifest + 8)?,
                checksum: short(manifest + 16)?,
            },
            log: Marked::default(),
        };
        if is_current {
            contents.state = [Slot(long(24)?), Slot(long(32)?)].into();
            contents.log = Marked {
                group: long(60)?,
                first: SegmentId(short(68)?),
            };
        } else {
            contents.sequence = long(24)?;
        }
        Some(contents)
    }
}

/// Summary of the marker file, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkerSummary {
    /// Random number that identifies the life of the directory.
    pub life: u64,
    /// Whether the creation of the directory was ever completed.
    pub is_made: bool,
    /// Last slots that the flushed state covers.
    pub state: PerLog<Slot>,
    /// Number and length in bytes of RocksDB's manifest at the last flush.
    pub manifest: (u64, u64),
    /// Number of the last group of the log that a start must find.
    pub last_group: u64,
    /// Oldest segment of the log that a start must find.
    pub first_segment: SegmentId,
}

/// The marker file of a directory, opened only for reading.
pub(in crate::store) enum MarkerFile {
    /// The file does not exist.
    Missing,
    /// A newer program wrote the file, with this version of its format.
    Newer(u8),
    /// The file is intact.
    Intact(Marker),
}

/// The open marker file.
#[derive(Debug)]
pub(in crate::store) struct Marker {
    directory: PathBuf,
    file: File,
    contents: Mutex<MarkerContents>,
}

/// State of a data directory according to its marker file, before RocksDB reads the directory.
pub(super) enum MarkerState {
    /// The directory has a marker file. The checks that do not need RocksDB have succeeded. The
    /// creation of the directory may be incomplete.
    Marked(Marker),
    /// The directory holds files of RocksDB or of the log, but no marker.
    Unmarked,
}

impl Marker {
    /// Opens the marker file, or creates it if the directory holds no data.
    pub(super) fn open(directory: &Path, life: u64) -> Result<MarkerState, StorageError> {
        let failed = |source| StorageError::Directory {
            path: directory.to_owned(),
            source,
        };
        let path = directory.join(NAME);
        match File::options().read(true).write(true).open(&path) {
            Ok(file) => Marker::of(directory, file).map(MarkerState::Marked),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            Err(_) if holds_data(directory).map_err(failed)? => Ok(MarkerState::Unmarked),
            Err(_) => {
                make(directory, life).map_err(failed)?;
                Marker::open(directory, life)
            }
        }
    }

    fn of(directory: &Path, file: File) -> Result<Marker, StorageError> {
        let marker = Marker::decode_file(directory, file)?;
        if marker.is_made() {
            marker.check_manifest()?;
        }
        Ok(marker)
    }

    /// Opens the marker file only for reading. Checks only the file itself.
    ///
    /// # Errors
    /// `Damaged`, `Directory`.
    pub(in crate::store) fn read(directory: &Path) -> Result<MarkerFile, StorageError> {
        let path = directory.join(NAME);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(MarkerFile::Missing);
            }
            Err(source) => return Err(StorageError::Directory { path, source }),
        };
        match newer_version(&file) {
            Some(version) => Ok(MarkerFile::Newer(version)),
            None => Marker::decode_file(directory, file).map(MarkerFile::Intact),
        }
    }

    fn decode_file(directory: &Path, file: File) -> Result<Marker, StorageError> {
        let problem = |problem: &str| damaged(directory, NAME, problem);
        let length = file.metadata().map_or(0, |data| data.len() as usize);
        let mut bytes = vec![0; length.min(BYTES)];
        let is_known = [BYTES, BYTES_UNLOGGED].contains(&length);
        if !is_known || file.read_exact_at(&mut bytes, 0).is_err() {
            return Err(problem("it has not the length it should have"));
        }
        let contents =
            MarkerContents::decode(&bytes).ok_or_else(|| problem("its checksum does not match"))?;
        Ok(Marker {
            directory: directory.to_owned(),
            file,
            contents: Mutex::new(contents),
        })
    }

    /// Returns a summary of the contents for operators.
    pub(in crate::store) fn summary(&self) -> MarkerSummary {
        let contents = self.contents();
        MarkerSummary {
            life: contents.life,
            is_made: contents.made,
            state: contents.state,
            manifest: (contents.manifest.number, contents.manifest.bytes),
            last_group: contents.log.group,
            first_segment: contents.log.first,
        }
    }

    /// Whether the file still has the contents that were read from it.
    pub(in crate::store) fn is_unchanged(&self) -> bool {
        let found = Marker::read(&self.directory);
        matches!(found, Ok(MarkerFile::Intact(found)) if *found.contents() == *self.contents())
    }

    /// Returns the random number that identifies the life of the directory.
    pub(super) fn life(&self) -> u64 {
        self.contents().life
    }

    /// Checks that the open marker file is still the file at its path. If the directory was
    /// deleted, moved, replaced or unmounted, the next start would not find the data that is
    /// written to the directory now.
    pub(super) fn check_place(&self) -> Result<(), StorageError> {
        use io::ErrorKind::{NotADirectory, NotFound};
        let path = self.directory.join(NAME);
        let identity = |found: &std::fs::Metadata| (found.dev(), found.ino());
        let looked = std::fs::metadata(&path).and_then(|found| Ok((found, self.file.metadata()?)));
        let problem = match looked {
            Ok((there, open)) if identity(&there) == identity(&open) => return Ok(()),
            Ok(_) => "was replaced by another, or the file system in which it is was unmounted",
            Err(error) if [NotFound, NotADirectory].contains(&error.kind()) => {
                "was deleted or moved, or the file system in which it is was unmounted"
            }
            Err(source) => return Err(StorageError::Directory { path, source }),
        };
        Err(StorageError::Gone {
            path: self.directory.clone(),
            problem,
        })
    }

    /// Whether the creation of the directory was ever completed.
    pub(in crate::store) fn is_made(&self) -> bool {
        self.contents().made
    }

    /// Checks that all durable writes are present. `found` is the sequence number of the last write
    /// that RocksDB has found.
    pub(in crate::store) fn check_sequence(&self, found: u64) -> Result<(), StorageError> {
        let last = self.contents().sequence;
        if found >= last {
            return Ok(());
        }
        let problem = format!(
            "it ends after write {found}, but the writes up to {last} were acknowledged: the end was \
             damaged or cut off"
        );
        Err(damaged(
            &self.directory,
            "the write-ahead log (the .log files)",
            &problem,
        ))
    }

    /// Whether the manifest has the same number and length as when it was last recorded.
    pub(super) fn knows_manifest(&self) -> bool {
        let known = self.contents().manifest;
        self.current_manifest() == Some(known.number)
            && std::fs::metadata(self.manifest_path(known.number))
                .is_ok_and(|found| found.len() == known.bytes)
    }

    /// Checks that the state is at least as new as the state that was flushed last. `found`
    /// contains, for each log, the last slot that the state covers.
    pub(in crate::store) fn check_state(&self, found: PerLog<Slot>) -> Result<(), StorageError> {
        let last = self.contents().state;
        if found.commands >= last.commands && found.configs >= last.configs {
            return Ok(());
        }
        let problem = format!(
            "it ends after slot {}, but the state up to slot {} was on the disk: files were lost or \
             replaced by older ones",
            found.commands.0, last.commands.0
        );
        Err(damaged(
            &self.directory,
            "the state (the .sst files)",
            &problem,
        ))
    }

    /// Notes in the marker file that the state up to these slots is durable, with this manifest.
    pub(super) fn advance_state(
        &self,
        state: PerLog<Slot>,
        manifest: ManifestState,
    ) -> io::Result<()> {
        let mut contents = self.contents();
        contents.manifest = manifest;
        contents.state = state;
        self.put(&contents)
    }

    /// Returns the parts of the log that must be present.
    pub(in crate::store) fn log(&self) -> Marked {
        self.contents().log
    }

    /// Notes in the marker file which parts of the log must be present.
    pub(super) fn advance_log(&self, log: Marked) -> io::Result<()> {
        let mut contents = self.contents();
        contents.log = log;
        self.put(&contents)
    }

    /// Notes in the marker file that the creation of the directory is complete.
    pub(super) fn set_made(&self) -> io::Result<()> {
        let mut contents = self.contents();
        contents.made = true;
        self.put(&contents)?;
        self.sync()
    }

    /// Syncs the marker file to disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Writes the contents of the file again, and syncs the file. If a sync of an earlier run has
    /// failed, the operating system may return contents that are not on the disk. Without the
    /// second write, a second sync would succeed, but would not write these contents (hazard 119).
    pub(super) fn sync_found(&self) -> io::Result<()> {
        self.put(&self.contents())?;
        self.sync()
    }

    /// Replaces the marker file by a new file, because the marker file may have the old format. In
    /// the old format, the log had no files of its own. The old file is not overwritten, because an
    /// overwrite could leave a file with the length of one format and the contents of the other.
    pub(super) fn convert(&mut self) -> io::Result<()> {
        let path = self.directory.join(NAME);
        let unready = write_unready(&self.directory, &self.contents())?;
        std::fs::rename(unready, &path)?;
        File::open(&self.directory)?.sync_all()?;
        self.file = File::options().read(true).write(true).open(path)?;
        Ok(())
    }

    fn contents(&self) -> MutexGuard<'_, MarkerContents> {
        let contents = self.contents.lock();
        contents.unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, contents: &MarkerContents) -> io::Result<()> {
        self.file.write_all_at(&contents.encode(), 0)
    }

    /// Returns the current state of the manifest. This is the recorded state if the manifest has
    /// not changed since that state was recorded.
    ///
    /// # Errors
    /// `Directory`.
    pub(super) fn find_manifest(&self) -> Result<ManifestState, StorageError> {
        let known = self.contents().manifest;
        let bytes = |number| std::fs::metadata(self.manifest_path(number)).map(|data| data.len());
        if known.number != 0 && bytes(known.number).is_ok_and(|bytes| bytes == known.bytes) {
            return Ok(known);
        }
        let Some(number) = self.current_manifest() else {
            return Ok(known);
        };
        let path = self.manifest_path(number);
        // RocksDB may not have synced yet the bytes that are read.
        let read = std::fs::read(&path).and_then(|contents| {
            File::open(&path)?.sync_data()?;
            Ok(contents)
        });
        let contents = read.map_err(|source| StorageError::Directory { path, source })?;
        Ok(ManifestState {
            number,
            bytes: contents.len() as u64,
            checksum: crc32fast::hash(&contents),
        })
    }

    fn manifest_path(&self, number: u64) -> PathBuf {
        self.directory.join(manifest_name(number))
    }

    fn current_manifest(&self) -> Option<u64> {
        let name = std::fs::read_to_string(self.directory.join(CURRENT)).ok()?;
        name.strip_prefix("MANIFEST-")?
            .strip_suffix('\n')?
            .parse()
            .ok()
    }

    /// Checks the manifest against its recorded state. A manifest with a higher number passes the
    /// check. Such a manifest comes from an interrupted start, and begins with all contents of the
    /// previous manifest.
    pub(in crate::store) fn check_manifest(&self) -> Result<(), StorageError> {
        let known = self.contents().manifest;
        let problem = |file: &str, problem: &str| Err(damaged(&self.directory, file, problem));
        let Some(number) = self.current_manifest() else {
            return problem(CURRENT, "it is missing, or names no manifest");
        };
        if number < known.number {
            return problem(CURRENT, "it names an older manifest than the last");
        }
        let name = manifest_name(number);
        let Ok(found) = std::fs::read(self.manifest_path(number)) else {
            return problem(&name, "it is missing, or CURRENT names another");
        };
        if number > known.number {
            return Ok(());
        }
        match found.get(..known.bytes as usize) {
            None => problem(&name, "its end is missing"),
            Some(prefix) if crc32fast::hash(prefix) != known.checksum => {
                problem(&name, "its checksum does not match")
            }
            Some(_) => Ok(()),
        }
    }
}

/// Returns the version of a marker file that a newer program wrote; `None` for any other file. Also
/// returns `None` for a damaged file: the checksum at its end does not match.
fn newer_version(file: &File) -> Option<u8> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let (body, seal) = bytes.split_last_chunk::<4>()?;
    let version = *body.strip_prefix(&MAGIC[..7])?.first()?;
    let is_intact = u32::from_le_bytes(*seal) == crc32fast::hash(body);
    (is_intact && version > VERSION).then_some(version)
}

/// Creates the marker file atomically, unless another process has created it.
fn make(directory: &Path, life: u64) -> io::Result<()> {
    let contents = MarkerContents {
        life,
        made: false,
        sequence: 0,
        state: PerLog::default(),
        manifest: ManifestState::default(),
        log: Marked::default(),
    };
    let unready = write_unready(directory, &contents)?;
    let linked = std::fs::hard_link(&unready, directory.join(NAME));
    std::fs::remove_file(&unready)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => File::open(directory)?.sync_all(),
    }
}

/// Writes and syncs a marker file under another name. Returns the path of this file.
fn write_unready(directory: &Path, contents: &MarkerContents) -> io::Result<PathBuf> {
    let unready = directory.join(format!("{NAME}.{}", std::process::id()));
    std::fs::write(&unready, contents.encode())?;
    File::open(&unready)?.sync_all()?;
    Ok(unready)
}

fn manifest_name(number: u64) -> String {
    format!("MANIFEST-{number:06}")
}

/// Whether the directory holds files of RocksDB or of the log.
pub(in crate::store) fn holds_data(directory: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let of_rocksdb = name.ends_with(".sst") || name.ends_with(".log");
        let is_named = [CURRENT, "IDENTITY", log_files::FOLDER].contains(&&*name);
        if of_rocksdb || is_named || name.starts_with("MANIFEST-") {
            return Ok(true);
        }
    }
    Ok(false)
}

fn damaged(directory: &Path, what: &str, problem: &str) -> StorageError {
    StorageError::Damaged {
        path: directory.to_owned(),
        what: what.to_owned(),
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Marks the creation of a directory as incomplete.
    pub(in super::super) fn unmake(marker: &Marker) {
        let mut contents = marker.contents();
        contents.made = false;
        marker.put(&contents).unwrap();
    }

    /// Converts a marker to the old format, in which the log had no files of its own.
    pub(in super::super) fn forget_log(directory: &Path) {
        let path = directory.join(NAME);
        let bytes = std::fs::read(&path).unwrap();
        let mut older = MAGIC_UNLOGGED.to_vec();
        older.extend(&bytes[8..24]);
        older.extend(1u64.to_le_bytes()); // sequence number of the last write
        older.extend(&bytes[40..60]); // the manifest
        older.extend(crc32fast::hash(&older).to_le_bytes());
        std::fs::write(&path, older).unwrap();
    }
}
