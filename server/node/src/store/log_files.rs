//! The files of the log: the folder `log` of a data directory, with a file for each segment.
//!
//! `leasehold-log` decides about the bytes; this module makes, writes, syncs and reads the files.
//! Segments are filled with zeros by another thread before their first use. A file that was made or
//! renamed is used only after the file and its folder were synced.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use leasehold_leases::{Ballot, Incarnation, Slot};
use leasehold_log::{
    EntryProblem, LogDamage, LogRecovery, LogWriter, Marked, RecordPlace, SegmentBytes, SegmentId,
};
use leasehold_replica::action::Record;
use leasehold_replica::message::{LogId, PerLog, Value};
use rustix::io::Errno;

use super::StorageError;
use super::spare::{self, SpareMaker};

/// Name of the folder with the segments.
pub(super) const FOLDER: &str = "log";
/// Ending of the names of segments.
const ENDING: &str = ".seg";
/// Maximum size of one read from a segment, in bytes. An entry that is longer is read alone, in one
/// longer read.
const READ_BYTES: usize = 1 << 20;
/// Maximum length of a segment in bytes.
const SEGMENT_BYTES_MAX: usize = 64 << 20;
/// Maximum length, in bytes, of a write buffer that is kept for the next write. If groups wait in
/// memory, they are written when their total length reaches this maximum.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// The log of a data directory, open for writing.
pub(super) struct LogFiles {
    /// Path of the data directory.
    directory: PathBuf,
    folder: PathBuf,
    log: LogWriter,
    /// The last segment; `None` before the first write of this run.
    current: Option<File>,
    spare: SpareMaker,
    /// Segments that are open for reads. A read keeps its segments open until it has ended.
    readers: BTreeMap<SegmentId, Weak<File>>,
    /// Whether the last attempt to open a segment for a read has found no descriptor.
    lacks_descriptors: bool,
    /// Length in bytes of the first segment of a run.
    segment_bytes: usize,
    /// Buffer of the last write. The next write reuses its memory.
    buffer: Vec<u8>,
    pending: PendingGroups,
}

/// Groups that are treated as written, but are not in the last segment yet.
#[derive(Default)]
struct PendingGroups {
    /// Whether groups may be kept here, up to about 1 MiB.
    is_allowed: bool,
    /// Offset, in bytes, of these groups in the last segment.
    offset: usize,
    bytes: Vec<u8>,
}

impl PendingGroups {
    fn add(&mut self, offset: usize, bytes: &[u8]) {
        if self.bytes.is_empty() {
            self.offset = offset;
        }
        self.bytes.extend(bytes);
    }

    /// Returns the bytes at this offset of the last segment, if they are in these groups.
    fn get(&self, offset: usize, bytes: usize) -> Option<&[u8]> {
        let start = offset.checked_sub(self.offset)?;
        self.bytes.get(start..start + bytes)
    }
}

