//! Chosen values. Each is taken from the first replica that knew it, and all other replicas are
//! compared with this value.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::FixedState;
use leasehold_leases::{Key, Slot};

use super::written;
use leasehold_replica::message::{LogId, Value};

/// Values that were chosen, by log and slot.
#[derive(Debug, Default)]
pub struct ChosenValues {
    values: [Vec<Option<Value>>; 2],
    /// Slots of each log that are not chosen although a higher slot is chosen.
    open: [BTreeSet<Slot>; 2],
    /// Highest chosen slot with a write of each key.
    newest: HashMap<Key, Slot, FixedState>,
    /// Keys that were written first, in the order of their first writes.
    first_keys: Vec<Key>,
}

/// Maximum number of keys in [`ChosenValues::first_keys`].
const FIRST_KEYS: usize = 32;

impl ChosenValues {
    /// Adds `value`, which is committed in `slot`. Returns whether this is the first commit of the
    /// slot.
    pub(super) fn committed(&mut self, log: LogId, slot: Slot, value: &Value) -> bool {
        let values = &mut self.values[log.index()];
        let index = slot.0 as usize - 1;
        let open = &mut self.open[log.index()];
        if values.len() <= index {
            open.extend((values.len() as u64 + 1..slot.0).map(Slot));
            values.resize(index + 1, None);
        } else if !open.remove(&slot) {
            return false;
        }
        values[index] = Some(value.clone());
        for proposed in value.commands().iter().filter(|p| p.command.is_write()) {
            for key in written(&proposed.command) {
                match self.newest.get_mut(key) {
                    Some(newest) => *newest = slot.max(*newest),
                    None => {
                        self.newest.insert(key.clone(), slot);
                        if self.first_keys.len() < FIRST_KEYS {
                            self.first_keys.push(key.clone());
                        }
                    }
                }
            }
        }
        true
    }

    /// Returns the value chosen in `slot`, if any replica knows it.
    pub fn value(&self, log: LogId, slot: Slot) -> Option<&Value> {
        let index = slot.0.checked_sub(1)? as usize;
        self.values[log.index()].get(index)?.as_ref()
    }

    /// Returns, in rising order, the slots of `first..before` that no replica knows to be chosen.
    pub(super) fn open(
        &self,
        log: LogId,
        first: Slot,
        before: Slot,
    ) -> impl Iterator<Item = Slot> + '_ {
        let beyond = first.0.max(self.values[log.index()].len() as u64 + 1);
        let below = self.open[log.index()].range(first..).copied();
        below
            .take_while(move |slot| *slot < before)
            .chain((beyond..before.0).map(Slot))
    }

    /// Returns the highest chosen slot with a write of `key`.
    pub fn newest(&self, key: &Key) -> Option<Slot> {
        self.newest.get(key).copied()
    }

    /// Returns the chosen slots above `slot` with their values, in rising order.
    pub(super) fn beyond(&self, log: LogId, slot: Slot) -> impl Iterator<Item = (Slot, &Value)> {
        let values = self.values[log.index()].iter().enumerate();
        let values = values.skip(slot.0 as usize);
        values.filter_map(|(index, value)| Some((Slot(index as u64 + 1), value.as_ref()?)))
    }

    /// Returns some of the written keys, for oracles that do not check all keys.
    pub(super) fn sample(&self) -> &[Key] {
        &self.first_keys
    }
}
