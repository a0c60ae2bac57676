//! Size estimates of records, values and commands.

use leasehold_leases::Key;
use leasehold_wire::command::Op;
use prost::Message as _;

use super::action::{Record, StateChanges, StoredValue};
use super::message::{Batch, Value};
use super::parts::outcome_size;

/// Estimated size of a record without its content, in bytes. This is the size of its names and
/// numbers.
const RECORD_BYTES: usize = 64;
/// Size estimate of a command without its content, in bytes.
const COMMAND_BYTES: usize = 96;
/// Size estimate of the holders of a listed key under one configuration, in bytes.
const VERSION_BYTES: usize = 16;
/// Returns the estimated size of a record, in bytes. The estimate applies both in memory and on
/// disk.
pub fn record_size_estimate(record: &Record) -> usize {
    let held = match record {
        Record::Accepted { value, .. } => value_size_estimate(value),
        Record::Changes(changes) => changes_size_estimate(changes),
        Record::Promised(_)
        | Record::Erased { .. }
        | Record::LogStart { .. }
        | Record::ForgetLogStarts { .. }
        | Record::RestartWait(_)
        | Record::Life { .. }
        | Record::Joined
        | Record::Committed(_) => 0,
    };
    RECORD_BYTES + held
}

/// Returns the estimated size of a batch of changes, in bytes. The estimate applies both in memory
/// and on disk.
pub fn changes_size_estimate(changes: &StateChanges) -> usize {
    let entries = changes.entries.iter();
    let entries = entries.map(|(key, stored)| stored_size_estimate(key, stored.as_ref()));
    let sessions = changes.sessions.iter().map(|(_, session)| {
        let results = session.iter().flat_map(|session| &session.results);
        let results = results.map(|(_, outcome)| outcome_size(outcome));
        RECORD_BYTES + results.sum::<usize>()
    });
    let listed = changes.listed.iter().map(|(key, versions)| {
        let versions = versions.as_ref().map_or(0, |versions| versions.len());
        RECORD_BYTES + key.len() + VERSION_BYTES * versions
    });
    let configs = changes.configs.iter().flat_map(|configs| &configs.frames);
    let configs = configs.map(|frame| {
        let policies = frame.policies.iter();
        RECORD_BYTES
            + policies
                .map(|it| RECORD_BYTES + it.from.len())
                .sum::<usize>()
    });
    entries.sum::<usize>()
        + sessions.sum::<usize>()
        + listed.sum::<usize>()
        + configs.sum::<usize>()
}

fn stored_size_estimate(key: &Key, stored: Option<&StoredValue>) -> usize {
    RECORD_BYTES + key.len() + stored.map_or(0, |stored| stored.value.len())
}

/// Returns the estimated size of a value in memory, in bytes.
pub fn value_size_estimate(value: &Value) -> usize {
    match value {
        Value::Noop => 64,
        Value::Config(change) => {
            let keys = change.keys.iter().flat_map(|(_, keys)| keys);
            keys.map(|key| key.len() + 32).sum::<usize>() + 128
        }
        Value::Commands(batch) => batch_size_estimate(batch),
    }
}

fn batch_size_estimate(batch: &Batch) -> usize {
    batch
        .commands
        .iter()
        .map(|p| COMMAND_BYTES + command_size_estimate(&p.command))
        .sum()
}

/// Returns the estimated size of a command on the wire, in bytes.
pub fn command_size_estimate(command: &leasehold_wire::Command) -> usize {
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
        Some(Op::Txn(txn)) => txn.encoded_len(),
        Some(Op::MultiGet(multi)) => multi.keys.iter().map(|k| k.len() + 4).sum(),
        Some(Op::Get(get)) => get.key.len(),
        Some(Op::Delete(delete)) => delete.key.len(),
        Some(Op::Scan(scan)) => scan.from.len() + scan.to.len(),
        None => 0,
    }
}