impl LogFiles {
    /// Opens the log, or creates it if there is none. Nothing is written until
    /// [`LogFiles::begin_run`].
    ///
    /// # Errors
    /// `Damaged`, `Directory`.
    pub(super) fn open(
        directory: &Path,
        life: u64,
        marked: Marked,
        segment_bytes: usize,
    ) -> Result<LogFiles, StorageError> {
        let folder = directory.join(FOLDER);
        let failed = |source| StorageError::Directory {
            path: folder.clone(),
            source,
        };
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            Err(_) if !folder.is_dir() => {
                return Err(not_usable(
                    directory,
                    FOLDER.to_owned(),
                    "it is not a directory",
                ));
            }
            _ => {}
        }
        let mut recovery = LogRecovery::new(life);
        let mut bytes = Vec::new();
        let found = segments(&folder).map_err(failed)?;
        // A loss of power may have brought back segments that an earlier run had removed.
        let (removed, needed): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|it| *it < marked.first);
        for segment in needed {
            read_segment(directory, segment, &mut bytes)?;
            let read = recovery.segment(segment, &bytes);
            read.map_err(|damage| damaged(directory, &damage))?;
        }
        let bytes = SegmentBytes {
            first: segment_bytes,
            max: SEGMENT_BYTES_MAX,
        };
        let log = recovery.finish(marked, bytes);
        let log = log.map_err(|damage| damaged(directory, &damage))?;
        for segment in removed {
            fs::remove_file(path_of(&folder, segment)).map_err(failed)?;
        }
        sync_found(&log, &folder).map_err(failed)?;
        sync_folder(directory).map_err(failed)?;
        let spare = SpareMaker::start(&folder).map_err(|source| StorageError::Directory {
            path: folder.join(spare::NAME),
            source,
        })?;
        Ok(LogFiles {
            directory: directory.to_owned(),
            folder,
            log,
            current: None,
            spare,
            readers: BTreeMap::new(),
            lacks_descriptors: false,
            segment_bytes,
            buffer: Vec::new(),
            pending: PendingGroups::default(),
        })
    }

    /// Lets the log keep groups in memory for a while if they are written without a sync. A crash
    /// of the process loses these groups.
    pub(super) fn keep_in_memory(&mut self) {
        self.pending.is_allowed = true;
    }

    /// Removes all segments, so that a new log can be created.
    pub(super) fn remove(directory: &Path) -> Result<(), StorageError> {
        let folder = directory.join(FOLDER);
        match fs::remove_dir_all(&folder) {
            Err(source) if source.kind() != ErrorKind::NotFound => Err(StorageError::Directory {
                path: folder,
                source,
            }),
            _ => Ok(()),
        }
    }

    /// Begins a segment with a new incarnation, and syncs the segment. The new incarnation is
    /// higher than `other` and higher than the incarnations of all earlier runs.
    ///
    /// # Errors
    /// `Full`, `Engine`.
    pub(super) fn begin_run(&mut self, other: Incarnation) -> Result<Incarnation, StorageError> {
        let write = self.log.plan_incarnation(other);
        self.perform(write, true)?;
        Ok(self.log.facts().incarnation)
    }

    /// Writes records as one group, and syncs them if `sync` is true.
    ///
    /// # Errors
    /// `Full`: the write has no effect, and the call may be repeated. Any other error is final,
    /// because after a failed sync the contents of the disk are unknown (hazard 119).
    pub(super) fn write(&mut self, records: &[Record], sync: bool) -> Result<(), StorageError> {
        if self.pending.bytes.len() >= BUFFER_BYTES_MAX {
            self.write_pending()?;
        }
        let buffer = std::mem::take(&mut self.buffer);
        match self.log.plan(records, buffer) {
            Some(write) => self.perform(write, sync),
            None => Ok(()),
        }
    }

    fn perform(&mut self, write: leasehold_log::LogWrite, sync: bool) -> Result<(), StorageError> {
        if let Some(bytes) = write.begins {
            self.begin_segment(write.segment, bytes)?;
        }
        if self.pending.is_allowed && !sync {
            self.pending.add(write.offset, &write.bytes);
        } else {
            self.write_pending()?;
            self.write_at(&write.bytes, write.offset)?;
        }
        if sync {
            self.sync_current()?;
        }
        let mut buffer = self.log.complete(write, sync);
        buffer.clear();
        buffer.shrink_to(BUFFER_BYTES_MAX);
        self.buffer = buffer;
        if self.log.left_bytes() < self.log.next_segment_bytes() / 4 {
            self.spare.prepare(self.log.next_segment_bytes());
        }
        Ok(())
    }

    /// Writes the groups that are only in memory.
    ///
    /// # Errors
    /// The same errors as [`LogFiles::write`].
    pub(super) fn write_pending(&mut self) -> Result<(), StorageError> {
        if !self.pending.bytes.is_empty() {
            self.write_at(&self.pending.bytes, self.pending.offset)?;
            self.pending.bytes.clear();
            self.pending.bytes.shrink_to(BUFFER_BYTES_MAX);
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: usize) -> Result<(), StorageError> {
        let file = self.current.as_ref().expect("a segment was begun");
        let written = file.write_all_at(bytes, offset as u64);
        written.map_err(|error| self.unwritten(error))
    }

    /// Syncs the current segment if needed, and then makes the next one.
    fn begin_segment(&mut self, segment: SegmentId, bytes: usize) -> Result<(), StorageError> {
        self.sync_written()?;
        let made = self.spare.take(bytes, &path_of(&self.folder, segment));
        // A disk that has no space for a long segment may have some for a short one.
        let max = if made.is_ok() {
            SEGMENT_BYTES_MAX
        } else {
            self.segment_bytes
        };
        self.log.set_segment_bytes_max(max);
        self.current = Some(made.map_err(|error| self.unwritten(error))?);
        Ok(())
    }

    /// Forgets entries up to these slots. Returns the segments that the log no longer needs, with
    /// their lengths in bytes. The files of these segments still exist.
    ///
    /// # Errors
    /// As [`LogFiles::write`].
    pub(super) fn truncate(
        &mut self,
        slots: PerLog<Slot>,
    ) -> Result<Vec<(SegmentId, usize)>, StorageError> {
        if !self.log.can_truncate(slots) {
            return Ok(Vec::new());
        }
        self.sync_written()?;
        Ok(self.log.truncate(slots))
    }

    /// Removes the files of segments that the log no longer needs. One file may become the spare
    /// file instead, if no read has this file open. Another thread removes the other files.
    pub(super) fn remove_segments(&mut self, unused: Vec<(SegmentId, usize)>) {
        for (segment, bytes) in unused {
            let path = path_of(&self.folder, segment);
            let reader = self.readers.remove(&segment);
            let is_read = reader.is_some_and(|file| file.strong_count() > 0);
            let fits = bytes == self.log.next_segment_bytes() && self.spare.has_room();
            let is_reused = fits && !is_read;
            if !is_reused || self.spare.offer(&path, bytes).is_err() {
                self.spare.remove_later(path);
            }
        }
    }

    /// Syncs everything that was written.
    ///
    /// # Errors
    /// The same errors as [`LogFiles::write`].
    pub(super) fn sync(&mut self) -> Result<(), StorageError> {
        self.write_pending()?;
        self.sync_current()?;
        self.log.sync();
        Ok(())
    }

    /// Syncs everything that was written. Does nothing if everything was synced already.
    ///
    /// # Errors
    /// The same errors as [`LogFiles::write`].
    pub(super) fn sync_written(&mut self) -> Result<(), StorageError> {
        if self.log.synced() < self.log.written() {
            self.sync()?;
        }
        Ok(())
    }

    /// Makes the log write to this file instead of the segment in use.
    #[cfg(test)]
    pub(super) fn replace_segment(&mut self, file: File) {
        self.current = Some(file);
    }

    fn sync_current(&self) -> Result<(), StorageError> {
        let Some(file) = &self.current else {
            return Ok(());
        };
        file.sync_data().map_err(|source| StorageError::Engine {
            path: self.directory.clone(),
            doing: "syncing the log",
            source: source.into(),
        })
    }

    fn unwritten(&self, source: io::Error) -> StorageError {
        if is_full(&source) {
            let path = self.directory.clone();
            return StorageError::Full { path };
        }
        StorageError::Engine {
            path: self.directory.clone(),
            doing: "writing the log",
            source: source.into(),
        }
    }

    /// Checks that the segment in use is still the file at its path. If this file was deleted or
    /// replaced, the next start would not find the data that is written to the segment.
    ///
    /// # Errors
    /// `Gone`, `Directory`.
    pub(super) fn check_place(&self) -> Result<(), StorageError> {
        let (Some(file), Some((segment, _))) = (&self.current, self.log.segments().next_back())
        else {
            return Ok(());
        };
        let path = path_of(&self.folder, segment);
        let identity = |found: &fs::Metadata| (found.dev(), found.ino());
        let found = fs::metadata(&path).and_then(|there| Ok((there, file.metadata()?)));
        match found {
            Ok((there, open)) if identity(&there) == identity(&open) => Ok(()),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(StorageError::Directory {
                path,
                source: error,
            }),
            _ => Err(StorageError::Gone {
                path,
                problem: "was deleted, moved or replaced",
            }),
        }
    }

    /// Returns the state of the log: the numbers of its groups, and all records except the entries.
    pub(super) fn log(&self) -> &LogWriter {
        &self.log
    }

    /// Returns the parts of the log that the next start must find. If `is_synced` is true, the
    /// result includes only synced groups.
    pub(super) fn marked(&self, is_synced: bool) -> Marked {
        let first = self.log.segments().next();
        let group = if is_synced {
            self.log.synced()
        } else {
            self.log.written()
        };
        Marked {
            group,
            first: first.map_or(SegmentId::default(), |(id, _)| id),
        }
    }

    /// Visits the entries of a log from slot `from` on, in ascending order, until the visitor
    /// returns false. The visitor also gets the length of each entry in bytes.
    ///
    /// # Errors
    /// `Damaged`, `Directory`.
    pub(super) fn each(
        &self,
        log: LogId,
        from: Slot,
        mut visit: impl FnMut(Slot, Ballot, Value, usize) -> bool,
    ) -> Result<(), StorageError> {
        let mut chunk = Chunk::default();
        let mut entries = self.log.entries(log, from).peekable();
        while let Some((slot, place)) = entries.next() {
            let following = entries.clone().map(|(_, place)| place);
            let bytes = self.entry_bytes(&mut chunk, place, following)?;
            let decoded = leasehold_log::decode_entry(&bytes, place.segment, log, slot);
            let (ballot, value) =
                decoded.map_err(|problem| damaged_entry(&self.directory, place, slot, &problem))?;
            if !visit(slot, ballot, value, bytes.len()) {
                break;
            }
        }
        Ok(())
    }

    /// Prepares a read of the entries of a log from slot `from` to slot `last`. The read ends early
    /// if further entries do not fit into `bytes_max`, but it returns at least one entry. The read
    /// also ends at a gap, because the requester would request the slots of the gap again. If the
    /// process has too many open files, the read ends early, or returns no entry.
    ///
    /// # Errors
    /// `Directory`.
    pub(super) fn prepare_read(
        &mut self,
        log: LogId,
        from: Slot,
        last: Slot,
        bytes_max: usize,
    ) -> Result<EntryRead, StorageError> {
        let mut places = Vec::new();
        let mut total = 0;
        for (slot, place) in self.log.entries(log, from) {
            total += place.bytes as usize;
            let is_next = slot.0 == from.0 + places.len() as u64;
            if slot > last || !is_next || (total > bytes_max && !places.is_empty()) {
                break;
            }
            places.push((slot, place));
        }
        let mut entries = Vec::with_capacity(places.len());
        for (slot, place) in places {
            let source = match self.pending_bytes(place) {
                Some(bytes) => EntrySource::Memory(Bytes::copy_from_slice(bytes)),
                None => match self.reader(place.segment) {
                    Ok(file) => EntrySource::File(file),
                    Err(error) if lacks_descriptors(&error) => {
                        // The requester asks again.
                        if !std::mem::replace(&mut self.lacks_descriptors, true) {
                            let path = path_of(&self.folder, place.segment);
                            tracing::warn!("{} cannot be read now: {error}", path.display());
                        }
                        break;
                    }
                    Err(source) => {
                        let path = path_of(&self.folder, place.segment);
                        return Err(StorageError::Directory { path, source });
                    }
                },
            };
            entries.push((slot, place, source));
        }
        let directory = self.directory.clone();
        Ok(EntryRead {
            directory,
            log,
            entries,
        })
    }

    /// Returns a segment, open for reads.
    fn reader(&mut self, segment: SegmentId) -> io::Result<Arc<File>> {
        let open = self.readers.get(&segment).and_then(Weak::upgrade);
        if let Some(file) = open {
            return Ok(file);
        }
        self.readers.retain(|_, file| file.strong_count() > 0);
        let file = Arc::new(File::open(path_of(&self.folder, segment))?);
        self.lacks_descriptors = false;
        self.readers.insert(segment, Arc::downgrade(&file));
        Ok(file)
    }

    /// Returns the bytes of the entry at a place in a segment. If neither memory nor `chunk` holds
    /// the entry, reads the entry and some of the `following` entries from the file into `chunk`.
    fn entry_bytes(
        &self,
        chunk: &mut Chunk,
        place: RecordPlace,
        following: impl Iterator<Item = RecordPlace>,
    ) -> Result<Bytes, StorageError> {
        if let Some(bytes) = self.pending_bytes(place) {
            return Ok(Bytes::copy_from_slice(bytes));
        }
        if !chunk.holds(place) {
            let written = following.take_while(|it| self.pending_bytes(*it).is_none());
            let end = chunk_end(place, written);
            let path = path_of(&self.folder, place.segment);
            let read = File::open(&path).and_then(|file| chunk.read(&file, place, end));
            read.map_err(|source| StorageError::Directory { path, source })?;
        }
        Ok(Bytes::copy_from_slice(chunk.bytes(place)))
    }

    /// Returns the bytes of a record that is not written to its place in a segment yet. Returns
    /// `None` if the record is written.
    fn pending_bytes(&self, place: RecordPlace) -> Option<&[u8]> {
        let (last, _) = self.log.segments().next_back()?;
        let is_pending = !self.pending.bytes.is_empty() && place.segment == last;
        is_pending.then_some(())?;
        self.pending
            .get(place.offset as usize, place.bytes as usize)
    }
}

