//! Positive controls: a record is falsified as a wrong replica would have made it. A judge
//! that does not notice proves nothing by its other verdicts.

use std::collections::BTreeMap;

use leasehold_histories::history::{Action, Event, History, ValueId};

use super::record::Record;

/// Way in which a record is falsified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// A read is added that finds what was overwritten before it began.
    StaleRead,
    /// The final read finds the value before the last acknowledged write.
    LostWrite,
}

/// Falsifies a record. False if it holds nothing that could be falsified so: no key was
/// written twice, one write after the other.
pub fn falsify(control: Control, record: &mut Record) -> bool {
    let Some(overwritten) = overwritten(&record.history) else {
        return false;
    };
    match control {
        Control::StaleRead => record.history.push(overwritten.read()),
        Control::LostWrite => {
            let lost: History = (record.history.events().iter())
                .map(|event| overwritten.lose(event))
                .collect();
            record.history = lost;
        }
    }
    true
}

/// Two acknowledged writes of a key, one after the other.
struct Overwritten {
    key: u64,
    old: ValueId,
    new: ValueId,
    /// When the second was acknowledged.
    at_ns: u64,
}

/// The last two such writes of the hottest key that has them, so that much happens around
/// them.
fn overwritten(history: &History) -> Option<Overwritten> {
    let mut writes: BTreeMap<u64, Vec<(u64, u64, ValueId)>> = BTreeMap::new();
    for event in history.events() {
        if let (Action::Write { value }, Some(end_ns)) = (event.action, event.return_ns) {
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
        before.map(|&(_, _, old)| Overwritten {
            key,
            old,
            new,
            at_ns,
        })
    })
}

impl Overwritten {
    /// Finds the old value after the new one was acknowledged.
    fn read(&self) -> Event {
        Event {
            process: u32::MAX,
            key: self.key,
            action: Action::Read {
                value: Some(self.old),
            },
            invoke_ns: self.at_ns + 1,
            return_ns: Some(self.at_ns + 2),
        }
    }

    /// Replaces the new value by the old one in an operation that found it, at whatever time.
    fn lose(&self, event: &Event) -> Event {
        let new = Action::Read {
            value: Some(self.new),
        };
        if event.key != self.key || event.action != new {
            return *event;
        }
        let value = Some(self.old);
        Event {
            action: Action::Read { value },
            ..*event
        }
    }
}
