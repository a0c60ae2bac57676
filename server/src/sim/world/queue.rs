//! What will happen, in order of true time; at the same time, in the order in which
//! it was decided.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events of one kind. The heap moves only where they are.
#[derive(Debug)]
pub(super) struct Queue<E> {
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
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
        self.heap.push(Reverse((at_ns, self.scheduled, place)));
        place
    }

    /// The event that waits in a place.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut E> {
        self.events[place].as_mut()
    }

    /// The next event, and its true time in ns.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        let Reverse((at_ns, _, place)) = self.heap.pop()?;
        let event = self.events[place].take().expect("a queued event exists");
        self.free.push(place);
        Some((at_ns, event))
    }
}