/// Prepared read of entries. A thread other than the writer can perform the read, so that the
/// writer need not wait for the disk. Until the read has ended, its segments stay open and are not
/// reused for new entries (hazard 114).
pub(super) struct EntryRead {
    directory: PathBuf,
    log: LogId,
    /// Entries in ascending order of slot.
    entries: Vec<(Slot, RecordPlace, EntrySource)>,
}

/// Place from which an entry is read.
enum EntrySource {
    /// The bytes of an entry that is not written to its segment yet.
    Memory(Bytes),
    /// The segment.
    File(Arc<File>),
}

impl EntryRead {
    /// Reads the entries.
    ///
    /// # Errors
    /// `Damaged`, `Directory`.
    pub(super) fn perform(self) -> Result<Vec<(Slot, Value)>, StorageError> {
        let mut chunk = Chunk::default();
        let mut read = Vec::with_capacity(self.entries.len());
        for (index, (slot, place, source)) in self.entries.iter().enumerate() {
            let bytes = match source {
                EntrySource::Memory(bytes) => bytes.clone(),
                EntrySource::File(file) => {
                    if !chunk.holds(*place) {
                        let following = self.entries[index + 1..].iter();
                        let following = following
                            .take_while(|(.., source)| matches!(source, EntrySource::File(_)));
                        let end = chunk_end(*place, following.map(|(_, place, _)| *place));
                        chunk.read(file, *place, end).map_err(|source| {
                            let path = self.directory.join(name_of(place.segment));
                            StorageError::Directory { path, source }
                        })?;
                    }
                    Bytes::copy_from_slice(chunk.bytes(*place))
                }
            };
            let decoded = leasehold_log::decode_entry(&bytes, place.segment, self.log, *slot);
            let (_, value) = decoded
                .map_err(|problem| damaged_entry(&self.directory, *place, *slot, &problem))?;
            read.push((*slot, value));
        }
        Ok(read)
    }
}

