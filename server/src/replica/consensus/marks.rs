//! Marks: under each key, the accepted, not yet executed slots that write it.
//! A read waits for them; they are set before an acceptance is acknowledged.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use leases::hashing::Seeded;
use leases::{Key, Slot};
use smallvec::SmallVec;

use super::super::message::Value;

/// Slots marked, by key.
#[derive(Clone, Debug, Default)]
pub struct Marks(HashMap<Key, SmallVec<[Slot; 2]>, Seeded>);

impl Hash for Marks {
    fn hash<H: Hasher>(&self, state: &mut H) {
        leases::fingerprint::unordered(&self.0, state);
    }
}

impl Marks {
    /// Marks every key that `value` writes.
    pub fn mark(&mut self, slot: Slot, value: &Value) {
        for proposed in value.commands().iter().filter(|p| p.command.is_write()) {
            for key in proposed.command.keys() {
                let slots = self.0.entry(key.clone()).or_default();
                if let Err(at) = slots.binary_search(&slot) {
                    slots.insert(at, slot);
                }
                assert!(slots.is_sorted(), "marks rise");
            }
        }
    }

    /// Takes the marks of `slot` away again; calls `unmarked` for each key.
    pub fn unmark(&mut self, slot: Slot, value: &Value, mut unmarked: impl FnMut(&Key)) {
        for proposed in value.commands().iter().filter(|p| p.command.is_write()) {
            for key in proposed.command.keys() {
                let Some(slots) = self.0.get_mut(key) else {
                    continue;
                };
                if let Ok(at) = slots.binary_search(&slot) {
                    slots.remove(at);
                    if slots.is_empty() {
                        self.0.remove(key);
                    }
                    unmarked(key);
                }
            }
        }
    }

    /// The slots marked on `key`, rising.
    pub fn on(&self, key: &[u8]) -> &[Slot] {
        self.0.get(key).map_or(&[], |slots| slots.as_slice())
    }

    /// Every mark.
    pub fn all(&self) -> impl Iterator<Item = (&Key, Slot)> {
        let marks = self.0.iter();
        marks.flat_map(|(key, slots)| slots.iter().map(move |slot| (key, *slot)))
    }

    /// Whether no key is marked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any key in `from..to` is marked (`to` empty: no end).
    pub fn any_within(&self, from: &[u8], to: &[u8]) -> bool {
        let within = |key: &Key| key.as_ref() >= from && (to.is_empty() || key.as_ref() < to);
        self.0.keys().any(within)
    }
}
