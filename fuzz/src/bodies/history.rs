//! Bodies for histories: for the file format, and for the checker that judges a history.

use leasehold_histories::History;

use crate::memory;

/// Maximum memory for each byte of a history, in bytes. An event has at least four bytes in the
/// file, and 72 bytes in memory.
const PER_BYTE: usize = size_of::<leasehold_histories::HistoryEvent>() / 4;
/// Maximum number of events of a history that is judged. A longer history is only decoded, because
/// the checker may legitimately take long for it.
const JUDGED_EVENTS_MAX: usize = 64;
const CHECKSUM_BYTES: usize = 4;

/// Decodes the file of a history. Then corrects the checksum of the file, and decodes the file
/// again.
pub fn history(input: &[u8]) {
    read(input);
    let length = input.len().saturating_sub(CHECKSUM_BYTES);
    let mut sealed = input[..length].to_vec();
    sealed.extend(crc32fast::hash(&sealed).to_le_bytes());
    read(&sealed);
}

fn read(file: &[u8]) {
    let from_bytes = || History::from_bytes(file);
    let Ok(history) = memory::within(file.len(), PER_BYTE, from_bytes) else {
        return;
    };
    let again = History::from_bytes(&history.to_bytes());
    assert_eq!(again.expect("what was written is read"), history);
    if history.len() <= JUDGED_EVENTS_MAX {
        let _ = leasehold_histories::check(&history);
    }
}

pub mod seeds {
    use leasehold_histories::{History, HistoryAction, HistoryEvent, ValueId};

    fn event(number: u64, action: HistoryAction) -> HistoryEvent {
        HistoryEvent {
            process: number as u32 % 3,
            key: number % 2,
            action,
            invoke_ns: 1000 * number,
            return_ns: (number % 5 != 4).then_some(1000 * number + 1700),
        }
    }

    pub fn history() -> Vec<Vec<u8>> {
        let value = |number: u64| ValueId(1 << 40 | number);
        let cas = |expected, new, swapped| HistoryAction::Cas {
            expected,
            new: value(new),
            swapped,
        };
        let plain = [
            HistoryAction::Write { value: value(1) },
            HistoryAction::Write { value: value(2) },
            HistoryAction::Read {
                value: Some(value(1)),
            },
            HistoryAction::Read {
                value: Some(value(2)),
            },
            HistoryAction::Write { value: value(3) },
            HistoryAction::Read { value: None },
        ];
        let all = [
            cas(None, 1, true),
            HistoryAction::Delete,
            cas(Some(value(1)), 4, true),
            cas(Some(value(1)), 5, false),
            HistoryAction::Read {
                value: Some(value(4)),
            },
            HistoryAction::Delete,
            HistoryAction::Read { value: None },
        ];
        let histories: [&[HistoryAction]; 3] = [&[], &plain, &all];
        let file = |actions: &[HistoryAction]| {
            let events = (1..).zip(actions).map(|(n, action)| event(n, *action));
            events.collect::<History>().to_bytes()
        };
        histories.map(file).into()
    }
}
