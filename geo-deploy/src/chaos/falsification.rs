//! Tests of the judge. The record of a round is changed so that it looks as if a replica had been
//! faulty. If the judge does not detect this, its verdicts are worthless.

use std::collections::BTreeMap;

use leasehold_histories::history::{History, HistoryAction, HistoryEvent, ValueId};

use super::record::RoundRecord;

/// Way in which a record is falsified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Falsification {
    /// A read of an outdated value is added: the value was overwritten before the read began.
    StaleRead,
    /// Reads return an earlier value of a key although a later write of the key was acknowledged.
    LostWrite,
    /// The longest list found has the last acknowledged token twice.
    RepeatedAppend,
    /// A read at the end finds a counter to which an acknowledged number was added twice.
    RepeatedAdd,
}

/// Falsifies a record. Returns false if the record has no suitable key. For a stale read or a lost
/// write, a suitable key has two acknowledged writes: the second write began after the first had
/// ended, and a read that began after both found the second value. For a repetition, a suitable key
/// has an acknowledged append or addition.
pub fn falsify(falsification: Falsification, record: &mut RoundRecord) -> bool {
    match falsification {
        Falsification::RepeatedAppend => record.ledger.repeat_append(),
        Falsification::RepeatedAdd => record.ledger.repeat_addition(),
        Falsification::StaleRead | Falsification::LostWrite => falsify_write(falsification, record),
    }
}

fn falsify_write(falsification: Falsification, record: &mut RoundRecord) -> bool {
    let Some(pair) = last_write_pair(&record.history) else {
        return false;
    };
    if falsification == Falsification::StaleRead {
        record.history.push(pair.read());
    } else {
        let events = record.history.events().iter();
        let lost: History = events.map(|event| pair.lose(event)).collect();
        record.history = lost;
    }
    true
}

/// Two acknowledged writes of a key. The second write began after the first had ended, and a read
/// that began after both found the new value.
struct WritePair {
    key: u64,
    old: ValueId,
    new: ValueId,
    /// Time at which the second write was acknowledged, in ns since the round began.
    at_ns: u64,
}

/// Returns the last pair of successive writes of one key. Chooses the hottest key that has such a
/// pair, because many other operations on a hot key happen at about the same time.
fn last_write_pair(history: &History) -> Option<WritePair> {
    let mut writes: BTreeMap<u64, Vec<(u64, u64, ValueId)>> = BTreeMap::new();
    let mut read_ns: BTreeMap<(u64, ValueId), u64> = BTreeMap::new();
    for event in history.events() {
        match (event.action, event.return_ns) {
            (HistoryAction::Write { value }, Some(end_ns)) => {
                let of_key = writes.entry(event.key).or_default();
                of_key.push((event.invoke_ns, end_ns, value));
            }
            (HistoryAction::Read { value: Some(value) }, _) => {
                let latest_ns = read_ns.entry((event.key, value)).or_default();
                *latest_ns = event.invoke_ns.max(*latest_ns);
            }
            _ => {}
        }
    }
    writes.into_iter().find_map(|(key, mut of_key)| {
        of_key.sort_unstable();
        let is_read_later = |(_, at_ns, new): &&(u64, u64, ValueId)| {
            read_ns
                .get(&(key, *new))
                .is_some_and(|read_ns| read_ns > at_ns)
        };
        let &(begin_ns, at_ns, new) = of_key.iter().rev().find(is_read_later)?;
        let ended = |(_, end_ns, _): &&(u64, u64, ValueId)| *end_ns < begin_ns;
        let &(_, _, old) = of_key.iter().rev().find(ended)?;
        Some(WritePair {
            key,
            old,
            new,
            at_ns,
        })
    })
}

impl WritePair {
    /// Returns a read that finds the old value after the new one was acknowledged.
    fn read(&self) -> HistoryEvent {
        HistoryEvent {
            process: u32::MAX,
            key: self.key,
            action: HistoryAction::Read {
                value: Some(self.old),
            },
            invoke_ns: self.at_ns + 1,
            return_ns: Some(self.at_ns + 2),
        }
    }

    /// Returns `event`, but changes a read of the new value into a read of the old value.
    fn lose(&self, event: &HistoryEvent) -> HistoryEvent {
        let new = HistoryAction::Read {
            value: Some(self.new),
        };
        if event.key != self.key || event.action != new {
            return *event;
        }
        let value = Some(self.old);
        HistoryEvent {
            action: HistoryAction::Read { value },
            ..*event
        }
    }
}
