//! Slots for connections. If no slot is free, a new connection takes the slot of the oldest one.
//!
//! A peer that connects must find a slot, even if all slots are taken by unidentified peers that
//! send nothing, or by connections from an earlier run of the peer that were never closed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::sync::Notify;

/// Slots for a bounded number of connections. The number of connections with the same key is also
/// bounded.
#[derive(Debug)]
pub(crate) struct EvictingSlots<K> {
    max: usize,
    max_per_key: usize,
    last: Cell<u64>,
    /// Slots in use, from the oldest to the newest.
    taken: Rc<RefCell<VecDeque<OccupiedSlot<K>>>>,
    evictions: Cell<u64>,
}

#[derive(Debug)]
struct OccupiedSlot<K> {
    number: u64,
    key: K,
    lost: Rc<Notify>,
}

/// A slot of one connection. Dropping this value frees the slot.
#[derive(Debug)]
pub(crate) struct EvictableSlot<K> {
    number: u64,
    lost: Rc<Notify>,
    taken: Rc<RefCell<VecDeque<OccupiedSlot<K>>>>,
}

impl<K> EvictableSlot<K> {
    /// Waits until a newer connection has taken this slot.
    pub(crate) async fn evicted(&self) {
        self.lost.notified().await;
    }
}

impl<K> Drop for EvictableSlot<K> {
    fn drop(&mut self) {
        let mut taken = self.taken.borrow_mut();
        taken.retain(|other| other.number != self.number);
    }
}

impl<K: Copy + Eq> EvictingSlots<K> {
    pub(crate) fn new(max: usize, max_per_key: usize) -> EvictingSlots<K> {
        EvictingSlots {
            max,
            max_per_key,
            last: Cell::new(0),
            taken: Rc::default(),
            evictions: Cell::new(0),
        }
    }

    /// Takes a slot for a connection with this key. If connections with this key have too many
    /// slots, the oldest of these connections loses its slot. Otherwise, if all connections
    /// together have too many slots, the oldest connection loses its slot.
    pub(crate) fn take(&self, key: K) -> EvictableSlot<K> {
        let mut taken = self.taken.borrow_mut();
        let alike = |other: &OccupiedSlot<K>| other.key == key;
        let loses = if taken.iter().filter(|other| alike(other)).count() >= self.max_per_key {
            taken.iter().position(alike)
        } else {
            (taken.len() >= self.max).then_some(0)
        };
        if let Some(loser) = loses.and_then(|loser| taken.remove(loser)) {
            loser.lost.notify_one();
            self.evictions.set(self.evictions.get() + 1);
        }
        let number = self.last.get() + 1;
        self.last.set(number);
        let lost = Rc::new(Notify::new());
        taken.push_back(OccupiedSlot {
            number,
            key,
            lost: lost.clone(),
        });
        EvictableSlot {
            number,
            lost,
            taken: self.taken.clone(),
        }
    }

    /// Returns the number of connections that have lost their slot to a newer connection.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_evicted(slot: &EvictableSlot<char>) -> bool {
        let evicted = slot.evicted();
        tokio::pin!(evicted);
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(evicted.as_mut().poll(context).is_ready())
        })
        .await
    }

    #[tokio::test]
    async fn the_newest_have_a_place_and_the_oldest_alike_goes_first() {
        let slots = EvictingSlots::new(4, 2);
        let first = slots.take('a');
        let other = slots.take('b');
        let second = slots.take('a');
        let third = slots.take('a');
        assert!(is_evicted(&first).await);
        for kept in [&other, &second, &third] {
            assert!(!is_evicted(kept).await);
        }
        let fourth = slots.take('c');
        let fifth = slots.take('d');
        assert!(is_evicted(&other).await, "the oldest of all");
        for kept in [&second, &third, &fourth, &fifth] {
            assert!(!is_evicted(kept).await);
        }
        assert_eq!(slots.evictions(), 2);
        drop((second, fourth));
        let sixth = slots.take('b');
        let seventh = slots.take('c');
        for kept in [&third, &fifth, &sixth, &seventh] {
            assert!(!is_evicted(kept).await, "there was room");
        }
    }
}
