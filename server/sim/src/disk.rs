//! Simulated disk of a replica: its durable state, and the time that a sync takes. Persists that
//! arrive during a sync share the next sync.

mod log_bytes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::config::KeyVersions;
use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, Incarnation, Key, ReplicaId, Slot};
use leasehold_log::RecordPlace;

use leasehold_replica::action::{
    ConfigFrames, Record, RecoveredState, Sequence, SessionImage, StateChanges, StoredValue,
};
use leasehold_replica::message::{LogId, PerLog, ReportedEntry, Value};

use self::log_bytes::LogBytes;

/// Durable state: the data on the disk of a replica, from which the replica starts again.
#[derive(Clone, Debug, Default, Hash)]
pub struct Image {
    incarnation: Incarnation,
    joined: bool,
    lives: BTreeMap<ReplicaId, u64>,
    promised: Ballot,
    accepted: BTreeMap<(LogId, Slot), (Ballot, Value)>,
    /// Commit points that were recorded last.
    committed: PerLog<Slot>,
    /// Last slots of the entries that were truncated.
    truncated: PerLog<Slot>,
    log_starts: BTreeMap<(LogId, Ballot), Slot>,
    restart_wait: Option<Duration>,
    executed: Slot,
    config: leasehold_leases::ConfigId,
    log_time_ms: u64,
    opens_from_ms: u64,
    entries: BTreeMap<Key, StoredValue>,
    sessions: BTreeMap<u64, SessionImage>,
    configs: Option<ConfigFrames>,
    listed: BTreeMap<Key, KeyVersions>,
}

impl Image {
    fn apply(&mut self, record: Record) {
        match record {
            Record::Promised(ballot) => self.promised = ballot,
            Record::Accepted {
                log,
                slot,
                ballot,
                value,
            } => {
                self.accepted.insert((log, slot), (ballot, value));
            }
            Record::Erased { log, slot } => {
                self.accepted.remove(&(log, slot));
            }
            Record::LogStart { log, ballot, slot } => {
                self.log_starts.insert((log, ballot), slot);
            }
            Record::ForgetLogStarts { log, below } => {
                self.log_starts
                    .retain(|(of, ballot), _| *of != log || *ballot >= below);
            }
            Record::RestartWait(wait) => self.restart_wait = Some(wait),
            Record::Life { replica, life } => {
                self.lives.insert(replica, life);
            }
            Record::Joined => self.joined = true,
            Record::Committed(slots) => self.committed = slots,
            Record::Changes(_) => unreachable!("changes of the state are not in the log"),
        }
    }

    /// Makes a batch of changes of the state durable, as a whole (hazards 88 and 121).
    fn flush(&mut self, changes: StateChanges) {
        self.executed = changes.executed;
        self.config = changes.config;
        self.log_time_ms = changes.log_time_ms;
        self.opens_from_ms = changes.opens_from_ms;
        self.configs = changes.configs.or(self.configs.take());
        apply_rows(&mut self.listed, changes.listed);
        if !off(Rule::H88Rows) {
            apply_rows(&mut self.entries, changes.entries);
        }
        if !off(Rule::H121Sessions) {
            apply_rows(&mut self.sessions, changes.sessions);
        }
    }

    /// Returns the state that the replica finds when it starts, except for the number that
    /// identifies the directory (its life).
    fn recovered(&self) -> RecoveredState {
        let first = self.incarnation == Incarnation(1);
        let log_starts = self.log_starts.iter();
        RecoveredState {
            incarnation: self.incarnation,
            joined: self.joined,
            lives: self.lives.iter().map(|(r, life)| (*r, *life)).collect(),
            promised: self.promised,
            accepted: self.reported().collect(),
            committed: self.committed,
            log_starts: log_starts.map(|((l, b), s)| (*l, *b, *s)).collect(),
            restart_wait: (!first).then(|| self.restart_wait.unwrap_or_default()),
            state: self.state(),
            ..RecoveredState::default()
        }
    }