fn damaged_entry(
    directory: &Path,
    place: RecordPlace,
    slot: Slot,
    problem: &EntryProblem,
) -> StorageError {
    StorageError::Damaged {
        path: directory.to_owned(),
        what: name_of(place.segment),
        problem: format!("slot {}, byte {}: {problem}", slot.0, place.offset),
    }
}

/// Returns the offset at which a read must end. The read begins at `first`, and includes the
/// `following` entries until the next entry does not fit into the read.
fn chunk_end(first: RecordPlace, following: impl Iterator<Item = RecordPlace>) -> usize {
    let start = first.offset as usize;
    let mut end = start + first.bytes as usize;
    for place in following {
        let next_end = (place.offset + place.bytes) as usize;
        let is_near = place.segment == first.segment && place.offset as usize >= end;
        if !is_near || next_end - start > READ_BYTES {
            break;
        }
        end = next_end;
    }
    end
}

/// Part of a segment that was read.
#[derive(Default)]
struct Chunk {
    segment: SegmentId,
    start: usize,
    bytes: Vec<u8>,
}

impl Chunk {
    fn holds(&self, place: RecordPlace) -> bool {
        let (start, end) = (place.offset as usize, (place.offset + place.bytes) as usize);
        self.segment == place.segment && start >= self.start && end <= self.start + self.bytes.len()
    }

