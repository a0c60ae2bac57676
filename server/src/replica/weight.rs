//! About how large values and commands are.

use client::wire::command::Op;
use client::wire::{Outcome, outcome};
use leases::Key;

use super::action::{Checkpoint, Record, Stored};
use super::message::{Batch, Value};
use super::parts::outcome_weight;

/// What a record takes beside what it holds: its names and numbers.
const RECORD_BYTES: usize = 64;
/// What a command takes beside what it holds.
const COMMAND_BYTES: usize = 96;
/// What it takes to find an entry, in bytes of a put that takes as long.
pub const ENTRY_WORK: usize = 64;
/// The same of each field of a record into which fields are merged.
const FIELD_WORK: usize = 1;
/// So many of its bytes are copied in the time that a put takes for one.
const COPIED_BYTES: usize = 128;

/// Bytes of new memory that the operating system clears in the time that a put takes for one.
const CLEARED_BYTES: usize = 16;
/// Shorter values find memory that was used before.
const CLEARED_FROM_BYTES: usize = 32 << 10;

/// About how many bytes a record takes, in memory or on disk.
pub fn record_weight(record: &Record) -> usize {
    let held = match record {
        Record::Accepted { value, .. } => weigh(value),
        Record::Checkpoint(checkpoint) => checkpoint_weight(checkpoint),
        Record::Staged(values) => values
            .iter()
            .map(|(key, stored)| stored_weight(key, Some(stored)))
            .sum(),
        Record::Promised(_)
        | Record::Erased { .. }
        | Record::LogStart { .. }
        | Record::ForgetLogStarts { .. }
        | Record::RestartWait(_)
        | Record::Life { .. }
        | Record::Joined => 0,
    };
    RECORD_BYTES + held
}

fn checkpoint_weight(checkpoint: &Checkpoint) -> usize {
    let entries = checkpoint.entries.iter();
    let entries = entries.map(|(key, stored)| stored_weight(key, stored.as_ref()));
    let sessions = checkpoint.sessions.iter().map(|(_, session)| {
        let results = session.iter().flat_map(|session| &session.results);
        let results = results.map(|(_, outcome)| outcome_weight(outcome));
        RECORD_BYTES + results.sum::<usize>()
    });
    entries.sum::<usize>() + sessions.sum::<usize>()
}

fn stored_weight(key: &Key, stored: Option<&Stored>) -> usize {
    RECORD_BYTES + key.len() + stored.map_or(0, |stored| stored.value.len())
}

/// About how many bytes a value keeps in memory.
pub fn weigh(value: &Value) -> usize {
    match value {
        Value::Noop => 64,
        Value::Config(change) => {
            let keys = change.keys.iter().flat_map(|(_, keys)| keys);
            keys.map(|key| key.len() + 32).sum::<usize>() + 128
        }
        Value::Commands(batch) => batch_weight(batch),
    }
}

fn batch_weight(batch: &Batch) -> usize {
    batch
        .commands
        .iter()
        .map(|p| COMMAND_BYTES + command_weight(&p.command))
        .sum()
}

/// About how many bytes a command takes on the wire.
pub fn command_weight(command: &client::wire::Command) -> usize {
    match &command.op {
        Some(Op::Put(put)) => put.key.len() + put.value.len(),
        Some(Op::Cas(cas)) => cas.key.len() + cas.value.len(),
        Some(Op::PutFields(put)) => {
            let fields = put.fields.iter().map(|f| f.name.len() + f.value.len() + 8);
            put.key.len() + fields.sum::<usize>()
        }
        Some(Op::MultiPut(multi)) => multi
            .entries
            .iter()
            .map(|e| e.key.len() + e.value.len() + 8)
            .sum(),
        Some(Op::MultiGet(multi)) => multi.keys.iter().map(|k| k.len() + 4).sum(),
        Some(Op::Get(get)) => get.key.len(),
        Some(Op::Delete(delete)) => delete.key.len(),
        Some(Op::Scan(scan)) => scan.from.len() + scan.to.len(),
        None => 0,
    }
}

/// About how much work it is to execute a command, in bytes of a put that takes as long; of a
/// merge without [`merge_work`].
pub fn work(command: &client::wire::Command) -> usize {
    let entries = match &command.op {
        Some(Op::Scan(scan)) => scan.limit as usize,
        Some(Op::MultiGet(multi)) => multi.keys.len(),
        _ => return command_weight(command),
    };
    command_weight(command).max(entries * ENTRY_WORK)
}

/// The same of one that was executed, with this outcome. Keys of a read that are not there had to be
/// looked for, too.
pub fn work_done(command: &client::wire::Command, outcome: &Outcome) -> usize {
    let work = match (&command.op, &outcome.result) {
        (Some(Op::Scan(_)), Some(outcome::Result::Entries(found))) => {
            found.entries.len() * ENTRY_WORK
        }
        _ => work(command),
    };
    COMMAND_BYTES + work
}

/// The same of a value of so many bytes for which there is no memory yet.
pub const fn clearing_work(bytes: usize) -> usize {
    match bytes < CLEARED_FROM_BYTES {
        true => 0,
        false => bytes / CLEARED_BYTES,
    }
}

/// The same of the merge of fields into a record of so many fields and bytes.
pub const fn merge_work(fields: usize, bytes: usize) -> usize {
    fields * FIELD_WORK + bytes / COPIED_BYTES
}