    /// Returns the log entries that a starting replica reports. These are the entries that the
    /// state does not cover.
    fn reported(&self) -> impl Iterator<Item = ReportedEntry> {
        let covered = PerLog {
            commands: self.executed,
            configs: Slot(self.config.0),
        };
        let accepted = self.accepted.iter();
        let accepted = accepted.filter(move |((log, slot), _)| *slot > covered[*log]);
        accepted.map(|((log, slot), (ballot, value))| ReportedEntry {
            log: *log,
            slot: *slot,
            ballot: *ballot,
            value: value.clone(),
        })
    }

    fn state(&self) -> StateChanges {
        let (entries, sessions) = (self.entries.iter(), self.sessions.iter());
        let listed = self.listed.iter();
        StateChanges {
            executed: self.executed,
            config: self.config,
            log_time_ms: self.log_time_ms,
            opens_from_ms: self.opens_from_ms,
            entries: entries.map(|(k, s)| (k.clone(), Some(s.clone()))).collect(),
            sessions: sessions.map(|(c, s)| (*c, Some(s.clone()))).collect(),
            configs: self.configs.clone(),
            listed: listed.map(|(k, v)| (k.clone(), Some(v.clone()))).collect(),
        }
    }

    /// Removes the entries up to these slots.
    fn truncate(&mut self, slots: PerLog<Slot>) {
        self.truncated = PerLog::of(|log| slots[log].max(self.truncated[log]));
        self.accepted
            .retain(|(log, slot), _| *slot > self.truncated[*log]);
    }

    fn read_log(&self, log: LogId, from: Slot, last: Slot) -> impl Iterator<Item = (Slot, Value)> {
        let entries = self.accepted.range((log, from)..=(log, last));
        entries.map(|((_, slot), (_, value))| (*slot, value.clone()))
    }
}

/// Replaces (`Some`) or removes (`None`) rows.
fn apply_rows<K: Ord, V>(rows: &mut BTreeMap<K, V>, changes: Vec<(K, Option<V>)>) {
    for (key, value) in changes {
        match value {
            Some(value) => rows.insert(key, value),
            None => rows.remove(&key),
        };
    }
}

/// Removes the rows of a batch of changes, so that only its position and its configurations remain.
/// Returns `None` if `record` is not a batch of changes.
fn position(record: Record) -> Option<Record> {
    let Record::Changes(changes) = record else {
        return None;
    };
    let position = StateChanges {
        entries: Vec::new(),
        sessions: Vec::new(),
        listed: Vec::new(),
        ..Arc::unwrap_or_clone(changes)
    };
    Some(position.into())
}

/// Maximum number of log entries that one read returns. This number of large entries fills a frame.
pub const READ_MAX: usize = 16;

/// Disk of a replica: the durable state, and the persists that are not durable yet.
#[derive(Clone, Debug, Hash)]
pub struct Disk {
    image: Option<Image>,
    /// The log as bytes; `None` if the disk has only the image.
    log: Option<Box<LogBytes>>,
    /// Random number that identifies the directory (its life); 0 until the directory is created.
    life: u64,
    /// Duration of a sync, in ns.
    pub sync_ns: u64,
    /// Earliest moment at which a sync may end, in ns of true time.
    pub stalled_until_ns: u64,
    /// Maximum number of log entries that one read returns.
    pub read_max: usize,
    /// Whether the disk has no free space, so that no record of the log becomes durable.
    full: bool,
    /// Whether a flush succeeds on the full disk, because the store has a reserve of space.
    pub has_reserve: bool,
    syncing: Vec<(Sequence, Vec<Record>)>,
    queued: Vec<(Sequence, Vec<Record>)>,
    /// Batches of changes that were applied to the state, but have not been flushed.
    applied: Vec<Arc<StateChanges>>,
    /// Last slots that the durable state covers.
    flushed: PerLog<Slot>,
    /// Sequence number of the last persist that the requested flush must cover; `None` if no flush
    /// is requested.
    flush_after: Option<Sequence>,
    /// Number of batches that the flush in progress covers; `None` if there is no flush.
    flushing: Option<usize>,
    /// Whether the flush in progress covers less than was requested.
    is_short: bool,
}

