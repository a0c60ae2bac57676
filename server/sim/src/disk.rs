//! A replica's disk: what is durable, and how long it takes to become so.
//! Persists that arrive during a sync share the next one.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use leasehold_leases::{Ballot, Incarnation, Key, ReplicaId, Slot};

use leasehold_replica::action::{
    Checkpoint, Record, RecoveredState, Sequence, SessionImage, StoredValue,
};
use leasehold_replica::message::{LogId, ReportedEntry, Value};

/// State that a restart would find.
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
    /// Values of a checkpoint that is not written yet: nothing to a start.
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
    /// If it does not hold what was written ahead of it.
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

    /// Returns the state that a start finds, except for the directory's life.
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

    /// Commands above the checkpoint, and all configurations.
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

/// Entries of a log read at once: as many as make a frame of large ones.
pub const READ_MAX: usize = 16;

/// A replica's disk: its durable state, and the persists that are on their way there.
#[derive(Clone, Debug, Hash)]
pub struct Disk {
    image: Option<Image>,
    /// The directory's; 0 until it is made.
    life: u64,
    /// Duration of a sync, in ns.
    pub sync_ns: u64,
    /// No sync ends before this true time, in ns.
    pub stalled_until_ns: u64,
    /// Maximum number of entries of a log that are read at once.
    pub read_max: usize,
    /// There is no room: nothing becomes durable.
    full: bool,
    syncing: Vec<(Sequence, Vec<Record>)>,
    queued: Vec<(Sequence, Vec<Record>)>,
}

impl Disk {
    /// An empty disk. Without an image nothing is remembered, for long runs
    /// that never restart.
    pub fn new(sync_ns: u64, remembers: bool) -> Disk {
        Disk {
            image: remembers.then(Image::default),
            life: 0,
            sync_ns,
            stalled_until_ns: 0,
            read_max: READ_MAX,
            full: false,
            syncing: Vec::new(),
            queued: Vec::new(),
        }
    }

    /// The disk of a replica that has joined in this life, with nothing else on it.
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

    /// Takes a persist; returns whether a sync begins now.
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
        idle
    }

    /// A sync ends: what it made durable, and whether another begins now.
    pub fn synced(&mut self) -> (Option<Sequence>, bool) {
        let last = self.syncing.last().map(|(sequence, _)| *sequence);
        for (_, records) in self.syncing.drain(..) {
            if let Some(image) = &mut self.image {
                records.into_iter().for_each(|record| image.apply(record));
            }
        }
        if !self.full {
            std::mem::swap(&mut self.syncing, &mut self.queued);
        }
        (last, !self.syncing.is_empty())
    }

    /// Whether there is no room.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// There is no room from now on, or there is again. What was being written
    /// is written. Returns whether a sync begins now.
    pub fn set_full(&mut self, full: bool) -> bool {
        self.full = full;
        if full || !self.syncing.is_empty() || self.queued.is_empty() {
            return false;
        }
        self.syncing = std::mem::take(&mut self.queued);
        true
    }

    /// Returns the number of persists that a crash would interrupt.
    pub fn interrupted(&self) -> usize {
        self.syncing.len()
    }

    /// A crash: what was not synced is gone, but for the first `survivors` of the
    /// persists of the sync that it interrupts. Those are whole: a torn record is
    /// recognised by its checksum, and none at all.
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

    /// Whether an acceptance is durable: what a vote stands on.
    pub fn holds(&self, log: LogId, slot: Slot, ballot: Ballot) -> bool {
        self.image.as_ref().is_none_or(|image| {
            let accepted = image.accepted.get(&(log, slot));
            accepted.is_some_and(|(at, _)| *at >= ballot)
        })
    }

    /// All contents are lost: the next start makes a directory anew.
    pub fn wipe(&mut self) {
        *self = Disk::new(self.sync_ns, self.image.is_some());
    }

    /// Returns the state that a start finds, and raises the incarnation. `draw` is asked for the
    /// life of a directory that is created now.
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
        image.incarnation.0 += 1;
        image.staged.clear();
        RecoveredState {
            life,
            ..image.recovered()
        }
    }

    /// Entries of a log, for a peer that lags.
    pub fn read_log(&self, log: LogId, from: Slot, last: Slot) -> Vec<(Slot, Value)> {
        let image = self.image.iter();
        let entries = image.flat_map(|image| image.read_log(log, from, last));
        entries.take(self.read_max).collect()
    }
}
