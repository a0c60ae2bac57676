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
}

/// Falsifies a record. Returns false if the record has no suitable key. A suitable key has two
/// acknowledged writes, and the second write began after the first had ended.
pub fn falsify(falsification: Falsification, record: &mut RoundRecord) -> bool {
    let Some(pair) = last_write_pair(&record.history) else {
        return false;
    };
    match falsification {
        Falsification::StaleRead => record.history.push(pair.read()),
        Falsification::LostWrite => {
            let lost: History = (record.history.events().iter())
                .map(|event| pair.lose(event))
                .collect();
            record.history = lost;
        }
    }
    true
}

/// Two acknowledged writes of a key. The second write began after the first had ended.
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
    for event in history.events() {
        if let (HistoryAction::Write { value }, Some(end_ns)) = (event.action, event.return_ns) {
            let of_key = writes.entry(event.key).or_default();
            of_key.push((event.invoke_ns, end_ns, value));
        }
    }
    writes.into_iter().find_map(|(key, mut of_key)| {
        of_key.sort_unstable();
        let &(begin_ns, at_ns, new) = of_key.last()?;
        let before = of_key
            .iter()
            .rev()
            .find(|(_, end_ns, _)| *end_ns < begin_ns);
        before.map(|&(_, _, old)| WritePair {
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