impl Disk {
    /// Creates an empty disk. If `remembers` is false, the disk keeps no data. This saves memory in
    /// long runs that never restart a replica.
    pub fn new(sync_ns: u64, remembers: bool) -> Disk {
        Disk {
            image: remembers.then(Image::default),
            log: None,
            life: 0,
            sync_ns,
            stalled_until_ns: 0,
            read_max: READ_MAX,
            full: false,
            has_reserve: false,
            syncing: Vec::new(),
            queued: Vec::new(),
            applied: Vec::new(),
            flushed: PerLog::default(),
            flush_after: None,
            flushing: None,
            is_short: false,
        }
    }

    /// Makes the disk keep its log as bytes, in segments of `segment_bytes` bytes. Reads of the log
    /// and crashes then use these bytes. The disk must be empty, and must remember its contents.
    pub fn with_log(self, segment_bytes: usize) -> Disk {
        assert!(self.image.is_some() && self.life == 0, "the disk is empty");
        Disk {
            log: Some(Box::new(LogBytes::new(segment_bytes))),
            ..self
        }
    }

    /// Creates the disk of a replica that has joined the cluster. The disk contains only `life`,
    /// the number that identifies the directory.
    pub fn joined(sync_ns: u64, life: u64) -> Disk {
        let image = Image {
            joined: true,
            ..Image::default()
        };
        Disk {
            image: Some(image),
            life,
            ..Disk::new(sync_ns, true)
        }
    }

    /// Receives records that the replica persists. Returns whether a sync begins now.
    pub fn persist(&mut self, sequence: Sequence, records: Vec<Record>) -> bool {
        let idle = self.syncing.is_empty() && !self.full;
        let records = if self.image.is_some() {
            records
        } else {
            records.into_iter().filter_map(position).collect()
        };
        let queue = if idle {
            &mut self.syncing
        } else {
            &mut self.queued
        };
        queue.push((sequence, records));
        if idle {
            self.begin_sync();
        }
        idle
    }

    /// Begins to write the log records that the new sync covers.
    fn begin_sync(&mut self) {
        if let Some(log) = &mut self.log {
            let records = self.syncing.iter().flat_map(|(_, records)| records);
            log.begin(&records.cloned().collect::<Vec<_>>());
        }
    }

    /// Ends a sync. Returns the sequence number of the last persist that the sync made durable, and
    /// whether another sync begins now.
    pub fn synced(&mut self) -> (Option<Sequence>, bool) {
        let last = self.syncing.last().map(|(sequence, _)| *sequence);
        if let Some(log) = &mut self.log {
            log.synced();
        }
        for (_, records) in self.syncing.drain(..) {
            for record in records {
                match (record, &mut self.image) {
                    (Record::Changes(changes), _) => self.applied.push(changes),
                    (record, Some(image)) => image.apply(record),
                    (_, None) => {}
                }
            }
        }
        if !self.full {
            std::mem::swap(&mut self.syncing, &mut self.queued);
            self.begin_sync();
        }
        (last, !self.syncing.is_empty())
    }

    /// Removes the log entries up to these slots.
    ///
    /// # Panics
    /// Panics if the flushed state does not cover these entries, because a restart could not
    /// execute the removed entries again.
    pub fn truncate(&mut self, slots: PerLog<Slot>) {
        let covered = slots.all(|log, slot| *slot <= self.flushed[log]);
        assert!(covered, "only entries that the flushed state covers may go");
        if let Some(image) = &mut self.image {
            image.truncate(slots);
        }
        if let Some(log) = &mut self.log {
            log.truncate(slots);
        }
    }

