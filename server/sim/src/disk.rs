//! Simulated disk of a replica: its durable state, and the time that a sync takes. Persists that
//! arrive during a sync share the next sync.

mod log_bytes;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use leasehold_leases::{Ballot, Incarnation, Key, ReplicaId, Slot};

use leasehold_replica::action::{
    Checkpoint, Record, RecoveredState, Sequence, SessionImage, StoredValue,
};
use leasehold_replica::message::{LogId, ReportedEntry, Value};

use self::log_bytes::LogBytes;

/// Durable state: the data that the replica finds on its disk when it starts again.
#[derive(Clone, Debug, Default, Hash)]
pub struct Image {
    incarnation: Incarnation,
    joined: bool,
    lives: BTreeMap<ReplicaId, u64>,
    promised: Ballot,
    accepted: BTreeMap<(LogId, Slot), (Ballot, Value)>,
    log_starts: BTreeMap<(LogId, Ballot), Slot>,
    restart_wait: Option<Duration>,
    executed: Slot,
    config: leasehold_leases::ConfigId,
    log_time_ms: u64,
    opens_from_ms: u64,
    entries: BTreeMap<Key, StoredValue>,
    /// Values of an unfinished checkpoint. A replica that starts ignores these values.
    staged: Vec<(Key, StoredValue)>,
    sessions: BTreeMap<u64, SessionImage>,
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
            Record::Staged(values) => self.staged.extend(values),
            Record::Checkpoint(checkpoint) => self.checkpoint(checkpoint),
        }
    }

    /// # Panics
    /// If the checkpoint lacks a value that was written in advance of it.
    fn checkpoint(&mut self, checkpoint: Checkpoint) {
        let entries: HashMap<_, _> = checkpoint.entries.iter().map(|(k, s)| (k, s)).collect();
        for (key, stored) in self.staged.drain(..) {
            let is_written = entries
                .get(&key)
                .is_some_and(|it| it.as_ref() == Some(&stored));
            assert!(
                is_written,
                "{key:?} is not in its checkpoint as it was written ahead"
            );
        }
        self.executed = checkpoint.executed;
        self.config = checkpoint.config;
        self.log_time_ms = checkpoint.log_time_ms;
        self.opens_from_ms = checkpoint.opens_from_ms;
        for (key, stored) in checkpoint.entries {
            match stored {
                Some(stored) => self.entries.insert(key, stored),
                None => self.entries.remove(&key),
            };
        }
        for (client, session) in checkpoint.sessions {
            match session {
                Some(session) => self.sessions.insert(client, session),
                None => self.sessions.remove(&client),
            };
        }
    }

    /// Returns the state that the replica finds when it starts, except for the life of the
    /// directory.
    fn recovered(&self) -> RecoveredState {
        let first = self.incarnation == Incarnation(1);
        let log_starts = self.log_starts.iter();
        RecoveredState {
            incarnation: self.incarnation,
            joined: self.joined,
            lives: self.lives.iter().map(|(r, life)| (*r, *life)).collect(),
            promised: self.promised,
            accepted: self.reported().collect(),
            log_starts: log_starts.map(|((l, b), s)| (*l, *b, *s)).collect(),
            restart_wait: (!first).then(|| self.restart_wait.unwrap_or_default()),
            state: self.state(),
            ..RecoveredState::default()
        }
    }

    /// Returns the log entries that a starting replica reports: the accepted commands above the
    /// checkpoint, and all accepted configurations.
    fn reported(&self) -> impl Iterator<Item = ReportedEntry> {
        let wanted = |log: LogId, slot: Slot| log == LogId::Configs || slot > self.executed;
        let accepted = self.accepted.iter();
        let accepted = accepted.filter(move |((log, slot), _)| wanted(*log, *slot));
        accepted.map(|((log, slot), (ballot, value))| ReportedEntry {
            log: *log,
            slot: *slot,
            ballot: *ballot,
            value: value.clone(),
        })
    }

    fn state(&self) -> Checkpoint {
        let (entries, sessions) = (self.entries.iter(), self.sessions.iter());
        Checkpoint {
            executed: self.executed,
            config: self.config,
            log_time_ms: self.log_time_ms,
            opens_from_ms: self.opens_from_ms,
            entries: entries.map(|(k, s)| (k.clone(), Some(s.clone()))).collect(),
            sessions: sessions.map(|(c, s)| (*c, Some(s.clone()))).collect(),
        }
    }

    fn read_log(&self, log: LogId, from: Slot, last: Slot) -> impl Iterator<Item = (Slot, Value)> {
        let entries = self.accepted.range((log, from)..=(log, last));
        entries.map(|((_, slot), (_, value))| (*slot, value.clone()))
    }
}

/// Maximum number of log entries that one read returns. If the entries are large, this many fill a
/// frame.
pub const READ_MAX: usize = 16;