    fn read(&mut self, file: &File, place: RecordPlace, end: usize) -> io::Result<()> {
        self.segment = place.segment;
        self.start = place.offset as usize;
        self.bytes.resize(end - self.start, 0);
        file.read_exact_at(&mut self.bytes, self.start as u64)
    }

    fn bytes(&self, place: RecordPlace) -> &[u8] {
        let start = place.offset as usize - self.start;
        &self.bytes[start..start + place.bytes as usize]
    }
}

/// Whether an error means that the disk has no space.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}

/// Whether an error means that the process or the machine has too many open files.
fn lacks_descriptors(error: &io::Error) -> bool {
    let errors = [Errno::MFILE, Errno::NFILE];
    Errno::from_io_error(error).is_some_and(|error| errors.contains(&error))
}

fn not_usable(directory: &Path, what: String, problem: &str) -> StorageError {
    StorageError::Damaged {
        path: directory.to_owned(),
        what,
        problem: problem.to_owned(),
    }
}

/// Returns the numbers of the segments in a folder, in ascending order. Files with other names are
/// ignored.
pub(super) fn segments(folder: &Path) -> io::Result<Vec<SegmentId>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        found.extend(name.to_str().and_then(segment_of));
    }
    found.sort_unstable();
    Ok(found)
}