    /// Requests a flush of all changes that were persisted so far.
    pub fn request_flush(&mut self) {
        let last = self.queued.last().or(self.syncing.last());
        self.flush_after = Some(last.map_or(Sequence::default(), |(sequence, _)| *sequence));
    }

    /// Begins the requested flush once every persist before the request is applied. On a full disk,
    /// begins it at once, and it covers only what is applied. Returns whether the flush begins.
    pub fn begin_flush(&mut self) -> bool {
        let Some(after) = self.flush_after else {
            return false;
        };
        let first = self.syncing.first().or(self.queued.first());
        let waits = first.is_some_and(|(sequence, _)| *sequence <= after);
        if waits && !self.full {
            return false;
        }
        self.flush_after = None;
        self.flushing = Some(self.applied.len());
        self.is_short = waits;
        true
    }

    /// Whether the flush in progress covers less than was requested, because the disk was full when
    /// it began.
    pub fn is_flush_short(&self) -> bool {
        self.is_short
    }

    /// Ends the flush. Returns the last slots that the durable state covers.
    pub fn flushed(&mut self) -> PerLog<Slot> {
        let covered = self.flushing.take().unwrap_or_default();
        self.make_durable(covered);
        self.flushed
    }

    fn make_durable(&mut self, batches: usize) {
        for changes in self.applied.drain(..batches).map(Arc::unwrap_or_clone) {
            self.flushed = PerLog {
                commands: changes.executed,
                configs: Slot(changes.config.0),
            };
            if let Some(image) = &mut self.image {
                image.flush(changes);
            }
        }
    }

    /// Returns the number of batches that were applied to the state, but have not been flushed.
    pub fn unflushed(&self) -> usize {
        self.applied.len()
    }

    /// Whether the disk has no free space.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Makes the disk full, or frees space on the disk again. A write that has already begun is
    /// still completed. Returns whether a sync begins now.
    pub fn set_full(&mut self, full: bool) -> bool {
        self.full = full;
        if full || !self.syncing.is_empty() || self.queued.is_empty() {
            return false;
        }
        self.syncing = std::mem::take(&mut self.queued);
        self.begin_sync();
        true
    }

    /// Returns the number of persists in the sync that is in progress. A crash at this moment would
    /// interrupt this sync.
    pub fn interrupted(&self) -> usize {
        self.syncing.len()
    }

    /// Whether the disk has the log as bytes.
    pub fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Whether an accepted entry was handed to the disk and is not durable yet.
    pub fn awaits_entry(&self) -> bool {
        let persists = self.syncing.iter().chain(&self.queued);
        let mut records = persists.flat_map(|(_, records)| records);
        records.any(|record| matches!(record, Record::Accepted { .. }))
    }

    /// Handles a crash of a disk that has the log as bytes. Calls `survives` for each sector of the
    /// interrupted sync; the sector is lost if `survives` returns false. If no sector is lost, the
    /// log contains all records of the sync. `flushed` has the same meaning as in [`Disk::crash`].
    pub fn crash_in_sectors(&mut self, mut survives: impl FnMut() -> bool, flushed: usize) {
        let is_whole = self
            .log
            .as_mut()
            .is_some_and(|log| log.crash(&mut survives));
        let survivors = if is_whole { self.syncing.len() } else { 0 };
        self.crash(survivors, flushed);
    }

    /// Handles a crash. All data that is not synced is lost, except for the first `survivors`
    /// persists of the interrupted sync. Each surviving persist is complete, because a torn record
    /// is recognized by its checksum and discarded. Applied but unflushed changes of the state are
    /// lost, too, except for the first `flushed` batches. These batches survive because a store may
    /// flush at any time (hazard 88).
    pub fn crash(&mut self, survivors: usize, flushed: usize) {
        self.make_durable(flushed);
        if let Some(image) = &mut self.image {
            let survivors = self.syncing.drain(..).take(survivors);
            let records = survivors.flat_map(|(_, records)| records);
            let of_log = records.filter(|record| !matches!(record, Record::Changes(_)));
            of_log.for_each(|record| image.apply(record));
        }
        self.syncing.clear();
        self.queued.clear();
        self.applied.clear();
        self.flush_after = None;
        self.flushing = None;
    }