/// Disk of a replica: its durable state, and the persists that are not durable yet.
#[derive(Clone, Debug, Hash)]
pub struct Disk {
    image: Option<Image>,
    /// The log as bytes; `None` if the disk has only the image.
    log: Option<Box<LogBytes>>,
    /// Life of the directory; 0 until it is created.
    life: u64,
    /// Duration of a sync, in ns.
    pub sync_ns: u64,
    /// True time in ns before which no sync ends.
    pub stalled_until_ns: u64,
    /// Maximum number of log entries that one read returns.
    pub read_max: usize,
    /// Whether the disk has no free space, so that nothing becomes durable.
    full: bool,
    syncing: Vec<(Sequence, Vec<Record>)>,
    queued: Vec<(Sequence, Vec<Record>)>,
}

impl Disk {
    /// Creates an empty disk. If `remembers` is false, the disk keeps no data, which saves memory
    /// in long runs that never restart a replica.
    pub fn new(sync_ns: u64, remembers: bool) -> Disk {
        Disk {
            image: remembers.then(Image::default),
            log: None,
            life: 0,
            sync_ns,
            stalled_until_ns: 0,
            read_max: READ_MAX,
            full: false,
            syncing: Vec::new(),
            queued: Vec::new(),
        }
    }

    /// Makes the disk keep its log as bytes, in segments of this length in bytes. Reads of the log and
    /// crashes then use the bytes. The disk must be empty, and must remember its contents.
    pub fn with_log(self, segment_bytes: usize) -> Disk {
        assert!(self.image.is_some() && self.life == 0, "the disk is empty");
        Disk {
            log: Some(Box::new(LogBytes::new(segment_bytes))),
            ..self
        }
    }

    /// Creates the disk of a replica that has joined the cluster, with `life` as the life of its
    /// directory. The disk has no other state.
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
            Vec::new()
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

    /// Begins to write the log records of the sync that begins.
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
            if let Some(image) = &mut self.image {
                records.into_iter().for_each(|record| image.apply(record));
            }
        }
        if !self.full {
            std::mem::swap(&mut self.syncing, &mut self.queued);
            self.begin_sync();
        }
        (last, !self.syncing.is_empty())
    }

    /// Whether the disk has no free space.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Fills the disk, or frees space on it again. Data that is already being written is still
    /// written. Returns whether a sync begins now.
    pub fn set_full(&mut self, full: bool) -> bool {
        self.full = full;
        if full || !self.syncing.is_empty() || self.queued.is_empty() {
            return false;
        }
        self.syncing = std::mem::take(&mut self.queued);
        self.begin_sync();
        true
    }

    /// Returns the number of persists in the sync that is in progress, which a crash now would
    /// interrupt.
    pub fn interrupted(&self) -> usize {
        self.syncing.len()
    }

    /// Whether the disk has the log as bytes.
    pub fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Handles a crash of a disk that has the log as bytes. Sectors of the interrupted sync are lost
    /// if `survives` returns false. If none is lost, all its records
    /// are in the log. The changes of the executed state are written after the log, and so they
    /// may be lost nevertheless.
    pub fn crash_in_sectors(&mut self, mut survives: impl FnMut() -> bool) {
        let is_whole = self
            .log
            .as_mut()
            .is_some_and(|log| log.crash(&mut survives));
        let has_state = survives();
        for (_, records) in &mut self.syncing {
            let is_of_state = |it: &Record| matches!(it, Record::Staged(_) | Record::Checkpoint(_));
            records.retain(|it| has_state || !is_of_state(it));
        }
        let survivors = if is_whole { self.syncing.len() } else { 0 };
        self.crash(survivors);
    }

    /// Handles a crash. Data that was not synced is lost, except for the first `survivors` persists
    /// of the interrupted sync. Each surviving persist is complete, because a torn record is
    /// recognized by its checksum and discarded.
    pub fn crash(&mut self, survivors: usize) {
        if let Some(image) = &mut self.image {
            let survivors = self.syncing.drain(..).take(survivors);
            survivors
                .flat_map(|(_, records)| records)
                .for_each(|record| image.apply(record));
        }
        self.syncing.clear();
        self.queued.clear();
    }

    /// Whether the disk holds an acceptance in this slot at `ballot` or a higher ballot, as a vote
    /// at `ballot` requires. The result is always true for a disk that keeps no data.
    pub fn holds(&self, log: LogId, slot: Slot, ballot: Ballot) -> bool {
        self.image.as_ref().is_none_or(|image| {
            let accepted = image.accepted.get(&(log, slot));
            accepted.is_some_and(|(at, _)| *at >= ballot)
        })
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
    /// this start creates the directory, `draw` is called to choose the life of the directory.
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
        image.staged.clear();
        RecoveredState {
            life,
            ..image.recovered()
        }
    }

    /// Returns entries of a log, for a peer that lags.
    pub fn read_log(&self, log: LogId, from: Slot, last: Slot) -> Vec<(Slot, Value)> {
        if let Some(bytes) = &self.log {
            let entries = bytes.entries(log, from);
            let entries = entries.take_while(|entry| entry.slot <= last);
            return entries
                .take(self.read_max)
                .map(|entry| (entry.slot, entry.value))
                .collect();
        }
        let image = self.image.iter();
        let entries = image.flat_map(|image| image.read_log(log, from, last));
        entries.take(self.read_max).collect()
    }
}
