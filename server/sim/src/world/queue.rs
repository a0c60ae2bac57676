//! Queue of what will happen, in order of true time; at the same time, in the order in which it was
//! decided.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bits of where an event waits, and of how many were scheduled before it.
const PLACE_BITS: u32 = 24;
const SCHEDULED_BITS: u32 = 40;

/// Events of one kind. The heap moves one number for each: when, then how many were
/// scheduled before it, then where it waits.
#[derive(Debug)]
pub(super) struct Queue<E> {
    heap: BinaryHeap<Reverse<u128>>,
    events: Vec<Option<E>>,
    free: Vec<usize>,
    /// Events scheduled so far.
    pub scheduled: u64,
}

impl<E> Queue<E> {
    pub fn new() -> Queue<E> {
        Queue {
            heap: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            scheduled: 0,
        }
    }

    /// Adds an event at a true time, in ns; returns where it waits.
    pub fn schedule(&mut self, at_ns: u64, event: E) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        self.scheduled += 1;
        assert!(place >> PLACE_BITS == 0 && self.scheduled >> SCHEDULED_BITS == 0);
        let order = u128::from(self.scheduled << PLACE_BITS | place as u64);
        self.heap.push(Reverse(u128::from(at_ns) << 64 | order));
        place
    }

    /// The event that waits in a place.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut E> {
        self.events[place].as_mut()
    }

    /// The next event, and its true time in ns.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        let Reverse(next) = self.heap.pop()?;
        let place = next as usize & ((1 << PLACE_BITS) - 1);
        let event = self.events[place].take().expect("a queued event exists");
        self.free.push(place);
        Some(((next >> 64) as u64, event))
    }
}