/// Returns the number of the segment with this file name; `None` if no segment has such a name.
pub(super) fn segment_of(name: &str) -> Option<SegmentId> {
    let number = name.strip_suffix(ENDING)?.parse().ok().map(SegmentId)?;
    (name == format!("{number}{ENDING}")).then_some(number)
}

fn path_of(folder: &Path, segment: SegmentId) -> PathBuf {
    folder.join(format!("{segment}{ENDING}"))
}

/// Returns the path of a segment within its data directory.
pub(super) fn name_of(segment: SegmentId) -> String {
    format!("{FOLDER}/{segment}{ENDING}")
}

/// Reads a segment into `bytes`, and overwrites the previous contents.
///
/// # Errors
/// `Damaged` if the segment is not a regular file, `Directory`.
pub(super) fn read_segment(
    directory: &Path,
    segment: SegmentId,
    bytes: &mut Vec<u8>,
) -> Result<(), StorageError> {
    let name = name_of(segment);
    let path = directory.join(&name);
    match read_file(&path, bytes) {
        Ok(true) => Ok(()),
        Ok(false) => Err(not_usable(directory, name, "it is not a regular file")),
        Err(source) => Err(StorageError::Directory { path, source }),
    }
}

/// Reads a file, and returns true. Returns false if it is not a regular file.
fn read_file(path: &Path, bytes: &mut Vec<u8>) -> io::Result<bool> {
    use std::io::Read as _;
    bytes.clear();
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(false);
    }
    File::open(path)?.read_to_end(bytes).map(|_| true)
}

/// Rewrites the groups of the last segment that this start has found, and then syncs the segment.
/// Other replicas will rely on these groups, but the groups may not be durable yet, for one of two
/// reasons. The previous run may have been killed before it synced the groups. Or a sync of the
/// previous run has failed. After a failed sync, the operating system may treat the file as synced
/// although it is not (hazard 119). So the groups are rewritten before the sync.
fn sync_found(log: &LogWriter, folder: &Path) -> io::Result<()> {
    if let Some((last, end)) = log.found() {
        let path = path_of(folder, last);
        let file = File::options().read(true).write(true).open(path)?;
        let mut bytes = vec![0; end];
        // The zeros after the last group may be missing in part.
        let found = end.min(file.metadata()?.len() as usize);
        file.read_exact_at(&mut bytes[..found], 0)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
    }
    sync_folder(folder)
}

pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn damaged(directory: &Path, damage: &LogDamage) -> StorageError {
    StorageError::Damaged {
        path: directory.to_owned(),
        what: name_of(damage.segment),
        problem: format!("byte {}: {}", damage.offset, damage.problem),
    }
}