    /// Whether the disk holds a value that was accepted for this slot at `ballot` or a higher
    /// ballot. A replica may vote at `ballot` only if this is true. The result is always true for a
    /// disk that keeps no data.
    pub fn holds(&self, log: LogId, slot: Slot, ballot: Ballot) -> bool {
        self.image.as_ref().is_none_or(|image| {
            let accepted = image.accepted.get(&(log, slot));
            slot <= image.truncated[log] || accepted.is_some_and(|(at, _)| *at >= ballot)
        })
    }

    /// Forgets the commit points, as if an older program had written the log.
    pub fn forget_commits(&mut self) {
        if let Some(image) = &mut self.image {
            image.committed = PerLog::default();
        }
    }

    /// Deletes all contents. The next start creates a new directory.
    pub fn wipe(&mut self) {
        let wiped = Disk::new(self.sync_ns, self.image.is_some());
        *self = match &self.log {
            Some(log) => wiped.with_log(log.segment_bytes()),
            None => wiped,
        };
    }

    /// Returns the state that the replica finds when it starts, and increments the incarnation. If
    /// this start creates the directory, `draw` chooses the life, the number that identifies the
    /// directory.
    pub fn recover(&mut self, draw: impl FnOnce() -> u64) -> RecoveredState {
        if self.life == 0 {
            self.life = draw().max(1);
        }
        let life = self.life;
        let Some(image) = &mut self.image else {
            return RecoveredState {
                incarnation: Incarnation(1),
                life,
                ..RecoveredState::default()
            };
        };
        if let Some(log) = &mut self.log {
            log.recover(image);
        }
        image.incarnation.0 += 1;
        RecoveredState {
            life,
            ..image.recovered()
        }
    }

    /// Begins a read of log entries, for a peer that lags.
    pub fn begin_read(&self, log: LogId, from: Slot, last: Slot) -> EntryRead {
        let (entries, places) = if let Some(bytes) = &self.log {
            let entries = bytes.entries(log, from);
            let entries = entries.take_while(|(entry, _)| entry.slot <= last);
            let entries = entries.map(|(entry, place)| ((entry.slot, entry.value), place));
            entries.take(self.read_max).unzip()
        } else {
            let image = self.image.iter();
            let entries = image.flat_map(|image| image.read_log(log, from, last));
            (entries.take(self.read_max).collect(), Vec::new())
        };
        EntryRead {
            log,
            entries,
            places,
        }
    }

    /// Reads log entries. Nothing happens between the beginning and the end of the read.
    pub fn read_log(&self, log: LogId, from: Slot, last: Slot) -> Vec<(Slot, Value)> {
        self.begin_read(log, from, last).entries
    }

    /// Ends a read. The files of its segments may have been used again while it was in progress.
    /// The read ends at the first entry with an overwritten record. Returns whether it ends early.
    ///
    /// # Panics
    /// Panics if the log takes the contents of another segment for an entry (hazard 114).
    pub fn reread(&self, read: &mut EntryRead) -> bool {
        let Some(bytes) = &self.log else {
            return false;
        };
        let log = read.log;
        let mut entries = read.entries.iter().zip(&read.places);
        let lost = entries
            .position(|((slot, value), place)| !bytes.still_holds(log, *slot, *place, value));
        read.entries.truncate(lost.unwrap_or(read.entries.len()));
        lost.is_some()
    }
}

/// A read of log entries that has begun.
#[derive(Clone, Debug)]
pub struct EntryRead {
    /// Log that is read.
    pub log: LogId,
    /// Entries, as they were when the read began.
    pub entries: Vec<(Slot, Value)>,
    /// Places of the entries in the segments; empty if the disk does not have the log as bytes.
    places: Vec<RecordPlace>,
}
