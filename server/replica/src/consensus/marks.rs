//! Marks: for each key, the accepted slots that write it and are not executed yet. A read waits
//! until no marked slot writes its key any more. A slot is marked before its acceptance is
//! acknowledged.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use leasehold_leases::hashing::SeededState;
use leasehold_leases::{Key, Slot};
use smallvec::SmallVec;

use crate::message::Value;

/// Marked slots of each key.
#[derive(Clone, Debug, Default)]
pub struct Marks(HashMap<Key, Slots, SeededState>);

/// Marked slots of one key, in rising order. There may be a hundred thousand of them. Slots are
/// usually removed from the front, and such a removal does not move the other slots.
#[derive(Clone, Debug, Default)]
struct Slots {
    all: SmallVec<[Slot; 2]>,
    /// Number of slots at the beginning of `all` that are no longer marked. It is always less than
    /// half of the length of `all`.
    gone: usize,
}

impl Hash for Slots {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.marked().hash(state);
    }
}

impl Slots {
    fn marked(&self) -> &[Slot] {
        &self.all[self.gone..]
    }

    fn add(&mut self, slot: Slot) {
        let Err(at) = self.marked().binary_search(&slot) else {
            return;
        };
        let marked = self.marked();
        let rises = at == 0 || marked[at - 1] < slot;
        let rises = rises && marked.get(at).is_none_or(|next| slot < *next);
        assert!(rises, "the marked slots of a key rise");
        self.all.insert(self.gone + at, slot);
    }

    /// Removes a slot, and returns whether it was marked.
    fn remove(&mut self, slot: Slot) -> bool {
        let Ok(at) = self.marked().binary_search(&slot) else {
            return false;
        };
        if at > 0 {
            self.all.remove(self.gone + at);
        } else {
            self.gone += 1;
        }
        if 2 * self.gone >= self.all.len() {
            self.all.drain(..self.gone);
            self.gone = 0;
        }
        true
    }
}

impl Hash for Marks {
    fn hash<H: Hasher>(&self, state: &mut H) {
        leasehold_leases::fingerprint::unordered(&self.0, state);
    }
}

impl Marks {
    /// Marks every key that `value` writes.
    pub fn mark(&mut self, slot: Slot, value: &Value) {
        for key in value.written_keys() {
            self.0.entry(key.clone()).or_default().add(slot);
        }
    }

    /// Removes the marks of `slot`. Calls `unmarked` with each key that had such a mark.
    pub fn unmark(&mut self, slot: Slot, value: &Value, mut unmarked: impl FnMut(&Key)) {
        for key in value.written_keys() {
            let Some(slots) = self.0.get_mut(key) else {
                continue;
            };
            if slots.remove(slot) {
                if slots.marked().is_empty() {
                    self.0.remove(key);
                }
                unmarked(key);
            }
        }
    }

    /// Returns the marked slots of `key`, in rising order.
    pub fn on(&self, key: &[u8]) -> &[Slot] {
        self.0.get(key).map_or(&[], Slots::marked)
    }

    /// Returns every mark: its key and its slot.
    pub fn all(&self) -> impl Iterator<Item = (&Key, Slot)> {
        let marks = self.0.iter();
        marks.flat_map(|(key, slots)| slots.marked().iter().map(move |slot| (key, *slot)))
    }

    /// Returns the number of keys that are marked.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no key is marked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the range `from..to` contains a marked key. If `to` is empty, the range has
    /// no end.
    pub fn any_within(&self, from: &[u8], to: &[u8]) -> bool {
        let within = |key: &Key| key.as_ref() >= from && (to.is_empty() || key.as_ref() < to);
        self.0.keys().any(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares `Slots` with a plain list, for every sequence of six slots that are added or
    /// removed.
    #[test]
    fn slots_are_those_of_a_plain_list() {
        for case in 0..6u64.pow(6) {
            let (mut slots, mut plain) = (Slots::default(), Vec::new());
            for place in 0..6 {
                let slot = Slot(case / 6u64.pow(place) % 6);
                match plain.binary_search(&slot) {
                    Ok(at) => {
                        plain.remove(at);
                        assert!(slots.remove(slot), "case {case}");
                    }
                    Err(at) => {
                        assert!(!slots.remove(slot), "case {case}");
                        plain.insert(at, slot);
                        slots.add(slot);
                    }
                }
                assert_eq!(slots.marked(), plain, "case {case}");
            }
        }
    }

    #[test]
    fn marks_that_go_in_their_order_take_no_memory_and_move_little() {
        let mut slots = Slots::default();
        (0..1000).for_each(|slot| slots.add(Slot(slot)));
        for slot in 0..1000 {
            assert!(slots.remove(Slot(slot)));
            assert!(2 * slots.gone < slots.all.len().max(1), "{slot}");
        }
        assert!(slots.all.is_empty());
    }
}
