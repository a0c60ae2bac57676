//! How much merging of this replica's clients is on its way through the log, and which merges wait
//! here for that.
//!
//! A merge takes as long as its record is large, and what follows it in the log waits for it. So
//! an origin sends merges only while what it has sent is not too much work. The others wait here,
//! by turns of connections, and other commands pass them by. How large a record is, is known only
//! as far as the log was executed: writes on their way may make it large.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use bytes::Bytes;
use client::wire::Command;
use client::wire::command::Op;
use leases::hashing::Seeded;

use super::super::message::RequestId;
use crate::turns::Turns;

/// What a merge counts for at least: writes on their way may make its record large.
const WORK_MIN: usize = 64;
/// The same if many merges of its key wait here: they may follow such a write.
const WORK_MIN_OF_MANY: usize = 512;
/// A merge of more is large. Large and small ones do not wait for each other.
const SMALL_WORK_MAX: usize = 256;

/// The session of a merge that waits, and its name.
pub(super) type Held = ((u64, u64), RequestId);

/// What is counted of merges.
#[derive(Clone, Debug, Default)]
pub(super) struct Merging {
    /// How many merges of each key wait for an answer.
    by_key: HashMap<Bytes, usize, Seeded>,
    small: Class,
    large: Class,
}

/// Merges that wait for each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Class {
    /// The work of those that were sent and are not answered.
    work_sent: usize,
    /// Those that were not sent yet. Some may have been answered meanwhile: another origin may have
    /// brought them.
    pub held: Turns<Held>,
}

impl Class {
    /// Whether one of them may be sent, however much work it is.
    pub fn may_send(&self, work_max: usize) -> bool {
        self.work_sent < work_max
    }

    /// Whether one that comes now may be sent. Long ones cannot wait for a turn, and have a quarter
    /// more for themselves.
    pub fn has_turn(&self, work_max: usize, is_long: bool) -> bool {
        match is_long {
            true => self.may_send(work_max.saturating_add(work_max / 4)),
            false => self.held.is_empty() && self.may_send(work_max),
        }
    }

    /// One that counts so much was sent.
    pub fn sent(&mut self, work: usize) {
        self.work_sent += work;
    }
}

impl Hash for Merging {
    /// The rest follows from the writes that wait.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.small.held, &self.large.held).hash(state);
    }
}

/// The key of a merge.
fn merged_key(command: &Command) -> Option<&Bytes> {
    match &command.op {
        Some(Op::PutFields(put)) => Some(&put.key),
        _ => None,
    }
}

impl Merging {
    /// What is counted of a command, if merging takes so much `work` as far as is known, and so
    /// many merges of one key are not many; nothing of what is no merge.
    pub fn work_of(&self, command: &Command, work: usize, many: usize) -> usize {
        let Some(key) = merged_key(command) else {
            return 0;
        };
        let merges = self.by_key.get(key).copied().unwrap_or_default();
        work.max(match merges < many {
            true => WORK_MIN,
            false => WORK_MIN_OF_MANY,
        })
    }

    pub fn classes(&mut self) -> [&mut Class; 2] {
        [&mut self.small, &mut self.large]
    }

    /// That of merges that count so much.
    pub fn class(&mut self, work: usize) -> &mut Class {
        match work <= SMALL_WORK_MAX {
            true => &mut self.small,
            false => &mut self.large,
        }
    }

    /// A command waits for an answer.
    pub fn count(&mut self, command: &Command) {
        let Some(key) = merged_key(command) else {
            return;
        };
        match self.by_key.get_mut(key) {
            Some(merges) => *merges += 1,
            // Not a part of the frame, which would be kept as long.
            None => drop(self.by_key.insert(Bytes::copy_from_slice(key), 1)),
        }
    }

    /// A command waits for no answer any more. If it was sent, it counted so much.
    pub fn settle(&mut self, command: &Command, sent: Option<usize>) {
        if let Some(work) = sent {
            self.class(work).work_sent -= work;
        }
        let Some(key) = merged_key(command) else {
            return;
        };
        let merges = self.by_key.get_mut(key).expect("its merges are counted");
        *merges -= 1;
        if *merges == 0 {
            self.by_key.remove(key);
        }
    }

    /// # Panics
    /// If it is not what follows from the commands that wait for an answer, each with what it
    /// counts if it was sent.
    pub fn check<'a>(&self, waiting: impl Iterator<Item = (&'a Command, Option<usize>)>) {
        let mut counted = Merging::default();
        let mut held = false;
        for (command, sent) in waiting {
            counted.count(command);
            held |= sent.is_none();
            let work = sent.unwrap_or_default();
            counted.class(work).sent(work);
        }
        assert_eq!(self.by_key, counted.by_key, "merges are counted");
        let work = [&self.small, &self.large].map(|class| class.work_sent);
        let found = [&counted.small, &counted.large].map(|class| class.work_sent);
        assert_eq!(work, found, "the work that was sent is counted");
        let none_held = self.small.held.is_empty() && self.large.held.is_empty();
        assert!(!held || !none_held, "what was not sent is held");
    }
}
